//! The processor, the kernel's features, and the limits of this process.

use rustix::process::Resource;
use rustix::thread::{MembarrierCommand, MembarrierQuery};
use serde_json::{Value, json};

use super::{Check, read, size};

/// Open files: arenas, sockets and liveness handles of all peers, with room to spare.
const OPEN_FILES_COMFORTABLE: u64 = 1024;

pub(super) fn kernel() -> Check {
    let Some(release) = read("/proc/sys/kernel/osrelease") else {
        return Check::note("kernel", "unknown: /proc is not readable", "mount /proc; several checks below need it");
    };
    Check::ok("kernel", format!("Linux {release}")).data(json!({ "release": release }))
}

pub(super) fn processor() -> Check {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown model", |(_, model)| model.trim()).to_string();
    Check::ok("processor", model.clone()).data(json!({ "model": model }))
}

pub(super) fn ordering() -> Check {
    let architecture = std::env::consts::ARCH;
    let data = json!({ "architecture": architecture, "tso": cfg!(target_arch = "x86_64") });
    if cfg!(target_arch = "x86_64") {
        return Check::ok("memory order", "x86-64: total store order (TSO), as Farfield's model has it").data(data);
    }
    let value = format!("{architecture} is not x86-64: no total store order");
    Check::lack("memory order", value, "use an x86-64 machine: objects rely on its memory order").vital().data(data)
}

pub(super) fn cores() -> Check {
    let allowed = rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count() as usize);
    // This one also knows the processor quota of the control group.
    let usable = std::thread::available_parallelism().map_or(allowed, usize::from);
    let online =
        read("/proc/cpuinfo").map_or(0, |info| info.lines().filter(|line| line.starts_with("processor")).count());
    let data = json!({ "usable": usable, "affinity": allowed, "online": online });
    let quota =
        if usable < allowed { format!(" (a quota; the affinity mask allows {allowed})") } else { String::new() };
    let value = format!("{usable} of {online} usable by this process{quota}");
    if usable <= 1 {
        let advice =
            "nodes take turns on one core: fine for trying things out; for speed allow more (taskset, cpuset, quota)";
        return Check::note("cores", value, advice).data(data);
    }
    Check::ok("cores", value).data(data)
}

pub(super) fn membarrier() -> Check {
    let offered = rustix::thread::membarrier_query();
    let works = |needed: MembarrierQuery, register, command| {
        offered.contains(needed)
            && rustix::thread::membarrier(register).is_ok()
            && rustix::thread::membarrier(command).is_ok()
    };
    let (own, most) = (
        works(
            MembarrierQuery::PRIVATE_EXPEDITED | MembarrierQuery::REGISTER_PRIVATE_EXPEDITED,
            MembarrierCommand::RegisterPrivateExpedited,
            MembarrierCommand::PrivateExpedited,
        ),
        works(
            MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED,
            MembarrierCommand::RegisterGlobalExpedited,
            MembarrierCommand::GlobalExpedited,
        ),
    );
    let slow = offered.contains(MembarrierQuery::GLOBAL);
    let data = json!({ "private_expedited": own, "global_expedited": most, "global": slow });
    if !own || !most {
        let advice =
            "needs Linux 4.16 or later and a sandbox that allows membarrier(2); until then nothing can be revoked";
        return Check::lack("membarrier", "no expedited membarrier", advice).data(data);
    }
    if !slow {
        let advice =
            "the kernel runs with nohz_full: the right of a stopped process is taken when it goes on, or has died";
        return Check::note("membarrier", "expedited works: revocation and sleeping waiters", advice).data(data);
    }
    Check::ok("membarrier", "works: revocation and sleeping waiters").data(data)
}

pub(super) fn robust_futex() -> Check {
    // Asking needs a raw system call; every x86-64 kernel since 2.6.17 has them.
    Check::ok("robust futexes", "assumed (Linux since 2.6.17): the death of a node is seen at once")
}

pub(super) fn pidfd() -> Check {
    let opened = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
    match opened {
        Ok(_) => Check::ok("pidfd", "works: the end of a node is certain").data(json!({ "works": true })),
        Err(error) => {
            let advice = "needs Linux 5.3 or later and a sandbox that allows pidfd_open(2)";
            Check::note("pidfd", format!("pidfd_open fails: {error}"), advice).data(json!({ "works": false }))
        }
    }
}

fn limit(resource: Resource) -> (Option<u64>, Value) {
    let limit = rustix::process::getrlimit(resource);
    (limit.current, json!({ "soft": limit.current, "hard": limit.maximum }))
}

pub(super) fn address_space() -> Check {
    match limit(Resource::As) {
        (None, data) => Check::ok("address space", "unlimited").data(data),
        (Some(bytes), data) => {
            let advice = "every node maps the arenas of all its peers: ulimit -v unlimited";
            Check::note("address space", size(bytes), advice).data(data)
        }
    }
}

pub(super) fn open_files() -> Check {
    match limit(Resource::Nofile) {
        (Some(count), data) if count < OPEN_FILES_COMFORTABLE => {
            let advice = format!("few for many nodes: ulimit -n {OPEN_FILES_COMFORTABLE}");
            Check::note("open files", count.to_string(), advice).data(data)
        }
        (count, data) => {
            Check::ok("open files", count.map_or("unlimited".into(), |count| count.to_string())).data(data)
        }
    }
}

pub(super) fn locked_memory() -> Check {
    let (bytes, data) = limit(Resource::Memlock);
    let value = bytes.map_or("unlimited".into(), size);
    Check::ok("locked memory", format!("{value} (counts for RDMA devices only)")).data(data)
}

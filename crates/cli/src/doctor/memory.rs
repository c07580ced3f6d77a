//! Memory: how much there is, and whether it can be shared, sealed and mapped in large pages.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use serde_json::{Value, json};

use super::{Check, GIB, KIB, MIB, read, size};

/// Below this much memory a session of a few nodes may not fit.
const MEMORY_BYTES_COMFORTABLE: u64 = GIB;

const SHMEM_THP: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

pub(super) fn memory() -> Check {
    let info = read("/proc/meminfo").unwrap_or_default();
    let (Some(total), Some(available)) = (meminfo(&info, "MemTotal"), meminfo(&info, "MemAvailable")) else {
        return Check::note("memory", "unknown: /proc/meminfo is not readable", "mount /proc");
    };
    let value = format!("{} available of {}", size(available), size(total));
    let data = json!({ "total_bytes": total, "available_bytes": available });
    if available < MEMORY_BYTES_COMFORTABLE {
        return Check::note("memory", value, "little is left: end other programs or keep regions small").data(data);
    }
    Check::ok("memory", value).data(data)
}

/// The bytes that programs can still have on this machine, if that is known.
pub(crate) fn free_memory() -> Option<u64> {
    let available = meminfo(&read("/proc/meminfo")?, "MemAvailable")?;
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let left = cgroup_memory(&groups, Path::new("/sys/fs/cgroup")).map(|(limit, used)| limit.saturating_sub(used));
    Some(left.map_or(available, |left| left.min(available)))
}

/// A line of /proc/meminfo in bytes.
fn meminfo(info: &str, key: &str) -> Option<u64> {
    let rest = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(KIB)
}

pub(super) fn memory_limit() -> Check {
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let Some((limit, used)) = cgroup_memory(&groups, Path::new("/sys/fs/cgroup")) else {
        return Check::ok("memory limit", "none (control group)").data(json!({ "limit_bytes": null }));
    };
    let left = limit.saturating_sub(used);
    let value = format!("{} (control group), {} of it used", size(limit), size(used));
    let data = json!({ "limit_bytes": limit, "used_bytes": used });
    if left < MEMORY_BYTES_COMFORTABLE {
        let advice = "little is left, and shared memory counts: raise the limit (docker run --memory, MemoryMax=)";
        return Check::note("memory limit", value, advice).data(data);
    }
    Check::ok("memory limit", value).data(data)
}

/// The tightest memory limit over this process's control group and those above it, with the memory used under it.
fn cgroup_memory(groups: &str, root: &Path) -> Option<(u64, u64)> {
    let number = |path: PathBuf| read(path)?.parse::<u64>().ok();
    let mut tightest: Option<(u64, u64)> = None;
    for line in groups.lines() {
        // "0::/path" for version 2, "4:memory:/path" for version 1.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, limit_name, used_name) = match controllers {
            "" => (root.to_path_buf(), "memory.max", "memory.current"),
            list if list.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = mount.join(folder);
            // "max" (version 2) does not parse; version 1 writes a number near 2^63.
            let Some(limit) = number(folder.join(limit_name)).filter(|limit| *limit < 1 << 60) else {
                continue;
            };
            let used = number(folder.join(used_name)).unwrap_or(0);
            if tightest.is_none_or(|(least, _)| limit < least) {
                tightest = Some((limit, used));
            }
        }
    }
    tightest
}

pub(super) fn sealed_memory() -> Check {
    match try_sealed_memory() {
        Ok(()) => Check::ok("shared memory", "memfd, allocation and sealing work").vital(),
        Err((step, error)) => {
            let advice = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::OutOfMemory => "free memory or raise the limits above",
                io::ErrorKind::PermissionDenied => "the sandbox or container forbids memfd_create(2): allow it",
                _ => "Farfield needs memfd_create(2) with seals: Linux 3.17 or later, built with CONFIG_MEMFD_CREATE",
            };
            Check::lack("shared memory", format!("{step} fails: {error}"), advice).vital()
        }
    }
}

/// Takes once the steps that the shared-memory fabric takes for every arena.
fn try_sealed_memory() -> Result<(), (&'static str, io::Error)> {
    let at = |step: &'static str| move |error: rustix::io::Errno| (step, io::Error::from(error));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("farfield-doctor", flags).map_err(at("memfd_create"))?;
    rustix::fs::ftruncate(&file, MIB).map_err(at("sizing a memfd"))?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, MIB).map_err(at("allocating a memfd"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(at("sealing a memfd"))?;
    let file = fs::File::from(file);
    let mut back = [0; 8];
    file.write_all_at(b"farfield", MIB - 8)
        .and_then(|()| file.read_exact_at(&mut back, MIB - 8))
        .map_err(|error| ("using a memfd", error))?;
    if &back != b"farfield" {
        return Err(("reading a memfd back", io::Error::from(io::ErrorKind::InvalidData)));
    }
    match file.set_len(2 * MIB) {
        Err(_) => Ok(()),
        Ok(()) => Err(("sealing a memfd", io::Error::other("a sealed memfd could still grow"))),
    }
}

pub(super) fn huge_pages() -> Check {
    let folder = Path::new("/sys/kernel/mm/hugepages");
    let mut pools = Vec::new();
    for kib in [2048_u64, 1024 * 1024] {
        let pool = folder.join(format!("hugepages-{kib}kB"));
        let count = |name: &str| read(pool.join(name)).and_then(|text| text.parse::<u64>().ok());
        if let (Some(total), Some(free)) = (count("nr_hugepages"), count("free_hugepages")) {
            pools.push((kib * KIB, total, free));
        }
    }
    let data = pools.iter().map(|(page, total, free)| json!({ "page_bytes": page, "total": total, "free": free }));
    let data = Value::Array(data.collect());
    let words = pools.iter().map(|(page, total, free)| format!("{free} of {total} free ({} each)", size(*page)));
    let value = words.collect::<Vec<_>>().join(", ");
    if pools.iter().any(|(_, _, free)| *free > 0) {
        return Check::ok("huge pages", value).data(data);
    }
    if pools.is_empty() {
        let advice = "optional: a kernel with CONFIG_HUGETLBFS lets large arenas cost fewer TLB misses";
        return Check::note("huge pages", "not supported by this kernel", advice).data(data);
    }
    let advice = "optional: Farfield takes those of 2 MiB as far as they go; 512 make 1 GiB: \
                  echo 512 | sudo tee /proc/sys/vm/nr_hugepages";
    let reserved = pools.iter().any(|(_, total, _)| *total > 0);
    let value = if reserved { value } else { "none reserved".into() };
    Check::note("huge pages", value, advice).data(data)
}

pub(super) fn shared_huge_pages() -> Check {
    let name = "huge shared mem";
    let Some(text) = read(SHMEM_THP) else {
        let advice = "optional: a kernel with CONFIG_TRANSPARENT_HUGEPAGE lets large arenas cost fewer TLB misses";
        return Check::note(name, "transparent huge pages: not supported by this kernel", advice);
    };
    let choice = chosen(&text).unwrap_or("unknown").to_string();
    let data = json!({ "shmem_enabled": choice });
    let value = format!("transparent huge pages for shared memory: {choice}");
    if matches!(choice.as_str(), "always" | "within_size" | "advise" | "force") {
        return Check::ok(name, value).data(data);
    }
    Check::note(name, value, format!("optional, for large arenas: echo advise | sudo tee {SHMEM_THP}")).data(data)
}

/// The word in brackets, as sysfs marks the choice in force.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(choice, _)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_understood() {
        assert_eq!(chosen("always within_size advise [never] deny force"), Some("never"));
        assert_eq!(chosen("broken"), None);
        assert_eq!(meminfo("MemTotal:       24684084 kB\nMemFree: 1 kB", "MemTotal"), Some(24_684_084 * KIB));
        assert_eq!(meminfo("MemTotal: x kB", "MemTotal"), None);
    }

    #[test]
    fn the_tightest_memory_limit_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        file("a/b/memory.max", "max\n");
        file("a/memory.max", "4096\n");
        file("a/memory.current", "1024\n");
        assert_eq!(cgroup_memory("0::/a/b", root.path()), Some((4096, 1024)));
        assert_eq!(cgroup_memory("0::/elsewhere", root.path()), None);
        file("memory/x/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(cgroup_memory("4:memory:/x\n0::/", root.path()), None);
        file("memory/memory.limit_in_bytes", "2048\n");
        assert_eq!(cgroup_memory("4:cpu,memory:/x", root.path()), Some((2048, 0)));
    }
}

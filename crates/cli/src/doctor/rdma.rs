//! RDMA devices: the features that each offers to the verbs fabric, and the missing ones.

use std::net::Ipv6Addr;

use farfield::fabric::verbs::{
    Address, AddressKind, Atomics, Device, DeviceInfo, Link, PortInfo, QueueInfo, VerbsError, VerbsOptions,
    locked_memory_limit,
};
use serde_json::json;

use super::{Check, size};

/// Below this much, a node cannot register the memory of a few objects.
const LOCKED_BYTES_COMFORTABLE: u64 = 1 << 30;
/// A lane has a queue pair for each node, and each node one for each of its lanes.
const QUEUE_PAIRS_COMFORTABLE: usize = 1024;

/// The properties of a device that was opened.
struct Used {
    port: PortInfo,
    address: Option<Address>,
    queue: QueueInfo,
}

pub(super) fn devices() -> Vec<Check> {
    match Device::list() {
        Ok(devices) if devices.is_empty() => vec![none("no RDMA device")],
        Err(VerbsError::NoDevice) => vec![none("no RDMA device")],
        Ok(devices) => {
            let checks = devices.iter().flat_map(|info| device(info, use_it(&info.name)));
            checks.chain([locked_memory(locked_memory_limit())]).collect()
        }
        Err(error) => {
            let advice = match error {
                VerbsError::Load(_) => "only `--fabric verbs` needs it: apt-get install libibverbs1 ibverbs-providers",
                _ => "only `--fabric verbs` needs it: see the kernel's log, and who may use /dev/infiniband",
            };
            vec![Check::note("devices", one_line(&error), advice).data(json!([]))]
        }
    }
}

fn none(value: &str) -> Check {
    let advice = "nothing to do for shared memory; for `--fabric verbs` load the card's driver, or try it in software: \
                  rdma link add rxe0 type rxe netdev <interface>";
    Check::note("devices", value, advice).data(json!([]))
}

fn use_it(name: &str) -> Result<Used, VerbsError> {
    let device = Device::open(&VerbsOptions { device: Some(name.into()), ..VerbsOptions::default() })?;
    Ok(Used { port: device.port().clone(), address: device.address(), queue: device.survey()? })
}

fn device(info: &DeviceInfo, used: Result<Used, VerbsError>) -> Vec<Check> {
    let kind = if info.is_software { "software" } else { "hardware" };
    let firmware = if info.firmware.is_empty() { String::new() } else { format!(", firmware {}", info.firmware) };
    let used = match used {
        Ok(used) => used,
        Err(error) => {
            let advice = match error {
                VerbsError::NoPort { .. } => {
                    "bring a port up: check the cable and the subnet manager, or ip link set <interface> up"
                }
                _ => "see the kernel's log, and who may use /dev/infiniband",
            };
            let data = json!({ "device": info.name, "usable": false });
            return vec![
                Check::note("device", format!("{} ({kind}{firmware}): {}", info.name, one_line(&error)), advice)
                    .data(data),
            ];
        }
    };
    let Used { port, address, queue } = &used;
    let link = match port.link {
        Link::Ethernet => "Ethernet",
        Link::InfiniBand => "InfiniBand",
        Link::Other => "another link layer",
    };
    let (shown, gid) = match address {
        Some(address) => {
            let kind = match address.kind {
                AddressKind::RoceV1 => "RoCE v1",
                AddressKind::RoceV2 => "RoCE v2",
                AddressKind::InfiniBand => "InfiniBand",
            };
            let gid = Ipv6Addr::from(address.gid).to_string();
            let lid = if port.link == Link::InfiniBand { format!("LID {}, ", port.lid) } else { String::new() };
            (format!("{lid}GID {}: {gid} ({kind})", address.index), Some((address.index, gid, kind)))
        }
        None => (format!("LID {}", port.lid), None),
    };
    let active = info.ports.iter().filter(|port| port.is_active).count();
    let value = format!(
        "{} ({kind}{firmware}): port {} of {active} active, {link}, {shown}, MTU {}",
        info.name, port.number, port.mtu_bytes
    );
    let data = json!({
        "device": info.name, "usable": true, "software": info.is_software, "firmware": info.firmware,
        "port": port.number, "active_ports": active, "link_layer": link, "lid": port.lid, "mtu_bytes": port.mtu_bytes,
        "gid": gid.map(|(index, gid, kind)| json!({ "index": index, "gid": gid, "kind": kind })),
    });
    let found = match address {
        Some(Address { kind: AddressKind::RoceV1, .. }) => {
            let advice = "RoCE v1 reaches the same Ethernet only: give the interface an IP address, for RoCE v2";
            Check::note("device", value, advice)
        }
        _ => Check::ok("device", value),
    };
    vec![found.data(data), atomics(info), order(info, *queue), room(info, *queue)]
}

fn atomics(info: &DeviceInfo) -> Check {
    let word = match info.atomics {
        Atomics::None => "none",
        Atomics::SameDevice => "among operations of this device",
        Atomics::All => "with the processor's as well",
    };
    let (value, data) = (format!("{}: {word}", info.name), json!({ "device": info.name, "atomics": word }));
    match info.atomics {
        Atomics::None => {
            let advice = "objects that need remote atomics (mutex, key-value store, queue) do not open on this device: \
                          use another";
            Check::note("  atomics", value, advice).data(data)
        }
        _ => Check::ok("  atomics", value).data(data),
    }
}

fn order(info: &DeviceInfo, queue: QueueInfo) -> Check {
    let data = json!({
        "device": info.name, "puts_in_order": queue.puts_in_order, "gets_in_order": queue.gets_in_order,
        "words_may_tear": info.words_may_tear,
    });
    if info.words_may_tear {
        let advice =
            "only for trying things out; for tests that must be sure, boot the kernel with clearcpuid=erms,fsrm";
        let value =
            format!("{}: in order, but the kernel copies byte by byte: a word may be seen half written", info.name);
        return Check::note("  order", value, advice).data(data);
    }
    if queue.puts_in_order {
        return Check::ok("  order", format!("{}: puts land in order", info.name)).data(data);
    }
    let advice = "each put that follows another waits a round trip for it; if the card is known to place in order (no \
                  adaptive routing), say in_order = true";
    Check::note("  order", format!("{}: it does not promise that puts land in order", info.name), advice).data(data)
}

fn room(info: &DeviceInfo, queue: QueueInfo) -> Check {
    let memory = match info.device_memory_bytes {
        0 => "no memory of its own".to_string(),
        bytes => format!("{} of its own memory", size(bytes)),
    };
    let value = format!(
        "{}: {} queue pairs, {} reads and atomics at a time, {} bytes inline, {memory}",
        info.name, info.queue_pairs_max, info.reads_out_max, queue.inline_bytes_max
    );
    let data = json!({
        "device": info.name, "queue_pairs": info.queue_pairs_max, "reads_out": info.reads_out_max,
        "reads_in": info.reads_in_max, "inline_bytes": queue.inline_bytes_max, "extended": queue.is_extended,
        "device_memory_bytes": info.device_memory_bytes,
    });
    if info.queue_pairs_max < QUEUE_PAIRS_COMFORTABLE {
        let advice =
            "few for many nodes and threads: each thread has a queue pair for each node, and one at the other end";
        return Check::note("  room", value, advice).data(data);
    }
    Check::ok("  room", value).data(data)
}

fn locked_memory(limit: Option<u64>) -> Check {
    let data = json!({ "limit_bytes": limit });
    match limit {
        None => Check::ok("locked memory", "unlimited").data(data),
        Some(bytes) if bytes < LOCKED_BYTES_COMFORTABLE => {
            let advice =
                "devices lock the memory that they reach: ulimit -l unlimited, or memlock in /etc/security/limits.conf";
            Check::note("locked memory", size(bytes), advice).data(data)
        }
        Some(bytes) => Check::ok("locked memory", size(bytes)).data(data),
    }
}

fn one_line(error: &VerbsError) -> String {
    error.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Mark;

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "mlx5_0".into(),
            is_software: false,
            words_may_tear: false,
            is_iwarp: false,
            firmware: "16.35".into(),
            atomics: Atomics::SameDevice,
            queue_pairs_max: 131_072,
            work_requests_max: 8192,
            completions_max: 1 << 20,
            regions_max: 1 << 20,
            region_bytes_max: 1 << 40,
            reads_out_max: 16,
            reads_in_max: 16,
            device_memory_bytes: 128 << 10,
            ports: vec![port()],
        }
    }

    fn port() -> PortInfo {
        PortInfo {
            number: 1,
            is_active: true,
            link: Link::Ethernet,
            lid: 0,
            needs_gid: true,
            mtu_bytes: 4096,
            message_bytes_max: 1 << 30,
            addresses: Vec::new(),
        }
    }

    fn used(kind: AddressKind, puts_in_order: bool) -> Result<Used, VerbsError> {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let queue = QueueInfo {
            inline_bytes_max: 256,
            depth: 256,
            puts_in_order,
            gets_in_order: true,
            holds_back: false,
            is_extended: true,
        };
        Ok(Used { port: port(), address: Some(Address { index: 3, gid, kind }), queue })
    }

    fn marks(checks: &[Check]) -> Vec<Mark> {
        checks.iter().map(|check| check.mark).collect()
    }

    #[test]
    fn a_good_device_leaves_nothing_to_do() {
        let checks = device(&info(), used(AddressKind::RoceV2, true));
        assert_eq!(marks(&checks), [Mark::Ok; 4]);
        assert_eq!(
            checks[0].value,
            "mlx5_0 (hardware, firmware 16.35): port 1 of 1 active, Ethernet, GID 3: ::ffff:10.0.0.1 (RoCE v2), \
             MTU 4096"
        );
        assert_eq!(
            checks[3].value,
            "mlx5_0: 131072 queue pairs, 16 reads and atomics at a time, 256 bytes inline, 128 KiB of its own memory"
        );
    }

    #[test]
    fn each_shortfall_has_its_advice() {
        let poor = DeviceInfo { atomics: Atomics::None, queue_pairs_max: 64, ..info() };
        let checks = device(&poor, used(AddressKind::RoceV1, false));
        assert_eq!(marks(&checks), [Mark::Note; 4]);
        assert!(checks.iter().all(|check| check.advice.is_some()));
        let torn = DeviceInfo { words_may_tear: true, is_software: true, ..info() };
        assert_eq!(device(&torn, used(AddressKind::RoceV2, true))[2].mark, Mark::Note);
        let down = device(&info(), Err(VerbsError::NoDevice));
        assert_eq!(marks(&down), [Mark::Note]);
        assert_eq!(
            [Some(64 << 10), Some(1 << 40), None].map(|limit| locked_memory(limit).mark),
            [Mark::Note, Mark::Ok, Mark::Ok]
        );
    }
}

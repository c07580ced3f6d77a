//! RDMA devices and the state of their ports.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Check, read};

pub(super) fn devices(class: &Path) -> Vec<Check> {
    let devices = sorted_entries(class);
    if devices.is_empty() {
        let advice = "nothing to do: the shared-memory fabric is used; the verbs fabric comes in a later version";
        return vec![Check::note("devices", "no RDMA device", advice).data(json!([]))];
    }
    devices.iter().map(|device| rdma_device(device)).collect()
}

fn rdma_device(device: &Path) -> Check {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut ports = Vec::new();
    for port in sorted_entries(&device.join("ports")) {
        let field = |field: &str| read(port.join(field)).unwrap_or_else(|| "unknown".into());
        // "4: ACTIVE"
        let state = field("state");
        let state = state.rsplit(':').next().unwrap_or("unknown").trim().to_string();
        let number = port.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ports.push((number, state, field("link_layer"), field("rate")));
    }
    let words = ports.iter().map(|(number, state, layer, rate)| format!("port {number} {state} ({layer}, {rate})"));
    let value = format!("{name}: {}", words.collect::<Vec<_>>().join(", "));
    let data = ports.iter().map(
        |(number, state, layer, rate)| json!({ "port": number, "state": state, "link_layer": layer, "rate": rate }),
    );
    let data = json!({ "device": name, "ports": data.collect::<Vec<_>>() });
    if ports.iter().any(|(_, state, _, _)| state == "ACTIVE") {
        return Check::ok("device", format!("{value}; the verbs fabric comes in a later version")).data(data);
    }
    let advice = "no active port: check the cable and the subnet manager, or ip link set <interface> up";
    Check::note("device", value, advice).data(data)
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Mark;
    use crate::doctor::tests::Scratch;

    #[test]
    fn rdma_ports_are_listed() {
        let class = Scratch::new("rdma");
        assert_eq!(devices(&class.0)[0].value, "no RDMA device");
        for (field, text) in
            [("state", "4: ACTIVE\n"), ("link_layer", "InfiniBand\n"), ("rate", "100 Gb/sec (4X EDR)\n")]
        {
            class.file(&format!("mlx5_0/ports/1/{field}"), text);
        }
        class.file("rxe0/ports/1/state", "1: DOWN\n");
        let found = devices(&class.0);
        assert_eq!((found[0].mark, found[1].mark), (Mark::Ok, Mark::Note));
        assert!(
            found[0].value.starts_with("mlx5_0: port 1 ACTIVE (InfiniBand, 100 Gb/sec (4X EDR))"),
            "{}",
            found[0].value
        );
    }
}

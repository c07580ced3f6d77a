//! Which device, port and address a node uses.
//!
//! Without options, the first device with an active port is taken, hardware before software, and on it the best
//! address: RoCE v2 before v1, IPv4 before IPv6, addresses of a link last. InfiniBand ports are addressed by LID, and
//! by GID too where that is not enough (see `route`). The MTU is the port's active one, cut to the peer's on
//! connecting.

use super::error::VerbsError;
use super::info::{Address, AddressKind, DeviceInfo, Link, PortInfo};
use super::options::VerbsOptions;

impl Address {
    /// How much it is to be preferred.
    fn rank(&self) -> (AddressKind, bool, bool) {
        let is_of_link = self.gid[0] == 0xfe && self.gid[1] & 0xc0 == 0x80;
        let is_ipv4 = self.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        (self.kind, !is_of_link, is_ipv4)
    }
}

/// A device, a port and an address, as indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) device: usize,
    pub(super) port: usize,
    pub(super) address: Option<Address>,
}

/// Chooses what to use.
pub(super) fn choose(devices: &[DeviceInfo], options: &VerbsOptions) -> Result<Choice, VerbsError> {
    let names = || devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    if devices.is_empty() {
        return Err(VerbsError::NoDevice);
    }
    if let Some(name) = &options.device
        && !devices.iter().any(|device| device.name == *name)
    {
        return Err(VerbsError::NoSuchDevice { name: name.clone(), there: names() });
    }
    let mut best: Option<(Choice, _)> = None;
    let mut why = Vec::new();
    for (device_at, device) in devices.iter().enumerate() {
        if options.device.as_ref().is_some_and(|name| device.name != *name) {
            continue;
        }
        for (port_at, port) in device.ports.iter().enumerate() {
            if options.port.is_some_and(|number| port.number != number) {
                continue;
            }
            match fit(device, port, options) {
                Err(reason) => why.push(format!("port {} of {} {reason}", port.number, device.name)),
                Ok(address) => {
                    let choice = Choice { device: device_at, port: port_at, address };
                    let rank = (!device.is_software, address.map(|address| address.rank()));
                    if best.as_ref().is_none_or(|(_, other)| rank > *other) {
                        best = Some((choice, rank));
                    }
                }
            }
        }
    }
    if why.is_empty() {
        why.push(format!("there is no port {}", options.port.unwrap_or(1)));
    }
    let devices = options.device.clone().unwrap_or_else(names);
    best.map(|(choice, _)| choice).ok_or(VerbsError::NoPort { devices, why: why.join("; ") })
}

/// The address to use on a port, which none has to have where its LID will do; or why the port cannot be used.
fn fit(device: &DeviceInfo, port: &PortInfo, options: &VerbsOptions) -> Result<Option<Address>, String> {
    if device.is_iwarp {
        return Err("speaks iWARP, which is not supported".into());
    }
    if !port.is_active {
        return Err("is not active: connect its cable, or bring its network interface up".into());
    }
    if let Some(index) = options.gid_index {
        let address = port.addresses.iter().find(|address| address.index == index);
        return address.map(|address| Some(*address)).ok_or(format!("has no GID {index}"));
    }
    // Of equals the first.
    let best = port.addresses.iter().rev().max_by_key(|address| address.rank());
    match best {
        None if port.needs_gid || port.link != Link::InfiniBand => {
            Err("has no address: give its network interface one".into())
        }
        None if port.lid == 0 => Err("has no LID: is there a subnet manager?".into()),
        address => Ok(address.copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::Atomics;
    use super::*;

    fn address(index: u8, kind: AddressKind, start: &[u8]) -> Address {
        let mut gid = [0; 16];
        gid[..start.len()].copy_from_slice(start);
        Address { index, gid, kind }
    }

    fn port(link: Link, addresses: Vec<Address>) -> PortInfo {
        PortInfo {
            number: 1,
            is_active: true,
            link,
            lid: 5,
            needs_gid: false,
            mtu_bytes: 1024,
            message_bytes_max: 1 << 30,
            addresses,
        }
    }

    fn device(name: &str, is_software: bool, ports: Vec<PortInfo>) -> DeviceInfo {
        DeviceInfo {
            name: name.into(),
            is_software,
            words_may_tear: false,
            is_iwarp: false,
            firmware: String::new(),
            atomics: Atomics::SameDevice,
            queue_pairs_max: 1,
            work_requests_max: 1,
            completions_max: 1,
            regions_max: 1,
            region_bytes_max: 1,
            reads_out_max: 1,
            reads_in_max: 1,
            device_memory_bytes: 0,
            ports,
        }
    }

    #[test]
    fn the_best_address_of_the_best_device_is_chosen() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let roce = vec![
            address(0, AddressKind::RoceV1, &[0xfe, 0x80]),
            address(1, AddressKind::RoceV2, &[0xfe, 0x80]),
            address(2, AddressKind::RoceV1, &ipv4),
            address(3, AddressKind::RoceV2, &[0xfd]),
            address(4, AddressKind::RoceV2, &ipv4),
            address(5, AddressKind::RoceV2, &ipv4),
        ];
        let down = PortInfo { is_active: false, ..port(Link::Ethernet, roce.clone()) };
        let soft = device("rxe0", true, vec![port(Link::Ethernet, roce.clone())]);
        let hard = device("mlx5_0", false, vec![down.clone(), PortInfo { number: 2, ..port(Link::Ethernet, roce) }]);
        let devices = [soft, hard];
        let options = VerbsOptions::default();
        let Choice { device, port, address } = choose(&devices, &options).unwrap();
        assert_eq!((device, port, address.unwrap().index), (1, 1, 4));
        let options = VerbsOptions { device: Some("rxe0".into()), gid_index: Some(3), ..options };
        let Choice { device, port, address } = choose(&devices, &options).unwrap();
        assert_eq!((device, port, address.unwrap().index), (0, 0, 3));
        let refused = |options: VerbsOptions| choose(&devices, &options).unwrap_err().to_string();
        let text = refused(VerbsOptions { device: Some("x".into()), ..VerbsOptions::default() });
        assert_eq!(text, "there is no RDMA device `x`, only: rxe0, mlx5_0");
        let text = refused(VerbsOptions { device: Some("mlx5_0".into()), port: Some(1), ..VerbsOptions::default() });
        assert!(text.contains("port 1 of mlx5_0 is not active"), "{text}");
        let text = refused(VerbsOptions { port: Some(7), ..VerbsOptions::default() });
        assert!(text.contains("there is no port 7"), "{text}");
        assert!(matches!(choose(&[], &VerbsOptions::default()), Err(VerbsError::NoDevice)));
    }

    #[test]
    fn infiniband_needs_no_gid_unless_the_port_says_so() {
        let chosen = |change: &dyn Fn(&mut PortInfo)| {
            let mut port = port(Link::InfiniBand, Vec::new());
            change(&mut port);
            choose(&[device("ib", false, vec![port])], &VerbsOptions::default())
        };
        let gid = address(0, AddressKind::InfiniBand, &[0xfe, 0x80]);
        assert_eq!(chosen(&|_| ()).unwrap().address, None);
        for needs_gid in [false, true] {
            let with = chosen(&|port| (port.addresses, port.needs_gid) = (vec![gid], needs_gid)).unwrap();
            assert_eq!(with.address, Some(gid));
        }
        let why = chosen(&|port| port.needs_gid = true).unwrap_err().to_string();
        assert!(why.contains("has no address"), "{why}");
        let why = chosen(&|port| port.lid = 0).unwrap_err().to_string();
        assert!(why.contains("subnet manager"), "{why}");
    }
}

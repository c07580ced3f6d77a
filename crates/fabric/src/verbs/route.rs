//! The way from a port to a peer's: by LID within an InfiniBand subnet, by GID everywhere else.
//!
//! | port, peer | LID | global header (GRH) |
//! |---|---|---|
//! | Ethernet (RoCE) | none | always |
//! | InfiniBand, one subnet | the peer's | where one of the two ports demands it, or a GID was asked for |
//! | InfiniBand, two subnets | that of the peer's subnet here (FLID) | always |
//!
//! A LID holds in its subnet only. Between two subnets with routers, the subnet manager can give each a LID that the
//! routers know in the others (a FLID), and says it in the subnet's prefix: `fec0:0:<FLID>:<subnet>`. Without it the
//! way is known to the subnet managers alone.
//!
//! Service level and partition are the first of the port. All ports of one fabric have them in common.

use core::net::Ipv6Addr;

use farfield_verbs_sys::*;
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::error::VerbsError;
use super::info::Link;

/// LIDs of single ports. Those above are of groups of ports, and 0 is of a port that no subnet manager has seen.
const LIDS: core::ops::RangeInclusive<u16> = 1..=0xbfff;
/// The reach of a packet: RoCE packets are IP packets, and pass routers.
const HOPS_MAX: u8 = 64;

/// The way to a peer, as a queue pair is told.
pub(super) fn way(device: &Device, peer: &QueuePairAddress) -> Result<ibv_ah_attr, VerbsError> {
    let refuse = |why: String| Err(VerbsError::NoWay { device: device.info.name.clone(), why });
    let port = &device.port;
    let mut way = ibv_ah_attr { port_num: port.number, ..Default::default() };
    let (own, gids) = (device.address, device.address.map(|own| own.gid).zip(peer.gid));
    let is_elsewhere = gids.is_some_and(|(own, peer)| subnet(own) != subnet(peer));
    let is_ethernet = port.link == Link::Ethernet;
    if !is_ethernet {
        if !LIDS.contains(&peer.lid) {
            let why = "the peer has no LID: is it on InfiniBand, and does a subnet manager run?";
            return refuse(why.into());
        }
        way.dlid = peer.lid;
        if let Some((own, peer)) = gids
            && is_elsewhere
        {
            let (Some(_), Some(lid)) = (flid(own), flid(peer)) else {
                let [own, peer] = [own, peer].map(Ipv6Addr::from);
                return refuse(format!(
                    "it is in another InfiniBand subnet ({peer}, here {own}), and their prefixes name no FLID: \
                     let the subnet manager set them up for routers"
                ));
            };
            way.dlid = lid;
        }
    }
    if is_ethernet || is_elsewhere || port.needs_gid || peer.needs_gid || device.options.gid_index.is_some() {
        let Some(own) = own else {
            return refuse(format!("port {} has no GID, and packets to the peer need one", port.number));
        };
        let Some(gid) = peer.gid else {
            return refuse("the peer has no GID, and packets to it need one".into());
        };
        way.is_global = 1;
        way.grh = ibv_global_route {
            dgid: ibv_gid { raw: gid },
            sgid_index: own.index,
            hop_limit: HOPS_MAX,
            ..Default::default()
        };
    }
    Ok(way)
}

/// The prefix of a subnet.
fn subnet(gid: [u8; 16]) -> [u8; 8] {
    core::array::from_fn(|at| gid[at])
}

/// By which LID other subnets know the subnet of a GID, if it says so.
fn flid(gid: [u8; 16]) -> Option<u16> {
    let [0xfe, 0xc0, 0, 0, high, low, ..] = gid else { return None };
    Some(u16::from_be_bytes([high, low])).filter(|flid| LIDS.contains(flid))
}

/// The data by which the other side connects a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueuePairAddress {
    /// Its number.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub first_packet: u32,
    /// The port's address in an InfiniBand subnet.
    pub lid: u16,
    /// The port's GID, if it has one.
    pub gid: Option<[u8; 16]>,
    /// Packets to the port need a global header, on InfiniBand too.
    pub needs_gid: bool,
    /// Bytes in a packet.
    pub mtu_bytes: u16,
    /// Reads and atomics that it has open as their target.
    pub reads_in_max: u8,
    /// Its device does atomics.
    pub has_atomics: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::info::{Address, AddressKind};
    use super::super::queue::{CompletionQueue, QueuePair};
    use super::super::stub::Stub;
    use super::*;

    const fn gid(prefix: [u8; 8], port: u8) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = prefix;
        [a, b, c, d, e, f, g, h, 0, 2, 0xc9, 3, 0, 0, 0, port]
    }

    const DEFAULT: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
    const ROUTED: [u8; 8] = [0xfe, 0xc0, 0, 0, 0x20, 1, 0, 7];
    const ROUTED_ELSEWHERE: [u8; 8] = [0xfe, 0xc0, 0, 0, 0x20, 2, 0, 8];
    const ELSEWHERE: [u8; 8] = [0x20, 1, 0, 0, 0, 0, 0, 8];

    /// A port on InfiniBand of this LID, with a GID of this prefix.
    fn infiniband(lid: u16, prefix: Option<[u8; 8]>, needs_gid: bool, gid_index: Option<u8>) -> Stub {
        Stub::new(true, |info, options| {
            let port = &mut info.ports[0];
            (port.link, port.lid, port.needs_gid, port.mtu_bytes) = (Link::InfiniBand, lid, needs_gid, 4096);
            port.number = 2;
            let address =
                |(index, prefix)| Address { index, gid: gid(prefix, lid as u8), kind: AddressKind::InfiniBand };
            // The first line of the table is the one that is taken, unless another is asked for.
            port.addresses = prefix.into_iter().flat_map(|prefix| [(0, prefix), (3, prefix)]).map(address).collect();
            options.gid_index = gid_index;
        })
    }

    /// Connects a queue pair of the one to one of the other. Returns the attributes that the one's device got.
    fn connect(one: &Stub, other: &Stub) -> Result<ibv_qp_attr, VerbsError> {
        let there = QueuePair::target(&other.device)?.address();
        let completions = Arc::new(CompletionQueue::new(&one.device, 1)?);
        QueuePair::new(&one.device, &completions)?.connect(&there)?;
        let state = one.state();
        let told = |wanted: ibv_qp_state| state.modified.iter().rev().find(|(state, _)| *state == wanted).unwrap().1;
        // All of one subnet share the first partition; the port is named when the queue pair begins.
        assert_eq!((told(IBV_QPS_INIT).pkey_index, told(IBV_QPS_INIT).port_num), (0, one.device.port.number));
        Ok(told(IBV_QPS_RTR))
    }

    #[test]
    fn within_a_subnet_the_lid_is_enough() {
        for prefix in [None, Some(DEFAULT), Some(ROUTED)] {
            let (one, other) = (infiniband(5, prefix, false, None), infiniband(0xbfff, prefix, false, None));
            let told = connect(&one, &other).unwrap();
            let way = told.ah_attr;
            assert_eq!((way.dlid, way.is_global, way.sl, way.src_path_bits, way.port_num), (0xbfff, 0, 0, 0, 2));
            assert_eq!(told.path_mtu, IBV_MTU_4096);
        }
    }

    #[test]
    fn a_header_is_sent_where_one_of_the_ports_demands_it() {
        let plain = || infiniband(5, Some(DEFAULT), false, None);
        let demanding = || infiniband(6, Some(DEFAULT), true, None);
        let asked = || infiniband(7, Some(DEFAULT), false, Some(3));
        for (one, other, sgid_index) in
            [(demanding(), plain(), 0), (plain(), demanding(), 0), (demanding(), asked(), 0), (asked(), plain(), 3)]
        {
            let way = connect(&one, &other).unwrap().ah_attr;
            let (lid, there) = (other.device.port.lid, other.device.address.unwrap());
            assert_eq!((way.dlid, way.is_global, way.sl, way.grh.sgid_index), (lid, 1, 0, sgid_index));
            assert_eq!((way.grh.dgid.raw, way.grh.hop_limit), (there.gid, HOPS_MAX));
        }
        // It had no way to know that the other asks for a header on what *it* sends.
        assert_eq!(connect(&plain(), &asked()).unwrap().ah_attr.is_global, 0);
    }

    #[test]
    fn another_subnet_is_reached_by_its_flid_or_not_at_all() {
        let there = infiniband(9, Some(ROUTED_ELSEWHERE), false, None);
        let way = connect(&infiniband(5, Some(ROUTED), false, None), &there).unwrap().ah_attr;
        assert_eq!((way.dlid, way.is_global, way.grh.sgid_index), (0x2002, 1, 0));
        assert_eq!(way.grh.dgid.raw, gid(ROUTED_ELSEWHERE, 9));
        for (here, there) in [(DEFAULT, ELSEWHERE), (DEFAULT, ROUTED_ELSEWHERE), (ROUTED, ELSEWHERE)] {
            let (one, other) = (infiniband(5, Some(here), false, None), infiniband(6, Some(there), false, None));
            let why = connect(&one, &other).unwrap_err().to_string();
            assert!(why.contains("another InfiniBand subnet") && why.contains("subnet manager"), "{why}");
        }
    }

    #[test]
    fn ethernet_and_ports_without_an_address_are_told_apart() {
        let roce = || Stub::new(true, |info, _| info.ports[0].mtu_bytes = 1024);
        let told = connect(&roce(), &roce()).unwrap();
        let way = told.ah_attr;
        assert_eq!((way.dlid, way.is_global, way.grh.sgid_index, way.grh.hop_limit), (0, 1, 1, HOPS_MAX));
        assert_eq!(told.path_mtu, IBV_MTU_1024);
        let refused = |one: &Stub, other: &Stub| match connect(one, other).unwrap_err() {
            VerbsError::NoWay { device, why } => (device == "stub").then_some(why).unwrap(),
            other => panic!("{other}"),
        };
        let plain = infiniband(5, None, false, None);
        assert!(refused(&plain, &roce()).contains("no LID"));
        assert!(refused(&plain, &infiniband(0, Some(DEFAULT), false, None)).contains("subnet manager"));
        assert!(refused(&roce(), &plain).contains("the peer has no GID"));
        // One that demands a header has a GID (`choose` sees to it), the other may have none.
        assert!(refused(&plain, &infiniband(6, Some(DEFAULT), true, None)).contains("port 2 has no GID"));
        assert!(refused(&infiniband(6, Some(DEFAULT), true, None), &plain).contains("the peer has no GID"));
    }
}

//! Connections by rdma_cm, with queue pairs that the program makes and moves by itself.

use std::ffi::c_void;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::rc::Rc;

use farfield_verbs_sys::*;

use crate::devices;
use crate::side::{Calls, Device, Side, What, text};

/// How long resolving and connecting may take.
const PATIENCE_MS: i32 = 20_000;

/// A channel, and the identifiers of this test that report to it.
struct Channel {
    cm: &'static RdmaCm,
    raw: *mut rdma_event_channel,
}

/// An event, acknowledged when dropped.
struct Event<'c> {
    channel: &'c Channel,
    raw: *mut rdma_cm_event,
}

/// An identifier; it is dropped after its events, and before its channel.
struct Id<'c> {
    channel: &'c Channel,
    raw: *mut rdma_cm_id,
}

/// Panics with errno, if a function returned -1.
#[track_caller]
fn succeeds(what: &str, answer: i32) {
    assert_eq!(answer, 0, "{what}: {}", std::io::Error::last_os_error());
}

impl Channel {
    fn new(cm: &'static RdmaCm) -> Channel {
        // SAFETY: the function demands nothing.
        let raw = unsafe { (cm.rdma_create_event_channel)() };
        Channel { cm, raw: crate::side::not_null("rdma_create_event_channel", raw) }
    }

    /// The next event, which must be this one.
    #[track_caller]
    fn expect(&self, kind: rdma_cm_event_type) -> Event<'_> {
        // SAFETY: the channel is alive, and what is written to is valid to write. An event is there once the channel is
        // readable, and is acknowledged by dropping it.
        unsafe {
            let mut poll = libc::pollfd { fd: (*self.raw).fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&mut poll, 1, PATIENCE_MS), 1, "no event");
            let mut raw = core::ptr::null_mut();
            succeeds("rdma_get_cm_event", (self.cm.rdma_get_cm_event)(self.raw, &mut raw));
            let name = |kind| text((self.cm.rdma_event_str)(kind));
            let event = Event { channel: self, raw };
            assert_eq!(name((*raw).event), name(kind), "status {}", (*raw).status);
            event
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is alive, and identifiers borrow it, so none is left.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.raw) }
    }
}

impl<'c> Event<'c> {
    /// Who asks for a connection. To be called once.
    fn requester(&self) -> Id<'c> {
        // SAFETY: the event is not acknowledged yet.
        Id { channel: self.channel, raw: unsafe { (*self.raw).id } }
    }

    /// The word and the key that the peer sent along, and its queue pair.
    fn peer(&self) -> (u64, u32, u32) {
        // SAFETY: the event is not acknowledged yet, and the peer sent that many bytes.
        unsafe {
            let conn = (*self.raw).conn;
            assert!(usize::from(conn.private_data_len) >= size_of::<Note>());
            let note = conn.private_data.cast::<Note>().read_unaligned();
            (note.addr, note.rkey, conn.qp_num)
        }
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: the event is acknowledged once.
        succeeds("rdma_ack_cm_event", unsafe { (self.channel.cm.rdma_ack_cm_event)(self.raw) });
    }
}

/// What the sides tell each other besides what rdma_cm does.
#[repr(C)]
#[derive(Clone, Copy)]
struct Note {
    addr: u64,
    rkey: u32,
}

impl<'c> Id<'c> {
    fn new(channel: &'c Channel) -> Id<'c> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: the channel is alive, and the pointer is valid to write.
        let answer = unsafe { (channel.cm.rdma_create_id)(channel.raw, &mut raw, core::ptr::null_mut(), RDMA_PS_TCP) };
        succeeds("rdma_create_id", answer);
        Id { channel, raw }
    }

    /// A side on the device of this identifier.
    fn side(&self, calls: Calls) -> Side {
        // SAFETY: the identifier is bound to a device, which rdma_cm keeps open for ever.
        let context = unsafe { (*self.raw).verbs };
        Side::new(&Device::on(Verbs::get().expect("libibverbs is there"), context, true), calls)
    }

    /// Moves a queue pair as rdma_cm says.
    fn modify(&self, side: &Side, state: ibv_qp_state) {
        let mut attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: the identifier is alive, and the attributes are valid to write.
        succeeds("rdma_init_qp_attr", unsafe { (self.channel.cm.rdma_init_qp_attr)(self.raw, &mut attr, &mut mask) });
        if state == IBV_QPS_INIT {
            attr.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        }
        side.modify(attr, mask);
    }

    /// Calls a function with the parameters of a connection to this side.
    fn with_parameters(&self, side: &Side, call: impl FnOnce(*mut rdma_cm_id, *mut rdma_conn_param) -> i32) {
        let here = side.address();
        let note = Note { addr: here.addr, rkey: here.rkey };
        let mut parameters = rdma_conn_param {
            private_data: (&raw const note).cast(),
            private_data_len: size_of::<Note>() as u8,
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 6,
            rnr_retry_count: 6,
            qp_num: here.qp_num,
            ..Default::default()
        };
        succeeds("connecting", call(self.raw, &mut parameters));
    }
}

impl Drop for Id<'_> {
    fn drop(&mut self) {
        // SAFETY: the identifier is destroyed once, after its events were acknowledged.
        succeeds("rdma_destroy_id", unsafe { (self.channel.cm.rdma_destroy_id)(self.raw) });
    }
}

/// An address as C has it.
fn sockaddr(of: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: the structures are integers, for which zero is valid, and the storage is larger than both and aligned.
    unsafe {
        let mut storage: libc::sockaddr_storage = core::mem::zeroed();
        match of {
            SocketAddr::V4(of) => {
                let place = (&raw mut storage).cast::<libc::sockaddr_in>();
                (*place).sin_family = libc::AF_INET as u16;
                (*place).sin_port = of.port().to_be();
                (*place).sin_addr.s_addr = u32::from_ne_bytes(of.ip().octets());
            }
            SocketAddr::V6(of) => {
                let place = (&raw mut storage).cast::<libc::sockaddr_in6>();
                (*place).sin6_family = libc::AF_INET6 as u16;
                (*place).sin6_port = of.port().to_be();
                (*place).sin6_addr.s6_addr = of.ip().octets();
            }
        }
        storage
    }
}

/// The IP addresses of a device that packets are routed to.
fn addresses(device: &Device) -> Vec<SocketAddr> {
    let addresses = device.gids().into_iter().map(|entry| Ipv6Addr::from(entry.gid.raw));
    addresses
        .filter(|ip| !ip.is_unicast_link_local())
        .map(|ip| match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddrV4::new(ip, 0).into(),
            None => SocketAddrV6::new(ip, 0, 0, 0).into(),
        })
        .collect()
}

/// Listens at an address, and brings an identifier on another channel to where it can connect to that.
fn resolve<'c>(server: &'c Channel, client: &'c Channel, from: SocketAddr, to: SocketAddr) -> (Id<'c>, Id<'c>) {
    let cm = server.cm;
    let (listener, id) = (Id::new(server), Id::new(client));
    let (mut here, mut there) = (sockaddr(from), sockaddr(to));
    // SAFETY: the identifiers are alive, and the addresses are valid.
    unsafe {
        succeeds("rdma_bind_addr", (cm.rdma_bind_addr)(listener.raw, (&raw mut there).cast()));
        succeeds("rdma_listen", (cm.rdma_listen)(listener.raw, 4));
        let port = u16::from_be((cm.rdma_get_src_port)(listener.raw));
        there = sockaddr(SocketAddr::new(to.ip(), port));
        let (here, there) = ((&raw mut here).cast(), (&raw mut there).cast());
        succeeds("rdma_resolve_addr", (cm.rdma_resolve_addr)(id.raw, here, there, PATIENCE_MS));
        drop(client.expect(RDMA_CM_EVENT_ADDR_RESOLVED));
        succeeds("rdma_resolve_route", (cm.rdma_resolve_route)(id.raw, PATIENCE_MS));
        drop(client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
        assert_eq!(u16::from_be((cm.rdma_get_dst_port)(id.raw)), port);
        assert_eq!((*rdma_get_local_addr(id.raw)).sa_family, (*here).sa_family);
        assert_eq!((*rdma_get_peer_addr(id.raw)).sa_family, (*there).sa_family);
    }
    (listener, id)
}

/// One connection, from request to end.
fn connect(cm: &'static RdmaCm, from: SocketAddr, to: SocketAddr, calls: Calls) {
    let (server, client) = (Channel::new(cm), Channel::new(cm));
    let (_listener, id) = resolve(&server, &client, from, to);

    // The client asks, and tells where its memory is.
    let origin = id.side(calls);
    id.modify(&origin, IBV_QPS_INIT);
    // SAFETY: here and below, identifier and parameters are valid for the call.
    id.with_parameters(&origin, |id, parameters| unsafe { (cm.rdma_connect)(id, parameters) });
    let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let accepted = request.requester();
    assert_eq!(request.peer(), (origin.addr(0), origin.address().rkey, origin.address().qp_num));
    drop(request);

    // The server makes its queue pair ready and accepts.
    let target = accepted.side(calls);
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        accepted.modify(&target, state);
    }
    // SAFETY: as above.
    accepted.with_parameters(&target, |id, parameters| unsafe { (cm.rdma_accept)(id, parameters) });

    // The client makes its own ready and confirms.
    let response = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    let (remote, rkey, qp_num) = response.peer();
    drop(response);
    assert_eq!((remote, qp_num), (target.addr(0), target.address().qp_num));
    id.modify(&origin, IBV_QPS_RTR);
    id.modify(&origin, IBV_QPS_RTS);
    // SAFETY: the identifier is alive.
    succeeds("rdma_establish", unsafe { (cm.rdma_establish)(id.raw) });
    drop(server.expect(RDMA_CM_EVENT_ESTABLISHED));

    origin.set_word(0, 77);
    origin.succeed(0, What::Write { local: 0, words: 1, remote, rkey });
    origin.succeed(0, What::Faa { local: 1, remote, rkey, add: 1 });
    assert_eq!((origin.word(1), target.word(0)), (77, 78));

    // SAFETY: the identifiers are alive.
    succeeds("rdma_disconnect", unsafe { (cm.rdma_disconnect)(id.raw) });
    drop(server.expect(RDMA_CM_EVENT_DISCONNECTED));
    // SAFETY: as above.
    succeeds("rdma_disconnect", unsafe { (cm.rdma_disconnect)(accepted.raw) });
    drop(client.expect(RDMA_CM_EVENT_DISCONNECTED));
}

/// A request that is refused with a word of why.
fn refuse(cm: &'static RdmaCm, from: SocketAddr, to: SocketAddr) {
    let (server, client) = (Channel::new(cm), Channel::new(cm));
    let (_listener, id) = resolve(&server, &client, from, to);
    let origin = id.side(Calls::Classic);
    id.modify(&origin, IBV_QPS_INIT);
    // SAFETY: identifier and parameters are valid for the call.
    id.with_parameters(&origin, |id, parameters| unsafe { (cm.rdma_connect)(id, parameters) });
    let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let refused = request.requester();
    drop(request);
    let why = Note { addr: 0xbad, rkey: 7 };
    let (data, length) = ((&raw const why).cast::<c_void>(), size_of::<Note>() as u8);
    // SAFETY: the identifier is alive, and the data is valid to read.
    succeeds("rdma_reject", unsafe { (cm.rdma_reject)(refused.raw, data, length) });
    let answer = client.expect(RDMA_CM_EVENT_REJECTED);
    let (addr, rkey, _) = answer.peer();
    assert_eq!((addr, rkey), (why.addr, why.rkey));
}

#[test]
fn rdma_cm_connects_and_refuses() {
    let devices: Vec<Rc<Device>> = devices();
    let (Some(first), Some(last)) = (devices.first(), devices.last()) else { return };
    let cm = RdmaCm::get().unwrap_or_else(|error| panic!("{error}"));
    for from in addresses(first) {
        let same_family = |to: &SocketAddr| to.is_ipv4() == from.is_ipv4();
        let Some(to) = addresses(last).into_iter().find(same_family) else { continue };
        for calls in [Calls::Classic, Calls::Extended] {
            eprintln!("{calls:?} calls from {from} to {to}");
            connect(cm, from, to, calls);
        }
        refuse(cm, from, to);
    }
}

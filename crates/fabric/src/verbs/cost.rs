//! The cost that the fabric adds to calls of libibverbs: loops of waited-for operations of 8 bytes over a provider that
//! does them at once, and loops of the bare calls over the same. `bench/instructions` counts their instructions.
//!
//! The provider keeps one work request, and does it when its doorbell is rung; so it costs both loops the same.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use farfield_verbs_sys::*;

use super::bare::Bare;
use super::device::Device;
use super::fabric::{JoinOptions, VerbsFabric};
use super::stub::Stub;
use crate::endpoint::{Endpoint, EndpointOptions};
use crate::fabric::{Fabric, Transport};
use crate::lane::Verb;
use crate::ptr::{GroupKey, RemotePtr};

/// Operations of each loop.
const LOOPS: u64 = 1000;

/// The one work request.
struct Quick(UnsafeCell<Request>);

#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    opcode: ibv_wr_opcode,
    remote: *mut u64,
    local: *mut u64,
    operands: [u64; 2],
    is_done: bool,
}

// SAFETY: `run` lets one thread at a time post and poll.
unsafe impl Sync for Quick {}

static QUICK: Quick = Quick(UnsafeCell::new(Request {
    wr_id: 0,
    opcode: 0,
    remote: core::ptr::null_mut(),
    local: core::ptr::null_mut(),
    operands: [0; 2],
    is_done: false,
}));

fn quick() -> &'static mut Request {
    // SAFETY: as above, and no caller keeps it beyond a call of the provider.
    unsafe { &mut *QUICK.0.get() }
}

impl Request {
    fn execute(&mut self) {
        // SAFETY: both loops give words of this process, aligned and alive.
        unsafe {
            match self.opcode {
                IBV_WR_RDMA_WRITE => self.remote.write(self.local.read()),
                IBV_WR_RDMA_READ => self.local.write(self.remote.read()),
                IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let old = self.remote.read();
                    self.local.write(old);
                    self.remote.write(old.wrapping_add(self.operands[0]));
                }
                _ => {
                    let old = self.remote.read();
                    self.local.write(old);
                    if old == self.operands[0] {
                        self.remote.write(self.operands[1]);
                    }
                }
            }
        }
        self.is_done = true;
    }
}

fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, remote: u64, operands: [u64; 2]) {
    let request = quick();
    // SAFETY: the queue pair is alive.
    request.wr_id = unsafe { (*qp).wr_id };
    (request.opcode, request.remote, request.operands) = (opcode, remote as *mut u64, operands);
}

unsafe extern "C" fn start(_: *mut ibv_qp_ex) {}

unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    quick().execute();
    0
}

unsafe extern "C" fn write(qp: *mut ibv_qp_ex, _: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_WRITE, remote, [0; 2]);
}

unsafe extern "C" fn read(qp: *mut ibv_qp_ex, _: u32, remote: u64) {
    begin(qp, IBV_WR_RDMA_READ, remote, [0; 2]);
}

unsafe extern "C" fn cas(qp: *mut ibv_qp_ex, _: u32, remote: u64, compare: u64, swap: u64) {
    begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, remote, [compare, swap]);
}

unsafe extern "C" fn faa(qp: *mut ibv_qp_ex, _: u32, remote: u64, add: u64) {
    begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, remote, [add, 0]);
}

unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, _: u32, addr: u64, _: u32) {
    quick().local = addr as *mut u64;
}

unsafe extern "C" fn set_inline(_: *mut ibv_qp_ex, addr: *mut c_void, _: usize) {
    quick().local = addr.cast();
}

unsafe extern "C" fn post(_: *mut ibv_qp, wr: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    let request = quick();
    // SAFETY: the caller's request is whole, and has one segment.
    unsafe {
        let (wr, local) = (&*wr, &*(*wr).sg_list);
        (request.wr_id, request.opcode, request.local) = (wr.wr_id, wr.opcode, local.addr as *mut u64);
        request.remote = wr.wr.atomic.remote_addr as *mut u64;
        request.operands = [wr.wr.atomic.compare_add, wr.wr.atomic.swap];
    }
    request.execute();
    0
}

unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, wc: *mut ibv_wc) -> c_int {
    let request = quick();
    if !core::mem::take(&mut request.is_done) {
        return 0;
    }
    // SAFETY: the caller has room for one.
    unsafe {
        (*wc).wr_id = request.wr_id;
        (*wc).status = IBV_WC_SUCCESS;
        (*wc).opcode = IBV_WC_RDMA_WRITE;
    }
    1
}

/// A stub of a device with the posting and polling above.
fn device(is_extended: bool) -> Arc<Device> {
    let stub = Stub::new(is_extended, |_, _| {});
    stub.replace_data_path(post, poll, |qp| {
        qp.wr_start = Some(start);
        qp.wr_complete = Some(complete);
        qp.wr_rdma_write = Some(write);
        qp.wr_rdma_read = Some(read);
        qp.wr_atomic_cmp_swp = Some(cas);
        qp.wr_atomic_fetch_add = Some(faa);
        qp.wr_set_sge = Some(set_sge);
        qp.wr_set_inline_data = Some(set_inline);
    });
    stub.device
}

macro_rules! loops {
    ($($name:ident = |$on:ident: $kind:ty, $value:ident| $operation:expr;)+) => {$(
        #[inline(never)]
        fn $name($on: $kind) {
            for $value in 0..LOOPS {
                black_box($operation);
            }
        }
    )+};
}

loops! {
    loop_put = |on: (&Endpoint, RemotePtr<u64>), value| on.0.put_value(black_box(on.1), value).wait().unwrap();
    loop_get = |on: (&Endpoint, RemotePtr<u64>), _value| on.0.get(black_box(on.1)).wait().unwrap();
    loop_cas = |on: (&Endpoint, RemotePtr<u64>), value| on.0.cas(black_box(on.1), value, value + 1).wait().unwrap();
    loop_faa = |on: (&Endpoint, RemotePtr<u64>), _value| on.0.faa(black_box(on.1), 1).wait().unwrap();
    loop_bare_put = |on: &mut Bare, value| on.run(Verb::Put, [value, 0]).unwrap();
    loop_bare_get = |on: &mut Bare, _value| on.run(Verb::Get, [0; 2]).unwrap();
    loop_bare_cas = |on: &mut Bare, value| on.run(Verb::Cas, [value, value + 1]).unwrap();
    loop_bare_faa = |on: &mut Bare, _value| on.run(Verb::Faa, [1, 0]).unwrap();
}

/// Runs all loops, over a device that has the extended calls of libibverbs or only the classic ones.
pub fn run(is_extended: bool) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let device = device(is_extended);
    let options =
        JoinOptions { group_bytes_max: 4 << 20, ..JoinOptions::new("cost", 0, 1, (Ipv4Addr::LOCALHOST, 0).into()) };
    let fabric = VerbsFabric::join_on(&options, &device).unwrap();
    let region = fabric.alloc(GroupKey::DATA, 64).unwrap();
    let endpoint = Endpoint::open(Arc::clone(&fabric) as Arc<dyn Transport>, EndpointOptions::default()).unwrap();
    let at = |offset| (&endpoint, region.remote::<u64>(offset));
    // Once without being counted: memory is taken, and registered, with the first operations.
    endpoint.get(region.remote::<u64>(32)).wait().unwrap();
    loop_put(at(0));
    assert_eq!(region.word(0).load(), LOOPS - 1);
    loop_get(at(8));
    loop_cas(at(16));
    assert_eq!(region.word(16).load(), LOOPS);
    loop_faa(at(24));
    assert_eq!(region.word(24).load(), LOOPS);

    drop(endpoint);

    let mut bare = fabric.bare(region.remote(32)).unwrap();
    let word = region.word(32);
    loop_bare_put(&mut bare);
    assert_eq!(word.load(), LOOPS - 1);
    loop_bare_get(&mut bare);
    word.store(0);
    loop_bare_cas(&mut bare);
    assert_eq!(word.load(), LOOPS);
    loop_bare_faa(&mut bare);
    assert_eq!(word.load(), 2 * LOOPS);
}

// One test: there is one work request.
#[test]
fn loops_of_waited_for_operations() {
    run(true);
    run(false);
}

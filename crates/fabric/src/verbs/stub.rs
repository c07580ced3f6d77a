//! A device for tests, and for counts of instructions. Its functions are ours, so every failure can be had, and nothing
//! happens by itself.
//!
//! Posted requests are kept in a list until the test ends them: [`Stub::complete`], [`Stub::fail`], [`Stub::flush`].
//! Remote addresses are this process's own, except those in memory of a device ([`State::device_memory`]).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use farfield_verbs_sys::*;

use super::choose::choose;
use super::device::Device;
use super::info::{Address, AddressKind, Atomics, DeviceInfo, Link, PortInfo};
use super::options::VerbsOptions;

/// A work request under way.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: ibv_send_flags,
    pub(super) local: ibv_sge,
    pub(super) inline: Option<Vec<u8>>,
    pub(super) remote_addr: u64,
    operands: [u64; 2],
    qp: usize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) posted: VecDeque<Posted>,
    /// The batch of the extended calls that is open.
    open: Vec<Posted>,
    /// With the addresses of their completion queues.
    completions: Vec<(usize, ibv_wc)>,
    /// How many of the next work requests are posted, and the errno value for the one that follows.
    pub(super) refusals: VecDeque<(usize, c_int)>,
    /// Polling fails.
    pub(super) is_broken: bool,
    pub(super) doorbells: usize,
    pub(super) registered: Vec<usize>,
    /// How many bytes may be registered, all in all.
    pub(super) registered_bytes_max: Option<usize>,
    pub(super) modified: Vec<(ibv_qp_state, ibv_qp_attr)>,
    pub(super) destroyed: usize,
    /// Queue pairs that there are, and that there can be.
    pub(super) queue_pairs: usize,
    pub(super) queue_pairs_max: Option<usize>,
    /// How many bytes of its own memory the device has left.
    pub(super) device_memory_left: usize,
    /// Its allocations.
    pub(super) device_memory: Vec<usize>,
    /// Work requests are executed as they are posted; or they fail, if the other side is dead.
    pub(super) is_prompt: bool,
}

impl State {
    fn accept(&mut self, requests: &[Posted], all_or_none: bool) -> (usize, c_int) {
        let (accepted, errno) = match self.refusals.front_mut() {
            Some((left, _)) if *left >= requests.len() => {
                *left -= requests.len();
                (requests.len(), 0)
            }
            Some((left, errno)) => {
                let answer = if all_or_none { (0, *errno) } else { (core::mem::take(left), *errno) };
                // A batch that is refused as a whole is posted again one by one.
                if !all_or_none || requests.len() == 1 {
                    self.refusals.pop_front();
                }
                answer
            }
            None => (requests.len(), 0),
        };
        self.doorbells += usize::from(accepted > 0);
        self.posted.extend(requests[..accepted].iter().cloned());
        while self.is_prompt
            && let Some(first) = self.posted.front()
        {
            // SAFETY: queue pairs of the stub are never freed.
            let there = unsafe { (*(first.qp as *const StubPair)).target.load(Ordering::Relaxed) };
            let live = LIVE.lock().unwrap();
            self.end_first(if live.contains(&there) { IBV_WC_SUCCESS } else { IBV_WC_REM_ACCESS_ERR });
        }
        (accepted, errno)
    }

    fn end_first(&mut self, status: ibv_wc_status) {
        let Some(posted) = self.posted.pop_front() else { return };
        if status == IBV_WC_SUCCESS {
            posted.execute();
        }
        if status != IBV_WC_SUCCESS || posted.flags & IBV_SEND_SIGNALED != 0 {
            // SAFETY: queue pairs of the stub are never freed.
            let queue = unsafe { (*(posted.qp as *const StubPair)).ex.qp_base.send_cq } as usize;
            self.completions.push((queue, ibv_wc { wr_id: posted.wr_id, status, ..Default::default() }));
        }
    }
}

impl Posted {
    fn execute(&self) {
        let (remote, local) = (self.remote_addr as *mut u8, self.local.addr as *mut u8);
        let len = self.local.length as usize;
        // SAFETY: a lane promises that local and remote memory are valid while the request is pending, and a test uses
        // them from one thread, or one request at a time is executed (`is_prompt`).
        unsafe {
            match (self.opcode, &self.inline) {
                (IBV_WR_RDMA_WRITE, Some(bytes)) => remote.copy_from(bytes.as_ptr(), bytes.len()),
                (IBV_WR_RDMA_WRITE, None) => remote.copy_from(local, len),
                (IBV_WR_RDMA_READ, _) => local.copy_from(remote, len),
                (opcode, _) => {
                    assert_eq!(len, 8);
                    let (word, [a, b]) = (remote.cast::<u64>(), self.operands);
                    let old = word.read();
                    local.cast::<u64>().write(old);
                    match opcode {
                        IBV_WR_ATOMIC_FETCH_AND_ADD => word.write(old.wrapping_add(a)),
                        _ if old == a => word.write(b),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The numbers of all queue pairs of all stubs that there are.
static LIVE: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
static LAST: AtomicU32 = AtomicU32::new(6);

/// The registered memory of devices, by its key.
static ON_DEVICES: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());
/// Other keys are lower.
const KEY_ON_DEVICE_MIN: u32 = 1 << 24;
static LAST_ON_DEVICE: AtomicU32 = AtomicU32::new(KEY_ON_DEVICE_MIN);

/// The address in this process that a key and an address of a work request mean.
fn address_of(rkey: u32, address: u64) -> u64 {
    match rkey {
        ..KEY_ON_DEVICE_MIN => address,
        _ => ON_DEVICES.lock().unwrap()[&rkey] as u64 + address,
    }
}

#[repr(C)]
struct StubMemory {
    dm: ibv_dm,
    /// `u64`s, so that words are aligned.
    words: Box<[u64]>,
}

#[repr(C)]
struct StubPair {
    ex: ibv_qp_ex,
    /// The number of the queue pair that it is connected to.
    target: AtomicU32,
}

#[repr(C)]
struct StubContext {
    verbs: verbs_context,
    state: Arc<Mutex<State>>,
    extended: bool,
    /// Changes new queue pairs.
    amend: fn(&mut ibv_qp_ex),
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

fn state_of<'s>(context: *mut ibv_context) -> MutexGuard<'s, State> {
    // SAFETY: every context here is the one in a `StubContext`, which is never freed.
    unsafe { &*stub_of(context) }.state.lock().unwrap()
}

fn stub_of(context: *mut ibv_context) -> *mut StubContext {
    context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast()
}

/// A device that is implemented here.
pub(super) struct Stub {
    pub(super) device: Arc<Device>,
    pub(super) state: Arc<Mutex<State>>,
}

impl Stub {
    /// With the extended calls or with the classic ones only.
    pub(super) fn new(extended: bool, change: impl FnOnce(&mut DeviceInfo, &mut VerbsOptions)) -> Stub {
        let state: Arc<Mutex<State>> = Arc::default();
        // SAFETY: integers, raw pointers, optional functions and a mutex of C, for all of which zero is valid.
        let verbs: verbs_context = unsafe { core::mem::zeroed() };
        let stub = Box::leak(Box::new(StubContext { verbs, state: Arc::clone(&state), extended, amend: |_| {} }));
        stub.verbs.sz = size_of::<verbs_context>();
        stub.verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        stub.verbs.context.ops.post_send = Some(post_send);
        stub.verbs.context.ops.poll_cq = Some(poll_cq);
        stub.verbs.create_qp_ex = Some(create_qp_ex);
        stub.verbs.alloc_dm = Some(alloc_dm);
        stub.verbs.free_dm = Some(free_dm);
        stub.verbs.reg_dm_mr = Some(reg_dm_mr);
        let context = (&raw mut *stub).wrapping_byte_add(core::mem::offset_of!(verbs_context, context)).cast();
        let table = Verbs {
            ibv_close_device: close_device,
            ibv_dealloc_pd: dealloc_pd,
            ibv_reg_mr: reg_mr,
            ibv_dereg_mr: dereg_mr,
            ibv_create_cq: create_cq,
            ibv_destroy_cq: destroy_cq,
            ibv_create_qp: create_qp,
            ibv_qp_to_qp_ex: qp_to_qp_ex,
            ibv_modify_qp: modify_qp,
            ibv_destroy_qp: destroy_qp,
            ..Verbs::for_tests()
        };
        let address = Address { index: 1, gid: [1; 16], kind: AddressKind::RoceV2 };
        let port = PortInfo {
            number: 1,
            is_active: true,
            link: Link::Ethernet,
            lid: 0,
            needs_gid: false,
            mtu_bytes: 1024,
            message_bytes_max: 4096,
            addresses: vec![address],
        };
        let mut info = DeviceInfo {
            name: "stub".into(),
            is_software: true,
            words_may_tear: false,
            is_iwarp: false,
            firmware: String::new(),
            atomics: Atomics::SameDevice,
            queue_pairs_max: 100,
            work_requests_max: 1 << 14,
            completions_max: 1 << 14,
            regions_max: 100,
            region_bytes_max: 1 << 30,
            reads_out_max: 16,
            reads_in_max: 16,
            device_memory_bytes: 0,
            ports: vec![port],
        };
        let mut options = VerbsOptions { holds_back: Some(false), ..VerbsOptions::default() };
        change(&mut info, &mut options);
        state.lock().unwrap().device_memory_left = info.device_memory_bytes as usize;
        let address = choose(core::slice::from_ref(&info), &options).unwrap().address;
        let port = info.ports[0].clone();
        let pd = Box::leak(Box::new(ibv_pd { context, handle: 0 }));
        let verbs = Box::leak(Box::new(table));
        let device = Arc::new(Device { verbs, context, pd, info, port, address, options, asks_for_events: false });
        Stub { device, state }
    }

    /// Posts and polls by other functions from now on.
    pub(super) fn replace_data_path(&self, post: PostSend, poll: PollCq, amend: fn(&mut ibv_qp_ex)) {
        // SAFETY: the context is a stub's, which is never freed, and no thread posts or polls yet.
        unsafe {
            let stub = &mut *stub_of(self.device.context);
            stub.verbs.context.ops.post_send = Some(post);
            stub.verbs.context.ops.poll_cq = Some(poll);
            stub.amend = amend;
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The next `count` work requests are done.
    pub(super) fn complete(&self, count: usize) {
        let count = count.min(self.state().posted.len());
        (0..count).for_each(|_| self.state().end_first(IBV_WC_SUCCESS));
    }

    /// The next work request fails.
    pub(super) fn fail(&self, status: ibv_wc_status) {
        self.state().end_first(status);
    }

    /// Flushes the pending requests.
    pub(super) fn flush(&self) {
        while !self.state().posted.is_empty() {
            self.fail(IBV_WC_WR_FLUSH_ERR);
        }
    }
}

unsafe extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    0
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    assert_eq!(access as u32 & IBV_ACCESS_RELAXED_ORDERING, 0);
    // SAFETY: the stub's domain is never freed.
    let context = unsafe { (*pd).context };
    let mut state = state_of(context);
    let registered: usize = state.registered.iter().sum();
    if state.registered_bytes_max.is_some_and(|max| registered + length > max) {
        // SAFETY: the location of this thread's errno is valid to write.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return core::ptr::null_mut();
    }
    state.registered.push(length);
    let key = state.registered.len() as u32;
    Box::leak(Box::new(ibv_mr { context, pd, addr, length, handle: 0, lkey: key, rkey: 1000 + key }))
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: registrations of the stub are never freed.
    ON_DEVICES.lock().unwrap().remove(unsafe { &(*mr).rkey });
    0
}

unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: the caller's attributes are valid.
    let bytes = unsafe { (*attr).length };
    let mut state = state_of(context);
    if state.device_memory_left < bytes {
        // SAFETY: the location of this thread's errno is valid to write.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return core::ptr::null_mut();
    }
    state.device_memory_left -= bytes;
    state.device_memory.push(bytes);
    let (memcpy_to_dm, memcpy_from_dm) = (Some(memcpy_to_dm as _), Some(memcpy_from_dm as _));
    let dm = ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle: 0 };
    // Earlier contents are not cleared.
    Box::into_raw(Box::new(StubMemory { dm, words: vec![!0; bytes / 8].into() })).cast()
}

unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: it was allocated by `alloc_dm`, and is freed once.
    let memory = unsafe { Box::from_raw(dm.cast::<StubMemory>()) };
    let base = memory.words.as_ptr() as usize;
    assert!(!ON_DEVICES.lock().unwrap().values().any(|registered| *registered == base), "it is registered");
    state_of(memory.dm.context).device_memory_left += size_of_val(&*memory.words);
    0
}

unsafe extern "C" fn reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, at: u64, length: usize, access: u32) -> *mut ibv_mr {
    assert!(at == 0 && access & IBV_ACCESS_ZERO_BASED != 0 && access & IBV_ACCESS_REMOTE_ATOMIC != 0);
    let key = LAST_ON_DEVICE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the memory was allocated by `alloc_dm`, and the stub's domain is never freed.
    let (context, base) = unsafe { ((*pd).context, (*dm.cast::<StubMemory>()).words.as_ptr() as usize) };
    ON_DEVICES.lock().unwrap().insert(key, base);
    Box::leak(Box::new(ibv_mr { context, pd, addr: core::ptr::null_mut(), length, handle: 0, lkey: key, rkey: key }))
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, at: u64, from: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the memory was allocated by `alloc_dm`, the caller's bytes are valid, and their target is asserted.
    unsafe {
        let words = &mut (*dm.cast::<StubMemory>()).words;
        assert!(at as usize + bytes <= size_of_val(&**words));
        words.as_mut_ptr().cast::<u8>().add(at as usize).copy_from(from.cast(), bytes);
    }
    0
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, at: u64, bytes: usize) -> c_int {
    // SAFETY: as in `memcpy_to_dm`.
    unsafe {
        let words = &(*dm.cast::<StubMemory>()).words;
        assert!(at as usize + bytes <= size_of_val(&**words));
        words.as_ptr().cast::<u8>().add(at as usize).copy_to(to.cast(), bytes);
    }
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    // SAFETY: zero is valid for it.
    let cq: &mut ibv_cq = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
    (cq.context, cq.cqe) = (context, cqe);
    cq
}

unsafe extern "C" fn destroy_cq(_: *mut ibv_cq) -> c_int {
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: zero is valid for it, and the caller's domain and attributes are alive.
    unsafe {
        let refuse = |errno| {
            *libc::__errno_location() = errno;
            core::ptr::null_mut()
        };
        // As some devices, it copies fewer bytes than requested, and does not report it.
        if (*attr).cap.max_inline_data > 128 {
            return refuse(libc::EINVAL);
        }
        let mut state = state_of((*pd).context);
        if state.queue_pairs_max.is_some_and(|max| state.queue_pairs >= max) {
            return refuse(libc::ENOMEM);
        }
        state.queue_pairs += 1;
        let qp: &mut StubPair = Box::leak(Box::new(core::mem::zeroed()));
        qp.ex.qp_base.context = (*pd).context;
        qp.ex.qp_base.send_cq = (*attr).send_cq;
        qp.ex.qp_base.qp_num = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        LIVE.lock().unwrap().insert(qp.ex.qp_base.qp_num);
        (&raw mut *qp).cast()
    }
}

unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: as in `create_qp`.
    unsafe {
        if !(*stub_of(context)).extended {
            *libc::__errno_location() = libc::EOPNOTSUPP;
            return core::ptr::null_mut();
        }
        let mut classic = ibv_qp_init_attr { cap: (*attr).cap, send_cq: (*attr).send_cq, ..Default::default() };
        let raw = create_qp((*attr).pd, &mut classic);
        if raw.is_null() {
            return raw;
        }
        let qp = raw.cast::<ibv_qp_ex>();
        (*qp).wr_start = Some(wr_start);
        (*qp).wr_complete = Some(wr_complete);
        (*qp).wr_rdma_write = Some(wr_rdma_write);
        (*qp).wr_rdma_read = Some(wr_rdma_read);
        (*qp).wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
        (*qp).wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
        (*qp).wr_set_sge = Some(wr_set_sge);
        (*qp).wr_set_sge_list = Some(wr_set_sge_list);
        (*qp).wr_set_inline_data = Some(wr_set_inline_data);
        ((*stub_of(context)).amend)(&mut *qp);
        raw
    }
}

unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    qp.cast()
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: queue pairs of the stub are never freed, and the caller's attributes are alive.
    unsafe {
        if mask & IBV_QP_STATE != 0 {
            state_of((*qp).context).modified.push(((*attr).qp_state, *attr));
        }
        if mask & IBV_QP_DEST_QPN != 0 {
            (*qp.cast::<StubPair>()).target.store((*attr).dest_qp_num, Ordering::Relaxed);
        }
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: as in `modify_qp`.
    let (context, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    // A request of another stub that is done meanwhile is over when this returns.
    LIVE.lock().unwrap().remove(&number);
    let mut state = state_of(context);
    state.posted.retain(|posted| posted.qp != qp as usize);
    state.destroyed += 1;
    state.queue_pairs -= 1;
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: completion queues of the stub are never freed.
    let mut state = state_of(unsafe { (*cq).context });
    if state.is_broken {
        return -1;
    }
    let mut found = 0;
    state.completions.retain(|(queue, completion)| {
        let is_taken = *queue == cq as usize && found < count;
        if is_taken {
            // SAFETY: the caller has room for that many.
            unsafe { wc.add(found as usize).write(*completion) };
            found += 1;
        }
        !is_taken
    });
    found
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    let mut requests = Vec::new();
    let mut chain = Vec::new();
    let mut next = wr;
    // SAFETY: the caller's list and its segments are whole, and inline bytes are there to be read.
    unsafe {
        while let Some(request) = next.as_ref() {
            let local = if request.num_sge == 1 { *request.sg_list } else { ibv_sge::default() };
            let is_inline = request.send_flags & IBV_SEND_INLINE != 0;
            let bytes = || core::slice::from_raw_parts(local.addr as *const u8, local.length as usize).to_vec();
            requests.push(Posted {
                wr_id: request.wr_id,
                opcode: request.opcode,
                flags: request.send_flags,
                local,
                inline: is_inline.then(bytes),
                remote_addr: address_of(
                    match request.opcode {
                        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ => request.wr.rdma.rkey,
                        _ => request.wr.atomic.rkey,
                    },
                    request.wr.atomic.remote_addr,
                ),
                operands: [request.wr.atomic.compare_add, request.wr.atomic.swap],
                qp: qp as usize,
            });
            chain.push(next);
            next = request.next;
        }
        let (accepted, errno) = state_of((*qp).context).accept(&requests, false);
        if errno != 0 {
            *bad_wr = chain[accepted];
        }
        errno
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: as in `modify_qp`.
    let state = state_of(unsafe { (*qp).qp_base.context });
    assert!(state.open.is_empty(), "one batch at a time");
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as in `modify_qp`.
    let mut state = state_of(unsafe { (*qp).qp_base.context });
    let requests = core::mem::take(&mut state.open);
    state.accept(&requests, true).1
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    open(qp, IBV_WR_RDMA_WRITE, address_of(rkey, remote_addr), [0; 2]);
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    open(qp, IBV_WR_RDMA_READ, address_of(rkey, remote_addr), [0; 2]);
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    open(qp, IBV_WR_ATOMIC_CMP_AND_SWP, address_of(rkey, remote_addr), [compare, swap]);
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    open(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, address_of(rkey, remote_addr), [add, 0]);
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set(qp, ibv_sge { addr, length, lkey }, None);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, _: *const ibv_sge) {
    assert_eq!(count, 0, "one segment at most");
    set(qp, ibv_sge::default(), None);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's bytes are there to be read.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), length) };
    set(qp, ibv_sge::default(), Some(bytes.to_vec()));
}

fn open(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, remote_addr: u64, operands: [u64; 2]) {
    // SAFETY: as in `modify_qp`.
    let (context, wr_id, flags) = unsafe { ((*qp).qp_base.context, (*qp).wr_id, (*qp).wr_flags) };
    let (local, inline, qp) = (ibv_sge::default(), None, qp as usize);
    state_of(context).open.push(Posted { wr_id, opcode, flags, local, inline, remote_addr, operands, qp });
}

fn set(qp: *mut ibv_qp_ex, local: ibv_sge, inline: Option<Vec<u8>>) {
    // SAFETY: as in `modify_qp`.
    let mut state = state_of(unsafe { (*qp).qp_base.context });
    let last = state.open.last_mut().expect("an operation comes before its memory");
    (last.local, last.inline) = (local, inline);
}

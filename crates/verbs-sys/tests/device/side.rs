//! Opened devices, and one side of a connection: a queue pair, its completion queue, and memory that a peer may use.

use std::ffi::CStr;
use std::io;
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farfield_verbs_sys::*;

/// Words of memory that each side registers.
pub(crate) const WORDS: usize = 64;

/// How long a completion may take: emulated machines have bad moments.
const PATIENCE: Duration = Duration::from_secs(30);

/// All that a peer may do with the memory, without any relaxation of order.
const FULL_ACCESS: ibv_access_flags =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Panics with the errno value that a function returned, if it is one.
#[track_caller]
pub(crate) fn succeeds(what: &str, errno: i32) {
    assert_eq!(errno, 0, "{what}: {}", io::Error::from_raw_os_error(errno));
}

/// Panics as [`succeeds`], unless a test has failed already.
#[track_caller]
pub(crate) fn frees(what: &str, errno: i32) {
    if !std::thread::panicking() {
        succeeds(what, errno);
    }
}

/// Panics with errno, if a function returned null.
#[track_caller]
pub(crate) fn not_null<T>(what: &str, pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{what}: {}", io::Error::last_os_error());
    pointer
}

/// A text of the library's.
pub(crate) fn text(pointer: *const core::ffi::c_char) -> &'static str {
    // SAFETY: only constant texts of the library come here, and it is never unloaded.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("the library's texts are ASCII")
}

/// An opened device with its first port and one address there.
pub(crate) struct Device {
    pub(crate) verbs: &'static Verbs,
    pub(crate) context: *mut ibv_context,
    pub(crate) name: String,
    pub(crate) port: ibv_port_attr,
    pub(crate) gid: ibv_gid_entry,
    pd: *mut ibv_pd,
}

/// The only port that is tried.
pub(crate) const PORT: u8 = 1;

impl Device {
    /// All devices with an active first port, or a word about why there is none.
    pub(crate) fn all() -> Result<Vec<Rc<Device>>, String> {
        let verbs = Verbs::get().map_err(|error| error.to_string())?;
        let mut devices = Vec::new();
        // Once, before the first device is opened: every test calls this first.
        static FORK: Once = Once::new();
        // SAFETY: no device is open yet.
        FORK.call_once(|| succeeds("ibv_fork_init", unsafe { (verbs.ibv_fork_init)() }));
        let mut count = 0;
        // SAFETY: the list has `count` devices and is freed once, after those of interest were opened.
        unsafe {
            let list = (verbs.ibv_get_device_list)(&mut count);
            if list.is_null() {
                return Err(format!("ibv_get_device_list: {}", io::Error::last_os_error()));
            }
            for index in 0..count as usize {
                let context = not_null("ibv_open_device", (verbs.ibv_open_device)(*list.add(index)));
                devices.push(Device::on(verbs, context));
            }
            (verbs.ibv_free_device_list)(list);
        }
        devices.retain(|device| device.port.state == IBV_PORT_ACTIVE);
        if devices.is_empty() { Err("there is no device with an active port".to_owned()) } else { Ok(devices) }
    }

    /// A device on a context, which is closed at the end.
    fn on(verbs: &'static Verbs, context: *mut ibv_context) -> Rc<Device> {
        // SAFETY: the context is open, and the attributes are valid to write.
        unsafe {
            let name = text((verbs.ibv_get_device_name)((*context).device)).to_owned();
            let mut port = ibv_port_attr::default();
            succeeds("ibv_query_port", ibv_query_port(verbs, context, PORT, &mut port));
            let gid = best_gid(verbs, context, port.gid_tbl_len);
            let pd = not_null("ibv_alloc_pd", (verbs.ibv_alloc_pd)(context));
            Rc::new(Device { verbs, context, name, port, gid, pd })
        }
    }

    /// The addresses of the first port, with their kinds.
    pub(crate) fn gids(&self) -> Vec<ibv_gid_entry> {
        let mut entries = vec![ibv_gid_entry::default(); 64];
        // SAFETY: the context is open, and there is room for that many entries.
        let count = unsafe { ibv_query_gid_table(self.verbs, self.context, entries.as_mut_ptr(), entries.len()) };
        entries.truncate(usize::try_from(count).expect("ibv_query_gid_table succeeds"));
        entries.retain(|entry| entry.port_num == u32::from(PORT));
        entries
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every side holds its device, so nothing belongs to the domain any more.
        unsafe {
            frees("ibv_dealloc_pd", (self.verbs.ibv_dealloc_pd)(self.pd));
            frees("ibv_close_device", (self.verbs.ibv_close_device)(self.context));
        }
    }
}

/// RoCE v2 by IPv4 before RoCE v2 by IPv6 before anything else; not the address of a link.
fn best_gid(verbs: &Verbs, context: *mut ibv_context, count: i32) -> ibv_gid_entry {
    let rank = |entry: &ibv_gid_entry| {
        let is_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
        let is_ipv4 = entry.gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let is_of_link = entry.gid.raw[..2] == [0xfe, 0x80];
        (is_v2, !is_of_link, is_ipv4)
    };
    let entries = (0..count as u32).filter_map(|index| {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: the context is open, and the entry is valid to write.
        let errno = unsafe { ibv_query_gid_ex(verbs, context, PORT.into(), index, &mut entry) };
        (errno == 0).then_some(entry)
    });
    entries.max_by_key(rank).expect("the port has an address")
}

/// Which of the two ways to post and to poll a side uses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Calls {
    Classic,
    Extended,
}

/// The data that a peer needs.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) qp_num: u32,
    pub(crate) lid: u16,
    pub(crate) gid: ibv_gid,
    pub(crate) rkey: u32,
}

/// An operation, with places in local memory as numbers of words.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Write { local: usize, words: usize, remote: u64, rkey: u32 },
    Read { local: usize, words: usize, remote: u64, rkey: u32 },
    Cas { local: usize, remote: u64, rkey: u32, compare: u64, swap: u64 },
    Faa { local: usize, remote: u64, rkey: u32, add: u64 },
}

/// An operation to post.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    pub(crate) flags: ibv_send_flags,
    pub(crate) what: What,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
}

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) device: Rc<Device>,
    pub(crate) calls: Calls,
    pub(crate) qp: *mut ibv_qp,
    qp_ex: *mut ibv_qp_ex,
    cq: *mut ibv_cq,
    cq_ex: *mut ibv_cq_ex,
    mr: *mut ibv_mr,
    pub(crate) memory: Box<[AtomicU64]>,
}

impl Side {
    pub(crate) fn new(device: &Rc<Device>, calls: Calls) -> Side {
        let verbs = device.verbs;
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: context and domain are alive, as the side holds its device; attributes are valid to read and write;
        // the memory is deregistered before it is freed.
        unsafe {
            let mr = register(device, &memory, FULL_ACCESS);
            let (cq, cq_ex) = match calls {
                Calls::Classic => {
                    let (none, channel) = (core::ptr::null_mut(), core::ptr::null_mut());
                    let cq = (verbs.ibv_create_cq)(device.context, 32, none, channel, 0);
                    (not_null("ibv_create_cq", cq), core::ptr::null_mut())
                }
                Calls::Extended => {
                    let mut attr =
                        ibv_cq_init_attr_ex { cqe: 32, wc_flags: IBV_WC_EX_WITH_BYTE_LEN, ..Default::default() };
                    let cq_ex = not_null("ibv_create_cq_ex", ibv_create_cq_ex(device.context, &mut attr));
                    (ibv_cq_ex_to_cq(cq_ex), cq_ex)
                }
            };
            let cap =
                ibv_qp_cap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
            let qp = match calls {
                Calls::Classic => {
                    let mut attr =
                        ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type: IBV_QPT_RC, ..Default::default() };
                    (verbs.ibv_create_qp)(device.pd, &mut attr)
                }
                Calls::Extended => {
                    let mut attr = ibv_qp_init_attr_ex {
                        send_cq: cq,
                        recv_cq: cq,
                        cap,
                        qp_type: IBV_QPT_RC,
                        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                        pd: device.pd,
                        send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE
                            | IBV_QP_EX_WITH_RDMA_READ
                            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
                        ..Default::default()
                    };
                    ibv_create_qp_ex(device.context, &mut attr)
                }
            };
            let qp = not_null("making a queue pair", qp);
            let qp_ex = (verbs.ibv_qp_to_qp_ex)(qp);
            assert_eq!(qp_ex.is_null(), calls == Calls::Classic);
            Side { device: Rc::clone(device), calls, qp, qp_ex, cq, cq_ex, mr, memory }
        }
    }

    pub(crate) fn address(&self) -> Address {
        // SAFETY: queue pair and region are alive.
        let (qp_num, rkey) = unsafe { ((*self.qp).qp_num, (*self.mr).rkey) };
        Address { qp_num, lid: self.device.port.lid, gid: self.device.gid.gid, rkey }
    }

    /// The address of a word of the memory.
    pub(crate) fn addr(&self, word: usize) -> u64 {
        self.memory[word].as_ptr() as u64
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        self.memory[word].load(Ordering::Acquire)
    }

    pub(crate) fn set_word(&self, word: usize, value: u64) {
        self.memory[word].store(value, Ordering::Release);
    }

    /// Sets attributes of the queue pair.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) {
        // SAFETY: the queue pair is alive, and the attributes are valid.
        succeeds("ibv_modify_qp", unsafe { (self.device.verbs.ibv_modify_qp)(self.qp, &mut attr, mask) });
    }

    /// Connects a queue pair that is new or reset. The sequence numbers are the queue pairs' numbers.
    pub(crate) fn connect(&self, peer: &Address) {
        let init =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: PORT, qp_access_flags: FULL_ACCESS, ..Default::default() };
        self.modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

        let is_ethernet = self.device.port.link_layer == IBV_LINK_LAYER_ETHERNET;
        let ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: peer.gid,
                sgid_index: self.device.gid.gid_index as u8,
                hop_limit: 64,
                ..Default::default()
            },
            dlid: peer.lid,
            is_global: is_ethernet.into(),
            port_num: PORT,
            ..Default::default()
        };
        let receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            ah_attr,
            path_mtu: self.device.port.active_mtu,
            dest_qp_num: peer.qp_num,
            rq_psn: peer.qp_num,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(receive, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.address().qp_num,
            max_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    }

    /// Forgets the connection; the queue pair can be connected again.
    pub(crate) fn reset(&self) {
        self.modify(ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() }, IBV_QP_STATE);
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: the queue pair is alive, and the attributes are valid to write.
        let errno = unsafe { (self.device.verbs.ibv_query_qp)(self.qp, &mut attr, IBV_QP_STATE, &mut init) };
        succeeds("ibv_query_qp", errno);
        attr.qp_state
    }

    /// Posts all of it with one doorbell.
    pub(crate) fn post(&self, work: &[Work]) {
        match self.calls {
            Calls::Classic => self.post_classic(work),
            Calls::Extended => self.post_extended(work),
        }
    }

    fn segment(&self, local: usize, words: usize) -> ibv_sge {
        assert!(local + words <= WORDS);
        // SAFETY: the region is alive.
        ibv_sge { addr: self.addr(local), length: 8 * words as u32, lkey: unsafe { (*self.mr).lkey } }
    }

    fn post_classic(&self, work: &[Work]) {
        let mut segments = vec![ibv_sge::default(); work.len()];
        let mut requests = vec![ibv_send_wr::default(); work.len()];
        for (index, work) in work.iter().enumerate() {
            let request = &mut requests[index];
            request.wr_id = work.wr_id;
            request.send_flags = work.flags;
            let atomic = |remote_addr, compare_add, swap, rkey| ibv_wr_remote {
                atomic: ibv_wr_atomic { remote_addr, compare_add, swap, rkey },
            };
            match work.what {
                What::Write { local, words, remote, rkey } => {
                    request.opcode = IBV_WR_RDMA_WRITE;
                    request.wr.rdma = ibv_wr_rdma { remote_addr: remote, rkey };
                    segments[index] = self.segment(local, words);
                }
                What::Read { local, words, remote, rkey } => {
                    request.opcode = IBV_WR_RDMA_READ;
                    request.wr.rdma = ibv_wr_rdma { remote_addr: remote, rkey };
                    segments[index] = self.segment(local, words);
                }
                What::Cas { local, remote, rkey, compare, swap } => {
                    request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                    request.wr = atomic(remote, compare, swap, rkey);
                    segments[index] = self.segment(local, 1);
                }
                What::Faa { local, remote, rkey, add } => {
                    request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                    request.wr = atomic(remote, add, 0, rkey);
                    segments[index] = self.segment(local, 1);
                }
            }
            if segments[index].length > 0 {
                request.sg_list = &raw mut segments[index];
                request.num_sge = 1;
            }
        }
        let first = requests.as_mut_ptr();
        for index in 1..requests.len() {
            requests[index - 1].next = first.wrapping_add(index);
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: the list is linked to its end and outlives the call; local memory is that of this side, which is not
        // freed before the queue pair is destroyed.
        succeeds("ibv_post_send", unsafe { ibv_post_send(self.qp, first, &mut bad) });
    }

    fn post_extended(&self, work: &[Work]) {
        // SAFETY: the queue pair was created with these operations; local memory is that of this side, which is not
        // freed before the queue pair is destroyed.
        unsafe {
            ibv_wr_start(self.qp_ex);
            for work in work {
                self.add_extended(work);
            }
            succeeds("ibv_wr_complete", ibv_wr_complete(self.qp_ex));
        }
    }

    /// Posts nothing: the batch is dropped.
    pub(crate) fn abort_extended(&self, work: &Work) {
        // SAFETY: as in `post_extended`.
        unsafe {
            ibv_wr_start(self.qp_ex);
            self.add_extended(work);
            ibv_wr_abort(self.qp_ex);
        }
    }

    /// # Safety
    /// A batch of the extended queue pair is open.
    unsafe fn add_extended(&self, work: &Work) {
        let qp = self.qp_ex;
        // SAFETY: by the contract of this function, as in `post_extended`; the bound objects are alive.
        unsafe {
            (*qp).wr_id = work.wr_id;
            (*qp).wr_flags = work.flags;
            let (local, words) = match work.what {
                What::Write { local, words, remote, rkey } => {
                    ibv_wr_rdma_write(qp, rkey, remote);
                    (local, words)
                }
                What::Read { local, words, remote, rkey } => {
                    ibv_wr_rdma_read(qp, rkey, remote);
                    (local, words)
                }
                What::Cas { local, remote, rkey, compare, swap } => {
                    ibv_wr_atomic_cmp_swp(qp, rkey, remote, compare, swap);
                    (local, 1)
                }
                What::Faa { local, remote, rkey, add } => {
                    ibv_wr_atomic_fetch_add(qp, rkey, remote, add);
                    (local, 1)
                }
            };
            let segment = self.segment(local, words);
            if work.flags & IBV_SEND_INLINE != 0 {
                ibv_wr_set_inline_data(qp, self.memory[local].as_ptr().cast(), 8 * words);
            } else {
                ibv_wr_set_sge(qp, segment.lkey, segment.addr, segment.length);
            }
        }
    }

    /// The completions that there are.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        match self.calls {
            Calls::Classic => {
                let mut wc = [ibv_wc::default(); 4];
                // SAFETY: the queue is alive, and there is room for that many completions.
                let count = unsafe { ibv_poll_cq(self.cq, wc.len() as i32, wc.as_mut_ptr()) };
                let count = usize::try_from(count).expect("polling succeeds");
                wc[..count]
                    .iter()
                    .map(|wc| Completion { wr_id: wc.wr_id, status: wc.status, opcode: wc.opcode })
                    .collect()
            }
            Calls::Extended => {
                let mut completions = Vec::new();
                let mut attr = ibv_poll_cq_attr::default();
                // SAFETY: the queue is alive and polled by this thread alone; it is read only while the poll stands at
                // a completion.
                unsafe {
                    loop {
                        let errno = ibv_start_poll(self.cq_ex, &mut attr);
                        if errno != 0 {
                            assert_eq!(errno, libc::ENOENT);
                            break;
                        }
                        let (wr_id, status) = ((*self.cq_ex).wr_id, (*self.cq_ex).status);
                        completions.push(Completion { wr_id, status, opcode: ibv_wc_read_opcode(self.cq_ex) });
                        // One at a time: see `ibv_next_poll`.
                        ibv_end_poll(self.cq_ex);
                    }
                }
                completions
            }
        }
    }

    /// Polls until there were that many completions.
    pub(crate) fn wait(&self, count: usize) -> Vec<Completion> {
        let end = Instant::now() + PATIENCE;
        let mut completions = Vec::new();
        while completions.len() < count {
            assert!(Instant::now() < end, "{} of {count} completions: {completions:?}", completions.len());
            completions.extend(self.poll());
        }
        assert_eq!(completions.len(), count, "{completions:?}");
        completions
    }

    /// Posts one operation and waits for its completion.
    pub(crate) fn run(&self, flags: ibv_send_flags, what: What) -> Completion {
        let wr_id = 4711;
        self.post(&[Work { wr_id, flags: flags | IBV_SEND_SIGNALED, what }]);
        let completion = self.wait(1)[0];
        assert_eq!(completion.wr_id, wr_id);
        completion
    }

    /// As `run`, and it must succeed.
    #[track_caller]
    pub(crate) fn succeed(&self, flags: ibv_send_flags, what: What) -> ibv_wc_opcode {
        let completion = self.run(flags, what);
        // SAFETY: the function takes any number.
        let status = text(unsafe { (self.device.verbs.ibv_wc_status_str)(completion.status) });
        assert_eq!(completion.status, IBV_WC_SUCCESS, "{status}");
        completion.opcode
    }
}

fn register(device: &Device, memory: &[AtomicU64], access: ibv_access_flags) -> *mut ibv_mr {
    let (addr, length) = (memory.as_ptr().cast_mut().cast(), size_of_val(memory));
    // SAFETY: the domain is alive, and the memory is valid and may change at any time, as it is atomic; the callers
    // deregister it before it is freed.
    not_null("ibv_reg_mr", unsafe { (device.verbs.ibv_reg_mr)(device.pd, addr, length, access as i32) })
}

impl Drop for Side {
    fn drop(&mut self) {
        let verbs = self.device.verbs;
        // SAFETY: the objects were made with the side, and nothing uses them after this. Destroying the queue pair
        // first ends the work under way, so the device does not touch the memory any more.
        unsafe {
            frees("ibv_destroy_qp", (verbs.ibv_destroy_qp)(self.qp));
            frees("ibv_destroy_cq", (verbs.ibv_destroy_cq)(self.cq));
            frees("ibv_dereg_mr", (verbs.ibv_dereg_mr)(self.mr));
        }
    }
}

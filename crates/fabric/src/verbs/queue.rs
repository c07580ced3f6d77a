//! Completion queues and queue pairs: created, connected by the addresses that two sides exchange, and ended.

use core::sync::atomic::{AtomicU8, Ordering};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farfield_verbs_sys::*;

use super::device::Device;
use super::error::VerbsError;
use super::route::{QueuePairAddress, way};
use crate::error::Code;

/// Work requests of one queue pair that are under way.
pub(super) const DEPTH: usize = 256;
/// Longest puts that are copied into the work request; as much as the device can, if that is less.
pub(super) const INLINE_BYTES_MAX: usize = 256;
/// Reads and atomics under way on one queue pair, if the devices can do as many.
const READS_MAX: u8 = 16;
/// How often the transport tries again. 7 would be for ever on some devices: then a dead peer's operations never end.
const RETRIES: u8 = 6;

/// A queue of completions.
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    raw: *mut ibv_cq,
    /// How many it holds at least.
    pub(super) capacity: usize,
}

// SAFETY: libibverbs may be called from any thread; polling takes the provider's lock.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(device: &Arc<Device>, wished: usize) -> Result<CompletionQueue, VerbsError> {
        let capacity = wished.clamp(1, device.info.completions_max.max(1));
        let none = core::ptr::null_mut();
        // A classic queue: see `poll`.
        // SAFETY: the device is open; no channel and no context are given.
        let raw = unsafe { (device.verbs.ibv_create_cq)(device.context, capacity as i32, none, none.cast(), 0) };
        if raw.is_null() {
            return Err(device.call("ibv_create_cq", last_errno()));
        }
        Ok(CompletionQueue { device: Arc::clone(device), raw, capacity })
    }

    /// Takes completions out; how many there were, or `None` if the queue is broken.
    ///
    /// The classic call takes many at once, and every provider has it. The extended ones would cost two calls through
    /// a pointer for each completion, and report nothing more that matters here; in batches they break on Soft-RoCE
    /// (see [`ibv_next_poll`]).
    #[inline]
    pub(super) fn poll(&self, into: &mut [ibv_wc]) -> Option<usize> {
        usize::try_from(self.poll_raw(into)).ok()
    }

    /// [`CompletionQueue::poll`], with a negative count if the queue is broken.
    #[inline]
    pub(super) fn poll_raw(&self, into: &mut [ibv_wc]) -> i32 {
        // SAFETY: the queue is alive, and there is room for that many.
        unsafe { ibv_poll_cq(self.raw, into.len() as i32, into.as_mut_ptr()) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their completion queue, so none uses it any more.
        unsafe { (self.device.verbs.ibv_destroy_cq)(self.raw) };
    }
}

/// The capabilities of a queue pair.
///
/// ```
/// use farfield_fabric::verbs::QueueInfo;
/// /// Whether a put after a put takes a round trip more.
/// fn waits_for_puts(queue: &QueueInfo) -> bool { !queue.puts_in_order }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Longest puts that are copied into the work request.
    pub inline_bytes_max: usize,
    /// Work requests under way.
    pub depth: usize,
    /// Puts are known to land in order.
    pub puts_in_order: bool,
    /// Answers of gets are known to land in order.
    pub gets_in_order: bool,
    /// Lanes hold back requests that Soft-RoCE would get wrong.
    pub holds_back: bool,
    /// The provider has the extended calls.
    pub is_extended: bool,
}

/// A queue pair of a reliable connection, and the only owner of it: dropping it ends every access by it.
pub(crate) struct QueuePair {
    device: Arc<Device>,
    /// Kept for as long as the queue pair uses it.
    _completions: Arc<CompletionQueue>,
    pub(super) raw: *mut ibv_qp,
    /// Null without the extended calls.
    pub(super) raw_ex: *mut ibv_qp_ex,
    first_packet: u32,
    pub(super) info: QueueInfo,
    /// Both sides do atomics, as far as is known.
    pub(super) has_atomics: bool,
    switch: QueuePairSwitch,
}

// SAFETY: libibverbs may be called from any thread, and the owner posts from one at a time.
unsafe impl Send for QueuePair {}

/// Ends a queue pair that another thread owns, with a reason.
#[derive(Clone)]
pub(crate) struct QueuePairSwitch(Arc<Switch>);

struct Switch {
    device: Arc<Device>,
    /// None once the queue pair is destroyed.
    raw: Mutex<Option<RawPair>>,
    /// The code that its operations end in, 0 while it is not ended; and [`LOOK`].
    verdict: AtomicU8,
}

/// Set in a verdict when memory was given back to which the lane may know the way.
const LOOK: u8 = 0x80;

struct RawPair(*mut ibv_qp);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for RawPair {}

impl QueuePairSwitch {
    /// Ends the queue pair for good: pending and later requests end in `why`, which is one of unreachable, revoked and
    /// fenced. The first reason stays.
    pub(crate) fn end(&self, why: Code) {
        let set = |old: u8| (old & !LOOK == 0).then_some(old | why as u8);
        let _ = self.0.verdict.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set);
        let raw = self.0.lock();
        if let Some(RawPair(raw)) = *raw {
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
            // SAFETY: under the lock the queue pair is alive. A refusal means that it is in this state, or reset.
            unsafe { (self.0.device.verbs.ibv_modify_qp)(raw, &mut attr, IBV_QP_STATE) };
        }
    }

    /// Memory was given back: the lane is to look for changes before its next post.
    pub(crate) fn warn(&self) {
        self.0.verdict.fetch_or(LOOK, Ordering::AcqRel);
    }

    /// Why it was ended, if it was.
    #[inline]
    pub(super) fn verdict(&self) -> Option<Code> {
        match self.0.verdict.load(Ordering::Acquire) & !LOOK {
            0 => None,
            code if code == Code::Fenced as u8 => Some(Code::Fenced),
            code if code == Code::Revoked as u8 => Some(Code::Revoked),
            _ => Some(Code::Unreachable),
        }
    }
}

impl Switch {
    fn lock(&self) -> MutexGuard<'_, Option<RawPair>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const OPERATIONS: ibv_qp_create_send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

impl QueuePair {
    /// A queue pair that posts.
    pub(super) fn new(device: &Arc<Device>, completions: &Arc<CompletionQueue>) -> Result<QueuePair, VerbsError> {
        let depth = DEPTH.min(device.info.work_requests_max.max(1));
        let pair = Self::create(device, completions, depth, INLINE_BYTES_MAX)?;
        pair.initialise(0)?;
        Ok(pair)
    }

    /// A queue pair through which a peer's thread reaches the memory of this node's groups.
    ///
    /// # Errors
    /// The device has no more.
    #[cfg(test)]
    pub(crate) fn target(device: &Arc<Device>) -> Result<QueuePair, VerbsError> {
        QueuePair::target_with(device, &Arc::new(CompletionQueue::new(device, 1)?))
    }

    /// [`QueuePair::target`] with a completion queue that several may share: nothing is ever posted.
    pub(super) fn target_with(
        device: &Arc<Device>,
        completions: &Arc<CompletionQueue>,
    ) -> Result<QueuePair, VerbsError> {
        let pair = Self::create(device, completions, 1, 0)?;
        pair.initialise(pair.full_access())?;
        Ok(pair)
    }

    fn full_access(&self) -> ibv_access_flags {
        let atomic = if self.device.has_atomics() { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomic
    }

    fn create(
        device: &Arc<Device>,
        completions: &Arc<CompletionQueue>,
        depth: usize,
        inline_bytes: usize,
    ) -> Result<QueuePair, VerbsError> {
        let mut inline_bytes = inline_bytes;
        let (raw, raw_ex, inline_bytes_max) = loop {
            match Self::create_raw(device, completions, depth, inline_bytes) {
                Ok(made) => break made,
                // Devices that cannot copy as much refuse.
                Err(errno) if inline_bytes > 0 && matches!(errno, libc::EINVAL | libc::ENOMEM) => inline_bytes /= 2,
                Err(errno) => return Err(device.call("ibv_create_qp (too many connections?)", errno)),
            }
        };
        let in_order = |opcode| match (device.options.in_order, device.verbs.ibv_query_qp_data_in_order) {
            (Some(known), _) => known,
            // Software writes by the processor's stores, which x86 keeps in order, one request after the other.
            _ if device.info.is_software => true,
            // SAFETY: the queue pair is alive.
            (None, Some(query)) => unsafe { query(raw, opcode, 0) == 1 },
            (None, None) => false,
        };
        let info = QueueInfo {
            inline_bytes_max,
            depth,
            puts_in_order: in_order(IBV_WR_RDMA_WRITE),
            gets_in_order: in_order(IBV_WR_RDMA_READ),
            holds_back: device.options.holds_back.unwrap_or(device.info.is_software),
            is_extended: !raw_ex.is_null(),
        };
        let switch =
            Switch { device: Arc::clone(device), raw: Mutex::new(Some(RawPair(raw))), verdict: AtomicU8::new(0) };
        Ok(QueuePair {
            device: Arc::clone(device),
            _completions: Arc::clone(completions),
            raw,
            raw_ex,
            first_packet: rand::random::<u32>() & 0x00ff_ffff,
            info,
            has_atomics: device.has_atomics(),
            switch: QueuePairSwitch(Arc::new(switch)),
        })
    }

    /// A queue pair with the extended calls if the provider has them; and how much it copies. Or the errno value.
    fn create_raw(
        device: &Device,
        completions: &CompletionQueue,
        depth: usize,
        inline_bytes: usize,
    ) -> Result<(*mut ibv_qp, *mut ibv_qp_ex, usize), i32> {
        let cap = ibv_qp_cap {
            max_send_wr: depth as u32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_bytes as u32,
        };
        let (send_cq, recv_cq, qp_type) = (completions.raw, completions.raw, IBV_QPT_RC);
        let comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let pd = device.pd;
        let mut extended = ibv_qp_init_attr_ex {
            send_cq,
            recv_cq,
            cap,
            qp_type,
            comp_mask,
            pd,
            send_ops_flags: OPERATIONS,
            ..Default::default()
        };
        let mut classic = ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type, ..Default::default() };
        // SAFETY: device, domain and completion queue are alive, and the attributes are as the calls ask for.
        unsafe {
            let raw = ibv_create_qp_ex(device.context, &mut extended);
            if !raw.is_null() {
                return Ok((
                    raw,
                    (device.verbs.ibv_qp_to_qp_ex)(raw),
                    extended.cap.max_inline_data.min(INLINE_BYTES_MAX as u32) as usize,
                ));
            }
            let raw = (device.verbs.ibv_create_qp)(pd, &mut classic);
            if raw.is_null() {
                return Err(last_errno());
            }
            Ok((raw, core::ptr::null_mut(), classic.cap.max_inline_data.min(INLINE_BYTES_MAX as u32) as usize))
        }
    }

    /// Its capabilities.
    #[must_use]
    pub(crate) fn info(&self) -> QueueInfo {
        self.info
    }

    /// The switch that ends it from elsewhere.
    #[must_use]
    pub(crate) fn switch(&self) -> QueuePairSwitch {
        self.switch.clone()
    }

    #[inline]
    pub(super) fn verdict(&self) -> Option<Code> {
        self.switch.verdict()
    }

    /// Whether it still works, and no memory was freed since the last check of the lane.
    #[inline]
    pub(super) fn is_untroubled(&self) -> bool {
        self.switch.0.verdict.load(Ordering::Acquire) == 0
    }

    /// The lane looks now.
    pub(super) fn looks(&self) {
        self.switch.0.verdict.fetch_and(!LOOK, Ordering::AcqRel);
    }

    /// The address that the other side needs.
    #[must_use]
    pub(crate) fn address(&self) -> QueuePairAddress {
        QueuePairAddress {
            // SAFETY: the queue pair is alive.
            queue_pair: unsafe { (*self.raw).qp_num },
            first_packet: self.first_packet,
            lid: self.device.port.lid,
            gid: self.device.address.map(|address| address.gid),
            needs_gid: self.device.port.needs_gid,
            mtu_bytes: self.device.port.mtu_bytes as u16,
            reads_in_max: self.device.info.reads_in_max.min(READS_MAX),
            has_atomics: self.device.has_atomics(),
        }
    }

    fn modify(&self, what: &'static str, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), VerbsError> {
        // SAFETY: the queue pair is alive, and the attributes are those that the mask names.
        match unsafe { (self.device.verbs.ibv_modify_qp)(self.raw, &mut attr, mask) } {
            0 => Ok(()),
            errno => Err(self.device.call(what, errno)),
        }
    }

    fn initialise(&self, access: ibv_access_flags) -> Result<(), VerbsError> {
        let port_num = self.device.port.number;
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, qp_access_flags: access, ..Default::default() };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to INIT", attr, mask)
    }

    /// Connects it to the queue pair that the other side has named; once. Both sides have to, before either posts.
    ///
    /// # Errors
    /// The device's error, for example that there is no route to the peer.
    pub(crate) fn connect(&mut self, peer: &QueuePairAddress) -> Result<(), VerbsError> {
        let port = &self.device.port;
        let receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            ah_attr: way(&self.device, peer)?,
            path_mtu: mtu_of(port.mtu_bytes.min(usize::from(peer.mtu_bytes))),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.first_packet & 0x00ff_ffff,
            max_dest_rd_atomic: self.address().reads_in_max,
            min_rnr_timer: 12,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(
            "ibv_modify_qp to RTR (is there a way to the peer's address?)",
            receive,
            mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        )?;
        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.first_packet,
            max_rd_atomic: self.device.info.reads_out_max.min(peer.reads_in_max).clamp(1, READS_MAX),
            timeout: timeout_of(self.device.options.patience),
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", send, mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY)?;
        self.has_atomics &= peer.has_atomics;
        Ok(())
    }

    /// Gives or takes the peer's right to read and write through this target. Once it is taken, the peer's next access
    /// ends its queue pair, with [`Code::Revoked`]. A write that the device is executing may land a moment later: to
    /// know that none does, drop the target.
    ///
    /// # Errors
    /// The device's error.
    pub(crate) fn permit(&self, may: bool) -> Result<(), VerbsError> {
        let qp_access_flags = if may { self.full_access() } else { 0 };
        self.modify(
            "changing the rights of a queue pair",
            ibv_qp_attr { qp_access_flags, ..Default::default() },
            IBV_QP_ACCESS_FLAGS,
        )
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Under the lock, so that no switch uses it afterwards.
        let mut raw = self.switch.0.lock();
        *raw = None;
        // SAFETY: the only owner destroys it, once. When the call returns, the device touches no memory for it.
        unsafe { (self.device.verbs.ibv_destroy_qp)(self.raw) };
    }
}

fn mtu_of(bytes: usize) -> ibv_mtu {
    (IBV_MTU_256..=IBV_MTU_4096).rev().find(|mtu| 128 << mtu <= bytes).unwrap_or(IBV_MTU_256)
}

/// The device's timeout for one try, 4.096 µs times two to some power, such that all tries take about `patience`.
fn timeout_of(patience: Duration) -> u8 {
    let units = patience.as_nanos() / (u128::from(RETRIES) + 1) / 4096;
    (units.max(2).ilog2() as u8).min(31)
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

impl Device {
    /// The abilities of its queue pairs, as a new one reports them.
    ///
    /// ```no_run
    /// # use farfield_fabric::verbs::{Device, VerbsError, VerbsOptions};
    /// # fn main() -> Result<(), VerbsError> {
    /// let queue = Device::open(&VerbsOptions::default())?.survey()?;
    /// println!("{} requests under way, puts of {} bytes inline", queue.depth, queue.inline_bytes_max);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// None can be made.
    pub fn survey(self: &Arc<Device>) -> Result<QueueInfo, VerbsError> {
        let completions = Arc::new(CompletionQueue::new(self, 1)?);
        Ok(QueuePair::new(self, &completions)?.info())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_timeouts_are_rounded_down() {
        assert_eq!([4096, 4095, 1024, 1500, 256, 1].map(mtu_of), [5, 4, 3, 3, 1, 1]);
        let timeouts = [0, 1, 30, 500, 5_000, 1 << 40].map(|ms| timeout_of(Duration::from_millis(ms)));
        assert_eq!(timeouts, [1, 5, 10, 14, 17, 31]);
    }
}

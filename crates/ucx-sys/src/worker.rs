//! Workers: making, progress, sleeping until there are events, and freeing in the right order.

use core::any::Any;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::callback::{Handler, Health, Message, deliver};
use crate::connection::{Closing, Connection};
use crate::context::{Context, one_at_a_time};
use crate::error::{Status, UcxError};
use crate::handle::{Dropped, Drops, Table};
use crate::load::Ucx;
use crate::send::{HEADER_BYTES_MAX, Operation};
use crate::sleep::{Sleeper, Slept, Waker};
use crate::{
    UCP_AM_FLAG_WHOLE_MSG, UCP_AM_HANDLER_PARAM_FIELD_ARG, UCP_AM_HANDLER_PARAM_FIELD_CB,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
    UCP_WORKER_ATTR_FIELD_THREAD_MODE, UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK, UCP_WORKER_PARAM_FIELD_FLAGS,
    UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCS_ERR_BUSY, UCS_THREAD_MODE_SERIALIZED, UCS_THREAD_MODE_SINGLE,
    ucp_am_handler_param_t, ucp_worker, ucp_worker_attr_t, ucp_worker_params_t,
};

/// How long dropping a worker waits for its endpoints to close. Closing by force waits for no peer: it takes a few
/// rounds of progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// A worker: endpoints to other workers, the operations over them, and the handlers of the messages that come.
///
/// One thread at a time uses it, and it may move between threads: it is made for `UCS_THREAD_MODE_SERIALIZED`.
///
/// Only [`progress`](Worker::progress) and [`wait`](Worker::wait) send, receive and close: a thread that does other
/// things delays the peers of its worker, too. No call waits for a peer.
///
/// Messages of one endpoint come in the order in which they were sent, whatever their lengths: all are eager and, with
/// the transport `tcp`, use one connection. UCX does that; it does not promise it.
///
/// Dropping it closes all endpoints by force, waits for that a second at most, and frees worker and buffers. It also
/// waits while another thread makes or frees a context or a worker. Messages that were not handed to the system yet are
/// lost; a [`flush`](Worker::flush) before says when they were.
pub struct Worker {
    pub(crate) ucx: &'static Ucx,
    pub(crate) handle: *mut ucp_worker,
    /// Tells the handles of this worker from those of others.
    pub(crate) number: u64,
    sleeper: Sleeper,
    pub(crate) connections: Table<Connection>,
    pub(crate) closing: Vec<Closing>,
    /// UCX has pointers to them. Its last call for an endpoint is not documented, so they stay as long as the worker.
    pub(crate) healths: Vec<Arc<Health>>,
    /// Those of endpoints that are closed, for new ones when nothing else has them any more.
    pub(crate) spare_healths: Vec<Arc<Health>>,
    /// Some endpoint has failed, and is not yet closed.
    pub(crate) any_failed: Arc<AtomicBool>,
    pub(crate) operations: Table<Operation>,
    /// Operations in flight without a request.
    pub(crate) detached: Vec<usize>,
    /// Buffers of operations that are complete.
    pub(crate) spare: Vec<Operation>,
    /// For the handles.
    pub(crate) dropped: Drops,
    drops: Receiver<Dropped>,
    /// By identifiers of messages. From `Box::into_raw`: UCX has the pointers, too.
    handlers: BTreeMap<u16, *mut Handler>,
    /// Panics of handlers that others have replaced.
    panics: Vec<Box<dyn Any + Send>>,
    /// The last field: it is freed last.
    _context: Context,
}

// SAFETY: UCX lets any thread use a worker of mode SERIALIZED, one at a time, and the worker's owner is the only user
// of it and of all that it points to. Handlers are `Send`, and are called by progress only.
unsafe impl Send for Worker {}

impl Worker {
    /// Makes a worker, which opens the devices. It waits while another thread makes or frees a context or a worker.
    ///
    /// # Errors
    /// UCX cannot make it, or not for this use.
    pub fn new(context: &Context) -> Result<Worker, UcxError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let ucx = context.ucx();
        let waker = Waker::new()?;
        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
            thread_mode: UCS_THREAD_MODE_SERIALIZED,
            flags: UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
            ..ucp_worker_params_t::default()
        };
        let mut handle = core::ptr::null_mut();
        {
            let _one = one_at_a_time();
            // SAFETY: the context is alive, the parameters are valid for the call, and there is room for the handle.
            let status = unsafe { (ucx.ucp.ucp_worker_create)(context.handle(), &params, &mut handle) };
            Status(status).of("ucp_worker_create")?;
        }
        let sleeper = match sleeper(ucx, handle, waker.clone()) {
            Ok(sleeper) => sleeper,
            Err(error) => {
                let _one = one_at_a_time();
                // SAFETY: the worker was made above, and nothing else has it.
                unsafe { (ucx.ucp.ucp_worker_destroy)(handle) };
                return Err(error);
            }
        };
        let (sender, drops) = mpsc::channel();
        // From here on the worker is freed when it is dropped.
        let worker = Worker {
            ucx,
            handle,
            // Relaxed: any order of the numbers will do.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            sleeper,
            connections: Table::new(),
            closing: Vec::new(),
            healths: Vec::new(),
            spare_healths: Vec::new(),
            any_failed: Arc::new(AtomicBool::new(false)),
            operations: Table::new(),
            detached: Vec::new(),
            spare: Vec::new(),
            dropped: Drops { sender, waker },
            drops,
            handlers: BTreeMap::new(),
            panics: Vec::new(),
            _context: context.clone(),
        };
        let mut attr = ucp_worker_attr_t {
            field_mask: UCP_WORKER_ATTR_FIELD_THREAD_MODE | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER,
            ..ucp_worker_attr_t::default()
        };
        // SAFETY: the worker is alive, and the attributes are valid to write.
        Status(unsafe { (ucx.ucp.ucp_worker_query)(handle, &mut attr) }).of("ucp_worker_query")?;
        if attr.thread_mode == UCS_THREAD_MODE_SINGLE {
            return Err(UcxError::NoThreads);
        }
        if attr.max_am_header < HEADER_BYTES_MAX {
            return Err(UcxError::TooLong { part: "header", bytes: HEADER_BYTES_MAX, limit: attr.max_am_header });
        }
        Ok(worker)
    }

    /// Calls `call` for each message with this identifier from now on, instead of an earlier handler. Messages without
    /// a handler are lost.
    ///
    /// Handlers run within progress, so they are to be short, and can use no worker: an answer is sent after progress.
    /// A panic of a handler continues from progress, also if another handler has taken its place. Messages for a
    /// handler that has panicked are lost until then.
    ///
    /// # Errors
    /// UCX cannot set it.
    pub fn handle(&mut self, id: u16, call: impl FnMut(Message<'_>) + Send + 'static) -> Result<(), UcxError> {
        let handler = Box::into_raw(Box::new(Handler::new(Box::new(call))));
        let param = ucp_am_handler_param_t {
            field_mask: UCP_AM_HANDLER_PARAM_FIELD_ID
                | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | UCP_AM_HANDLER_PARAM_FIELD_CB
                | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            id: id.into(),
            flags: UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(deliver),
            arg: handler.cast::<c_void>(),
        };
        // SAFETY: the worker is alive, and the parameters are valid for the call. The handler lives as long as UCX has
        // its pointer: until another one takes its place here, or the worker is destroyed.
        let status = unsafe { (self.ucx.ucp.ucp_worker_set_am_recv_handler)(self.handle, &param) };
        let unused = match Status(status).of("ucp_worker_set_am_recv_handler") {
            Ok(()) => self.handlers.insert(id, handler),
            Err(error) => {
                free_handler(handler);
                return Err(error);
            }
        };
        if let Some(unused) = unused {
            // SAFETY: the handler is alive until it is freed below, and not called now.
            self.panics.extend(unsafe { (*unused).panic.take() });
            free_handler(unused);
        }
        Ok(())
    }

    /// Sends, receives, calls handlers and closes endpoints that were dropped or have failed, as far as that is
    /// possible now. Whether there was anything to do; then there may be more.
    pub fn progress(&mut self) -> bool {
        // SAFETY: the worker is alive. Handlers and healths, which UCX has pointers to, live as long as it does, and
        // this thread uses no handler during the call.
        let did = unsafe { (self.ucx.ucp.ucp_worker_progress)(self.handle) };
        let closed = self.tidy();
        if let Some(panic) = self.panics.pop() {
            resume_unwind(panic);
        }
        for &handler in self.handlers.values() {
            // SAFETY: the handler is alive, and UCX calls it within progress only.
            if let Some(panic) = unsafe { (*handler).panic.take() } {
                resume_unwind(panic);
            }
        }
        did != 0 || closed
    }

    /// Closes endpoints that have failed or were dropped, and frees operations that are complete. Whether it has closed
    /// an endpoint: UCX then has something for progress that makes no event.
    fn tidy(&mut self) -> bool {
        let mut closed = false;
        while let Ok(dropped) = self.drops.try_recv() {
            match dropped {
                Dropped::Endpoint(index) => closed |= self.remove_connection(index),
                Dropped::Request(index) => self.detached.push(index),
            }
        }
        self.free_complete();
        // Relaxed: a mark that is not seen yet is seen by a later call. Marks are few, so each load is of an unchanged
        // line. AcqRel: the statuses of the marks that are taken away here are seen below, and a later failure sets the
        // mark again.
        if self.any_failed.load(Ordering::Relaxed) && self.any_failed.swap(false, Ordering::AcqRel) {
            closed |= self.close_failed();
        }
        let (ucx, spare) = (self.ucx, &mut self.spare_healths);
        for closed in self.closing.extract_if(.., |closing| closing.is_complete(ucx)) {
            spare.push(closed.health);
        }
        closed
    }

    /// Makes the next event end a [sleep](Sleeper::sleep), and be reported by the event descriptor. `false`: there is
    /// something for progress already.
    ///
    /// # Errors
    /// UCX cannot do it.
    pub fn arm(&mut self) -> Result<bool, UcxError> {
        // From here on a dropped handle wakes. One that was dropped before is found by `tidy`.
        self.dropped.waker.lie_down();
        if self.tidy() {
            return Ok(false);
        }
        // SAFETY: the worker is alive.
        match unsafe { (self.ucx.ucp.ucp_worker_arm)(self.handle) } {
            UCS_ERR_BUSY => Ok(false),
            status => Status(status).of("ucp_worker_arm").map(|()| true),
        }
    }

    /// Makes progress; if there is nothing to do, sleeps until there is, or for the time given, and makes progress
    /// again. Whether there was anything to do, or a [`Waker`] or a dropped handle has woken it. It sleeps for an hour
    /// at most.
    ///
    /// A lock around the worker is held for all that time. To sleep without it: [`sleeper`](Worker::sleeper).
    ///
    /// # Errors
    /// UCX or the system cannot wait.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, UcxError> {
        let end = Instant::now() + timeout.min(Duration::from_secs(3600));
        loop {
            if self.progress() {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if !self.arm()? {
                continue;
            }
            match self.sleeper.sleep(left)? {
                Slept::Event => {}
                Slept::Woken => {
                    self.progress();
                    return Ok(true);
                }
                Slept::TimedOut => return Ok(self.progress()),
            }
        }
    }

    /// Sleeps for this worker without borrowing it.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper {
        self.sleeper.clone()
    }

    /// Wakes the thread that sleeps for this worker.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.dropped.waker.clone()
    }

    /// The address for [`connect`](Worker::connect) of other workers.
    ///
    /// # Errors
    /// UCX cannot give it.
    pub fn address(&self) -> Result<Address, UcxError> {
        let (mut address, mut length) = (core::ptr::null_mut(), 0);
        // SAFETY: the worker is alive, and there is room for pointer and length. The address has that many bytes, which
        // are copied before it is freed, once.
        unsafe {
            let status = (self.ucx.ucp.ucp_worker_get_address)(self.handle, &mut address, &mut length);
            Status(status).of("ucp_worker_get_address")?;
            let bytes = core::slice::from_raw_parts(address.cast::<u8>(), length).into();
            (self.ucx.ucp.ucp_worker_release_address)(self.handle, address);
            Ok(Address(bytes))
        }
    }

    /// How many operations are in flight, with or without a request, or complete with a request.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// How many endpoints there are, and how many of these UCX is closing after they have failed or were dropped. UCX
    /// often reports one as closed before it has closed the connection.
    #[must_use]
    pub fn endpoints(&self) -> (usize, usize) {
        (self.connections.len() + self.closing.len(), self.closing.len())
    }
}

/// The event descriptor: readable when an armed worker has events. It is only to be waited for. A [`Waker`] and dropped
/// handles do not make it readable: they end a [sleep](Sleeper::sleep).
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sleeper.events()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        for &handler in self.handlers.values() {
            // SAFETY: the handler is alive, and not called now.
            unsafe { (*handler).is_closed = true };
        }
        // A thread that sleeps for this worker would get no event any more.
        self.dropped.waker.wake();
        self.close_all();
        let end = Instant::now() + PATIENCE;
        loop {
            // SAFETY: as in `progress`. Handlers return at once.
            unsafe { (self.ucx.ucp.ucp_worker_progress)(self.handle) };
            self.tidy();
            // An operation that is complete and has its request still is none to wait for.
            if (self.closing.is_empty() && self.all_complete()) || Instant::now() > end {
                break;
            }
            thread::sleep(Duration::from_micros(20));
        }
        {
            let _one = one_at_a_time();
            // SAFETY: the worker is destroyed once, by its only user, and not used afterwards. Endpoints that are not
            // closed and requests that are not freed go with it. Buffers, healths and handlers are freed below, when
            // UCX has no pointer to them any more.
            unsafe { (self.ucx.ucp.ucp_worker_destroy)(self.handle) };
        }
        core::mem::take(&mut self.handlers).into_values().for_each(free_handler);
    }
}

/// Sleeps for a worker of UCX.
fn sleeper(ucx: &Ucx, handle: *mut ucp_worker, waker: Waker) -> Result<Sleeper, UcxError> {
    let mut events = -1;
    // SAFETY: the worker is alive, and there is room for the descriptor.
    let status = unsafe { (ucx.ucp.ucp_worker_get_efd)(handle, &mut events) };
    Status(status).of("ucp_worker_get_efd")?;
    // SAFETY: the descriptor is open as long as the worker is alive, and duplicated here.
    Sleeper::new(unsafe { BorrowedFd::borrow_raw(events) }, waker)
}

/// Frees a handler that UCX has no pointer to.
fn free_handler(handler: *mut Handler) {
    // SAFETY: it is from `Box::into_raw`, in `handle`, and each caller forgets it.
    drop(unsafe { Box::from_raw(handler) });
}

/// The longest address of a worker. With TCP one takes about a hundred bytes for each interface.
pub const ADDRESS_BYTES_MAX: usize = 32 << 10;

/// The address of a worker, for peers.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(pub(crate) Box<[u8]>);

impl Address {
    /// The bytes to send to peers.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The address that a peer sent.
    ///
    /// # Safety
    /// The bytes are all those of [`as_bytes`](Address::as_bytes) of an address of a worker: UCX reads an address
    /// without knowing its length, and believes it. So they come from a peer that is authenticated, and this version of
    /// UCX reads the addresses of the peer's version.
    ///
    /// # Errors
    /// There are no bytes, or more than [`ADDRESS_BYTES_MAX`].
    pub unsafe fn from_bytes(bytes: &[u8]) -> Result<Address, UcxError> {
        if bytes.is_empty() || bytes.len() > ADDRESS_BYTES_MAX {
            return Err(UcxError::NoAddress { bytes: bytes.len() });
        }
        Ok(Address(bytes.into()))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_can_be_no_address_are_refused() {
        // SAFETY: no worker connects to it.
        let address = |bytes| unsafe { Address::from_bytes(&vec![1; bytes]) }.map(|address| address.as_bytes().len());
        for bytes in [0, ADDRESS_BYTES_MAX + 1] {
            assert_eq!(address(bytes), Err(UcxError::NoAddress { bytes }));
        }
        for bytes in [1, ADDRESS_BYTES_MAX] {
            assert_eq!(address(bytes), Ok(bytes));
        }
    }
}

//! UCX as a carrier of operations: workers that exchange active messages.

use std::sync::{Arc, Mutex, PoisonError};

use farfield_ucx_sys::{self as sys, Context, ContextOptions, UcxError, Worker};

use super::lane::UcxLane;
use super::options::UcxOptions;
use super::port::{Address, Pair, Port, Switch};
use super::responder::{self, Responder, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::carrier::{CarriedLane, Carrier, Configured};
use crate::hosts::connections::OwnNode;
use crate::hosts::keeper::{Keeper, Opened, WordMemory};
use crate::hosts::layout::PeerMemory;
use crate::hosts::pages::AddressRange;
use crate::hosts::sleepers::Sleepers;
use crate::local::Thread;
use crate::ptr::{GroupKey, NodeId};
use crate::sys::pages::HugePages;

/// UCX of a node.
pub struct Ucx {
    context: Context,
    options: UcxOptions,
    pages: Arc<Mapped>,
    responder: Arc<Responder>,
    /// Until its thread starts.
    worker: Mutex<Option<Worker>>,
    thread: Mutex<Option<Thread>>,
}

impl Configured for Ucx {
    type Options = UcxOptions;
}

impl Carrier for Ucx {
    const NAME: &'static str = "ucx";
    const TECHNIQUE: &'static str = "UCX";
    const PUTS_WAKE: bool = true;
    /// For about as long as an answer takes.
    const YIELDS_CROWDED: u32 = 60;
    const TARGETS_LOOK: bool = true;
    const NEEDS_SECRET: bool = true;

    type Error = UcxError;
    type Keeper = Mapped;
    type Lane = UcxLane;
    type Port = Port;
    type Pair = Pair;
    type Switch = Switch;
    type Target = Target;
    type Address = Address;

    fn open(options: &UcxOptions) -> Result<Ucx, UcxError> {
        let UcxOptions { transports, devices, .. } = options.clone();
        let context = Context::new(&ContextOptions { transports, devices, ..ContextOptions::default() })?;
        let (responder, worker) = responder::open(&context)?;
        let pages = Arc::new(Mapped(options.huge_pages));
        let (worker, thread, options) = (Mutex::new(Some(worker)), Mutex::default(), options.clone());
        Ok(Ucx { context, options, pages, responder, worker, thread })
    }

    /// UCX's version is a part of it: one reads the addresses of its own version only.
    fn layout(&self) -> String {
        let version = sys::Ucx::get().map(|ucx| ucx.version().to_string()).unwrap_or_default();
        format!("farfield-ucx-2/{}/{version}", env!("CARGO_PKG_VERSION"))
    }

    fn keeper(&self) -> &Arc<Mapped> {
        &self.pages
    }

    fn serve(&self, me: NodeId, memory: &Arc<PeerMemory>, sleepers: &Arc<Sleepers>) -> Result<()> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            let thread = self.responder.start(worker, me, memory, sleepers)?;
            *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        }
        Ok(())
    }

    fn settle(&self) {
        self.responder.settle();
    }

    fn has_failed(&self) -> bool {
        self.responder.has_failed()
    }

    fn refused(&self) -> Vec<(NodeId, &'static str)> {
        self.responder.refused()
    }

    fn open_lane(&self) -> Result<UcxLane> {
        Ok(UcxLane::new(Port::new(&self.context), &self.responder, self.options.patience))
    }

    fn target(&self, class: GroupKey, from: NodeId, address: &Address) -> Result<(Target, Address), UcxError> {
        address.worker()?;
        let target = self.responder.target(class, from, address);
        let Responder { id, address, .. } = &*self.responder;
        let address = Address { worker: address.clone(), id: *id, token: target.token() };
        Ok((target, address))
    }

    fn own_pair(&self, _port: &Port, _class: GroupKey) -> Result<(Pair, Target), UcxError> {
        Ok((Pair::own(), self.responder.own_target()))
    }
}

impl Drop for Ucx {
    /// The thread works on the memory of the node's groups, which lives longer.
    fn drop(&mut self) {
        self.responder.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = thread.map(Thread::join) {
            tracing::error!("the thread that answers other nodes has panicked: {panic}");
        }
    }
}

impl CarriedLane<Ucx> for UcxLane {
    fn port(&self) -> Arc<Port> {
        Arc::clone(&self.port)
    }

    /// Its first operations find connections.
    fn opened(&mut self) {
        self.connect();
    }

    fn set_own_node(&mut self, own: OwnNode<Ucx>) {
        self.own_node = Some(own);
    }

    fn keep(&mut self, kept: Box<dyn Send>) {
        self.kept.push(kept);
    }
}

impl From<UcxError> for Error {
    fn from(error: UcxError) -> Error {
        ErrorKind::System { what: "UCX", why: error.to_string() }.into()
    }
}

/// Ordinary memory, which processors work on.
pub(crate) struct Mapped(HugePages);

impl Keeper for Mapped {
    type Part = ();
    type Words = NoWords;

    unsafe fn open(self: &Arc<Mapped>, range: &AddressRange, first: usize, bytes: usize) -> Result<Opened<()>, String> {
        // SAFETY: by the contract of this function.
        unsafe { range.map(self.0.kinds(), first, bytes, |_| Ok(())) }?;
        Ok(Opened { part: (), local_key: 0, remote_key: 0 })
    }

    fn take_words(self: &Arc<Mapped>, _least: usize, _most: usize) -> Result<NoWords, String> {
        Err("there is no device".into())
    }
}

/// Memory of a device, of which there is none.
pub(crate) enum NoWords {}

impl WordMemory for NoWords {
    fn bytes(&self) -> usize {
        match *self {}
    }

    fn remote_key(&self) -> u32 {
        match *self {}
    }

    fn write(&self, _: u64, _: &[u64]) -> Result<(), String> {
        match *self {}
    }
}

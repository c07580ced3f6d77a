//! The side of a lane for other threads: its worker, its pairs, and their ends.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farfield_ucx_sys::{self as sys, Context, UcxError, Worker};
use serde::{Deserialize, Serialize};

use super::carrier::Ucx;
use super::wire::{Header, REPLIES, words_of};
use crate::error::Code;
use crate::hosts::carrier::{self, LanePort};
use crate::hosts::layout::PeerMemory;
use crate::ptr::{GroupKey, NodeId};

/// One end of a pair, as the other side must know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    /// The address of the worker, as UCX has it.
    pub(super) worker: Vec<u8>,
    /// By which the messages of that side are known.
    pub(super) id: u64,
    /// The number of the target.
    pub(super) token: u64,
}

impl Address {
    /// The address of the worker, for UCX.
    ///
    /// # Errors
    /// No address has so many bytes.
    pub(super) fn worker(&self) -> Result<sys::Address, UcxError> {
        // SAFETY: it is an address of a node of this session, which has proved that it knows the secret
        // (`Carrier::NEEDS_SECRET`). The control plane has brought it whole, and nodes of a session use the same
        // version of UCX (`Carrier::layout`).
        unsafe { sys::Address::from_bytes(&self.worker) }
    }
}

/// The side of a lane for other threads.
pub(crate) struct Port {
    context: Context,
    id: u64,
    /// Made with the first pair to another node.
    worker: Mutex<Option<Carried>>,
    arrivals: Mutex<Vec<Arrival>>,
    count: AtomicU64,
}

/// A lane's worker, and the messages that it has received.
pub(super) struct Carried {
    pub(super) worker: Worker,
    address: Vec<u8>,
    inbox: Arc<Mutex<Vec<Received>>>,
}

/// A message that has come: its header and its words.
type Received = (Header, Vec<u64>);

impl Carried {
    fn new(context: &Context) -> Result<Carried, UcxError> {
        let mut worker = Worker::new(context)?;
        let inbox = Arc::<Mutex<Vec<Received>>>::default();
        let handler = Arc::clone(&inbox);
        worker.handle(REPLIES, move |message| {
            if let (Some(header), Some(words)) = (Header::decode(message.header), words_of(message.data)) {
                handler.lock().unwrap_or_else(PoisonError::into_inner).push((header, words));
            }
        })?;
        let address = worker.address()?.as_bytes().to_vec();
        Ok(Carried { worker, address, inbox })
    }

    /// The messages that have come.
    pub(super) fn received(&self) -> Vec<Received> {
        core::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A pair that the lane has not taken yet.
pub(super) struct Arrival {
    pub(super) peer: NodeId,
    pub(super) class: GroupKey,
    pub(super) pair: Pair,
    pub(super) memory: Arc<PeerMemory>,
}

impl Port {
    pub(super) fn new(context: &Context) -> Arc<Port> {
        Arc::new(Port {
            context: context.clone(),
            id: rand::random(),
            worker: Mutex::new(None),
            arrivals: Mutex::default(),
            count: AtomicU64::new(0),
        })
    }

    /// By which the lane's messages are known.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn worker(&self) -> MutexGuard<'_, Option<Carried>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many pairs have arrived.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        core::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LanePort<Ucx> for Port {
    fn new_pair(&self) -> Result<Pair, UcxError> {
        let mut worker = self.worker();
        let carried = match &mut *worker {
            Some(carried) => carried,
            none => none.insert(Carried::new(&self.context)?),
        };
        let address = Address { worker: carried.address.clone(), id: self.id, token: 0 };
        Ok(Pair { address, target: None, switch: Switch::default() })
    }

    fn add(&self, peer: NodeId, key: GroupKey, pair: Pair, memory: Arc<PeerMemory>) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.push(Arrival { peer, class: key.class(), pair, memory });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Targets look whether the memory is there: what they have not seen has no effect.
    fn under_way(&self) -> Option<u64> {
        None
    }

    fn has_ended(&self, _posted: u64) -> bool {
        true
    }
}

/// A way of a lane to a class of a node's groups.
pub(crate) struct Pair {
    address: Address,
    /// None for the node itself, and while it is not connected.
    pub(super) target: Option<Address>,
    pub(super) switch: Switch,
}

impl Pair {
    /// To the own node.
    pub(super) fn own() -> Pair {
        Pair { address: Address { worker: Vec::new(), id: 0, token: 0 }, target: None, switch: Switch::default() }
    }
}

impl carrier::Pair<Ucx> for Pair {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn connect(&mut self, target: &Address) -> Result<(), UcxError> {
        target.worker()?;
        self.target = Some(target.clone());
        Ok(())
    }

    fn switch(&self) -> Switch {
        self.switch.clone()
    }
}

/// Ends a pair.
#[derive(Clone, Default)]
pub(crate) struct Switch(Arc<AtomicU8>);

impl Switch {
    /// # Errors
    /// The pair was ended, with this code.
    pub(super) fn check(&self) -> Result<(), Code> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            code if code == Code::Fenced as u8 => Err(Code::Fenced),
            code if code == Code::Revoked as u8 => Err(Code::Revoked),
            _ => Err(Code::Unreachable),
        }
    }
}

impl carrier::Switch for Switch {
    fn end(&self, why: Code) {
        // The first reason stays.
        let _ = self.0.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The target looks.
    fn warn(&self) {}
}

#[cfg(test)]
mod tests {
    use super::carrier::Pair as _;
    use super::*;

    #[test]
    fn a_pair_connects_to_nothing_but_an_address() {
        let mut pair = Pair::own();
        for bytes in [0, sys::ADDRESS_BYTES_MAX + 1] {
            let error = pair.connect(&Address { worker: vec![0; bytes], id: 1, token: 2 }).unwrap_err();
            assert!(matches!(error, UcxError::NoAddress { .. }) && pair.target.is_none(), "{error}");
        }
    }
}

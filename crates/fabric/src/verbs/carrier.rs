//! RDMA as a carrier of operations: queue pairs of a device.

use std::sync::Arc;

use super::device::Device;
use super::error::VerbsError;
use super::lane::{LanePort, VerbsLane};
use super::options::VerbsOptions;
use super::queue::{CompletionQueue, QueuePair, QueuePairSwitch};
use super::route::QueuePairAddress;
use super::store::BufferStore;
use crate::error::{Code, Result};
use crate::hosts::carrier::{self, CarriedLane, Carrier, Configured, Pair, Switch, Target};
use crate::hosts::connections::OwnNode;
use crate::hosts::layout::PeerMemory;
use crate::hosts::sleepers::Sleepers;
use crate::ptr::{GroupKey, NodeId};

/// A device, and what all lanes of a node share.
pub struct Rdma {
    device: Arc<Device>,
    store: Arc<BufferStore>,
    /// Nothing is ever in it.
    target_completions: Arc<CompletionQueue>,
}

impl Rdma {
    /// # Errors
    /// The device has no more completion queues.
    pub(super) fn on(device: &Arc<Device>) -> Result<Rdma, VerbsError> {
        let target_completions = Arc::new(CompletionQueue::new(device, 1)?);
        Ok(Rdma { device: Arc::clone(device), store: BufferStore::new(device), target_completions })
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn connected_target(&self, address: &QueuePairAddress) -> Result<QueuePair, VerbsError> {
        let mut target = QueuePair::target_with(&self.device, &self.target_completions)?;
        target.connect(address)?;
        Ok(target)
    }
}

impl Configured for Rdma {
    type Options = VerbsOptions;
}

impl Carrier for Rdma {
    const NAME: &'static str = "verbs";
    const TECHNIQUE: &'static str = "RDMA";
    /// A card writes past the processor.
    const PUTS_WAKE: bool = false;
    /// The card works alone, and each look keeps another thread from working.
    const YIELDS_CROWDED: u32 = 10;
    const TARGETS_LOOK: bool = false;
    const NEEDS_SECRET: bool = false;

    type Error = VerbsError;
    type Keeper = Device;
    type Lane = VerbsLane;
    type Port = LanePort;
    type Pair = QueuePair;
    type Switch = QueuePairSwitch;
    type Target = QueuePair;
    type Address = QueuePairAddress;

    fn open(options: &VerbsOptions) -> Result<Rdma, VerbsError> {
        Rdma::on(&Device::open(options)?)
    }

    fn layout(&self) -> String {
        concat!("farfield-verbs-2/", env!("CARGO_PKG_VERSION")).into()
    }

    fn keeper(&self) -> &Arc<Device> {
        &self.device
    }

    /// The device does operations of others, as soon as there is a target.
    fn serve(&self, _me: NodeId, _memory: &Arc<PeerMemory>, _sleepers: &Arc<Sleepers>) -> Result<()> {
        Ok(())
    }

    /// Targets do not look: the lanes do, see `connections/freeing.rs`.
    fn settle(&self) {}

    fn has_failed(&self) -> bool {
        self.device.has_failed()
    }

    fn open_lane(&self) -> Result<VerbsLane> {
        VerbsLane::open(&self.store)
    }

    fn target(
        &self,
        _class: GroupKey,
        _from: NodeId,
        address: &QueuePairAddress,
    ) -> Result<(QueuePair, QueuePairAddress), VerbsError> {
        let target = self.connected_target(address)?;
        let address = target.address();
        Ok((target, address))
    }

    fn own_pair(&self, port: &LanePort, _class: GroupKey) -> Result<(QueuePair, QueuePair), VerbsError> {
        let mut pair = port.new_pair()?;
        let target = self.connected_target(&pair.address())?;
        pair.connect(&target.address())?;
        Ok((pair, target))
    }
}

impl CarriedLane<Rdma> for VerbsLane {
    fn port(&self) -> Arc<LanePort> {
        VerbsLane::port(self)
    }

    fn set_own_node(&mut self, own: OwnNode<Rdma>) {
        VerbsLane::set_own_node(self, own);
    }

    fn keep(&mut self, kept: Box<dyn Send>) {
        VerbsLane::keep(self, kept);
    }
}

impl carrier::LanePort<Rdma> for LanePort {
    fn new_pair(&self) -> Result<QueuePair, VerbsError> {
        LanePort::new_pair(self)
    }

    fn add(&self, peer: NodeId, key: GroupKey, pair: QueuePair, memory: Arc<PeerMemory>) {
        LanePort::add(self, peer, key, pair, memory);
    }

    fn under_way(&self) -> Option<u64> {
        LanePort::under_way(self)
    }

    fn has_ended(&self, posted: u64) -> bool {
        LanePort::has_ended(self, posted)
    }
}

impl Pair<Rdma> for QueuePair {
    fn address(&self) -> QueuePairAddress {
        QueuePair::address(self)
    }

    fn connect(&mut self, target: &QueuePairAddress) -> Result<(), VerbsError> {
        QueuePair::connect(self, target)
    }

    fn switch(&self) -> QueuePairSwitch {
        QueuePair::switch(self)
    }
}

impl Switch for QueuePairSwitch {
    fn end(&self, why: Code) {
        QueuePairSwitch::end(self, why);
    }

    fn warn(&self) {
        QueuePairSwitch::warn(self);
    }
}

impl Target for QueuePair {
    fn refuse(&self) {
        let _ = self.permit(false);
    }
}

//! A lane's way to its own node: opened by its first operation there, or by the first after its right was given again.

use super::{Code, VerbsLane, WorkRequest};
use crate::hosts::connections::OwnNode;
use crate::ptr::NodeId;
use crate::verbs::carrier::Rdma;

impl VerbsLane {
    /// What opens the way, and closes the lane.
    pub(in crate::verbs) fn set_own_node(&mut self, own: OwnNode<Rdma>) {
        self.own_node = Some(own);
    }

    /// [`VerbsLane::place`] of a request that will be posted: the first one to the own node opens the way there.
    #[inline]
    pub(super) fn place_to_post(&mut self, request: &WorkRequest) -> Result<(usize, u64, u32), Code> {
        match self.place(request) {
            Err(code) => self.open_own_node(request, code),
            placed => placed,
        }
    }

    #[cold]
    fn open_own_node(&mut self, request: &WorkRequest, code: Code) -> Result<(usize, u64, u32), Code> {
        let Some(own) = self.may_open(request, code)? else { return Err(code) };
        let class = request.remote.key().class();
        // One that ended when the right was taken, and it was given again: its requests are over.
        let ended = self.peers.get(own.index()).and_then(|peer| peer.pair(class));
        if let Some(pair_at) = ended {
            self.destroy(pair_at);
        }
        self.own_node.as_ref().ok_or(code)?.open(class)?;
        self.take_arrivals();
        self.place(request)
    }

    /// The own node, if a request to it that was refused with a code would open the way there; none if it would not.
    ///
    /// # Errors
    /// Another mistake of the request.
    pub(super) fn may_open(&self, request: &WorkRequest, code: Code) -> Result<Option<NodeId>, Code> {
        let Some(own) = &self.own_node else { return Ok(None) };
        let opens = own.may_open(request, code, self.port.device.has_atomics())?;
        Ok(opens.then(|| own.id()))
    }
}

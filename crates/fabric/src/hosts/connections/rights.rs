//! Rights of peers to groups of this node: taking one, giving it again, and the end of all rights of a node.
//!
//! *Giving a right again* needs the peer: each of its lanes needs a queue pair, and asks for one when it receives
//! `Permit`. It answers `Reached` when all of its requests have been answered. So later posts of an endpoint of the
//! peer use the new ones: the lane had them before the answer was sent, and a lane checks before it posts. An endpoint
//! that is just being opened asks for its queue pairs in the same way, and its opening waits for them.

use core::sync::atomic::Ordering;

use super::{Board, Connections, DEAD, LOST};
use crate::error::{Code, ErrorKind, Result};
use crate::hosts::carrier::{Carrier, Switch, Target};
use crate::hosts::message::Message;
use crate::ptr::{GroupKey, NodeId};

impl<C: Carrier> Connections<C> {
    /// Takes a peer's right to a group. When it returns, no write of the peer to it can land.
    pub(in crate::hosts) fn revoke(&self, peer: NodeId, key: GroupKey) {
        let mut board = self.lock();
        board.taken.insert((peer, key.0));
        board.awaited.remove(&(peer, key.0));
        board.short.remove(&(peer, key.0));
        let of = board.peers.get_mut(&peer);
        let targets = of.map(|of| of.targets.extract_if(.., |(_, class), _| *class == key.0).collect::<Vec<_>>());
        // Refusing first, so that requests that the peer posts meanwhile end by that, and not by a timeout.
        for (_, target) in targets.iter().flatten() {
            target.refuse();
        }
        if peer == self.me {
            // Before its targets are destroyed, for the same reason.
            self.lose_right(&mut board, peer, key.0);
        }
        drop(targets);
        if peer != self.me {
            self.tell(&mut board, peer, &Message::Revoke { key: key.0 });
        }
        self.changed.notify_all();
    }

    /// Gives it again, without a wait.
    pub(in crate::hosts) fn start_permit(&self, peer: NodeId, key: GroupKey) -> Result<()> {
        let mut board = self.lock();
        self.check_here(peer)?;
        let was_taken = board.taken.remove(&(peer, key.0));
        let was_short = board.short.remove(&(peer, key.0));
        if peer == self.me {
            self.own(&mut board).memory.revoke(key, false); // its lanes connect when they need it
        } else if (was_taken || was_short) && board.peers.get(&peer).is_some_and(|peer| peer.is_linked) {
            self.tell(&mut board, peer, &Message::Permit { key: key.0 });
            let said = board.peers.get(&peer).map_or(0, |peer| peer.said);
            board.awaited.insert((peer, key.0), said);
        }
        // A peer that is not linked yet finds it when it is: it counts this node as up when all of its lanes are
        // connected.
        Ok(())
    }

    /// Gives it back, and waits until the peer can use it.
    pub(in crate::hosts) fn permit(&self, peer: NodeId, key: GroupKey) -> Result<()> {
        if self.is_service() {
            return Err(
                ErrorKind::OnServiceThread { what: "permit", instead: "start_permit, then is_permitted" }.into()
            );
        }
        self.start_permit(peer, key)?;
        let is_taken = |board: &Board<C>| board.taken.contains(&(peer, key.0));
        let is_open = |board: &Board<C>| !is_taken(board) && matches!(self.right(board, peer, key), Ok(false));
        let board = self.wait(self.lock(), is_open);
        if self.right(&board, peer, key)? {
            Ok(())
        } else if is_taken(&board) {
            // Another thread has taken it again.
            Err(ErrorKind::Revoked { node: self.me, key }.into())
        } else {
            Err(ErrorKind::Unreachable { node: peer }.into())
        }
    }

    /// Whether a peer can use its right to a group.
    pub(in crate::hosts) fn is_permitted(&self, peer: NodeId, key: GroupKey) -> Result<bool> {
        self.right(&self.lock(), peer, key)
    }

    fn right(&self, board: &Board<C>, peer: NodeId, key: GroupKey) -> Result<bool> {
        self.check_here(peer)?;
        let of = (peer, key.class().0);
        if board.taken.contains(&of) {
            return Ok(false);
        }
        if board.short.contains(&of) {
            return Err(ErrorKind::NoQueuePair { node: peer }.into());
        }
        let is_awaited = board.awaited.contains_key(&of);
        if is_awaited && board.peers.get(&peer).is_some_and(|peer| peer.is_suspected) {
            return Err(ErrorKind::Unreachable { node: peer }.into());
        }
        Ok(!is_awaited)
    }

    /// The error of a dead or departed node, or of a lost connection.
    fn check_here(&self, node: NodeId) -> Result<()> {
        match (self.state(node), self.peer_state(node)) {
            (LOST, _) => Err(ErrorKind::Unreachable { node }.into()),
            (_, state) => state.check(node),
        }
    }

    /// The lanes of this node have no right to a group of a node's.
    pub(super) fn lose_right(&self, board: &mut Board<C>, node: NodeId, class: u8) {
        if let Some(peer) = board.peers.get_mut(&node) {
            peer.memory.revoke(GroupKey(class), true);
        }
        board.asks.retain(|_, ask| (ask.node, ask.class) != (node, class));
        for lane in board.lanes.values_mut() {
            if let Some(pair) = lane.pairs.remove(&(node, class)) {
                pair.end(Code::Revoked);
            }
        }
    }

    /// Shuts a node out for good. When it returns, nothing of it can land here, and this node's operations towards it
    /// end.
    pub(in crate::hosts) fn evict(&self, node: NodeId) {
        self.set_state(node, DEAD);
        self.known.fetch_max(node.index() + 1, Ordering::Relaxed);
        let mut board = self.lock();
        self.part(&mut board, node);
        if let Some(peer) = board.peers.remove(&node) {
            drop(peer); // and its targets: nothing lands by them any more
        }
        drop(board);
        self.control.hang_up(node);
    }

    /// This node's operations towards a node end, and nothing is expected of it any more.
    pub(super) fn part(&self, board: &mut Board<C>, node: NodeId) {
        if let Some(peer) = board.peers.get_mut(&node) {
            peer.is_linked = false;
            peer.owed.clear();
        }
        board.asks.retain(|_, ask| ask.node != node);
        board.awaited.retain(|(of, _), _| *of != node);
        board.short.retain(|(of, _)| *of != node);
        for lane in board.lanes.values_mut() {
            for (_, pair) in lane.pairs.extract_if((node, 0)..=(node, u8::MAX), |_, _| true) {
                pair.end(Code::Unreachable);
            }
        }
        self.changed.notify_all();
    }

    /// Whatever this node's lanes have under way, and post from now on, ends.
    pub(in crate::hosts) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        let mut board = self.lock();
        board.asks.clear();
        for lane in board.lanes.values_mut() {
            for pair in core::mem::take(&mut lane.pairs).into_values() {
                pair.end(Code::Fenced);
            }
        }
        self.changed.notify_all();
    }

    pub(in crate::hosts) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }
}

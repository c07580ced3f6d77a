//! The nodes' messages about their connections, and their effects. The service thread receives all of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{BASE, Board, Connections, LEFT, LOST, Peer, RESEND, TARGETS_MAX, UP};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::ControlEvent;
use crate::hosts::carrier::{Carrier, LanePort, Pair};
use crate::hosts::control::{Ending, Event, SendError};
use crate::hosts::message::{Declined, Message};
use crate::ptr::{GroupKey, NodeId};

impl<C: Carrier> Connections<C> {
    pub(super) fn tell_all(&self, board: &mut Board<C>, message: &Message<C::Address>) {
        let linked: Vec<NodeId> = board.linked().collect();
        linked.into_iter().for_each(|node| self.tell(board, node, message));
    }

    pub(super) fn tell(&self, board: &mut Board<C>, node: NodeId, message: &Message<C::Address>) {
        let Some(peer) = board.peers.get_mut(&node).filter(|peer| peer.is_linked) else { return };
        peer.said += 1;
        peer.owed.push_back(message.encode());
        self.pay(node, peer);
    }

    /// Sends the pending messages, as far as the peer takes them.
    fn pay(&self, node: NodeId, peer: &mut Peer<C>) {
        while let Some(first) = peer.owed.front() {
            match self.control.send_payload(node, first) {
                Ok(()) => drop(peer.owed.pop_front()),
                Err(SendError::Full) => return,
                // Its end is on its way to the service thread.
                Err(SendError::NotUp | SendError::TooLong { .. }) => peer.owed.clear(),
            }
        }
    }

    /// Sends a message of the layers above.
    pub(in crate::hosts) fn send(&self, to: NodeId, message: &[u8]) -> Result<(), SendError> {
        // Not ahead of the announcements that the node must get before.
        match self.lock().peers.get(&to) {
            Some(peer) if !peer.owed.is_empty() => Err(SendError::Full),
            _ => self.control.send(to, message),
        }
    }

    pub(in crate::hosts) fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        let (owes, passes) = {
            let board = self.lock();
            (board.peers.values().any(|peer| !peer.owed.is_empty()), !board.passing.is_empty())
        };
        let timeout = if owes || passes { timeout.min(RESEND) } else { timeout };
        if self.carrier.has_failed() {
            self.fence();
        }
        let (mut happened, mut news) = (Vec::new(), Vec::new());
        self.control.serve(timeout, &mut |what| happened.push(what));
        let mut board = self.lock();
        happened.into_iter().for_each(|what| self.handle(&mut board, what, &mut news));
        for (node, why) in self.carrier.refused() {
            self.lose(&mut board, node, why, &mut news);
        }
        let is_lost = |(_, peer): &(&NodeId, &Peer<C>)| peer.is_linked && peer.memory.is_unreachable();
        let lost: Vec<NodeId> = board.peers.iter().filter(is_lost).map(|(node, _)| *node).collect();
        lost.into_iter().for_each(|node| self.lose(&mut board, node, "its lanes do not reach it any more", &mut news));
        self.pass(&mut board);
        if owes {
            board.peers.iter_mut().filter(|(_, peer)| peer.is_linked).for_each(|(node, peer)| self.pay(*node, peer));
        }
        drop(board); // the receiver of an event may call back
        news.into_iter().for_each(event);
    }

    fn handle(&self, board: &mut Board<C>, what: Event, news: &mut Vec<ControlEvent>) {
        match what {
            Event::Up(node, hello) => {
                if !self.is_over(node) && node.index() < self.states.len() {
                    self.know(node, hello.incarnation);
                    board.refusals.remove(&Some(hello.place));
                    board.peers.insert(node, Peer::new(true));
                    self.introduce(board, node);
                }
            }
            Event::Payload(node, bytes) => match Message::decode(&bytes) {
                _ if self.is_over(node) => {}
                Some(message) => self.receive(board, node, message, news),
                None => self.lose(board, node, "it says what cannot be read", news),
            },
            Event::Message(node, bytes) => {
                self.report(board, node, ControlEvent::Message(node, bytes), news);
            }
            Event::Suspected(node) => {
                self.doubt(board, node, true);
                self.report(board, node, ControlEvent::Suspected(node), news);
            }
            Event::Trusted(node) => {
                self.doubt(board, node, false);
                self.report(board, node, ControlEvent::Trusted(node), news);
            }
            Event::Down(node, Ending::Goodbye) => {
                if !self.is_over(node) {
                    self.set_state(node, LEFT);
                    self.part(board, node);
                    board.peers.remove(&node);
                    news.push(ControlEvent::Down(node));
                }
            }
            Event::Down(node, Ending::Broken(why)) => self.lose(board, node, &why.to_string(), news),
            // The peer has proved nothing, so this node keeps waiting in any case.
            Event::Refused(refused) => {
                tracing::warn!("{refused}");
                board.refusals.insert(refused.place, refused.to_string());
            }
        }
    }

    fn doubt(&self, board: &mut Board<C>, node: NodeId, is_suspected: bool) {
        if let Some(peer) = board.peers.get_mut(&node) {
            peer.is_suspected = is_suspected;
        }
        self.changed.notify_all();
    }

    /// Hands on what concerns a node; once it is up, if it is to be.
    fn report(&self, board: &mut Board<C>, node: NodeId, what: ControlEvent, news: &mut Vec<ControlEvent>) {
        match board.peers.get_mut(&node) {
            _ if self.is_over(node) => {}
            Some(peer) if !peer.is_up => peer.held.push(what),
            _ => news.push(what),
        }
    }

    /// The connection with a node is over. The node may still be alive, but is not called again.
    fn lose(&self, board: &mut Board<C>, node: NodeId, why: &str, news: &mut Vec<ControlEvent>) {
        if self.is_over(node) {
            return;
        }
        tracing::warn!("the connection with {node} is lost: {why}");
        self.set_state(node, LOST);
        self.control.hang_up(node);
        self.part(board, node);
        news.push(ControlEvent::Down(node));
    }

    /// Announces the groups and memory of this node to a new node, and asks for connections.
    fn introduce(&self, board: &mut Board<C>, node: NodeId) {
        let mut messages = Vec::new();
        for (key, group) in (0u8..).zip(&board.groups) {
            if GroupKey(key).class() != BASE {
                messages.push(Message::Group { key });
            }
            let told = group.memory.chunks().into_iter().filter(|chunk| group.told.contains(&chunk.first));
            messages.extend(told.map(|chunk| Message::Chunk { key, chunk }));
            let again = group.memory.generations().into_iter();
            messages.extend(again.map(|info| Message::Generation { id: 0, key, info }));
        }
        messages.push(Message::Told);
        messages.iter().for_each(|message| self.tell(board, node, message));
        self.reach(board, node, BASE.0);
    }

    /// Connects all lanes to a class of a node's groups.
    fn reach(&self, board: &mut Board<C>, node: NodeId, class: u8) {
        if self.is_fenced() {
            return;
        }
        for lane in board.lanes.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.connect(board, lane, node, class) {
                self.fail(board, node, lane, error.into());
            }
        }
    }

    /// A lane cannot be connected.
    fn fail(&self, board: &mut Board<C>, node: NodeId, lane: u32, error: Error) {
        tracing::warn!("{node} cannot be reached: {error}");
        if let Some(lane) = board.lanes.get_mut(&lane) {
            lane.failure = Some(error.clone());
        }
        if let Some(peer) = board.peers.get_mut(&node).filter(|peer| !peer.is_up) {
            peer.failure = Some(error);
        }
    }

    fn receive(&self, board: &mut Board<C>, node: NodeId, message: Message<C::Address>, news: &mut Vec<ControlEvent>) {
        let Some(peer) = board.peers.get_mut(&node).filter(|peer| peer.is_linked) else { return };
        peer.heard += 1;
        match message {
            Message::Group { key } => {
                if GroupKey(key).class() == BASE || !peer.classes.insert(key) {
                    return self.lose(board, node, "it has a group twice", news);
                }
                if peer.is_told {
                    peer.to_reach.insert(key);
                }
                self.reach(board, node, key);
            }
            Message::Chunk { key, chunk } => {
                if !peer.memory.add(GroupKey(key), chunk) {
                    return self.lose(board, node, "its memory lies where none can lie", news);
                }
                if peer.is_told {
                    peer.to_reach.insert(GroupKey(key).class().0);
                }
            }
            Message::Told => peer.is_told = true,
            Message::Generation { id, key, info } => {
                if !peer.memory.set_generation(GroupKey(key), info) {
                    return self.lose(board, node, "it gives back memory that there is not", news);
                }
                if peer.is_told {
                    peer.to_reach.insert(GroupKey(key).class().0);
                }
                self.hear_free(board, node, GroupKey(key), id);
            }
            Message::Passed { id } => self.passed(board, node, id),
            Message::Connect { ask, lane, class, address } => {
                return self.accept(board, node, ask, (lane, class), &address);
            }
            // Its lane may have been closed since: then there is one answer less to wait for, too.
            Message::Accept { ask, address } => {
                if let Some(asked) = board.asks.remove(&ask)
                    && let Err(error) = self.accepted(board, asked.lane, node, asked.class, asked.pair, &address)
                {
                    self.fail(board, node, asked.lane, error.into());
                }
            }
            Message::Decline { ask, why } => match (board.asks.remove(&ask), why) {
                (None, _) => {}
                (Some(asked), Declined::Revoked) => peer.memory.revoke(GroupKey(asked.class), true),
                (Some(asked), Declined::NoQueuePair(why)) => {
                    let why = format!("{node} does not connect: {why}");
                    self.fail(board, node, asked.lane, ErrorKind::System { what: C::TECHNIQUE, why }.into());
                }
            },
            Message::Close { lane } => {
                peer.targets.retain(|(of, _), _| *of != lane);
                return;
            }
            Message::Reached { class, heard, by_all } => {
                if board.awaited.get(&(node, class)).is_some_and(|said| heard >= *said) {
                    board.awaited.remove(&(node, class));
                    if !by_all {
                        board.short.insert((node, class));
                    }
                }
            }
            Message::Revoke { key } => self.lose_right(board, node, key),
            Message::Permit { key } => {
                peer.memory.revoke(GroupKey(key), false);
                peer.to_reach.insert(key);
                self.reach(board, node, key);
            }
        }
        self.settle(board, node, news);
    }

    /// A peer's lane wants to reach groups of this node.
    fn accept(&self, board: &mut Board<C>, node: NodeId, ask: u64, of: (u32, u8), address: &C::Address) {
        let class = of.1;
        let is_known =
            class == BASE.0 || GroupKey(class).class() == GroupKey(class) && usize::from(class) < board.groups.len();
        let is_taken = board.taken.contains(&(node, class));
        let Some(peer) = board.peers.get_mut(&node) else { return };
        let made = if is_taken {
            Err(Declined::Revoked)
        } else if !is_known || peer.targets.len() >= TARGETS_MAX {
            Err(Declined::NoQueuePair(format!("{} pairs are open for it", peer.targets.len())))
        } else {
            let made = self.carrier.target(GroupKey(class), node, address);
            made.map_err(|error| Declined::NoQueuePair(error.to_string()))
        };
        let answer = match made {
            Ok((target, address)) => {
                peer.targets.insert(of, target);
                Message::Accept { ask, address }
            }
            Err(why) => Message::Decline { ask, why },
        };
        self.tell(board, node, &answer);
    }

    /// A peer has a target for a lane of this node.
    fn accepted(
        &self,
        board: &mut Board<C>,
        lane: u32,
        node: NodeId,
        class: u8,
        mut pair: C::Pair,
        address: &C::Address,
    ) -> Result<(), C::Error> {
        let (Some(lane), Some(peer)) = (board.lanes.get_mut(&lane), board.peers.get(&node)) else { return Ok(()) };
        pair.connect(address)?;
        lane.pairs.insert((node, class), pair.switch());
        lane.port.add(node, GroupKey(class), pair, Arc::clone(&peer.memory));
        Ok(())
    }

    /// Checks the conditions that a node, or a thread here, has waited for.
    fn settle(&self, board: &mut Board<C>, node: NodeId, news: &mut Vec<ControlEvent>) {
        let asked: BTreeSet<u8> = board.asks.values().filter(|ask| ask.node == node).map(|ask| ask.class).collect();
        let Some(peer) = board.peers.get_mut(&node).filter(|peer| peer.is_linked) else { return };
        if peer.is_told && !peer.is_up && asked.is_empty() {
            if let Some(error) = peer.failure.take() {
                // It may count this node as up, and would wait for it: both know that it is not.
                news.push(ControlEvent::Refused(node, error));
                return self.lose(board, node, "its memory cannot be reached", news);
            }
            peer.is_up = true;
            self.set_state(node, UP);
            news.push(ControlEvent::Up(node));
            news.append(&mut peer.held);
        }
        let reached: Vec<u8> = peer.to_reach.difference(&asked).copied().collect();
        peer.to_reach.retain(|class| asked.contains(class));
        let heard = peer.heard;
        for class in reached {
            let by_all = board.lanes.values().all(|lane| lane.pairs.contains_key(&(node, class)));
            self.tell(board, node, &Message::Reached { class, heard, by_all });
        }
        self.changed.notify_all();
    }
}

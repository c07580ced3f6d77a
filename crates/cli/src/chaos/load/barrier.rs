//! Threads meet at a barrier, and after a death the remaining ones meet at another. Each announces its round in a table
//! before it meets: earlier puts are visible after the barrier.

use farfield::{Barrier, BarrierThread, Endpoint, Node, NodeId, OwnedWriter, Sst};

use super::{Load, Place, violation};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// A row: its owner's progress, twice, and the progress after which the owner meets no more.
type Row = [u64; 3];

pub(super) struct BarrierLoad {
    node: Node,
    path: String,
    /// The original members, in the order of their rows.
    members: Vec<NodeId>,
    table: Sst<Row>,
    row: OwnedWriter<Row>,
    /// The barrier of the remaining members, unless one has died since.
    barrier: Option<(String, BarrierThread)>,
    /// How many had died when it was opened.
    gone: u64,
    /// Rounds at this barrier.
    round: u64,
    /// It waits for the round in which it timed out.
    again: bool,
    has_ended: bool,
    endpoint: Endpoint,
}

impl BarrierLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<BarrierLoad, Failure> {
        let table = place.open("table", Sst::open)?;
        let mine = place.members.iter().position(|member| *member == place.node.id()).unwrap_or(usize::MAX);
        let row = place.open("the row in table", |_, _| table.writer(mine))?;
        let mut load = BarrierLoad {
            node: place.node.clone(),
            path: format!("{}barrier", place.path),
            members: place.members.clone(),
            table,
            row,
            barrier: None,
            gone: 0,
            round: 0,
            again: false,
            has_ended: false,
            endpoint: place.endpoint()?,
        };
        load.open_among_survivors(&mut place.log)?;
        Ok(load)
    }

    /// The remaining members open the barrier anew. Its name contains their numbers, for the log.
    fn open_among_survivors(&mut self, log: &mut Recorder) -> Result<(), Failure> {
        // Newcomers belong to the session, but not to this generation's barriers.
        let survivors = self.node.live_members();
        let left: Vec<NodeId> = self.members.iter().copied().filter(|member| survivors.contains(member)).collect();
        let barrier = log.open(&self.node, &self.path, |path| Barrier::open_among(&self.node, path, 1, &left))?;
        let thread = log.open(&self.node, "the part in barrier", |_| barrier.thread())?;
        let members = barrier.members();
        let numbers: Vec<String> = members.iter().map(|node| node.0.to_string()).collect();
        self.barrier = Some((format!("{}-{}", self.path, numbers.join("-")), thread));
        (self.gone, self.round, self.again) = ((self.members.len() - members.len()) as u64, 0, false);
        Ok(())
    }

    /// The progress of this thread: barriers, and rounds at the last one. All threads that have met there have the
    /// same.
    fn stamp(&self) -> u64 {
        self.gone << 40 | self.round
    }

    fn announce(&mut self, log: &mut Recorder, ends: bool) {
        let stamp = self.stamp();
        self.row.store([stamp, stamp, if ends { stamp } else { 0 }]);
        let push = self.row.push(&self.endpoint);
        // The put to a dead node fails. All others succeed.
        let _ = log.call(Op::Announce { value: stamp }, &self.endpoint, push, |()| Answer::Done);
    }

    /// One round. `ends`: it is this one's last.
    fn meet(&mut self, log: &mut Recorder, ends: bool) {
        if self.barrier.is_none() && self.open_among_survivors(log).is_err() {
            return;
        }
        if !self.again {
            self.round += 1;
            self.announce(log, ends);
        }
        let (round, again, endpoint) = (self.round, self.again, &self.endpoint);
        let Some((path, thread)) = &mut self.barrier else { return };
        let op = Op::Meet { path: path.clone(), round, again };
        let met = if again {
            // The time counts from the log entry on.
            let again = async { thread.retry_wait(endpoint, endpoint.deadline()).await };
            log.call(op, endpoint, again, |()| Answer::Done)
        } else {
            log.call(op, endpoint, thread.wait(endpoint), |()| Answer::Done)
        };
        match met {
            Ok(()) => {
                self.again = false;
                self.look_at_rows();
            }
            Err(failure) if failure.is_timeout() => self.again = true,
            Err(_) => self.barrier = None,
        }
    }

    /// All live members have announced this round, and the announcements are visible.
    fn look_at_rows(&mut self) {
        let stamp = self.stamp();
        for (row, owner) in self.table.rows().zip(&self.members) {
            if self.endpoint.check_alive(*owner).is_err() {
                continue;
            }
            match row.try_load() {
                // It may be on its way to the next round already.
                None => {}
                Some([first, second, end]) => {
                    if first != second || first < stamp {
                        violation(format!("barrier: {owner} announced [{first:x}, {second:x}] before {stamp:x}"));
                    }
                    self.has_ended |= end == stamp;
                }
            }
        }
    }
}

impl Load for BarrierLoad {
    /// A thread that rests would hold up all others, and their pace is judged, too.
    fn rests(&self) -> bool {
        false
    }

    fn step(&mut self, log: &mut Recorder) {
        if !self.has_ended {
            self.meet(log, false);
        }
    }

    /// All end after the same round: a thread that wants to end announces it before a round, and all see it after that
    /// round.
    fn settle(&mut self, log: &mut Recorder) {
        while !self.has_ended {
            self.meet(log, true);
        }
    }
}

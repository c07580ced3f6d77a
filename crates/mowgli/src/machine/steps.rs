//! The steps of the machine: the possible ones, their footprints, and taking one.

use smallvec::SmallVec;

use super::cpu::Entry;
use super::pair::{InFlight, Stage, Task};
use super::{Applied, Completion, Crossing, Footprint, Loc, Machine, Node, Part, Step, Thread, Words};

/// The machine's own steps.
impl Machine {
    /// Appends the steps that are possible: by thread, draining first, then by peer, sequence and part.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// let mut steps = Vec::new();
    /// machine.enabled(&mut steps);
    /// assert_eq!(steps, [Step::Drain(thread)]);
    /// ```
    pub fn enabled(&self, into: &mut Vec<Step>) {
        let blocked = self.blocked();
        if blocked.is_empty() {
            into.extend_from_slice(&self.listed);
        } else {
            into.extend(self.listed.iter().filter(|step| !blocked.contains(step)));
        }
    }

    /// The NAR of words that other read-modify-writes have read and not written yet.
    fn blocked(&self) -> SmallVec<[Step; 8]> {
        let mut blocked = SmallVec::new();
        if self.held.is_empty() {
            return blocked;
        }
        for cpu in &self.threads {
            for &node in &cpu.active {
                if let Some((step, word)) = cpu.pair(node).atomic_read()
                    && self.held.contains(&Loc { node, word })
                {
                    blocked.push(step);
                }
            }
        }
        blocked
    }

    /// Whether a step is possible.
    fn is_enabled(&self, step: Step) -> bool {
        self.listed.contains(&step) && !self.blocked().contains(&step)
    }

    /// Lists a thread's steps again, after something of it changed.
    pub(super) fn list(&mut self, thread: Thread) {
        let at = usize::from(thread.0);
        let start: usize = self.threads[..at].iter().map(|cpu| cpu.listed).sum();
        let cpu = &mut self.threads[at];
        let drains = !cpu.store_buffer.is_empty();
        let count = usize::from(drains) + cpu.active.iter().map(|&peer| cpu.pair(peer).steps().len()).sum::<usize>();
        // The steps of the threads behind it make room.
        let (before, len) = (cpu.listed, self.listed.len());
        if count > before {
            self.listed.resize(len + count - before, Step::Drain(thread));
        }
        self.listed.copy_within(start + before..len, start + count);
        self.listed.truncate(len + count - before);
        let mut next = start;
        if drains {
            self.listed[next] = Step::Drain(thread);
            next += 1;
        }
        for &peer in &cpu.active {
            for &step in cpu.pair(peer).steps() {
                self.listed[next] = step;
                next += 1;
            }
        }
        cpu.listed = count;
    }

    /// Whether taking this enabled step at once, before everything else, loses no outcome, given that threads learn of
    /// operations by waiting for their completion and in no other way, and that nothing is cancelled. Such a step
    /// touches no memory, and the steps that it makes impossible could not have happened before it anyway.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.issue(thread, Operation::Fence { node: 1 });
    /// assert!(machine.is_quiet(Step::Drain(thread))); // an operation leaves the store buffer
    /// # let mut machine = Machine::new(1);
    /// # machine.grow(0, 1);
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// assert!(!machine.is_quiet(Step::Drain(thread))); // a write reaches memory
    /// ```
    pub fn is_quiet(&self, step: Step) -> bool {
        let Step::Nic { thread, peer, sequence, part } = step else {
            // An operation in its queue pair that has done nothing yet holds back only later ones of the queue pair,
            // and they are behind it in the store buffer. No CPU event waits for operations in the store buffer to
            // leave it.
            let Step::Drain(thread) = step else { return false };
            return matches!(self.cpu(thread).store_buffer.front(), Some(Entry::Operation { .. }));
        };
        let pair = self.cpu(thread).pair(peer);
        let Some(at) = pair.position(sequence) else { return false };
        let operation = pair.get(at);
        match part {
            // NLR that reads nothing: every condition that mentions NLR waits for it to be finished, none for it not to
            // be.
            Part::Read(_) => matches!(operation.task, Task::Put { cells: None, .. }),
            // NRW: a write in the remote side's buffer holds back NRR and NAR of its queue pair until it has landed
            // (nfo). Those of later operations wait for that anyway (G8); those of earlier ones are done, or it is not
            // quiet. Everything else that mentions the start of NRW waits for it, threads included. It may land at any
            // later time, as it could before.
            Part::Start if operation.is_put() => !pair.reads_before(at),
            // NLW that touches no memory: in the local side's buffer it holds back NLR of later puts (nfo), but not for
            // longer than something else does. If the buffer is empty, it lands at once, quietly. Else it lands quietly
            // when the writes before it have, and until then they hold back the same NLR.
            Part::Start => operation.brings_words(),
            // Everything that mentions it waits for it, threads included.
            Part::Land(_) => operation.brings_words(),
            // RF: later operations wait for it, nothing waits for its absence, it touches nothing.
            Part::Pass => true,
            Part::Modify => false,
        }
    }

    /// Whether an enabled step needs the connection between the nodes of its queue pair. Words in the remote
    /// side's buffer land without it, and so do answers that have arrived.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// # let source = Source::Carried(Words::from_slice(&[7]));
    /// # let put = Operation::Put { source, to: Loc { node: 1, word: 0 }, words: 1, last_mask: !0 };
    /// let (peer, sequence) = machine.issue(thread, put);
    /// machine.apply(Step::Drain(thread));
    /// let part = |part| Step::Nic { thread, peer, sequence, part };
    /// assert_eq!(machine.crossing(part(Part::Read(0))), None); // the source is read here
    /// machine.apply(part(Part::Read(0)));
    /// assert_eq!(machine.crossing(part(Part::Start)), Some(Crossing::There));
    /// ```
    pub fn crossing(&self, step: Step) -> Option<Crossing> {
        let Step::Nic { thread, peer, sequence, part } = step else { return None };
        let pair = self.cpu(thread).pair(peer);
        let operation = pair.get(pair.position(sequence)?);
        match (part, operation.is_put()) {
            (Part::Start, true) | (Part::Read(_), false) => Some(Crossing::There),
            (Part::Start, false) => Some(Crossing::Back),
            (Part::Read(_), true) | (Part::Land(_) | Part::Modify | Part::Pass, _) => None,
        }
    }

    /// What an enabled step would touch.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 2, 7);
    /// let footprint = machine.footprint(Step::Drain(thread));
    /// assert_eq!(footprint.writes, Some((Loc { node: 0, word: 2 }, 1)));
    /// ```
    ///
    /// # Panics
    /// There is no such operation in flight.
    pub fn footprint(&self, step: Step) -> Footprint {
        let (thread, peer, sequence, part) = match step {
            Step::Drain(thread) => {
                let cpu = self.cpu(thread);
                let mut footprint = Footprint { thread, pair: None, reads: None, writes: None, completes: false };
                match cpu.store_buffer.front() {
                    Some(Entry::Write { word, .. }) => {
                        footprint.writes = Some((Loc { node: cpu.node, word: *word }, 1))
                    }
                    Some(Entry::Operation { lane, peer, .. }) => footprint.pair = Some((*lane, *peer)),
                    None => {}
                }
                return footprint;
            }
            Step::Nic { thread, peer, sequence, part } => (thread, peer, sequence, part),
        };
        let (own, pair) = (self.node_of(thread), self.cpu(thread).pair(peer));
        let operation = pair.get(pair.position(sequence).unwrap_or_else(|| not_enabled(step)));
        let range = |node: Node, first: u32, piece: u8| {
            let (from, count) = operation.piece(piece);
            Some((Loc { node, word: first + from }, count))
        };
        let atomic = operation.atomic_at().map(|word| (Loc { node: peer, word }, 1));
        let (reads, writes) = match (part, &operation.task) {
            (Part::Read(piece), Task::Put { cells: Some(cells), .. }) => (range(own, *cells, piece), None),
            (Part::Read(piece), Task::Get { from, .. }) => (range(peer, *from, piece), None),
            (Part::Read(_), Task::Cas { .. } | Task::Faa { .. }) => (atomic, atomic),
            (Part::Modify, _) => (None, atomic),
            (Part::Land(piece), Task::Put { to, .. }) => (None, range(peer, *to, piece)),
            (Part::Land(piece), Task::Get { into: Some(into), .. }) => (None, range(own, *into, piece)),
            _ => (None, None),
        };
        let completes = match part {
            Part::Start => operation.is_put(),
            Part::Land(_) => !operation.is_put() && operation.left.is_power_of_two(),
            Part::Pass => true,
            Part::Read(_) | Part::Modify => false,
        };
        Footprint { thread, pair: Some((thread, peer)), reads, writes, completes }
    }

    /// Takes a step.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 2, 7);
    /// let applied = machine.apply(Step::Drain(thread));
    /// assert_eq!((applied.writes, applied.changed), (Some((Loc { node: 0, word: 2 }, 1)), true));
    /// ```
    ///
    /// # Panics
    /// The step is not enabled. (In a release build not everything that forbids it is looked at.)
    pub fn apply(&mut self, step: Step) -> Applied {
        debug_assert!(self.is_enabled(step), "{step:?} is not enabled");
        let (Step::Drain(thread) | Step::Nic { thread, .. }) = step;
        let applied = self.take(step);
        self.list(thread);
        applied
    }

    fn take(&mut self, step: Step) -> Applied {
        match step {
            Step::Drain(thread) => self.drain(thread),
            Step::Nic { thread, peer, sequence, part } => {
                let Some(at) = self.cpu(thread).pair(peer).position(sequence) else { not_enabled(step) };
                match (part, self.cpu(thread).pair(peer).get(at).stage) {
                    (Part::Read(piece), Stage::Reading) => self.read_piece(step, thread, peer, at, piece),
                    (Part::Modify, Stage::Modifying) => self.modify(thread, peer, at),
                    (Part::Start, Stage::Ready) => self.start(thread, peer, at),
                    (Part::Land(piece), Stage::Started) => self.land_piece(step, thread, peer, at, piece),
                    (Part::Pass, Stage::Ready) => {
                        let operation = self.cpu_mut(thread).leave(peer, at);
                        assert!(operation.is_fence(), "{step:?} is not enabled");
                        Applied { completion: Some(completion(thread, peer, operation)), ..Applied::default() }
                    }
                    _ => not_enabled(step),
                }
            }
        }
    }

    fn drain(&mut self, thread: Thread) -> Applied {
        let cpu = &mut self.threads[usize::from(thread.0)];
        cpu.digest.forget();
        match cpu.store_buffer.pop_front() {
            Some(Entry::Write { word, value }) => {
                cpu.writes -= 1;
                let loc = Loc { node: cpu.node, word };
                let changed = self.memory.set(loc, value);
                Applied { writes: Some((loc, 1)), changed, ..Applied::default() }
            }
            Some(Entry::Operation { lane, peer, operation }) => {
                self.cpu_mut(lane).enter(peer, operation);
                if lane != thread {
                    self.list(lane); // the caller lists `thread`
                }
                Applied::default()
            }
            None => not_enabled(Step::Drain(thread)),
        }
    }

    /// NLR, NRR or NAR, or a piece of it.
    fn read_piece(&mut self, step: Step, thread: Thread, peer: Node, at: usize, piece: u8) -> Applied {
        let cpu = &mut self.threads[usize::from(thread.0)];
        let pair = &mut cpu.pairs[usize::from(peer)];
        let operation = pair.get_mut(at);
        assert!(operation.left >> piece & 1 == 1, "{step:?} is not enabled");
        let (from, count) = operation.piece(piece);
        let source = match operation.task {
            Task::Put { cells, .. } => cells.map(|cells| Loc { node: cpu.node, word: cells + from }),
            Task::Get { from: first, .. } => Some(Loc { node: peer, word: first + from }),
            Task::Cas { at, .. } | Task::Faa { at, .. } => Some(Loc { node: peer, word: at }),
            Task::Fence => not_enabled(step),
        };
        let reads = source.map(|loc| (loc, count));
        if let Some(loc) = source {
            operation.data[from as usize..][..count as usize].copy_from_slice(self.memory.words(loc, count));
        }
        operation.left &= !(1 << piece);
        if operation.left != 0 {
            pair.piece_done(step);
            return Applied { reads, ..Applied::default() };
        }
        operation.stage = match operation.task {
            // A comparison that fails has no NAW.
            Task::Cas { expected, .. } if operation.data[0] != expected => Stage::Ready,
            Task::Cas { at, .. } | Task::Faa { at, .. } => {
                self.held.push(Loc { node: peer, word: at });
                Stage::Modifying
            }
            _ => Stage::Ready,
        };
        pair.refresh();
        Applied { reads, ..Applied::default() }
    }

    /// NAW.
    fn modify(&mut self, thread: Thread, peer: Node, at: usize) -> Applied {
        let cpu = &mut self.threads[usize::from(thread.0)];
        let pair = &mut cpu.pairs[usize::from(peer)];
        let operation = pair.get_mut(at);
        let (word, value) = match operation.task {
            Task::Cas { at, new, .. } => (at, new),
            Task::Faa { at, addend } => (at, operation.data[0].wrapping_add(addend)),
            Task::Put { .. } | Task::Get { .. } | Task::Fence => unreachable!("only atomics are in this stage"),
        };
        operation.stage = Stage::Ready;
        pair.refresh();
        let loc = Loc { node: peer, word };
        self.held.retain(|held| *held != loc);
        let changed = self.memory.set(loc, value);
        Applied { writes: Some((loc, 1)), changed, ..Applied::default() }
    }

    /// NRW or NLW enters the buffer of its side.
    fn start(&mut self, thread: Thread, peer: Node, at: usize) -> Applied {
        let cpu = &mut self.threads[usize::from(thread.0)];
        let pair = &mut cpu.pairs[usize::from(peer)];
        let operation = pair.get_mut(at);
        assert!(!operation.is_fence(), "a fence has no write to start");
        operation.start();
        let (is_put, sequence) = (operation.is_put(), operation.sequence);
        pair.refresh();
        let completion = is_put.then(|| Completion { thread, peer, sequence, words: Words::new() });
        Applied { completion, ..Applied::default() }
    }

    /// A piece of NRW or NLW reaches memory.
    fn land_piece(&mut self, step: Step, thread: Thread, peer: Node, at: usize, piece: u8) -> Applied {
        let cpu = &mut self.threads[usize::from(thread.0)];
        let pair = &mut cpu.pairs[usize::from(peer)];
        let operation = pair.get_mut(at);
        assert!(operation.left >> piece & 1 == 1, "{step:?} is not enabled");
        let mut applied = Applied::default();
        let target = match operation.task {
            Task::Put { to, last_mask, .. } => Some((Loc { node: peer, word: to }, last_mask)),
            Task::Get { into: Some(into), .. } => Some((Loc { node: cpu.node, word: into }, u64::MAX)),
            _ => None,
        };
        if let Some((first, last_mask)) = target {
            let (from, count) = operation.piece(piece);
            let loc = Loc { word: first.word + from, ..first };
            for (index, carried) in (from..from + count).zip(&mut operation.data[from as usize..]) {
                let loc = Loc { word: first.word + index, ..first };
                let mut value = std::mem::take(carried);
                if index + 1 == operation.words && last_mask != u64::MAX {
                    value = value & last_mask | self.memory.get(loc) & !last_mask;
                }
                applied.changed |= self.memory.set(loc, value);
            }
            applied.writes = Some((loc, count));
        }
        operation.left &= !(1 << piece);
        if operation.left != 0 {
            pair.piece_done(step);
            return applied;
        }
        let operation = cpu.leave(peer, at);
        // A put was complete when it started.
        applied.completion = (!operation.is_put()).then(|| completion(thread, peer, operation));
        applied
    }
}

/// The completion of an operation that is finished.
fn completion(thread: Thread, peer: Node, operation: InFlight) -> Completion {
    let sequence = operation.sequence;
    let words = if operation.brings_words() { operation.data } else { Words::new() };
    Completion { thread, peer, sequence, words }
}

#[cold]
fn not_enabled(step: Step) -> ! {
    panic!("{step:?} is not enabled")
}

//! Counters that all add to, words and larger values that one node pushes to all.

use farfield::{AtomicVar, Endpoint, NodeId, OwnedVar, OwnedWriter, SharedVar, TearCheck};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place, flush, violation};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// A larger value: each word says the same.
type Wide = [u64; 6];

pub(super) struct VarsLoad {
    me: NodeId,
    /// Those with living homes, as far as is known.
    counters: Vec<(NodeId, AtomicVar)>,
    /// One for each node that pushes.
    pushed: Vec<Pushed>,
    /// This node's, if it pushes.
    writer: Option<OwnedWriter<Wide>>,
    pushes: u64,
    others: Vec<NodeId>,
    endpoint: Endpoint,
    rng: SmallRng,
}

/// What one node pushes: a word, and a larger value.
struct Pushed {
    owner: NodeId,
    word: SharedVar<u64>,
    wide: OwnedVar<Wide>,
    /// The latest that was seen here.
    seen: [u64; 2],
    /// Its owner lives, as far as is known.
    can_be_pulled: bool,
}

impl VarsLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<VarsLoad, Failure> {
        let me = place.node.id();
        let (mut counters, mut pushed, mut writer) = (Vec::new(), Vec::new(), None);
        for (index, owner) in place.homes.clone().into_iter().enumerate() {
            counters
                .push((owner, place.open(&format!("counter/{owner}"), |it, path| AtomicVar::open(it, path, owner))?));
            let word = place.open(&format!("word/{owner}"), SharedVar::open)?;
            let wholeness = if index % 2 == 0 { TearCheck::Guards } else { TearCheck::Checksum };
            let open = |node: &_, path: &_| OwnedVar::open_with(node, path, owner, wholeness);
            let wide: OwnedVar<Wide> = place.open(&format!("wide/{owner}"), open)?;
            if owner == me {
                writer = Some(place.open(&format!("the writer of wide/{owner}"), |_, _| wide.writer())?);
            }
            pushed.push(Pushed { owner, word, wide, seen: [0; 2], can_be_pulled: true });
        }
        let (endpoint, rng) = (place.endpoint()?, place.rng("vars"));
        Ok(VarsLoad { me, counters, pushed, writer, pushes: 0, others: place.others(), endpoint, rng })
    }

    fn add(&mut self, log: &mut Recorder) {
        if self.counters.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.counters.len());
        let (home, counter) = &self.counters[at];
        let add = counter.fetch_add(&self.endpoint, 1);
        let added = log.call(Op::Add { counter: home.0 }, &self.endpoint, add, |old| Answer::Value(*old));
        if added.is_err_and(|failure| failure.is_death()) {
            self.counters.swap_remove(at);
        }
    }

    fn push(&mut self, log: &mut Recorder) {
        let (Some(writer), endpoint) = (&mut self.writer, &self.endpoint) else { return };
        let Some(mine) = self.pushed.iter().find(|pushed| pushed.owner == self.me) else { return };
        self.pushes += 1;
        let value = self.pushes;
        let push = async {
            mine.word.store(value);
            writer.store([value; 6]);
            // Both go to all living nodes, even if others are dead.
            mine.word.push_all(endpoint).await.and(writer.push(endpoint).await)
        };
        let _ = log.call(Op::Push { value }, endpoint, push, |()| Answer::Done);
    }

    fn pull(&mut self, log: &mut Recorder) {
        let (at, endpoint) = (self.rng.random_range(0..self.pushed.len()), &self.endpoint);
        let pushed = &mut self.pushed[at];
        if !pushed.can_be_pulled {
            return;
        }
        let op = Op::Pull { of: pushed.owner.0 };
        match log.call(op, endpoint, pushed.wide.pull(endpoint), |value| Answer::Value(value[0])) {
            // The owner's own copy may be ahead of this node's: it is not compared with that.
            Ok(value) if value != [value[0]; 6] => violation(format!("wide/{}: torn: {value:?}", pushed.owner)),
            Ok(_) => {}
            Err(_) => pushed.can_be_pulled = false,
        }
    }

    /// The copy on this node is whole, and never older than earlier ones.
    fn watch(&mut self) {
        for pushed in &mut self.pushed {
            let owner = pushed.owner;
            let wide = pushed.wide.try_load().unwrap_or([pushed.seen[1]; 6]);
            if wide != [wide[0]; 6] {
                violation(format!("wide/{owner}: torn: {wide:?}"));
            }
            let now = [pushed.word.load(), wide[0]];
            if now[0] < pushed.seen[0] || now[1] < pushed.seen[1] {
                violation(format!("word and wide/{owner}: first {:?}, then {now:?}", pushed.seen));
            }
            pushed.seen = now;
        }
    }
}

impl Load for VarsLoad {
    fn step(&mut self, log: &mut Recorder) {
        match self.rng.random_range(0..100) {
            0..60 => self.add(log),
            60..85 => self.push(log),
            _ => self.pull(log),
        }
        self.watch();
    }

    fn settle(&mut self, log: &mut Recorder) {
        flush(&self.endpoint, &self.others, log);
    }

    fn look(&mut self, log: &mut Recorder) {
        self.watch();
        for (home, counter) in &self.counters {
            let load = counter.load(&self.endpoint);
            let _ = log.call(Op::Total { counter: home.0 }, &self.endpoint, load, |value| Answer::Value(*value));
        }
        for pushed in &self.pushed {
            let begun = log.begin(Op::Copy { of: pushed.owner.0 }, self.endpoint.timeout());
            let _ = log.end(begun, Ok(pushed.seen), |seen| Answer::Words(*seen));
        }
    }
}

//! The exact course of the search. Its verdict does not depend on the order of the candidates, on the cache or on the
//! pruning, but its steps and its evidence do. A change of these that is intended changes the tables here, too: a test
//! that fails prints its table.

use std::collections::VecDeque;

use super::super::super::queue::{QueueInput, QueueModel, QueueOutput};
use super::*;

/// What a number of checks come to.
#[derive(Default)]
struct Tally {
    good: u64,
    bad: u64,
    undecided: u64,
    steps: u64,
    /// Of every order and all evidence (FNV-1a).
    digest: u64,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict) {
        let (count, told) = match verdict {
            Verdict::Linearizable { order, .. } => (&mut self.good, format!("{order:?}")),
            Verdict::Violation { evidence, .. } => (&mut self.bad, format!("{evidence:?}")),
            Verdict::Undecided { evidence, .. } => (&mut self.undecided, format!("{evidence:?}")),
        };
        *count += 1;
        self.steps += verdict.steps();
        for byte in told.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    fn row(&self, name: &str) -> String {
        let Self { good, bad, undecided, steps, digest } = self;
        format!("{name:<30} {good:>4} good {bad:>4} bad {undecided:>4} undecided {steps:>8} steps {digest:016x}")
    }
}

#[track_caller]
fn assert_rows(rows: &[String], expected: &[&str]) {
    assert!(rows == expected, "the table is now\n{}", rows.join("\n"));
}

/// Some answers are changed or missing.
fn spoil(rng: &mut Rng, mut events: Vec<KvEvent>, values: u64, one_in: u64) -> Vec<KvEvent> {
    for event in &mut events {
        match rng.below(one_in) {
            0 => event.output = Some(any_output(rng, event.input, values)),
            1 => (event.return_ns, event.output) = (None, None),
            _ => {}
        }
    }
    events
}

fn own_values(rng: &mut Rng) -> Vec<KvEvent> {
    let events = atomic(rng, 14, 14, 30, any_input);
    spoil(rng, events, 14, 20)
}

fn few_values(rng: &mut Rng) -> Vec<KvEvent> {
    let events = atomic(rng, 14, 14, 20, |rng, n| any_input(rng, 1 + n % 3));
    spoil(rng, events, 3, 20)
}

/// All concurrent: many writers and readers of few values.
fn crowded(rng: &mut Rng) -> Vec<KvEvent> {
    let events = atomic(rng, 10, 40, 8, |rng, n| match rng.below(3) {
        0 => KvInput::Get,
        1 => KvInput::Upsert(1 + n % 3),
        _ => any_input(rng, 1 + n % 4),
    });
    spoil(rng, events, 4, 16)
}

/// Inserts and deletes make each other impossible.
fn inserts_and_deletes(rng: &mut Rng) -> Vec<KvEvent> {
    let events = atomic(rng, 14, 12, 30, |rng, n| match rng.below(5) {
        0 | 1 => KvInput::Insert(n % 5 + 1),
        2 => KvInput::Update(n % 5 + 1),
        3 => KvInput::Delete,
        _ => KvInput::Get,
    });
    spoil(rng, events, 5, 24)
}

/// Register-like: writes never fail.
fn upserts_and_gets(rng: &mut Rng) -> Vec<KvEvent> {
    let events =
        atomic(rng, 16, 10, 30, |rng, n| if rng.below(2) == 0 { KvInput::Get } else { KvInput::Upsert(n % 6 + 1) });
    spoil(rng, events, 6, 24)
}

/// Almost without concurrency.
fn calm(rng: &mut Rng) -> Vec<KvEvent> {
    let events = atomic(rng, 40, 6, 100, |rng, n| any_input(rng, 1 + n % 20));
    spoil(rng, events, 20, 60)
}

/// A name, and a function that makes a history.
type Generator = (&'static str, fn(&mut Rng) -> Vec<KvEvent>);

const GENERATORS: [Generator; 6] = [
    ("own values", own_values),
    ("few values", few_values),
    ("crowded", crowded),
    ("inserts and deletes", inserts_and_deletes),
    ("upserts and gets", upserts_and_gets),
    ("calm", calm),
];

/// Upserts promise nothing, the others do.
const RETICENT: Promising = Promising(|input, output| match input {
    KvInput::Upsert(_) => Effect::Unknown,
    _ => KvModel.effect(input, output),
});

/// The classes are as large as they may be: they must not be taken for marked ones.
const LARGE_CLASSES: Promising = Promising(|input, output| match KvModel.effect(input, output) {
    Effect::Write { leaves, .. } => {
        let class = match input {
            KvInput::Upsert(_) => 0,
            KvInput::Delete => CLASS,
            KvInput::Insert(_) => 1,
            _ => CLASS + 1,
        };
        Effect::Write { leaves, class }
    }
    effect => effect,
});

/// Gets promise only that they read, so that only writes of the same value are of one class.
const VAGUE: Promising = Promising(|input, output| match KvModel.effect(input, output) {
    Effect::Read { .. } => Effect::Read { only_in: None },
    Effect::Write { leaves, class } => Effect::Write { leaves, class: class << 16 | leaves.unwrap_or(0) as u32 },
    effect => effect,
});

fn rows_of<M: Model<Input = KvInput, Output = KvOutput>>(model: &M, rounds: u64) -> Vec<String> {
    let row = |(name, generate): Generator| {
        let (mut rng, mut tally) = (Rng(7), Tally::default());
        for _ in 0..rounds {
            let events = generate(&mut rng);
            let verdict = check(model, &events, Budget::default());
            assert_eq!(verdict.is_linearizable(), check(&KvModel, &events, Budget::default()).is_linearizable());
            tally.add(&verdict);
        }
        tally.row(name)
    };
    GENERATORS.into_iter().map(row).collect()
}

#[test]
fn with_all_promises() {
    assert_rows(
        &rows_of(&KvModel, 1000),
        &[
            "own values                      755 good  245 bad    0 undecided    38537 steps 0ad41921be5d8945",
            "few values                      866 good  134 bad    0 undecided    44808 steps bd03a78b57e906ea",
            "crowded                         912 good   88 bad    0 undecided    27695 steps e522407734604bf5",
            "inserts and deletes             772 good  228 bad    0 undecided    32657 steps 2555faecade07c58",
            "upserts and gets                833 good  167 bad    0 undecided    36346 steps 713a1b3f8c9faad7",
            "calm                            705 good  295 bad    0 undecided    92399 steps 2981bdaddc63bac6",
        ],
    );
}

#[test]
fn without_promises() {
    assert_rows(
        &rows_of(&TACITURN, 50),
        &[
            "own values                       36 good   14 bad    0 undecided     7468 steps b109ab209820e689",
            "few values                       44 good    6 bad    0 undecided     6548 steps 24ea94b736744e52",
            "crowded                          45 good    5 bad    0 undecided    16838 steps 831cfa6383e0f7be",
            "inserts and deletes              41 good    9 bad    0 undecided     2706 steps 8969acaae4637260",
            "upserts and gets                 37 good   13 bad    0 undecided     8502 steps f722e3c4f7fe7c96",
            "calm                             33 good   17 bad    0 undecided     3603 steps e5f11bdf8481f770",
        ],
    );
}

#[test]
fn with_some_promises() {
    assert_rows(
        &rows_of(&RETICENT, 50),
        &[
            "own values                       36 good   14 bad    0 undecided     1394 steps 11c3fd08f43685da",
            "few values                       44 good    6 bad    0 undecided     1127 steps 409c0b3042dbbd36",
            "crowded                          45 good    5 bad    0 undecided      776 steps d8027893698f7848",
            "inserts and deletes              41 good    9 bad    0 undecided     1900 steps 914e6a4c66c0708f",
            "upserts and gets                 37 good   13 bad    0 undecided     1298 steps e88ee78ed49a6d2f",
            "calm                             33 good   17 bad    0 undecided     1974 steps 0f87152628acbfac",
        ],
    );
}

#[test]
fn with_vague_promises() {
    assert_rows(
        &rows_of(&VAGUE, 100),
        &[
            "own values                       73 good   27 bad    0 undecided     6945 steps e7f18184b0bd9168",
            "few values                       88 good   12 bad    0 undecided     6181 steps 9a5e9f6eb6913bbf",
            "crowded                          87 good   13 bad    0 undecided     8034 steps 57ab636a16438165",
            "inserts and deletes              79 good   21 bad    0 undecided     3869 steps aec5e53548cdb6ed",
            "upserts and gets                 82 good   18 bad    0 undecided     9793 steps 70267cb196e6ef50",
            "calm                             68 good   32 bad    0 undecided    11007 steps 6ed807c85cd14cba",
        ],
    );
}

#[test]
fn with_large_classes() {
    assert_rows(
        &rows_of(&LARGE_CLASSES, 200),
        &[
            "own values                      156 good   44 bad    0 undecided     7854 steps 26d34f826f38f24d",
            "few values                      179 good   21 bad    0 undecided     8920 steps a4affc29794a4fe7",
            "crowded                         177 good   23 bad    0 undecided     5676 steps 157d45a67217ff3b",
            "inserts and deletes             154 good   46 bad    0 undecided     6436 steps 549351c9b1b2e0f1",
            "upserts and gets                163 good   37 bad    0 undecided     7354 steps 61ed694abf05ad2b",
            "calm                            141 good   59 bad    0 undecided    18688 steps fde1016df1bf6037",
        ],
    );
}

/// The best attempt of a search that gives up, wherever it is then.
#[test]
fn with_small_budgets() {
    let row = |(name, generate): Generator| {
        let (mut rng, mut tally) = (Rng(8), Tally::default());
        for _ in 0..10 {
            let events = generate(&mut rng);
            for steps in (0..100).chain((100..1000).step_by(17)) {
                tally.add(&check(&KvModel, &events, Budget { steps }));
                tally.add(&check(&TACITURN, &events, Budget { steps }));
            }
        }
        tally.row(name)
    };
    assert_rows(
        &GENERATORS.into_iter().map(row).collect::<Vec<_>>(),
        &[
            "own values                     1355 good  838 bad  867 undecided   143121 steps d5985dea8948a38f",
            "few values                     1688 good  628 bad  744 undecided   121365 steps 6add7e6b6af54f18",
            "crowded                        2210 good    0 bad  850 undecided   143720 steps 7a172d3233ff1bf0",
            "inserts and deletes            1970 good  501 bad  589 undecided    89112 steps 75dd4911182d3eb2",
            "upserts and gets               1677 good  447 bad  936 undecided   135057 steps 4b9c82399569f371",
            "calm                           1047 good  722 bad 1291 undecided   161664 steps 7786d10282bde9c2",
        ],
    );
}

type QueueEvent = Event<QueueInput, QueueOutput>;

/// A history that an atomic queue could have, with some answers changed or missing.
fn queued(rng: &mut Rng, capacity: usize) -> Vec<QueueEvent> {
    let mut moments: Vec<(u64, u64, u64)> = Vec::new();
    for _ in 0..12 {
        let (call_ns, duration) = (rng.below(20), rng.below(12));
        moments.push((call_ns + rng.below(duration + 1), call_ns, call_ns + duration));
    }
    moments.sort_unstable();
    let mut queue = VecDeque::new();
    let mut events = Vec::new();
    for (n, &(_, call_ns, return_ns)) in (0..).zip(&moments) {
        let (input, mut output) = if rng.below(2) == 0 {
            let has_room = queue.len() < capacity;
            if has_room {
                queue.push_back(n % 4);
            }
            (QueueInput::Enqueue(vec![n % 4]), QueueOutput::Enqueued(has_room))
        } else {
            (QueueInput::Dequeue, QueueOutput::Dequeued(queue.pop_front()))
        };
        let client = n as u32;
        let fate = rng.below(24);
        if fate == 0 {
            output = match output {
                QueueOutput::Enqueued(done) => QueueOutput::Enqueued(!done),
                QueueOutput::Dequeued(_) => QueueOutput::Dequeued(Some(rng.below(4))),
                other => other,
            };
        }
        events.push(match fate {
            1 => Event::pending(client, call_ns, input),
            _ => Event::returned(client, call_ns, return_ns, input, output),
        });
    }
    events
}

#[test]
fn of_queues() {
    let row = |capacity| {
        let (mut rng, mut tally) = (Rng(9), Tally::default());
        for _ in 0..200 {
            let events = queued(&mut rng, capacity);
            tally.add(&check(&QueueModel { capacity }, &events, Budget { steps: 100_000 }));
        }
        tally.row(&format!("capacity {capacity}"))
    };
    assert_rows(
        &[1, 2, 8].map(row),
        &[
            "capacity 1                      134 good   66 bad    0 undecided     3603 steps 31b03ba1c5cadfca",
            "capacity 2                      136 good   64 bad    0 undecided     7099 steps 62aa7933e53fd862",
            "capacity 8                      130 good   70 bad    0 undecided    28916 steps 65ad149646fcc173",
        ],
    );
}

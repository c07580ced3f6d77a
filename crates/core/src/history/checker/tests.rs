use super::super::kv::{KvEvent, KvInput, KvModel, KvOutput};
use super::*;

mod explain;
mod steps;

/// Splitmix64: each test is determined by its seed.
pub(in super::super) struct Rng(pub(in super::super) u64);

impl Rng {
    pub(in super::super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % end
    }
}

/// The same model with other promises.
struct Promising(fn(&KvInput, Option<&KvOutput>) -> Effect<Option<u64>>);

/// It promises nothing.
const TACITURN: Promising = Promising(|_, _| Effect::Unknown);

impl Model for Promising {
    type Input = KvInput;
    type Output = KvOutput;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        KvModel.initial()
    }

    fn step(&self, state: &Option<u64>, input: &KvInput, output: Option<&KvOutput>) -> Option<Option<u64>> {
        KvModel.step(state, input, output)
    }

    fn effect(&self, input: &KvInput, output: Option<&KvOutput>) -> Effect<Option<u64>> {
        self.0(input, output)
    }
}

/// Tries every order; shares nothing with the search.
fn brute_force(events: &[KvEvent], placed: u32, state: Option<u64>) -> bool {
    let unplaced = |at: usize| placed & 1 << at == 0;
    let mut done = true;
    for (at, event) in events.iter().enumerate().filter(|&(at, _)| unplaced(at)) {
        done &= event.return_ns.is_none();
        let must_wait = events.iter().enumerate().any(|(other, before)| {
            unplaced(other) && before.return_ns.is_some_and(|return_ns| return_ns < event.call_ns)
        });
        if must_wait {
            continue;
        }
        if let Some(after) = KvModel.step(&state, &event.input, event.output.as_ref())
            && brute_force(events, placed | 1 << at, after)
        {
            return true;
        }
    }
    done
}

fn agree(events: &[KvEvent]) -> bool {
    let expected = brute_force(events, 0, None);
    let said = check(&KvModel, events, Budget::default());
    let without_promises = check(&TACITURN, events, Budget::default());
    for verdict in [&said, &without_promises] {
        assert_eq!(verdict.is_linearizable(), expected, "{verdict}\n{events:#?}");
        assert_eq!(verdict.is_violation(), !expected, "{verdict}\n{events:#?}");
    }
    expected
}

fn any_input(rng: &mut Rng, value: u64) -> KvInput {
    match rng.below(6) {
        0 | 1 => KvInput::Get,
        2 => KvInput::Insert(value),
        3 => KvInput::Update(value),
        4 => KvInput::Upsert(value),
        _ => KvInput::Delete,
    }
}

fn any_output(rng: &mut Rng, input: KvInput, values: u64) -> KvOutput {
    match input {
        KvInput::Get => KvOutput::Found(Some(rng.below(values + 1)).filter(|&value| value > 0)),
        KvInput::Upsert(_) => KvOutput::Stored,
        _ => KvOutput::Succeeded(rng.below(2) == 0),
    }
}

/// A history that an atomic store of one key could have: every operation takes effect at its own moment between its
/// call and its return.
pub(in super::super) fn atomic(
    rng: &mut Rng,
    len: u64,
    duration_max: u64,
    spread: u64,
    mut input: impl FnMut(&mut Rng, u64) -> KvInput,
) -> Vec<KvEvent> {
    let mut moments: Vec<(u64, KvEvent)> = (0..len)
        .map(|n| {
            let call_ns = rng.below(spread);
            let return_ns = call_ns + rng.below(duration_max);
            let moment = call_ns + rng.below(return_ns - call_ns + 1);
            let mut event = Event::pending(n as u32, call_ns, input(rng, n + 1));
            event.return_ns = Some(return_ns);
            (moment, event)
        })
        .collect();
    moments.sort_by_key(|&(moment, _)| moment);
    let mut state = None;
    for (_, event) in &mut moments {
        let output = match event.input {
            KvInput::Get => KvOutput::Found(state),
            KvInput::Upsert(_) => KvOutput::Stored,
            KvInput::Insert(_) => KvOutput::Succeeded(state.is_none()),
            KvInput::Update(_) | KvInput::Delete => KvOutput::Succeeded(state.is_some()),
        };
        event.output = Some(output);
        state = KvModel.step(&state, &event.input, event.output.as_ref()).expect("it is the model's own answer");
    }
    moments.into_iter().map(|(_, event)| event).collect()
}

#[test]
fn agrees_with_brute_force_on_random_histories() {
    let mut rng = Rng(1);
    let (mut good, mut bad) = (0, 0);
    for round in 0..150_000 {
        let (len, values) = (1 + rng.below(6), 1 + rng.below(4));
        let (spread, duration_max) = (1 + rng.below(20), 1 + rng.below(12));
        // From an atomic store with a few answers changed, so that both verdicts are common and neither is obvious.
        let mut events = atomic(&mut rng, len, duration_max, spread, |rng, n| {
            let value = if round % 2 == 0 { n } else { 1 + rng.below(values) };
            any_input(rng, value)
        });
        for event in &mut events {
            match rng.below(6) {
                0 => event.output = Some(any_output(&mut rng, event.input, if round % 2 == 0 { len } else { values })),
                1 if rng.below(2) == 0 => (event.return_ns, event.output) = (None, None),
                _ => {}
            }
        }
        *(if agree(&events) { &mut good } else { &mut bad }) += 1;
    }
    println!("{good} good, {bad} bad");
    assert!(good > 25_000 && bad > 25_000, "{good} good, {bad} bad");
}

/// The histories of an event list in every order of the list.
fn orders(events: &[KvEvent]) -> Vec<Vec<KvEvent>> {
    let Some((first, rest)) = events.split_first() else { return vec![vec![]] };
    let with_first = |rest: Vec<KvEvent>| {
        (0..=rest.len()).map(move |at| [&rest[..at], &[*first], &rest[at..]].concat()).collect::<Vec<_>>()
    };
    orders(rest).into_iter().flat_map(with_first).collect()
}

/// Writes only, plus a few reads, all concurrent: the most difficult input for the reductions.
#[test]
fn agrees_with_brute_force_on_crowded_histories() {
    let mut rng = Rng(2);
    let (mut good, mut bad) = (0, 0);
    for round in 0..6_000 {
        let mut events = atomic(&mut rng, 7 + round % 2, 12, 8, |rng, n| any_input(rng, 1 + n / (1 + round % 3)));
        for event in &mut events {
            match rng.below(16) {
                0 | 1 => event.output = Some(any_output(&mut rng, event.input, 8)),
                2 => (event.return_ns, event.output) = (None, None),
                _ => {}
            }
        }
        *(if agree(&events) { &mut good } else { &mut bad }) += 1;
    }
    println!("{good} good, {bad} bad");
    assert!(good > 1_000 && bad > 1_000, "{good} good, {bad} bad");
}

/// Every history of three operations, each of ten kinds, in every order of calls and returns.
#[test]
fn agrees_with_brute_force_on_all_histories_of_three() {
    let kinds = [
        (KvInput::Get, Some(KvOutput::Found(None))),
        (KvInput::Get, Some(KvOutput::Found(Some(1)))),
        (KvInput::Insert(1), Some(KvOutput::Succeeded(true))),
        (KvInput::Insert(1), Some(KvOutput::Succeeded(false))),
        (KvInput::Update(2), Some(KvOutput::Succeeded(true))),
        (KvInput::Upsert(1), Some(KvOutput::Stored)),
        (KvInput::Delete, Some(KvOutput::Succeeded(true))),
        (KvInput::Delete, Some(KvOutput::Succeeded(false))),
        (KvInput::Upsert(1), None),
        (KvInput::Delete, None),
    ];
    // Calls and returns of three operations, named by their letters: every word with each letter twice.
    let mut words = vec![String::new()];
    for _ in 0..6 {
        let longer = |word: &String| {
            let letters = ["a", "b", "c"].into_iter().filter(|&letter| word.matches(letter).count() < 2);
            letters.map(|letter| format!("{word}{letter}")).collect::<Vec<_>>()
        };
        words = words.iter().flat_map(longer).collect();
    }
    assert_eq!(words.len(), 90);
    let (mut good, mut bad) = (0, 0);
    for word in &words {
        for code in 0..1000 {
            let events: Vec<KvEvent> = [('a', code % 10), ('b', code / 10 % 10), ('c', code / 100)]
                .iter()
                .map(|&(letter, kind)| {
                    let (input, output) = kinds[kind];
                    let time = |found: Option<usize>| found.expect("each letter is there twice") as u64;
                    let return_ns = output.map(|_| time(word.rfind(letter)));
                    Event { client: kind as u32, call_ns: time(word.find(letter)), return_ns, input, output }
                })
                .collect();
            *(if agree(&events) { &mut good } else { &mut bad }) += 1;
        }
    }
    assert!(good > 10_000 && bad > 10_000, "{good} good, {bad} bad");
}

//! What a verdict says.

use super::*;

const DONE: KvOutput = KvOutput::Stored;
const YES: KvOutput = KvOutput::Succeeded(true);

fn op(call_ns: u64, return_ns: u64, input: KvInput, output: KvOutput) -> KvEvent {
    Event::returned(0, call_ns, return_ns, input, output)
}

fn upsert(call_ns: u64, return_ns: u64, value: u64) -> KvEvent {
    op(call_ns, return_ns, KvInput::Upsert(value), DONE)
}

fn get(call_ns: u64, return_ns: u64, value: Option<u64>) -> KvEvent {
    op(call_ns, return_ns, KvInput::Get, KvOutput::Found(value))
}

fn evidence<M: Model<Input = KvInput, Output = KvOutput>>(model: &M, events: &[KvEvent]) -> Evidence {
    match check(model, events, Budget::default()) {
        Verdict::Violation { evidence, .. } => evidence,
        verdict => panic!("{verdict}\n{events:#?}"),
    }
}

#[test]
fn evidence_has_a_line_for_each_operation() {
    let stuck = evidence(
        &KvModel,
        &[
            op(0, 1, KvInput::Insert(1), YES),
            op(2, 9, KvInput::Insert(2), YES),
            Event::pending(3, 2, KvInput::Delete),
            op(3, 9, KvInput::Delete, YES),
            op(4, 9, KvInput::Delete, YES),
            op(5, 8, KvInput::Delete, YES),
        ],
    );
    assert_eq!((&stuck.placed[..], &stuck.culprits[..]), (&[0, 5, 1, 3][..], &[2, 4][..]));
    assert_eq!(
        stuck.to_string(),
        "no order of the operations goes further (4 of 6 placed)
  #0      client 0   [0, 1] Insert(1) -> Succeeded(true)   leaves Some(1)
  #5      client 0   [5, 8] Delete -> Succeeded(true)   leaves None
  #1      client 0   [2, 9] Insert(2) -> Succeeded(true)   leaves Some(2)
  #3      client 0   [3, 9] Delete -> Succeeded(true)   leaves None
  then, in state None, none of these leads on:
  #2      client 3   [2, never) Delete -> ?   impossible here
  #4      client 0   [4, 9] Delete -> Succeeded(true)   impossible here"
    );
}

/// A value that is written twice and then overwritten is seen again.
#[test]
fn evidence_says_which_operations_are_possible() {
    let stuck = evidence(&KvModel, &[upsert(0, 1, 1), upsert(2, 3, 1), upsert(4, 5, 2), get(6, 7, Some(1))]);
    assert_eq!((&stuck.placed[..], &stuck.culprits[..]), (&[0][..], &[1][..]));
    assert_eq!(
        stuck.to_string(),
        "no order of the operations goes further (1 of 4 placed)
  #0      client 0   [0, 1] Upsert(1) -> Stored   leaves Some(1)
  then, in state Some(1), none of these leads on:
  #1      client 0   [2, 3] Upsert(1) -> Stored   possible here, but another then fails"
    );
}

/// The first of them is at fault: nothing is placed, and it is named.
#[test]
fn evidence_of_an_impossible_start() {
    let stuck = evidence(&KvModel, &[op(0, 1, KvInput::Insert(1), KvOutput::Succeeded(false)), upsert(2, 5, 2)]);
    assert_eq!((&stuck.placed[..], &stuck.culprits[..]), (&[][..], &[0][..]));
    assert_eq!(
        stuck.to_string(),
        "no order of the operations goes further (0 of 2 placed)
  then, in state None, none of these leads on:
  #0      client 0   [0, 1] Insert(1) -> Succeeded(false)   impossible here"
    );
}

#[test]
fn evidence_shows_sixteen_operations_of_each_part() {
    // So many upserts one after the other, and then so many updates at once, all with wrong answers.
    let history = |before: u64, after: u64| -> Vec<KvEvent> {
        let placed = (0..before).map(|n| upsert(2 * n, 2 * n + 1, n + 1));
        let open = (0..after).map(|n| op(100, 200, KvInput::Update(n), KvOutput::Succeeded(false)));
        placed.chain(open).collect()
    };
    let shown = |before, after| {
        let evidence = evidence(&TACITURN, &history(before, after));
        assert_eq!((evidence.placed.len(), evidence.culprits.len()), (before as usize, after as usize));
        let text = evidence.to_string();
        let placed = text.matches("leaves Some").count();
        let culprits = text.matches("impossible here").count();
        let hidden: Vec<String> =
            text.lines().filter(|line| line.contains("...")).map(|line| line.trim().to_string()).collect();
        (placed, culprits, hidden.join(", "))
    };
    assert_eq!(shown(3, 2), (3, 2, String::new()));
    assert_eq!(shown(16, 16), (16, 16, String::new()));
    assert_eq!(shown(17, 16), (16, 16, "... 1 operations".into()));
    assert_eq!(shown(16, 17), (16, 16, "... and 1 more".into()));
    assert_eq!(shown(20, 21), (16, 16, "... 4 operations, ... and 5 more".into()));
    // The last ones placed, with the state that they leave; the first ones that are open.
    let text = evidence(&TACITURN, &history(20, 21)).to_string();
    let numbers: Vec<&str> = text.split('#').skip(1).map(|line| line.split(' ').next().expect("a number")).collect();
    let expected: Vec<String> = (4..36).map(|at| at.to_string()).collect();
    assert_eq!(numbers, expected);
    assert!(text.contains("leaves Some(20)\n  then, in state Some(20), none of these leads on:"), "{text}");
}

/// Whatever the order in which the events are given.
#[test]
fn contradictions_name_their_operations() {
    let contradictions: [(Reason, &[KvEvent]); 6] = [
        // A value that was overwritten is seen again.
        (Reason::Contradiction, &[upsert(0, 1, 1), upsert(2, 3, 2), get(4, 5, Some(1))]),
        // Each of two values must last until the other is there.
        (Reason::Contradiction, &[upsert(0, 1, 1), get(8, 30, Some(1)), upsert(0, 6, 2), get(20, 30, Some(2))]),
        // The same, and one is seen before its writer returns.
        (Reason::Contradiction, &[upsert(0, 1, 1), get(8, 30, Some(1)), get(0, 6, Some(2)), get(20, 30, Some(2))]),
        // It is seen absent after it was there.
        (Reason::Contradiction, &[upsert(0, 1, 1), get(2, 3, None)]),
        (Reason::NeverWritten, &[get(2, 3, Some(3))]),
        (Reason::ReadBeforeWritten, &[upsert(4, 5, 1), get(2, 3, Some(1))]),
    ];
    for (at, (reason, culprits)) in contradictions.into_iter().enumerate() {
        // The writer that is pending is no part of the contradiction.
        let pending = (at == 2).then(|| Event::pending(9, 0, KvInput::Upsert(2)));
        for mut events in orders(culprits) {
            events.extend(pending);
            let evidence = evidence(&KvModel, &events);
            assert_eq!(evidence.reason, reason, "{events:#?}");
            let expected: Vec<usize> = (0..culprits.len()).collect();
            let mut named = evidence.culprits.clone();
            if reason == Reason::ReadBeforeWritten {
                named.sort_unstable(); // the read is first
                assert_eq!(events[evidence.culprits[0]].input, KvInput::Get);
            }
            assert_eq!(named, expected, "{events:#?}");
        }
    }
    let good = [upsert(0, 1, 1), get(2, 3, Some(1)), upsert(4, 5, 2), get(6, 7, Some(2)), upsert(8, 9, 3)];
    for events in orders(&good) {
        assert!(check(&KvModel, &events, Budget::default()).is_linearizable(), "{events:#?}");
    }
}

/// A pending read gives no information, even if the model promises where it is possible.
#[test]
fn a_pending_read_needs_no_state() {
    let model = Promising(|input, output| match (input, output) {
        (KvInput::Get, None) => Effect::Read { only_in: Some(Some(5)) },
        _ => KvModel.effect(input, output),
    });
    let pending = Event::pending(1, 0, KvInput::Get);
    for events in [
        [pending, upsert(0, 1, 1), get(2, 3, Some(1))],
        [pending, upsert(0, 1, 5), upsert(2, 3, 1)],
        [pending, upsert(0, 9, 5), upsert(0, 9, 1)],
    ] {
        let verdict = check(&model, &events, Budget::default());
        assert!(verdict.is_linearizable(), "{verdict}");
    }
}

/// A wrong promise may cost a verdict, but grants none.
#[test]
fn an_order_that_explains_nothing_is_not_taken() {
    let model = Promising(|_, _| Effect::Read { only_in: None });
    let verdict = check(&model, &[upsert(0, 1, 1), get(2, 3, None)], Budget::default());
    assert!(matches!(verdict, Verdict::Undecided { .. }), "{verdict}");
}

#[test]
fn a_history_that_is_too_long_is_undecided() {
    let events = [upsert(0, 1, 1), upsert(2, 3, 2), get(4, 5, Some(2))];
    assert!(check_at_most(3, &KvModel, &events, Budget::default()).is_linearizable());
    let verdict = check_at_most(2, &KvModel, &events, Budget::default());
    let Verdict::Undecided { evidence, steps: 0 } = &verdict else { panic!("{verdict}") };
    assert_eq!((evidence.reason, evidence.culprits.len()), (Reason::TooLong, 0));
    assert_eq!(
        verdict.to_string(),
        "undecided: gave up after 0 steps; raise the budget. At its best: the history is too long to check"
    );
}

/// A search gives up when it has taken more steps than its budget.
#[test]
fn a_budget_is_used_up_before_a_search_gives_up() {
    let events = [upsert(0, 9, 1), upsert(0, 9, 2), get(1, 2, Some(2)), get(3, 4, Some(1))];
    let all = check(&KvModel, &events, Budget::default()).steps();
    for steps in 0..2 * all {
        let verdict = check(&KvModel, &events, Budget { steps });
        assert!(verdict.is_linearizable() || verdict.steps() > steps, "{verdict} of {steps}");
        assert!(verdict.is_linearizable() || steps < all, "{verdict} of {steps}");
    }
}

#[test]
fn verify_accepts_only_orders_that_explain() {
    let events = [
        upsert(0, 10, 1),
        upsert(20, 30, 2),
        get(25, 26, Some(1)),
        Event::pending(1, 28, KvInput::Upsert(3)),
        upsert(0, 40, 4),
    ];
    let good: [&[usize]; 5] = [&[0, 2, 1, 4], &[4, 0, 2, 1], &[0, 2, 4, 1, 3], &[0, 2, 1, 3, 4], &[0, 2, 3, 1, 4]];
    for order in good {
        assert!(verify(&KvModel, &events, order), "{order:?}");
    }
    let bad: [(&str, &[usize]); 9] = [
        ("one is missing", &[0, 2, 1]),
        ("one is there twice", &[0, 2, 1, 1, 4]),
        ("the pending one is there twice", &[0, 2, 1, 3, 3, 4]),
        ("no such operation", &[0, 2, 1, 4, 5]),
        ("the get finds another value", &[0, 1, 2, 4]),
        ("the get finds nothing yet", &[2, 0, 1, 4]),
        ("it returned before the first was called", &[1, 0, 2, 4]),
        ("it returned before one was called that is not the last", &[1, 4, 0, 2]),
        ("the pending one comes before its call", &[4, 3, 0, 2, 1]),
    ];
    for (what, order) in bad {
        assert!(!verify(&KvModel, &events, order), "{what}: {order:?}");
    }
    // A return before the call, which no order explains.
    assert!(!verify(&KvModel, &[upsert(5, 4, 1)], &[0]));
}

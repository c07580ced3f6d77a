use super::super::Reason;
use super::super::checker::tests::{Rng, atomic};
use super::KvInput::{Delete, Get, Insert, Update, Upsert};
use super::*;

const YES: KvOutput = KvOutput::Succeeded(true);
const NO: KvOutput = KvOutput::Succeeded(false);
const DONE: KvOutput = KvOutput::Stored;
const NOTHING: KvOutput = KvOutput::Found(None);

fn found(value: u64) -> KvOutput {
    KvOutput::Found(Some(value))
}

fn op(call_ns: u64, return_ns: u64, input: KvInput, output: KvOutput) -> KvEvent {
    Event::returned(0, call_ns, return_ns, input, output)
}

fn pending(call_ns: u64, input: KvInput) -> KvEvent {
    Event::pending(9, call_ns, input)
}

fn evidence(events: &[KvEvent]) -> Evidence {
    match check(&KvModel, events, Budget::default()) {
        Verdict::Violation { evidence, .. } => evidence,
        verdict => panic!("{verdict}\n{events:#?}"),
    }
}

fn assert_good(events: &[KvEvent]) {
    let verdict = check(&KvModel, events, Budget::default());
    assert!(verdict.is_linearizable(), "{verdict}");
}

#[test]
fn a_lost_update_is_rejected() {
    let events =
        [op(0, 1, Insert(1), YES), op(2, 5, Update(2), YES), op(6, 7, Update(3), YES), op(8, 9, Get, found(2))];
    assert_eq!(evidence(&events).culprits, [1, 2, 3]);
    // Both of two concurrent updates.
    let events =
        [op(0, 1, Insert(1), YES), op(2, 9, Update(2), YES), op(2, 9, Update(3), YES), op(10, 11, Get, found(1))];
    evidence(&events);
}

#[test]
fn a_stale_read_is_rejected() {
    let events = [op(0, 1, Upsert(1), DONE), op(2, 3, Upsert(2), DONE), op(4, 5, Get, found(1))];
    let evidence_of_one = evidence(&events);
    assert_eq!((evidence_of_one.reason, evidence_of_one.culprits), (Reason::Contradiction, vec![0, 1, 2]));
    // New, then old, while the write is in progress.
    evidence(&[op(0, 1, Upsert(1), DONE), op(2, 9, Upsert(2), DONE), op(3, 4, Get, found(2)), op(5, 6, Get, found(1))]);
    // Absent after it was present.
    evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Get, NOTHING)]);
    // Two readers that disagree on the order of two writes.
    let writes = [op(0, 20, Upsert(1), DONE), op(0, 20, Upsert(2), DONE)];
    let one = [op(1, 2, Get, found(1)), op(3, 4, Get, found(2))];
    let other = [op(1, 2, Get, found(2)), op(3, 4, Get, found(1))];
    assert_good(&[writes, one].concat());
    assert_good(&[writes, other].concat());
    evidence(&[writes, one, other].concat());
}

#[test]
fn a_resurrected_delete_is_rejected() {
    evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, YES), op(4, 5, Get, found(1))]);
    evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, YES), op(4, 5, Delete, YES)]);
    // Seen absent, then present again, within the delete.
    evidence(&[op(0, 1, Insert(1), YES), op(2, 9, Delete, YES), op(3, 4, Get, NOTHING), op(5, 6, Get, found(1))]);
}

#[test]
fn a_torn_value_is_rejected() {
    let events = [op(0, 9, Upsert(0x1111), DONE), op(0, 9, Upsert(0x2222), DONE), op(1, 8, Get, found(0x1122))];
    let evidence = evidence(&events);
    assert_eq!((evidence.reason, evidence.culprits), (Reason::NeverWritten, vec![2]));
}

#[test]
fn a_value_from_the_future_is_rejected() {
    let events = [op(0, 1, Get, found(5)), op(2, 3, Upsert(5), DONE)];
    assert_eq!(evidence(&events).reason, Reason::ReadBeforeWritten);
}

#[test]
fn a_double_insert_is_rejected() {
    let evidence = evidence(&[op(0, 9, Insert(1), YES), op(0, 9, Insert(2), YES)]);
    assert_eq!((evidence.reason, evidence.placed.len(), evidence.culprits.len()), (Reason::Stuck, 1, 1));
    assert!(evidence.to_string().contains("impossible here"), "{evidence}");
}

#[test]
fn a_success_on_an_absent_key_is_rejected() {
    evidence(&[op(0, 1, Update(1), YES)]);
    evidence(&[op(0, 1, Delete, YES)]);
    evidence(&[op(0, 9, Insert(1), YES), op(0, 1, Delete, YES), op(2, 3, Update(2), YES), op(10, 11, Get, found(2))]);
}

#[test]
fn a_failure_on_the_wrong_state_is_rejected() {
    evidence(&[op(0, 1, Insert(1), NO)]);
    evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Update(2), NO)]);
    evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, NO)]);
    // An answer to another question.
    evidence(&[op(0, 1, Get, YES)]);
    evidence(&[op(0, 1, Upsert(1), NO)]);
    evidence(&[op(0, 1, Update(1), DONE)]);
    evidence(&[op(0, 1, Upsert(1), NOTHING)]);
}

#[test]
fn a_return_before_the_call_is_rejected() {
    assert_eq!(evidence(&[op(5, 4, Get, NOTHING)]).reason, Reason::ReturnsBeforeCall);
}

#[test]
fn overlapping_operations_may_be_reordered() {
    assert_good(&[]);
    assert_good(&[op(0, 9, Get, found(1)), op(5, 20, Upsert(1), DONE)]);
    // Touching is overlapping.
    assert_good(&[op(0, 5, Get, found(1)), op(5, 5, Upsert(1), DONE)]);
    assert_good(&[
        op(0, 9, Insert(1), YES),
        op(0, 9, Insert(2), YES),
        op(0, 9, Delete, YES),
        op(10, 11, Get, found(1)),
    ]);
    // The write that is called last must come first.
    assert_good(&[
        op(0, 9, Upsert(1), DONE),
        op(5, 8, Upsert(2), DONE),
        op(10, 11, Get, found(1)),
        op(6, 7, Get, found(2)),
    ]);
    // Values written more than once.
    assert_good(&[
        op(0, 9, Upsert(1), DONE),
        op(0, 9, Upsert(2), DONE),
        op(3, 30, Upsert(1), DONE),
        op(10, 11, Get, found(2)),
        op(12, 13, Get, found(1)),
    ]);
}

#[test]
fn a_pending_operation_may_take_effect_late_or_never() {
    let insert = pending(0, Insert(1));
    assert_good(&[insert]);
    assert_good(&[insert, op(1, 2, Get, found(1))]);
    assert_good(&[insert, op(1, 2, Get, NOTHING), op(3, 4, Insert(2), YES), op(5, 6, Get, found(2))]);
    // Long after its call, when other operations have changed the state.
    assert_good(&[
        insert,
        op(1, 2, Insert(2), YES),
        op(3, 4, Delete, YES),
        op(5, 6, Get, NOTHING),
        op(7, 8, Get, found(1)),
    ]);
    // But only once, and not before its call.
    evidence(&[insert, op(1, 2, Get, found(1)), op(3, 4, Delete, YES), op(5, 6, Get, found(1))]);
    evidence(&[pending(5, Insert(1)), op(1, 2, Get, found(1))]);
    // It also does not fit everywhere: an update needs a value to replace.
    evidence(&[pending(0, Update(1)), op(1, 2, Get, found(1))]);
    assert_good(&[pending(0, Delete), op(1, 2, Insert(1), YES), op(3, 4, Insert(2), YES)]);
    evidence(&[pending(0, Delete), op(1, 2, Insert(1), YES), op(3, 4, Insert(2), YES), op(5, 6, Insert(3), YES)]);
    // A pending get gives no information, nor does an answer that was lost.
    assert_good(&[pending(0, Get), op(1, 2, Get, NOTHING)]);
    let lost = Event { return_ns: Some(1), ..insert };
    assert_good(&[lost, op(2, 3, Get, NOTHING), op(4, 5, Get, found(1))]);
}

#[test]
fn a_small_budget_is_undecided_and_no_success() {
    let mut rng = Rng(3);
    let events = atomic(&mut rng, 200, 40, 100, workload);
    let verdict = check(&KvModel, &events, Budget { steps: 50 });
    assert!(matches!(verdict, Verdict::Undecided { .. }) && !verdict.is_linearizable() && !verdict.is_violation());
    let mut history = KvHistory::new();
    events.iter().for_each(|&event| history.record(4, event));
    let failure = history.check_each_key(Budget { steps: 50 }).expect_err("undecided is a failure");
    assert!(matches!(failure, Failure::Undecided { key: 4, .. }), "{failure}");
    assert!(history.check_each_key(Budget::default()).is_ok());
}

#[test]
fn the_first_violation_is_reported_before_undecided_keys() {
    let mut history = KvHistory::new();
    atomic(&mut Rng(3), 200, 40, 100, workload).into_iter().for_each(|event| history.record(1, event));
    history.record(2, op(0, 1, Get, found(1)));
    let failure = history.check_each_key(Budget { steps: 50 }).expect_err("key 2 is bad");
    assert!(matches!(failure, Failure::Violation { key: 2, .. }), "{failure}");
}

#[test]
fn overlapping_operations_are_counted() {
    let mut rng = Rng(4);
    for _ in 0..2000 {
        let events = atomic(&mut rng, 8, 10, 40, workload);
        let meets_another = |&(at, event): &(usize, &KvEvent)| {
            events.iter().enumerate().any(|(other_at, other)| other_at != at && event.overlaps(other))
        };
        let expected = events.iter().enumerate().filter(meets_another).count() as u64;
        assert_eq!(overlapping(&events), expected, "{events:#?}");
    }
}

#[test]
fn a_log_holds_the_recorded_events() {
    assert_eq!(KvRecord::LEN, 48);
    let mut history = KvHistory::new();
    for (at, event) in (0..).zip([
        op(1, 2, Get, NOTHING),
        op(3, u64::MAX, Get, found(u64::MAX)),
        op(5, 6, Insert(7), YES),
        op(5, 6, Update(8), NO),
        op(7, 7, Upsert(9), DONE),
        op(8, 9, Delete, YES),
        pending(10, Upsert(11)),
    ]) {
        history.record(at % 3, event);
    }
    let bytes = history.to_bytes();
    assert_eq!(KvHistory::from_bytes(&bytes).as_ref(), Ok(&history));
    let mut twice = history.clone();
    twice.merge(history.clone());
    assert_eq!(twice.len(), 14);
    assert_eq!(KvHistory::from_bytes(&[&bytes[..], &bytes[..]].concat()).map(|joined| joined.len()), Ok(14));

    // Any byte may be wrong. The result is an error or another history, never a panic.
    for at in 0..bytes.len() {
        for wrong in [0, 1, 6, 7, 255] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            if let Err(error) = KvHistory::from_bytes(&bytes) {
                assert!(matches!(error, LogError::BadRecord { .. }), "{error}");
            }
        }
    }
    assert_eq!(KvHistory::from_bytes(&bytes[1..]), Err(LogError::Torn { bytes: bytes.len() - 1 }));
    assert_eq!(KvHistory::from_bytes(&[0; 48]), Err(LogError::BadRecord { record: 0, problem: "unknown operation" }));
}

#[test]
fn a_bad_record_is_named_with_its_problem() {
    let good = KvRecord::new(1, &op(5, 6, Insert(7), YES));
    assert_eq!(KvRecord::new(1, &op(6, 6, Insert(7), YES)).decode(), Ok((1, op(6, 6, Insert(7), YES))));
    for (bad, problem) in [
        (KvRecord { op: 0, ..good }, "unknown operation"),
        (KvRecord { op: OP_DELETE + 1, ..good }, "unknown operation"),
        (KvRecord { op: OP_GET, ..good }, "the answer does not fit the operation"),
        (KvRecord { answer: ANSWER_STORED, ..good }, "the answer does not fit the operation"),
        (KvRecord { answer: ANSWER_FOUND, ..good }, "the answer does not fit the operation"),
        (KvRecord { answer: 0, ..good }, "unknown answer"),
        (KvRecord { answer: ANSWER_STORED + 1, ..good }, "unknown answer"),
        (KvRecord { return_ns: 4.into(), ..good }, "returns before it is called"),
        (KvRecord { zero: [0, 1], ..good }, "the last two bytes are not zero"),
        (KvRecord { zero: [1, 0], ..good }, "the last two bytes are not zero"),
    ] {
        assert_eq!(bad.decode(), Err(problem), "{bad:?}");
        let log = [good.as_bytes(), bad.as_bytes(), good.as_bytes()].concat();
        let error = KvHistory::from_bytes(&log).expect_err(problem);
        assert_eq!(error.to_string(), format!("record 1 of the log (byte 48): {problem}"));
    }
    // A pending operation has no return that could be wrong.
    let pending = KvRecord { answer: ANSWER_PENDING, return_ns: 4.into(), ..good };
    assert_eq!(pending.decode(), Ok((1, Event::pending(0, 5, Insert(7)))));
}

#[test]
fn a_report_counts_the_operations_of_all_keys() {
    let mut history = KvHistory::new();
    for event in [op(0, 5, Insert(1), YES), op(5, 6, Get, found(1)), op(7, 8, Delete, YES)] {
        history.record(1, event);
    }
    for event in [op(0, 1, Upsert(1), DONE), op(2, 9, Get, found(2)), pending(3, Upsert(2)), pending(10, Delete)] {
        history.record(2, event);
    }
    let report = history.check_each_key(Budget::default()).expect("good");
    let steps: u64 = history.keys.values().map(|events| check(&KvModel, events, Budget::default()).steps()).sum();
    assert!(steps > 0);
    assert_eq!(report, Report { operations: 7, keys: 2, overlapping: 5, pending: 2, steps });
    assert_eq!(
        report.to_string(),
        format!("linearizable: 7 operations on 2 keys, 5 overlapping, 2 pending, {steps} steps")
    );
}

#[test]
fn a_pending_record_gives_way_to_the_complete_one() {
    let insert = op(0, 5, Insert(1), YES);
    let announced = Event { return_ns: None, output: None, ..insert };
    let mut history = KvHistory::new();
    history.record(1, announced);
    history.record(1, insert);
    history.record(1, op(6, 7, Delete, YES));
    let report = history.check_each_key(Budget::default()).expect("good");
    assert_eq!((report.operations, report.pending), (2, 0));
    // The insert cannot happen a second time.
    history.record(1, op(8, 9, Get, found(1)));
    assert!(history.check_each_key(Budget::default()).is_err());
    // Unless a second pending record announces it, too.
    history.record(1, announced);
    let report = history.check_each_key(Budget::default()).expect("good");
    assert_eq!((report.operations, report.pending), (4, 1));
}

/// Prints how fast histories of a hot key are checked. Run it with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "it measures"]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "nothing depends on the time it measures")]
fn speed() {
    type Workload = fn(&mut Rng, u64) -> KvInput;
    let workloads: [(&str, Workload, u64); 9] = [
        ("mixed", workload, 64),
        ("mostly reads", |rng, value| if rng.below(20) == 0 { Update(value) } else { get_or_insert(rng, value) }, 64),
        ("mostly writes", |rng, value| if rng.below(10) == 0 { Get } else { Upsert(value) }, 64),
        ("inserts and deletes", |rng, value| if rng.below(2) == 0 { Insert(value) } else { Delete }, 64),
        ("no upserts", no_upserts, 16),
        ("no upserts", no_upserts, 64),
        ("few values", |rng, value| workload(rng, value % 5), 4),
        ("few values", |rng, value| workload(rng, value % 5), 16),
        ("mixed", workload, 128),
    ];
    for (name, workload, concurrent) in workloads {
        let mut history = KvHistory::new();
        let mut rng = Rng(5);
        for key in 0..64 {
            for event in atomic(&mut rng, 20_000, 2000, 20_000 * 1000 / concurrent, workload) {
                history.record(key, event);
            }
        }
        let now = std::time::Instant::now();
        match history.check_each_key(Budget::default()) {
            Ok(report) => println!("{name:<20} {concurrent:>4} {:>9.1?} per key: {report}", now.elapsed() / 64),
            Err(failure) => println!("{name:<20} {concurrent:>4} {:>9.1?} in all: {failure}", now.elapsed()),
        }
        // The same history with one answer in the middle changed.
        let (mut violations, mut slowest, mut undecided) = (0, std::time::Duration::ZERO, 0);
        let now = std::time::Instant::now();
        for events in history.keys.values_mut() {
            let one = std::time::Instant::now();
            let event = &mut events[10_000 + rng.below(100) as usize];
            event.output = match event.input {
                Get => Some(KvOutput::Found(Some(9_000 + rng.below(1000)))),
                Upsert(_) => event.output,
                _ => Some(if event.output == Some(YES) { NO } else { YES }),
            };
            match check(&KvModel, events, Budget::default()) {
                Verdict::Violation { .. } => violations += 1,
                Verdict::Undecided { .. } => undecided += 1,
                Verdict::Linearizable { .. } => {}
            }
            slowest = slowest.max(one.elapsed());
        }
        println!(
            "{:<25} {:>9.1?} per key: {violations} bad, {undecided} undecided, slowest {slowest:.1?}",
            "  one answer wrong",
            now.elapsed() / 64
        );
    }
}

fn no_upserts(rng: &mut Rng, value: u64) -> KvInput {
    [Get, Insert(value), Update(value), Delete][rng.below(4) as usize]
}

fn get_or_insert(rng: &mut Rng, value: u64) -> KvInput {
    if rng.below(20) == 0 { Insert(value) } else { Get }
}

fn workload(rng: &mut Rng, value: u64) -> KvInput {
    match rng.below(10) {
        0..4 => Get,
        4 | 5 => Insert(value),
        6 | 7 => Update(value),
        8 => Upsert(value),
        _ => Delete,
    }
}

#[test]
fn a_delete_that_does_not_tell_is_possible_in_any_state() {
    assert_good(&[op(0, 1, Delete, DONE), op(2, 3, Insert(1), YES), op(4, 5, Delete, DONE), op(6, 7, Get, NOTHING)]);
    // It is over when it returns, and does not happen twice.
    let late = [op(0, 1, Insert(1), YES), op(2, 3, Delete, DONE), op(4, 5, Get, found(1))];
    assert_eq!(evidence(&late).culprits, [0, 1, 2]);
    let twice = [op(0, 1, Insert(1), YES), op(2, 9, Delete, DONE), op(3, 4, Get, NOTHING), op(5, 6, Insert(2), YES)];
    assert_good(&twice);
    assert!(check(&KvModel, &[twice.as_slice(), &[op(7, 8, Get, NOTHING)]].concat(), Budget::default()).is_violation());
    let event = op(0, 1, Delete, DONE);
    assert_eq!(KvRecord::new(7, &event).decode(), Ok((7, event)));
}

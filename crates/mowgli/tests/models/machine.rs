//! What litmus programs do not show: cancelling, completion one by one, digests, long transfers, misuse.

use mowgli::machine::{Completion, Loc, Machine, Operation, Part, Source, Step, Thread, Words};

const T: Thread = Thread(0);

/// Two nodes with 200 words each, one thread on the first.
fn machine() -> Machine {
    let mut machine = Machine::new(2);
    machine.grow(0, 200);
    machine.grow(1, 200);
    assert_eq!(machine.add_thread(0), T);
    machine
}

fn there(word: u32) -> Loc {
    Loc { node: 1, word }
}

fn put(word: u32, values: &[u64]) -> Operation {
    let (source, words) = (Source::Carried(Words::from_slice(values)), values.len() as u32);
    Operation::Put { source, to: there(word), words, last_mask: u64::MAX }
}

fn get(word: u32, words: u32) -> Operation {
    Operation::Get { from: there(word), words, into: None }
}

fn step(sequence: u32, part: Part) -> Step {
    Step::Nic { thread: T, peer: 1, sequence, part }
}

fn enabled(machine: &Machine) -> Vec<Step> {
    let mut steps = Vec::new();
    machine.enabled(&mut steps);
    steps
}

/// Takes the first enabled step until there is none; the completions.
fn run(machine: &mut Machine) -> Vec<Completion> {
    let mut completions = Vec::new();
    while let Some(&step) = enabled(machine).first() {
        completions.extend(machine.apply(step).completion);
    }
    assert!(machine.is_idle());
    completions
}

fn drain(machine: &mut Machine) {
    while let Some(&Step::Drain(thread)) = enabled(machine).iter().find(|step| matches!(step, Step::Drain(_))) {
        machine.apply(Step::Drain(thread));
    }
}

#[test]
fn operations_are_complete_one_by_one() {
    let mut machine = machine();
    assert!(!machine.is_complete(T, 1, 0) && !machine.is_complete(T, 1, 1));
    assert_eq!(machine.issue(T, get(0, 1)), (1, 1));
    assert_eq!(machine.issue(T, put(0, &[7])), (1, 2));
    assert_eq!(machine.issue(T, Operation::Fence { node: 0 }), (0, 1));
    drain(&mut machine);
    // The put overtakes the get; once it has landed nothing of it is left, and it is complete all the same.
    for part in [Part::Read(0), Part::Start, Part::Land(0)] {
        assert!(!machine.is_complete(T, 1, 2) || part == Part::Land(0));
        machine.apply(step(2, part));
    }
    assert!(machine.is_complete(T, 1, 2) && !machine.is_complete(T, 1, 1) && !machine.is_complete(T, 1, 3));
    let completions = run(&mut machine);
    assert_eq!(completions.len(), 2);
    assert!(completions.iter().any(|completion| completion.peer == 1 && completion.words[..] == [7]));
    assert!(machine.is_complete(T, 1, 1) && machine.is_complete(T, 0, 1));
}

#[test]
fn a_long_transfer_has_sixty_four_pieces() {
    let mut machine = machine();
    for word in 0..200 {
        machine.poke(there(word), u64::from(word) + 1);
    }
    machine.issue(T, Operation::Get { from: there(0), words: 199, into: Some(1) });
    drain(&mut machine);
    assert_eq!(enabled(&machine).len(), 64);
    let mut covered = [false; 199];
    for piece in (0..64).rev() {
        let footprint = machine.footprint(step(1, Part::Read(piece)));
        let applied = machine.apply(step(1, Part::Read(piece)));
        assert_eq!(applied.reads, footprint.reads);
        let (loc, words) = applied.reads.expect("it reads");
        assert!((3..=4).contains(&words), "equal up to rounding");
        for word in loc.word..loc.word + words {
            assert!(!std::mem::replace(&mut covered[word as usize], true));
        }
    }
    assert_eq!(covered, [true; 199]);
    run(&mut machine);
    for word in 1..200 {
        assert_eq!(machine.memory(Loc { node: 0, word }), u64::from(word));
    }
}

#[test]
fn carried_words_are_one_piece_until_they_land() {
    let mut machine = machine();
    machine.issue(T, put(3, &[1, 2, 0]));
    drain(&mut machine);
    assert_eq!(enabled(&machine), [step(1, Part::Read(0))]);
    assert_eq!(machine.apply(step(1, Part::Read(0))).reads, None);
    assert!(machine.apply(step(1, Part::Start)).completion.is_some());
    assert_eq!(enabled(&machine), [0, 1, 2].map(|piece| step(1, Part::Land(piece))));
    let last = machine.apply(step(1, Part::Land(2)));
    assert_eq!((last.writes, last.changed), (Some((there(5), 1)), false));
    let first = machine.apply(step(1, Part::Land(0)));
    assert_eq!((first.writes, first.changed), (Some((there(3), 1)), true));
    assert_eq!([3, 4, 5].map(|word| machine.memory(there(word))), [1, 0, 0]);
}

#[test]
fn an_empty_transfer_completes() {
    let mut machine = machine();
    machine.issue(T, put(0, &[]));
    machine.issue(T, get(0, 0));
    assert_eq!(run(&mut machine).len(), 2);
}

#[test]
fn a_cancelled_operation_in_the_store_buffer_never_happens() {
    let mut machine = machine();
    machine.write(T, 0, 1);
    machine.issue(T, put(0, &[7]));
    machine.issue(T, put(1, &[8]));
    let completion = machine.cancel(T, 1, 1).expect("it was not complete");
    assert_eq!((completion.sequence, completion.words.len()), (1, 0));
    assert_eq!(machine.cancel(T, 1, 1), None);
    assert!(machine.is_complete(T, 1, 1) && !machine.is_complete(T, 1, 2));
    assert_eq!(run(&mut machine).len(), 1);
    assert_eq!((machine.memory(there(0)), machine.memory(there(1))), (0, 8));
    assert_eq!(machine.memory(Loc { node: 0, word: 0 }), 1);
}

#[test]
fn an_operation_that_waits_for_a_cancelled_one_goes_on() {
    let mut machine = machine();
    machine.issue(T, put(0, &[7, 7]));
    machine.issue(T, get(0, 2));
    drain(&mut machine);
    machine.apply(step(1, Part::Read(0)));
    machine.apply(step(1, Part::Start));
    machine.apply(step(1, Part::Land(1)));
    assert_eq!(enabled(&machine), [step(1, Part::Land(0))], "the get waits for the put to land");
    // It was complete: the thread may know.
    assert_eq!(machine.cancel(T, 1, 1), None);
    assert_eq!(run(&mut machine)[0].words[..], [0, 7], "half of it had landed");
    assert_eq!(machine.cancel(T, 1, 2), None);
}

#[test]
fn a_cancelled_get_brings_zeros() {
    let mut machine = machine();
    machine.poke(there(0), 5);
    machine.issue(T, get(0, 2));
    machine.issue(T, Operation::Get { from: there(0), words: 2, into: Some(0) });
    drain(&mut machine);
    machine.apply(step(1, Part::Read(0)));
    assert_eq!(machine.cancel(T, 1, 1).expect("it was not complete").words[..], [0, 0]);
    assert_eq!(machine.cancel(T, 1, 2).expect("it was not complete").words.len(), 0);
    assert!(machine.is_idle());
}

#[test]
fn a_cancelled_atomic_lets_go_of_its_word() {
    let mut machine = machine();
    let other = machine.add_thread(1);
    let at = there(0);
    machine.issue(T, Operation::Faa { at, addend: 1 });
    machine.issue(other, Operation::Cas { at, expected: 0, new: 9 });
    drain(&mut machine);
    let theirs = Step::Nic { thread: other, peer: 1, sequence: 1, part: Part::Read(0) };
    assert!(enabled(&machine).contains(&theirs));
    machine.apply(step(1, Part::Read(0)));
    assert_eq!(enabled(&machine), [step(1, Part::Modify)], "the other one must not read now");
    assert_eq!(machine.cancel(T, 1, 1).expect("it was not complete").words[..], [0]);
    assert_eq!(enabled(&machine), [theirs]);
    run(&mut machine);
    assert_eq!(machine.memory(at), 9);
}

#[test]
fn equal_states_have_equal_digests() {
    let [mut first, mut second] = [machine(), machine()];
    assert_eq!(first.digest(), second.digest());
    // The same pieces in another order, memory by another way.
    for (machine, pieces) in [(&mut first, [0, 1, 2]), (&mut second, [2, 0, 1])] {
        machine.issue(T, get(0, 4));
        drain(machine);
        for piece in pieces {
            machine.apply(step(1, Part::Read(piece)));
        }
    }
    second.poke(there(9), 3);
    assert!(first != second && first.digest() != second.digest());
    second.poke(there(9), 0);
    assert!(first == second && first.digest() == second.digest());
    first.apply(step(1, Part::Read(3)));
    assert!(first != second && first.digest() != second.digest());
    second = first.clone();
    assert!(first == second && first.digest() == second.digest());
    first.write(T, 0, 1);
    assert!(first != second && first.digest() != second.digest());
    second.write(T, 0, 2);
    assert!(first != second && first.digest() != second.digest());
    // Both are over, but one has issued more.
    second.cancel(T, 1, 1);
    second.issue(T, get(0, 1));
    for machine in [&mut first, &mut second] {
        run(machine);
        machine.poke(Loc { node: 0, word: 0 }, 0);
    }
    assert!(first != second && first.digest() != second.digest());
}

#[test]
fn own_writes_are_forwarded() {
    let mut machine = machine();
    machine.write(T, 0, 1);
    machine.write(T, 0, 2);
    assert!(machine.forwards(T, 0) && !machine.forwards(T, 1) && !machine.is_drained(T));
    assert_eq!((machine.read(T, 0), machine.memory(Loc { node: 0, word: 0 })), (2, 0));
    machine.issue(T, get(0, 1));
    machine.apply(Step::Drain(T));
    assert_eq!((machine.read(T, 0), machine.memory(Loc { node: 0, word: 0 })), (2, 1));
    machine.apply(Step::Drain(T));
    assert!(machine.is_drained(T) && !machine.is_idle(), "an operation is left, which hinders nobody");
    assert_eq!(machine.fetch_add(T, 0, 5), 2);
    assert_eq!(machine.compare_exchange(T, 0, 7, 1), 7);
    assert_eq!(machine.compare_exchange(T, 0, 7, 2), 1);
    assert_eq!(machine.read(T, 0), 1);
}

#[test]
#[should_panic(expected = "not enabled")]
fn a_step_that_is_not_enabled_is_refused() {
    let mut machine = machine();
    machine.issue(T, put(0, &[1]));
    drain(&mut machine);
    machine.apply(step(1, Part::Land(0)));
}

#[test]
#[should_panic(expected = "waits until the store buffer has no write")]
fn a_compare_exchange_needs_a_drained_buffer() {
    let mut machine = machine();
    machine.write(T, 0, 1);
    machine.compare_exchange(T, 0, 0, 1);
}

#[test]
#[should_panic(expected = "node 1 has no words 199..+2")]
fn a_transfer_stays_inside_memory() {
    machine().issue(T, get(199, 2));
}

//! Faults in the simulator: each may have all of its possible consequences, and no others.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfield::NodeId;
use farfield::fabric::sim::{self, Chooser, Handle, Settings, View};
use farfield::fabric::{
    ControlEvent, DeathRule, Endpoint, Error, ErrorKind, GroupKey, LocalMutex, PeerState, RemotePtr, Transport,
};
use farfield_check::{Budget, Cluster, Faults, Replay, Report, Scenario, check, crashed, exhaust, replay};

const RULES: [DeathRule; 2] = [DeathRule::System, DeathRule::Majority];

/// The outcomes, over all executions.
type Seen<T> = Arc<Mutex<BTreeSet<T>>>;

/// A scenario holds in many executions. (The nodes' decisions about deaths are part of them; all executions are too
/// many.)
fn many(scenario: &Scenario) {
    let report = check(scenario, Budget::executions(10_000), 1);
    assert!(report.finding.is_none(), "{:?}", report.finding);
}

fn holds(scenario: &Scenario) -> Report {
    let report = exhaust(scenario, Budget::unlimited());
    if let Some(finding) = &report.finding {
        panic!("{}\nreplay: {}", finding.failure.message, finding.replay);
    }
    assert!(report.is_complete);
    report
}

/// How an operation ended, in a word.
fn outcome<T>(result: Result<T, Error>) -> &'static str {
    match result.as_ref().map_err(Error::kind) {
        Ok(_) => "done",
        Err(ErrorKind::PeerDead { node: NodeId(1), .. }) => "dead",
        Err(ErrorKind::Unreachable { node: NodeId(1) }) => "unreachable",
        Err(ErrorKind::Fenced) => "fenced",
        Err(ErrorKind::Revoked { .. }) => "revoked",
        Err(other) => panic!("{other}"),
    }
}

fn set(outcomes: &Seen<&'static str>) -> Vec<&'static str> {
    outcomes.lock().unwrap().iter().copied().collect()
}

#[test]
fn a_put_in_flight_at_a_crash_is_applied_or_lost_or_torn() {
    for rule in RULES {
        let seen = Seen::default();
        let collected = Arc::clone(&seen);
        let scenario =
            Scenario::new("test/crash-put", "a put of two words by a node that may die", 2, move |cluster| {
                let words = cluster.node(0).alloc(GroupKey::DATA, 16)?;
                let target: RemotePtr<[u64; 2]> = words.remote(0);
                cluster.thread(1, "puts", move |ep| Ok(ep.put_value(target, [1, 2]).wait()?));
                let seen = Arc::clone(&collected);
                cluster.at_end(move || {
                    seen.lock().unwrap().insert((crashed(1), words.word(0).load(), words.word(8).load()));
                    Ok(())
                });
                Ok(())
            })
            .rule(rule)
            .faults(Faults::new().crashes(1).of([1]));
        holds(&scenario);
        let all: Vec<_> = seen.lock().unwrap().iter().copied().collect();
        let expected = [(false, 1, 2), (true, 0, 0), (true, 0, 2), (true, 1, 0), (true, 1, 2)];
        assert_eq!(all, expected, "{rule:?}");
    }
}

#[test]
fn an_operation_towards_a_crashed_node_ends_in_an_error_that_names_it() {
    for (rule, expected) in [(RULES[0], vec!["dead", "done"]), (RULES[1], vec!["dead", "done", "unreachable"])] {
        let seen = Seen::default();
        let collected = Arc::clone(&seen);
        let scenario =
            Scenario::new("test/crash-target", "operations towards a node that may die", 2, move |cluster| {
                let word = cluster.node(1).alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
                let seen = Arc::clone(&collected);
                cluster.thread(0, "asks", move |ep| {
                    let (put, got) = (ep.put_value(word, 7).wait(), ep.get(word).wait());
                    // After a failure, no operation succeeds.
                    assert!(put.is_ok() || got.is_err());
                    let mut seen = seen.lock().unwrap();
                    seen.insert(outcome(put));
                    seen.insert(outcome(got));
                    Ok(())
                });
                Ok(())
            })
            .rule(rule)
            .faults(Faults::new().crashes(1).of([1]));
        many(&scenario);
        assert_eq!(set(&seen), expected, "{rule:?}");
    }
}

/// A node puts words to another, which evicts it, and then reads.
fn evict(rule: DeathRule, puts: usize, faults: Faults, seen: &Seen<&'static str>) -> Scenario {
    let seen = Arc::clone(seen);
    Scenario::new("test/evicted", "puts on their way while their node is evicted", 2, move |cluster: &Cluster| {
        let words = cluster.node(0).alloc(GroupKey::DATA, 16)?;
        let target = words.remote::<u64>(0);
        let seen = Arc::clone(&seen);
        cluster.thread(1, "puts", move |ep| {
            let puts: Vec<_> = (0..puts).map(|at| ep.put_value(target.at(at), 1)).collect();
            for put in puts {
                let ended = match put.wait() {
                    Err(error) if error.node() == Some(NodeId(0)) => match error.kind() {
                        ErrorKind::Revoked { .. } => "revoked",
                        ErrorKind::Unreachable { .. } => "unreachable",
                        other => panic!("{other}"),
                    },
                    put => outcome(put),
                };
                seen.lock().unwrap().insert(ended);
            }
            Ok(())
        });
        let read = cluster.log();
        let (own, before) = (words.clone(), read.clone());
        cluster.thread(0, "evicts", move |ep| {
            if rule == DeathRule::System {
                let dead = || matches!(ep.fabric().peer_state(NodeId(1)), PeerState::Dead { .. }).then_some(());
                if ep.block_on(ep.wait_until(ep.deadline(), dead)).is_err() {
                    return Ok(());
                }
            }
            ep.transport().evict(NodeId(1), Duration::from_secs(1))?;
            assert!(matches!(ep.fabric().peer_state(NodeId(1)), PeerState::Dead { .. }));
            assert_eq!(outcome(ep.get(RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 0)).wait()), "dead");
            before.push([own.word(0).load(), own.word(8).load()]);
            Ok(())
        });
        cluster.at_end(move || {
            let after = [words.word(0).load(), words.word(8).load()];
            assert!(read.take().iter().all(|before| *before == after), "something landed after it was evicted");
            Ok(())
        });
        Ok(())
    })
    .rule(rule)
    .faults(faults)
}

#[test]
fn nothing_of_a_node_lands_after_it_was_evicted() {
    let (crash, cut) = (Faults::new().crashes(1).of([1]), Faults::new().cuts(1).of([1]));
    let cases = [
        (DeathRule::System, &crash, vec!["done"]),
        (DeathRule::Majority, &crash, vec!["done", "revoked"]),
        // It is alive, and cut off.
        (DeathRule::Majority, &cut, vec!["done", "fenced", "revoked", "unreachable"]),
    ];
    for (rule, faults, expected) in cases {
        let seen = Seen::default();
        many(&evict(rule, 2, faults.clone(), &seen));
        assert_eq!(set(&seen), expected, "{rule:?}");
    }
}

#[test]
fn a_write_across_a_cut_may_be_applied_though_its_issuer_sees_an_error() {
    let seen: Seen<(&str, u64)> = Seen::default();
    let collected = Arc::clone(&seen);
    let scenario = Scenario::new("test/cut-faa", "an atomic across a cut", 2, move |cluster| {
        let word = cluster.node(1).alloc(GroupKey::DATA, 8)?;
        let (target, log) = (word.remote::<u64>(0), cluster.log());
        let ended = log.clone();
        cluster.thread(0, "adds", move |ep| {
            ended.push(outcome(ep.faa(target, 1).wait()));
            Ok(())
        });
        let seen = Arc::clone(&collected);
        cluster.at_end(move || {
            seen.lock().unwrap().insert((log.take()[0], word.word(0).load()));
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).of([1]));
    many(&scenario);
    let all: Vec<_> = seen.lock().unwrap().iter().copied().collect();
    assert_eq!(all, [("dead", 0), ("dead", 1), ("done", 1), ("unreachable", 0), ("unreachable", 1)]);
}

/// A node waits for a while until another's put shows.
fn waits_for_a_put(faults: Option<Faults>) -> Vec<&'static str> {
    let seen = Seen::default();
    let collected = Arc::clone(&seen);
    let mut scenario = Scenario::new("test/late", "a wait for a put, with a deadline", 2, move |cluster| {
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
        let (target, own, looked_at) = (words.remote::<u64>(0), words.clone(), words);
        cluster.thread(1, "puts", move |ep| Ok(ep.put_value(target, 1).wait()?));
        let seen = Arc::clone(&collected);
        cluster.thread(0, "waits", move |ep| {
            let deadline = ep.now() + Duration::from_millis(1);
            let waited = ep.block_on(ep.wait_until(deadline, || (own.word(0).load() == 1).then_some(())));
            seen.lock().unwrap().insert(if waited.is_ok() { "seen" } else { "late" });
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(looked_at.word(0).load(), 1, "late, but not never");
            Ok(())
        });
        Ok(())
    });
    if let Some(faults) = faults {
        scenario = scenario.faults(faults);
    }
    holds(&scenario);
    set(&seen)
}

#[test]
fn time_passes_while_a_nic_stalls_or_a_thread_is_paused_and_neither_lasts() {
    assert_eq!(waits_for_a_put(None), ["seen"]);
    assert_eq!(waits_for_a_put(Some(Faults::new().stalls(1).of([1]))), ["late", "seen"]);
    assert_eq!(waits_for_a_put(Some(Faults::new().pauses(1).of([1]))), ["late", "seen"]);
}

#[test]
fn all_operations_of_a_fenced_node_end_in_fenced() {
    let seen = Seen::default();
    let collected = Arc::clone(&seen);
    let scenario = Scenario::new("test/fenced", "operations while their node is fenced", 2, move |cluster| {
        let word = cluster.node(1).alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
        let seen = Arc::clone(&collected);
        cluster.thread(0, "asks", move |ep| {
            let (put, got) = (ep.put_value(word, 1), ep.get(word));
            let mut ended = [outcome(put.wait()), outcome(got.wait())].to_vec();
            if ep.fabric().is_fenced() {
                ended = vec![outcome(ep.faa(word, 1).wait()), outcome(ep.remote_fence(word.node()).wait())];
                assert_eq!(ended, ["fenced", "fenced"]);
            }
            seen.lock().unwrap().extend(ended);
            Ok(())
        });
        cluster.thread(0, "fences", |ep| {
            ep.transport().fence_self();
            assert!(ep.fabric().is_fenced());
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority);
    holds(&scenario);
    assert_eq!(set(&seen), ["done", "fenced"]);
}

/// Does everything observable that it can when it is dropped.
struct Noisy {
    lock: Arc<LocalMutex<u64>>,
    node: farfield::Node,
    own: farfield::fabric::Region,
    target: RemotePtr<u64>,
}

impl Drop for Noisy {
    fn drop(&mut self) {
        let value = if std::thread::panicking() { 9 } else { 5 };
        *self.lock.lock() += 1;
        self.own.word(0).store(value);
        self.own.word(0).fetch_add(1);
        let _ = self.node.transport().send_control(NodeId(0), b"not a message");
        if let Ok(ep) = self.node.endpoint() {
            let _ = ep.put_value(self.target, value).wait();
        }
    }
}

#[test]
fn threads_of_a_crashed_node_are_unwound_without_a_trace() {
    let scenario = Scenario::new("test/unwound", "a crash while threads hold locks and wait", 2, |cluster| {
        let own = cluster.node(1).alloc(GroupKey::SIGNAL, 64)?;
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 64)?;
        let (target, lock) = (words.remote::<u64>(0), Arc::new(LocalMutex::new(0)));
        for me in 0..2 {
            let (own, node, lock) = (own.clone(), cluster.node(1), Arc::clone(&lock));
            cluster.thread(1, "holds", move |ep| {
                let _noisy = Noisy { lock: Arc::clone(&lock), node: node.clone(), own: own.clone(), target };
                own.word(16).fetch_add(1);
                {
                    let mut held = lock.lock();
                    *held += own.word(16).load();
                }
                // Only the crash or the deadline ends the wait.
                let ended =
                    ep.block_on(ep.wait_until(ep.deadline(), || (own.word(24 + me * 8).load() > 0).then_some(())));
                assert!(ended.is_err());
                Ok(())
            });
        }
        cluster.thread(0, "lives", move |ep| {
            // It notices nothing until the system reports the death.
            while !matches!(ep.fabric().peer_state(NodeId(1)), PeerState::Dead { .. }) {
                if ep.get(own.remote::<u64>(0)).wait().is_err() {
                    break;
                }
                if ep.now() >= farfield::fabric::Instant::default() + Duration::from_secs(4) {
                    break;
                }
                let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(1), || {
                    matches!(ep.fabric().peer_state(NodeId(1)), PeerState::Dead { .. }).then_some(())
                }));
            }
            Ok(())
        });
        cluster.at_end(move || {
            assert_ne!(words.word(0).load(), 9, "a dead node has put");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]));
    let report = check(&scenario, Budget::executions(3000), 1);
    assert!(report.finding.is_none(), "{:?}", report.finding);
}

/// A destructor of a crashed node's thread waits for a while: there is no time left for it, but it ends.
#[test]
fn a_destructor_that_waits_ends_after_a_crash() {
    struct Waits<'e>(&'e Endpoint);
    impl Drop for Waits<'_> {
        fn drop(&mut self) {
            let in_vain = self.0.wait_until(self.0.now() + Duration::from_millis(1), || None::<()>);
            assert!(self.0.block_on(in_vain).is_err());
        }
    }
    let scenario = Scenario::new("test/waits-in-drop", "a thread of a node that dies has to clean up", 2, |cluster| {
        cluster.thread(1, "dies", |ep| {
            let _waits = Waits(ep);
            (0..5).for_each(|_| ep.block_on(ep.pause()));
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]));
    many(&scenario);
}

/// Decides by a generator of its own, so that every fault that may happen mostly does.
struct Lottery(u64);

impl Lottery {
    fn draw(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

impl Chooser for Lottery {
    fn choose(&mut self, view: &View<'_>) -> usize {
        self.draw(view.candidates.len())
    }

    fn value(&mut self, options: usize) -> usize {
        self.draw(options)
    }
}

/// Node 1 sends three messages. Returns the events that node 0's service gets before the deadline, in many executions.
fn events(rule: DeathRule, faults: &Faults) -> BTreeSet<Vec<String>> {
    let seen = Seen::default();
    for seed in 0..4000 {
        let settings =
            Settings { steps_max: 10_000, death_rule: rule, faults: Some(faults.clone()), ..Settings::new(2) };
        let collected = Arc::clone(&seen);
        let outcome = sim::run(settings, Box::new(Lottery(seed * 77 + 1)), move |handle: Handle| {
            let fabrics = [handle.join(NodeId(0)), handle.join(NodeId(1))];
            let drain = |fabric: &dyn Transport| fabric.serve(Duration::ZERO, &mut |_| ());
            fabrics.iter().for_each(|fabric| drain(&**fabric));
            let got = Arc::new(Mutex::new(Vec::new()));
            let [receiver, sender] = fabrics;
            let (into, fabric) = (Arc::clone(&got), Arc::clone(&receiver));
            let ep = farfield::fabric::Endpoint::open(fabric, Default::default()).unwrap();
            let body = move || {
                for _ in 0..3 {
                    ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
                    receiver.serve(Duration::ZERO, &mut |event| {
                        into.lock().unwrap().push(match event {
                            ControlEvent::Message(_, bytes) => format!("{}", bytes[0]),
                            ControlEvent::Down(_) => "down".into(),
                            ControlEvent::Suspected(_) => "suspected".into(),
                            ControlEvent::Trusted(_) => "trusted".into(),
                            other => panic!("{other:?}"),
                        });
                    });
                }
            };
            handle.spawn(NodeId(0), "receives", true, Box::new(body)).unwrap();
            let body = move || (1..=3u8).for_each(|number| sender.send_control(NodeId(0), &[number]).unwrap());
            handle.spawn(NodeId(1), "sends", true, Box::new(body)).unwrap();
            handle.explore();
            collected.lock().unwrap().insert(got.lock().unwrap().clone());
        });
        assert_eq!(outcome.failure, None);
    }
    Arc::try_unwrap(seen).unwrap().into_inner().unwrap()
}

#[test]
fn control_messages_of_a_crashed_node_arrive_up_to_some_point() {
    let all = events(DeathRule::System, &Faults::new().crashes(1).of([1]));
    for got in &all {
        let (down, messages): (Vec<_>, Vec<_>) = got.iter().partition(|event| *event == "down");
        assert!(messages.iter().copied().eq(&["1", "2", "3"][..messages.len()]), "a prefix: {got:?}");
        assert!(down.is_empty() || got.last() == Some(&"down".into()), "{got:?}");
    }
    for some in [&["down"][..], &["1", "down"], &["1", "2", "3", "down"], &["1", "2", "3"]] {
        assert!(all.iter().any(|got| got == some), "{some:?} of {all:?}");
    }
}

#[test]
fn a_cut_holds_control_messages_back_until_it_heals() {
    let all = events(DeathRule::Majority, &Faults::new().cuts(1).of([1]));
    for got in &all {
        let messages: Vec<_> = got.iter().filter(|event| event.len() == 1).collect();
        assert!(messages.iter().copied().eq(&["1", "2", "3"][..messages.len()]), "in order, none lost: {got:?}");
        let at = |event: &str| got.iter().position(|other| other == event);
        assert!(at("trusted") >= at("suspected") || at("trusted").is_none(), "{got:?}");
    }
    for some in
        [&["1", "2", "3"][..], &["suspected"], &["suspected", "1", "2", "3"], &["1", "2", "3", "suspected", "trusted"]]
    {
        assert!(all.iter().any(|got| got == some), "{some:?} of {all:?}");
    }
}

#[test]
fn a_slow_node_is_suspected_and_trusted_again() {
    let all = events(DeathRule::Majority, &Faults::new().false_suspicions(1).of([1]));
    assert!(all.iter().any(|got| got.iter().any(|event| event == "trusted")), "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_faults_and_a_failure_is_replayed() {
    let scenario = || evict(DeathRule::Majority, 2, Faults::new().cuts(1).crashes(1).stalls(1), &Seen::default());
    let traces: BTreeSet<u64> = (0..2).map(|_| check(&scenario(), Budget::executions(500), 9).trace).collect();
    assert_eq!(traces.len(), 1);
    let fails = Scenario::new("test/fails", "a node that must not die", 2, |cluster| {
        cluster.thread(1, "lives", |ep| Ok(ep.block_on(ep.global_fence([NodeId(0)]))?));
        cluster.at_end(|| {
            assert!(!crashed(1), "it died");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1));
    let finding = check(&fails, Budget::executions(1000), 1).finding.expect("it dies in some").shrunk(&fails);
    assert!(finding.failure.message.starts_with("(n1 crashes at step"), "{}", finding.failure.message);
    let line: Replay = finding.replay.to_string().parse().unwrap();
    let outcome = replay(&fails, &line);
    assert_eq!(outcome.failure.as_ref(), Some(&finding.failure));
    let text = farfield_check::timeline_of(&fails, &line, &outcome).to_text();
    assert!(text.contains("Faults: n1 crashes at step") && text.contains("fault: n1 crashes"), "{text}");
}

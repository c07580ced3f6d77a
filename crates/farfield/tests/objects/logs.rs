//! Replicated logs, locks and elections: all nodes read the same entries, and one at a time has the turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farfield::mu::{LogFull, NotLeader, OutcomeUnknown};
use farfield::{Election, LogOptions, ReplicatedLog, ReplicatedMutex};

use crate::harness::{Rng, Scene, everywhere, poll_times};

/// All nodes propose, one of them succeeds at a time, and now and then another node asks to lead. Calls are dropped.
fn logs_are_the_same(scene: &Scene) {
    let options = LogOptions { entry_bytes_max: 40, entries: 16 };
    let logs = scene.open(|node| ReplicatedLog::open(node, "log", options));
    let entries_max = scene.rounds(100, 1000) as u64;
    let (proposed, decided) = (AtomicU64::new(0), Mutex::new(Vec::<(u64, u64)>::new()));
    let read: Vec<Vec<u64>> = scene.run(|node, thread, ep| {
        if thread >= scene.nodes.len() {
            return Vec::new(); // a node has one proposer and one reader
        }
        let (log, mut rng) = (&logs[node], Rng::new(thread as u64));
        let (mut proposer, mut reader) = (log.proposer().unwrap(), log.reader().unwrap());
        let (mut seen, mut entry) = (Vec::new(), Vec::new());
        let mut drain = |seen: &mut Vec<u64>| {
            while let Some(index) = reader.try_next(&mut entry).unwrap() {
                assert_eq!(index, seen.len() as u64);
                let value = u64::from_le_bytes(*entry.first_chunk().unwrap());
                assert_eq!(entry, value.to_le_bytes().repeat(1 + value as usize % 5), "an entry is not whole");
                seen.push(value);
            }
            reader.acknowledge();
        };
        while log.decided() < entries_max {
            drain(&mut seen);
            if !log.is_leader() {
                // Seldom: a change of the leader takes long on an emulated machine.
                if rng.below(2000) == 0 {
                    log.ask_to_lead();
                }
                let is_news = || (log.is_leader() || log.decided() > seen.len() as u64).then_some(());
                let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(1), is_news));
                continue;
            }
            let value = proposed.fetch_add(1, Ordering::Relaxed);
            let bytes = value.to_le_bytes().repeat(1 + value as usize % 5);
            let polls = (rng.below(20) == 0).then(|| rng.below(4));
            let propose = std::pin::pin!(proposer.propose(ep, &bytes));
            let ended = match polls {
                Some(polls) => poll_times(propose, polls),
                None => Some(ep.block_on(propose)),
            };
            match ended {
                Some(Ok(index)) => decided.lock().unwrap().push((index, value)),
                Some(Err(error)) => {
                    let is_right = error.custom_ref::<NotLeader>().is_some()
                        || error.custom_ref::<OutcomeUnknown>().is_some()
                        || error.custom_ref::<LogFull>().is_some();
                    assert!(is_right, "{error}");
                }
                None => {}
            }
        }
        // The others are as far, and learn of the last entries.
        let all = || (log.decided() >= entries_max).then_some(());
        ep.block_on(ep.wait_until(ep.deadline(), all)).unwrap();
        while (seen.len() as u64) < entries_max {
            drain(&mut seen);
        }
        // A dropped reader counts as one that reads no more.
        drop(reader);
        seen
    });
    let read: Vec<&Vec<u64>> = read.iter().take(scene.nodes.len()).collect();
    for (index, value) in decided.into_inner().unwrap() {
        for entries in read.iter().filter(|entries| (index as usize) < entries.len()) {
            assert_eq!(entries[index as usize], value, "at {index}");
        }
    }
    let until = entries_max as usize;
    assert!(read.iter().all(|entries| entries[..until] == read[0][..until]), "the logs differ");
    let mut values = read[0].clone();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values.len(), read[0].len(), "an entry is there twice");
}

#[test]
fn all_nodes_read_the_same_entries() {
    everywhere("a replicated log", 3, logs_are_the_same);
}

/// A counter under the lock has all increments, and tokens grow. Some calls are dropped before they hold.
fn locks_exclude(scene: &Scene) {
    let locks = scene.open(|node| ReplicatedMutex::open(node, "lock"));
    let (count, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let turns = scene.rounds(60, 600) / scene.all_threads();
    scene.run(|node, thread, ep| {
        let mut rng = Rng::new(thread as u64);
        for _ in 0..turns {
            if rng.below(10) == 0 {
                let lock = std::pin::pin!(locks[node].lock(ep));
                drop(poll_times(lock, rng.below(3)));
            }
            let guard = ep.block_on(locks[node].lock(ep)).unwrap();
            assert!(last.swap(guard.token(), Ordering::Relaxed) < guard.token());
            let before = count.load(Ordering::Relaxed);
            std::hint::spin_loop();
            count.store(before + 1, Ordering::Relaxed);
            if rng.below(4) == 0 { drop(guard) } else { ep.block_on(guard.unlock(ep)).unwrap() }
        }
    });
    assert_eq!(count.into_inner(), (turns * scene.all_threads()) as u64);
}

#[test]
fn replicated_locks_exclude() {
    everywhere("a replicated lock", 3, locks_exclude);
}

/// One node leads at a time, and terms grow.
fn one_leads(scene: &Scene) {
    // None of them dies, and no machine is so slow.
    let elections = scene.open(|node| Election::open(node, "election", Duration::from_secs(20)));
    let (leaders, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let turns = scene.rounds(60, 600) / scene.all_threads();
    scene.run(|node, _, ep| {
        for _ in 0..turns {
            let leadership = ep.block_on(elections[node].campaign(ep)).unwrap();
            assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            assert!(last.swap(leadership.term(), Ordering::SeqCst) < leadership.term());
            assert!(leadership.is_leader());
            leaders.fetch_sub(1, Ordering::SeqCst);
            ep.block_on(leadership.resign(ep)).unwrap();
        }
    });
}

#[test]
fn one_node_is_elected_at_a_time() {
    everywhere("an election", 3, one_leads);
}

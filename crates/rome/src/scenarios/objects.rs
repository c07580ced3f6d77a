//! Objects of one value.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::time::Duration;
use std::rc::Rc;

use farfield_check::parts::unless_faults;
use farfield_check::{Cluster, Faults, Scenario, was_paused};
use farfield_core::history::Recorder;
use farfield_core::{Endpoint, Result};
use farfield_fabric::{DeathRule, Instant, Word};

use super::OWNER;
use super::histories::{WordsCall, WordsModel};
use crate::{MemoryFull, ObjectOptions, ObjectReader, ObjectWriter, RomeObject};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        patched(),
        one_word(),
        compacted(),
        local(),
        reused(),
        reader_dies(),
        reader_stops(),
        reader_late(),
        reader_suspected(),
        reader_cut(),
    ]
}

/// Words of the value.
const WORDS: usize = 2;
const LEASE: Duration = Duration::from_millis(1);

type History = Rc<Recorder<WordsModel>>;

fn open(cluster: &Cluster, log_words: usize, blocks: usize) -> Result<(Vec<RomeObject>, History)> {
    let options = ObjectOptions { bytes: 8 * WORDS, log_bytes: 8 * log_words, blocks, seats: 2, lease: LEASE };
    let objects = cluster.on_each(move |node| RomeObject::open(node, "object", OWNER, options))?;
    let history = History::default();
    let (seen, kept) = (Rc::clone(&history), objects.clone());
    cluster.at_end(move || {
        seen.check(&WordsModel(WORDS));
        drop(kept);
        Ok(())
    });
    Ok((objects, history))
}

fn patch(writer: &mut ObjectWriter, ep: &Endpoint, words: &[(usize, u64)]) -> Result<()> {
    let bytes: Vec<_> = words.iter().map(|(at, word)| (at * 8, word.to_le_bytes())).collect();
    let patches: Vec<(usize, &[u8])> = bytes.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    writer.patch(ep, &patches)
}

fn write(writer: &mut ObjectWriter, history: &History, ep: &Endpoint, words: &[(usize, u64)]) -> Result<()> {
    let call = history.begin(0, WordsCall::Write(words.to_vec()));
    patch(writer, ep, words)?;
    history.end(call, Vec::new());
    Ok(())
}

fn words_of(value: &[u8]) -> Vec<u64> {
    value.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole words"))).collect()
}

fn read(reader: &mut ObjectReader, history: &History, ep: &Endpoint, gets_max: u64) -> Result<()> {
    let (call, before, mut value) = (history.begin(1, WordsCall::Read), ep.counts(), Vec::new());
    ep.block_on(reader.read(ep, &mut value))?;
    history.end(call, words_of(&value));
    let gets = (ep.counts() - before).gets;
    assert!(gets <= gets_max || was_paused(), "a read took {gets} gets");
    Ok(())
}

fn writes(
    cluster: &Cluster,
    objects: &[RomeObject],
    history: &History,
    rounds: &'static [&'static [(usize, u64)]],
) -> Result<()> {
    let (mut writer, history) = (objects[0].writer()?, Rc::clone(history));
    cluster.thread(0, "writes", move |ep| rounds.iter().try_for_each(|words| write(&mut writer, &history, ep, words)));
    Ok(())
}

fn reads(cluster: &Cluster, objects: &[RomeObject], history: &History, times: usize) -> Result<()> {
    let (mut reader, history) = (objects[1].reader()?, Rc::clone(history));
    cluster.thread(1, "reads", move |ep| (0..times).try_for_each(|_| read(&mut reader, &history, ep, 2)));
    Ok(())
}

/// Patches that fit the log.
fn patched() -> Scenario {
    Scenario::new("rome/patched", "a patch of two words is read whole, in two gets", 2, |cluster| {
        let (objects, history) = open(cluster, 8, 2)?;
        writes(cluster, &objects, &history, &[&[(0, 1), (1, 2)], &[(1, 3)]])?;
        reads(cluster, &objects, &history, 2)
    })
    .kills(&["rome-offset-first", "rome-returns-early"])
}

fn one_word() -> Scenario {
    Scenario::new("rome/one-word", "a patch of a word is read or not", 2, |cluster| {
        let (objects, history) = open(cluster, 2, 2)?;
        writes(cluster, &objects, &history, &[&[(0, 1)]])?;
        reads(cluster, &objects, &history, 1)
    })
    .small()
}

/// Each patch fills the log.
fn compacted() -> Scenario {
    Scenario::new("rome/compacted", "a value that is copied is the same, and no patch is lost", 2, |cluster| {
        let (objects, history) = open(cluster, 2, 4)?;
        writes(cluster, &objects, &history, &[&[(0, 1)], &[(0, 2)], &[(0, 3)]])?;
        writes(cluster, &objects, &history, &[&[(1, 1)], &[(1, 2)]])?;
        reads(cluster, &objects, &history, 2)
    })
    .kills(&["rome-compaction-loses"])
}

/// Threads of the owner read, too, and write without a log, into the only other block.
fn local() -> Scenario {
    Scenario::new("rome/local", "the owner's threads read whole values without operations", 1, |cluster| {
        let (objects, history) = open(cluster, 0, 2)?;
        writes(cluster, &objects, &history, &[&[(0, 1), (1, 1)], &[(0, 2), (1, 2)], &[(0, 3), (1, 3)]])?;
        let (mut reader, history) = (objects[0].writer()?, Rc::clone(&history));
        cluster.thread(0, "reads", move |_| {
            for _ in 0..2 {
                let (call, mut value) = (history.begin(1, WordsCall::Read), Vec::new());
                reader.read(&mut value);
                history.end(call, words_of(&value));
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["rome-no-fence"])
}

/// The only other block is used again and again.
fn reused() -> Scenario {
    Scenario::new("rome/reused", "a block is used again when no reader needs it", 2, |cluster| {
        let (objects, history) = open(cluster, 0, 2)?;
        writes(cluster, &objects, &history, &[&[(0, 1), (1, 1)], &[(0, 2), (1, 2)], &[(0, 3), (1, 3)]])?;
        reads(cluster, &objects, &history, 2)
    })
    .kills(&["rome-epoch-ignored", "rome-announced-late"])
}

fn reader_dies() -> Scenario {
    Scenario::new("rome/reader-dies", "a reader that dies does not stop the writer", 2, |cluster| {
        let (objects, history) = open(cluster, 0, 2)?;
        writes(cluster, &objects, &history, &[&[(0, 1), (1, 1)], &[(0, 2), (1, 2)], &[(0, 3), (1, 3)]])?;
        let (mut reader, history) = (objects[1].reader()?, Rc::clone(&history));
        cluster.thread(1, "reads", move |ep| {
            (0..2).try_for_each(|_| unless_faults(read(&mut reader, &history, ep, 2)).map(drop))
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["rome-waits-for-all"])
}

/// A block that is used again has a patch of before behind its value.
fn reader_stops() -> Scenario {
    let about = "a reader that stops does not stop the writer, and returns nothing that was overwritten";
    Scenario::new("rome/reader-stops", about, 2, stops)
        .faults(Faults::new().pauses(1).of([1]))
        .kills(&["rome-lease-unchecked"])
}

fn stops(cluster: &Cluster) -> Result<()> {
    let (objects, history) = open(cluster, 2, 2)?;
    let (mut writer, of_writer) = (objects[0].writer()?, Rc::clone(&history));
    cluster.thread(0, "writes", move |ep| {
        for round in 1..4 {
            for at in 0..2 {
                // The owner may be on the other side of a cut.
                unless_faults(write(&mut writer, &of_writer, ep, &[(at, round)]))?;
            }
        }
        Ok(())
    });
    let (mut reader, history) = (objects[1].reader()?, Rc::clone(&history));
    cluster.thread(1, "reads", move |ep| {
        (0..2).try_for_each(|_| unless_faults(read(&mut reader, &history, ep, 2)).map(drop))
    });
    Ok(())
}

/// Between the post of a get and its end time passes. The block that is used again has a patch of before behind its
/// value.
fn reader_late() -> Scenario {
    let about = "a reader whose get takes longer than the lease returns nothing that was overwritten";
    Scenario::new("rome/reader-late", about, 2, |cluster| {
        let (objects, history) = open(cluster, 2, 2)?;
        let (mut writer, asked) = (objects[0].writer()?, Rc::new(Word::new(0)));
        // Into the log of the first block.
        write(&mut writer, &history, &cluster.node(0).endpoint()?, &[(0, 1)])?;
        let (of_writer, is_asked) = (Rc::clone(&history), Rc::clone(&asked));
        cluster.thread(0, "writes", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (is_asked.load() != 0).then_some(())))?;
            // Into the other block, and its log.
            write(&mut writer, &of_writer, ep, &[(1, 1)])?;
            write(&mut writer, &of_writer, ep, &[(0, 2)])?;
            // Into the first block, when the reader has ended, or has made no progress for the lease.
            ep.set_timeout(Duration::ZERO);
            let words = [(1, 2)];
            let call = of_writer.begin(0, WordsCall::Write(words.to_vec()));
            while let Err(error) = patch(&mut writer, ep, &words) {
                assert!(error.custom_ref::<MemoryFull>().is_some(), "{error}");
                ep.block_on(ep.sleep_until(ep.now() + 2 * LEASE));
            }
            of_writer.end(call, Vec::new());
            Ok(())
        });
        let mut reader = objects[1].reader()?;
        cluster.thread(1, "reads", move |ep| {
            let (call, before, mut value) = (history.begin(1, WordsCall::Read), ep.counts(), Vec::new());
            {
                let mut reading = pin!(reader.read(ep, &mut value));
                let mut has_asked = false;
                let reads = poll_fn(|cx| {
                    let polled = reading.as_mut().poll(cx);
                    // It knows the block by now, and has posted the get of it.
                    if !has_asked && (ep.counts() - before).gets >= 2 {
                        has_asked = true;
                        asked.store(1);
                    }
                    polled
                });
                ep.block_on(reads)?;
            }
            history.end(call, words_of(&value));
            Ok(())
        });
        Ok(())
    })
    .early_timeouts()
}

fn reader_suspected() -> Scenario {
    let about = "a reader that is evicted returns nothing that was overwritten";
    Scenario::new("rome/reader-suspected", about, 3, stops)
        .rule(DeathRule::Majority)
        .faults(Faults::new().false_suspicions(1).of([1]))
}

fn reader_cut() -> Scenario {
    let about = "a reader that is cut off does not stop the writer, and returns nothing that was overwritten";
    Scenario::new("rome/reader-cut", about, 3, stops)
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([1]))
        .kills(&["rome-unreachable"])
}

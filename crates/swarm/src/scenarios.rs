//! Scenarios for the model checker. The calls of all clients have to be linearizable.

mod comings;
mod costs;
mod faults;
mod parts;
mod replaced;
mod store;
mod store_comings;
mod store_dropped;
mod store_epochs;
mod store_faults;
mod store_moves;
mod store_parts;
mod store_registers;

use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario, with_at_once, with_slow};
use farfield_core::Result;
use farfield_fabric::Word;

use self::parts::{Opened, open, open_in_shards, register};
use crate::SwarmOptions;
use crate::buffers::ASK_AGAIN;
use crate::timestamp_lock::Mode;
use crate::version::Location;

/// All of them.
///
/// ```
/// let scenarios = farfield_swarm::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "swarm/write-read"));
/// ```
pub fn all() -> Vec<Scenario> {
    let own = [
        write_read(),
        two_reads(),
        stale(),
        years(),
        lock(),
        in_place(),
        reuse(),
        reuse_late(),
        reuse_silent(),
        dropped(),
        dropped_late(),
        given_up(),
        random(),
        shards(),
        one_word(),
        one_word_behind(),
        window(),
        next_client(),
    ];
    with_at_once(
        with_slow(
            own.into_iter()
                .chain(faults::scenarios())
                .chain(comings::scenarios())
                .chain(costs::scenarios())
                .chain(replaced::scenarios())
                .chain(store::scenarios())
                .chain(store_comings::scenarios())
                .chain(store_dropped::scenarios())
                .chain(store_epochs::scenarios())
                .chain(store_faults::scenarios())
                .chain(store_moves::scenarios())
                .chain(store_registers::scenarios()),
        ),
        AT_ONCE,
    )
}

/// Those that are also searched with operations that complete at once.
const AT_ONCE: &[&str] =
    &["swarm/write-read", "swarm/stale", "swarm/reuse", "swarm/random", "swarm-kv/inserts", "swarm-kv/delete-get"];

/// A write, and a read beside it and after it.
fn write_read() -> Scenario {
    Scenario::new("swarm/write-read", "a read beside a write finds it or what was there", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        register(cluster, 0, &clients, &history, |client| client.write(7));
        register(cluster, 1, &clients, &history, |client| {
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .kills(&["swarm-word-first"])
}

/// A read that finds a write under way is followed by another one, which asks another majority.
fn two_reads() -> Scenario {
    Scenario::new("swarm/two-reads", "a read does not find less than one before it", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        let slow = cluster.draw(3);
        register(cluster, 0, &clients, &history, |client| client.write(7));
        for node in 1..3 {
            register(cluster, node, &clients, &history, move |client| {
                client.set_slow((slow + node) % 3);
                client.read()
            });
        }
        Ok(())
    })
    .kills(&["swarm-no-write-back"])
}

/// One clock is behind: its guess may be stale, or overtaken.
fn stale() -> Scenario {
    Scenario::new("swarm/stale", "a write with a stale guess happens once, after those before it", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        register(cluster, 0, &clients, &history, move |client| {
            client.set_ahead(50);
            client.set_slow(slow[0]);
            client.write(1)
        });
        register(cluster, 1, &clients, &history, move |client| {
            client.set_slow(slow[1]);
            client.write(2)?;
            client.read()
        });
        register(cluster, 2, &clients, &history, move |client| {
            client.set_slow(slow[2]);
            client.read()?;
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .kills(&[
        "swarm-one-look",
        "swarm-verified-early",
        "swarm-stale-kept",
        "swarm-read-unlocked",
        "swarm-write-unlocked",
    ])
}

/// Clocks pass 2⁴⁰ microseconds while calls go on: the twelve days after which the timestamps of a store's register
/// end. One of them is behind before that and after it.
fn years() -> Scenario {
    Scenario::new("swarm/years", "the timestamps of an array go on after twelve days", 3, |cluster| {
        let options = SwarmOptions { first_timestamp: TWELVE_DAYS - LEFT, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 1, options)?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        let (turn, in_turn) = (Rc::new(Word::new(0)), cluster.draw(2) == 0);
        for (node, slow) in slow.into_iter().take(2).enumerate() {
            let turn = Rc::clone(&turn);
            register(cluster, node, &clients, &history, move |client| {
                client.set_slow(slow);
                for (round, ahead) in [50, 2 * LEFT, 3 * LEFT].into_iter().enumerate() {
                    let now = 2 * round as u64 + node as u64;
                    if in_turn {
                        client.wait_for(&turn, now)?;
                    }
                    if node == 0 {
                        client.set_ahead(ahead);
                    }
                    client.write(now + 1)?;
                    turn.store(now + 1);
                }
                client.read()
            });
        }
        register(cluster, 2, &clients, &history, move |client| {
            client.set_slow(slow[2]);
            (0..3).try_for_each(|_| client.read())
        });
        Ok(())
    })
    .kills(&["swarm-lock-of-days"])
}

/// In microseconds.
const TWELVE_DAYS: u64 = 1 << 40;
const LEFT: u64 = 1_000_000;

/// True exclusion (appendix B): the two sides never both have a timestamp. True safety: a side without a rival has it.
fn lock() -> Scenario {
    Scenario::new("swarm/lock", "a timestamp is locked by readers or by its writer", 3, |cluster| {
        let Opened { clients, .. } = open(cluster, 1, SwarmOptions::default())?;
        let alone = cluster.draw(2) == 1;
        let taken = cluster.log();
        for (node, mode) in [(0, Mode::Write), (1, Mode::Read), (2, Mode::Read)] {
            if alone && mode == Mode::Write {
                continue;
            }
            let (array, taken) = (Rc::clone(&clients[node]), taken.clone());
            cluster.thread(node, "locks", move |ep| {
                let client = array.client(ep)?;
                let core = client.cores.first();
                let version = core.shared.layout.format.guessed(5, 0, 0).expect("it is far from the end");
                if ep.block_on(core.try_lock(Location { register: 0, instance: 0 }, version, mode))? {
                    taken.push(mode == Mode::Write);
                }
                Ok(())
            });
        }
        cluster.at_end(move || {
            let taken = taken.take();
            assert!(taken.windows(2).all(|pair| pair[0] == pair[1]), "both sides have it: {taken:?}");
            assert!(!alone || taken.len() == 2, "nobody else wanted it, and {} have it", taken.len());
            Ok(())
        });
        Ok(())
    })
    .kills(&["swarm-lock-modeless"])
}

/// Two writers: their values in place may mix or be late.
fn in_place() -> Scenario {
    Scenario::new("swarm/in-place", "what lies in place is taken with its own version only", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        for node in 0..2 {
            register(cluster, node, &clients, &history, move |client| client.write(node as u64 + 1));
        }
        register(cluster, 2, &clients, &history, |client| {
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .kills(&["swarm-hash-of-value", "swarm-hash-ignored"])
}

/// As few buffers as there can be, so that the fifth write uses the first one's again.
fn reuse() -> Scenario {
    Scenario::new("swarm/reuse", "a read finds no value that was written after it", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 2, options)?;
        register(cluster, 0, &clients, &history, |client| {
            (1..=5).try_for_each(|value| client.write_at(value as usize % 2, value))
        });
        register(cluster, 1, &clients, &history, |client| {
            client.read_at(0)?;
            client.read_at(1)
        });
        Ok(())
    })
    .kills(&["swarm-reused-at-once"])
}

/// A read copies to memory node 1 a value that this one has missed, and is dropped. The copy must not land in a buffer
/// that the writer uses again for its last value, which it then reads from there.
fn reuse_late() -> Scenario {
    Scenario::new("swarm/reuse-late", "a late copy of a reader hits no buffer that is used again", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 1, options)?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        register(cluster, 0, &clients, &history, move |client| {
            client.set_slow(1);
            client.write(1)?;
            now.store(1);
            client.wait_for(&now, 2)?;
            client.set_slow(2);
            (2..=4).try_for_each(|value| client.write(value))?;
            client.set_slow(0);
            client.read()
        });
        register(cluster, 1, &clients, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.set_slow(0);
            client.read_or_drop()?;
            turn.store(2);
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().stalls(1).of([1]))
    .kills(&["swarm-section-unflushed"])
}

/// A client stands still in the middle of a read, and its node does not answer the writer's request meanwhile. It is
/// not evicted, so the writer has to wait until it goes on, however often it asks: the writer's fifth write needs the
/// buffer that the read gets.
fn reuse_silent() -> Scenario {
    let about = "a buffer is not used again before a client that does not answer is evicted";
    Scenario::new("swarm/reuse-silent", about, 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 2, options)?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        register(cluster, 0, &clients, &history, move |client| {
            // It is not in place, so the read gets it from its buffer, on memory node 0.
            client.write_unverified(1)?;
            now.store(1);
            client.wait_for(&now, 2)?;
            client.write_at(0, 2)?;
            // Memory nodes 1 and 0 get these.
            client.set_slow(2);
            (3..=5).try_for_each(|value| client.write_at(1, value))
        });
        register(cluster, 2, &clients, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.read_with_a_pause(0, || turn.store(2), 4 * ASK_AGAIN)
        });
        Ok(())
    })
    .kills(&["swarm-lease-ignored"])
}

/// A write is dropped at some moment, and its writer writes again.
fn dropped() -> Scenario {
    Scenario::new("swarm/dropped", "a dropped write happens once or not at all", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        register(cluster, 0, &clients, &history, |client| {
            client.write_or_drop(1)?;
            client.write(2)
        });
        register(cluster, 1, &clients, &history, |client| {
            client.set_ahead(50);
            client.write(3)
        });
        register(cluster, 2, &clients, &history, |client| {
            client.read()?;
            client.read()
        });
        Ok(())
    })
}

/// The same, with a stale guess, so that it may be dropped while it is written again. Another write begins before its
/// end.
fn dropped_late() -> Scenario {
    Scenario::new("swarm/dropped-late", "a write that is dropped in its slow path happens once", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        let turns = Rc::new(Word::new(0));
        let turn = Rc::clone(&turns);
        register(cluster, 0, &clients, &history, move |client| {
            client.set_ahead(50);
            client.write(1)?;
            turn.store(1);
            client.wait_for(&turn, 2)?;
            client.read()?;
            client.write(2)?;
            turn.store(3);
            Ok(())
        });
        let turn = Rc::clone(&turns);
        register(cluster, 1, &clients, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.write_or_drop(3)?;
            turn.store(2);
            client.wait_for(&turn, 3)?;
            client.write(4)
        });
        register(cluster, 2, &clients, &history, move |client| {
            client.wait_for(&turns, 3)?;
            (0..3).try_for_each(|_| client.read())
        });
        Ok(())
    })
    .kills(&["swarm-written-thrice"])
}

/// Two writes have the free buffers, and are dropped while a third one waits for a buffer.
fn given_up() -> Scenario {
    Scenario::new("swarm/given-up", "a call gets the buffers of calls that are dropped meanwhile", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 3, options)?;
        register(cluster, 0, &clients, &history, |client| {
            (0..3).try_for_each(|at| client.write_at(at, 1))?;
            client.write_as_others_are_dropped([0, 1], 2, 2)?;
            client.read_at(2)
        });
        Ok(())
    })
}

/// Reads and writes of two registers, with clocks that differ.
fn random() -> Scenario {
    Scenario::new("swarm/random", "random calls of three clients are linearizable", 3, |cluster| {
        random_calls(cluster, SwarmOptions::default())
    })
}

/// The same with two registers that lie in two shards.
fn shards() -> Scenario {
    Scenario::new("swarm/shards", "random calls of three clients in two shards are linearizable", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        random_calls_of(cluster, &open_in_shards(cluster, 2, options)?)
    })
}

/// The same with one metadata word for all writers.
fn one_word() -> Scenario {
    Scenario::new("swarm/one-word", "writers that share a metadata word are linearizable", 3, |cluster| {
        let options = SwarmOptions { metadata_words: 1, ..SwarmOptions::default() };
        random_calls(cluster, options)
    })
}

/// A writer that knows another one's later version in the word that they share; its own versions are earlier.
fn one_word_behind() -> Scenario {
    let about = "a metadata word that writers share does not fall";
    Scenario::new("swarm/one-word-behind", about, 3, |cluster| {
        let options = SwarmOptions { metadata_words: 1, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 1, options)?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        register(cluster, 0, &clients, &history, move |client| {
            client.set_ahead(50);
            client.set_slow(slow[0]);
            client.write(1)?;
            client.set_ahead(100);
            client.write(2)
        });
        register(cluster, 1, &clients, &history, move |client| {
            client.set_slow(slow[1]);
            client.write_or_drop(3)?;
            client.write(4)
        });
        register(cluster, 2, &clients, &history, move |client| {
            client.set_slow(slow[2]);
            client.read()?;
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .kills(&["swarm-word-falls"])
}

/// More writes at a time than there are spare buffers.
fn window() -> Scenario {
    Scenario::new("swarm/window", "several calls of a client at a time are linearizable", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 3, options)?;
        register(cluster, 0, &clients, &history, |client| {
            client.write_window(&[(0, 1), (1, 2), (2, 3)])?;
            client.write_window(&[(0, 4), (1, 5), (2, 6), (0, 7)])
        });
        register(cluster, 1, &clients, &history, |client| {
            client.set_ahead(20);
            client.write_at(0, 8)?;
            client.read_at(0)?;
            client.read_at(2)
        });
        Ok(())
    })
}

/// A client in the place of one with a dropped write.
fn next_client() -> Scenario {
    Scenario::new("swarm/next-client", "a client goes on where the one before it has ended", 3, |cluster| {
        let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
        let Opened { clients, history } = open(cluster, 1, options)?;
        register(cluster, 0, &clients, &history, |client| {
            client.write(1)?;
            client.write_or_drop(2)
        });
        register(cluster, 0, &clients, &history, |client| {
            client.write(3)?;
            client.write(4)
        });
        register(cluster, 1, &clients, &history, |client| {
            client.set_ahead(20);
            client.write(5)?;
            client.read()?;
            client.read()
        });
        Ok(())
    })
}

fn random_calls(cluster: &Cluster, options: SwarmOptions) -> Result<()> {
    let opened = open(cluster, 2, SwarmOptions { spare_buffers: 2, ..options })?;
    random_calls_of(cluster, &opened)
}

fn random_calls_of(cluster: &Cluster, opened: &Opened) -> Result<()> {
    let Opened { clients, history } = opened;
    for node in 0..3 {
        let (ahead, slow) = (20 * cluster.draw(3) as u64, cluster.draw(3));
        let calls: Vec<(usize, bool)> = (0..3).map(|_| (cluster.draw(2), cluster.draw(2) == 0)).collect();
        register(cluster, node, clients, history, move |client| {
            client.set_ahead(ahead);
            client.set_slow(slow);
            calls.iter().enumerate().try_for_each(|(call, (at, is_write))| {
                if *is_write { client.write_at(*at, (10 * node + call + 1) as u64) } else { client.read_at(*at) }
            })
        });
    }
    Ok(())
}

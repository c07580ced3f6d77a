//! Operations dropped or forgotten at any point: memory stays safe, and the endpoint usable.

use std::future::Future;
use std::pin::Pin;

use farfield_fabric::{Endpoint, ErrorKind, NodeId, Region, RemotePtr, Result};

use crate::harness::{Harness, Lines, alone_with_pool, poll_times, refused};

/// The most polls after which a future is given up.
const POLLS_MAX: usize = 6;

type Task<'e> = Pin<Box<dyn Future<Output = Result<()>> + 'e>>;

/// Number of kinds of task.
const KINDS: usize = 13;

/// A task of each kind of operation on 8 words at `place`.
fn task<'e>(endpoint: &'e Endpoint, place: RemotePtr<u64>, kind: usize) -> Task<'e> {
    let filled = move || -> Result<farfield_fabric::Buf<'e, u64>> {
        let mut buf = endpoint.buf::<u64>(8)?;
        buf.fill(5);
        Ok(buf)
    };
    match kind {
        0 => Box::pin(endpoint.put_value(place, 5)),
        1 => Box::pin(async move { endpoint.get(place).await.map(drop) }),
        2 => Box::pin(async move { endpoint.cas(place, 5, 5).await.map(drop) }),
        3 => Box::pin(async move { endpoint.faa(place, 0).await.map(drop) }),
        4 => Box::pin(async move { endpoint.put_owned(place, filled()?).await.map(drop) }),
        5 => Box::pin(async move { endpoint.get_into(place, filled()?).await.map(drop) }),
        6 => Box::pin(async move {
            let buf = filled()?;
            endpoint.put(place, &buf).await
        }),
        7 => Box::pin(async move { endpoint.get_torn(place.cast::<[u64; 8]>()).await.map(drop) }),
        8 => Box::pin(endpoint.remote_fence(place.node())),
        9 => Box::pin(async move {
            drop(endpoint.put_value(place, 5));
            endpoint.global_fence([NodeId(0), NodeId(1)]).await
        }),
        10 => Box::pin(endpoint.batch(place.node()).put_value(place, 5).put_value(place.at(1), 5).post()),
        11 => Box::pin(async move {
            let mut into = endpoint.buf::<u64>(4)?;
            endpoint.get_each(&[place, place.at(1), place.at(2), place.at(3)], 1, &mut into).await
        }),
        _ => Box::pin(async move {
            let mut buf = filled()?;
            endpoint.put(place, &buf).await?;
            buf[0] = 5;
            buf = endpoint.get_into(place, buf).await?;
            endpoint.put_owned(place, buf).await?;
            let found = endpoint.faa(place, 0).await?;
            endpoint.cas(place, found, 5).await?;
            endpoint.global_fence([place.node()]).await
        }),
    }
}

/// Gives up each kind of task after 0, 1, 2, … polls, and checks after each that the endpoint works.
fn give_up(harness: &Harness, pool_bytes: usize, how: impl Fn(Task<'_>) + Sync) {
    let nodes = harness.session(2);
    let (region, check) = (nodes[1].region(64), nodes[1].region(64));
    alone_with_pool(&nodes[0], pool_bytes, |endpoint| give_up_each(harness, endpoint, &region, &check, &how));
    // All abandoned operations have run to their ends: dropping an endpoint waits for them.
    for word in region.words(0, 8) {
        assert!([0, 5].contains(&word.load()), "{word:?}");
    }
}

fn give_up_each(harness: &Harness, endpoint: &Endpoint, region: &Region, check: &Region, how: impl Fn(Task<'_>)) {
    let mut value = 0;
    for _ in 0..harness.rounds(10).min(40) {
        for kind in 0..KINDS {
            for polls in 0..=POLLS_MAX {
                let mut task = task(endpoint, region.remote(0), kind);
                if let Some(result) = poll_times(task.as_mut(), polls) {
                    result.unwrap();
                } else {
                    how(task);
                }
                value += 1;
                endpoint.put_value(check.remote(0), value).wait().unwrap();
                assert_eq!(endpoint.get(check.remote::<u64>(0)).wait().unwrap(), value, "kind {kind}, {polls} polls");
            }
        }
    }
    // All room that is not leaked can be used, without overlap.
    let mut bufs = Vec::new();
    while let Ok(mut buf) = endpoint.buf::<u64>(8) {
        buf.fill(0x77);
        bufs.push(buf);
        if bufs.len() == 16 {
            break;
        }
    }
    assert_eq!(bufs.len(), 16, "the pool is usable");
    for _ in 0..200 {
        let _ = endpoint.get(check.remote::<u64>(0)).wait().unwrap();
        assert!(bufs.iter().all(|buf| buf.iter().all(|word| *word == 0x77)));
    }
}

/// Dropping costs nothing: a pool with room for a few operations does for any number.
pub(crate) fn operations_dropped_at_every_poll(harness: &Harness) {
    give_up(harness, 64 << 10, |task| drop(task));
}

/// Forgetting costs a block each at most.
pub(crate) fn operations_forgotten_at_every_poll(harness: &Harness) {
    give_up(harness, 16 << 20, |task| std::mem::forget(task));
}

/// A buffer in hand never changes: blocks of gets given up are not used again before their results have landed.
pub(crate) fn a_buffer_does_not_change_in_hand(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(512);
    for word in region.words(0, 64) {
        word.store(0xbad);
    }
    alone_with_pool(&nodes[0], 8 << 10, |endpoint| {
        for round in 0..harness.rounds(300) {
            let polls = round % 4;
            for len in [1, 8, 64] {
                let mut get = Box::pin(endpoint.get_into(region.remote(0), endpoint.buf::<u64>(len).unwrap()));
                let _ = poll_times(get.as_mut(), polls);
                drop(get);
                let mut buf = endpoint.buf::<u64>(len).unwrap();
                buf.fill(0x600d);
                let in_hand: &[u64] = &buf;
                for _ in 0..4 {
                    let _ = endpoint.faa(region.remote(384), 0).wait().unwrap();
                    assert!(in_hand.iter().all(|word| *word == 0x600d), "{in_hand:x?}");
                }
            }
        }
    });
}

/// The other way round: a put that was given up still sends what its buffer held, though the buffer is used again.
pub(crate) fn a_dropped_put_sends_the_old_contents_of_its_buffer(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(1_000);
    let target = Lines::at(&nodes[1], rounds);
    alone_with_pool(&nodes[0], 4 << 10, |endpoint| {
        for round in 0..rounds {
            let mut buf = endpoint.buf::<u64>(1).unwrap();
            buf[0] = 0x600d;
            match round % 4 {
                0 => drop(endpoint.put(target.remote(round), &buf)),
                1 => std::mem::forget(endpoint.put(target.remote(round), &buf)),
                2 => {
                    drop(endpoint.put_owned(target.remote(round), buf));
                    buf = endpoint.buf(1).unwrap();
                }
                _ => {
                    drop(endpoint.put(target.remote(round), &buf));
                    drop(buf);
                    buf = endpoint.buf(1).unwrap();
                }
            }
            buf[0] = 0xbad;
            drop(buf);
            assert_eq!(endpoint.get(target.remote(round)).wait().unwrap(), 0x600d, "round {round}");
        }
    });
}

/// Every forgotten get into a buffer leaks it, so the pool is exhausted: an error reports that at once.
pub(crate) fn forgotten_gets_exhaust_the_pool(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    alone_with_pool(&nodes[0], 4 << 10, |endpoint| {
        let mut forgotten = 0;
        let error = loop {
            match endpoint.buf::<u64>(8) {
                Ok(buf) => std::mem::forget(endpoint.get_into(region.remote(0), buf)),
                Err(error) => break error,
            }
            forgotten += 1;
            assert!(forgotten <= 64, "64 blocks of 64 bytes are all there is");
        };
        assert_eq!(forgotten, 64);
        assert_eq!(*error.kind(), ErrorKind::PoolExhausted { asked_bytes: 64, limit_bytes: 4 << 10 });
        // Words still work.
        let word = region.remote::<u64>(0);
        endpoint.put_value(word, 6).wait().unwrap();
        assert_eq!(endpoint.cas(word, 6, 7).wait().unwrap(), 6);
        assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 7);
        assert_eq!(endpoint.get(word).wait().unwrap(), 8);
        // Another endpoint has a pool of its own.
        assert_eq!(nodes[0].endpoint().get(word).wait().unwrap(), 8);
    });
}

/// Forgotten operations on words are exhausted likewise, where they cost anything, and buffers still work.
pub(crate) fn forgotten_words_leave_the_buffers(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    alone_with_pool(&nodes[0], 4 << 10, |endpoint| {
        let word = region.remote::<u64>(0);
        for _ in 0..16_500 {
            std::mem::forget(endpoint.faa(word, 1));
        }
        if let Err(error) = endpoint.get(word).wait() {
            assert!(matches!(error.kind(), ErrorKind::PoolExhausted { limit_bytes: 1_048_576, .. }), "{error}");
        }
        let got = endpoint.get_into(word, endpoint.buf(8).unwrap()).wait().unwrap();
        assert!(got[0] > 0);
    });
}

/// Values put, and results got, cost their blocks only while they are under way, however they end.
pub(crate) fn values_put_do_not_use_up_the_pool(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    alone_with_pool(&nodes[0], 16 << 10, |endpoint| {
        for round in 0..harness.rounds(2_000) as u64 {
            match round % 3 {
                0 => drop(endpoint.put_value(region.remote::<u64>(0), round)),
                1 => std::mem::forget(endpoint.put_value(region.remote::<[u64; 4]>(0), [round; 4])),
                _ => endpoint.put_value(region.remote::<u64>(0), round).wait().unwrap(),
            }
            if round % 16 == 0 {
                drop(endpoint.get(region.remote::<u64>(0)));
                endpoint.get(region.remote::<u64>(0)).wait().unwrap();
            }
        }
        endpoint.put_value(region.remote::<u64>(0), 1).wait().unwrap();
    });
}

/// An endpoint is dropped with operations in flight: the puts land, the memory is released in time.
pub(crate) fn an_endpoint_dropped_with_work_in_flight(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(50).min(200);
    let target = Lines::at(&nodes[1], rounds);
    for round in 0..rounds {
        let endpoint = nodes[0].endpoint();
        let buf = endpoint.buf::<u64>(512).unwrap();
        drop(endpoint.get_into(target.remote(0), endpoint.buf::<u64>(8).unwrap()));
        drop(endpoint.put_owned(target.remote(round).byte_add(8), endpoint.buf::<u64>(1).unwrap()));
        drop(endpoint.put_value(target.remote(round), 1u64));
        drop(buf);
    }
    for round in 0..rounds {
        crate::harness::eventually("the put lands", || (target.load(round) == 1).then_some(()));
    }
    let error = refused(nodes[0].endpoint_with_pool(0).buf::<u8>(1));
    assert!(matches!(error.kind(), ErrorKind::PoolExhausted { .. }));
}

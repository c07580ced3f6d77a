//! Futures that another executor polls than `block_on`: they are polled when they are woken, and not otherwise.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farfield_fabric::Endpoint;

use crate::harness::{Harness, refused, threads};

/// The smallest executor: it polls a future when it is woken, and sleeps until then. How often it has been woken.
struct Sleeper(std::thread::Thread, AtomicBool, AtomicUsize);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.2.fetch_add(1, Ordering::Relaxed);
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn run<F: Future>(future: F) -> (F::Output, usize) {
    let sleeper = Arc::new(Sleeper(std::thread::current(), AtomicBool::new(true), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut future = pin!(future);
    loop {
        if sleeper.1.swap(false, Ordering::SeqCst) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return (output, sleeper.2.load(Ordering::Relaxed));
            }
        } else {
            std::thread::park();
        }
    }
}

/// A future in another executor is woken by puts of other nodes, by the ends of its operations, when a remote word has
/// changed, and at its deadline.
pub(crate) fn another_executor_is_woken(harness: &Harness) {
    const ROUNDS: u64 = 50;
    let nodes = harness.session(2);
    let regions = [nodes[0].signals(16), nodes[1].signals(16)];
    let play = |me: usize| {
        let (endpoint, regions) = (nodes[me].endpoint(), &regions);
        let (mine, others) = (&regions[me], &regions[1 - me]);
        run(async {
            for round in 1..=ROUNDS {
                endpoint.put_value(others.remote(0), round).await.unwrap();
                let came = || (mine.word(0).load() >= round).then_some(());
                endpoint.wait_until(endpoint.deadline(), came).await.unwrap();
                assert!(endpoint.get::<u64>(others.remote(0)).await.unwrap() >= round);
                // A remote word changes by a local store, which wakes no task.
                if round <= 5 {
                    mine.word(8).store(round);
                    let mut seen = round - 1;
                    while seen < round {
                        seen = endpoint.wait_remote(others.remote(8), seen, endpoint.deadline()).await.unwrap();
                    }
                }
                endpoint.get::<u64>(others.remote(0)).detach().unwrap();
                endpoint.wait_for_reads([others.remote::<u64>(0).node()]).await;
                endpoint.pause().await;
            }
        });
    };
    let start = std::time::Instant::now();
    threads([(&nodes[0], &|| play(0)), (&nodes[1], &(|| play(1)) as &(dyn Fn() + Sync))]);
    assert!(start.elapsed() < Duration::from_secs(20), "waits ended by their deadlines");
    let endpoint = nodes[0].endpoint();
    let start = endpoint.now();
    let wait = Duration::from_millis(100);
    let (ended, woken) = run(endpoint.wait_until(endpoint.now() + wait, || None::<()>));
    assert!(refused(ended).is_timeout());
    let took = endpoint.now() - start;
    assert!(took >= wait && took < wait + Duration::from_secs(2), "{took:?}");
    // An eighth of the time that has gone by, from 500 µs on where a bell rings and 50 µs elsewhere.
    assert!((1..=100).contains(&woken), "{woken} times woken");
}

/// Polls a future only when it was woken.
async fn when_woken<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(Sleeper(std::thread::current(), AtomicBool::new(true), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    poll_fn(|_| {
        if woken.1.swap(false, Ordering::SeqCst) {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// An executor within `block_on`, such as `FuturesUnordered`, polls those only that were woken: each step wakes them.
pub(crate) fn an_executor_within_block_on_goes_on(harness: &Harness) {
    let nodes = harness.session(2);
    let regions = [nodes[0].signals(8), nodes[1].signals(8)];
    let play = |me: usize| {
        let (endpoint, regions): (Endpoint, _) = (nodes[me].endpoint(), &regions);
        let (mine, others) = (&regions[me], &regions[1 - me]);
        endpoint.block_on(async {
            for round in 1..=3 {
                when_woken(endpoint.put_value(others.remote(0), round)).await.unwrap();
                let came = || (mine.word(0).load() >= round).then_some(());
                when_woken(endpoint.wait_until(endpoint.deadline(), came)).await.unwrap();
                assert!(when_woken(endpoint.get::<u64>(others.remote(0))).await.unwrap() >= round);
            }
        });
    };
    threads([(&nodes[0], &|| play(0)), (&nodes[1], &(|| play(1)) as &(dyn Fn() + Sync))]);
}

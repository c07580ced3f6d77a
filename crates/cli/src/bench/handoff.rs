//! How long a cache line takes from one core to another here and now: results that cross processes move with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A hand-off in nanoseconds (the lower quartile of many batches, since others may use the cores), or nothing on a
/// single core, where it would measure the scheduler.
pub(crate) fn handoff_ns() -> Option<f64> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    const BATCH: u64 = 1000;
    let word = AtomicU64::new(0);
    let stop = AtomicU64::new(0);
    let mut batches = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) == 0 {
                let seen = word.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    word.store(seen + 1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        });
        let begin = Instant::now();
        let mut value = 0;
        'measured: while begin.elapsed() < Duration::from_millis(100) {
            let start = Instant::now();
            for _ in 0..BATCH {
                word.store(value + 1, Ordering::Release);
                value += 2;
                while word.load(Ordering::Acquire) != value {
                    std::hint::spin_loop();
                    if start.elapsed() > Duration::from_millis(200) {
                        break 'measured; // the other thread has no core
                    }
                }
            }
            batches.push(start.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
        }
        stop.store(1, Ordering::Relaxed);
    });
    batches.sort_by(f64::total_cmp);
    batches.get(batches.len() / 4).copied()
}

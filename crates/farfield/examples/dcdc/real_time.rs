//! Real time: every loop is a thread or process that keeps time by the clock of the machine, and never sleeps. With
//! fewer cores than nodes they take turns and miss their periods.

use std::time::Duration;

use farfield::{Barrier, Node, Result};

use crate::model::{Nanos, Timing};
use crate::parts::Part;
use crate::{Run, Setting};

/// One of the nodes. Returns the results on the controller.
pub(crate) fn run(node: &Node, settings: &[Setting]) -> Result<Vec<Run>> {
    let mut part = Part::open(node)?;
    let mut everyone = Barrier::open(node, "dcdc/everyone", 1)?.thread()?;
    let enough_cores = node.nodes() <= cores();
    let mut runs = Vec::new();
    for setting in settings {
        let mut meet = |part: &Part| part.endpoint().block_on(everyone.wait(part.endpoint()));
        part.restart(setting.timing)?;
        meet(&part)?;
        keep_time(&mut part, setting.timing, enough_cores)?;
        part.publish_achieved()?;
        meet(&part)?;
        let results = part.results();
        runs.extend(results.map(|(seen, achieved_us)| Run { setting: *setting, seen, achieved_us: Some(achieved_us) }));
    }
    // No node leaves while others still push.
    part.endpoint().block_on(everyone.wait(part.endpoint()))?;
    Ok(runs)
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn keep_time(part: &mut Part, timing: Timing, enough_cores: bool) -> Result<()> {
    let start = part.endpoint().now();
    let end = Duration::from_nanos(timing.end);
    loop {
        let elapsed = part.endpoint().now() - start;
        let now = Nanos::try_from(elapsed.as_nanos()).unwrap_or(Nanos::MAX);
        if elapsed > end {
            return Ok(());
        }
        if now >= part.next_event() {
            part.act(now, timing.delay)?;
        } else if enough_cores {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

//! Virtual time: the nodes act in the order of their times, however long that takes. So the output depends on the
//! periods and the delay alone and is the same in every run and on every machine. The values still go through network
//! memory.
//!
//! At each time at which the controller acts, all converters first act up to that time, and then the controller does.

use farfield::{Barrier, Node, Result, local_session, on_each};

use crate::model::Timing;
use crate::parts::{CONTROLLER, Part};
use crate::{Run, Setting};

/// All nodes in this process: one thread does what each of them does, in turns.
pub(crate) fn in_one_thread(converters: usize, settings: &[Setting]) -> Result<Vec<Run>> {
    let nodes = local_session(converters + 1)?;
    let mut parts = on_each(&nodes, Part::open)?;
    let run = |setting: &Setting| {
        let Timing { delay, .. } = setting.timing;
        for part in &mut parts {
            part.restart(setting.timing)?;
            part.fence()?;
        }
        for now in setting.timing.controller_events() {
            let (controller, converters) = parts.split_first_mut().expect("a controller");
            for converter in converters {
                act_until(converter, now, setting.timing)?;
                converter.fence()?;
            }
            controller.act(now, delay)?;
            controller.fence()?;
        }
        Ok(parts[0].results().map(|(seen, _)| Run { setting: *setting, seen, achieved_us: None }))
    };
    Ok(settings.iter().map(run).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// One of the nodes, each of which has a thread or process of its own: they meet at a barrier. Returns the results on
/// the controller.
pub(crate) fn in_step(node: &Node, settings: &[Setting]) -> Result<Vec<Run>> {
    let mut part = Part::open(node)?;
    let mut everyone = Barrier::open(node, "dcdc/everyone", 1)?.thread()?;
    let mut runs = Vec::new();
    for setting in settings {
        // Everything that was pushed before a meeting can be seen after it.
        let mut meet = |part: &Part| part.endpoint().block_on(everyone.wait(part.endpoint()));
        part.restart(setting.timing)?;
        meet(&part)?;
        for now in setting.timing.controller_events() {
            if node.id() != CONTROLLER {
                act_until(&mut part, now, setting.timing)?;
            }
            meet(&part)?;
            if node.id() == CONTROLLER {
                part.act(now, setting.timing.delay)?;
            }
            meet(&part)?;
        }
        runs.extend(part.results().map(|(seen, _)| Run { setting: *setting, seen, achieved_us: None }));
    }
    Ok(runs)
}

fn act_until(part: &mut Part, end: u64, timing: Timing) -> Result<()> {
    while part.next_event() <= end {
        part.act(part.next_event(), timing.delay)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::simulate;

    fn settings(delay_us: u64, end: u64) -> Vec<Setting> {
        let timing = |period_us: u64| Timing { period: period_us * 1000, delay: delay_us * 1000, end };
        [40, 45, 60].map(|period_us| Setting { timing: timing(period_us) }).to_vec()
    }

    /// The values in network memory are those of the model without a network, to the last bit.
    #[test]
    fn values_through_network_memory_are_those_of_the_model() {
        for delay_us in [0, 3, 10, 27] {
            let settings = settings(delay_us, 20_000_000);
            for run in in_one_thread(5, &settings).expect("a run") {
                assert_eq!(run.seen, simulate(5, run.setting.timing), "{:?}", run.setting);
            }
        }
    }

    /// Nodes with a thread each get the same as one thread for all.
    #[test]
    fn nodes_in_step_see_the_same() {
        let settings = settings(3, 1_000_000);
        let nodes = local_session(4).expect("a session");
        let runs = on_each(&nodes, |node| in_step(node, &settings)).expect("a run");
        assert!(runs[1..].iter().all(Vec::is_empty));
        let seen = |runs: &[Run]| runs.iter().map(|run| run.seen.clone()).collect::<Vec<_>>();
        assert_eq!(seen(&runs[0]), seen(&in_one_thread(3, &settings).expect("a run")));
    }

    /// A converter's push is one put, and the controller's one for each converter: a push is for its reader alone.
    #[test]
    fn a_push_goes_to_the_one_node_that_reads_it() {
        let nodes = local_session(6).expect("a session");
        let mut parts = on_each(&nodes, Part::open).expect("variables");
        for part in &mut parts {
            let before = part.endpoint().counts().puts;
            part.act(0, 0).expect("a step");
            let expected = if matches!(part, Part::Controller(_)) { 5 } else { 1 };
            assert_eq!(part.endpoint().counts().puts - before, expected);
        }
    }
}

//! The faults and their targets, drawn from the seed before anything begins: a seed is a plan.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// A fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fault {
    /// SIGKILL
    Kill,
    /// SIGSTOP, and SIGCONT a while later
    Stop,
    /// Restart a killed node, during the load or before the next generation
    Restart,
    /// Cut the link: the nodes on the smaller side have to be evicted, and are killed when they know
    Cut,
}

/// One thing that is done to a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    /// Since the beginning of the generation's load.
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    pub(super) at: Duration,
    /// The node's place: its number among those that were started first.
    pub(super) place: usize,
    pub(super) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Kill,
    Stop,
    Continue,
    /// The place of one that was killed is taken by a newcomer, which is not harmed in this generation.
    Restart,
    /// It is on the losing side of the link, which is cut.
    Cut,
}

/// A time in which the same nodes work on the same objects, but for those that are killed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Generation {
    #[serde(rename = "load_ms", serialize_with = "as_millis")]
    pub(super) load: Duration,
    /// Dead places that are started again before it.
    pub(super) restarts: Vec<usize>,
    /// In order of time.
    pub(super) events: Vec<Event>,
}

fn as_millis<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_millis() as u64)
}

/// Those that are never killed together: two can still talk to each other.
const ALIVE_MIN: usize = 2;
/// A generation has about so much load.
const GENERATION: Duration = Duration::from_secs(8);
/// The quiet time before the first event, and between the end of one and the next: the two seconds in which a recovery
/// is judged. The second one is the normal pace for the next.
const QUIET_MS: std::ops::RangeInclusive<u64> = 2050..=2450;
/// After the last event.
const END: Duration = Duration::from_millis(2050);
/// From a death to the start of a newcomer at its place: within the time in which the survivors are to recover.
const RESTART_MS: std::ops::RangeInclusive<u64> = 100..=1000;
/// So many of the dead are started again while the others work. Of those that are left, some before the next
/// generation.
const RESTART_SHARE: f64 = 0.7;
/// So many of the generations are those of a cut, in which nothing else happens; all, if there is nothing else.
const CUT_SHARE: f64 = 0.5;
/// How long a node is stopped. Some stops outlast the operations' timeout.
const STOP_MS: std::ops::RangeInclusive<u64> = 200..=2500;
/// How long a node is stopped before it is killed, or beside the death of another.
const STOP_BRIEFLY_MS: std::ops::RangeInclusive<u64> = 50..=600;

/// The terms of a plan: the nodes, the allowed faults, and the times until a death is known.
pub(super) struct Terms<'a> {
    pub(super) nodes: usize,
    /// The ends of the link, on which the nodes are in turn.
    pub(super) ends: usize,
    pub(super) faults: &'a [Fault],
    /// If no system reports deaths: nodes suspect a node that is silent for so long, and a majority of them decides.
    pub(super) silence: Option<Duration>,
    /// In so long the survivors have found out that a node is dead.
    pub(super) detection: Duration,
}

impl Terms<'_> {
    fn allow(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Before the first event, and between two.
    fn quiet(&self, rng: &mut SmallRng) -> Duration {
        self.detection + Duration::from_millis(rng.random_range(QUIET_MS))
    }

    /// A stop, which takes its share of the time after which a stopped node is taken for dead.
    fn stop(&self, rng: &mut SmallRng, range: std::ops::RangeInclusive<u64>, share: u32) -> Duration {
        let max = self.silence.map_or(u64::MAX, |silence| (silence / share).as_millis() as u64).min(*range.end());
        Duration::from_millis(rng.random_range(max.min(*range.start())..=max))
    }

    /// Whether the survivors of two deaths can continue: where they vote, they must be a majority.
    fn survive_two(&self, alive: usize) -> bool {
        alive > ALIVE_MIN + 1 && (self.silence.is_none() || (alive - 2) * 2 > alive)
    }
}

/// Draws the plan.
pub(super) fn draw(seed: u64, time: Duration, terms: &Terms<'_>) -> Vec<Generation> {
    let (nodes, mut rng) = (terms.nodes, SmallRng::seed_from_u64(seed));
    let generation = GENERATION + 2 * terms.detection;
    let count = (time.as_secs_f64() / generation.as_secs_f64()).round().max(1.0) as u32;
    let mut alive: BTreeSet<usize> = (0..nodes).collect();
    (0..count)
        .map(|_| {
            let mut restarts = Vec::new();
            if terms.allow(Fault::Restart) {
                // Not always: a generation may also begin without the dead nodes.
                restarts = (0..nodes).filter(|place| !alive.contains(place) && rng.random_bool(0.8)).collect();
                alive.extend(&restarts);
            }
            let load = time / count;
            let mut events = draw_events(&mut rng, load, &mut alive, terms);
            if terms.allow(Fault::Restart) {
                let newcomers = draw_newcomers(&mut rng, &events);
                alive.extend(newcomers.iter().map(|event| event.place));
                events.extend(newcomers);
                events.sort_by_key(|event| event.at);
            }
            Generation { load, restarts, events }
        })
        .collect()
}

/// The nodes that join while the others work.
fn draw_newcomers(rng: &mut SmallRng, events: &[Event]) -> Vec<Event> {
    let deaths = events.iter().filter(|event| event.action == Action::Kill);
    let mut newcomer = |death: &Event| {
        let at = death.at + Duration::from_millis(rng.random_range(RESTART_MS));
        rng.random_bool(RESTART_SHARE).then_some(Event { at, place: death.place, action: Action::Restart })
    };
    deaths.filter_map(&mut newcomer).collect()
}

/// The nodes that lose when the last end of the link is cut off from the others; none if no side, or both sides, would
/// lose.
fn losing_side(alive: &BTreeSet<usize>, ends: usize) -> Vec<usize> {
    let (last, others): (Vec<usize>, Vec<usize>) = alive.iter().partition(|place| *place % ends == ends - 1);
    let (fewer, more) = if last.len() < others.len() { (last, others) } else { (others, last) };
    if fewer.len() < more.len() && more.len() >= ALIVE_MIN { fewer } else { Vec::new() }
}

fn draw_events(rng: &mut SmallRng, load: Duration, alive: &mut BTreeSet<usize>, terms: &Terms<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut now = terms.quiet(rng);
    let is_alone = !terms.allow(Fault::Kill) && !terms.allow(Fault::Stop);
    let is_cut = terms.allow(Fault::Cut) && (is_alone || rng.random_bool(CUT_SHARE));
    if is_cut && now + terms.detection + END <= load {
        let cut_off = losing_side(alive, terms.ends);
        if !cut_off.is_empty() {
            alive.retain(|place| !cut_off.contains(place));
            return cut_off.into_iter().map(|place| Event { at: now, place, action: Action::Cut }).collect();
        }
    }
    loop {
        let (may_kill, may_stop) = (terms.allow(Fault::Kill) && alive.len() > ALIVE_MIN, terms.allow(Fault::Stop));
        let places: Vec<usize> = alive.iter().copied().collect();
        let two: Vec<usize> = places.sample(rng, 2).copied().collect();
        let (first, other) = (two[0], two[1]);
        // The actions, their ends, and the dead nodes at each time.
        let mut story = Vec::new();
        let mut event = |at, place, action| story.push(Event { at, place, action });
        let (over, dead) = match rng.random_range(0..8) {
            0..3 if may_kill => {
                event(now, first, Action::Kill);
                (now, Some(first))
            }
            3 if may_kill && may_stop => {
                let kill = now + terms.stop(rng, STOP_BRIEFLY_MS, 4);
                event(now, first, Action::Stop);
                event(kill, first, Action::Kill);
                (kill, Some(first))
            }
            4 if may_kill && may_stop => {
                // A survivor is stopped when another dies: it finds out later than the others.
                let kill = now + terms.stop(rng, STOP_BRIEFLY_MS, 4);
                let go_on = kill + terms.stop(rng, STOP_BRIEFLY_MS, 4);
                event(now, other, Action::Stop);
                event(kill, first, Action::Kill);
                event(go_on, other, Action::Continue);
                (go_on, Some(first))
            }
            5 if may_kill && terms.survive_two(alive.len()) => {
                let second = now + Duration::from_millis(rng.random_range(0..=30));
                event(now, first, Action::Kill);
                event(second, other, Action::Kill);
                alive.remove(&other);
                (second, Some(first))
            }
            _ if may_stop => {
                let go_on = now + terms.stop(rng, STOP_MS, 2);
                event(now, first, Action::Stop);
                event(go_on, first, Action::Continue);
                (go_on, None)
            }
            _ if may_kill => {
                event(now, first, Action::Kill);
                (now, Some(first))
            }
            _ => return events,
        };
        if over + terms.detection + END > load {
            // There is no time left for it: these nodes do not die.
            alive.extend(two);
            return events;
        }
        events.append(&mut story);
        if let Some(dead) = dead {
            alive.remove(&dead);
        }
        now = over + terms.quiet(rng);
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.load.as_secs_f64())?;
        for place in &self.restarts {
            write!(f, ", restart {place} before")?;
        }
        for Event { at, place, action } in &self.events {
            let action = match action {
                Action::Kill => "kill",
                Action::Stop => "stop",
                Action::Continue => "continue",
                Action::Restart => "restart",
                Action::Cut => "cut off",
            };
            write!(f, ", {:.2} s {action} {place}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Fault; 3] = [Fault::Kill, Fault::Stop, Fault::Restart];
    const CUTS: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::Restart, Fault::Cut];
    /// On shared memory, and where nodes are silent for so long until they are suspected.
    const SILENCES: [Option<Duration>; 3] = [None, Some(Duration::from_millis(500)), Some(Duration::from_millis(2500))];

    fn drawn(seed: u64, nodes: usize, faults: &[Fault], silence: Option<Duration>) -> Vec<Generation> {
        let (ends, detection) = (2 + seed as usize / 7 % 2, silence.unwrap_or_default());
        draw(seed, Duration::from_secs(120), &Terms { nodes, ends, faults, silence, detection })
    }

    #[test]
    fn a_seed_is_a_plan() {
        let plan = |seed| drawn(seed, 4, &ALL, None);
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn plans_can_be_carried_out() {
        let (silences, mut cuts) = (SILENCES.into_iter().cycle(), 0);
        for ((seed, nodes), silence) in (0..300).zip((2..=8).cycle()).zip(silences) {
            let mut alive: BTreeSet<usize> = (0..nodes).collect();
            let mut kinds = BTreeSet::new();
            let faults: &[Fault] = if silence.is_some() { &CUTS } else { &ALL };
            for generation in drawn(seed, nodes, faults, silence) {
                for place in &generation.restarts {
                    assert!(alive.insert(*place), "it was dead");
                    kinds.insert("restart");
                }
                let before = alive.len();
                let mut stopped = BTreeSet::new();
                let mut newcomers = BTreeSet::new();
                let mut last = Duration::ZERO;
                for Event { at, place, action } in &generation.events {
                    assert!(last <= *at && *at <= generation.load, "{generation}");
                    last = *at;
                    if *action == Action::Restart {
                        assert!(!alive.contains(place) && newcomers.insert(*place), "{generation}");
                        kinds.insert("restart under load");
                        continue;
                    }
                    assert!(*at + END <= generation.load, "{generation}");
                    assert!(alive.contains(place), "{generation}");
                    match action {
                        Action::Restart => unreachable!("those are newcomers"),
                        Action::Cut => {
                            alive.remove(place);
                            let is_cut = |event: &Event| event.action == Action::Cut;
                            assert!(generation.events.iter().all(is_cut), "{generation}");
                            assert!(generation.events.len() * 2 < before, "{generation}");
                            kinds.insert("cut");
                        }
                        Action::Kill => {
                            alive.remove(place);
                            stopped.remove(place);
                            kinds.insert("kill");
                        }
                        Action::Stop => assert!(stopped.insert(*place)),
                        Action::Continue => assert!(stopped.remove(place)),
                    }
                }
                assert!(stopped.is_empty() && alive.len() >= ALIVE_MIN, "{generation}");
                alive.append(&mut newcomers);
            }
            cuts += usize::from(kinds.contains("cut"));
            assert!(nodes == 2 || silence.is_some() || kinds.contains("kill"), "seed {seed}, {nodes} nodes");
            assert!(
                nodes < 4 || silence.is_some() || kinds.contains("restart under load"),
                "seed {seed}, {nodes} nodes"
            );
        }
        assert!(cuts > 100, "{cuts} plans have a cut");
    }

    /// The seconds in which a death's recovery is judged, and those that it is compared with, contain no other event
    /// but newcomers.
    #[test]
    fn a_recovery_is_left_alone() {
        let second = Duration::from_secs(1);
        for (seed, silence) in (0..300).zip(SILENCES.into_iter().cycle()) {
            let found_out = silence.unwrap_or_default();
            for generation in drawn(seed, 5, &ALL, silence) {
                let mut harm = generation.events.iter().filter(|event| event.action != Action::Restart).peekable();
                let mut calm = Duration::ZERO;
                let mut stopped = 0;
                while let Some(event) = harm.next() {
                    // Two deaths at once are one story.
                    let is_next = stopped == 0 && event.at - calm > Duration::from_millis(30);
                    assert!(!is_next || event.at - calm >= found_out + 2 * second, "{generation}");
                    stopped = match event.action {
                        Action::Stop => stopped + 1,
                        Action::Continue => stopped - 1,
                        // The stopped node is dead now.
                        _ => usize::from(stopped > 0 && harm.peek().is_some_and(|it| it.action == Action::Continue)),
                    };
                    calm = event.at;
                }
                assert!(calm + found_out + 2 * second <= generation.load, "{generation}");
            }
        }
    }

    #[test]
    fn only_the_requested_faults_are_planned() {
        for seed in 0..100 {
            for generation in drawn(seed, 4, &[Fault::Stop], None) {
                assert!(generation.events.iter().all(|event| event.action != Action::Kill), "{generation}");
            }
            let kills = drawn(seed, 4, &[Fault::Kill], None);
            assert!(kills.iter().all(|it| it.events.iter().all(|event| event.action == Action::Kill)));
            assert_eq!(kills.iter().map(|it| it.events.len()).sum::<usize>(), 2);
        }
    }
}

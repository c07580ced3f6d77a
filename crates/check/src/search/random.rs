//! Random executions.
//!
//! Uniform choice at every step is a weak search: it hardly ever delays one component for long while others make
//! progress. So each execution draws at its start which components are fast and which are slow, and keeps to it.
//!
//! - **A biased walk** gives every component (a thread, a store buffer, a queue pair) a weight, from a range over three
//!   orders of magnitude, and draws by weight.
//! - **Priorities** (PCT; Burckhardt et al., ASPLOS 2010) gives every component a priority, runs the highest for as
//!   long as it can run, and lowers the priority of the running component at a few moments drawn in advance.
//!
//! **Faults**, where the scenario has any, are drawn at the start as well: how many, including none, and at which
//! moments. Which of the possible faults occurs is drawn at that moment. One more moment is drawn: from then on no
//! fault begins, cuts heal and stalls end, and the rest of the execution has to finish.

use core::fmt;
use core::str::FromStr;

use farfield_core::fabric::sim::{Candidate, Chooser, Fault, View};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use smallvec::SmallVec;

/// An execution of a random search, by all that it is drawn from. In text, `seed:execution:decisions`.
///
/// ```
/// let random: farfield_check::RandomExecution = "1:2500:311".parse().unwrap();
/// assert_eq!((random.seed, random.execution, random.decisions), (1, 2500, 311));
/// assert_eq!(random.to_string(), "1:2500:311");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RandomExecution {
    /// The seed of the search.
    pub seed: u64,
    /// Its number in the search, from 1.
    pub execution: u64,
    /// The most decisions of an execution before it, or 64: moments are drawn among so many.
    pub decisions: usize,
}

impl fmt::Display for RandomExecution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.seed, self.execution, self.decisions)
    }
}

impl FromStr for RandomExecution {
    type Err = String;

    fn from_str(text: &str) -> Result<RandomExecution, String> {
        let parsed = || {
            let mut numbers = text.split(':').map(|number| number.parse::<u64>().ok());
            let mut next = || numbers.next().flatten();
            let (seed, execution, decisions) = (next()?, next()?, usize::try_from(next()?).ok()?);
            (execution > 0 && numbers.next().is_none()).then_some(RandomExecution { seed, execution, decisions })
        };
        parsed().ok_or_else(|| format!("`{text}` is no random execution: it reads `seed:execution:decisions`"))
    }
}

pub(super) struct Random {
    rng: SmallRng,
    /// The seed of the components' weights or priorities.
    salt: u64,
    eager: bool,
    early_timeouts: bool,
    priorities: Option<Priorities>,
    faults: Option<Plan>,
}

/// When faults happen.
struct Plan {
    /// The decisions at which one begins, the first last.
    begin: SmallVec<[usize; 4]>,
    /// From this decision on, no faults are in effect.
    calm: usize,
}

impl Plan {
    fn draw(rng: &mut SmallRng, decisions: usize, count: u32) -> Plan {
        // Early moments are more likely, because the consequences of a fault take a while.
        let last = rng.random_range(0..decisions.max(1));
        let count = rng.random_range(0..=count);
        let mut begin: SmallVec<[usize; 4]> = (0..count).map(|_| rng.random_range(0..=last)).collect();
        begin.sort_unstable_by(|a, b| b.cmp(a));
        Plan { begin, calm: last + rng.random_range(0..2 * decisions.max(1)) }
    }

    fn tell(&self) -> String {
        let moments: Vec<String> = self.begin.iter().rev().map(usize::to_string).collect();
        match &moments[..] {
            [] => "no fault".into(),
            [at] => format!("1 fault, at decision {at}; all is well from decision {}", self.calm),
            at => {
                format!("{} faults, at decisions {}; all is well from decision {}", at.len(), at.join(", "), self.calm)
            }
        }
    }

    /// The fault that begins or ends now, if one does.
    fn now(&mut self, view: &View<'_>, rng: &mut SmallRng) -> Option<usize> {
        let of = |is: fn(Fault) -> bool| {
            let found =
                view.candidates.iter().enumerate().filter(move |(_, c)| matches!(c, Candidate::Fault(f) if is(*f)));
            found.map(|(index, _)| index).collect::<SmallVec<[usize; 16]>>()
        };
        if view.decision >= self.calm {
            self.begin.clear();
            return of(Fault::is_end).first().copied();
        }
        if self.begin.last().is_none_or(|at| *at > view.decision) {
            return None;
        }
        let new = of(Fault::is_new);
        if new.is_empty() {
            return None;
        }
        self.begin.pop();
        Some(new[rng.random_range(0..new.len())])
    }
}

/// Whether it may be chosen at any moment: new faults have moments of their own.
fn is_open(candidate: &Candidate) -> bool {
    !matches!(candidate, Candidate::Fault(fault) if fault.is_new())
}

/// Of a walk by priorities.
struct Priorities {
    /// The decisions at which the running component is put last.
    lowerings: SmallVec<[usize; 8]>,
    /// The components that were put last, in order.
    lowered: SmallVec<[u32; 8]>,
}

fn mix(seed: u64, value: u64) -> u64 {
    let x = (seed ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ x >> 29
}

impl Random {
    pub(super) fn new(of: RandomExecution, early_timeouts: bool, faults: u32) -> Random {
        let RandomExecution { seed, execution, decisions } = of;
        let mut rng = SmallRng::seed_from_u64(mix(mix(0, seed), execution.saturating_sub(1)));
        let kind = rng.random_range(0..8u32);
        let priorities = (kind < 3).then(|| {
            let changes = rng.random_range(0..6);
            let mut lowerings: SmallVec<[usize; 8]> =
                (0..changes).map(|_| rng.random_range(0..decisions.max(1))).collect();
            lowerings.sort_unstable_by(|a, b| b.cmp(a));
            Priorities { lowerings, lowered: SmallVec::new() }
        });
        let eager = rng.random_range(0..2u32) == 0;
        let early_timeouts = early_timeouts && rng.random_range(0..2u32) == 0;
        let salt = rng.random();
        let faults = (faults > 0).then(|| Plan::draw(&mut rng, decisions, faults));
        Random { salt, rng, eager, early_timeouts, priorities, faults }
    }

    /// The faults that were drawn, in words.
    pub(super) fn faults(&self) -> Option<String> {
        self.faults.as_ref().map(Plan::tell)
    }

    fn weight(&self, candidate: Candidate) -> u32 {
        let drawn = mix(self.salt, u64::from(candidate.component())) >> 40 & 0xff;
        1 << (drawn * 10 / 0xff)
    }

    fn walk(&mut self, view: &View<'_>) -> usize {
        let mut total = 0;
        let mut weights: SmallVec<[u32; 24]> = SmallVec::new();
        for candidate in view.candidates {
            let weight = if is_open(candidate) { self.weight(*candidate) } else { 0 };
            total += weight;
            weights.push(weight);
        }
        let mut drawn = self.rng.random_range(0..total);
        for (index, weight) in weights.into_iter().enumerate() {
            if drawn < weight {
                return index;
            }
            drawn -= weight;
        }
        0
    }
}

impl Priorities {
    fn rank(&self, salt: u64, component: u32) -> u64 {
        // Those that were lowered come last, the latest at the very end.
        match self.lowered.iter().rposition(|lowered| *lowered == component) {
            Some(at) => 64 - at as u64,
            None => 64 + (mix(salt, u64::from(component)) >> 8),
        }
    }

    fn choose(&mut self, salt: u64, view: &View<'_>, rng: &mut SmallRng) -> usize {
        let best = |this: &Priorities| {
            let ranked = view.candidates.iter().filter(|c| is_open(c)).map(|candidate| candidate.component());
            ranked.max_by_key(|component| this.rank(salt, *component)).unwrap_or(0)
        };
        let mut component = best(self);
        while self.lowerings.last().is_some_and(|at| *at <= view.decision) {
            self.lowerings.pop();
            self.lowered.push(component);
            component = best(self);
        }
        // A queue pair may have several steps to choose from.
        let of = |candidate: &Candidate| candidate.component() == component;
        let count = view.candidates.iter().filter(|candidate| of(candidate)).count();
        let drawn = if count > 1 { rng.random_range(0..count) } else { 0 };
        let mut found = (0..view.candidates.len()).filter(|index| of(&view.candidates[*index]));
        found.nth(drawn).unwrap_or(0)
    }
}

impl Chooser for Random {
    fn eager(&self) -> bool {
        self.eager
    }

    fn early_timeouts(&self) -> bool {
        self.early_timeouts
    }

    fn choose(&mut self, view: &View<'_>) -> usize {
        if let Some(chosen) = self.faults.as_mut().and_then(|plan| plan.now(view, &mut self.rng)) {
            return chosen;
        }
        match self.priorities.take() {
            None => self.walk(view),
            Some(mut priorities) => {
                let chosen = priorities.choose(self.salt, view, &mut self.rng);
                self.priorities = Some(priorities);
                chosen
            }
        }
    }

    fn value(&mut self, options: usize) -> usize {
        self.rng.random_range(0..options)
    }
}

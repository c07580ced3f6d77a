//! Carries out a plan: leads the nodes through the generations, harms them, and watches that everything ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farfield::LockKind;
use indicatif::ProgressBar;
use rustix::process::Signal;

use super::judge::{self, Death, Story, pace};
use super::kind::Kind;
use super::link::Link;
use super::load;
use super::log::{self, now_ns};
use super::plan::{Action, Generation};
use super::processes::{Gone, Heard, Opening, Order, Processes, Said, Step};
use super::report::{Injected, Report};

/// Longer than any step takes, also on a machine that is busy with something else.
const STEP_MAX: Duration = Duration::from_secs(120);
/// The interval of the checks that all threads make progress.
const TICK: Duration = Duration::from_millis(50);
const SHORT_TICK: Duration = Duration::from_millis(1);
/// From one operation of a thread to the next, for each node: so that all together leave the machine time. Where that
/// is not enough, each rests longer (see `worker`).
const PACE_PER_NODE: Duration = Duration::from_micros(1500);

/// The known state of the process at a place.
struct Present {
    node: u16,
    /// What each of its threads had begun when that last changed.
    begun: BTreeMap<String, (u64, Instant)>,
    /// The dead that it knows to be evicted.
    evict: BTreeSet<u16>,
    is_stopped: bool,
    /// It has objects open. A newcomer has none at first.
    takes_part: bool,
}

pub(super) struct Director<'a> {
    seed: u64,
    /// See [`Story::detection_ns`].
    detection: Duration,
    /// The objects of each generation.
    kinds: Vec<Kind>,
    /// Of all generations, if it is not another one in each.
    locks: Option<LockKind>,
    link: Option<Link>,
    folder: PathBuf,
    processes: Processes,
    present: BTreeMap<usize, Present>,
    /// Those that were killed in this generation, in the order of the story's deaths.
    killed: Vec<Gone>,
    /// The places of those on the losing side of the link, which is cut; and of those that know that they are evicted.
    cut_off: BTreeSet<usize>,
    fenced: BTreeSet<usize>,
    /// Places where a process was started and is not there yet.
    coming: BTreeSet<usize>,
    /// Places of newcomers, in the order in which they joined, with which no object has been opened yet.
    newcomers: Vec<usize>,
    /// Places that have still to open an object with the newcomer that was last one.
    joining: BTreeSet<usize>,
    joining_since: Instant,
    /// The places that were restarted while the others worked, each with the time.
    restarted: Vec<(usize, u64)>,
    bar: &'a ProgressBar,
    /// Load so far.
    elapsed: Duration,
}

impl Director<'_> {
    pub(super) fn new<'a>(
        seed: u64,
        detection: Duration,
        (kinds, locks): (Vec<Kind>, Option<LockKind>),
        link: Option<Link>,
        processes: Processes,
        folder: &Path,
        bar: &'a ProgressBar,
    ) -> Director<'a> {
        let elapsed = Duration::ZERO;
        Director {
            seed,
            detection,
            kinds,
            locks,
            link,
            folder: folder.into(),
            processes,
            present: BTreeMap::new(),
            killed: Vec::new(),
            cut_off: BTreeSet::new(),
            fenced: BTreeSet::new(),
            coming: BTreeSet::new(),
            newcomers: Vec::new(),
            joining: BTreeSet::new(),
            joining_since: Instant::now(),
            restarted: Vec::new(),
            bar,
            elapsed,
        }
    }

    /// Carries out the plan, up to the first violation. The report lists the faults and findings, also after an error.
    pub(super) fn conduct(&mut self, places: usize, plan: &[Generation], report: &mut Report) -> Result<()> {
        self.start(0..places)?;
        for (number, generation) in plan.iter().enumerate() {
            self.start(generation.restarts.iter().copied())?;
            self.restarted.extend(generation.restarts.iter().map(|place| (*place, 0)));
            let mut story = self.generation(number, generation, report)?;
            let mut findings = judge::judge(&mut story);
            for recovery in pace::recoveries(&story) {
                findings.violations.extend(recovery.violation());
                report.recoveries.push(recovery);
            }
            let is_right = findings.violations.is_empty();
            report.operations += story.calls.len() as u64;
            report.generations += 1;
            report.findings.merge(findings);
            if !is_right {
                return Ok(());
            }
            self.forget_logs(number)?;
        }
        self.dismiss()
    }

    fn start(&mut self, places: impl Iterator<Item = usize>) -> Result<()> {
        for place in places {
            self.processes.start(place)?;
            self.coming.insert(place);
        }
        self.wait_for_those_that_come()
    }

    fn wait_for_those_that_come(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.coming.is_empty() {
            self.check_step("coming", &self.coming, start)?;
            if let Some(heard) = self.processes.hear(TICK) {
                self.understand(heard)?;
            }
        }
        Ok(())
    }

    /// One generation, from opening its objects to closing them.
    fn generation(&mut self, number: usize, generation: &Generation, report: &mut Report) -> Result<Story> {
        for present in self.present.values_mut() {
            present.takes_part = true;
        }
        self.newcomers.clear();
        let members = self.members();
        let is_placed_by_hash = number % 2 == 1;
        let locks = self.locks.unwrap_or(LockKind::ALL[number % LockKind::ALL.len()]);
        let homes: Vec<u16> = load::homes_of(number as u64, &members).collect();
        let opening = Opening {
            generation: number as u64,
            members: members.clone(),
            homes: homes.clone(),
            seed: self.seed.wrapping_add(number as u64),
            pace: PACE_PER_NODE * members.len() as u32,
            is_placed_by_hash,
            locks,
            kinds: self.kinds.clone(),
        };
        self.order(&Order::Open(opening.clone()), Step::Opened)?;
        self.order(&Order::Run, Step::Running)?;
        let mut story = Story {
            path: format!("chaos/{number}/"),
            is_placed_by_hash,
            locks,
            detection_ns: self.detection.as_nanos() as u64,
            load_ns: (now_ns(), 0),
            members,
            newcomers: Vec::new(),
            homes,
            deaths: Vec::new(),
            stops: Vec::new(),
            cut_ns: None,
            calls: Vec::new(),
        };
        self.load(number, generation, &opening, &mut story, report)?;
        story.load_ns.1 = now_ns();
        self.wait_for_those_that_come()?;
        report.injected.extend(self.restarted.drain(..).map(|(place, at_ms)| Injected {
            generation: number,
            at_ms,
            action: "restart".into(),
            node: self.present.get(&place).map_or(0, |it| it.node),
        }));
        report.injected.sort_by_key(|it| (it.generation, it.at_ms));
        for (order, step) in [(Order::Settle, Step::Settled), (Order::Look, Step::Looked), (Order::Close, Step::Closed)]
        {
            self.order(&order, step)?;
        }
        self.see_off(&mut story)?;
        story.calls = log::read(&self.folder, number as u64)?;
        Ok(story)
    }

    /// The time of a generation in which nodes are harmed.
    fn load(
        &mut self,
        number: usize,
        generation: &Generation,
        opening: &Opening,
        story: &mut Story,
        report: &mut Report,
    ) -> Result<()> {
        let start = Instant::now();
        for present in self.present.values_mut() {
            present.begun.clear();
        }
        let end = (generation.load, None);
        let events = generation.events.iter().map(|event| (event.at, Some(event)));
        // A delay delays all later events: the plan's distances stay.
        let mut late = Duration::ZERO;
        // When the last one died, by the plan.
        let mut died = Duration::MAX;
        for (at, event) in events.chain([end]) {
            // It waits until the survivors have recovered.
            let follows = at.checked_sub(died).is_some_and(|since| since >= self.detection + pace::RECOVERY);
            loop {
                let recovered_ns = self.recovered_ns(story)?;
                let mut left = (at + late).saturating_sub(start.elapsed());
                if follows {
                    left = left.max(Duration::from_nanos(recovered_ns.saturating_sub(now_ns())));
                }
                // No fault is injected while an object is opened: the opening would rightly fail.
                if left.is_zero() && self.joining.is_empty() {
                    break;
                }
                self.bar.set_position((self.elapsed + start.elapsed()).as_millis() as u64);
                if let Some(heard) = self.processes.hear(left.clamp(SHORT_TICK, TICK)) {
                    self.understand(heard)?;
                }
                self.check_progress(start)?;
                self.let_join(opening, story)?;
            }
            let Some(event) = event else { continue };
            late = start.elapsed() - at;
            if matches!(event.action, Action::Kill | Action::Cut) {
                died = at;
            }
            let at_ms = start.elapsed().as_millis() as u64;
            if event.action == Action::Restart {
                self.processes.start(event.place)?;
                self.coming.insert(event.place);
                self.restarted.push((event.place, at_ms));
                continue;
            }
            let node = self.harm(event.place, event.action, story)?;
            let action = format!("{:?}", event.action).to_lowercase();
            report.injected.push(Injected { generation: number, at_ms, action, node });
        }
        self.elapsed += generation.load;
        self.mend_the_cut()
    }

    /// The time by which the survivors of the deaths so far should have recovered. They must detect the deaths first,
    /// which takes a busy machine longer than configured. That is noted, up to a limit.
    fn recovered_ns(&self, story: &mut Story) -> Result<u64> {
        let now_ns = now_ns();
        for death in story.deaths.iter_mut().filter(|_| story.detection_ns > 0) {
            let is_asked = |it: &&Present| story.members.contains(&it.node) && !it.is_stopped;
            let is_told = |it: &Present| it.evict.contains(&death.node);
            if self.present.values().filter(is_asked).all(is_told) {
                continue;
            }
            death.told_ns = now_ns;
            let since = Duration::from_nanos(now_ns - death.at_ns);
            let max = judge::LIMITS_MAX as u32 * self.detection;
            ensure!(since <= max, "a hang: node {} is dead, and the others have not found out for {max:?}", death.node);
        }
        let recovered = story.deaths.iter().map(|death| story.found_out_ns(death) + pace::RECOVERY.as_nanos() as u64);
        Ok(recovered.max().unwrap_or(0))
    }

    /// When those on the losing side of the cut know it, they are ended, and the link is as it was.
    fn mend_the_cut(&mut self) -> Result<()> {
        let start = Instant::now();
        while let missing = &self.cut_off - &self.fenced
            && !missing.is_empty()
        {
            self.check_step("eviction", &missing, start)?;
            if let Some(heard) = self.processes.hear(TICK) {
                self.understand(heard)?;
            }
        }
        for place in std::mem::take(&mut self.cut_off) {
            self.fenced.remove(&place);
            self.killed.push(self.processes.kill(place)?);
        }
        self.link.as_mut().filter(|link| link.is_cut()).map_or(Ok(()), Link::mend)
    }

    /// If a newcomer waits, and no node is stopped: lets it open an object with all others, which work meanwhile.
    fn let_join(&mut self, opening: &Opening, story: &mut Story) -> Result<()> {
        if !self.joining.is_empty() {
            return self.check_step("joined", &self.joining, self.joining_since);
        }
        if self.newcomers.is_empty() || self.present.values().any(|it| it.is_stopped) {
            return Ok(());
        }
        let newcomer = self.newcomers.remove(0);
        let Some(present) = self.present.get_mut(&newcomer) else { return Ok(()) };
        present.takes_part = true;
        let home = present.node;
        story.newcomers.push(home);
        let order = Order::Join(Opening { members: self.members(), homes: vec![home], ..opening.clone() });
        self.joining = self.parts();
        self.joining_since = Instant::now();
        self.joining.iter().try_for_each(|place| self.processes.tell(*place, &order))
    }

    /// The places of those that have objects open.
    fn parts(&self) -> BTreeSet<usize> {
        self.present.iter().filter(|it| it.1.takes_part).map(|it| *it.0).collect()
    }

    /// Their nodes.
    fn members(&self) -> Vec<u16> {
        let mut members: Vec<u16> = self.present.values().filter(|it| it.takes_part).map(|it| it.node).collect();
        members.sort_unstable();
        members
    }

    /// Does something to the process at a place; its node.
    fn harm(&mut self, place: usize, action: Action, story: &mut Story) -> Result<u16> {
        let present = self.present.get_mut(&place).context("a plan is for those that live")?;
        let node = present.node;
        let at_ns = now_ns();
        let goes_on = |story: &mut Story| {
            for stop in story.stops.iter_mut().filter(|stop| stop.0 == node && stop.2 == u64::MAX) {
                stop.2 = now_ns();
            }
        };
        match action {
            Action::Kill => {
                self.present.remove(&place);
                self.killed.push(self.processes.kill(place)?);
                goes_on(story);
                story.deaths.push(Death { node, at_ns, gone_ns: u64::MAX, told_ns: at_ns });
            }
            Action::Stop => {
                present.is_stopped = true;
                self.processes.signal(place, Signal::STOP)?;
                story.stops.push((node, at_ns, u64::MAX));
            }
            Action::Continue => {
                present.is_stopped = false;
                present.begun.clear();
                self.processes.signal(place, Signal::CONT)?;
                goes_on(story);
            }
            Action::Cut => {
                let link = self.link.as_mut().context("a plan with a cut has a link")?;
                if !link.is_cut() {
                    link.cut()?;
                    story.cut_ns = Some(now_ns());
                }
                self.present.remove(&place);
                self.cut_off.insert(place);
                // All of them with the first.
                let at_ns = story.deaths.first().map_or(at_ns, |first| first.at_ns);
                story.deaths.push(Death { node, at_ns, gone_ns: u64::MAX, told_ns: at_ns });
            }
            Action::Restart => bail!("it lives"),
        }
        Ok(node)
    }

    /// Notes when the killed nodes had ended.
    fn see_off(&mut self, story: &mut Story) -> Result<()> {
        for (death, gone) in story.deaths.iter_mut().zip(self.killed.drain(..)) {
            let start = Instant::now();
            death.gone_ns = loop {
                match gone.at_ns() {
                    Some(at_ns) => break at_ns,
                    None if start.elapsed() < STEP_MAX => std::thread::sleep(TICK),
                    None => bail!("a hang: node {} was killed, and has not ended for {STEP_MAX:?}", death.node),
                }
            };
            // From the cut on no node could reach it.
            death.gone_ns = story.cut_ns.unwrap_or(death.gone_ns);
        }
        Ok(())
    }

    /// Gives all nodes an order, and waits until they have carried it out.
    fn order(&mut self, order: &Order, step: Step) -> Result<()> {
        let mut awaited = self.parts();
        for place in &awaited {
            self.processes.tell(*place, order)?;
        }
        let start = Instant::now();
        while !awaited.is_empty() {
            self.check_step(&format!("{step:?}").to_lowercase(), &awaited, start)?;
            let Some(heard) = self.processes.hear(TICK) else { continue };
            let place = heard.place;
            if matches!(self.understand(heard)?, Said::Did(did) if did == step) {
                awaited.remove(&place);
            }
        }
        Ok(())
    }

    /// Interprets a report. A violation, or the end of a process, is an error.
    fn understand(&mut self, heard: Heard) -> Result<Said> {
        let who = self.describe(heard.place);
        let Some(line) = heard.said else {
            bail!(
                "{who} has ended by itself: {}\n{}",
                self.processes.end_of(heard.place),
                self.last_words(heard.place)
            );
        };
        let said: Said = serde_json::from_str(&line).with_context(|| format!("{who} says `{line}`"))?;
        match &said {
            Said::Violation(what) => bail!("{who} has seen {what}"),
            Said::Fenced if self.cut_off.contains(&heard.place) => {
                self.fenced.insert(heard.place);
            }
            Said::Fenced => {
                bail!("{who} was evicted, and nobody had done anything to it; {}", self.last_words(heard.place))
            }
            Said::Here(node) => {
                let (begun, evict) = (BTreeMap::new(), BTreeSet::new());
                let present = Present { node: *node, begun, evict, is_stopped: false, takes_part: false };
                self.present.insert(heard.place, present);
                self.coming.remove(&heard.place);
                self.newcomers.push(heard.place);
            }
            Said::Did(Step::Joined) => {
                self.joining.remove(&heard.place);
            }
            Said::Beat { begun, evict } => {
                if let Some(present) = self.present.get_mut(&heard.place) {
                    present.evict.clone_from(evict);
                    for (thread, begun) in begun {
                        let latest = present.begun.entry(thread.clone()).or_insert((*begun, Instant::now()));
                        if latest.0 != *begun {
                            *latest = (*begun, Instant::now());
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(said)
    }

    fn describe(&self, place: usize) -> String {
        self.present.get(&place).map_or(format!("place {place}"), |it| format!("node {} (place {place})", it.node))
    }

    fn last_words(&self, place: usize) -> String {
        let tail = self.processes.tail_of(place);
        if tail.is_empty() { "it has said nothing".into() } else { format!("it said:\n{tail}") }
    }

    /// The watchdog of a step.
    fn check_step(&self, step: &str, awaited: &BTreeSet<usize>, since: Instant) -> Result<()> {
        if since.elapsed() > STEP_MAX {
            let who = awaited.iter().map(|place| format!("{}; {}", self.describe(*place), self.last_words(*place)));
            bail!("a hang: not {step} within {STEP_MAX:?}: {}", who.collect::<Vec<_>>().join("\n"));
        }
        Ok(())
    }

    /// The watchdog of the load: every thread of the nodes that are not stopped makes progress and reports it.
    fn check_progress(&self, since: Instant) -> Result<()> {
        for (place, present) in self.present.iter().filter(|it| !it.1.is_stopped && it.1.takes_part) {
            ensure!(
                !present.begun.is_empty() || since.elapsed() <= STEP_MAX,
                "a hang: {} has not said for {STEP_MAX:?} that it lives; {}",
                self.describe(*place),
                self.last_words(*place)
            );
            if let Some((thread, _)) = present.begun.iter().find(|it| it.1.1.elapsed() > STEP_MAX) {
                bail!(
                    "a hang: thread {thread} of {} has begun nothing for {STEP_MAX:?}; {}",
                    self.describe(*place),
                    self.last_words(*place)
                );
            }
        }
        Ok(())
    }

    /// Removes the logs of a generation that was as it should be.
    fn forget_logs(&self, number: usize) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&format!("{number}-")) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Lets all leave in good order.
    fn dismiss(&mut self) -> Result<()> {
        let places: Vec<usize> = self.present.keys().copied().collect();
        for place in &places {
            self.processes.dismiss(*place);
        }
        for place in places {
            let who = self.describe(place);
            let Some(status) = self.processes.wait_for_end(place, STEP_MAX)? else {
                bail!("a hang: {who} has not ended within {STEP_MAX:?}; {}", self.last_words(place));
            };
            ensure!(status.success(), "{who} ended badly: {status}; {}", self.last_words(place));
        }
        self.present.clear();
        Ok(())
    }
}

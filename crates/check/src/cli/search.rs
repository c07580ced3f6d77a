//! Sharing the time, and the cores, among scenarios.
//!
//! One loop on the main thread has the whole state; worker threads get one order at a time, and report their progress.
//! Small scenarios are searched exhaustively first, which mostly ends by itself. The rest of the time is for random
//! executions of the unfinished ones, for longer each time: always the one that has had the least time, where time
//! counts for more if most of the executions repeat what threads have seen before.
//!
//! With a number of executions, random executions run in batches of fixed size, each with a seed of its own. Their
//! results are taken in order; findings of a batch after one that has failed are dropped. So the result does not
//! depend on the speed of the workers.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farfield_core::mutants::{self, Mutant};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::checkpoint::{self, Checkpoint};
use super::exit::{self, Interrupted, Signals};
use super::output;
use super::plan::{Course, Plan};
use super::report::{self, Failing, Tally};
use crate::timeline::Timeline;
use crate::{Budget, Finding, Report, Scenario, check_with, exhaust_with, replay, timeline_of};

/// Executions of a batch, where their number is given.
const BATCH: u64 = 500;
/// The first turn of a scenario, and the longest.
const TURN: Duration = Duration::from_millis(100);
const TURN_MAX: Duration = Duration::from_secs(5);
/// A scenario in which nothing is new gets this part of the time of one in which everything is.
const NOVELTY_MIN: f64 = 0.1;
/// Less time is not worth an order.
const TURN_MIN: Duration = Duration::from_millis(2);
/// The main thread looks up at least this often.
const TICK: Duration = Duration::from_millis(50);
/// A search is saved so often, and logged so often where there is no bar.
const SAVE_EVERY: Duration = Duration::from_secs(30);
const LOG_EVERY: Duration = Duration::from_secs(600);

/// Searches, reports failures as they are found, and returns the report, and the signal that has ended the search
/// early.
pub(super) fn search(
    scenarios: &[Scenario],
    plan: &Plan,
    bug: Option<Mutant>,
) -> Result<(report::Report, Option<Interrupted>)> {
    let signals = Signals::default();
    signals.note(&[SIGINT, SIGTERM], true)?;
    let (events, inbox) = mpsc::channel();
    let mut search = Search::new(scenarios, plan)?;
    search.tell(&report::faults(scenarios, plan.seed))?;
    for worker in 0..plan.jobs {
        let (orders, work) = mpsc::channel();
        let (events, scenarios) = (events.clone(), scenarios.to_vec());
        thread::Builder::new()
            .name(format!("search {worker}"))
            .spawn(move || {
                mutants::enable(bug).expect("it could be switched on before");
                // A panic outside of the simulated threads is a bug of the checker.
                if catch_unwind(AssertUnwindSafe(|| serve(worker, &scenarios, &work, &events))).is_err() {
                    let _ = events.send((worker, Event::Panicked));
                }
            })
            .context("no thread (see `ulimit -u`)")?;
        search.workers.push(Worker { orders, at: None });
    }
    search.see_through(&inbox, &signals)
}

/// An order to a worker, for a scenario.
enum Order {
    Exhaust(Budget),
    /// A batch of random executions: its number, its seed.
    Random(u64, u64, Budget),
    Shrink(Finding),
}

enum Event {
    /// So far.
    Progress(Report),
    /// An order to search is done.
    Done(Report),
    /// A failure is shrunk.
    Shrunk(Finding, Timeline),
    Panicked,
}

/// A worker thread: an order at a time.
fn serve(worker: usize, scenarios: &[Scenario], work: &Receiver<(usize, Order)>, events: &Sender<(usize, Event)>) {
    let mut told = Instant::now();
    let mut progress = |report: &Report| {
        if told.elapsed() >= TICK {
            told = Instant::now();
            let _ = events.send((worker, Event::Progress(report.clone())));
        }
    };
    for (scenario, order) in work {
        let scenario = &scenarios[scenario];
        let done = match order {
            Order::Exhaust(budget) => Event::Done(exhaust_with(scenario, budget, &mut progress)),
            Order::Random(_, seed, budget) => Event::Done(check_with(scenario, budget, seed, &mut progress)),
            Order::Shrink(finding) => {
                let shrunk = finding.shrunk(scenario);
                let timeline = timeline_of(scenario, &shrunk.replay, &replay(scenario, &shrunk.replay));
                Event::Shrunk(shrunk, timeline)
            }
        };
        if events.send((worker, done)).is_err() {
            break;
        }
    }
}

struct Worker {
    orders: Sender<(usize, Order)>,
    /// The scenario and batch that it works at, and how far it is.
    at: Option<(usize, Option<u64>, Option<Report>)>,
}

struct Search<'a> {
    plan: &'a Plan,
    start: Instant,
    /// The time before, of a search that continues.
    before: Duration,
    /// The program, if the search is saved, and when it was saved.
    build: u64,
    saved: Instant,
    logged: Instant,
    until: Option<Instant>,
    /// The longest time for one exhaustive search.
    share: Option<Duration>,
    courses: Vec<Course>,
    workers: Vec<Worker>,
    bar: ProgressBar,
    /// The first failure is drawn.
    is_drawn: bool,
}

impl<'a> Search<'a> {
    fn new(scenarios: &[Scenario], plan: &'a Plan) -> Result<Search<'a>> {
        let start = Instant::now();
        let small = scenarios.iter().filter(|scenario| scenario.is_small()).count().max(1) as u32;
        let (all, jobs) = (scenarios.len().max(1) as u32, plan.jobs as u32);
        // Half of the time at most for all of them, and for one a few times what would be fair.
        let shared = plan.time.filter(|_| !plan.exhaustive);
        let share = shared.map(|time| (time / 2).min(time * jobs / 2 / small).min(time * 3 * jobs / all));
        let courses = scenarios.iter().map(|scenario| Course {
            is_random: !(scenario.is_small() || plan.exhaustive && scenario.is_medium()),
            spent: Duration::ZERO,
            novelty: 1.0,
            turn: TURN,
            next: 0,
            taken: 0,
            early: BTreeMap::new(),
            to_shrink: None,
            tally: Tally::new(scenario),
        });
        let mut courses: Vec<Course> = courses.collect();
        let count = match (plan.executions, plan.steps) {
            (Some(executions), _) => executions * scenarios.len() as u64,
            (None, Some(steps)) => steps,
            (None, None) => plan.time.unwrap_or_default().as_millis() as u64,
        };
        let (mut before, mut build) = (Duration::ZERO, 0);
        if let Some(path) = &plan.checkpoint {
            build = checkpoint::build()?;
            if let Some(found) = checkpoint::load(path, build, plan.seed, &courses)? {
                (before, courses) = (found.elapsed, found.courses.into_owned());
            }
        }
        Ok(Search {
            plan,
            start,
            before,
            build,
            saved: start,
            logged: start,
            until: plan.time.map(|time| start + time.saturating_sub(before)),
            share,
            courses,
            workers: Vec::new(),
            bar: output::bar("[{bar:30}] {percent:>3}%  {wide_msg}", count),
            is_drawn: false,
        })
    }

    /// The loop: it sends orders and takes results, until all work is done or the user interrupts it.
    fn see_through(
        &mut self,
        inbox: &Receiver<(usize, Event)>,
        signals: &Signals,
    ) -> Result<(report::Report, Option<Interrupted>)> {
        let mut interrupted = None;
        self.save(true)?; // before hours are spent that it could not keep
        loop {
            self.hand_out();
            if self.workers.iter().all(|worker| worker.at.is_none()) {
                break;
            }
            match inbox.recv_timeout(TICK) {
                Ok((worker, event)) => self.take(worker, event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all threads of the search have ended"),
            }
            self.show();
            self.save_or_tell(false)?;
            self.log()?;
            interrupted = signals.seen();
            if interrupted.is_some() {
                self.gather();
                break;
            }
        }
        self.bar.finish_and_clear();
        self.save_or_tell(true)?;
        let elapsed = self.elapsed();
        let tallies = self.courses.drain(..).map(|course| course.tally).collect();
        Ok((
            report::Report::new(tallies, (self.plan.seed, self.plan.jobs), elapsed, interrupted.is_some()),
            interrupted,
        ))
    }

    fn elapsed(&self) -> Duration {
        self.before + self.start.elapsed()
    }

    /// Saves the search, if it is time to. The finding is worth more than the checkpoint.
    fn save_or_tell(&mut self, is_end: bool) -> Result<()> {
        self.save(is_end).or_else(|error| self.tell(&format!("The checkpoint is not written: {error:#}\n")))
    }

    fn save(&mut self, is_end: bool) -> Result<()> {
        let Some(path) = &self.plan.checkpoint else { return Ok(()) };
        if is_end || self.saved.elapsed() >= SAVE_EVERY {
            self.saved = Instant::now();
            Checkpoint::new(self.build, self.plan.seed, self.elapsed(), &self.courses).save(path)?;
        }
        Ok(())
    }

    /// A line now and then, where there is no bar.
    fn log(&mut self) -> Result<()> {
        if !self.bar.is_hidden() || self.logged.elapsed() < LOG_EVERY {
            return Ok(());
        }
        self.logged = Instant::now();
        let sum = |of: fn(&Tally) -> u64| output::grouped(self.courses.iter().map(|course| of(&course.tally)).sum());
        let failures = self.courses.iter().filter(|course| course.tally.failing.is_some()).count();
        let minutes = self.elapsed().as_secs() / 60;
        let (executions, steps) = (sum(|tally| tally.executions), sum(|tally| tally.steps));
        self.tell(&format!("after {minutes} minutes: {executions} executions, {steps} steps, {failures} failures\n"))
    }

    fn hand_out(&mut self) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].at.is_some() {
                continue;
            }
            let Some((scenario, order)) = self.order() else { return };
            let batch = match &order {
                Order::Random(batch, ..) => Some(*batch),
                _ => None,
            };
            let worker = &mut self.workers[worker];
            worker.at = Some((scenario, batch, None));
            // It lives as long as its channel; if it has panicked, that is in the inbox.
            let _ = worker.orders.send((scenario, order));
        }
    }

    /// The most valuable order.
    fn order(&mut self) -> Option<(usize, Order)> {
        if let Some(at) = self.courses.iter().position(|course| course.to_shrink.is_some()) {
            return Some((at, Order::Shrink(self.courses[at].to_shrink.take()?)));
        }
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let steps: u64 = self.courses.iter().map(|course| course.tally.steps).sum();
        if left.is_some_and(|left| left < TURN_MIN) || self.plan.steps.is_some_and(|max| steps >= max) {
            return None;
        }
        let within = |budget: Budget, time: Option<Duration>| match time.into_iter().chain(left).min() {
            Some(time) => budget.within(time),
            None => budget,
        };
        let executions = self.plan.executions;
        let begun = |at: usize| self.workers.iter().any(|worker| matches!(worker.at, Some((s, None, _)) if s == at));
        if let Some(at) = (0..self.courses.len()).find(|&at| !self.courses[at].is_random && !begun(at)) {
            let budget = executions.map_or_else(Budget::unlimited, Budget::executions);
            return Some((at, Order::Exhaust(within(budget, self.share))));
        }
        if self.plan.exhaustive {
            return None;
        }
        let wanted = |at: &usize| {
            let course = &self.courses[*at];
            let is_open = course.tally.failing.is_none() && !course.tally.is_complete;
            // Where nothing else is to be done, random executions run beside an exhaustive search; not where the result
            // would depend on it.
            is_open && executions.is_none_or(|executions| course.is_random && course.next * BATCH < executions)
        };
        let open = (0..self.courses.len()).filter(wanted);
        let at = open.min_by_key(|&at| (!self.courses[at].is_random, self.courses[at].spent, at))?;
        let course = &mut self.courses[at];
        let batch = course.next;
        course.next += 1;
        let seed = self.plan.seed.wrapping_add(batch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let budget = match executions {
            Some(executions) => {
                course.spent += TURN; // in turns
                within(Budget::executions(BATCH.min(executions - batch * BATCH)), None)
            }
            None => {
                course.spent += course.turn.mul_f64(1.0 / course.novelty.max(NOVELTY_MIN));
                let budget = within(Budget::unlimited(), Some(course.turn));
                course.turn = (course.turn * 2).min(TURN_MAX);
                budget
            }
        };
        Some((at, Order::Random(batch, seed, budget)))
    }

    fn take(&mut self, worker: usize, event: Event) -> Result<()> {
        let at = match (&mut self.workers[worker].at, event) {
            (_, Event::Panicked) => bail!("the checker itself has panicked"),
            (Some((_, _, live)), Event::Progress(report)) => {
                *live = Some(report);
                return Ok(());
            }
            (at, event) => at.take().map(|(scenario, batch, _)| (scenario, batch, event)),
        };
        match at {
            Some((scenario, batch, Event::Done(report))) => self.searched(scenario, batch, report),
            Some((scenario, _, Event::Shrunk(finding, timeline))) => self.shrunk(scenario, finding, &timeline),
            _ => Ok(()),
        }
    }

    /// An order is done: a batch of random executions, or an exhaustive search.
    fn searched(&mut self, scenario: usize, batch: Option<u64>, report: Report) -> Result<()> {
        let in_order = self.plan.executions.is_some();
        let course = &mut self.courses[scenario];
        let Some(batch) = batch else {
            course.is_random = true;
            return self.count(scenario, report);
        };
        if !in_order {
            course.novelty = report.novel as f64 / report.executions.max(1) as f64;
            return self.count(scenario, report);
        }
        course.early.insert(batch, report);
        while let Some(report) = self.courses[scenario].next_in_order() {
            self.count(scenario, report)?;
        }
        Ok(())
    }

    fn count(&mut self, scenario: usize, report: Report) -> Result<()> {
        let course = &mut self.courses[scenario];
        let before = course.tally.executions;
        course.tally.add(&report);
        let (Some(finding), None) = (report.finding, &course.tally.failing) else { return Ok(()) };
        let failing = Failing::new(&finding, before + finding.execution);
        let text = failing.found(course.tally.name(), &self.plan.again);
        course.tally.failing = Some(failing);
        course.to_shrink = Some(finding);
        course.is_random = true; // an exhaustive search that has not begun is not wanted any more
        self.tell(&text)
    }

    fn shrunk(&mut self, scenario: usize, finding: Finding, timeline: &Timeline) -> Result<()> {
        let tally = &mut self.courses[scenario].tally;
        let name = tally.name().to_string();
        let Some(failing) = &mut tally.failing else { return Ok(()) };
        failing.shrink(&finding, timeline);
        let mut text = failing.told(&name, &self.plan.again, self.plan.timeline.is_none());
        if let (Some(path), false) = (&self.plan.timeline, self.is_drawn) {
            self.is_drawn = true;
            // The search continues without a picture.
            text += &match super::write_page(path, timeline) {
                Ok(()) => format!("  The timeline is in {}\n", path.display()),
                Err(error) => format!("  There is no timeline: {error:#}\n"),
            };
        }
        self.tell(&text)
    }

    /// To standard output, or what stands for it, without a mess with the bar.
    fn tell(&self, text: &str) -> Result<()> {
        self.bar.suspend(|| {
            if self.plan.quiet_stdout {
                // It may have no reader any more, and the result is written elsewhere.
                let _ = write!(io::stderr(), "{text}");
                return Ok(());
            }
            // A failure is the result, whether anyone reads it or not.
            let is_kept = self.plan.is_kept || self.courses.iter().any(|course| course.tally.failing.is_some());
            match super::print(text) {
                Err(error) if is_kept && exit::is_unread(&error) => Ok(()),
                printed => printed,
            }
        })
    }

    /// Collects results of orders that are no longer awaited.
    fn gather(&mut self) {
        for worker in &mut self.workers {
            if let Some((scenario, _, Some(report))) = worker.at.take() {
                self.courses[scenario].tally.add(&report);
            }
        }
    }

    fn show(&self) {
        if self.bar.is_hidden() {
            return;
        }
        let live = || self.workers.iter().filter_map(|worker| worker.at.as_ref());
        let reports = || live().filter_map(|(_, _, report)| report.as_ref());
        let tallies = || self.courses.iter().map(|course| &course.tally);
        let executions = tallies().map(|t| t.executions).chain(reports().map(|r| r.executions)).sum::<u64>();
        let steps = tallies().map(|t| t.steps).chain(reports().map(|r| r.steps)).sum::<u64>();
        let speed = steps as f64 / self.start.elapsed().as_secs_f64() / 1e6;
        let names: Vec<&str> = live().map(|(at, ..)| self.courses[*at].tally.name()).collect();
        self.bar.set_position(match self.plan.executions {
            None if self.plan.steps.is_some() => steps,
            None => self.start.elapsed().as_millis() as u64,
            Some(max) => {
                let done = tallies().map(|t| if t.is_over() { max } else { t.executions.min(max) });
                done.sum::<u64>() + reports().map(|r| r.executions).sum::<u64>()
            }
        });
        let executions = output::grouped(executions);
        self.bar.set_message(format!("{executions} executions, {speed:.1} M steps/s, {}", names.join(", ")));
    }
}

//! A distributed DC/DC converter system (LOCO, appendix B.2): one controller keeps the sum of several converters'
//! output voltages at its target by setting their duty cycles, over network memory, in loops of 10 to 100 µs.
//!
//! Node 0 is the controller, every other node a converter. They share two arrays of owned variables: the controller
//! owns the duty cycles, each converter its voltage. A converter's loop steps its model to the present and pushes the
//! voltage. The controller's loop computes new duty cycles from the latest voltages. The longer the loop takes, for
//! whatever reason, the further the output strays. Beyond 40 µs it strays even on an ideal network (see `model.rs`),
//! whose results are printed next to the measured ones.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/dcdc                                      # a controller and four converters in one process
//! target/release/farfield run -n 5 -- target/release/examples/dcdc  # the same as five processes
//! ```
//!
//! The loops are threads that never sleep. With fewer cores than nodes they take turns and may miss their periods. The
//! program prints the achieved periods, and a remark.

#![allow(
    clippy::disallowed_methods,
    reason = "a control loop keeps time by itself: it spins, or yields, and never sleeps"
)]

mod model;

use std::time::Duration;

use farfield::{Barrier, BarrierThread, Endpoint, Node, NodeId, OwnedWriter, Result, Sst, local_session, on_each};
use model::{CONTROLLER_PERIODS_US, CONVERTER_PERIOD_US, Controller, Converter, Stray, simulate, target_volts};

/// How long each period of the controller is tried.
const RUN: Duration = Duration::from_millis(600);
const CONTROLLER: NodeId = NodeId(0);

/// The variables that the nodes share, as one node sees them. Converter `c` is node `c + 1`.
struct System {
    duties: Sst<f64>,
    volts: Sst<f64>,
    /// The mean period that each node's loop achieved, in microseconds.
    achieved_us: Sst<f64>,
}

impl System {
    fn open(node: &Node) -> Result<System> {
        let converters: Vec<NodeId> = node.members().filter(|member| *member != CONTROLLER).collect();
        Ok(System {
            duties: Sst::open_with(node, "dcdc/duties", &vec![CONTROLLER; converters.len()])?,
            volts: Sst::open_with(node, "dcdc/volts", &converters)?,
            achieved_us: Sst::open(node, "dcdc/achieved_us")?,
        })
    }
}

/// The controller's measurements at one of its periods.
struct Measured {
    stray: Stray,
    controller_us: f64,
    converters_us: f64,
}

/// Calls `step` once every `period_us`, for as long as [`RUN`], with the seconds since the start. Returns the mean
/// period that was achieved. A late step is not made up for.
fn every(period_us: u32, ep: &Endpoint, enough_cores: bool, mut step: impl FnMut(f64) -> Result<()>) -> Result<f64> {
    let start = ep.now();
    let period = Duration::from_micros(period_us.into());
    let (mut next, mut steps) = (start + period, 0u32);
    loop {
        let now = ep.now();
        if now < next {
            if enough_cores {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            continue;
        }
        let elapsed = now - start;
        step(elapsed.as_secs_f64())?;
        steps += 1;
        if elapsed >= RUN {
            return Ok(elapsed.as_secs_f64() * 1e6 / f64::from(steps));
        }
        next = now.max(next + period);
    }
}

/// One node's part in the system.
struct Participant<'a> {
    system: &'a System,
    ep: &'a Endpoint,
    everyone: BarrierThread,
    achieved_us: OwnedWriter<f64>,
    enough_cores: bool,
}

impl Participant<'_> {
    /// Waits for all nodes. Everything that they pushed before is then visible.
    fn meet(&mut self) -> Result<()> {
        self.ep.block_on(self.everyone.wait(self.ep))
    }

    /// Publishes how well this node kept its period.
    fn tell(&mut self, achieved_us: f64) -> Result<()> {
        self.achieved_us.store(achieved_us);
        self.ep.block_on(self.achieved_us.push(self.ep))
    }

    fn control(&mut self, duties: &mut [OwnedWriter<f64>], period_us: u32) -> Result<Measured> {
        let (ep, system) = (self.ep, self.system);
        for duty in duties.iter_mut() {
            duty.store(0.0);
            ep.block_on(duty.push(ep))?;
        }
        self.meet()?;
        let controller = Controller::new(f64::from(period_us) * 1e-6);
        let mut stray = Stray::new(target_volts(duties.len()), RUN.as_secs_f64() / 2.0);
        let controller_us = every(period_us, ep, self.enough_cores, |time_s| {
            let volts: Vec<f64> = system.volts.rows().map(|row| row.try_load().expect("a word is whole")).collect();
            let plausible = |volts: &f64| volts.is_finite() && volts.abs() < 1000.0;
            assert!(volts.iter().all(plausible), "no converter gives {volts:?}");
            stray.observe(time_s, volts.iter().sum());
            let latest: Vec<f64> = duties.iter().map(OwnedWriter::value).collect();
            for (duty, next) in duties.iter_mut().zip(controller.step(&volts, &latest)) {
                duty.store(next);
                ep.block_on(duty.push(ep))?;
            }
            Ok(())
        })?;
        self.tell(controller_us)?;
        self.meet()?;
        let converters = system.achieved_us.rows().skip(1).filter_map(|row| row.try_load());
        Ok(Measured { stray, controller_us, converters_us: converters.fold(0.0, f64::max) })
    }

    fn convert(&mut self, volts: &mut OwnedWriter<f64>, index: usize) -> Result<()> {
        let (ep, duty) = (self.ep, self.system.duties.row(index));
        let mut converter = Converter::new(index);
        volts.store(0.0);
        ep.block_on(volts.push(ep))?;
        self.meet()?;
        let mut before_s = 0.0;
        let achieved_us = every(CONVERTER_PERIOD_US, ep, self.enough_cores, |time_s| {
            let duty = duty.try_load().expect("a word is whole");
            // A converter is a physical device: it kept running while this loop was late.
            volts.store(converter.step(duty, time_s - before_s));
            before_s = time_s;
            ep.block_on(volts.push(ep))
        })?;
        self.tell(achieved_us)?;
        self.meet()
    }
}

fn run(node: &Node) -> Result<()> {
    assert!(node.nodes() > 1, "a controller needs a converter: start at least two nodes");
    let system = System::open(node)?;
    let everyone = Barrier::open(node, "dcdc/everyone", 1)?.thread()?;
    let ep = node.endpoint()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (nodes, enough_cores) = (node.nodes(), node.nodes() <= cores);
    let achieved_us = system.achieved_us.writer(node.id().index())?;
    let mut me = Participant { system: &system, ep: &ep, everyone, achieved_us, enough_cores };
    if node.id() == CONTROLLER {
        let mut duties = (0..system.duties.len()).map(|row| system.duties.writer(row)).collect::<Result<Vec<_>>>()?;
        let measured =
            CONTROLLER_PERIODS_US.iter().map(|period| me.control(&mut duties, *period)).collect::<Result<Vec<_>>>()?;
        print_table(duties.len(), &measured);
        if !enough_cores {
            println!(
                "{nodes} nodes share {cores} cores and take turns: where they did not keep their periods, what was"
            );
            println!("measured says more about the cores than about the network.");
        }
    } else {
        let index = node.id().index() - 1;
        let mut volts = system.volts.writer(index)?;
        CONTROLLER_PERIODS_US.iter().try_for_each(|_| me.convert(&mut volts, index))?;
    }
    me.meet() // no node leaves while others still push
}

fn print_table(converters: usize, measured: &[Measured]) {
    println!("{converters} converters, target {} V; how far the output strayed from it:", target_volts(converters));
    println!("           ideal network     |  measured                     achieved period of");
    println!("period     max       rms     |  max       rms       settled  controller  converters");
    for (period_us, measured) in CONTROLLER_PERIODS_US.into_iter().zip(measured) {
        let ideal = simulate(converters, period_us, 0, 0.05);
        assert_eq!(ideal.settled(), period_us <= 40, "the model has changed");
        let Measured { stray, controller_us, converters_us } = measured;
        println!(
            "{period_us:>3} us {:>8.2} V {:>7.2} V  | {:>7.2} V {:>7.2} V  {:<7} {:>8.1} us {:>8.1} us",
            ideal.max_volts(),
            ideal.rms_volts(),
            stray.max_volts(),
            stray.rms_volts(),
            if stray.settled() { "yes" } else { "no" },
            controller_us,
            converters_us,
        );
    }
}

fn main() -> Result<()> {
    if Node::is_launched() { run(&Node::from_environment()?) } else { on_each(&local_session(5)?, run).map(|_| ()) }
}

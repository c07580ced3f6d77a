//! A distributed DC/DC converter system (LOCO, appendix B.2): one controller keeps the sum of several converters'
//! output voltages at its target by setting their duty cycles, over network memory, in a loop of 10 to 100 µs.
//!
//! Node 0 is the controller, every other node a converter. They share two arrays of owned variables: the controller
//! owns the duty cycles, each converter its voltage, and a push reaches the one node that reads it (`parts.rs`). The
//! longer the controller's loop takes, the further the output strays from its target: it is steady up to a period of 40
//! µs, and swings beyond. The paper gives that threshold and no constants, so those of the model were selected for it,
//! and `model.rs` says how the threshold follows from them. The paper's own figure was measured on 21 machines.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/dcdc                                        # 20 converters, 5 s, a period of 40 µs
//! target/release/examples/dcdc --period-us 40,60 --picture dcdc.svg   # the output over time
//! target/release/examples/dcdc --sweep by-period.svg                  # its error by period
//! target/release/farfield run -n 5 -- target/release/examples/dcdc --seconds 0.1    # five processes
//! target/release/farfield run -n 3 -- target/release/examples/dcdc --real-time      # by the machine's clock
//! ```
//!
//! *Time* is virtual, unless there is `--real-time`: the nodes act in the order of their times, however long that takes
//! (`virtual_time.rs`). So a result depends on the periods and the delay alone. In real time the loops are threads that
//! never sleep, and need a core each; the program prints the periods that they achieved. Every output says which time
//! it is.

#![allow(
    clippy::disallowed_methods,
    reason = "a control loop keeps time by itself: it spins, or yields, and never sleeps"
)]

mod model;
mod parts;
mod picture;
mod real_time;
mod virtual_time;

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use farfield::{Node, local_session, on_each};
use model::{Nanos, PERIODS_US, Seen, Stray, TICK, Timing, growth, target_volts};
use picture::About;

/// As in the paper.
const CONVERTERS: u16 = 20;

/// A control loop over network memory: a controller and converters, each of them a node.
#[derive(Parser, Debug)]
struct Args {
    /// How many converters there are [default: 20; of started processes, all but one]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=200))]
    converters: Option<u16>,
    /// The length of a run
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    seconds: f64,
    /// The period of the controller's loop, or several
    #[arg(
        long,
        value_name = "US",
        default_value = "40",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    period_us: Vec<u32>,
    /// How much longer each message takes than on this network
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000))]
    delay_us: u32,
    /// Keep time by the clock of the machine
    #[arg(long)]
    real_time: bool,
    /// Draw the output over time into this file
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
    /// Run periods from 10 to 100 µs, and draw the error by period into this file
    #[arg(long, value_name = "FILE.svg", conflicts_with = "period_us")]
    sweep: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.001 to 60 is expected".into()),
    }
}

/// What a run is asked to do.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Setting {
    timing: Timing,
}

/// What the controller saw in a run.
struct Run {
    setting: Setting,
    seen: Seen,
    /// In real time: the mean periods in microseconds that its loop and the slowest converter's achieved.
    achieved_us: Option<[f64; 2]>,
}

impl Run {
    fn period_us(&self) -> u64 {
        self.setting.timing.period / 1000
    }
}

impl Args {
    fn settings(&self) -> Vec<Setting> {
        let periods_us = if self.sweep.is_some() { &PERIODS_US[..] } else { &self.period_us };
        let (delay, end) = (Nanos::from(self.delay_us) * 1000, (self.seconds * 1e9) as Nanos);
        let timing = |period_us: &u32| Timing { period: Nanos::from(*period_us) * 1000, delay, end };
        periods_us.iter().map(|period_us| Setting { timing: timing(period_us) }).collect()
    }
}

/// The reader of the output has closed it: 128 and the number of SIGPIPE, as of `farfield`'s commands.
const UNREAD: u8 = 141;

fn main() -> ExitCode {
    match run(&Args::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_unread(&*error) => ExitCode::from(UNREAD),
        Err(error) => {
            // Not eprintln: a closed stderr is no reason to panic.
            let _ = writeln!(io::stderr(), "dcdc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_unread(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(args: &Args, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let settings = args.settings();
    let (converters, runs) = if Node::is_launched() {
        let node = Node::from_environment()?;
        let converters = node.nodes() - 1;
        if converters == 0 {
            return Err("a controller needs a converter: start at least two nodes".into());
        }
        if args.converters.is_some_and(|asked| usize::from(asked) != converters) {
            return Err(format!("{converters} converters were started: start one node more than --converters").into());
        }
        let run = if args.real_time { real_time::run } else { virtual_time::in_step };
        (converters, run(&node, &settings)?)
    } else {
        let converters = usize::from(args.converters.unwrap_or(CONVERTERS));
        let runs = if args.real_time {
            let nodes = local_session(converters + 1)?;
            on_each(&nodes, |node| real_time::run(node, &settings))?.into_iter().flatten().collect()
        } else {
            virtual_time::in_one_thread(converters, &settings)?
        };
        (converters, runs)
    };
    if runs.is_empty() {
        return Ok(()); // a converter's process
    }
    let about = About { converters, seconds: args.seconds, delay_us: args.delay_us, is_real_time: args.real_time };
    if let Some(file) = &args.picture {
        picture::write(file, &picture::over_time(&about, &runs)?)?;
    }
    if let Some(file) = &args.sweep {
        picture::write(file, &picture::by_period(&about, &runs)?)?;
    }
    // The pictures are there, whether this is read or not.
    print_table(out, &about, &runs)?;
    for file in args.picture.iter().chain(&args.sweep) {
        writeln!(out, "{}", file.display())?;
    }
    Ok(())
}

fn print_table(out: &mut impl Write, about: &About, runs: &[Run]) -> io::Result<()> {
    let target = target_volts(about.converters);
    writeln!(out, "{}; target {target} V", about.described())?;
    writeln!(out, "           the loop alone  the output, off its target in the second half of the run")?;
    writeln!(
        out,
        "period     growth a step   at most              rms                settled   overshoot at the start"
    )?;
    for run in runs {
        let stray = Stray::of(target, &run.seen);
        let percent = |volts: f64| 100.0 * volts / target;
        let (max, rms, overshoot) = (stray.max_volts(), stray.rms_volts(), stray.overshoot_volts());
        writeln!(
            out,
            "{:>4} us {:>12.3}   {max:>8.2} V {:>6.2} %  {rms:>8.2} V {:>6.2} %   {:<7} {overshoot:>8.2} V {:>6.2} %",
            run.period_us(),
            growth(run.setting.timing.period, run.setting.timing.delay),
            percent(max),
            percent(rms),
            if stray.settled() { "yes" } else { "no" },
            percent(overshoot),
        )?;
        if let Some([controller_us, converters_us]) = run.achieved_us {
            writeln!(
                out,
                "        achieved: {controller_us:.1} us by the controller, {converters_us:.1} us by the slowest converter"
            )?;
        }
    }
    // Within a fifth, a loop kept its period.
    let is_late = |run: &Run| {
        let ticks = [run.period_us() as f64, TICK as f64 / 1000.0];
        run.achieved_us
            .is_some_and(|achieved| achieved.iter().zip(ticks).any(|(achieved, tick)| *achieved > 1.2 * tick))
    };
    if runs.iter().any(is_late) {
        let (nodes, cores) = (about.converters + 1, real_time::cores());
        writeln!(
            out,
            "Loops did not keep their periods: {nodes} nodes share {cores} cores with each other and other programs. So"
        )?;
        writeln!(out, "what was measured says more about the cores than about the network.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NobodyReads;

    impl Write for NobodyReads {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// `dcdc | head -1` panicked.
    #[test]
    fn a_closed_output_is_an_error_and_the_pictures_are_there() {
        let folder = std::env::temp_dir().join(format!("dcdc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let picture = folder.join("over-time.svg");
        let picture_at = picture.to_str().expect("a plain path");
        let args = Args::parse_from(["dcdc", "--converters", "2", "--seconds", "0.001", "--picture", picture_at]);
        let error = run(&args, &mut NobodyReads).expect_err("it is not read");
        assert!(is_unread(&*error), "{error}");
        assert!(picture.exists());
        std::fs::remove_dir_all(&folder).expect("it was there");
        let args = Args::parse_from(["dcdc", "--converters", "2", "--seconds", "0.02", "--period-us", "1000"]);
        let mut table = Vec::new();
        run(&args, &mut table).expect("a table");
        let table = String::from_utf8(table).expect("text");
        assert!(table.contains("1000 us") && !table.contains("NaN"), "{table}");
    }
}

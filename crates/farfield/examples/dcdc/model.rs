//! The converters and their controller, without the network between them, and what their loop does on an ideal one.
//!
//! The paper publishes no constants of its converters or of its controller. It says that "the system parameters are
//! selected to maintain a stable output voltage with a controller loop period of 40 µs or lower". So the constants here
//! were selected in the same way, for a plant and a controller of textbooks:
//!
//! - A converter is the averaged model of a buck converter: 48 V, 220 µH, 100 µF, a load of 1 Ω. Its loop runs every
//!   10 µs, as in the paper. It steps the model, sends the voltage, and reads the duty for the next 10 µs.
//! - The controller is a discrete-time PID compensator for each converter (Corradini et al., "Digital Control of
//!   High-Frequency Switched-Mode Power Converters", 2015). A duty has limits, 0 and 1, and at a limit the integral
//!   waits.
//!
//! *Where the threshold comes from.* A duty that is computed every T is on average T/2 old, and the converter's loop
//! adds 10 µs. Such a delay turns the phase of the loop. With these constants and T = 40 µs the linear loop multiplies
//! its slowest mode by 0.97 in each period, so a deviation dies out; from T = 43 µs on by more than 1 ([`growth`]
//! computes it): a deviation grows until the duties reach their limits, and the output swings. The longer the period,
//! the wider the swing of a converter. Converters differ by 1 %, so that in the sum their swings cancel in part.
//! Messages that take longer have the effect of a longer period: with 5 µs each way a period of 40 µs is not steady.
//!
//! *What differs from the paper.* It saw the threshold on 21 machines, with a network's own delay and loops that are
//! not in phase, and plots transients at the start above 40 µs only. Here a start overshoots at all periods, by 1.5 %
//! at 10 µs, 8 % at 40 µs and 13 % at 60 µs.

use std::collections::VecDeque;

/// A time since the start, in nanoseconds.
pub(crate) type Nanos = u64;

/// The sum of the outputs, as the controller sees it at each of its steps.
pub(crate) type Seen = Vec<(Nanos, f64)>;

/// The period of a converter's loop, which approximates its continuous behaviour.
pub(crate) const TICK: Nanos = 10_000;

/// The controller's periods that are compared, in microseconds. The paper's threshold is at 40.
pub(crate) const PERIODS_US: [u32; 10] = [10, 20, 30, 40, 45, 50, 60, 70, 80, 100];
/// The longest period at which the paper's system is stable, in microseconds.
pub(crate) const STEADY_UP_TO_US: u32 = 40;

/// The input voltage of each converter.
const INPUT_VOLTS: f64 = 48.0;
/// Each converter's share of the system's output.
const TARGET_VOLTS: f64 = 24.0;

/// The target for the sum of the outputs of `converters` converters in series.
pub(crate) fn target_volts(converters: usize) -> f64 {
    TARGET_VOLTS * converters as f64
}

/// A buck converter with a resistive load: an inductor and a capacitor behind a switch that connects the input for a
/// share of each switching period, its duty. The model averages over switching periods.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    inductance_h: f64,
    capacitance_f: f64,
    inductor_amps: f64,
    capacitor_volts: f64,
}

impl Converter {
    const INDUCTANCE_H: f64 = 220e-6;
    const CAPACITANCE_F: f64 = 100e-6;
    const INDUCTOR_OHMS: f64 = 0.05;
    const LOAD_OHMS: f64 = 1.0;
    /// Components differ by up to this share from their nominal values.
    const TOLERANCE: f64 = 0.01;
    /// One switching period.
    const SWITCHING_S: f64 = 1e-6;

    /// Converter number `index`, at rest. Its components are a little off their nominal values, by an amount that
    /// depends on the number alone.
    pub(crate) fn new(index: usize) -> Self {
        // Multiples of the golden ratio, modulo one, spread evenly.
        let offset = |k: usize| 2.0 * (k as f64 * 0.618_033_988_75).fract() - 1.0;
        Self {
            inductance_h: Self::INDUCTANCE_H * (1.0 + Self::TOLERANCE * offset(2 * index)),
            capacitance_f: Self::CAPACITANCE_F * (1.0 + Self::TOLERANCE * offset(2 * index + 1)),
            inductor_amps: 0.0,
            capacitor_volts: 0.0,
        }
    }

    /// Runs for some time at a duty and returns the output voltage then.
    pub(crate) fn step(&mut self, duty: f64, time: Nanos) -> f64 {
        let switch_volts = INPUT_VOLTS * duty;
        let time_s = time as f64 * 1e-9;
        let periods = (time_s / Self::SWITCHING_S).round().max(1.0);
        let period_s = time_s / periods;
        for _ in 0..periods as u64 {
            // The capacitor sees the inductor's new current (semi-implicit Euler), which keeps the oscillator's energy.
            let inductor_volts = switch_volts - self.capacitor_volts - Self::INDUCTOR_OHMS * self.inductor_amps;
            self.inductor_amps += period_s / self.inductance_h * inductor_volts;
            let capacitor_amps = self.inductor_amps - self.capacitor_volts / Self::LOAD_OHMS;
            self.capacitor_volts += period_s / self.capacitance_f * capacitor_amps;
        }
        self.capacitor_volts
    }
}

/// The controller: a PID compensator for each converter.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    period_s: f64,
    target_volts: f64,
    least_duty: f64,
    most_duty: f64,
    /// For each converter: the integral, and the error of the step before, if there was one.
    states: Vec<(f64, Option<f64>)>,
}

impl Controller {
    /// Duty for each volt of error.
    const PROPORTIONAL: f64 = 0.21;
    /// Duty for each volt of error and second.
    const INTEGRAL: f64 = 200.0;
    /// Duty for each volt per second.
    const DERIVATIVE: f64 = 6.5e-6;

    /// A controller of some converters that steps every `period`.
    pub(crate) fn new(converters: usize, period: Nanos) -> Self {
        Self {
            period_s: period as f64 * 1e-9,
            target_volts: TARGET_VOLTS,
            least_duty: 0.0,
            most_duty: 1.0,
            states: vec![(0.0, None); converters],
        }
    }

    /// A controller of one deviation from the target, whose duty has no limits: the loop is linear.
    fn linear(period: Nanos) -> Self {
        let (least_duty, most_duty) = (f64::NEG_INFINITY, f64::INFINITY);
        Self { target_volts: 0.0, least_duty, most_duty, ..Self::new(1, period) }
    }

    /// The converters' next duties, from their most recent output voltages.
    pub(crate) fn step(&mut self, volts: &[f64]) -> Vec<f64> {
        let Self { period_s, target_volts, least_duty, most_duty, .. } = *self;
        let next = |((integral, before), volts): (&mut (f64, Option<f64>), &f64)| {
            let error = target_volts - volts;
            let change = before.map_or(0.0, |before| error - before);
            *before = Some(error);
            let sum = *integral + Self::INTEGRAL * period_s * error;
            let duty = sum + Self::PROPORTIONAL * error + Self::DERIVATIVE * change / period_s;
            if (least_duty..=most_duty).contains(&duty) {
                *integral = sum;
            }
            duty.clamp(least_duty, most_duty)
        };
        self.states.iter_mut().zip(volts).map(next).collect()
    }
}

/// When things happen in a run, since its start. At one time the converters act first, and then the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timing {
    /// The period of the controller's loop.
    pub(crate) period: Nanos,
    /// How long a message takes, from the controller to a converter or back, in addition to the network's own time.
    pub(crate) delay: Nanos,
    /// The end of the run.
    pub(crate) end: Nanos,
}

impl Timing {
    /// The times at which the controller does something: it computes duties, or sends those that it has held back.
    pub(crate) fn controller_events(self) -> impl Iterator<Item = Nanos> {
        let Timing { period, delay, end } = self;
        let mut next = Some(0);
        core::iter::from_fn(move || {
            let now = next?;
            let step = (now / period + 1) * period;
            let sent = if now < delay { delay } else { ((now - delay) / period + 1) * period + delay };
            next = Some(step.min(sent));
            (now <= end).then_some(now)
        })
    }
}

/// Values that arrive some time after they were sent; the last one that has arrived counts.
struct Delayed<T> {
    delay: Nanos,
    arrived: T,
    sent: VecDeque<(Nanos, T)>,
}

impl<T> Delayed<T> {
    fn new(delay: Nanos, first: T) -> Self {
        Self { delay, arrived: first, sent: VecDeque::new() }
    }

    fn send(&mut self, now: Nanos, value: T) {
        self.sent.push_back((now, value));
    }

    /// The value for a reader that sees what has arrived by `now`.
    fn by(&mut self, now: Nanos) -> &T {
        while self.sent.front().is_some_and(|(sent, _)| sent + self.delay <= now) {
            if let Some((_, value)) = self.sent.pop_front() {
                self.arrived = value;
            }
        }
        &self.arrived
    }
}

/// What the controller sees on an ideal network with a constant delay.
#[cfg(test)]
pub(crate) fn simulate(converters: usize, timing: Timing) -> Seen {
    let plant = (0..converters).map(Converter::new).collect();
    run(plant, Controller::new(converters, timing.period), timing)
}

#[cfg(test)]
fn run(plant: Vec<Converter>, controller: Controller, timing: Timing) -> Seen {
    let mut ideal = Ideal::new(plant, controller, timing.delay);
    let steps = (0..).map(|step| step * timing.period).take_while(|now| *now <= timing.end);
    steps.map(|now| (now, ideal.step(now))).collect()
}

/// The converters and their controller on an ideal network.
struct Ideal {
    plant: Vec<Converter>,
    controller: Controller,
    duties: Delayed<Vec<f64>>,
    volts: Delayed<Vec<f64>>,
    in_force: Vec<f64>,
    tick: Nanos,
}

impl Ideal {
    fn new(plant: Vec<Converter>, controller: Controller, delay: Nanos) -> Self {
        let nothing = vec![0.0; plant.len()];
        let (duties, volts) = (Delayed::new(delay, nothing.clone()), Delayed::new(delay, nothing.clone()));
        Self { plant, controller, duties, volts, in_force: nothing, tick: 0 }
    }

    /// One step of the controller, with the steps of the converters up to then. Returns the output that it sees.
    fn step(&mut self, now: Nanos) -> f64 {
        while self.tick <= now {
            let time = if self.tick == 0 { 0 } else { TICK };
            let step = |(converter, duty): (&mut Converter, &f64)| converter.step(*duty, time);
            self.volts.send(self.tick, self.plant.iter_mut().zip(&self.in_force).map(step).collect());
            // At one time the converters act before the controller: they see what came before.
            self.in_force.clone_from(self.duties.by(self.tick.saturating_sub(1)));
            self.tick += TICK;
        }
        let volts = self.volts.by(now);
        let output = volts.iter().sum();
        self.duties.send(now, self.controller.step(volts));
        output
    }

    /// Multiplies everything by the same factor: in a linear loop all that follows is multiplied, too.
    fn scale(&mut self, factor: f64) {
        for Converter { inductor_amps, capacitor_volts, .. } in &mut self.plant {
            *inductor_amps *= factor;
            *capacitor_volts *= factor;
        }
        for (integral, before) in &mut self.controller.states {
            *integral *= factor;
            before.iter_mut().for_each(|before| *before *= factor);
        }
        self.in_force.iter_mut().for_each(|duty| *duty *= factor);
        for Delayed { arrived, sent, .. } in [&mut self.duties, &mut self.volts] {
            arrived.iter_mut().chain(sent.iter_mut().flat_map(|(_, values)| values)).for_each(|value| *value *= factor);
        }
    }
}

/// How much a small deviation grows in one period of the controller, as long as no duty is at a limit: by the slowest
/// mode of the linear loop of one converter with nominal components. Below 1 it dies out.
pub(crate) fn growth(period: Nanos, delay: Nanos) -> f64 {
    // A window is long beside the swing, and so many of them have passed before that only the slowest mode is left.
    const PERIODS_MIN: usize = 200;
    const SWING: Nanos = 8_000_000;
    const WINDOWS: usize = 6;
    let window = PERIODS_MIN.max(((SWING + 20 * delay) / period) as usize);
    let off_target = Converter {
        inductance_h: Converter::INDUCTANCE_H,
        capacitance_f: Converter::CAPACITANCE_F,
        inductor_amps: 0.0,
        capacitor_volts: 1.0,
    };
    // A number can hold less than what is left after, or grown in, all these steps: only logarithms can. The powers of
    // two are exact.
    const LARGE: f64 = f64::from_bits((1023 + 300) << 52);
    let mut ideal = Ideal::new(vec![off_target], Controller::linear(period), delay);
    let (mut most, mut scaled) = ([f64::NEG_INFINITY; WINDOWS], 0.0);
    for step in 0..window * WINDOWS {
        let volts = ideal.step(step as Nanos * period).abs();
        let most = &mut most[step / window];
        *most = most.max(volts.ln() + scaled);
        let factor = if volts > LARGE { 1.0 / LARGE } else { LARGE };
        if volts > LARGE || (volts > 0.0 && volts < 1.0 / LARGE) {
            ideal.scale(factor);
            scaled -= factor.ln();
        }
    }
    ((most[WINDOWS - 1] - most[WINDOWS - 2]) / window as f64).exp()
}

/// How far the system's output strayed from its target, after the start.
#[derive(Clone, Debug)]
pub(crate) struct Stray {
    target_volts: f64,
    samples: u64,
    sum_of_squares: f64,
    max_volts: f64,
    overshoot_volts: f64,
}

impl Stray {
    /// The share of the target that a settled output stays within.
    pub(crate) const SETTLED_WITHIN: f64 = 0.01;

    /// Of what the controller saw, the second half counts; the first is the start.
    pub(crate) fn of(target_volts: f64, seen: &[(Nanos, f64)]) -> Self {
        let end = seen.last().map_or(0, |last| last.0);
        let mut stray = Self { target_volts, samples: 0, sum_of_squares: 0.0, max_volts: 0.0, overshoot_volts: 0.0 };
        for (time, volts) in seen {
            let error = volts - target_volts;
            if *time < end / 2 {
                stray.overshoot_volts = stray.overshoot_volts.max(error);
                continue;
            }
            stray.samples += 1;
            stray.sum_of_squares += error * error;
            stray.max_volts = stray.max_volts.max(error.abs());
        }
        stray
    }

    /// The largest distance from the target.
    pub(crate) fn max_volts(&self) -> f64 {
        self.max_volts
    }

    /// The root mean square of the distance from the target.
    pub(crate) fn rms_volts(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { (self.sum_of_squares / self.samples as f64).sqrt() }
    }

    /// How far the output was above the target at the start.
    pub(crate) fn overshoot_volts(&self) -> f64 {
        self.overshoot_volts
    }

    /// Whether the output was seen and stayed within 1 % of the target.
    pub(crate) fn settled(&self) -> bool {
        self.samples > 0 && self.max_volts <= Self::SETTLED_WITHIN * self.target_volts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONVERTERS: usize = 20;

    fn stray(converters: usize, period_us: u32, delay_us: u32) -> Stray {
        let (period, delay) = (Nanos::from(period_us) * 1000, Nanos::from(delay_us) * 1000);
        let seen = simulate(converters, Timing { period, delay, end: 400_000_000 });
        Stray::of(target_volts(converters), &seen)
    }

    #[test]
    fn a_converter_steps_its_input_down_by_its_duty() {
        for index in 0..CONVERTERS {
            let mut converter = Converter::new(index);
            let volts = (0..1000).map(|_| converter.step(0.5, TICK)).last().expect("a thousand steps");
            // The inductor's own resistance takes its share.
            assert!((volts - 0.5 * INPUT_VOLTS / 1.05).abs() < 1e-6, "{volts} V");
        }
    }

    #[test]
    fn duties_stay_between_none_and_all() {
        let mut controller = Controller::new(3, 100_000);
        assert_eq!(controller.step(&[1e9, -1e9, TARGET_VOLTS]), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn stray_skips_the_start_and_needs_a_sample() {
        assert!(!Stray::of(100.0, &[]).settled());
        let stray = Stray::of(100.0, &[(0, 500.0), (1, 99.5), (2, 100.5)]);
        assert_eq!((stray.max_volts(), stray.rms_volts(), stray.overshoot_volts()), (0.5, 0.5, 400.0));
        assert!(stray.settled());
        assert!(!Stray::of(100.0, &[(0, 0.0), (1, 102.0)]).settled());
    }

    #[test]
    fn the_controller_acts_when_it_steps_and_when_held_messages_leave() {
        let events = |period, delay, end| Timing { period, delay, end }.controller_events().collect::<Vec<_>>();
        assert_eq!(events(40, 0, 100), [0, 40, 80]);
        assert_eq!(events(40, 15, 100), [0, 15, 40, 55, 80, 95]);
        assert_eq!(events(10, 25, 40), [0, 10, 20, 25, 30, 35, 40]);
        assert_eq!(events(10, 20, 40), [0, 10, 20, 30, 40]);
    }

    /// As in LOCO's figure 21: steady up to 40 µs, and not beyond.
    #[test]
    fn the_output_is_steady_at_periods_up_to_40_us_only() {
        for period_us in PERIODS_US {
            let (stray, growth) = (stray(CONVERTERS, period_us, 0), growth(Nanos::from(period_us) * 1000, 0));
            let (max, rms, over) = (stray.max_volts(), stray.rms_volts(), stray.overshoot_volts());
            println!(
                "{period_us:>3} us: growth {growth:.4}, max {max:>7.3} V, rms {rms:>7.3} V, overshoot {over:.1} V"
            );
            assert_eq!(stray.settled(), period_us <= STEADY_UP_TO_US, "{period_us} us");
            assert_eq!(growth < 1.0, period_us <= STEADY_UP_TO_US, "{period_us} us");
        }
    }

    /// The further beyond, the wider a converter swings. (In the sum of several, swings may cancel.)
    #[test]
    fn the_swing_grows_with_the_period() {
        let rms_volts = [45, 50, 60, 80, 100].map(|period_us| stray(1, period_us, 0).rms_volts());
        assert!(rms_volts.is_sorted_by(|less, more| less < more), "{rms_volts:?}");
        let all = [50, 80, 100].map(|period_us| stray(CONVERTERS, period_us, 0).rms_volts());
        assert!(all.is_sorted_by(|less, more| less < more) && all[2] > 0.1 * target_volts(CONVERTERS), "{all:?}");
    }

    /// Beyond 800 µs a deviation grew to more than a number holds, and its growth was none.
    #[test]
    fn the_growth_is_a_number_at_every_period() {
        for (period_us, delay_us) in [(1, 0), (20, 10_000), (1000, 0), (1000, 100), (10_000, 0)] {
            let growth = growth(period_us * 1000, delay_us * 1000);
            assert!(growth.is_finite() && growth > 0.5, "{period_us} us, {delay_us} us late: {growth}");
            assert!(period_us == 1 || growth > 1.0, "{period_us} us, {delay_us} us late: {growth}");
        }
    }

    /// The threshold does not depend on whether a period is a multiple of the converters' period.
    #[test]
    fn the_threshold_is_between_42_and_43_us() {
        for period_us in 35..=50 {
            let growth = growth(period_us * 1000, 0);
            assert_eq!(growth < 1.0, period_us <= 42, "{period_us} us: {growth}");
        }
    }

    #[test]
    fn a_delay_of_the_messages_unsettles_the_output_as_a_longer_period_does() {
        assert!(stray(CONVERTERS, 20, 5).settled());
        assert!(!stray(CONVERTERS, 40, 5).settled() && growth(40_000, 5_000) > 1.0);
        assert!(!stray(CONVERTERS, 20, 10).settled() && growth(20_000, 10_000) > 1.0);
    }
}

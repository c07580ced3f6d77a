//! The converters and the controller of a distributed DC/DC converter system, without the network between them.
//!
//! This is the control loop of LOCO's appendix B.2: converters with their outputs in series, each fed by a steady input
//! voltage, and one controller that sets their duty cycles from their most recent output voltages. A converter is a
//! buck converter's averaged model; the controller is the integrating compensator of a discrete-time voltage loop
//! (Corradini et al., "Digital Control of High-Frequency Switched-Mode Power Converters", 2015).
//!
//! Its gain is fixed per unit of time, so that a loop run every T corrects T · gain of the error that it sees. A
//! converter settles within about 30 µs. Between two steps of a slow controller it has reached the last requested
//! voltage, and the loop multiplies its error by 1 − T · gain each time. That decays while T · gain < 2. The gain is
//! chosen to lose stability between T = 40 µs, where the loop still settles, and T = 60 µs, where it overshoots more
//! than it corrects and swings between the rails. A delay of the messages has the same effect at periods that are
//! stable without it: the loop tolerates 20 µs from a converter to the controller and back, and not 40 µs.

/// How often a converter steps, which approximates its continuous behaviour.
pub(crate) const CONVERTER_PERIOD_US: u32 = 10;

/// The controller's loop periods to compare: up to 40 µs the output is stable.
pub(crate) const CONTROLLER_PERIODS_US: [u32; 6] = [10, 20, 40, 60, 80, 100];

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
    const INDUCTANCE_H: f64 = 10e-6;
    const CAPACITANCE_F: f64 = 4.7e-6;
    const INDUCTOR_OHMS: f64 = 0.02;
    const LOAD_OHMS: f64 = 1.0;
    /// Components differ by up to this share from their nominal values.
    const TOLERANCE: f64 = 0.05;
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

    /// Runs for `dt_s` seconds at `duty` (limited to 0 to 1) and returns the output voltage then.
    pub(crate) fn step(&mut self, duty: f64, dt_s: f64) -> f64 {
        let switch_volts = INPUT_VOLTS * duty.clamp(0.0, 1.0);
        let periods = (dt_s / Self::SWITCHING_S).round().max(1.0);
        let period_s = dt_s / periods;
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

/// The controller: an integrating compensator for each converter. Its state is the duties themselves.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    /// How much a volt of error changes a duty in one step.
    duty_per_volt: f64,
}

impl Controller {
    /// The share of an error that is corrected in one second.
    const GAIN_PER_S: f64 = 36e3;

    /// A controller that steps every `period_s` seconds.
    pub(crate) fn new(period_s: f64) -> Self {
        Self { duty_per_volt: Self::GAIN_PER_S * period_s / INPUT_VOLTS }
    }

    /// The converters' next duties, from their most recent output voltages and duties.
    pub(crate) fn step(&self, volts: &[f64], duties: &[f64]) -> Vec<f64> {
        let next = |(volts, duty): (&f64, &f64)| (duty + self.duty_per_volt * (TARGET_VOLTS - volts)).clamp(0.0, 1.0);
        volts.iter().zip(duties).map(next).collect()
    }
}

/// How far the system's output strayed from its target, after the start.
#[derive(Clone, Debug)]
pub(crate) struct Stray {
    target_volts: f64,
    after_s: f64,
    samples: u64,
    sum_of_squares: f64,
    max_volts: f64,
}

impl Stray {
    /// The share of the target that a settled output stays within.
    pub(crate) const SETTLED_WITHIN: f64 = 0.01;

    /// Nothing observed yet; the first `after_s` seconds will not count.
    pub(crate) fn new(target_volts: f64, after_s: f64) -> Self {
        Self { target_volts, after_s, samples: 0, sum_of_squares: 0.0, max_volts: 0.0 }
    }

    /// Takes the system's output at a time since the start into account.
    pub(crate) fn observe(&mut self, time_s: f64, volts: f64) {
        if time_s >= self.after_s {
            let stray = (volts - self.target_volts).abs();
            self.samples += 1;
            self.sum_of_squares += stray * stray;
            self.max_volts = self.max_volts.max(stray);
        }
    }

    /// The largest distance from the target.
    pub(crate) fn max_volts(&self) -> f64 {
        self.max_volts
    }

    /// The root mean square of the distance from the target.
    pub(crate) fn rms_volts(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { (self.sum_of_squares / self.samples as f64).sqrt() }
    }

    /// Whether the output was observed and stayed within 1 % of the target.
    pub(crate) fn settled(&self) -> bool {
        self.samples > 0 && self.max_volts <= Self::SETTLED_WITHIN * self.target_volts
    }
}

/// The result on a network with a constant one-way latency of `latency_us`: the stray of `converters` converters over
/// the second half of `seconds`. All events occur at multiples of the converters' period.
pub(crate) fn simulate(converters: usize, controller_period_us: u32, latency_us: u32, seconds: f64) -> Stray {
    let dt_s = f64::from(CONVERTER_PERIOD_US) * 1e-6;
    let steps = (seconds / dt_s).round() as usize;
    let controller_steps = (controller_period_us / CONVERTER_PERIOD_US).max(1) as usize;
    let latency_steps = (latency_us / CONVERTER_PERIOD_US) as usize;
    let controller = Controller::new(controller_steps as f64 * dt_s);
    let mut plant: Vec<Converter> = (0..converters).map(Converter::new).collect();
    let mut stray = Stray::new(target_volts(converters), seconds / 2.0);
    // The messages of each past step, the latest last: they arrive `latency_steps` later.
    let mut duties_sent = vec![vec![0.0; converters]; latency_steps + 1];
    let mut volts_sent = duties_sent.clone();
    for step in 0..steps {
        let volts_seen = &volts_sent[0];
        let latest = &duties_sent[latency_steps];
        let duties = if step % controller_steps == 0 { controller.step(volts_seen, latest) } else { latest.clone() };
        duties_sent.push(duties);
        duties_sent.remove(0);
        let volts: Vec<f64> =
            plant.iter_mut().zip(&duties_sent[0]).map(|(converter, &duty)| converter.step(duty, dt_s)).collect();
        stray.observe((step + 1) as f64 * dt_s, volts.iter().sum());
        volts_sent.push(volts);
        volts_sent.remove(0);
    }
    stray
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONVERTERS: usize = 20;

    #[test]
    fn a_converter_steps_its_input_down_by_its_duty() {
        for index in 0..CONVERTERS {
            let mut converter = Converter::new(index);
            let volts = (0..100).map(|_| converter.step(0.5, 10e-6)).last().expect("a hundred steps");
            // The inductor's own resistance takes its share.
            assert!((volts - 0.5 * INPUT_VOLTS / 1.02).abs() < 1e-6, "{volts} V");
        }
    }

    #[test]
    fn a_converter_answers_within_30_us() {
        let mut converter = Converter::new(0);
        let volts = converter.step(0.5, 30e-6);
        assert!((volts / (0.5 * INPUT_VOLTS / 1.02) - 1.0).abs() < 0.1, "{volts} V");
    }

    #[test]
    fn duties_stay_between_none_and_all() {
        let controller = Controller::new(100e-6);
        assert_eq!(controller.step(&[1e9, -1e9, TARGET_VOLTS], &[0.5, 0.5, 0.25]), [0.0, 1.0, 0.25]);
    }

    #[test]
    fn stray_skips_the_start_and_needs_a_sample() {
        let mut stray = Stray::new(100.0, 1.0);
        stray.observe(0.5, 500.0);
        assert!(!stray.settled());
        stray.observe(1.0, 99.5);
        assert!(stray.settled());
        assert_eq!((stray.max_volts(), stray.rms_volts()), (0.5, 0.5));
        stray.observe(2.0, 102.0);
        assert!(!stray.settled());
    }

    /// The table of LOCO's figure 21: stable up to 40 µs, straying beyond.
    #[test]
    fn the_output_settles_at_periods_up_to_40_us_only() {
        for latency_us in [0, 10] {
            for period_us in CONTROLLER_PERIODS_US {
                let stray = simulate(CONVERTERS, period_us, latency_us, 0.05);
                let (max, rms) = (stray.max_volts(), stray.rms_volts());
                println!("latency {latency_us:>2} us, period {period_us:>3} us: max {max:>8.3} V, rms {rms:>8.3} V");
                assert_eq!(stray.settled(), period_us <= 40, "latency {latency_us} us, period {period_us} us");
                if period_us > 40 {
                    assert!(max > 0.2 * target_volts(CONVERTERS), "{max} V at {period_us} us is hardly visible");
                }
            }
        }
    }

    #[test]
    fn a_loop_of_40_us_of_messages_unsettles_the_output() {
        for period_us in [10, 20, 40] {
            assert!(!simulate(CONVERTERS, period_us, 20, 0.05).settled(), "period {period_us} us, 20 us each way");
        }
    }

    #[test]
    fn simulations_repeat() {
        let max_volts = || simulate(3, 60, 10, 0.01).max_volts();
        assert_eq!(max_volts(), max_volts());
    }
}

//! An axis: linear or logarithmic, with ticks where a reader expects them.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, KeyPointWeight, Ranged};

/// An axis.
#[derive(Clone, Debug)]
pub(in super::super) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// From zero to at least `high`.
    pub(in super::super) fn from_zero(high: f64) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let magnitude = 10f64.powf((high / 5.0).log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|nice| nice * magnitude).into_iter().find(|step| high / step <= 5.0);
        let step = step.unwrap_or(10.0 * magnitude);
        let count = (high / step - 1e-9).ceil();
        Axis {
            low: 0.0,
            high: count * step,
            is_log: false,
            ticks: (0..=count as usize).map(|at| at as f64 * step).collect(),
        }
    }

    /// Logarithmic, from at most `low` to at least `high`, both above zero.
    pub(in super::super) fn log(low: f64, high: f64) -> Axis {
        let (low, high) = (low.max(f64::MIN_POSITIVE), high.max(low * 1.01));
        let decades = (high / low).log10();
        let nice: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (first, last) = (low.log10().floor() as i32 - 1, high.log10().ceil() as i32 + 1);
        let all: Vec<f64> =
            (first..=last).flat_map(|power| nice.iter().map(move |nice| nice * 10f64.powi(power))).collect();
        let low = all.iter().copied().rfind(|tick| *tick <= low * (1.0 + 1e-9)).unwrap_or(low);
        let high = all.iter().copied().find(|tick| *tick >= high * (1.0 - 1e-9)).unwrap_or(high);
        let ticks = all.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
        Axis { low, high, is_log: true, ticks }
    }

    /// Around the measured values of a field, with ticks at these: logarithmic if they are far apart.
    pub(in super::super) fn at(values: &[f64]) -> Axis {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_log = low > 0.0 && high / low >= 6.0;
        let mut axis = Axis { low, high, is_log, ticks: values.to_vec() };
        axis.ticks.sort_by(f64::total_cmp);
        axis.ticks.dedup();
        // A margin, so that markers do not lie on the axis.
        if is_log {
            let margin = (high / low).powf(0.06);
            (axis.low, axis.high) = (low / margin, high * margin);
        } else {
            let margin = if high > low { (high - low) * 0.06 } else { 1.0 };
            (axis.low, axis.high) = (low - margin, high + margin);
        }
        axis
    }

    /// Between these bounds, with these ticks.
    pub(in super::super) fn with_ticks(low: f64, high: f64, ticks: &[f64]) -> Axis {
        Axis { low, high, is_log: false, ticks: ticks.to_vec() }
    }

    /// A value's place: 0 at the low end, 1 at the high one.
    pub(in super::super) fn place(&self, value: f64) -> f64 {
        let place = if self.is_log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// Whether it is logarithmic.
    pub(super) fn is_log(&self) -> bool {
        self.is_log
    }

    /// Its ticks, without those that would touch the ones before on `length` pixels. A label takes `width` of them.
    pub(super) fn ticks(&self, length: i32, width: impl Fn(f64) -> i32) -> Vec<f64> {
        let mut kept: Vec<f64> = Vec::new();
        let mut free = f64::NEG_INFINITY;
        for tick in &self.ticks {
            let middle = self.place(*tick) * f64::from(length);
            let half = f64::from(width(*tick)) / 2.0;
            if middle - half >= free {
                free = middle + half + 4.0;
                kept.push(*tick);
            }
        }
        kept
    }

    /// With fewer ticks, so that their labels have room.
    pub(super) fn thinned(&self, length: i32, width: impl Fn(f64) -> i32) -> Axis {
        Axis { ticks: self.ticks(length, width), ..self.clone() }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * self.place(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.ticks.clone(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(Axis::from_zero(9.7).ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Axis::from_zero(10.0).ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Axis::from_zero(1.1).ticks, [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]);
        assert_eq!(Axis::from_zero(0.0).ticks.last(), Some(&1.0));
        let log = Axis::log(3.0, 40.0);
        assert_eq!((log.low, log.high), (2.0, 50.0));
        assert_eq!(Axis::log(30.0, 2e6).ticks.len(), 7);
    }

    #[test]
    fn places_lie_between_the_ends() {
        let axis = Axis::at(&[1.0, 16.0, 128.0]);
        assert!(axis.is_log() && axis.place(16.0) > 0.5 && axis.place(1e9) == 1.0 && axis.place(0.0) == 0.0);
        let axis = Axis::at(&[2.0, 4.0]);
        assert!(!axis.is_log() && (axis.place(3.0) - 0.5).abs() < 1e-9);
        assert!((Axis::at(&[2.0]).place(2.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn labels_do_not_touch() {
        let axis = Axis::at(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(axis.ticks(100, |_| 10).len(), 5);
        assert_eq!(axis.ticks(100, |_| 30), [1.0, 3.0, 5.0]);
    }
}

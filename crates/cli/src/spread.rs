//! Several numbers in short.

/// The middle and the extremes of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// Zero if one of them is.
    pub(crate) geometric_mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of these numbers; none, if there are none.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (min, max, half) = (*numbers.first()?, *numbers.last()?, numbers.len() / 2);
        let median = if numbers.len() % 2 == 1 { numbers[half] } else { (numbers[half - 1] + numbers[half]) / 2.0 };
        let mean_log = numbers.iter().map(|number| number.ln()).sum::<f64>() / numbers.len() as f64;
        Some(Spread { median, geometric_mean: mean_log.exp(), min, max })
    }
}

/// The median of some numbers; zero, if there are none.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(numbers).map_or(0.0, |of| of.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_all_numbers() {
        let spread = Spread::of([4.0, 1.0, 16.0]).expect("numbers");
        assert_eq!((spread.median, spread.min, spread.max), (4.0, 1.0, 16.0));
        assert!((spread.geometric_mean - 4.0).abs() < 1e-9);
        assert_eq!((median([1.0, 2.0, 4.0, 100.0]), median([])), (3.0, 0.0));
        assert_eq!(Spread::of([]), None);
    }
}

//! Quantiles of samples: linear interpolation between the ranks nearest to `share * (n - 1)`
//! (definition 7 of Hyndman and Fan 1996, the default of R and NumPy). For counts, [`nearest`]
//! returns a measured value instead.
//!
//! Other definitions are documented where they are used: `benchmark/statistics.rs` and the buckets
//! of `simulation/outcome.rs`.

/// Returns the values in ascending order, as the other functions require.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the quantile at `share`, from 0 to 1. `None` without values.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let position = share * sorted.len().checked_sub(1)? as f64;
    let low = *sorted.get(position.floor() as usize)?;
    let high = *sorted.get(position.ceil() as usize)?;
    Some(low + (high - low) * position.fract())
}

/// Returns the median. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    // Equals the quantile at 0.5, without its rounding error.
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

/// Returns the value at the rank nearest to the quantile; the higher one of two equally near ranks.
/// `None` without values.
pub fn nearest<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let position = share * sorted.len().checked_sub(1)? as f64;
    sorted.get((position + 0.5).floor() as usize).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference: `quantile(x, p, type = 7)` of R.
    #[test]
    fn quantiles_match_r() {
        let hours = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
        for (values, share, expect) in [
            (&hours[..], 0.0, 0.5),
            (&hours, 0.1, 0.75),
            (&hours, 0.5, 3.0),
            (&hours, 0.9, 12.0),
            (&hours, 1.0, 16.0),
            (&hours[..5], 0.5, 2.0),
            (&hours[..5], 0.9, 6.4),
            (&hours[..1], 0.9, 0.5),
        ] {
            let found = quantile(values, share).unwrap();
            assert!((found - expect).abs() < 1e-12, "{values:?} at {share}: {found}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn median_does_not_require_sorted_values() {
        for (values, expect) in [
            (&[][..], None),
            (&[7.0], Some(7.0)),
            (&[4.0, 1.0, 2.0], Some(2.0)),
            (&[56.3, 53.3], Some(54.8)),
            (&[8.0, 1.0, 4.0, 2.0], Some(3.0)),
        ] {
            assert_eq!(median(values.iter().copied()), expect, "{values:?}");
        }
    }

    #[test]
    fn nearest_returns_a_measured_value() {
        for (values, share, expect) in [
            (&[][..], 0.5, None),
            (&[3], 0.9, Some(3)),
            (&[3, 4], 0.1, Some(3)),
            (&[3, 4], 0.5, Some(4)),
            (&[3, 4, 7], 0.5, Some(4)),
            (&[0, 1, 2, 3, 4, 5], 0.1, Some(1)),
            (&[0, 1, 2, 3, 4, 5], 0.9, Some(5)),
            (&[0, 1, 2, 3, 4, 5, 6], 0.9, Some(5)),
        ] {
            assert_eq!(nearest(values, share), expect, "{values:?} at {share}");
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_monotonic_and_within_the_values(
            values in proptest::collection::vec(-1e3_f64..1e3, 1..60),
            a in 0.0..=1.0_f64,
            b in 0.0..=1.0_f64,
        ) {
            let values = sorted(values);
            let (low, high) = (quantile(&values, a.min(b)).unwrap(), quantile(&values, a.max(b)).unwrap());
            prop_assert!(low <= high + 1e-9);
            prop_assert!(values[0] <= low && high <= values[values.len() - 1] + 1e-9);
            prop_assert!(values.contains(&nearest(&values, a).unwrap()));
        }
    }
}

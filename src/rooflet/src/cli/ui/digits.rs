//! Number formats.

/// Formats a number with three significant digits. More digits would suggest a false precision.
pub(crate) fn number(value: f64) -> String {
    let digits = if value == 0.0 {
        0
    } else {
        2 - value.abs().log10().floor() as i32
    };
    short(&format!("{value:.*}", digits.clamp(0, 4) as usize)).to_owned()
}

/// Formats an amount of money to the unit: 1998, not 2000.
pub(crate) fn amount(value: f64) -> String {
    short(&format!("{value:.2}")).to_owned()
}

/// Removes trailing zeros of a fraction.
fn short(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

/// Formats a number with three digits including zeros, so that numbers in a column have the same
/// width. Numbers below 1 have `below_one` decimal places.
#[cfg(feature = "mlx")]
pub(crate) fn three_digits(value: f64, below_one: usize) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.below_one$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1998.0, "1998"),
            (123.4, "123"),
            (12.0, "12"),
            (12.34, "12.3"),
            (1.5, "1.5"),
            (0.012_34, "0.0123"),
            (0.000_02, "0"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (amount(1998.0), amount(0.5)),
            ("1998".to_owned(), "0.5".to_owned())
        );
    }

    #[cfg(feature = "mlx")]
    #[test]
    fn numbers_in_a_column_have_the_same_width() {
        for (value, text) in [(123.4, "123"), (12.0, "12.0"), (1.0, "1.00"), (0.1234, "0.123")] {
            assert_eq!(three_digits(value, 3), text);
        }
        assert_eq!(three_digits(0.1234, 2), "0.12");
    }
}

//! Correct statements, wrong statements, and statements that cannot be calculated.

use proptest::prelude::*;

use super::super::Assessment;
use super::super::stated::Measure;
use super::*;
use rooflet_api::v1alpha1::Published;
use rooflet_base::yaml;

fn outcome(text: &str) -> Outcome {
    Statement::new(text).check()
}

fn correct_value(text: &str) -> f64 {
    match outcome(text) {
        Outcome::Wrong(wrong_result) => wrong_result.right_value,
        other @ (Outcome::Holds { .. } | Outcome::NotCalculable(_)) => panic!("{text}: {other:?}"),
    }
}

#[test]
fn added_percentages_are_shares_of_the_number_before() {
    let holds = |text: &str| matches!(outcome(text), Outcome::Holds { .. });
    for text in [
        "120 tok/s - 15 % = 102 tok/s",
        "120 + 15 % = 138",
        "138 = 120 + 15 %",
        "120 tok/s + 15 % - 10 % = 124.2 tok/s",
        "(100 + 20) ms + 10 % = 132 ms",
        "2 * (50 - 10 %) = 90",
        "1.5 - 10 % = 1.4",
        "1.5 - 10 % = 1.35",
        "45 % - 10 % = 35 %",
        "1 - 62.5 % = 37.5 %",
        "1 - 20 % - 10 % = 0.72",
        "1 tok/s - 40 % = 0.6 tok/s",
        "1K - 40 % = 600",
    ] {
        assert!(holds(text), "{text}: {:?}", outcome(text));
    }
    for text in [
        "120 tok/s - 15 % = 100 tok/s",
        "120 + 15 % = 135",
        "45.0 % - 10.0 % = 40.5 %",
        "45 % - 10 % - 5 % = 36 %",
    ] {
        assert!(!holds(text), "{text}: {:?}", outcome(text));
    }
    assert_eq!(correct_value("120 tok/s - 15 % = 100 tok/s").round(), 102.0);
}

#[test]
fn accepts_correct_arithmetic() {
    for text in [
        "16829/571 = 29.5",
        "16829 / 571 = 29.5x",
        "571/16829 = 29.5x",
        "3018/15.397 = 196.0",
        "3018 tokens / 15.397 s = 196.0 tok/s",
        "77.7 tok/s * 8.03 GB = 624 GB/s",
        "77.7 × 8.03 = 624",
        "77.7 * 8.03 GB = 624 GB/s",
        "273 GB/s / 8.03 GB = 34.0 tok/s",
        "1917 s = 31.95 min",
        "12B * 0.5 B = 6 GB",
        "weightBytes: 12B x 0.5 bytes = 6 GB",
        "2*48*8*256*32768*2 B = 12.9 GB",
        "2*48*8*256*32768*2 B = 12 GiB",
        "4.3 ms x 50 = 215 ms",
        "203.93/183.32 = +11.2 %",
        "94/17 = 5.5x",
        "94/17 = 4.7-5.9x",
        "10/24 GB = 42 %",
        "32K / 137.8 s = 238 tok/s",
        "a ratio: 1,150 / 32 = 35.9",
        "3.86+2.41+5.50 = 11.77 ms",
        "(11.77-10.52)/11.77 = 10.6 %",
        "throughput gain: (11.77-10.52)/11.77 = 11.9 %",
        "1 - 10.52/11.77 = 10.6 %",
        "11.77/10.52 = +11.9 % throughput",
        "2^10 * 3 = 3072",
        "5 < 6",
        "6 GB <= 24 GB",
        "100 tok / 4 s = 25 tok/s = 25",
        "29.47 = ~30",
        "2 * 3.2e9 * 18600 = 119 TFLOPS",
        "50 / 414.34 ms = 120.67 tok/s",
        "1/3 = 0.33 = 33 %",
        "0.1 + 0.2 = 0.3",
        "60 tok/s -> 72 tok/s = +20 %",
        "11.77 ms → 10.52 ms = -10.6 %",
        "11.77 ms -> 10.52 ms = +11.9 % throughput",
        "throughputGain: 11.77 ms -> 10.52 ms = 11.9 %",
        "20 s -> 10 s = 100 % faster",
        "2 * 3 -> 6",
        "5 min 30 s = 330 s",
        "20 ms/token = 50 tok/s",
        "24 GiB = 25.8 GB",
        "LPDDR5: 512 bits * 6400 MT/s = 409.6 GB/s",
        "512-bit * 6400 MT/s = 409.6 GB/s",
        "512 bits / 8 * 6400 MT/s = 409.6 GB/s",
        "100 -> 50 = -50 %",
        "60 -> 72 = 120 %",
        "100 tok/s -> 300 tok/s = +200 %",
        "(72-60)/60 = +20 %",
        "-12 / 60 = -20 %",
        "8.19 billion * 4.5 bits / 8 = 4.61 GB",
        "8B params * 4 bits / 8 = 4 GB",
        "4.5 bits / 8 * 8.19 billion = 4.61 GB",
        "10 Gbit/s / 8 = 1.25 GB/s",
        "64 bits / 8 = 1 byte",
        "total = 1.30 + 2.4 = 3.7 ms",
        "total (ms) = 1.30 + 2.4 = 3.7 ms",
        "E[x] = mean_2 = (95 + 120) / 2 = 107.5",
        "weightBytes = 12B * 0.5 B = 6 GB",
        "109.05 * 1.175 = \"128.1\"",
        "109.05 * 1.175 = “128.1” tok/s",
        "4.3 ms x 50 = 215 ms (about 4.5 %)",
        "4.3 ms x 50 = 215 ms (4.5 %)",
        "16829 (tokens) / 571 (read-only) = 29.5 (tok/s)",
        "1000/8.5 ms = 117.65 tok/s",
        "1000 * 4 / 8.5 ms = 470.6 tok/s",
        "117.65 tok/s = 1000/8.5 ms",
        "1000/8.5 ms = 117647 tok/s",
        "+17 % = 94/80",
        "17 % = 94/80",
        "2x = 10/20",
        "196.0 = 3018/15.397",
        "~238 tok/s = 32768 / 137.8 s",
        "-2.58 = 181.82-184.40",
        "-2.58 s = 181.82 - 184.40",
        "4.7-5.9x = 94/17",
        "6 < 2 * 5",
        "+20 % = 60 -> 72",
        "-50 % = 100 -> 50",
        "+11.9 % throughput = (11.77-10.52)/11.77",
        "12 GiB = 2*48*8*256*32768*2 B",
    ] {
        let result = outcome(text);
        assert!(matches!(result, Outcome::Holds { .. }), "{text}: {result:?}");
    }
}

#[test]
fn corrects_wrong_arithmetic() {
    let cases = [
        ("2*42*16*256*32768*2 B = ~2.2 GB", 22.5),
        ("203.93/183.32 = +11.3 %", 11.24),
        ("203.93/183.32 = 11.3 %", 11.24),
        ("181.82-184.40 = -1.50 s", -2.58),
        ("215 ms / 204.9 s = 4.5 %", 0.105),
        ("(.95*111.5+.75*120+.40*130.5+.10*140)/3.0 = 118", 87.4),
        ("109.05 * 1.175 = 117.65", 128.1),
        ("(11.77-10.52)/11.77 = 10.6 % throughput", 11.88),
        ("throughput: (11.77-10.52)/11.77 = 10.6 %", 11.88),
        ("throughput: 1 - 62.5 % = 37.5 %", 60.0),
        ("throughput gain = 1 - 40 % = +60 %", 150.0),
        ("throughput: 37.5 % = 1 - 62.5 %", 60.0),
        ("11.77 ms -> 10.52 ms = 10.6 % throughput", 11.88),
        ("7 * 6 = 43", 42.0),
        ("100 tok / 4 s = 30 tok/s", 25.0),
        ("90 s = 1.2 min", 1.5),
        ("8 GB * 2 = 20 GB", 16.0),
        ("1/0.5 = 3", 2.0),
        ("5 > 6", 5.0),
        ("200 GB/s / 4 GB = 60 tok/s", 50.0),
        ("16829/571 = 28.5x", 29.47),
        ("60 -> 72 = +25 %", 20.0),
        ("60 -> 72 = +12 %", 20.0),
        ("60 -> 72 = +120 %", 20.0),
        ("100 -> 50 = +50 %", -50.0),
        ("100 tok/s -> 300 tok/s = +300 %", 200.0),
        ("8B params * 4 bits = 32 GB", 4.0),
        ("117B * 4.25 bits / 8 = 70 GB", 62.2),
        ("20 ms/token = 40 tok/s", 50.0),
        ("E = (.95*111.5+.75*120+.40*130.5+.10*140)/3.0 = 118", 87.4),
        ("throughput gain = (11.77-10.52)/11.77 = 10.6 %", 11.88),
        ("109.05 * 1.175 = '117.65'", 128.1),
        ("4.3 ms x 50 = 225 ms (about 4.5 %)", 215.0),
        ("1000/8.5 ms = 150 tok/s", 117.65),
        ("+17 % = 94/70", 34.3),
        ("+117 % = 94/80", 17.5),
        ("2.5x = 10/20", 2.0),
        ("118 = (.95*111.5+.75*120+.40*130.5+.10*140)/3.0", 87.4),
        ("500 tok/s = 32768 / 137.8 s", 237.8),
        ("-1.50 s = 181.82-184.40", -2.58),
        ("5.9-6.7x = 94/17", 5.53),
        ("11 < 2 * 5", 10.0),
        ("+25 % = 60 -> 72", 20.0),
        ("10.6 % throughput = (11.77-10.52)/11.77", 11.88),
    ];
    for (text, right) in cases {
        let value = correct_value(text);
        assert!((value - right).abs() <= 0.01 * right.abs(), "{text}: {value}");
    }
    let Outcome::Wrong(wrong_result) = outcome("(.95*111.5+.75*120+.40*130.5+.10*140)/3.0 = 118") else {
        panic!("holds");
    };
    let note = wrong_result.note.unwrap();
    assert!(note.contains("2.20") && note.contains("119.1"), "{note}");
}

/// Every factor may double the number of readings.
#[test]
fn rejects_unit_with_too_many_factors() {
    let units = |count| "GB ".repeat(count);
    let Outcome::NotCalculable(why) = outcome(&format!("1 {}= 2 GB", units(340))) else {
        panic!("the unit is invalid");
    };
    assert!(
        why.to_string()
            .contains("`GB GB GB GB GB GB …` has more than 6 factors"),
        "{why}"
    );
    assert!(matches!(
        outcome("2 B B B B B B = 2 B B B B B B"),
        Outcome::Holds { .. }
    ));

    let text = format!("{{figures: [{{kind: bytes, value: '1 {}'}}]}}", units(340));
    let err = Assessment::new(&yaml::from_str(&text).unwrap()).unwrap_err();
    assert_eq!(err.field, "figures[0].value");
}

#[test]
fn reports_statements_that_cannot_be_calculated() {
    for text in [
        "",
        "=",
        "5",
        "5 = ",
        "(1 + 2 = 3",
        "5 apples = 5",
        "1/0 = 3",
        "5 GB + 3 s = 8",
        "5 GB = 3 s",
        "2^0.5 = 1.4",
        "14 = 2 (3 + 4)",
        "2 (3 ms + 4 ms) = 14 ms",
        "5'30\" = 330 s",
        "total = 5",
        "3B-4bit = 1.74 GB",
        "1.74 GB = 3B-4bit",
        "7B-4-bit = 4.28 GB",
        "135M-8bit = 143 MB",
        "((((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))))=1",
    ] {
        assert!(
            matches!(outcome(text), Outcome::NotCalculable(_)),
            "{text}: {:?}",
            outcome(text)
        );
    }
}

proptest! {
    #[test]
    fn evaluator_never_panics(text in "[0-9a-zA-Z.,()+*/^%~=<> –-]{0,40}") {
        let _ = outcome(&text);
        let _ = Statement::new(&text).result();
        let _ = Stated::parse(&Published::from(text.as_str())).map(|stated| stated.read(Measure::Any));
    }

    #[test]
    fn accepts_result_rounded_to_any_digits(a in 1u32..100_000, b in 1u32..100_000, decimals in 0usize..4) {
        let (a, b) = (f64::from(a) / 100.0, f64::from(b) / 100.0);
        let text = format!("{a:.2} * {b:.2} = {:.decimals$}", a * b);
        prop_assert!(matches!(outcome(&text), Outcome::Holds { .. }), "{}", text);
        let text = format!("{a:.2} GB / {b:.2} s = {:.3} GB/s", a / b);
        prop_assert!(matches!(outcome(&text), Outcome::Holds { .. }), "{}", text);
    }

    #[test]
    fn rejects_result_off_by_10_percent(a in 1000u32..100_000, b in 1000u32..100_000, up in any::<bool>()) {
        let (a, b) = (f64::from(a) / 100.0, f64::from(b) / 100.0);
        let wrong = a * b * if up { 1.1 } else { 0.9 };
        let text = format!("{a:.2} * {b:.2} = {wrong:.2}");
        match outcome(&text) {
            Outcome::Wrong(wrong_result) => prop_assert!((wrong_result.right_value / (a * b) - 1.0).abs() < 1e-9),
            other @ (Outcome::Holds { .. } | Outcome::NotCalculable(_)) => prop_assert!(false, "{}: {:?}", text, other),
        }
    }
}

#[test]
fn gb_and_gib_differ_within_one_statement() {
    assert_eq!(correct_value("24 GiB = 24 GB").round(), 26.0);
    assert_eq!((10.0 * correct_value("16 GB = 16.5 GiB")).round(), 149.0);
}

#[test]
fn detects_bits_counted_as_bytes() {
    assert!((correct_value("512 bits * 6400 MT/s = 3276.8 GB/s") - 409.6).abs() < 0.1);
}

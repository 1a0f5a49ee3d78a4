//! Multiples and wide bounds.

use super::*;

#[test]
fn multiples_are_exact() {
    check(
        json!({"type": "integer", "multipleOf": 7}),
        &["0", "7", "14", "-21", "7000", "1001"],
        &["1", "07", "-0", "15", "7.0", "-"],
    );
    check(
        json!({"type": "number", "multipleOf": 5, "minimum": 0}),
        &["0", "5", "10", "12345"],
        &["-5", "6"],
    );
    check(
        json!({"type": "integer", "multipleOf": 5, "minimum": -7, "exclusiveMaximum": 10}),
        &["-5", "0", "5"],
        &["10", "-10", "1"],
    );
    check(
        json!({"type": "integer", "multipleOf": 5, "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64}),
        &["0", "-5", "9007199254740990"],
        &["1", "-0", "9007199254740995", "-9007199254740995"],
    );
    check(
        json!({"type": "integer", "multipleOf": 7, "exclusiveMinimum": 7}),
        &["14", "7007"],
        &["0", "7", "-14", "15"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99.5}),
        &["0", "0.01", "99.5", "99.50", "42"],
        &["-0.01", "99.51", "0.001", "100"],
    );
    check(
        json!({"type": "integer", "multipleOf": 0.01, "minimum": 3}),
        &["3", "10"],
        &["2", "3.5"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.01}),
        &["0", "1.5", "-2.25", "10"],
        &["1.005", ".5", "1e2"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.25}),
        &["0", "0.5", "-0.75", "12.25", "3.0", "7"],
        &["0.3", "0.2", "1.26", "0.125", "-0", "1."],
    );
    check(
        json!({"type": "number", "multipleOf": 2.5, "minimum": 5, "maximum": 10}),
        &["5", "7.5", "10", "10.0"],
        &["2.5", "6", "7", "12.5"],
    );
    check(
        json!({"type": "integer", "multipleOf": 2.5}),
        &["0", "5", "-10"],
        &["2.5", "7"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.3}),
        &["0.3", "1.2", "3", "-0.6"],
        &["0.1", "1", "0.4", "2"],
    );
}

#[test]
fn every_multiple_can_be_completed() {
    for (step, units, places) in [
        (0.25, 25, 2),
        (0.3, 3, 1),
        (0.07, 7, 2),
        (12.5, 125, 1),
        (0.999, 999, 3),
    ] {
        let input = schema(&json!({"type": "number", "multipleOf": step}));
        let grammar = grammar(|builder| schema_rule(builder, &input).unwrap());
        for seed in 0..100 {
            let text = walk(&grammar, seed);
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let digits = format!("{}{fraction:0<places$}", whole.trim_start_matches('-'));
            let remainder = digits
                .bytes()
                .fold(0, |read, digit| (read * 10 + u32::from(digit - b'0')) % units);
            assert_eq!(remainder, 0, "{text} by {step}");
        }
    }
}

/// Zod generates these bounds for each integer; schemas have many of them.
#[test]
fn supports_many_properties_with_wide_bounds() {
    let member = |at: i64| json!({"type": "integer", "minimum": -9_007_199_254_740_991_i64 + at / 2, "maximum": 9_007_199_254_740_991_i64});
    let properties: serde_json::Map<String, Value> =
        (0..120).map(|at| (format!("p{at:03}"), member(at))).collect();
    check(
        json!({"type": "object", "properties": properties, "additionalProperties": false}),
        &[r#"{"p000":-9007199254740991,"p001":9007199254740991,"p119":0}"#],
        &[
            r#"{"p000":-9007199254740992}"#,
            r#"{"p003":-9007199254740991}"#,
            r#"{"p001":9007199254740992}"#,
        ],
    );
    check(
        json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}),
        &["-9223372036854775808", "18446744073709551615"],
        &["-9223372036854775809", "18446744073709551616"],
    );
    check(
        json!({"type": "integer", "minimum": u64::MAX - 1, "exclusiveMinimum": u64::MAX - 2}),
        &["18446744073709551614"],
        &["18446744073709551613"],
    );
}

/// The bounds have more digits than a double.
#[test]
fn bounds_beyond_64_bits_are_exact() {
    let read = |text: &str| Json::parse(text).unwrap();
    check_schema(
        read(
            r#"{"type": "integer", "minimum": -18446744073709551617, "maximum": 123456789012345678901234567890}"#,
        ),
        &["123456789012345678901234567890", "-18446744073709551617", "0"],
        &["123456789012345678901234567891", "-18446744073709551618"],
    );
    check_schema(
        read(r#"{"type": "integer", "minimum": 1e30, "exclusiveMaximum": 1000000000000000000000000000002}"#),
        &[
            "1000000000000000000000000000000",
            "1000000000000000000000000000001",
        ],
        &[
            "999999999999999999999999999999",
            "1000000000000000000000000000002",
        ],
    );
    check_schema(
        read(
            r#"{"type": "number", "minimum": 0.12345678901234567891, "maximum": 12345678901234567891.5e-1}"#,
        ),
        &["0.12345678901234567891", "1234567890123456789.15"],
        &["0.12345678901234567890", "1234567890123456789.16"],
    );
    // The tighter bound applies, compared beyond the digits of a double.
    check_schema(
        read(
            r#"{"type": "integer", "allOf": [{"maximum": 36893488147419103233}, {"maximum": 36893488147419103232}],
                "minimum": 36893488147419103230}"#,
        ),
        &["36893488147419103232"],
        &["36893488147419103233", "36893488147419103229"],
    );
    let listed = read(r#"{"enum": [1, 18446744073709551616]}"#);
    assert_eq!(
        schema_rule(&mut Builder::new(), &listed).unwrap_err().to_string(),
        "#: 'enum with an integer beyond 64 bits' is not supported"
    );
    for (schema, keyword) in [
        (
            format!(r#"{{"type": "integer", "maximum": {}}}"#, "1".repeat(308)),
            None,
        ),
        (
            format!(r#"{{"type": "number", "minimum": 0.{}}}"#, "1".repeat(401)),
            Some("minimum"),
        ),
        (
            r#"{"type": "number", "exclusiveMaximum": 1.2345678901234567e-4000}"#.to_owned(),
            Some("exclusiveMaximum"),
        ),
    ] {
        let built = schema_rule(&mut Builder::new(), &read(&schema)).map(drop);
        let refused = keyword.map(|keyword| format!("#: '{keyword} with too many digits' is not supported"));
        assert_eq!(built.err().map(|err| err.to_string()), refused, "{schema}");
    }
}

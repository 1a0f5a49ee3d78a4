//! Values in the text format of Go's `fmt` and `encoding/json`, which API messages use.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// Formats a double-quoted Go string (`%q`).
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                push_escaped(&mut out, format_args!("\\x{:02x}", c as u32))
            }
            c if c.is_control() || c == '\u{a0}' || c == '\u{feff}' => {
                push_escaped(&mut out, format_args!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn push_escaped(out: &mut String, escape: std::fmt::Arguments<'_>) {
    out.write_fmt(escape).expect("writing to a String cannot fail");
}

/// Formats the invalid value of a `field.Error`.
pub fn bad_value(value: &Value) -> String {
    match value {
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => self::number(number),
        Value::String(text) => quote(text),
        Value::Null | Value::Array(_) | Value::Object(_) => json(value),
    }
}

/// Formats any decoded JSON value (`%v`).
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => self::number(number),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let mut members: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", plain(value)))
                .collect();
            members.sort();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// Returns the Go type of a decoded JSON value (`%T`).
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats an integer or float64 (`%v`).
pub fn number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => self::float(float),
        Some(_) | None => number.to_string(),
    }
}

/// Formats a float64 (`%v`): shortest digits, with an exponent below 1e-4 and from 1e6.
pub fn float(value: f64) -> String {
    shortest(value, -4..6)
}

/// Formats the shortest decimal text, without exponent if the exponent is within `plain`.
fn shortest(value: f64, plain: std::ops::Range<i32>) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() {
            "-0".to_owned()
        } else {
            "0".to_owned()
        };
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if plain.contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Formats JSON like `encoding/json`: keys are sorted; `<`, `>` and `&` are escaped.
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    push_json(&mut out, value);
    out
}

/// Formats JSON like [`json`], with the keys of all objects in the order of a Go struct. Keys that
/// `order` does not contain are last and sorted.
pub fn json_in_order(value: &Value, order: &[&str]) -> String {
    let mut out = String::new();
    push_ordered(&mut out, value, order);
    out
}

fn push_json(out: &mut String, value: &Value) {
    push_ordered(out, value, &[]);
}

fn push_ordered(out: &mut String, value: &Value, order: &[&str]) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&shortest(float, -6..21)),
            Some(_) | None => out.push_str(&number.to_string()),
        },
        Value::String(text) => push_json_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                push_ordered(out, item, order);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            let place = |key: &str| {
                order
                    .iter()
                    .position(|known| *known == key)
                    .unwrap_or(order.len())
            };
            sorted.sort_by(|a, b| (place(a.0), a.0).cmp(&(place(b.0), b.0)));
            out.push('{');
            for (index, (key, field)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                push_json_string(out, key);
                out.push(':');
                push_ordered(out, field, order);
            }
            out.push('}');
        }
    }
}

fn push_json_string(out: &mut String, text: &str) {
    let quoted = Value::from(text).to_string();
    for c in quoted.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quotes_strings_like_go() {
        assert_eq!(quote("a\"b\\\n\u{1}é"), "\"a\\\"b\\\\\\n\\x01é\"");
    }

    #[test]
    fn formats_floats_like_percent_v() {
        let check = |value: f64, expect: &str| assert_eq!(float(value), expect, "{value}");
        check(1.5, "1.5");
        check(10.0, "10");
        check(1e6, "1e+06");
        check(123456.0, "123456");
        check(0.00001, "1e-05");
        check(-2.25, "-2.25");
    }

    #[test]
    fn keys_have_the_order_of_a_struct() {
        assert_eq!(
            json_in_order(
                &json!([{"name": "x", "uid": 1, "apiVersion": "v1", "b": 2}]),
                &["apiVersion", "name"]
            ),
            r#"[{"apiVersion":"v1","name":"x","b":2,"uid":1}]"#
        );
    }

    #[test]
    fn formats_objects_as_sorted_json_with_escaped_html() {
        assert_eq!(
            bad_value(&json!({"b": "<a>", "a": [1, null]})),
            r#"{"a":[1,null],"b":"\u003ca\u003e"}"#
        );
    }
}

//! Function `format` of texts.

use std::sync::Arc;

use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value as Cel, extractors::This, objects::Key};

use super::conversions::{name_of_type, text, type_name};
use crate::cel::template::{Clause, Fault, fill};
use crate::gotext;

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function("format", format);
}

fn format(This(template): This<Arc<String>>, items: Arc<Vec<Cel>>) -> ResolveResult {
    let filled = fill(&template, items.len(), |index, clause| {
        written(&items[index], clause)
    });
    match filled {
        Ok((text, _)) => Ok(Cel::String(Arc::new(text))),
        Err(Fault::Template(text)) => Err(ExecutionError::function_error("format", text)),
        Err(Fault::Item(_, text)) => {
            let text = format!("error during formatting: {text}");
            Err(ExecutionError::function_error("format", text))
        }
    }
}

/// Formats a value. The error is the reason why the clause does not apply to it.
fn written(value: &Cel, clause: Clause) -> Result<String, String> {
    let mismatch = || clause.mismatch(name_of_type(value).unwrap_or_default());
    match (clause, value) {
        (Clause::Text, value) => plain(value),
        (Clause::Decimal, Cel::Int(number)) => Ok(number.to_string()),
        (Clause::Decimal, Cel::UInt(number)) => Ok(number.to_string()),
        (Clause::Fixed(digits), value) => Ok(fixed(number(value).ok_or_else(mismatch)?, digits)),
        (Clause::Scientific, value) => Ok(scientific(number(value).ok_or_else(mismatch)?)),
        (Clause::Binary, Cel::Bool(flag)) => Ok(u8::from(*flag).to_string()),
        (Clause::Binary, Cel::Int(number)) => Ok(signed(*number, format!("{:b}", number.unsigned_abs()))),
        (Clause::Binary, Cel::UInt(number)) => Ok(format!("{number:b}")),
        (Clause::Octal, Cel::Int(number)) => Ok(signed(*number, format!("{:o}", number.unsigned_abs()))),
        (Clause::Octal, Cel::UInt(number)) => Ok(format!("{number:o}")),
        (Clause::Hex { is_upper }, value) => {
            let lower = match value {
                Cel::Int(number) => signed(*number, format!("{:x}", number.unsigned_abs())),
                Cel::UInt(number) => format!("{number:x}"),
                Cel::String(text) => hex(text.as_bytes()),
                Cel::Bytes(bytes) => hex(bytes),
                Cel::Bool(_)
                | Cel::Float(_)
                | Cel::List(_)
                | Cel::Map(_)
                | Cel::Function(..)
                | Cel::Duration(_)
                | Cel::Timestamp(_)
                | Cel::Opaque(_)
                | Cel::Null => return Err(mismatch()),
            };
            Ok(if is_upper {
                lower.to_ascii_uppercase()
            } else {
                lower
            })
        }
        (Clause::Decimal | Clause::Binary | Clause::Octal, _) => Err(mismatch()),
    }
}

fn signed(number: i64, digits: String) -> String {
    if number < 0 { format!("-{digits}") } else { digits }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the number of a value that `%f` and `%e` accept.
fn number(value: &Cel) -> Option<f64> {
    if let Cel::Float(number) = value {
        return Some(*number);
    }
    let Cel::String(text) = value else { return None };
    match text.as_str() {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Formats a number in English: with a comma between groups of three digits.
fn fixed(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        return not_finite(number);
    }
    // Rust rejects larger precisions. All further digits are zeros, because an `f64` has at most 1074 of them.
    let precision = digits.min(usize::from(u16::MAX));
    let text = format!("{number:.precision$}");
    let (sign, text) = text
        .strip_prefix('-')
        .map_or(("", text.as_str()), |rest| ("-", rest));
    let end = text.find('.').unwrap_or(text.len());
    let mut grouped = sign.to_owned();
    for (index, digit) in text[..end].chars().enumerate() {
        if index > 0 && (end - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &text[end..] + &"0".repeat(digits - precision)
}

/// Formats a number in scientific notation with six digits. As in kube-apiserver, the precision of the clause
/// has no effect.
fn scientific(number: f64) -> String {
    if !number.is_finite() {
        return not_finite(number);
    }
    let text = format!("{number:.6e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent
        .strip_prefix('-')
        .map_or(("", exponent), |rest| ("⁻", rest));
    let raised = |digit: char| match digit {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '4' => '⁴',
        '5' => '⁵',
        '6' => '⁶',
        '7' => '⁷',
        '8' => '⁸',
        '9' => '⁹',
        _ => '⁰',
    };
    let exponent: String = format!("{exponent:0>2}").chars().map(raised).collect();
    format!("{mantissa}×10{sign}{exponent}")
}

fn not_finite(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number > 0.0 {
        "∞".to_owned()
    } else {
        "-∞".to_owned()
    }
}

/// Formats a value for `%s`.
fn plain(value: &Cel) -> Result<String, String> {
    if let Cel::List(items) = value {
        let items: Result<Vec<String>, String> = items.iter().map(quoted).collect();
        return Ok(format!("[{}]", items?.join(", ")));
    }
    if let Cel::Map(map) = value {
        let mut entries = Vec::new();
        for (key, value) in map.map.iter() {
            let key = match key {
                Key::String(text) => gotext::quote(text),
                Key::Int(number) => number.to_string(),
                Key::Uint(number) => number.to_string(),
                Key::Bool(flag) => flag.to_string(),
            };
            entries.push((key, quoted(value)?));
        }
        entries.sort();
        let entries: Vec<String> = entries
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        return Ok(format!("{{{}}}", entries.join(", ")));
    }
    if let Cel::Null = value {
        return Ok("null".to_owned());
    }
    if let Some(name) = type_name(value) {
        return Ok(name.to_owned());
    }
    let mismatch = || Clause::Text.mismatch(name_of_type(value).unwrap_or_default());
    text(value).map_err(|_| mismatch())
}

/// Formats an item of a list or map.
fn quoted(value: &Cel) -> Result<String, String> {
    if let Cel::Float(number) = value
        && number.is_finite()
    {
        return Ok(format!("{number:.6}"));
    }
    let text = plain(value)?;
    let quoted = || gotext::quote(&text);
    Ok(match value {
        Cel::String(_) | Cel::Float(_) => quoted(),
        Cel::Bytes(_) => format!("b{}", quoted()),
        Cel::Duration(_) => format!("duration({})", quoted()),
        Cel::Timestamp(_) => format!("timestamp({})", quoted()),
        Cel::Bool(_)
        | Cel::Int(_)
        | Cel::UInt(_)
        | Cel::List(_)
        | Cel::Map(_)
        | Cel::Function(..)
        | Cel::Opaque(_)
        | Cel::Null => text,
    })
}

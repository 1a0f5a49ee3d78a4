//! Conversions between types, and types as values.

use std::sync::{Arc, LazyLock};

use chrono::SecondsFormat;
use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult, Value as Cel,
        common::ast::{CallExpr, Expr},
        extractors::This,
        functions,
        objects::Opaque,
    },
};

use crate::gotext;

/// First and last second of the timestamps of CEL, from the epoch.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Functions of the crates, without those of this server.
static CRATES: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function("asInteger", as_integer);
    context.add_function("bool", bool);
    context.add_function("bytes", bytes);
    context.add_function("double", double);
    context.add_function("duration", duration);
    context.add_function("int", int);
    context.add_function("isInteger", is_integer);
    context.add_function("string", string);
    context.add_function("timestamp", timestamp);
    context.add_function("type", type_of);
    context.add_function("uint", uint);
    for name in TYPES {
        context.add_variable_from_value(name, Cel::Opaque(Arc::new(TypeName(name.to_owned()))));
    }
}

/// Calls a function or method of the crates.
pub(super) fn of_crates(function: &str, target: Option<Cel>, argument: Option<Cel>) -> ResolveResult {
    let mut scope = CRATES.new_inner_scope();
    let mut variable = |name: &str, value: Cel| {
        scope.add_variable_from_value(name, value);
        IdedExpr {
            id: 0,
            expr: Expr::Ident(name.to_owned()),
        }
    };
    let call = CallExpr {
        func_name: function.to_owned(),
        target: target.map(|target| Box::new(variable("@target", target))),
        args: argument
            .map(|argument| variable("@argument", argument))
            .into_iter()
            .collect(),
    };
    let call = IdedExpr {
        id: 0,
        expr: Expr::Call(call),
    };
    Cel::resolve(&call, &scope)
}

/// Returns the integer of a quantity.
fn as_integer(This(quantity): This<Cel>) -> ResolveResult {
    let text = "cannot convert value to integer";
    of_crates("asInteger", Some(quantity), None)
        .map_err(|_| ExecutionError::function_error("asInteger", text))
}

/// Returns whether a quantity is an integer of 64 bits.
fn is_integer(This(quantity): This<Cel>) -> ResolveResult {
    let is_whole = of_crates("isInteger", Some(quantity.clone()), None)? == Cel::Bool(true);
    Ok(Cel::Bool(is_whole && as_integer(This(quantity)).is_ok()))
}

/// Function of the crate that converts a value.
type Conversion = fn(&FunctionContext<'_, '_>, This<Cel>) -> ResolveResult;

/// Converts a value with a function of the crate. Its errors contain the value, which may be secret.
fn convert(
    conversion: Conversion,
    (ftx, This(value)): (&FunctionContext<'_, '_>, This<Cel>),
    to: &str,
) -> ResolveResult {
    if !matches!(value, Cel::String(_) | Cel::Int(_) | Cel::UInt(_) | Cel::Float(_)) {
        return Err(ExecutionError::NoSuchOverload);
    }
    let is_text = matches!(value, Cel::String(_));
    conversion(ftx, This(value)).map_err(|err| if is_text { conversion_error(to) } else { err })
}

fn conversion_error(to: &str) -> ExecutionError {
    ExecutionError::function_error(to, format!("type conversion error from 'string' to '{to}'"))
}

fn int(ftx: &FunctionContext<'_, '_>, This(value): This<Cel>) -> ResolveResult {
    if let Cel::Timestamp(time) = &value {
        Ok(Cel::Int(time.timestamp()))
    } else if let Cel::Duration(duration) = &value {
        Ok(Cel::Int(duration.num_nanoseconds().unwrap_or(i64::MAX)))
    } else if matches!(value, Cel::Float(number) if number.is_nan()) {
        Err(ExecutionError::function_error("int", "integer overflow"))
    } else {
        convert(functions::int, (ftx, This(value)), "int")
    }
}

fn uint(ftx: &FunctionContext<'_, '_>, this: This<Cel>) -> ResolveResult {
    convert(functions::uint, (ftx, this), "uint")
}

fn double(ftx: &FunctionContext<'_, '_>, this: This<Cel>) -> ResolveResult {
    convert(functions::double, (ftx, this), "double")
}

fn bool(This(value): This<Cel>) -> ResolveResult {
    if let Cel::Bool(_) = value {
        return Ok(value);
    }
    let Cel::String(text) = &value else {
        return Err(ExecutionError::NoSuchOverload);
    };
    match text.as_str() {
        "1" | "t" | "true" | "TRUE" | "True" => Ok(Cel::Bool(true)),
        "0" | "f" | "false" | "FALSE" | "False" => Ok(Cel::Bool(false)),
        _ => Err(conversion_error("bool")),
    }
}

fn bytes(This(value): This<Cel>) -> ResolveResult {
    if let Cel::String(text) = &value {
        Ok(Cel::Bytes(Arc::new(text.as_bytes().to_vec())))
    } else if let Cel::Bytes(_) = &value {
        Ok(value)
    } else {
        Err(ExecutionError::NoSuchOverload)
    }
}

fn duration(This(value): This<Cel>) -> ResolveResult {
    const NAME: &str = "google.protobuf.Duration";
    if let Cel::Duration(_) = value {
        return Ok(value);
    }
    if let Cel::Int(_) = value {
        let text = format!("type conversion error from 'int' to '{NAME}'");
        return Err(ExecutionError::function_error(NAME, text));
    }
    let Cel::String(text) = value else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let parsed = functions::duration(text).map_err(|_| conversion_error(NAME))?;
    // The crate limits longer durations to the longest.
    let is_longest = matches!(&parsed, Cel::Duration(duration) if duration.num_nanoseconds().is_none_or(|all| all == i64::MAX));
    if is_longest {
        Err(conversion_error(NAME))
    } else {
        Ok(parsed)
    }
}

fn timestamp(This(value): This<Cel>) -> ResolveResult {
    const NAME: &str = "google.protobuf.Timestamp";
    if let Cel::Timestamp(_) = value {
        return Ok(value);
    }
    if let Cel::Int(seconds) = value {
        let time = chrono::DateTime::from_timestamp(seconds, 0).filter(|_| SECONDS.contains(&seconds));
        let overflow = || ExecutionError::function_error(NAME, "timestamp overflow");
        return Ok(Cel::Timestamp(time.ok_or_else(overflow)?.fixed_offset()));
    }
    let Cel::String(text) = value else {
        return Err(ExecutionError::NoSuchOverload);
    };
    // The crate also accepts small letters and a blank.
    if text.bytes().any(|byte| matches!(byte, b't' | b'z' | b' ')) {
        return Err(conversion_error(NAME));
    }
    functions::timestamp(text).map_err(|_| conversion_error(NAME))
}

fn string(This(value): This<Cel>) -> ResolveResult {
    if let Cel::Opaque(opaque) = &value
        && ["net.IP", "net.CIDR"].contains(&opaque.runtime_type_name())
    {
        return of_crates("string", None, Some(value));
    }
    text(&value).map(|text| Cel::String(Arc::new(text)))
}

/// Returns the text of a value of a simple type, as Go formats it.
pub(super) fn text(value: &Cel) -> Result<String, ExecutionError> {
    Ok(match value {
        Cel::Bool(flag) => flag.to_string(),
        Cel::Int(number) => number.to_string(),
        Cel::UInt(number) => number.to_string(),
        Cel::Float(number) => float(*number),
        Cel::String(text) => text.as_str().to_owned(),
        Cel::Bytes(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| {
            ExecutionError::function_error("string", "invalid UTF-8 in bytes, cannot convert to string")
        })?,
        Cel::Timestamp(time) => time_text(time),
        Cel::Duration(duration) => {
            let nanoseconds = duration.num_nanoseconds().unwrap_or(i64::MAX);
            format!("{}s", nanoseconds as f64 / 1e9)
        }
        Cel::List(_) | Cel::Map(_) | Cel::Function(..) | Cel::Opaque(_) | Cel::Null => {
            return Err(ExecutionError::NoSuchOverload);
        }
    })
}

fn float(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if number.is_nan() {
        return "NaN".to_owned();
    }
    gotext::float(number)
}

/// Formats a time in RFC 3339 without zeros at the end of its fraction.
fn time_text(time: &chrono::DateTime<chrono::FixedOffset>) -> String {
    let text = time.to_rfc3339_opts(SecondsFormat::Nanos, true);
    let Some((seconds, rest)) = text.split_once('.') else {
        return text;
    };
    let zone = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    match rest[..zone].trim_end_matches('0') {
        "" => format!("{seconds}{}", &rest[zone..]),
        fraction => format!("{seconds}.{fraction}{}", &rest[zone..]),
    }
}

/// Names of types for comparisons with `type(x)`.
const TYPES: [&str; 15] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "list",
    "map",
    "net.CIDR",
    "net.IP",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// Type as a value.
#[derive(Debug, PartialEq, Eq)]
struct TypeName(String);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

/// Returns the name of a type that is a value.
pub(in crate::cel) fn type_name(value: &Cel) -> Option<&str> {
    let Cel::Opaque(opaque) = value else { return None };
    opaque.downcast_ref::<TypeName>().map(|name| name.0.as_str())
}

fn type_of(This(value): This<Cel>) -> ResolveResult {
    let name = name_of_type(&value).ok_or(ExecutionError::NoSuchOverload)?;
    Ok(Cel::Opaque(Arc::new(TypeName(name.to_owned()))))
}

/// Returns the name of the type of a value.
pub(super) fn name_of_type(value: &Cel) -> Option<&str> {
    Some(match value {
        Cel::Bool(_) => "bool",
        Cel::Bytes(_) => "bytes",
        Cel::Float(_) => "double",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Null => "null_type",
        Cel::String(_) => "string",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        Cel::Opaque(opaque) => opaque.runtime_type_name(),
        Cel::Function(..) => return None,
    })
}

//! Methods of Python's strings and lists for templates, in addition to those of minijinja-contrib.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

pub(super) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let text = value.as_str();
    match (text, method) {
        (Some(text), "removeprefix") => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        (Some(text), "removesuffix") => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        (Some(text), "rsplit") => {
            let (separator, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(named.get("sep")?);
            let most = most.or(named.get("maxsplit")?);
            named.assert_all_used()?;
            // A negative limit means no limit.
            let most = most.and_then(|most| usize::try_from(most).ok());
            Ok(rsplit(text, separator, most)?.into_iter().collect())
        }
        (Some(text), "index") => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| invalid("substring not found"))?;
            Ok(text[..at].chars().count().into())
        }
        (None, "index") if value.kind() == ValueKind::Seq => {
            let (item,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|own| own == item);
            Ok(at.ok_or_else(|| invalid("the item is not in the list"))?.into())
        }
        (_, _) => unknown_method_callback(state, value, method, args),
    }
}

fn invalid(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// Splits from the end, at most `most` times. Without a separator, splits at white space.
fn rsplit<'a>(text: &'a str, separator: Option<&str>, most: Option<usize>) -> Result<Vec<&'a str>, Error> {
    let most = most.unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while let Some(at) = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most) {
                let (before, last) = rest.split_at(at);
                parts.push(last.trim_start());
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    Ok(parts)
}

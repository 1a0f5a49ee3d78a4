//! JSONPath of printer columns and selectable fields: `.a.b`, `['x']`, `[0]`, `[1:3]`, `[*]`, `.*`
//! and filters such as `[?(@.type=="Ready")].status`.

use serde_json::Value;

/// Syntax error of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON path `{path}`: {problem}")]
pub struct JsonPathError {
    path: String,
    problem: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Name(String),
    /// Position of an item. A negative position counts from the end.
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    Wildcard,
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// Without a comparison, the filter requires that the left side exists.
    test: Option<(Comparison, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// Path relative to the tested item.
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    LessOrEqual,
    GreaterOrEqual,
    Less,
    Greater,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// Parsed path. The default selects the document itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

impl JsonPath {
    pub fn parse(path: &str) -> Result<Self, JsonPathError> {
        let error = |problem| JsonPathError {
            path: path.to_owned(),
            problem,
        };
        let mut steps = Vec::new();
        let mut rest = path.trim();
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix('.') {
                if tail.starts_with('[') || (tail.is_empty() && steps.is_empty()) {
                    rest = tail;
                    continue;
                }
                let (name, tail) = take_name(tail);
                match name.as_str() {
                    "" => return Err(error("a name is missing after `.`")),
                    "*" => steps.push(Step::Wildcard),
                    _ => steps.push(Step::Name(name)),
                }
                rest = tail;
            } else if let Some(tail) = rest.strip_prefix('[') {
                let end = closing_bracket(tail).ok_or_else(|| error("`[` is not closed"))?;
                steps.push(bracket(tail[..end].trim()).map_err(error)?);
                rest = &tail[end + 1..];
            } else if steps.is_empty() {
                // The first dot of a path is optional.
                let (name, tail) = take_name(rest);
                steps.push(Step::Name(name));
                rest = tail;
            } else {
                return Err(error("expected `.` or `[`"));
            }
        }
        Ok(Self { steps })
    }

    /// Returns all selected values in document order. Missing fields select nothing.
    pub fn find<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![document];
        for step in &self.steps {
            found = found.into_iter().flat_map(|value| step.follow(value)).collect();
        }
        found
    }

    /// Returns the first selected value.
    pub fn first<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.find(document).into_iter().next()
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Name(name) => value.get(name).into_iter().collect(),
            Step::Index(index) => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                from_end(*index, items.len())
                    .and_then(|index| items.get(index))
                    .into_iter()
                    .collect()
            }
            Step::Slice(start, end) => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let bound = |bound: Option<i64>, default: usize| match bound {
                    Some(bound) => from_end(bound, items.len()).unwrap_or_default().min(items.len()),
                    None => default,
                };
                let (start, end) = (bound(*start, 0), bound(*end, items.len()));
                items
                    .get(start..end.max(start))
                    .unwrap_or_default()
                    .iter()
                    .collect()
            }
            Step::Wildcard => children(value),
            Step::Filter(filter) => children(value)
                .into_iter()
                .filter(|item| filter.holds(item))
                .collect(),
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn from_end(index: i64, len: usize) -> Option<usize> {
    let len = i64::try_from(len).ok()?;
    usize::try_from(if index < 0 { index + len } else { index }).ok()
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(left) = self.left.value(item) else {
            return false;
        };
        let Some((comparison, right)) = &self.test else {
            return true;
        };
        let Some(right) = right.value(item) else {
            return false;
        };
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => a.partial_cmp(b),
            (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
        };
        match comparison {
            Comparison::Equal => order.is_some_and(|order| order.is_eq()),
            Comparison::NotEqual => !order.is_some_and(|order| order.is_eq()),
            Comparison::LessOrEqual => order.is_some_and(|order| order.is_le()),
            Comparison::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
            Comparison::Less => order.is_some_and(|order| order.is_lt()),
            Comparison::Greater => order.is_some_and(|order| order.is_gt()),
        }
    }
}

impl Operand {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix('@') {
            return JsonPath::parse(path)
                .map(Operand::Path)
                .map_err(|err| err.problem);
        }
        if let Some(name) = unquote(text) {
            return Ok(Operand::Literal(Value::from(name)));
        }
        serde_json::from_str(text)
            .map(Operand::Literal)
            .map_err(|_| "a filter can compare only `@` paths, quoted texts, numbers and booleans")
    }

    fn value<'a>(&'a self, item: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::Path(path) => path.first(item),
            Operand::Literal(value) => Some(value),
        }
    }
}

/// Splits off a name at the next `.` or `[`. A backslash escapes the next character.
fn take_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => name.push(c),
        }
    }
    (name, "")
}

/// Returns the position of the closing bracket, skipping quotes and nested brackets.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| "'\"".contains(*c))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            out.extend(chars.next())
        } else {
            out.push(c)
        }
    }
    Some(out)
}

fn bracket(inside: &str) -> Result<Step, &'static str> {
    if inside == "*" {
        return Ok(Step::Wildcard);
    }
    if let Some(name) = unquote(inside) {
        return Ok(Step::Name(name));
    }
    if let Some(filter) = inside
        .strip_prefix("?(")
        .and_then(|filter| filter.strip_suffix(')'))
    {
        return filter_step(filter);
    }
    let number = |text: &str| -> Result<Option<i64>, &'static str> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        text.trim()
            .parse()
            .map(Some)
            .map_err(|_| "expected a quoted name, a number, `*` or a filter in `[]`")
    };
    match inside.split_once(':') {
        Some((start, end)) => Ok(Step::Slice(number(start)?, number(end)?)),
        None => number(inside)?.map(Step::Index).ok_or("`[]` is empty"),
    }
}

fn filter_step(filter: &str) -> Result<Step, &'static str> {
    let mut quote = None;
    for (at, c) in filter.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) => {
                if let Some((sign, comparison)) = COMPARISONS
                    .iter()
                    .find(|(sign, _)| filter[at..].starts_with(sign))
                {
                    let left = Operand::parse(&filter[..at])?;
                    let right = Operand::parse(&filter[at + sign.len()..])?;
                    return Ok(Step::Filter(Filter {
                        left,
                        test: Some((*comparison, right)),
                    }));
                }
            }
        }
    }
    Ok(Step::Filter(Filter {
        left: Operand::parse(filter)?,
        test: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(path: &str, expect: Value) {
        let document = json!({
            "spec": {"a.b": 1, "list": [10, 20, 30], "name": "n"},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1}, {"type": "Idle", "status": "False", "n": 2}]}
        });
        let found: Vec<Value> = JsonPath::parse(path)
            .unwrap()
            .find(&document)
            .into_iter()
            .cloned()
            .collect();
        assert_eq!(Value::from(found), expect, "{path}");
    }

    #[test]
    fn paths_select_values() {
        check(".spec.name", json!(["n"]));
        check("spec.name", json!(["n"]));
        check(".spec['a.b']", json!([1]));
        check(r".spec.a\.b", json!([1]));
        check(".spec.list[1]", json!([20]));
        check(".spec.list[-1]", json!([30]));
        check(".spec.list[1:]", json!([20, 30]));
        check(".spec.list[*]", json!([10, 20, 30]));
        check(".spec.absent.deep", json!([]));
        check(
            r#".status.conditions[?(@.type=="Ready")].status"#,
            json!(["True"]),
        );
        check(
            ".status.conditions[?(@.type != 'Ready')].status",
            json!(["False"]),
        );
        check(".status.conditions[?(@.n>=2)].type", json!(["Idle"]));
        check(".status.conditions[?(@.absent)].type", json!([]));
        check(".status.conditions.*.type", json!(["Ready", "Idle"]));
    }

    #[test]
    fn rejects_invalid_paths() {
        for path in [".spec[", ".spec[x]", ".a..b", ".a[]", ".a['b']c", ".a[?(@.x==y)]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(path in r#"[.a\[\]'"?(@=)*:0\\-]{0,20}"#) {
            if let Ok(path) = JsonPath::parse(&path) {
                path.find(&json!({"a": [0, {"a": 1}]}));
            }
        }
    }
}

//! Structural validation of a value against a node: types, bounds, required fields, junctors.
//!
//! To report the same causes, the order of checks and the selection of the reported junctor branch
//! follow the validator of kube-apiserver. Updates tolerate unchanged invalid values (ratcheting):
//! the errors of a node are dropped if its value equals the correlated old value, apart from the
//! order of items in list maps.

use serde_json::{Map, Number, Value};

use super::{
    FieldError, correlate, gotext,
    node::{Additional, Checks, Node},
    number, path,
    path::Path,
    types::Types,
};

/// Maximum number of errors that are reported individually.
const FAULTS_MAX: usize = 100;

/// Error in the validator's format, before the prefix is added.
#[derive(Debug)]
struct Fault {
    /// Path in the validator's format. `None` for errors without a path.
    at: Option<String>,
    kind: FaultKind,
    /// Text of the validator. Errors with equal texts are reported once.
    text: String,
}

#[derive(Debug)]
enum FaultKind {
    Required,
    NotSupported { value: Value, allowed: Vec<String> },
    TooLong { max: u64 },
    TooMany { actual: usize, max: u64 },
    Type { shown: Value },
    Invalid { shown: Value },
}

#[derive(Debug, Default)]
struct Outcome {
    faults: Vec<Fault>,
    /// Number of further errors.
    more: usize,
    /// Number of passed check groups. Selects the junctor branch whose errors are reported.
    matches: usize,
}

impl Outcome {
    fn push(&mut self, fault: Fault) {
        if self.faults.iter().any(|known| known.text == fault.text) {
            return;
        }
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        self.more += other.more;
        for fault in other.faults {
            self.push(fault);
        }
    }

    fn is_valid(&self) -> bool {
        self.faults.is_empty()
    }

    fn fault(&mut self, path: &Path<'_>, kind: FaultKind, tail: &str) {
        let at = path.openapi();
        let text = format!("{at} in body {tail}");
        self.push(Fault {
            at: Some(at),
            kind,
            text,
        });
    }

    fn invalid(&mut self, path: &Path<'_>, shown: Value, tail: &str) {
        self.fault(path, FaultKind::Invalid { shown }, tail);
    }

    /// Adds an error of the object as a whole.
    fn unplaced(&mut self, text: String) {
        self.push(Fault {
            at: None,
            kind: FaultKind::Invalid {
                shown: Value::from(""),
            },
            text,
        });
    }
}

impl Fault {
    /// Converts to a field error below `prefix`, which is empty for the whole object.
    fn into_error(self, prefix: &str) -> FieldError {
        let name = self.at.unwrap_or_default();
        let field = path::join(prefix, name.strip_prefix('.').unwrap_or(&name));
        let field = if field.is_empty() {
            "<nil>".to_owned()
        } else {
            field.strip_suffix('.').map(str::to_owned).unwrap_or(field)
        };
        match self.kind {
            FaultKind::Required => FieldError::required(field, ""),
            FaultKind::NotSupported { value, allowed } => FieldError::not_supported(field, &value, allowed),
            FaultKind::TooLong { max } => FieldError::too_long(field, max),
            FaultKind::TooMany { actual, max } => FieldError::too_many(field, actual, max),
            FaultKind::Type { shown } => FieldError::type_invalid(field, &shown, &self.text),
            FaultKind::Invalid { shown } => FieldError::invalid(field, &shown, &self.text),
        }
    }
}

/// Validates `value` in field `prefix`, which is empty for the whole object.
pub(super) fn validate(prefix: &str, node: &Node, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let outcome = check(node, value, old, &Path::Root);
    let reported = outcome.faults.into_iter().map(|fault| fault.into_error(prefix));
    let more = (outcome.more > 0).then(|| {
        let detail = format!("and {} more", outcome.more);
        FieldError::type_invalid("<nil>", &Value::Null, &detail)
    });
    reported.chain(more).collect()
}

fn check(node: &Node, value: &Value, old: Option<&Value>, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    if value.is_null() {
        check_type(node, value, path, &mut outcome);
        check_allowed(node.checks(), value, path, &mut outcome);
    } else {
        if !node.types.is_empty() || node.format.is_some() {
            check_type(node, value, path, &mut outcome);
            outcome.matches += 1;
        }
        check_junctors(node.checks(), value, old, path, &mut outcome);
        outcome.matches += 1;
        match value {
            Value::String(text) => {
                check_text(node.checks(), text, path, &mut outcome);
                outcome.matches += 1;
                check_format(node, text, path, &mut outcome);
            }
            Value::Number(number) => {
                check_number(node, number, path, &mut outcome);
                outcome.matches += 2;
            }
            Value::Array(items) => {
                check_array(node, items, old, path, &mut outcome);
                outcome.matches += 2;
            }
            Value::Object(_) | Value::Bool(_) | Value::Null => {}
        }
        check_allowed(node.checks(), value, path, &mut outcome);
        outcome.matches += 1;
        if let Value::Object(fields) = value {
            check_object(node, fields, old, path, &mut outcome);
            outcome.matches += 1;
        }
        outcome.matches += 1;
    }
    if !outcome.is_valid() && old.is_some_and(|old| correlate::is_unchanged(node, value, old)) {
        outcome.faults.clear();
        outcome.more = 0;
    }
    outcome
}

/// Returns the JSON type of a value, and the format that the validator infers.
fn type_of(value: &Value) -> (Types, &'static str, &'static str) {
    match value {
        Value::Null => (Types::default(), "null", ""),
        Value::Bool(_) => (Types::BOOLEAN, "boolean", ""),
        Value::Number(number) if number.is_i64() => (Types::INTEGER, "integer", "int64"),
        Value::Number(_) => (Types::NUMBER, "number", "float64"),
        Value::String(_) => (Types::STRING, "string", ""),
        Value::Array(_) => (Types::ARRAY, "array", ""),
        Value::Object(_) => (Types::OBJECT, "object", ""),
    }
}

fn check_type(node: &Node, value: &Value, path: &Path<'_>, outcome: &mut Outcome) {
    let wrong = |outcome: &mut Outcome, expected: &str, actual: &str| {
        let kind = FaultKind::Type {
            shown: Value::from(actual),
        };
        outcome.fault(
            path,
            kind,
            &format!("must be of type {expected}: {}", gotext::quote(actual)),
        );
    };
    if value.is_null() {
        if !node.types.is_empty() && !node.nullable {
            wrong(outcome, &node.types.text(), "null");
        } else {
            outcome.matches += 1;
        }
        return;
    }
    let (actual, actual_name, actual_format) = type_of(value);
    let whole = value.as_f64().is_some_and(number::is_whole);
    let fits = node.types.intersects(actual)
        || (actual == Types::NUMBER && whole && node.types.intersects(Types::INTEGER))
        || (actual == Types::INTEGER && node.types.intersects(Types::NUMBER));
    let numeric = node.types.intersects(Types::NUMBER) || node.types.intersects(Types::INTEGER);
    let text_or_array = value.is_string() || value.is_array();
    if let Some(format) = node.format {
        if !text_or_array && !fits && actual_format != format.name() {
            return wrong(outcome, format.name(), actual_format);
        }
        if text_or_array && !numeric {
            outcome.matches += 1;
            return;
        }
    }
    if fits {
        outcome.matches += 1;
    } else {
        wrong(outcome, &node.types.text(), actual_name);
    }
}

fn check_allowed(checks: &Checks, value: &Value, path: &Path<'_>, outcome: &mut Outcome) {
    if checks.allowed.is_empty() {
        return;
    }
    let same = |allowed: &Value| match (allowed, value) {
        (Value::Null, _) => false,
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    };
    if checks.allowed.iter().any(same) {
        return;
    }
    let allowed: Vec<String> = checks
        .allowed
        .iter()
        .map(|allowed| {
            allowed
                .as_str()
                .map_or_else(|| gotext::json(allowed), str::to_owned)
        })
        .collect();
    let tail = format!("should be one of [{}]", allowed.join(" "));
    outcome.fault(
        path,
        FaultKind::NotSupported {
            value: value.clone(),
            allowed,
        },
        &tail,
    );
}

fn check_text(checks: &Checks, text: &str, path: &Path<'_>, outcome: &mut Outcome) {
    if checks.max_length.is_none() && checks.min_length.is_none() && checks.pattern.is_none() {
        return;
    }
    let length = text.chars().count() as u64;
    if let Some(max) = checks.max_length
        && length > max
    {
        outcome.fault(
            path,
            FaultKind::TooLong { max },
            &format!("should be at most {max} chars long"),
        );
    } else if let Some(min) = checks.min_length
        && length < min
    {
        outcome.invalid(
            path,
            Value::from(text),
            &format!("should be at least {min} chars long"),
        );
    } else if let Some(pattern) = &checks.pattern
        && !pattern.matches(text)
    {
        let tail = format!("should match '{}'", pattern.as_str());
        outcome.invalid(path, Value::from(text), &tail);
    }
}

fn check_format(node: &Node, text: &str, path: &Path<'_>, outcome: &mut Outcome) {
    let Some(format) = node.format else { return };
    outcome.matches += 1;
    if !format.accepts(text) {
        let tail = format!("must be of type {}: {}", format.name(), gotext::quote(text));
        outcome.fault(
            path,
            FaultKind::Type {
                shown: Value::from(text),
            },
            &tail,
        );
    }
}

fn check_number(node: &Node, value: &Number, path: &Path<'_>, outcome: &mut Outcome) {
    let checks = node.checks();
    let range_fault = |outcome: &mut Outcome, number: &Number, what: &str| {
        if let Some(expected) = number::out_of_range(number, node.types, node.format) {
            outcome.unplaced(format!(
                "{what} value must be of type {expected} in {}",
                path.openapi()
            ));
        }
    };
    range_fault(outcome, value, "Checked");
    let shown = || Value::Number(value.clone());
    if let Some(factor) = &checks.multiple_of {
        range_fault(outcome, factor, "MultipleOf");
        if !number::is_multiple_of(value, factor) {
            let factor = number::bound_text(value, factor);
            outcome.invalid(path, shown(), &format!("should be a multiple of {factor}"));
        }
    }
    if let Some(min) = &checks.minimum {
        range_fault(outcome, min, "Minimum boundary");
        let exclusive = checks.exclusive_minimum;
        if !number::is_at_least(value, min, exclusive) {
            let words = if exclusive {
                "greater than"
            } else {
                "greater than or equal to"
            };
            outcome.invalid(
                path,
                shown(),
                &format!("should be {words} {}", number::bound_text(value, min)),
            );
        }
    }
    if let Some(max) = &checks.maximum {
        range_fault(outcome, max, "Maximum boundary");
        let exclusive = checks.exclusive_maximum;
        if !number::is_at_most(value, max, exclusive) {
            let words = if exclusive {
                "less than"
            } else {
                "less than or equal to"
            };
            outcome.invalid(
                path,
                shown(),
                &format!("should be {words} {}", number::bound_text(value, max)),
            );
        }
    }
}

fn check_array(node: &Node, items: &[Value], old: Option<&Value>, path: &Path<'_>, outcome: &mut Outcome) {
    if let Some(child) = &node.items {
        let correlation = correlate::Items::new(node, old);
        for (index, item) in items.iter().enumerate() {
            outcome.merge(check(child, item, correlation.find(item), &path.index(index)));
        }
    }
    let size = items.len() as u64;
    if let Some(min) = node.checks().min_items
        && size < min
    {
        outcome.invalid(
            path,
            Value::from(size),
            &format!("should have at least {min} items"),
        );
    }
    if let Some(max) = node.checks().max_items
        && size > max
    {
        let kind = FaultKind::TooMany {
            actual: items.len(),
            max,
        };
        outcome.fault(path, kind, &format!("should have at most {max} items"));
    }
    if node.checks().unique_items
        && items
            .iter()
            .enumerate()
            .any(|(index, item)| items[..index].contains(item))
    {
        outcome.invalid(path, Value::from(""), "shouldn't contain duplicates");
    }
}

fn check_object(
    node: &Node,
    fields: &Map<String, Value>,
    old: Option<&Value>,
    path: &Path<'_>,
    outcome: &mut Outcome,
) {
    let size = fields.len() as u64;
    if let Some(min) = node.checks().min_properties
        && size < min
    {
        outcome.invalid(
            path,
            Value::from(size),
            &format!("should have at least {min} properties"),
        );
    }
    if let Some(max) = node.checks().max_properties
        && size > max
    {
        let kind = FaultKind::TooMany {
            actual: fields.len(),
            max,
        };
        outcome.fault(path, kind, &format!("should have at most {max} properties"));
    }
    // Type metadata is not ratcheted: both objects are read as the same type.
    let is_type = |name: &str| matches!(path, Path::Root) && (name == "apiVersion" || name == "kind");
    let old_field = |name: &str| old.filter(|_| !is_type(name)).and_then(|old| old.get(name));
    for (name, field) in fields {
        match (node.property(name), &node.additional) {
            (Some(_), _) | (None, Additional::Unset | Additional::Any) => {}
            (None, Additional::Schema(child)) => {
                outcome.merge(check(child, field, old_field(name), &path.key(name)));
            }
            (None, Additional::Forbidden) => {
                let at = path.openapi();
                let text = format!("{at}.{name} in body is a forbidden property");
                let kind = FaultKind::Invalid {
                    shown: Value::from(name.as_str()),
                };
                outcome.push(Fault {
                    at: Some(at),
                    kind,
                    text,
                });
            }
        }
    }
    // Iterate over the schema in name order, so that the order of causes is stable.
    for (name, child) in node.properties() {
        if let Some(field) = fields.get(name) {
            outcome.merge(check(child, field, old_field(name), &path.child(name)));
        }
    }
    for name in &node.checks().required {
        if !fields.contains_key(name) {
            let at = format!("{}.{name}", path.openapi());
            let text = format!("{at} in body is required");
            outcome.push(Fault {
                at: Some(at),
                kind: FaultKind::Required,
                text,
            });
        }
    }
}

fn check_junctors(
    checks: &Checks,
    value: &Value,
    old: Option<&Value>,
    path: &Path<'_>,
    outcome: &mut Outcome,
) {
    let at = || gotext::quote(&path.openapi());
    // Junctor branches themselves are not ratcheted, but their sub-fields are.
    if !checks.any_of.is_empty() {
        let mut blamed: Option<Outcome> = None;
        let mut met = None;
        for branch in &checks.any_of {
            let result = check(branch, value, old, path);
            if result.is_valid() {
                met = Some(result);
                break;
            }
            if blamed.as_ref().is_none_or(|best| result.matches > best.matches) {
                blamed = Some(result);
            }
        }
        match met {
            Some(result) => outcome.merge(result),
            None => {
                outcome.unplaced(format!("{} must validate at least one schema (anyOf)", at()));
                outcome.merge(blamed.unwrap_or_default());
            }
        }
    }
    if !checks.one_of.is_empty() {
        let mut blamed: Option<Outcome> = None;
        let mut met = Vec::new();
        for branch in &checks.one_of {
            let result = check(branch, value, old, path);
            if result.is_valid() {
                met.push(result);
                blamed = None;
            } else if met.is_empty() && blamed.as_ref().is_none_or(|best| result.matches > best.matches) {
                blamed = Some(result);
            }
        }
        if met.len() == 1 {
            outcome.merge(met.remove(0));
        } else {
            let found = match met.len() {
                0 => "Found none valid".to_owned(),
                several => format!("Found {several} valid alternatives"),
            };
            outcome.unplaced(format!(
                "{} must validate one and only one schema (oneOf). {found}",
                at()
            ));
            outcome.merge(blamed.unwrap_or_default());
        }
    }
    if !checks.all_of.is_empty() {
        let mut met = 0;
        for branch in &checks.all_of {
            let result = check(branch, value, old, path);
            met += usize::from(result.is_valid());
            outcome.merge(result);
        }
        if met != checks.all_of.len() {
            let tail = if met == 0 { ". None validated" } else { "" };
            outcome.unplaced(format!("{} must validate all the schemas (allOf){tail}", at()));
        }
    }
    if let Some(not) = &checks.not
        && check(not, value, old, path).is_valid()
    {
        outcome.unplaced(format!("{} must not validate the schema (not)", at()));
    }
    outcome.matches += 1;
}

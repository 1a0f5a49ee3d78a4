//! Compilation of a node's rules.

use serde_json::Value;

use super::{budget, lists, logic, pairs, parse, reads::Reads, rule::Rule};
use crate::{error::CauseReason, node::Node};

/// Variables of a rule.
const VALUES: &[&str] = &["self", "oldSelf"];

/// Compiles the rules of `node`.
pub(crate) fn compile_rules(rules: Option<&Value>, node: &Node) -> Vec<Rule> {
    rules
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|rule| compile(rule, node))
        .collect()
}

fn compile(rule: &Value, node: &Node) -> Rule {
    let text = |key: &str| rule.get(key).and_then(Value::as_str).map(str::to_owned);
    let source = text("rule").unwrap_or_default();
    let mut shapes = lists::Shapes::default();
    let mut parse = |source: &str| {
        let typed = parse(source).map(|program| lists::typed(program, node, &mut shapes));
        typed.map(pairs::replaced).map(logic::replaced)
    };
    let program = parse(&source);
    let message_program = text("messageExpression")
        .filter(|source| !source.is_empty())
        .and_then(|source| parse(&source).ok());
    Rule {
        shapes: shapes.into_variables(),
        reads: Reads::of(program.iter().chain(&message_program)),
        uses_old_self: program
            .as_ref()
            .is_ok_and(|program| program.references().has_variable("oldSelf")),
        program: program.map(|program| budget::metered(program, VALUES)),
        message_program: message_program.map(|program| budget::metered(program, VALUES)),
        message: text("message").filter(|message| !message.is_empty()),
        field_path: text("fieldPath").filter(|path| !path.is_empty()),
        reason: text("reason").and_then(|reason| match reason.as_str() {
            "FieldValueRequired" => Some(CauseReason::Required),
            "FieldValueForbidden" => Some(CauseReason::Forbidden),
            "FieldValueDuplicate" => Some(CauseReason::Duplicate),
            "FieldValueInvalid" => Some(CauseReason::Invalid),
            _ => None,
        }),
        optional_old_self: rule
            .get("optionalOldSelf")
            .and_then(Value::as_bool)
            .unwrap_or_default(),
        source,
    }
}

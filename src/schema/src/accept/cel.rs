//! Checks of a schema's CEL rules: syntax, types, estimated costs, and the use of old values.

use serde_json::{Value, json};

use super::cost::Costs;
use crate::cel::CompilationError;
use crate::cel::checker::{Checked, Decl};
use crate::{FieldError, cel, gotext};

/// Members of a rule in the order of kube-apiserver's type.
const RULE_MEMBERS: [&str; 6] = [
    "Rule",
    "Message",
    "MessageExpression",
    "Reason",
    "FieldPath",
    "OptionalOldSelf",
];

/// Node with rules.
pub(super) struct Spot<'a> {
    /// Ancestor whose items cannot be correlated between two revisions.
    pub(super) uncorrelatable: Option<&'a str>,
    /// Declaration of the node, or `None` if rules cannot read its values.
    pub(super) decl: Option<&'a Decl>,
    /// If false, rules may have any cost.
    pub(super) limits_cost: bool,
    /// Maximum number of values of the node in an object, or `None` without a limit.
    pub(super) max_values: Option<u64>,
}

/// Checks one rule of a structural node, and adds its cost.
pub(super) fn check(at: &str, rule: &Value, spot: &Spot<'_>, costs: &mut Costs) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
    let flag = rule.get("optionalOldSelf").and_then(Value::as_bool);
    let shown = || {
        let shown = json!({
            "Rule": text("rule"), "Message": text("message"), "MessageExpression": text("messageExpression"),
            "Reason": rule.get("reason"), "FieldPath": text("fieldPath"), "OptionalOldSelf": flag,
        });
        gotext::json_in_order(&shown, &RULE_MEMBERS)
    };
    let reject = |errors: &mut Vec<FieldError>, key: &str, detail: &str| {
        errors.push(FieldError::invalid_shown(format!("{at}.{key}"), &shown(), detail));
    };
    let Some(decl) = spot.decl else {
        return errors;
    };
    let optional_old_self = flag == Some(true);
    let estimate = |checked: &Checked<'_>| {
        let cost = || cel::cost::estimate(&checked.program, decl, &checked.typing);
        spot.limits_cost.then(cost)
    };
    let source = text("rule");
    let mut uses_old_self = false;
    match compile(source, decl, optional_old_self, Wanted::Bool) {
        Err(err) => reject(&mut errors, "rule", &err.to_string()),
        Ok(checked) => {
            uses_old_self = checked.program.references().has_variable("oldSelf");
            if let Some(cost) = estimate(&checked) {
                let values = spot.max_values.unwrap_or_else(|| decl.max_per_request());
                let field = format!("{at}.rule");
                errors.extend(costs.add(field, "rule", cost.saturating_mul(values)));
            }
            let message = text("messageExpression");
            let compiled =
                (!message.is_empty()).then(|| compile(message, decl, optional_old_self, Wanted::Text));
            match compiled {
                None => {}
                Some(Err(err)) => {
                    let detail = format!("messageExpression {err}");
                    reject(&mut errors, "messageExpression", &detail);
                }
                Some(Ok(checked)) => {
                    if let Some(cost) = estimate(&checked) {
                        let field = format!("{at}.messageExpression");
                        errors.extend(costs.add(field, "messageExpression", cost));
                    }
                }
            }
        }
    }
    if uses_old_self {
        if let Some(ancestor) = spot.uncorrelatable {
            let detail = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {ancestor}"
            );
            errors.push(FieldError::invalid_text(format!("{at}.rule"), source, &detail));
        }
    } else if let Some(flag) = flag {
        let field = format!("{at}.optionalOldSelf");
        let detail = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(field, &Value::Bool(flag), detail));
    }
    errors
}

/// Result that an expression must have.
#[derive(Clone, Copy)]
enum Wanted {
    Bool,
    Text,
}

/// Reason why an expression is rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error(transparent)]
    Compilation(#[from] CompilationError),
    #[error("cel expression must evaluate to a bool")]
    NotBool,
    #[error("must evaluate to a string")]
    NotText,
}

/// Parses and checks an expression at a node.
fn compile<'d>(
    source: &str,
    decl: &'d Decl,
    optional_old_self: bool,
    wanted: Wanted,
) -> Result<Checked<'d>, Rejection> {
    let checked = Checked::new(source, decl, optional_old_self)?;
    match wanted {
        Wanted::Bool if !checked.is_bool() => Err(Rejection::NotBool),
        Wanted::Text if !checked.is_text() => Err(Rejection::NotText),
        Wanted::Bool | Wanted::Text => Ok(checked),
    }
}

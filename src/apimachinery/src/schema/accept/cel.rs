//! Compilation checks of a schema's CEL rules: syntax, names, fields and result type.
//!
//! The `cel` crate evaluates without type checking. This visitor infers types where the schema
//! defines them (fields of `self` and `oldSelf`, literals, comparisons). It reports only certain
//! errors: undefined fields, undeclared names, results that are not boolean. Expressions of unknown
//! type pass.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr},
};
use serde_json::{Value, json};

use super::cost::Costs;
use crate::schema::cel::cost::Decl;
use crate::schema::cel::problem::{CompilationError, Problem, syntax_error};
use crate::schema::node::{Additional, Node};
use crate::schema::types::Types;
use crate::schema::{FieldError, cel, gotext};

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
    pub(super) node: &'a Node,
    pub(super) is_root: bool,
    /// Ancestor whose items cannot be correlated between two revisions.
    pub(super) uncorrelatable: Option<&'a str>,
    /// Declaration for the estimate of costs, or `None` if rules may have any cost.
    pub(super) decl: Option<&'a Decl>,
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
    let scope = Scope {
        node: spot.node,
        is_root: spot.is_root,
        optional_old_self: flag == Some(true),
    };
    let reject = |errors: &mut Vec<FieldError>, key: &str, detail: &str| {
        errors.push(FieldError::invalid_shown(format!("{at}.{key}"), &shown(), detail));
    };
    let estimate = |program: &IdedExpr| {
        let decl = spot.decl?;
        Some(cel::cost::estimate(program, decl, scope.optional_old_self))
    };
    let source = text("rule");
    let mut uses_old_self = false;
    match scope.compile(source, Wanted::Bool) {
        Err(err) => reject(&mut errors, "rule", &err.to_string()),
        Ok(program) => {
            uses_old_self = program.references().has_variable("oldSelf");
            if let (Some(cost), Some(decl)) = (estimate(&program), spot.decl) {
                let values = spot.max_values.unwrap_or_else(|| decl.max_per_request());
                let field = format!("{at}.rule");
                errors.extend(costs.add(field, "rule", cost.saturating_mul(values)));
            }
            let message = text("messageExpression");
            match (!message.is_empty()).then(|| scope.compile(message, Wanted::Text)) {
                None => {}
                Some(Err(err)) => {
                    let detail = format!("messageExpression {err}");
                    reject(&mut errors, "messageExpression", &detail);
                }
                Some(Ok(program)) => {
                    if let Some(cost) = estimate(&program) {
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

/// Inferred type of an expression.
#[derive(Clone, Copy)]
enum Kind<'a> {
    Unknown,
    Bool,
    Number,
    Text,
    Null,
    Other,
    /// Value with a schema. If `root` is true, it also has type and object metadata.
    Schema {
        node: &'a Node,
        root: bool,
    },
}

#[derive(Clone, Copy)]
struct Scope<'a> {
    node: &'a Node,
    is_root: bool,
    optional_old_self: bool,
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

impl<'a> Scope<'a> {
    /// Parses and checks an expression.
    fn compile(&self, source: &str, wanted: Wanted) -> Result<IdedExpr, Rejection> {
        let program = cel::parse(source).map_err(|err| syntax_error(source, &err))?;
        match (self.check(source, &program)?, wanted) {
            (Kind::Unknown, _) | (Kind::Bool, Wanted::Bool) | (Kind::Text, Wanted::Text) => Ok(program),
            (_, Wanted::Bool) => Err(Rejection::NotBool),
            (_, Wanted::Text) => Err(Rejection::NotText),
        }
    }

    fn check(&self, source: &str, program: &IdedExpr) -> Result<Kind<'a>, CompilationError> {
        let mut walk = Walk {
            scope: *self,
            source,
            variables: Vec::new(),
            problems: Vec::new(),
        };
        let kind = walk.visit(program);
        if walk.problems.is_empty() {
            Ok(kind)
        } else {
            Err(CompilationError::new(source, walk.problems))
        }
    }
}

struct Walk<'a, 's> {
    scope: Scope<'a>,
    source: &'s str,
    variables: Vec<(String, Kind<'a>)>,
    problems: Vec<Problem>,
}

impl<'a> Walk<'a, '_> {
    fn visit(&mut self, expr: &IdedExpr) -> Kind<'a> {
        match &expr.expr {
            Expr::Unspecified => Kind::Unknown,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Kind::Bool,
                LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => Kind::Number,
                LiteralValue::String(_) => Kind::Text,
                LiteralValue::Null => Kind::Null,
                LiteralValue::Bytes(_) => Kind::Other,
            },
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => {
                self.function(call);
                if let Some(target) = &call.target
                    && !is_function_namespace(target, &call.func_name)
                {
                    self.visit(target);
                }
                let args: Vec<Kind<'a>> = call.args.iter().map(|arg| self.visit(arg)).collect();
                result_of(&call.func_name, call.target.is_some(), &args)
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.visit(element);
                }
                Kind::Other
            }
            Expr::Struct(message) => {
                self.undeclared(&message.type_name);
                Kind::Other
            }
            Expr::Map(_) => Kind::Other,
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn function(&mut self, call: &CallExpr) {
        let name = call.func_name.as_str();
        let prefix = match call.target.as_deref() {
            Some(IdedExpr {
                expr: Expr::Ident(prefix),
                ..
            }) => Some(prefix.as_str()),
            Some(_) | None => None,
        };
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        if !is_operator && !cel::is_function(name, prefix) {
            self.undeclared(name);
        }
    }

    fn undeclared(&mut self, name: &str) {
        let problem = format!("undeclared reference to '{name}' (in container '')");
        self.problem_at(name, problem);
    }

    fn variable(&mut self, name: &str) -> Kind<'a> {
        if let Some((_, kind)) = self.variables.iter().rev().find(|(known, _)| known == name) {
            return *kind;
        }
        let Scope {
            node,
            is_root,
            optional_old_self,
        } = self.scope;
        match name {
            "self" => Kind::of(node, is_root),
            "oldSelf" if !optional_old_self => Kind::of(node, is_root),
            "oldSelf" => Kind::Unknown,
            // Type names and the accumulators of macros.
            "bool" | "bytes" | "double" | "duration" | "int" | "list" | "map" | "null_type" | "string"
            | "timestamp" | "type" | "uint" | "optional_type" => Kind::Unknown,
            name if name.starts_with('@') || name.starts_with("__") => Kind::Unknown,
            name => {
                self.undeclared(name);
                Kind::Unknown
            }
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Kind<'a> {
        let kind = self.visit(&select.operand);
        let selected = match kind {
            Kind::Schema { node, root } => self.field(node, root, &select.field),
            Kind::Unknown | Kind::Bool | Kind::Number | Kind::Text | Kind::Null | Kind::Other => {
                Kind::Unknown
            }
        };
        if select.test { Kind::Bool } else { selected }
    }

    fn field(&mut self, node: &'a Node, root: bool, field: &str) -> Kind<'a> {
        if node.int_or_string || node.types.is_empty() {
            return Kind::Unknown;
        }
        if node.types != Types::OBJECT {
            let text = format!("type '{}' does not support field selection", cel_type(node));
            self.problem_at(&format!(".{field}"), text);
            return Kind::Unknown;
        }
        if let Some((_, property)) = node
            .properties
            .iter()
            .find(|(name, _)| cel::escape(name) == field)
        {
            let own_metadata = (root || node.embedded) && field == "metadata";
            return if own_metadata {
                Kind::Unknown
            } else {
                Kind::of(property, false)
            };
        }
        match &node.additional {
            Additional::Schema(child) => return Kind::of(child, false),
            Additional::Any => return Kind::Unknown,
            Additional::Unset | Additional::Forbidden => {}
        }
        if (root || node.embedded) && ["apiVersion", "kind", "metadata"].contains(&field) {
            return Kind::Unknown;
        }
        self.problem_at(&format!(".{field}"), format!("undefined field '{field}'"));
        Kind::Unknown
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Kind<'a> {
        let range = self.visit(&comprehension.iter_range);
        let depth = self.variables.len();
        let element = match range {
            Kind::Schema { node, .. } => match (&node.items, &node.additional) {
                (Some(items), _) => Kind::of(items, false),
                (None, Additional::Schema(_) | Additional::Any) => Kind::Text,
                (None, Additional::Unset | Additional::Forbidden) => Kind::Unknown,
            },
            Kind::Unknown | Kind::Bool | Kind::Number | Kind::Text | Kind::Null | Kind::Other => {
                Kind::Unknown
            }
        };
        let first = if comprehension.iter_var2.is_some() {
            Kind::Unknown
        } else {
            element
        };
        self.variables.push((comprehension.iter_var.clone(), first));
        if let Some(second) = &comprehension.iter_var2 {
            self.variables.push((second.clone(), Kind::Unknown));
        }
        let start = self.visit(&comprehension.accu_init);
        self.variables.push((comprehension.accu_var.clone(), start));
        self.visit(&comprehension.loop_cond);
        self.visit(&comprehension.loop_step);
        let result = self.visit(&comprehension.result);
        self.variables.truncate(depth);
        result
    }

    /// Adds a problem at the first whole-word occurrence of `needle` in the source.
    fn problem_at(&mut self, needle: &str, text: String) {
        self.problems.push(Problem::at(self.source, needle, text));
    }
}

impl<'a> Kind<'a> {
    fn of(node: &'a Node, root: bool) -> Self {
        if node.int_or_string || node.format.is_some() || node.nullable {
            // Nullable fields may be compared with null, and formats change the type.
            return if node.types == Types::OBJECT {
                Kind::Schema { node, root }
            } else {
                Kind::Unknown
            };
        }
        match node.types {
            Types::BOOLEAN => Kind::Bool,
            Types::INTEGER | Types::NUMBER => Kind::Number,
            Types::STRING => Kind::Text,
            Types::OBJECT | Types::ARRAY => Kind::Schema { node, root },
            _ => Kind::Unknown,
        }
    }
}

/// Returns true if a call's target is a prefix of the function name, as in `optional.of(x)`.
fn is_function_namespace(target: &IdedExpr, function: &str) -> bool {
    let Expr::Ident(name) = &target.expr else {
        return false;
    };
    match name.as_str() {
        "optional" | "math" | "sets" | "base64" | "strings" | "lists" | "cel" | "quantity" | "ip"
        | "format" | "regex" | "semver" | "jsonpatch" => true,
        _ => function.is_empty(),
    }
}

fn cel_type(node: &Node) -> &'static str {
    match node.types {
        Types::ARRAY => "list",
        Types::STRING => "string",
        Types::INTEGER => "int",
        Types::NUMBER => "double",
        Types::BOOLEAN => "bool",
        _ => "dyn",
    }
}

fn result_of<'a>(function: &str, is_method: bool, args: &[Kind<'a>]) -> Kind<'a> {
    match function {
        "_&&_" | "_||_" | "!_" | "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" | "@in" | "_in_" => {
            Kind::Bool
        }
        "matches" | "startsWith" | "endsWith" | "contains" if is_method => Kind::Bool,
        "size" => Kind::Number,
        "string" if !is_method => Kind::Text,
        "_+_" => match args {
            [Kind::Text, _] | [_, Kind::Text] => Kind::Text,
            [Kind::Number, Kind::Number] => Kind::Number,
            _ => Kind::Unknown,
        },
        "_[_]" => match args {
            [Kind::Schema { node, .. }, _] => match (&node.items, &node.additional) {
                (Some(items), _) => Kind::of(items, false),
                (None, Additional::Schema(child)) => Kind::of(child, false),
                (None, Additional::Unset | Additional::Any | Additional::Forbidden) => Kind::Unknown,
            },
            _ => Kind::Unknown,
        },
        _ => Kind::Unknown,
    }
}

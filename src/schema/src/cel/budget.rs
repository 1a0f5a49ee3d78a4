//! Cost budget of the rules of an object.
//!
//! The `cel` crate has no evaluation limit. Therefore, the compiler wraps loops, and operations on
//! large values in loops, in calls that charge their cost in advance and fail once the budget is
//! spent. Costs depend only on values, so the outcome is deterministic.

use std::cell::Cell;

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
};

use super::macros::ACCUMULATOR;
use super::names::{AMONG, MEMBER, NEGATE, SELECT};
use super::parts::parts_mut;

/// Cost unit: about the time to copy a number, 30 ns. The budget is about one second.
type Ticks = u64;
const BUDGET: Ticks = 32_000_000;
/// Overhead of a loop iteration.
const TURN: Ticks = 16;
/// Cost of an expression node.
const NODE: Ticks = 4;
/// Cost of compiling a regular expression.
pub(super) const REGEX: Ticks = 2_000;
/// Cost of a check of permissions.
pub(super) const PERMISSION: Ticks = 1_120_000;
/// Budget of one expression of an admission policy.
const CALL: Ticks = BUDGET / 10;
/// Budget of the match conditions of an admission policy.
const CONDITIONS: Ticks = BUDGET / 4;
/// Minimum cost of a rule.
pub(super) const RULE: Ticks = 64;
/// Bytes of text that cost one tick to copy.
const TEXT_BYTES: u64 = 64;

/// Charges for a loop over the first argument. The second argument is the cost of an iteration.
const LOOP: &str = "@loop";
/// Charges for reading or copying the argument.
const READ: &str = "@read";
/// Charges for appending to a list in a loop, which copies the list several times.
const GROW: &str = "@grow";
/// Charges for comparing all pairs of items of the argument.
const PAIRS: &str = "@pairs";
/// Charges for the memory of a created text or byte string.
const MADE: &str = "@made";
/// Charges for the padding that a `format` template requests.
const TEMPLATE: &str = "@template";
/// Bytes of a created text or byte string per tick. Limits the memory of all rules to some hundred
/// megabytes.
const MADE_BYTES: u64 = 4;
/// Operators that copy their arguments before they run.
const COPIERS: [&str; 5] = [operators::ADD, operators::IN, AMONG, MEMBER, SELECT];
/// Functions that create a text or byte string, except those that charge by themselves.
const MAKERS: [&str; 12] = [
    "bytes",
    "charAt",
    "decode",
    "encode",
    "format",
    "lowerAscii",
    "quote",
    "reverse",
    "string",
    "substring",
    "trim",
    "upperAscii",
];

thread_local! {
    static LEFT: Cell<Ticks> = const { Cell::new(BUDGET) };
    /// Rest of the budget of the expression that is evaluated.
    static LEFT_OF_CALL: Cell<Ticks> = const { Cell::new(Ticks::MAX) };
}

/// Resets the budget. Must be called before the first rule of an object.
pub(super) fn refill() {
    LEFT.set(BUDGET);
}

/// Resets the budget for match conditions.
pub(super) fn refill_for_conditions() {
    LEFT.set(CONDITIONS);
}

/// Evaluates an expression with a budget of its own. Returns true if the expression spent it.
pub(super) fn of_call<T>(evaluate: impl FnOnce() -> T) -> (T, bool) {
    let outer = LEFT_OF_CALL.replace(CALL);
    let result = evaluate();
    let left = LEFT_OF_CALL.replace(outer);
    (result, left == 0)
}

pub(super) fn is_spent() -> bool {
    LEFT.get() == 0
}

/// Charges the budget of all expressions and of the expression that is evaluated. Fails once one of
/// them is spent.
pub(super) fn charge(ticks: Ticks) -> Result<(), ExecutionError> {
    let left = LEFT.get().saturating_sub(ticks);
    LEFT.set(left);
    let left_of_call = LEFT_OF_CALL.get().saturating_sub(ticks);
    LEFT_OF_CALL.set(left_of_call);
    if left == 0 || left_of_call == 0 {
        return Err(ExecutionError::function_error("budget", "out of cost budget"));
    }
    Ok(())
}

/// Returns the cost of copying a value.
pub(super) fn size(value: &Cel) -> Ticks {
    match value {
        Cel::List(items) => 1 + items.iter().map(size).sum::<Ticks>(),
        Cel::Map(map) => {
            let entries = map.map.iter();
            1 + entries.map(|(_, entry)| 4 + size(entry)).sum::<Ticks>()
        }
        Cel::String(text) => 1 + text.len() as u64 / TEXT_BYTES,
        Cel::Bytes(bytes) => 1 + bytes.len() as u64 / TEXT_BYTES,
        Cel::Bool(_)
        | Cel::Int(_)
        | Cel::UInt(_)
        | Cel::Float(_)
        | Cel::Duration(_)
        | Cel::Timestamp(_)
        | Cel::Function(..)
        | Cel::Opaque(_)
        | Cel::Null => 1,
    }
}

/// Registers the charging functions. They do not use `This`, because it hides errors of arguments.
pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(LOOP, charge_loop);
    context.add_function(READ, charge_read);
    context.add_function(GROW, charge_grow);
    context.add_function(PAIRS, charge_pairs);
    context.add_function(MADE, charge_made);
    context.add_function(TEMPLATE, charge_template);
}

fn charge_loop(range: Cel, turn: i64) -> ResolveResult {
    let turn = TURN + turn.unsigned_abs();
    charge(length(&range).saturating_mul(turn).saturating_add(size(&range)))?;
    Ok(range)
}

fn charge_grow(list: Cel) -> ResolveResult {
    charge(3 * size(&list))?;
    Ok(list)
}

fn charge_read(value: Cel) -> ResolveResult {
    charge(size(&value))?;
    Ok(value)
}

fn charge_pairs(value: Cel) -> ResolveResult {
    charge(length(&value).saturating_mul(size(&value)))?;
    Ok(value)
}

fn charge_made(value: Cel) -> ResolveResult {
    if let Cel::String(text) = &value {
        charge_text(text.len())?;
    } else if let Cel::Bytes(bytes) = &value {
        charge_text(bytes.len())?;
    }
    Ok(value)
}

/// Charges for creating a text of `bytes` bytes.
pub(super) fn charge_text(bytes: usize) -> Result<(), ExecutionError> {
    charge(1 + bytes as u64 / MADE_BYTES)
}

/// Charges for the precision in a template: `%.9f` produces nine digits for any number.
fn charge_template(template: Cel) -> ResolveResult {
    if let Cel::String(text) = &template {
        for asked in text.split("%.").skip(1) {
            let digits = asked.find(|c: char| !c.is_ascii_digit()).unwrap_or(asked.len());
            charge_text(
                asked[..digits]
                    .parse()
                    .unwrap_or(if digits == 0 { 0 } else { usize::MAX }),
            )?;
        }
    }
    Ok(template)
}

fn length(value: &Cel) -> u64 {
    let items = if let Cel::List(items) = value {
        items.len()
    } else if let Cel::Map(map) = value {
        map.map.len()
    } else {
        1
    };
    items as u64
}

/// Adds the charges to an expression with these variables.
pub(super) fn metered(mut expr: IdedExpr, variables: &[&str]) -> IdedExpr {
    let names = variables.iter().map(|name| (*name).to_owned()).collect();
    Meter { names, loops: 0 }.visit(&mut expr);
    expr
}

struct Meter {
    /// Variables in scope. Other identifiers are prefixes of function names.
    names: Vec<String>,
    /// Nesting depth of loops.
    loops: usize,
}

impl Meter {
    fn visit(&mut self, expr: &mut IdedExpr) {
        if let Expr::Comprehension(comprehension) = &mut expr.expr {
            return self.visit_loop(comprehension);
        }
        for part in parts_mut(&mut expr.expr) {
            self.visit(part);
        }
        if let Expr::Select(select) = &expr.expr {
            let is_copy = !select.test && matches!(select.operand.expr, Expr::Ident(_));
            if is_copy && self.loops > 0 {
                wrap(expr, READ, Vec::new());
            }
        } else if let Expr::Call(call) = &mut expr.expr {
            self.charge_call(call);
            if call.func_name == operators::NEGATE {
                // The crate's operator overflows.
                NEGATE.clone_into(&mut call.func_name);
            }
            if makes_text(call) {
                wrap(expr, MADE, Vec::new());
            }
        }
    }

    fn charge_call(&self, call: &mut CallExpr) {
        let mut parts: Vec<&mut IdedExpr> = call.target.as_deref_mut().into_iter().collect();
        parts.extend(&mut call.args);
        if call.func_name == "format"
            && let Some(template) = parts.first_mut()
        {
            wrap(template, TEMPLATE, Vec::new());
        }
        let is_set = parts.first().is_some_and(|first| is_variable(first, "sets"));
        let charge = match call.func_name.as_str() {
            "distinct" => PAIRS,
            _ if is_set => PAIRS,
            name if self.loops > 0 && copies(name) => READ,
            _ => return,
        };
        for part in parts {
            if is_variable(part, ACCUMULATOR) {
                wrap(part, GROW, Vec::new());
                continue;
            }
            let is_worth_it = match &part.expr {
                Expr::Ident(name) => self.names.contains(name),
                Expr::Call(call) => call.func_name != READ,
                Expr::Unspecified | Expr::Literal(_) => false,
                Expr::Comprehension(_) | Expr::List(_) | Expr::Map(_) | Expr::Select(_) | Expr::Struct(_) => {
                    true
                }
            };
            if is_worth_it {
                wrap(part, charge, Vec::new());
            }
        }
    }

    fn visit_loop(&mut self, comprehension: &mut ComprehensionExpr) {
        let turn = price(&comprehension.loop_step) + price(&comprehension.loop_cond);
        self.visit(&mut comprehension.iter_range);
        self.visit(&mut comprehension.accu_init);
        let outer = self.names.len();
        if comprehension.accu_var != ACCUMULATOR {
            self.names.push(comprehension.accu_var.clone());
            self.visit(&mut comprehension.result);
        }
        self.names.push(comprehension.iter_var.clone());
        self.loops += 1;
        self.visit(&mut comprehension.loop_step);
        self.loops -= 1;
        self.names.truncate(outer);
        let turn = i64::try_from(turn).unwrap_or(i64::MAX);
        let turn = LiteralValue::Int(turn.into());
        wrap(&mut comprehension.iter_range, LOOP, vec![turn]);
    }
}

fn copies(name: &str) -> bool {
    COPIERS.contains(&name) || name.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Returns true if a call may create a text or byte string.
fn makes_text(call: &CallExpr) -> bool {
    match call.func_name.as_str() {
        operators::ADD => !call.args.iter().any(is_no_text),
        name => MAKERS.contains(&name),
    }
}

/// Returns true if the expression is certainly a list or a number.
fn is_no_text(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::List(_) => true,
        Expr::Literal(literal) => !matches!(literal, LiteralValue::String(_) | LiteralValue::Bytes(_)),
        Expr::Call(call) if call.func_name == READ => call.args.iter().any(is_no_text),
        Expr::Call(call) => call.func_name == GROW,
        Expr::Unspecified
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::Map(_)
        | Expr::Select(_)
        | Expr::Struct(_) => false,
    }
}

fn is_variable(expr: &IdedExpr, name: &str) -> bool {
    matches!(&expr.expr, Expr::Ident(own) if own == name)
}

fn wrap(expr: &mut IdedExpr, function: &str, more: Vec<LiteralValue>) {
    let id = expr.id;
    let inner = std::mem::take(expr);
    let more = more.into_iter().map(|value| IdedExpr {
        id,
        expr: Expr::Literal(value),
    });
    let args = std::iter::once(inner).chain(more).collect();
    let call = CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    };
    *expr = IdedExpr {
        id,
        expr: Expr::Call(call),
    };
}

/// Returns the cost of one evaluation, without costs that are charged at run time.
fn price(expr: &IdedExpr) -> Ticks {
    let all = |parts: &[IdedExpr]| parts.iter().map(price).sum::<Ticks>();
    NODE + match &expr.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => 0,
        Expr::Select(select) => price(&select.operand),
        Expr::Call(call) => {
            let own = match call.func_name.as_str() {
                "find" | "findAll" => REGEX,
                _ => 0,
            };
            own + call.target.as_deref().map_or(0, price) + all(&call.args)
        }
        Expr::List(list) => all(&list.elements),
        Expr::Map(map) => NODE * map.entries.len() as u64,
        Expr::Struct(fields) => NODE * fields.entries.len() as u64,
        Expr::Comprehension(comprehension) => price(&comprehension.iter_range) + price(&comprehension.result),
    }
}

//! Types of the operands of operators and functions.

use kube_cel::cel::common::ast::operators;

use crate::types::{BOOL, BYTES, DOUBLE, INT, NULL, STRING, Type, UINT};

/// Operators whose operands are checked.
const OPERATORS: [&str; 16] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::IN,
    operators::LOGICAL_NOT,
    operators::NEGATE,
];

/// Functions of strings with their number of arguments, which are strings.
const STRING_FUNCTIONS: [(&str, usize); 7] = [
    ("contains", 1),
    ("endsWith", 1),
    ("lowerAscii", 0),
    ("matches", 1),
    ("startsWith", 1),
    ("trim", 0),
    ("upperAscii", 0),
];

/// Returns true for operators whose operands are checked.
pub(crate) fn is_operator(function: &str) -> bool {
    OPERATORS.contains(&function)
}

/// Returns the error of operands that are known to have wrong types, in the words of kube-apiserver.
pub(crate) fn operator_error(operator: &str, operands: &[Type]) -> Option<String> {
    let is_wrong = match operands {
        [operand] if is_basic(operand) => match operator {
            operators::LOGICAL_NOT => *operand != BOOL,
            _ => ![INT, DOUBLE].contains(operand),
        },
        [item, Type::List(of)] if operator == operators::IN => differ(item, of),
        [item, Type::Map(key, _)] if operator == operators::IN => differ(item, key),
        [_, operand] if operator == operators::IN => is_basic(operand),
        [left, right] => are_wrong(operator, left, right),
        _ => false,
    };
    is_wrong.then(|| error(operator, None, operands))
}

/// Returns true for operators whose operands are bools.
pub(crate) fn is_logical(operator: &str) -> bool {
    [operators::LOGICAL_AND, operators::LOGICAL_OR].contains(&operator)
}

/// Returns the error of an operand that is known not to be a bool.
pub(crate) fn logical_error(operand: &Type) -> Option<String> {
    let is_wrong = is_basic(operand) && *operand != BOOL;
    is_wrong.then(|| format!("expected type 'bool' but found '{}'", shown(operand)))
}

/// Returns the error of a call whose target or arguments are known not to be strings.
pub(crate) fn call_error(function: &str, target: Option<&Type>, args: &[Type]) -> Option<String> {
    let is_no_string = |of: &Type| is_basic(of) && *of != STRING;
    let target = target?;
    let is_string_function = STRING_FUNCTIONS.contains(&(function, args.len()));
    let is_wrong = is_string_function && std::iter::once(target).chain(args).any(is_no_string);
    is_wrong.then(|| error(function, Some(target), args))
}

/// Returns the error of a call for which a function has no overload.
pub(crate) fn error(function: &str, target: Option<&Type>, args: &[Type]) -> String {
    let args: Vec<String> = args.iter().map(shown).collect();
    let args = args.join(", ");
    let applied = match target {
        Some(target) => format!("{}.({args})", shown(target)),
        None => format!("({args})"),
    };
    format!("found no matching overload for '{function}' applied to '{applied}'")
}

fn shown(of: &Type) -> String {
    if *of == NULL {
        return "null".to_owned();
    }
    of.to_string()
}

/// Returns true for types without parameters whose operators are checked.
fn is_basic(of: &Type) -> bool {
    [BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL].contains(of)
}

fn is_structure(of: &Type) -> bool {
    matches!(of, Type::List(_) | Type::Map(..) | Type::Record(_))
}

fn is_number(of: &Type) -> bool {
    [INT, UINT, DOUBLE].contains(of)
}

fn differ(one: &Type, other: &Type) -> bool {
    is_basic(one) && is_basic(other) && one != other
}

fn are_wrong(operator: &str, left: &Type, right: &Type) -> bool {
    let is_equality = [operators::EQUALS, operators::NOT_EQUALS].contains(&operator);
    let is_no_structure = |of: &Type| is_basic(of) && *of != NULL;
    if is_equality
        && (is_structure(left) && is_no_structure(right) || is_no_structure(left) && is_structure(right))
    {
        return true;
    }
    if !is_basic(left) || !is_basic(right) {
        return false;
    }
    let are_same = left == right;
    match operator {
        operators::EQUALS | operators::NOT_EQUALS => !are_same,
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            let are_numbers = is_number(left) && is_number(right);
            !(are_numbers || (are_same && *left != NULL))
        }
        operators::ADD => !are_same || [BOOL, NULL].contains(left),
        operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE => !are_same || !is_number(left),
        operators::MODULO => !are_same || ![INT, UINT].contains(left),
        _ => false,
    }
}

//! Lists that are sets or maps by their schema: `==` and `!=` ignore the order of their items, `+` merges. Values know
//! nothing of their schemas when they are evaluated, so rules are given calls that do this when they are compiled.

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{CallExpr, ComprehensionExpr, Expr, ListExpr, LiteralValue, operators},
    extractors::This,
    objects::Key,
};

use super::parts::parts_mut;
use super::{budget, escape};
use crate::schema::node::{ListType, Node};

/// Whether two lists have the same items.
const SAME: &str = "@same";
/// The items of the first list, and of the second what the first has not. Of two with the same keys it is the second's, in the
/// place of the first's.
const MERGE: &str = "@merge";

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(SAME, same);
    context.add_function(MERGE, merge);
}

/// The expression of a rule of this node, its operators by the types of their left operands.
pub(super) fn typed(mut expr: IdedExpr, node: &Node) -> IdedExpr {
    let variables = ["self", "oldSelf"].map(|name| (name.to_owned(), Some(node)));
    let mut typing = Typing {
        variables: variables.into(),
    };
    typing.visit(&mut expr);
    expr
}

struct Typing<'n> {
    /// In scope, the innermost last; what is no value of the schema has no node.
    variables: Vec<(String, Option<&'n Node>)>,
}

impl<'n> Typing<'n> {
    fn visit(&mut self, expr: &mut IdedExpr) {
        if let Expr::Comprehension(comprehension) = &mut expr.expr {
            return self.visit_loop(comprehension);
        }
        for part in parts_mut(&mut expr.expr) {
            self.visit(part);
        }
        self.replace(expr);
    }

    fn visit_loop(&mut self, comprehension: &mut ComprehensionExpr) {
        self.visit(&mut comprehension.iter_range);
        self.visit(&mut comprehension.accu_init);
        let list = self.node_of(&comprehension.iter_range);
        let outer = self.variables.len();
        let item = list.and_then(|list| list.items.as_deref());
        self.variables.push((comprehension.iter_var.clone(), item));
        self.variables.push((comprehension.accu_var.clone(), None));
        self.visit(&mut comprehension.loop_cond);
        self.visit(&mut comprehension.loop_step);
        self.visit(&mut comprehension.result);
        self.variables.truncate(outer);
    }

    /// Makes an operator on a set or a map the call that knows it.
    fn replace(&self, expr: &mut IdedExpr) {
        let id = expr.id;
        let Expr::Call(call) = &mut expr.expr else {
            return;
        };
        let function = match call.func_name.as_str() {
            operators::EQUALS | operators::NOT_EQUALS => SAME,
            operators::ADD => MERGE,
            _ => return,
        };
        let left = call.args.first().and_then(|left| self.node_of(left));
        let Some(keys) = left.and_then(keys) else {
            return;
        };
        let negated = call.func_name == operators::NOT_EQUALS;
        function.clone_into(&mut call.func_name);
        let literal = |key: String| IdedExpr {
            id,
            expr: Expr::Literal(LiteralValue::String(key.as_str().into())),
        };
        let elements = keys.into_iter().map(literal).collect();
        call.args.push(IdedExpr {
            id,
            expr: Expr::List(ListExpr {
                elements,
                ..ListExpr::default()
            }),
        });
        if negated {
            let same = std::mem::take(expr);
            *expr = IdedExpr {
                id,
                expr: Expr::Call(CallExpr {
                    func_name: operators::LOGICAL_NOT.to_owned(),
                    target: None,
                    args: vec![same],
                }),
            };
        }
    }

    /// The schema of an expression's value, where it is a part of the object.
    fn node_of(&self, expr: &IdedExpr) -> Option<&'n Node> {
        match &expr.expr {
            Expr::Ident(name) => {
                let mut inner_first = self.variables.iter().rev();
                inner_first.find(|(known, _)| known == name)?.1
            }
            Expr::Select(select) if !select.test => {
                let object = self.node_of(&select.operand)?;
                let mut named = object.properties.iter();
                let named = named.find(|(name, _)| escape(name) == select.field);
                named.map(|(_, node)| node).or(object.additional_schema())
            }
            Expr::Call(call) => match (call.func_name.as_str(), &call.target) {
                (operators::ADD | MERGE, None) => self.node_of(call.args.first()?),
                (operators::INDEX, None) => {
                    let whole = self.node_of(call.args.first()?)?;
                    whole.items.as_deref().or(whole.additional_schema())
                }
                ("value", Some(optional)) => self.node_of(optional),
                (_, _) => None,
            },
            Expr::Unspecified
            | Expr::Literal(_)
            | Expr::Select(_)
            | Expr::List(_)
            | Expr::Map(_)
            | Expr::Struct(_)
            | Expr::Comprehension(_) => None,
        }
    }
}

/// By which fields items are told apart: none of a set, whose items are. `None` for other nodes.
fn keys(node: &Node) -> Option<Vec<String>> {
    match &node.list_type {
        ListType::Atomic => None,
        ListType::Set => Some(Vec::new()),
        ListType::Map(keys) => Some(keys.iter().map(|key| escape(key)).collect()),
    }
}

fn same(This(left): This<Cel>, right: Cel, keys: Cel) -> ResolveResult {
    let (Cel::List(left), Cel::List(right)) = (&left, &right) else {
        return Ok(Cel::Bool(left == right));
    };
    let keys = Keys::of(&keys);
    keys.charge(left, right)?;
    let is_in_right = |item| keys.place(item, right).is_some_and(|place| right[place] == *item);
    let is_same = left.len() == right.len() && (left == right || left.iter().all(is_in_right));
    Ok(Cel::Bool(is_same))
}

fn merge(This(left): This<Cel>, right: Cel, keys: Cel) -> ResolveResult {
    let (Cel::List(left), Cel::List(right)) = (&left, &right) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let keys = Keys::of(&keys);
    keys.charge(left, right)?;
    let mut merged = left.to_vec();
    for item in right.iter() {
        match keys.place(item, left) {
            Some(place) => merged[place] = item.clone(),
            None => merged.push(item.clone()),
        }
    }
    Ok(Cel::List(Arc::new(merged)))
}

/// What tells items apart.
struct Keys(Vec<Key>);

impl Keys {
    fn of(keys: &Cel) -> Self {
        let Cel::List(keys) = keys else {
            return Self(Vec::new());
        };
        let key = |key: &Cel| {
            let Cel::String(key) = key else {
                return None;
            };
            Some(Key::String(Arc::clone(key)))
        };
        Self(keys.iter().filter_map(key).collect())
    }

    /// Each item is looked for among all others, by its keys or as a whole, and all may be copied.
    fn charge(&self, left: &[Cel], right: &[Cel]) -> Result<(), ExecutionError> {
        let sizes = |items: &[Cel]| items.iter().map(budget::size).sum::<u64>();
        let pair = match self.0.len() as u64 {
            0 => sizes(right),
            keys => keys * right.len() as u64,
        };
        let pairs = (left.len() as u64).saturating_mul(pair);
        budget::charge(pairs.saturating_add(sizes(left)).saturating_add(sizes(right)))
    }

    fn place(&self, item: &Cel, items: &[Cel]) -> Option<usize> {
        items.iter().position(|other| self.are_equal(item, other))
    }

    fn are_equal(&self, one: &Cel, other: &Cel) -> bool {
        match (one, other) {
            (Cel::Map(one), Cel::Map(other)) if !self.0.is_empty() => {
                self.0.iter().all(|key| one.map.get(key) == other.map.get(key))
            }
            (one, other) => one == other,
        }
    }
}

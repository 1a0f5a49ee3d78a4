//! Operators on lists of type `set` or `map`: `==`, `!=` and `in` ignore the order of items, and
//! `+` merges. CEL values do not carry their schemas, so the compiler replaces such operators by
//! calls that carry the shape. It also replaces selections on optional values (`a.?b.c`).

use std::sync::Arc;

use kube_cel::cel::{
    IdedExpr, Value as Cel,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
};

use super::{
    checker::type_name,
    escape,
    macros::SORT_BY_KEYS,
    names::{AMONG, MEMBER, SELECT},
    parts::parts_mut,
    shape::{MERGE, SAME, Shape},
};
use crate::format::Format;
use crate::node::{ListType, Node};
use crate::types::Types as NodeTypes;

/// Shapes of a rule's calls, passed as variables.
#[derive(Debug, Default)]
pub(super) struct Shapes(Vec<(String, Arc<Shape>)>);

impl Shapes {
    pub(super) fn into_variables(self) -> Vec<(String, Cel)> {
        let variables = self.0.into_iter();
        variables
            .map(|(name, shape)| (name, Cel::Opaque(shape)))
            .collect()
    }

    /// Adds a shape and returns the name of its variable.
    fn add(&mut self, shape: Arc<Shape>) -> String {
        if let Some((name, _)) = self.0.iter().find(|(_, known)| *known == shape) {
            return name.clone();
        }
        let name = format!("@shape{}", self.0.len());
        self.0.push((name.clone(), shape));
        name
    }
}

/// Replaces the operators of a rule at this node according to the types of their operands.
pub(super) fn typed(mut expr: IdedExpr, node: &Node, shapes: &mut Shapes) -> IdedExpr {
    let variables = ["self", "oldSelf"].map(|name| (name.to_owned(), Type::Part(node)));
    let mut typing = Typing {
        types: Types {
            variables: variables.into(),
        },
        shapes,
    };
    typing.visit(&mut expr);
    expr
}

/// Inferred type of a value. An optional has the type of its content.
#[derive(Debug, Clone)]
enum Type<'n> {
    Unknown,
    /// Part of the object.
    Part(&'n Node),
    /// List that the rule builds.
    ListOf(Box<Type<'n>>),
    /// Value that the rule computes.
    Scalar(Scalar),
}

/// Type of the sum of a list other than `int`.
#[derive(Debug, Clone, Copy)]
enum Scalar {
    Double,
    Uint,
    Duration,
}

impl Scalar {
    /// Returns the sum of an empty list.
    fn zero(self) -> Expr {
        match self {
            Self::Double => Expr::Literal(LiteralValue::Double(0.0.into())),
            Self::Uint => Expr::Literal(LiteralValue::UInt(0.into())),
            Self::Duration => {
                let zero = IdedExpr {
                    expr: Expr::Literal(LiteralValue::String("0s".into())),
                    ..IdedExpr::default()
                };
                call("duration", vec![zero])
            }
        }
    }
}

impl<'n> Type<'n> {
    fn of_part(node: Option<&'n Node>) -> Self {
        node.map_or(Self::Unknown, Self::Part)
    }

    /// Returns this type, or the other if this one is unknown. A type with a part of the object has priority: only its
    /// schema decides how values are compared.
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self.has_part() {
            return self;
        }
        let other = other();
        match self {
            Self::Unknown => other,
            Self::Part(_) | Self::ListOf(_) | Self::Scalar(_) if other.has_part() => other,
            Self::Part(_) | Self::ListOf(_) | Self::Scalar(_) => self,
        }
    }

    fn has_part(&self) -> bool {
        match self {
            Self::Unknown | Self::Scalar(_) => false,
            Self::Part(_) => true,
            Self::ListOf(item) => item.has_part(),
        }
    }

    /// Returns the type of a list with items of this type.
    fn listed(self) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::Part(_) | Self::ListOf(_) | Self::Scalar(_) => Self::ListOf(Box::new(self)),
        }
    }

    /// Returns the type of a list's items.
    fn item(&self) -> Self {
        match self {
            Self::Unknown | Self::Scalar(_) => Self::Unknown,
            Self::Part(node) => Self::of_part(node.items.as_deref()),
            Self::ListOf(item) => (**item).clone(),
        }
    }

    /// Returns the type of the items of a list or the values of a map.
    fn member(&self) -> Self {
        self.item().or(|| match self {
            Self::Part(node) => Self::of_part(node.additional_schema()),
            Self::Unknown | Self::ListOf(_) | Self::Scalar(_) => Self::Unknown,
        })
    }

    fn field(&self, name: &str) -> Self {
        let Self::Part(object) = self else {
            return Self::Unknown;
        };
        let mut named = object.properties();
        let named = named.find(|(own, _)| escape(own) == name);
        Self::of_part(named.map(|(_, node)| node).or(object.additional_schema()))
    }

    fn shape(&self) -> Option<Arc<Shape>> {
        match self {
            Self::Unknown | Self::Scalar(_) => None,
            Self::Part(node) => Shape::of(node),
            Self::ListOf(item) => Some(Shape::list_of(item.shape()?)),
        }
    }

    /// Returns true for values without fields.
    fn is_simple(&self) -> bool {
        match self {
            Self::Part(node) => {
                ![NodeTypes::OBJECT, NodeTypes::default()].contains(&node.types)
                    && node.properties().next().is_none()
            }
            Self::Unknown | Self::ListOf(_) | Self::Scalar(_) => false,
        }
    }

    fn scalar(&self) -> Option<Scalar> {
        match self {
            Self::Scalar(scalar) => Some(*scalar),
            Self::Part(node) if node.types == NodeTypes::NUMBER => Some(Scalar::Double),
            Self::Part(node) if node.format == Some(Format::Duration) => Some(Scalar::Duration),
            Self::Unknown | Self::Part(_) | Self::ListOf(_) => None,
        }
    }

    /// Returns true for lists of type `set` or `map`, which `+` merges.
    fn merges(&self) -> bool {
        match self {
            Self::Part(node) => node.list_type != ListType::Atomic,
            Self::Unknown | Self::ListOf(_) | Self::Scalar(_) => false,
        }
    }
}

struct Typing<'n, 's> {
    types: Types<'n>,
    shapes: &'s mut Shapes,
}

impl Typing<'_, '_> {
    fn visit(&mut self, expr: &mut IdedExpr) {
        if let Expr::Comprehension(comprehension) = &mut expr.expr {
            return self.visit_loop(comprehension);
        }
        for part in parts_mut(&mut expr.expr) {
            self.visit(part);
        }
        if let Expr::Select(select) = &expr.expr {
            if is_optional(&select.operand) {
                choose(expr);
            } else if !select.test && self.types.of(&select.operand).is_simple() {
                let select = selection(expr);
                expr.expr = call(MEMBER, select);
            } else if let Some(name) = type_name(expr) {
                expr.expr = Expr::Ident(name);
            }
        } else {
            self.replace(expr);
        }
    }

    fn visit_loop(&mut self, comprehension: &mut ComprehensionExpr) {
        self.visit(&mut comprehension.iter_range);
        self.visit(&mut comprehension.accu_init);
        let inner = self.types.inside(comprehension);
        let outer = std::mem::replace(&mut self.types, inner);
        self.visit(&mut comprehension.loop_cond);
        self.visit(&mut comprehension.loop_step);
        self.visit(&mut comprehension.result);
        self.types = outer;
    }

    /// Returns true if the type of the value is known and not a number of any type.
    fn has_one_type(&self, expr: &IdedExpr) -> bool {
        if let Expr::Literal(literal) = &expr.expr {
            return !matches!(
                literal,
                LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)
            );
        }
        let numbers = [NodeTypes::INTEGER, NodeTypes::NUMBER];
        matches!(self.types.of(expr), Type::Part(node) if !node.types.is_empty()
            && !numbers.into_iter().any(|number| node.types.intersects(number)))
    }

    /// Replaces an operator on a set or map, or on a value that contains one, by a call.
    fn replace(&mut self, expr: &mut IdedExpr) {
        let id = expr.id;
        let Expr::Call(call) = &mut expr.expr else {
            return;
        };
        if call.func_name == operators::OPT_SELECT {
            SELECT.clone_into(&mut call.func_name);
        }
        if let ("sum", Some(list), []) = (call.func_name.as_str(), &call.target, &call.args[..]) {
            let zero = self.types.of(list).item().scalar().map(Scalar::zero);
            call.args.extend(zero.map(|expr| IdedExpr { id, expr }));
            return;
        }
        let [left, right] = &call.args[..] else { return };
        let (function, shape) = match call.func_name.as_str() {
            operators::EQUALS | operators::NOT_EQUALS => {
                // The crate's `==` never treats two optional values or numbers of different types as equal.
                let is_plain = [left, right].into_iter().any(is_optional)
                    || ![left, right]
                        .into_iter()
                        .any(|operand| self.has_one_type(operand));
                (SAME, self.types.of(left).shape().or(is_plain.then(Shape::plain)))
            }
            operators::ADD => {
                let left = self.types.of(left);
                (MERGE, left.shape().filter(|_| left.merges()))
            }
            // The schema of the items decides the comparison; if it is unknown, the schema of the
            // value.
            operators::IN => {
                let item = self.types.of(right).item();
                let is_plain = !self.has_one_type(left) && !are_texts(right);
                let shape = item.or(|| self.types.of(left)).shape();
                (AMONG, shape.or(is_plain.then(Shape::plain)))
            }
            _ => return,
        };
        let Some(shape) = shape else { return };
        let negated = call.func_name == operators::NOT_EQUALS;
        function.clone_into(&mut call.func_name);
        call.args.push(IdedExpr {
            id,
            expr: Expr::Ident(self.shapes.add(shape)),
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
}

/// Returns true for a list of texts.
fn are_texts(expr: &IdedExpr) -> bool {
    let Expr::List(list) = &expr.expr else {
        return false;
    };
    let is_text = |item: &IdedExpr| matches!(&item.expr, Expr::Literal(LiteralValue::String(_)));
    list.elements.iter().all(is_text)
}

/// Returns true if the form of the expression shows that its value is optional.
fn is_optional(expr: &IdedExpr) -> bool {
    let Expr::Call(call) = &expr.expr else {
        return false;
    };
    let of_type = |target: &IdedExpr| matches!(&target.expr, Expr::Ident(name) if name == "optional");
    match (call.func_name.as_str(), call.target.as_deref()) {
        (SELECT | operators::OPT_INDEX, None) => true,
        (operators::INDEX, None) => call.args.first().is_some_and(is_optional),
        ("none" | "of" | "ofNonZeroValue", Some(target)) => of_type(target),
        (_, _) => false,
    }
}

/// Replaces a field selection on an optional object, or the test of a field, by a call.
fn choose(expr: &mut IdedExpr) {
    let id = expr.id;
    let is_test = matches!(&expr.expr, Expr::Select(select) if select.test);
    let chosen = call(SELECT, selection(expr));
    expr.expr = match is_test {
        false => chosen,
        true => Expr::Call(CallExpr {
            func_name: "hasValue".to_owned(),
            target: Some(Box::new(IdedExpr { id, expr: chosen })),
            args: Vec::new(),
        }),
    };
}

/// Takes the object and the name of the field from a selection.
fn selection(expr: &mut IdedExpr) -> Vec<IdedExpr> {
    let id = expr.id;
    let Expr::Select(select) = &mut expr.expr else {
        return Vec::new();
    };
    let field = LiteralValue::String(select.field.as_str().into());
    let field = IdedExpr {
        id,
        expr: Expr::Literal(field),
    };
    vec![std::mem::take(&mut *select.operand), field]
}

fn call(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    })
}

/// Variables in scope, innermost last.
#[derive(Debug, Clone)]
struct Types<'n> {
    variables: Vec<(String, Type<'n>)>,
}

impl<'n> Types<'n> {
    /// Returns the variables inside a loop.
    fn inside(&self, comprehension: &ComprehensionExpr) -> Self {
        let range = self.of(&comprehension.iter_range);
        let mut inner = self.clone();
        match &comprehension.iter_var2 {
            Some(second) => {
                inner
                    .variables
                    .push((comprehension.iter_var.clone(), Type::Unknown));
                inner.variables.push((second.clone(), range.member()));
            }
            None => inner
                .variables
                .push((comprehension.iter_var.clone(), range.item())),
        }
        let accumulated = self.of(&comprehension.accu_init);
        inner
            .variables
            .push((comprehension.accu_var.clone(), accumulated));
        inner
    }

    fn of(&self, expr: &IdedExpr) -> Type<'n> {
        match &expr.expr {
            Expr::Ident(name) => {
                let mut inner_first = self.variables.iter().rev();
                let known = inner_first.find(|(known, _)| known == name);
                known.map_or(Type::Unknown, |(_, known)| known.clone())
            }
            Expr::Select(select) if !select.test => self.of(&select.operand).field(&select.field),
            Expr::Call(call) => self.of_call(call),
            Expr::List(list) => self.first(&list.elements).listed(),
            Expr::Comprehension(comprehension) => {
                let inner = self.inside(comprehension);
                let is_built = matches!(&comprehension.result.expr, Expr::Ident(name) if *name == comprehension.accu_var);
                match is_built {
                    true => inner.collected(&comprehension.loop_step),
                    false => inner.of(&comprehension.result),
                }
            }
            Expr::Literal(LiteralValue::Double(_)) => Type::Scalar(Scalar::Double),
            Expr::Literal(LiteralValue::UInt(_)) => Type::Scalar(Scalar::Uint),
            Expr::Unspecified | Expr::Literal(_) | Expr::Select(_) | Expr::Map(_) | Expr::Struct(_) => {
                Type::Unknown
            }
        }
    }

    fn of_call(&self, call: &CallExpr) -> Type<'n> {
        match (call.func_name.as_str(), call.target.as_deref(), &call.args[..]) {
            (operators::ADD | MERGE, None, [left, right, ..]) => self.of(left).or(|| match self.of(right) {
                // The result of `+` with an unknown list is an ordinary list.
                right if right.merges() => right.item().listed(),
                right => right,
            }),
            (operators::INDEX | operators::OPT_INDEX, None, [whole, _]) => self.of(whole).member(),
            (SELECT, None, [object, field]) => {
                if let Expr::Literal(LiteralValue::String(field)) = &field.expr {
                    self.of(object).field(field.inner())
                } else {
                    Type::Unknown
                }
            }
            (operators::CONDITIONAL, None, [_, one, other]) => self.of(one).or(|| self.of(other)),
            (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE, None, [left, right]) => {
                let scalar = self.of(left).scalar().or_else(|| self.of(right).scalar());
                scalar.map_or(Type::Unknown, Type::Scalar)
            }
            (operators::NEGATE, None, [value]) => self.of(value),
            ("double", None, [_]) => Type::Scalar(Scalar::Double),
            ("uint", None, [_]) => Type::Scalar(Scalar::Uint),
            ("duration", None, [_]) => Type::Scalar(Scalar::Duration),
            ("dyn", None, [value]) => self.of(value),
            ("of" | "ofNonZeroValue", Some(_), [value]) => self.of(value),
            ("value" | "or" | "orValue", Some(optional), others) => {
                self.of(optional).or(|| self.first(others))
            }
            ("first" | "last", Some(list), []) => self.of(list).item(),
            ("distinct" | "reverse" | "slice" | "sort" | SORT_BY_KEYS, Some(list), _) => {
                self.of(list).item().listed()
            }
            (_, _, _) => Type::Unknown,
        }
    }

    fn first(&self, exprs: &[IdedExpr]) -> Type<'n> {
        let unknown = Type::Unknown;
        exprs
            .iter()
            .fold(unknown, |known, expr| known.or(|| self.of(expr)))
    }

    /// Returns the list type that the macros `map` and `filter` build.
    fn collected(&self, step: &IdedExpr) -> Type<'n> {
        let Expr::Call(call) = &step.expr else {
            return Type::Unknown;
        };
        match (call.func_name.as_str(), &call.args[..]) {
            (operators::ADD, [_, added]) => self.of(added),
            (operators::CONDITIONAL, [_, one, other]) => self.collected(one).or(|| self.collected(other)),
            (_, _) => Type::Unknown,
        }
    }
}

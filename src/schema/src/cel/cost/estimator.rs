//! Estimated cost of the parts of an expression, except for the cost of functions.

use std::collections::HashMap;

use kube_cel::cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, SelectExpr,
    },
};

use super::{path::Path, size::Size};
use crate::cel::checker::{Decl, ITEMS, KEYS, Type, Typing, VALUES, type_name};
use crate::cel::macros::ACCUMULATOR;

/// Member of a path for the indexes of a list, which have no declaration.
const INDEXES: &str = "@indices";

/// Cost of reading a variable or field.
const READ: u64 = 1;
/// Cost of creating a list, map or message.
pub(super) const LIST: u64 = 10;
const MAP: u64 = 30;
const MESSAGE: u64 = 40;

/// Sizes of the keys and values of a list or map that an expression builds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members {
    is_list: bool,
    keys: Size,
    pub(super) values: Size,
}

impl Members {
    pub(super) fn union(self, other: Self) -> Self {
        Self {
            is_list: self.is_list,
            keys: self.keys.union(other.keys),
            values: self.values.union(other.values),
        }
    }
}

/// Variable of a macro.
#[derive(Debug)]
struct Local {
    name: String,
    path: Path,
    size: Option<Size>,
    members: Option<Members>,
}

/// Argument or target of a call.
#[derive(Debug)]
pub(super) struct Operand<'e, 'd> {
    pub(super) expr: &'e IdedExpr,
    pub(super) type_: Type<'d>,
    pub(super) path: Path,
    pub(super) size: Option<Size>,
}

pub(super) struct Estimator<'t, 'd> {
    root: &'d Decl,
    typing: &'t Typing<'d>,
    paths: HashMap<u64, Path>,
    sizes: HashMap<u64, Size>,
    members: HashMap<u64, Members>,
    /// Variables in scope, innermost last.
    locals: Vec<Local>,
}

impl<'t, 'd> Estimator<'t, 'd> {
    pub(super) fn new(root: &'d Decl, typing: &'t Typing<'d>) -> Self {
        Self {
            root,
            typing,
            paths: HashMap::new(),
            sizes: HashMap::new(),
            members: HashMap::new(),
            locals: Vec::new(),
        }
    }

    /// Returns the maximum cost of an expression, and remembers the sizes of its parts.
    pub(super) fn cost(&mut self, expr: &IdedExpr) -> u64 {
        match &expr.expr {
            Expr::Unspecified | Expr::Literal(_) => 0,
            Expr::Ident(name) => {
                let path = self.local(name).map(|local| local.path.clone());
                let path = path.unwrap_or_else(|| Path::of_variable(name));
                self.paths.insert(expr.id, path);
                READ
            }
            Expr::Select(select) => match type_name(expr) {
                Some(name) => {
                    self.paths.insert(expr.id, Path::of_variable(&name));
                    READ
                }
                None => self.select(expr.id, select),
            },
            Expr::Call(call) => self.call(expr, call),
            Expr::List(list) => self.list(expr.id, list),
            Expr::Map(map) => self.map(expr.id, &map.entries),
            Expr::Struct(message) => {
                let fields = message.entries.iter().filter_map(|entry| match &entry.expr {
                    EntryExpr::StructField(field) => Some(&field.value),
                    EntryExpr::MapEntry(_) => None,
                });
                fields.fold(MESSAGE, |cost, field| cost.saturating_add(self.cost(field)))
            }
            Expr::Comprehension(comprehension) => self.comprehension(expr.id, comprehension),
        }
    }

    fn select(&mut self, id: u64, select: &SelectExpr) -> u64 {
        let cost = self.cost(&select.operand);
        if select.test {
            return cost;
        }
        let path = self.path(&select.operand).child(&select.field);
        self.paths.insert(id, path);
        let reads_field = matches!(
            self.typing.type_of(&select.operand),
            Type::Map(_) | Type::Object(_) | Type::Library(_)
        );
        if reads_field {
            cost.saturating_add(READ)
        } else {
            cost
        }
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr) -> u64 {
        if let ("dyn", Some(value)) = (call.func_name.as_str(), call.args.first()) {
            let cost = self.cost(value);
            self.copy_sizes(expr.id, value);
            return cost.saturating_add(1);
        }
        let mut costs = Vec::with_capacity(call.args.len());
        let mut arguments = Vec::with_capacity(call.args.len());
        for argument in &call.args {
            costs.push(self.cost(argument));
            arguments.push(self.operand(argument));
        }
        let Some(resolved) = self.typing.call(expr) else {
            return 0;
        };
        let mut target_cost = 0;
        let target = call.target.as_deref().filter(|_| resolved.is_method);
        let target = target.map(|target| {
            target_cost = self.cost(target);
            self.operand(target)
        });
        let (mut cost, mut size) = (0, None);
        for overload in &resolved.overloads {
            let estimate = self.function(
                expr.id,
                (&resolved.function, overload),
                target.as_ref(),
                &arguments,
                &costs,
            );
            cost = cost.max(estimate.cost);
            size = match (size, estimate.size) {
                (Some(earlier), Some(size)) => Some(Size::union(earlier, size)),
                (earlier, size) => earlier.or(size),
            };
            let member = match *overload {
                "index_list" => Some(ITEMS),
                "index_map" => Some(VALUES),
                _ => None,
            };
            if let (Some(member), Some(whole)) = (member, call.args.first()) {
                size = self.members(whole).map(|members| members.values);
                let path = self.path(whole).child(member);
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        target_cost.saturating_add(cost)
    }

    fn list(&mut self, id: u64, list: &ListExpr) -> u64 {
        let mut cost = LIST;
        let mut values = Sizes::default();
        for item in &list.elements {
            cost = cost.saturating_add(self.cost(item));
            values.add(self.size_or_unknown(item));
        }
        let members = Members {
            is_list: true,
            keys: Size::exactly(1),
            values: values.range(),
        };
        self.members.insert(id, members);
        cost
    }

    fn map(&mut self, id: u64, entries: &[IdedEntryExpr]) -> u64 {
        let mut cost = MAP;
        let (mut keys, mut values) = (Sizes::default(), Sizes::default());
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            cost = cost.saturating_add(self.cost(&entry.key));
            cost = cost.saturating_add(self.cost(&entry.value));
            keys.add(self.size_or_unknown(&entry.key));
            values.add(self.size_or_unknown(&entry.value));
        }
        let members = Members {
            is_list: false,
            keys: keys.range(),
            values: values.range(),
        };
        self.members.insert(id, members);
        cost
    }

    fn comprehension(&mut self, id: u64, comprehension: &ComprehensionExpr) -> u64 {
        let ComprehensionExpr {
            iter_range: range,
            accu_init: start,
            loop_cond: condition,
            loop_step: step,
            ..
        } = comprehension;
        let outside = self.cost(range).saturating_add(self.cost(start));
        if is_binding(comprehension) {
            return self.binding(id, comprehension, outside);
        }
        let accumulator = Local {
            name: comprehension.accu_var.clone(),
            path: self.path(start),
            size: self.size(start),
            members: self.members(start),
        };
        self.locals.push(accumulator);
        let members = self.members(range);
        let is_list = match members {
            Some(members) => members.is_list,
            None => matches!(self.typing.type_of(range), Type::List(_)),
        };
        let outer = self.locals.len();
        let mut local = |name: &str, member: &str, size: Option<Size>| {
            let path = self.path(range).child(member);
            self.locals.push(Local {
                name: name.to_owned(),
                path,
                size,
                members: None,
            });
        };
        let keys = members.map(|members| members.keys);
        let values = members.map(|members| members.values);
        let variable = &comprehension.iter_var;
        match &comprehension.iter_var2 {
            Some(second) => {
                local(variable, if is_list { INDEXES } else { KEYS }, keys);
                local(second, if is_list { ITEMS } else { VALUES }, values);
            }
            None if is_list => local(variable, ITEMS, values),
            None => local(variable, KEYS, keys),
        }
        let turn = self.cost(condition).saturating_add(self.cost(step));
        self.locals.truncate(outer);
        let result = self.cost(&comprehension.result);
        self.locals.pop();
        let turns = self.size_or_unknown(range);
        match &start.expr {
            Expr::Literal(_) => {
                if let Some(size) = self.size(start) {
                    self.sizes.insert(id, size);
                }
            }
            Expr::List(_) | Expr::Map(_) => {
                self.sizes.insert(id, turns);
                if let Some(members) = self.members(step) {
                    self.members.insert(id, members);
                }
            }
            Expr::Unspecified
            | Expr::Call(_)
            | Expr::Comprehension(_)
            | Expr::Ident(_)
            | Expr::Select(_)
            | Expr::Struct(_) => {}
        }
        outside
            .saturating_add(result)
            .saturating_add(turns.max.saturating_mul(turn))
    }

    /// Returns the cost of a macro that binds a variable to a value.
    fn binding(&mut self, id: u64, comprehension: &ComprehensionExpr, outside: u64) -> u64 {
        let start = &comprehension.accu_init;
        let variable = Local {
            name: comprehension.accu_var.clone(),
            path: self.path(start),
            size: self.size(start),
            members: self.members(start),
        };
        self.locals.push(variable);
        let result = self.cost(&comprehension.result);
        self.locals.pop();
        self.copy_sizes(id, &comprehension.result);
        outside.saturating_add(result)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn local_of(&self, expr: &IdedExpr) -> Option<&Local> {
        if let Expr::Ident(name) = &expr.expr {
            self.local(name)
        } else {
            None
        }
    }

    fn path(&self, expr: &IdedExpr) -> Path {
        let local = self.local_of(expr).map(|local| &local.path);
        local
            .or_else(|| self.paths.get(&expr.id))
            .cloned()
            .unwrap_or_default()
    }

    fn operand<'e>(&mut self, expr: &'e IdedExpr) -> Operand<'e, 'd> {
        Operand {
            expr,
            type_: self.typing.type_of(expr),
            path: self.path(expr),
            size: self.size(expr),
        }
    }

    /// Returns the size of a value in the object, from the limits of the schema. As in
    /// kube-apiserver, any variable stands for the node of the rule.
    pub(super) fn declared_size(&self, path: &Path) -> Option<Size> {
        let members = path.members()?;
        self.root.max_elements(&members).map(Size::at_most)
    }

    fn size(&mut self, expr: &IdedExpr) -> Option<Size> {
        let known = self.sizes.get(&expr.id).copied();
        if let Some(size) = known.or_else(|| size_of_literal(expr)) {
            return Some(size);
        }
        if let Some(size) = self.declared_size(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.typing.type_of(expr).is_scalar() {
            return Some(Size::exactly(1));
        }
        self.local_of(expr).and_then(|local| local.size)
    }

    fn size_or_unknown(&mut self, expr: &IdedExpr) -> Size {
        self.size(expr).unwrap_or(Size::UNKNOWN)
    }

    pub(super) fn members(&self, expr: &IdedExpr) -> Option<Members> {
        let known = self.members.get(&expr.id).copied();
        known.or_else(|| self.local_of(expr).and_then(|local| local.members))
    }

    pub(super) fn set_members(&mut self, id: u64, members: Option<Members>) {
        if let Some(members) = members {
            self.members.insert(id, members);
        }
    }

    fn copy_sizes(&mut self, to: u64, from: &IdedExpr) {
        if let Some(size) = self.size(from) {
            self.sizes.insert(to, size);
        }
        self.set_members(to, self.members(from));
    }
}

/// Returns true if the macro only binds a variable to a value.
fn is_binding(comprehension: &ComprehensionExpr) -> bool {
    comprehension.accu_var != ACCUMULATOR
        && matches!(&comprehension.iter_range.expr, Expr::List(list) if list.elements.is_empty())
}

/// Range of several sizes. Zero without any.
#[derive(Default)]
struct Sizes(Option<Size>);

impl Sizes {
    fn add(&mut self, size: Size) {
        self.0 = Some(self.0.map_or(size, |range| range.union(size)));
    }

    fn range(self) -> Size {
        self.0.unwrap_or(Size::exactly(0))
    }
}

fn size_of_literal(expr: &IdedExpr) -> Option<Size> {
    let size = match &expr.expr {
        Expr::Literal(literal) => match literal {
            LiteralValue::String(text) => text.inner().chars().count(),
            LiteralValue::Bytes(bytes) => bytes.inner().len(),
            LiteralValue::Boolean(_)
            | LiteralValue::Double(_)
            | LiteralValue::Int(_)
            | LiteralValue::Null
            | LiteralValue::UInt(_) => 1,
        },
        Expr::List(list) => list.elements.len(),
        Expr::Map(map) => map.entries.len(),
        Expr::Unspecified
        | Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::Select(_)
        | Expr::Struct(_) => return None,
    };
    Some(Size::exactly(size as u64))
}

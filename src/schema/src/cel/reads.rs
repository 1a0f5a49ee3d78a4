//! Fields of `self` and `oldSelf` that a rule reads.
//!
//! Evaluation copies the variables, so a rule receives only the fields that it reads.

use std::collections::BTreeSet;

use kube_cel::cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr, IdedEntryExpr},
};

/// Fields that a rule reads, by CEL name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The rule uses the whole value.
    All,
    Fields(BTreeSet<String>),
}

impl Reads {
    pub(super) fn of<'e>(expressions: impl IntoIterator<Item = &'e IdedExpr>) -> Self {
        let mut reads = Self::Fields(BTreeSet::new());
        for expr in expressions {
            reads.visit(expr);
        }
        reads
    }

    pub(super) fn contains(&self, field: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.contains(field),
        }
    }

    fn visit(&mut self, expr: &IdedExpr) {
        match &expr.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => {
                if is_value(name) {
                    *self = Self::All;
                }
            }
            Expr::Select(select) => match (&select.operand.expr, &mut *self) {
                (Expr::Ident(name), Self::Fields(fields)) if is_value(name) => {
                    fields.insert(select.field.clone());
                }
                _ => self.visit(&select.operand),
            },
            Expr::Call(call) => {
                call.target.iter().for_each(|target| self.visit(target));
                call.args.iter().for_each(|arg| self.visit(arg));
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => self.visit_entries(&map.entries),
            Expr::Struct(fields) => self.visit_entries(&fields.entries),
            Expr::Comprehension(comprehension) => {
                self.visit(&comprehension.iter_range);
                self.visit(&comprehension.accu_init);
                self.visit(&comprehension.loop_cond);
                self.visit(&comprehension.loop_step);
                self.visit(&comprehension.result);
            }
        }
    }

    fn visit_entries(&mut self, entries: &[IdedEntryExpr]) {
        for entry in entries {
            match &entry.expr {
                EntryExpr::StructField(field) => self.visit(&field.value),
                EntryExpr::MapEntry(entry) => {
                    self.visit(&entry.key);
                    self.visit(&entry.value);
                }
            }
        }
    }
}

fn is_value(name: &str) -> bool {
    name == "self" || name == "oldSelf"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_fields_that_a_rule_reads() {
        let check = |rule: &str, expect: &[&str]| {
            let fields = expect.iter().map(|field| (*field).to_owned()).collect();
            assert_eq!(
                Reads::of(&[super::super::parse(rule).unwrap()]),
                Reads::Fields(fields),
                "{rule}"
            );
        };
        check("self.a.b > oldSelf.c", &["a", "c"]);
        check("has(self.a) && self.l.all(x, x.y == self.z)", &["a", "l", "z"]);
        check("[self.a, {'k': self.b}.k].size() > 0", &["a", "b"]);
        check("1 > 0", &[]);
        for rule in [
            "self == oldSelf",
            "self.all(k, true)",
            "self['a'] > 0",
            "oldSelf.hasValue()",
            "self.?a.hasValue()",
        ] {
            assert_eq!(
                Reads::of(&[super::super::parse(rule).unwrap()]),
                Reads::All,
                "{rule}"
            );
        }
    }
}

//! Estimated cost of functions.

use kube_cel::cel::common::ast::{Expr, LiteralValue};

use super::{
    estimator::{Estimator, LIST, Operand},
    size::{Size, parts, scaled},
};
use crate::cel::checker::{ITEMS, Type};

/// Cost of reading a character.
const CHARACTER: f64 = 0.1;
/// Cost of matching a character of a regular expression, per unit of the text's cost.
const REGEX_CHARACTER: f64 = 0.25;
/// Assumed length of the regular expression of a named format.
const FORMAT_REGEX: f64 = 128.0;
/// Maximum length of a format.
const FORMAT: u64 = 64;
/// Bytes of an IP address.
const ADDRESS: Size = Size { min: 4, max: 16 };

/// Estimate for a call, with the cost of its arguments but without that of its target.
#[derive(Debug)]
pub(super) struct Estimate {
    pub(super) cost: u64,
    /// Size of the result.
    pub(super) size: Option<Size>,
}

impl Estimate {
    fn of(cost: u64) -> Self {
        Self { cost, size: None }
    }

    fn sized(cost: u64, size: Size) -> Self {
        Self {
            cost,
            size: Some(size),
        }
    }

    /// Returns the estimate for a function that creates a list of this size.
    fn of_list(size: Size, factor: f64) -> Self {
        let cost = size.cost(factor).saturating_add(1 + LIST);
        Self::sized(cost, size)
    }
}

/// Returns the estimate for sorting by keys of the type in the overload.
fn sort(overload: &str, keys: Size) -> Option<Estimate> {
    let factor = match overload.strip_prefix("list_")?.split('_').next()? {
        "string" | "bytes" => 2.0 + CHARACTER,
        _ => 2.0,
    };
    Some(Estimate::of_list(keys.times(keys), factor))
}

impl Estimator<'_, '_> {
    /// Returns the estimate for a function and one of its overloads.
    pub(super) fn function(
        &mut self,
        id: u64,
        (name, overload): (&str, &str),
        target: Option<&Operand<'_, '_>>,
        arguments: &[Operand<'_, '_>],
        costs: &[u64],
    ) -> Estimate {
        if let Some(estimate) = self.operator(id, overload, arguments, costs) {
            return estimate;
        }
        let mut estimate = self
            .list_function(overload, target, arguments)
            .or_else(|| self.library_function((name, overload), target, arguments))
            .or_else(|| standard_function(overload, target, arguments))
            .unwrap_or(Estimate::of(1));
        for cost in costs {
            estimate.cost = estimate.cost.saturating_add(*cost);
        }
        estimate
    }

    /// Returns the estimate for operators that do not evaluate all operands, or that pass on the
    /// sizes of members.
    fn operator(
        &mut self,
        id: u64,
        overload: &str,
        arguments: &[Operand<'_, '_>],
        costs: &[u64],
    ) -> Option<Estimate> {
        match (overload, arguments, costs) {
            ("conditional", [_, one, other], [condition, one_cost, other_cost]) => {
                let members = self.members(one.expr).zip(self.members(other.expr));
                self.set_members(id, members.map(|(one, other)| one.union(other)));
                let cost = condition.saturating_add(*one_cost.max(other_cost));
                Some(Estimate::sized(cost, computed(one).union(computed(other))))
            }
            ("add_string" | "add_bytes" | "add_list", [left, right], [left_cost, right_cost]) => {
                let members = self.members(left.expr).zip(self.members(right.expr));
                self.set_members(id, members.map(|(left, right)| left.union(right)));
                let size = computed(left).plus(computed(right));
                let own = match overload {
                    "add_list" => 1,
                    _ => size.cost(CHARACTER),
                };
                let cost = own.saturating_add(*left_cost).saturating_add(*right_cost);
                Some(Estimate::sized(cost, size))
            }
            ("logical_or" | "logical_and", _, [left, right]) => {
                Some(Estimate::of(left.saturating_add(*right)))
            }
            (_, _, _) => None,
        }
    }

    /// Returns the size of an operand, also of one whose path was not known when it was visited.
    fn operand_size(&self, operand: &Operand<'_, '_>) -> Size {
        let size = operand.size.or_else(|| self.declared_size(&operand.path));
        size.unwrap_or(Size::UNKNOWN)
    }

    /// Returns the estimate for functions of sets and for functions that create lists.
    fn list_function(
        &self,
        overload: &str,
        target: Option<&Operand<'_, '_>>,
        arguments: &[Operand<'_, '_>],
    ) -> Option<Estimate> {
        let size = |operand: &Operand<'_, '_>| self.operand_size(operand);
        match (overload, target, arguments) {
            ("list_sets_contains_list" | "list_sets_intersects_list", _, [one, other]) => {
                let pairs = size(one).times(size(other));
                Some(Estimate::of(pairs.cost(1.0).saturating_add(1)))
            }
            ("list_sets_equivalent_list", _, [one, other]) => {
                let pairs = size(one).times(size(other));
                Some(Estimate::of(pairs.cost(2.0).saturating_add(1)))
            }
            ("list_slice", Some(list), [start, end]) => {
                let (start, end) = (integer(start, 0), integer(end, size(list).max));
                Some(Estimate::of_list(Size::exactly(end.wrapping_sub(start)), 1.0))
            }
            ("list_flatten" | "list_flatten_int", Some(list), depth) => {
                let depth = depth.first().map_or(1, |depth| integer(depth, u64::MAX));
                Some(Estimate::of_list(size(list), depth as f64))
            }
            ("lists_range", None, [count]) => {
                Some(Estimate::of_list(Size::exactly(integer(count, u64::MAX)), 1.0))
            }
            ("list_reverse", Some(list), []) => Some(Estimate::of_list(size(list), 1.0)),
            ("list_distinct", Some(list), []) => Some(Estimate::of_list(size(list).times(size(list)), 2.0)),
            (overload, Some(list), []) if overload.ends_with("_sort") => sort(overload, size(list)),
            (overload, Some(_), [keys]) if overload.ends_with("_sortByAssociatedKeys") => {
                sort(overload, size(keys))
            }
            (_, _, _) => None,
        }
    }

    /// Returns the estimate for functions of the Kubernetes library and of strings.
    fn library_function(
        &self,
        (name, overload): (&str, &str),
        target: Option<&Operand<'_, '_>>,
        arguments: &[Operand<'_, '_>],
    ) -> Option<Estimate> {
        let size = |operand: &Operand<'_, '_>| self.operand_size(operand);
        let read =
            |operand: &Operand<'_, '_>, factor: f64| Estimate::of(size(operand).cost(factor * CHARACTER));
        match (name, target, arguments) {
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(list), _) => {
                Some(Estimate::of(self.traversal(list)))
            }
            ("url" | "jsonpatch.escapeKey", _, [text]) => {
                Some(Estimate::sized(size(text).cost(CHARACTER), size(text)))
            }
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
                Some(Estimate::sized(size(text).cost(CHARACTER), size(text)))
            }
            ("replace", Some(text), [from, to, ..]) => {
                let replaced = replaced(size(text), size(from), size(to));
                Some(Estimate::sized(size(text).cost(2.0 * CHARACTER), replaced))
            }
            ("split", Some(text), _) => {
                let count = arguments.get(1).and_then(literal_integer);
                // A negative count has no limit.
                let most = count.map_or(size(text).max, |count| count as u64);
                Some(Estimate::sized(
                    size(text).cost(2.0 * CHARACTER),
                    Size::at_most(most),
                ))
            }
            ("join", Some(list), _) => {
                let joined = self.joined(list, arguments.first());
                Some(Estimate::sized(joined.cost(CHARACTER), joined))
            }
            ("find" | "findAll", Some(text), [regex, ..]) => {
                let cost = matching(size(text), size(regex));
                Some(Estimate::sized(cost, Size::at_most(size(text).max)))
            }
            ("ip", _, _) if overload == "cidr_ip" => Some(Estimate::of(1)),
            ("ip" | "cidr" | "isIP" | "isCIDR", _, [text, ..]) => Some(read(text, 1.0)),
            ("ip.isCanonical", _, [text, ..]) => Some(read(text, 2.0)),
            ("containsIP", _, [address, ..]) => {
                let cost = ADDRESS.plus(ADDRESS).cost(CHARACTER);
                let parsing = match overload {
                    "cidr_contains_ip_string" => size(address).cost(CHARACTER),
                    _ => 0,
                };
                Some(Estimate::of(cost.saturating_add(parsing)))
            }
            ("containsCIDR", _, [range, ..]) => {
                let cost = ADDRESS.plus(ADDRESS).cost(CHARACTER) + ADDRESS.cost(CHARACTER) + 1;
                let parsing = match overload {
                    "cidr_contains_cidr_string" => size(range).cost(CHARACTER),
                    _ => 0,
                };
                Some(Estimate::of(cost.saturating_add(parsing)))
            }
            ("quantity" | "isQuantity" | "semver" | "isSemver", _, [text, ..]) => Some(read(text, 1.0)),
            ("validate", _, [text, ..]) => {
                let cost = size(text).cost(CHARACTER);
                Some(Estimate::of(scaled(cost, FORMAT_REGEX * REGEX_CHARACTER)))
            }
            ("_==_", _, [left, right]) if left.type_ == right.type_ => same(left, right),
            (_, _, _) => None,
        }
    }

    /// Returns the cost of comparing all items of a list, or of reading a text.
    fn traversal(&self, list: &Operand<'_, '_>) -> u64 {
        let size = self.operand_size(list);
        match self.item_size(list) {
            None => size.cost(CHARACTER),
            Some(None) => size.max,
            Some(Some(item)) => size.max.saturating_mul(item.cost(CHARACTER).saturating_add(1)),
        }
    }

    /// Returns the size of the items of a list: `None` if the value is not a list, `Some(None)` if
    /// the items are not texts or bytes.
    fn item_size(&self, list: &Operand<'_, '_>) -> Option<Option<Size>> {
        let item = list.type_.parameter()?;
        let size = || self.declared_item_size(list);
        Some(matches!(item, Type::Text | Type::Bytes).then(size))
    }

    fn declared_item_size(&self, list: &Operand<'_, '_>) -> Size {
        let path = list.path.members().map(|_| list.path.copied_child(ITEMS));
        let size = path.and_then(|path| self.declared_size(&path));
        size.unwrap_or(Size::UNKNOWN)
    }

    /// Returns the size of the text that `join` creates.
    fn joined(&self, list: &Operand<'_, '_>, separator: Option<&Operand<'_, '_>>) -> Size {
        let count = self.operand_size(list);
        let items = match list.type_.parameter() {
            Some(_) => count.times(self.declared_item_size(list)),
            None => Size::exactly(0),
        };
        let Some(separator) = separator else {
            return items;
        };
        let separators = Size {
            min: count.min.saturating_sub(1),
            max: count.max.saturating_sub(1),
        };
        items.plus(self.operand_size(separator).times(separators))
    }
}

/// Returns the estimate for functions of the language.
fn standard_function(
    overload: &str,
    target: Option<&Operand<'_, '_>>,
    arguments: &[Operand<'_, '_>],
) -> Option<Estimate> {
    match (overload, target, arguments) {
        ("string_format", Some(text), _) => Some(Estimate::of(computed(text).cost(CHARACTER))),
        // The maxima overflow as in cel-go.
        ("string_to_bytes", _, [text]) => {
            let Size { min, max } = computed(text);
            let size = Size {
                min,
                max: max.wrapping_mul(4),
            };
            Some(Estimate::sized(computed(text).cost(CHARACTER), size))
        }
        ("bytes_to_string", _, [bytes]) => {
            let Size { min, max } = computed(bytes);
            let size = Size { min: min / 4, max };
            Some(Estimate::sized(computed(bytes).cost(CHARACTER), size))
        }
        ("strings_quote", _, [text]) => {
            let Size { min, max } = computed(text);
            let size = Size {
                min: min.wrapping_add(2),
                max: max.wrapping_mul(2).wrapping_add(2),
            };
            Some(Estimate::sized(computed(text).cost(CHARACTER), size))
        }
        ("starts_with_string" | "ends_with_string", _, [text]) => {
            Some(Estimate::of(computed(text).cost(CHARACTER)))
        }
        ("in_list", _, [_, list]) => Some(Estimate::of(computed(list).cost(1.0))),
        ("matches_string", Some(text), [regex]) => {
            Some(Estimate::of(matching(computed(text), computed(regex))))
        }
        ("contains_string", Some(text), [part]) => {
            let cost = computed(text).cost(CHARACTER);
            Some(Estimate::of(cost.saturating_mul(computed(part).cost(CHARACTER))))
        }
        ("equals" | "not_equals", _, [left, right]) => Some(Estimate::of(comparison(left, right))),
        (overload, _, [left, right]) if is_ordering_of_texts(overload) => {
            Some(Estimate::of(comparison(left, right)))
        }
        (_, _, _) => None,
    }
}

fn is_ordering_of_texts(overload: &str) -> bool {
    let is_ordering = overload.starts_with("less_") || overload.starts_with("greater_");
    is_ordering && (overload.ends_with("_string") || overload.ends_with("_bytes"))
}

/// Returns the cost of comparing two values: that of reading the smaller one.
fn comparison(left: &Operand<'_, '_>, right: &Operand<'_, '_>) -> u64 {
    scaled(computed(left).max.min(computed(right).max), CHARACTER)
}

/// Returns the cost of applying a regular expression. An empty text costs as much as a character.
fn matching(text: Size, regex: Size) -> u64 {
    let text = text.plus(Size::exactly(1)).cost(CHARACTER);
    text.saturating_mul(regex.cost(REGEX_CHARACTER))
}

/// Returns the estimate for the comparison of two objects of the library.
fn same(left: &Operand<'_, '_>, right: &Operand<'_, '_>) -> Option<Estimate> {
    match (&left.type_, right.size) {
        (Type::Opaque("IP" | "CIDR", _) | Type::Library("Quantity" | "Semver"), _) => Some(Estimate::of(1)),
        (Type::Library("Format"), _) => Some(Estimate::of(scaled(FORMAT, CHARACTER))),
        // kube-apiserver uses the size of the right operand for both.
        (Type::Library("URL"), size) => {
            Some(Estimate::of(scaled(size.map_or(1, |size| size.max), CHARACTER)))
        }
        (_, _) => None,
    }
}

/// Returns the size of a text after `from` is replaced by `to`.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let (most, kept_most) = if from.min == 0 {
        (text.max.saturating_add(1), text.max)
    } else if to.max <= from.min {
        (0, text.max)
    } else {
        (parts(text.max, from.min), 0)
    };
    let (least, kept_least) = if from.max == 0 {
        (text.min.saturating_add(1), text.min)
    } else if from.max <= to.min {
        (0, text.min)
    } else {
        (parts(text.min, from.max), 0)
    };
    let count = Size {
        min: least,
        max: most,
    };
    let kept = Size {
        min: kept_least,
        max: kept_most,
    };
    count.times(to).plus(kept)
}

/// Returns the size that was computed when the operand was visited.
fn computed(operand: &Operand<'_, '_>) -> Size {
    operand.size.unwrap_or(Size::UNKNOWN)
}

fn literal_integer(operand: &Operand<'_, '_>) -> Option<i64> {
    if let Expr::Literal(LiteralValue::Int(number)) = &operand.expr.expr {
        Some(*number.inner())
    } else {
        None
    }
}

/// Returns the value of an integer literal, at least zero, or the default.
fn integer(operand: &Operand<'_, '_>, default: u64) -> u64 {
    literal_integer(operand).map_or(default, |number| u64::try_from(number).unwrap_or_default())
}

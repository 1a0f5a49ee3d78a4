//! Lists and maps whose items must have one type.

use super::Typing;
use super::show::{Root, shown};
use super::types::Type;

/// Items of a list, or keys or values of a map, which must have one type.
#[derive(Debug)]
pub(super) struct Aggregate {
    /// Identifiers of the items, and whether they are optional.
    pub(super) items: Vec<(u64, bool)>,
    pub(super) is_list: bool,
}

impl Aggregate {
    /// Adds the problems of the items: the first one for a list.
    pub(super) fn check(&self, typing: &Typing<'_>, roots: &[Root<'_>], problems: &mut Vec<(u64, String)>) {
        let type_of = |(part, is_optional): (u64, bool)| {
            let found = typing.types.get(&part).cloned().unwrap_or(Type::Error);
            if is_optional { found.unwrapped().0 } else { found }
        };
        let Some((first, rest)) = self.items.split_first() else {
            return;
        };
        let first = type_of(*first);
        for item in rest {
            let found = type_of(*item);
            if found == first || [&found, &first].contains(&&Type::Error) {
                continue;
            }
            problems.push((item.0, mismatch(&first, &found, roots)));
            if self.is_list {
                return;
            }
        }
    }
}

pub(super) fn mismatch(expected: &Type<'_>, actual: &Type<'_>, roots: &[Root<'_>]) -> String {
    let (expected, actual) = (shown(expected, roots), shown(actual, roots));
    format!("expected type '{expected}' but found '{actual}'")
}

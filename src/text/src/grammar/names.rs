//! Property names that differ from given names.

use std::collections::BTreeSet;

use super::{Builder, NodeId};

/// Builds the rest of a name with characters `any` that differs from all rests in `names`, then
/// `close`.
pub(super) fn name_except(builder: &mut Builder, any: NodeId, names: &[&str], close: NodeId) -> NodeId {
    if names.is_empty() {
        return builder.repeat(any, 0, None, close);
    }
    let mut firsts: Vec<char> = names.iter().filter_map(|name| name.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let mut branches = Vec::new();
    if !names.contains(&"") {
        branches.push(close);
    }
    for first in &firsts {
        let rests: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix(*first))
            .collect();
        let rest = name_except(builder, any, &rests, close);
        branches.push(builder.characters(&[(*first, *first)], rest));
    }
    let anything = builder.repeat(any, 0, None, close);
    let mut from = ' ';
    let mut ranges = Vec::new();
    for taken in firsts
        .iter()
        .copied()
        .chain(['"', '\\'])
        .collect::<BTreeSet<char>>()
    {
        if let Some(before) = (from..taken).next_back() {
            ranges.push((from, before));
        }
        from = ((taken..=char::MAX).nth(1)).unwrap_or(char::MAX);
    }
    ranges.push((from, char::MAX));
    branches.push(builder.characters(&ranges, anything));
    builder.any_of(branches)
}

//! Names of members that are none of some others.

use std::collections::BTreeSet;

use super::{Builder, NodeId};

/// The rest of a name of characters that are each `any`, `names` being the rests of those it must
/// not be; then `close`.
pub(super) fn name_apart_from(builder: &mut Builder, any: NodeId, names: &[&str], close: NodeId) -> NodeId {
    if names.is_empty() {
        return builder.repeat(any, 0, None, close);
    }
    let mut firsts: Vec<char> = names.iter().filter_map(|name| name.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let mut ways = Vec::new();
    if !names.contains(&"") {
        ways.push(close);
    }
    for first in &firsts {
        let rests: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix(*first))
            .collect();
        let rest = name_apart_from(builder, any, &rests, close);
        ways.push(builder.characters(&[(*first, *first)], rest));
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
    ways.push(builder.characters(&ranges, anything));
    builder.any_of(ways)
}

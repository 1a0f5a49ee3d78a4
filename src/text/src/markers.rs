//! Detection of markers in text that arrives in pieces. The end of the text is withheld while it
//! may be the beginning of a marker.

/// Returns the start of the longest suffix of `text` that is an incomplete marker, or the length of
/// `text` if there is none.
pub(super) fn held_from<'a>(text: &str, markers: impl IntoIterator<Item = &'a str> + Clone) -> usize {
    let longest = markers.clone().into_iter().map(str::len).max().unwrap_or(0);
    let earliest = (text.len() + 1).saturating_sub(longest);
    let begins = |at: &usize| {
        let rest = &text[*at..];
        markers
            .clone()
            .into_iter()
            .any(|marker| marker.len() > rest.len() && marker.starts_with(rest))
    };
    (earliest..text.len())
        .filter(|at| text.is_char_boundary(*at))
        .find(begins)
        .unwrap_or(text.len())
}

/// Removes the final text from `held` and returns it: everything but the possible beginning of a
/// marker and line breaks before it.
pub(super) fn take_certain<'a>(
    held: &mut String,
    markers: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<String> {
    let certain = &held[..held_from(held, markers)];
    let shown = certain.trim_end_matches('\n').len();
    let kept = held.split_off(shown);
    let shown = std::mem::replace(held, kept);
    (!shown.is_empty()).then_some(shown)
}

/// Splits `text` into pieces of the given sizes in characters. The last piece is the remainder.
#[cfg(test)]
pub(super) fn pieces<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    for size in sizes {
        let end = rest.char_indices().nth(*size).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withholds_longest_incomplete_marker() {
        fn held(text: &str) -> &str {
            &text[held_from(text, ["<think>", "<é>"])..]
        }
        assert_eq!(held("a <"), "<");
        assert_eq!(held("a <thin"), "<thin");
        assert_eq!(held("<é"), "<é");
        assert_eq!(held("<<"), "<");
        assert_eq!(held("a <thing"), "");
        assert_eq!(held("a <think>"), "", "a complete marker is not withheld");
        assert_eq!(held(""), "");
    }
}

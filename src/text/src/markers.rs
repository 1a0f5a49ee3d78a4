//! Markers in text that comes in pieces: what may still turn out to be the beginning of one is held
//! back.

/// Where the longest end of `text` begins that is also the beginning of a marker, and not a whole
/// one; the length of `text` where there is none.
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

/// Takes what may be shown out of `held`: what cannot be the beginning of a marker, nor line breaks
/// before one.
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

/// `text` cut into pieces of so many characters; the last one takes what is left.
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
    fn the_longest_beginning_of_a_marker_is_held() {
        fn held(text: &str) -> &str {
            &text[held_from(text, ["<think>", "<é>"])..]
        }
        assert_eq!(held("a <"), "<");
        assert_eq!(held("a <thin"), "<thin");
        assert_eq!(held("<é"), "<é");
        assert_eq!(held("<<"), "<");
        assert_eq!(held("a <thing"), "");
        assert_eq!(held("a <think>"), "", "a whole one is no beginning");
        assert_eq!(held(""), "");
    }
}

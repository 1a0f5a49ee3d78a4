//! Stop strings, matched on text across token boundaries. Text that may be the beginning of a stop
//! string is withheld. It is returned at the end of the completion if no stop string matched.

use super::markers::held_from;

/// Matcher of stop strings in one completion.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    found: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher. `stops` must not contain an empty string.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
            found: None,
        }
    }

    /// Accepts the next piece of text and returns the text that is final. Returns nothing after the
    /// first stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_match() {
            self.found = Some(stop);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let hold_from = held_from(&self.held, self.stops.iter().map(String::as_str));
        let kept = self.held.split_off(hold_from);
        std::mem::replace(&mut self.held, kept)
    }

    /// Returns the matched stop string.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Ends the completion and returns the withheld text.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns start and index of the stop string that is complete first, the longest if several
    /// end at the same position. The result does not depend on the pieces.
    fn first_match(&self) -> Option<(usize, usize)> {
        self.stops
            .iter()
            .enumerate()
            .filter_map(|(place, stop)| {
                self.held
                    .find(stop)
                    .map(|start| (start + stop.len(), start, place))
            })
            .min()
            .map(|(_, start, place)| (start, place))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool, String) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let shown = pieces.iter().map(|piece| matcher.push(piece)).collect();
        (shown, matcher.found().is_some(), matcher.flush())
    }

    #[test]
    fn removes_stop_string_that_spans_pieces() {
        let (shown, stopped, rest) = run(&["END"], &["one E", "N", "D two", "three"]);
        assert_eq!(shown, ["one ", "", "", ""]);
        assert!(stopped);
        assert_eq!(rest, "");
    }

    #[test]
    fn returns_withheld_text_without_stop_string() {
        let (shown, stopped, rest) = run(&["END"], &["E", "NE", "N"]);
        assert_eq!(shown, ["", "EN", ""]);
        assert!(!stopped);
        assert_eq!(rest, "EN");
    }

    #[test]
    fn withholds_nothing_without_stop_strings() {
        assert_eq!(
            run(&[], &["a", "b"]),
            (vec!["a".to_owned(), "b".to_owned()], false, String::new())
        );
    }

    /// Cuts the text where the first complete stop string starts (reference).
    fn cut(text: &str, stops: &[String]) -> String {
        for end in 0..=text.len() {
            let starts = stops
                .iter()
                .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some(longest) = starts.map(String::len).max() {
                return text[..end - longest].to_owned();
            }
        }
        text.to_owned()
    }

    proptest! {
        #[test]
        fn streamed_text_ends_before_first_stop_string(
            text in "[abé]{0,24}",
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            sizes in proptest::collection::vec(1_usize..4, 24),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let mut streamed = String::new();
            let mut chars = text.chars().peekable();
            for size in sizes {
                let piece: String = chars.by_ref().take(size).collect();
                streamed.push_str(&matcher.push(&piece));
            }
            let rest: String = chars.collect();
            streamed.push_str(&matcher.push(&rest));
            streamed.push_str(&matcher.flush());
            prop_assert_eq!(&streamed, &cut(&text, &stops));
            prop_assert_eq!(matcher.found().is_some(), streamed != text);
        }
    }
}

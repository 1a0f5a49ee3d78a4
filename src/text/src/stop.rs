//! Stop strings, matched on text across token boundaries. Text that may still turn out to be the
//! beginning of a stop string is held back, and handed out when the completion ends without one.

use super::markers::held_from;

/// Watches one completion's text.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    found: Option<usize>,
}

impl StopMatcher {
    /// `stops` holds no empty string.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
            found: None,
        }
    }

    /// Takes the next piece of text and returns what can be shown now. After the first stop string,
    /// nothing more comes out.
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

    /// The stop string that has been seen.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// The completion has ended: what was held back is text after all.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start of the stop string that is complete first, and its place; the longest where several
    /// end together. The same whatever pieces the text came in.
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
    fn a_stop_string_across_pieces_is_cut_out() {
        let (shown, stopped, rest) = run(&["END"], &["one E", "N", "D two", "three"]);
        assert_eq!(shown, ["one ", "", "", ""]);
        assert!(stopped);
        assert_eq!(rest, "");
    }

    #[test]
    fn what_only_looked_like_a_stop_string_is_shown() {
        let (shown, stopped, rest) = run(&["END"], &["E", "NE", "N"]);
        assert_eq!(shown, ["", "EN", ""]);
        assert!(!stopped);
        assert_eq!(rest, "EN");
    }

    #[test]
    fn without_stop_strings_nothing_is_held() {
        assert_eq!(
            run(&[], &["a", "b"]),
            (vec!["a".to_owned(), "b".to_owned()], false, String::new())
        );
    }

    /// The definition: cut where the stop string begins that is complete first.
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
        fn streamed_text_is_the_whole_text_cut_at_the_first_stop(
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

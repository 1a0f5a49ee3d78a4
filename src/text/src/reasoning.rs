//! Reasoning: text that a model generates before its answer, between two markers. The chat template
//! and the vocabulary determine the markers of a model.

use super::markers::take_certain;
use super::tokenizer::Tokenizer;

/// Markers around a reasoning block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarkers {
    pub open: &'static str,
    pub close: &'static str,
}

/// Known markers: DeepSeek R1, Qwen3, GLM and most others; Mistral's Magistral; ByteDance's Seed.
const KNOWN: &[ReasoningMarkers] = &[
    ReasoningMarkers {
        open: "<think>",
        close: "</think>",
    },
    ReasoningMarkers {
        open: "[THINK]",
        close: "[/THINK]",
    },
    ReasoningMarkers {
        open: "<seed:think>",
        close: "</seed:think>",
    },
];

impl ReasoningMarkers {
    /// Header and end of a harmony message with reasoning (gpt-oss).
    pub const HARMONY: Self = Self {
        open: "<|channel|>analysis<|message|>",
        close: "<|end|>",
    };

    /// Detects the markers of a model: the template contains the closing marker, or both markers
    /// are tokens.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let known = |markers: &&Self| {
            template.contains(markers.close)
                || [markers.open, markers.close].map(|marker| tokenizer.token_id(marker).is_some())
                    == [true, true]
        };
        KNOWN.iter().find(known).copied()
    }

    /// Returns true if the prompt ends inside a block, so that the answer starts with reasoning.
    pub fn opened_by(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Returns true if a message starts with a block and ends inside it.
    pub fn left_open_in(&self, message: &str) -> bool {
        message.trim_start().starts_with(self.open) && !message.contains(self.close)
    }

    /// Returns true if the prompt ends with a complete block, so that the answer has no reasoning.
    pub fn closed_by(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.close)
    }
}

/// Piece of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Reasoning(String),
    Answer(String),
}

/// Splitter of one completion into reasoning and answer. A block is only possible at the beginning.
/// Line breaks next to the markers belong to the template and are dropped.
#[derive(Debug, Clone)]
pub(super) struct ReasoningSplitter {
    markers: ReasoningMarkers,
    state: State,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A block may start.
    Start,
    /// The prompt has opened the block. Some models repeat the opening marker.
    Opened,
    /// Inside the block, before its first text.
    Begun,
    Inside,
    /// After the block, before the answer's first text.
    Closed,
    Answer,
}

impl ReasoningSplitter {
    /// Creates a splitter. `opened` is true if the prompt has opened the block.
    pub(super) fn new(markers: ReasoningMarkers, opened: bool) -> Self {
        Self {
            markers,
            state: if opened { State::Opened } else { State::Start },
            held: String::new(),
        }
    }

    /// Returns true if the next text may be reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Opened | State::Begun | State::Inside)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        self.advance(false)
    }

    /// Ends the completion and returns the withheld text.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            let before = self.state;
            match self.state {
                State::Start => self.begin(State::Answer, last),
                State::Opened => self.begin(State::Begun, last),
                State::Begun => self.skip_line_breaks(State::Inside),
                State::Inside => pieces.extend(self.inside(last)),
                State::Closed => self.skip_line_breaks(State::Answer),
                State::Answer => {
                    let text = std::mem::take(&mut self.held);
                    pieces.extend((!text.is_empty()).then_some(Piece::Answer(text)));
                }
            }
            if self.state == before {
                return pieces;
            }
        }
    }

    /// Consumes the opening marker, or enters `otherwise` if other text follows.
    fn begin(&mut self, otherwise: State, last: bool) {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(self.markers.open) {
            self.held = rest.to_owned();
            self.state = State::Begun;
        } else if last || !self.markers.open.starts_with(text) {
            self.state = otherwise;
        }
    }

    fn skip_line_breaks(&mut self, then: State) {
        self.held = self.held.trim_start_matches('\n').to_owned();
        if !self.held.is_empty() {
            self.state = then;
        }
    }

    fn inside(&mut self, last: bool) -> Option<Piece> {
        let reasoning = |text: &str| (!text.is_empty()).then(|| Piece::Reasoning(text.to_owned()));
        if let Some((block, rest)) = self.held.split_once(self.markers.close) {
            let piece = reasoning(block.trim_end_matches('\n'));
            self.held = rest.to_owned();
            self.state = State::Closed;
            return piece;
        }
        if last {
            return reasoning(&std::mem::take(&mut self.held));
        }
        take_certain(&mut self.held, [self.markers.close]).map(Piece::Reasoning)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns reasoning and answer of a text in pieces.
    fn split<'a>(opened: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(KNOWN[0], opened);
        let mut all: Vec<Piece> = pieces
            .into_iter()
            .flat_map(|piece| splitter.push(piece))
            .collect();
        all.extend(splitter.finish());
        let (mut reasoning, mut answer) = (String::new(), String::new());
        for piece in all {
            match piece {
                Piece::Reasoning(text) => {
                    assert!(answer.is_empty(), "the answer follows the reasoning");
                    reasoning.push_str(&text);
                }
                Piece::Answer(text) => answer.push_str(&text),
            }
        }
        (reasoning, answer)
    }

    #[test]
    fn removes_block_with_adjacent_line_breaks() {
        let cases = [
            (
                false,
                "<think>\nwhy\n\nso\n</think>\n\nBecause.\n",
                "why\n\nso",
                "Because.\n",
            ),
            (false, " <think>a</think>b", "a", "b"),
            (false, "<think>\n\n</think>\n\nb", "", "b"),
            (false, "no <think>x</think>", "", "no <think>x</think>"),
            (false, "<thin", "", "<thin"),
            (false, "\n ", "", "\n "),
            (true, "why</think>\nb", "why", "b"),
            (true, "\n<think>\nwhy</think>b", "why", "b"),
            (true, "never ends </thin", "never ends </thin", ""),
            (true, "a</think>b</think>c", "a", "b</think>c"),
        ];
        for (opened, text, reasoning, answer) in cases {
            let expected = (reasoning.to_owned(), answer.to_owned());
            assert_eq!(split(opened, [text]), expected, "{text:?}");
        }
    }

    #[test]
    fn returns_text_as_soon_as_it_is_final() {
        let mut splitter = ReasoningSplitter::new(KNOWN[0], true);
        let reasoning = |text: &str| vec![Piece::Reasoning(text.to_owned())];
        assert_eq!(splitter.push("first"), reasoning("first"));
        assert!(splitter.is_reasoning());
        assert_eq!(splitter.push(" <"), reasoning(" "));
        assert_eq!(splitter.push("/thing"), reasoning("</thing"));
        assert_eq!(splitter.push("</think>"), []);
        assert!(!splitter.is_reasoning());
        assert_eq!(splitter.push("b"), [Piece::Answer("b".to_owned())]);
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_pieces(
            parts in proptest::collection::vec(
                prop_oneof!["[a\n é]{0,3}", Just("<think>".to_owned()), Just("</think>".to_owned()), Just("</th".to_owned())],
                0..8,
            ),
            opened: bool,
            sizes in proptest::collection::vec(1_usize..5, 0..40),
        ) {
            let text = parts.concat();
            let pieces = super::super::markers::pieces(&text, &sizes);
            prop_assert_eq!(split(opened, pieces), split(opened, [text.as_str()]));
        }
    }
}

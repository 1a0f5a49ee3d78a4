//! How many tokens an answer had, from what passes of it: what it says itself, else its events or its bytes.

/// How OpenAI's and Anthropic's answers call it. In a text that quotes one of these there is an escape before the second quote.
const NAMES: [&[u8]; 2] = [b"\"completion_tokens\":", b"\"output_tokens\":"];
/// No name with its figure is longer: so much of a piece is kept for the next one.
const MAX_FIGURE_BYTES: usize = 64;
/// Bytes of an answer in JSON for one token, about.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of all choices together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Counted(u64),
    /// From the bytes of the JSON, which holds more than the text.
    Guessed(u64),
}

/// What of an answer has passed.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    events: u64,
    bytes: u64,
    told: Option<u64>,
    end: Vec<u8>,
}

impl Passed {
    pub(crate) fn is_nothing(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn saw(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        self.events += data.windows(2).filter(|pair| *pair == b"\n\n").count() as u64;
        self.end.extend_from_slice(data);
        self.told = last_told(&self.end).or(self.told);
        let past = self.end.len().saturating_sub(MAX_FIGURE_BYTES);
        self.end.drain(..past);
    }

    pub(crate) fn length(&self, is_stream: bool) -> Length {
        match self.told {
            Some(told) => Length::Counted(told),
            None if is_stream => Length::Counted(self.events),
            None => Length::Guessed(self.bytes / BYTES_PER_TOKEN),
        }
    }
}

/// The last figure: streams may count on.
fn last_told(text: &[u8]) -> Option<u64> {
    let ends = (0..text.len()).rev().filter(|at| text[*at] == b':');
    let figure = |end: usize| {
        let name = &text[..=end];
        NAMES.iter().any(|known| name.ends_with(known)).then_some(())?;
        let digits = text[end + 1..].trim_ascii_start();
        let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&digits[..count]).ok()?.parse().ok()
    };
    ends.filter_map(figure).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_it_says_however_it_is_cut() {
        let chat = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":123,"total_tokens":132}}"#;
        let message = "data: {\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}\n\n\
                       data: {\"usage\":{\"output_tokens\": 45}}\n\n";
        let quoted = r#"{"text":"\"completion_tokens\":5","pad":"xxxxxxxx"}"#;
        let none = "data: {\"usage\":null}\n\ndata: {\"completion_tokens\":null}\n\n";
        for (text, is_stream, expect) in [
            (chat, false, Length::Counted(123)),
            (message, true, Length::Counted(45)),
            (quoted, false, Length::Guessed(quoted.len() as u64 / 4)),
            (none, true, Length::Counted(2)),
        ] {
            for cut in 1..text.len() {
                let mut passed = Passed::default();
                assert!(passed.is_nothing());
                for piece in [&text[..cut], &text[cut..]] {
                    passed.saw(piece.as_bytes());
                }
                // Events whose end is cut are not worth their bookkeeping.
                let whole = !is_stream || passed.told.is_some() || !text[..cut].ends_with('\n');
                assert!(passed.length(is_stream) == expect || !whole, "{cut}: {text}");
            }
        }
    }
}

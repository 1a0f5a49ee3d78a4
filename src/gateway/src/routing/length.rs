//! Number of tokens of a response: the reported usage, else the number of events or bytes.

/// Field names of OpenAI's, Anthropic's and Ollama's usage. Generated text cannot match them: JSON
/// escapes the quotes in strings.
const TOKEN_FIELDS: [&[u8]; 3] = [
    b"\"completion_tokens\":",
    b"\"output_tokens\":",
    b"\"eval_count\":",
];
const PROMPT_TOKEN_FIELDS: [&[u8]; 3] = [
    b"\"prompt_tokens\":",
    b"\"input_tokens\":",
    b"\"prompt_eval_count\":",
];
/// Anthropic's `input_tokens` does not include them.
const CACHED_TOKEN_FIELDS: [&[u8]; 1] = [b"\"cache_read_input_tokens\":"];
/// Bytes kept between chunks; no field name with its number is longer.
const MAX_FIGURE_BYTES: usize = 64;
/// Approximate bytes of JSON response per token.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of a response, over all choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Counted(u64),
    /// Derived from the bytes of the JSON body; an overestimate.
    Estimated(u64),
}

/// Forwarded part of a response body.
#[derive(Debug, Default)]
pub(crate) struct ObservedBytes {
    events: u64,
    bytes: u64,
    reported_tokens: Option<u64>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    tail: Vec<u8>,
}

impl ObservedBytes {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn record(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        // Each event of a stream, and each line of JSON, ends in a brace before a line break.
        let last = self.tail.last().copied();
        let before = last.iter().chain(data);
        let ends = before.zip(data.iter().skip(usize::from(last.is_none())));
        self.events += ends.filter(|pair| *pair == (&b'}', &b'\n')).count() as u64;
        self.tail.extend_from_slice(data);
        let reported = |fields: &[&[u8]], known| last_reported(&self.tail, fields).or(known);
        self.reported_tokens = reported(&TOKEN_FIELDS, self.reported_tokens);
        self.prompt_tokens = reported(&PROMPT_TOKEN_FIELDS, self.prompt_tokens);
        self.cached_tokens = reported(&CACHED_TOKEN_FIELDS, self.cached_tokens);
        let past = self.tail.len().saturating_sub(MAX_FIGURE_BYTES);
        self.tail.drain(..past);
    }

    /// Returns the reported tokens of the prompt, including cached ones.
    pub(crate) fn prompt_tokens(&self) -> Option<u64> {
        Some(
            self.prompt_tokens?
                .saturating_add(self.cached_tokens.unwrap_or_default()),
        )
    }

    pub(crate) fn length(&self, is_stream: bool) -> Length {
        match self.reported_tokens {
            Some(reported_tokens) => Length::Counted(reported_tokens),
            None if is_stream => Length::Counted(self.events),
            None => Length::Estimated(self.bytes / BYTES_PER_TOKEN),
        }
    }

    /// Returns the tokens of a response that did not end normally. Its last report may be older than its last token:
    /// streams of Anthropic's API begin with a report of 0 tokens.
    pub(crate) fn interrupted_length(&self, is_stream: bool) -> Length {
        match self.length(is_stream) {
            Length::Counted(reported) if is_stream => Length::Counted(reported.max(self.events)),
            Length::Counted(reported) => Length::Counted(reported),
            Length::Estimated(tokens) => Length::Estimated(tokens),
        }
    }
}

/// Returns the last reported number; streams may report increasing numbers.
fn last_reported(text: &[u8], fields: &[&[u8]]) -> Option<u64> {
    let ends = (0..text.len()).rev().filter(|at| text[*at] == b':');
    let figure = |end: usize| {
        let name = &text[..=end];
        fields.iter().any(|known| name.ends_with(known)).then_some(())?;
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
    fn reads_reported_tokens_at_any_chunk_boundary() {
        let chat = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":123,"total_tokens":132}}"#;
        let message = "data: {\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}\n\n\
                       data: {\"usage\":{\"output_tokens\": 45}}\n\n";
        let quoted = r#"{"text":"\"completion_tokens\":5","pad":"xxxxxxxx"}"#;
        let lines = "{\"response\":\"a\",\"done\":false}\n {\"response\":\"b\",\"done\":false}\n";
        let ended = "{\"done\":true,\"prompt_eval_count\":9,\"eval_count\":31}\n";
        let none = "data: {\"usage\":null}\n\ndata: {\"completion_tokens\":null}\n\n";
        for (text, is_stream, expect) in [
            (chat, false, Length::Counted(123)),
            (message, true, Length::Counted(45)),
            (quoted, false, Length::Estimated(quoted.len() as u64 / 4)),
            (none, true, Length::Counted(2)),
            (lines, true, Length::Counted(2)),
            (ended, true, Length::Counted(31)),
        ] {
            for cut in 1..text.len() {
                let mut observed = ObservedBytes::default();
                assert!(observed.is_empty());
                for piece in [&text[..cut], &text[cut..]] {
                    observed.record(piece.as_bytes());
                }
                assert_eq!(observed.length(is_stream), expect, "{cut}: {text}");
            }
        }
    }

    #[test]
    fn interrupted_stream_has_at_least_one_token_per_event() {
        let start = "data: {\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n";
        let delta = "data: {\"delta\":{\"text\":\"a\"}}\n\n";
        let continuous = "data: {\"usage\":{\"completion_tokens\":45}}\n\n";
        let whole = r#"{"usage":{"completion_tokens":123}}"#;
        for (text, is_stream, expect) in [
            (format!("{start}{delta}{delta}"), true, Length::Counted(3)),
            (continuous.to_owned(), true, Length::Counted(45)),
            (whole.to_owned(), false, Length::Counted(123)),
            ("x".repeat(40), false, Length::Estimated(10)),
        ] {
            let mut observed = ObservedBytes::default();
            observed.record(text.as_bytes());
            assert_eq!(observed.interrupted_length(is_stream), expect, "{text}");
        }
    }
}

//! Incremental detokenisation: token ids in, text out as soon as it is final, never part of a code
//! point.
//!
//! Byte-level tokenizers (GPT-2's alphabet) map each token to bytes. Text is complete with the
//! token that completes its last character. Other tokenizers (for example sentencepiece) strip or
//! merge text at token edges. For those, a short window of tokens is decoded with and without the
//! new token.

use std::sync::Arc;

use super::tokenizer::{DecodeError, Tokenizer};

/// Maximum number of withheld tokens. A character has at most four bytes, each possibly a separate
/// token. Replacement characters that remain after four tokens stand for bytes that are not UTF-8.
const MAX_HELD_TOKENS: usize = 4;

/// Maximum number of tokens at the end of a prompt that are searched for a decodable suffix.
/// Special tokens and incomplete characters are not decodable.
const MAX_SEED_TOKENS: usize = 16;

/// Detokeniser of one completion.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    decoder: Decoder,
    /// Special tokens that are part of the text, because a parser reads them as markers. Other
    /// special tokens are dropped.
    shown: Arc<[u32]>,
}

#[derive(Debug, Clone)]
enum Decoder {
    Bytes(ByteDetokenizer),
    Window(WindowDetokenizer),
}

impl Detokenizer {
    pub fn new(tokenizer: &Tokenizer, shown: &Arc<[u32]>) -> Self {
        let decoder = if tokenizer.is_byte_level() {
            Decoder::Bytes(ByteDetokenizer::default())
        } else {
            Decoder::Window(WindowDetokenizer::default())
        };
        Self {
            decoder,
            shown: Arc::clone(shown),
        }
    }

    /// Continues the text of `prompt`, so that the first word keeps its leading space. Decoders
    /// strip the space at the beginning of a text.
    pub fn after_prompt(mut self, tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        match &mut self.decoder {
            Decoder::Bytes(_) => {}
            Decoder::Window(window) => *window = WindowDetokenizer::seeded(tokenizer, prompt),
        }
        self
    }

    /// Adds the next token and returns the text that became final.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, DecodeError> {
        if self.shown.contains(&token) {
            let mut text = self.flush(tokenizer)?;
            text.push_str(&tokenizer.token_text(token).unwrap_or_default());
            return Ok(text);
        }
        match &mut self.decoder {
            Decoder::Bytes(bytes) => Ok(bytes.push(&tokenizer.token_bytes(token))),
            Decoder::Window(window) => window.push(tokenizer, token),
        }
    }

    /// Ends the completion. Bytes that never became a character are shown as U+FFFD.
    pub fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        match &mut self.decoder {
            Decoder::Bytes(bytes) => Ok(bytes.flush()),
            Decoder::Window(window) => window.flush(tokenizer),
        }
    }
}

/// UTF-8 decoder for bytes in pieces. Each maximal invalid part becomes one U+FFFD, as with
/// `String::from_utf8_lossy`.
#[derive(Debug, Clone, Default)]
pub struct ByteDetokenizer {
    /// Beginning of a character, at most three bytes.
    held: Vec<u8>,
}

impl ByteDetokenizer {
    fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let data = std::mem::take(&mut self.held);
        let mut text = String::new();
        let mut rest = data.utf8_chunks().peekable();
        while let Some(chunk) = rest.next() {
            text.push_str(chunk.valid());
            if chunk.invalid().is_empty() {
                continue;
            }
            let unfinished = rest.peek().is_none() && is_unfinished(chunk.invalid());
            if unfinished {
                self.held = chunk.invalid().to_vec();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn flush(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Returns true if more bytes could complete a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|err| err.valid_up_to() == 0 && err.error_len().is_none())
}

/// Detokeniser with a window of tokens; see the module documentation.
#[derive(Debug, Clone, Default)]
pub struct WindowDetokenizer {
    /// Tokens whose text was returned (context for the decoder), then tokens whose text was not.
    window: Vec<u32>,
    /// Number of context tokens at the start of the window.
    context: usize,
    /// Returned bytes of the window's text.
    shown: usize,
    /// Decoder of byte tokens. They bypass the window, because decoders revise the text of a run of
    /// byte tokens that is not UTF-8.
    bytes: ByteDetokenizer,
}

impl WindowDetokenizer {
    /// Starts with the shortest decodable suffix of `prompt` as context, or at the beginning of a
    /// text if no suffix is decodable.
    fn seeded(tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        let most = prompt.len().min(MAX_SEED_TOKENS);
        let mut ends = (1..=most).map(|tokens| &prompt[prompt.len() - tokens..]);
        let seed = |end: &[u32]| {
            let text = tokenizer.decode(end).ok()?;
            let is_text = !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER);
            is_text.then(|| Self {
                window: end.to_vec(),
                context: end.len(),
                shown: text.len(),
                ..Self::default()
            })
        };
        ends.find_map(seed).unwrap_or_default()
    }

    fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, DecodeError> {
        if tokenizer.has_no_text(token) {
            return Ok(String::new());
        }
        match tokenizer.fallback_byte(token) {
            Some(byte) => self.push_byte(tokenizer, token, byte),
            None => {
                let mut out = self.bytes.flush();
                out.push_str(&self.push_piece(tokenizer, token)?);
                Ok(out)
            }
        }
    }

    /// Decodes a byte token. It becomes the only token of the window, as context.
    fn push_byte(&mut self, tokenizer: &Tokenizer, token: u32, byte: u8) -> Result<String, DecodeError> {
        let is_first = self.window.is_empty();
        let mut out = self.rest(tokenizer)?;
        self.window = vec![token];
        self.context = 1;
        self.shown = tokenizer.decode(&self.window)?.len();
        // Decoders may strip the leading space of a text.
        let is_stripped = is_first && self.shown == 0;
        if !is_stripped {
            out.push_str(&self.bytes.push(&[byte]));
        }
        Ok(out)
    }

    fn push_piece(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, DecodeError> {
        self.window.push(token);
        let text = tokenizer.decode(&self.window)?;
        let certain = self.certain(&text).max(self.shown);
        let out = text.get(self.shown..certain).unwrap_or_default().to_owned();
        self.shown = certain;
        let unshown = text.len().saturating_sub(certain);
        if !out.is_empty() && unshown == 0 {
            self.slide(tokenizer, self.context, unshown)?;
        } else if self.window.len() > self.context + 2 * MAX_HELD_TOKENS {
            // Text that is not final yet belongs to the last tokens.
            self.slide(tokenizer, self.window.len() - MAX_HELD_TOKENS, unshown)?;
        }
        Ok(out)
    }

    fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        let out = self.rest(tokenizer)? + &self.bytes.flush();
        *self = Self::default();
        Ok(out)
    }

    /// Returns the text of the window that was not returned.
    fn rest(&self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        let text = tokenizer.decode(&self.window)?;
        Ok(text.get(self.shown..).unwrap_or_default().to_owned())
    }

    /// Returns the length of the prefix of `text` that later tokens cannot change, in bytes.
    fn certain(&self, text: &str) -> usize {
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        if whole == text.len() || self.window.len() - self.context <= MAX_HELD_TOKENS {
            return whole;
        }
        // Only the last replacement character can still be the beginning of a character.
        text.len() - char::REPLACEMENT_CHARACTER.len_utf8()
    }

    /// Drops the first tokens of the window. All others become context; their text was returned
    /// except for the last `unshown` bytes.
    fn slide(&mut self, tokenizer: &Tokenizer, first: usize, unshown: usize) -> Result<(), DecodeError> {
        self.window.drain(..first);
        self.context = self.window.len();
        self.shown = tokenizer.decode(&self.window)?.len().saturating_sub(unshown);
        Ok(())
    }
}

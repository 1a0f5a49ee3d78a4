//! Incremental detokenisation: token ids in, text out as soon as it is certain, never part of a
//! code point.
//!
//! Byte-level tokenizers (GPT-2's alphabet) give each token's bytes, so text comes out at the very
//! token that completes it. Others (sentencepiece and the like) strip or merge at token edges:
//! there, a short window of tokens is decoded with and without the new one.

use std::sync::Arc;

use super::tokenizer::{DecodeError, Tokenizer};

/// A character has at most four bytes, each possibly a token of its own. Replacement characters
/// that are still there after as many tokens stand for bytes that are no text.
const MAX_HELD_TOKENS: usize = 4;

/// Tokens at the end of a prompt among which one is looked for that is text; those behind it are
/// special ones or parts of a character.
const MAX_SEED_TOKENS: usize = 16;

/// Decodes one completion.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    decoder: Decoder,
    /// Special tokens that are text here, since they are marks in what the model says. Others are
    /// none.
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

    /// What comes goes on with the text of `prompt`: its first word keeps the space before it,
    /// which decoders take for the beginning of a text.
    pub fn going_on_with(mut self, tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        match &mut self.decoder {
            Decoder::Bytes(_) => {}
            Decoder::Window(window) => *window = WindowDetokenizer::behind(tokenizer, prompt),
        }
        self
    }

    /// Takes the next token and returns the text that became certain.
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

    /// The completion has ended: bytes that never became a character are shown as U+FFFD.
    pub fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        match &mut self.decoder {
            Decoder::Bytes(bytes) => Ok(bytes.flush()),
            Decoder::Window(window) => window.flush(tokenizer),
        }
    }
}

/// UTF-8 that arrives in pieces; each maximal invalid part becomes one U+FFFD, as
/// `String::from_utf8_lossy` has it.
#[derive(Debug, Clone, Default)]
pub struct ByteDetokenizer {
    /// The beginning of a character, at most three bytes.
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

/// Whether more bytes could complete a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|err| err.valid_up_to() == 0 && err.error_len().is_none())
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct WindowDetokenizer {
    /// Tokens whose text is already out (context for the decoder), then tokens whose text is not.
    window: Vec<u32>,
    /// How many tokens of the window are context.
    context: usize,
    /// Bytes of the window's text that are out.
    shown: usize,
    /// Tokens that stand for one byte each never wait in the window: in a row that is no text,
    /// decoders take back what they had said of it.
    bytes: ByteDetokenizer,
}

impl WindowDetokenizer {
    /// The shortest end of `prompt` that is text by itself is the context. Where there is none, a
    /// text begins.
    fn behind(tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
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
        if tokenizer.is_silent(token) {
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

    /// The token is context for what follows, and nothing else in the window.
    fn push_byte(&mut self, tokenizer: &Tokenizer, token: u32, byte: u8) -> Result<String, DecodeError> {
        let is_first = self.window.is_empty();
        let mut out = self.rest(tokenizer)?;
        self.window = vec![token];
        self.context = 1;
        self.shown = tokenizer.decode(&self.window)?.len();
        // Decoders may take away the space that a text begins with.
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
            // What is not certain yet is of the last tokens.
            self.slide(tokenizer, self.window.len() - MAX_HELD_TOKENS, unshown)?;
        }
        Ok(out)
    }

    fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        let out = self.rest(tokenizer)? + &self.bytes.flush();
        *self = Self::default();
        Ok(out)
    }

    /// The window's text that is not out.
    fn rest(&self, tokenizer: &Tokenizer) -> Result<String, DecodeError> {
        let text = tokenizer.decode(&self.window)?;
        Ok(text.get(self.shown..).unwrap_or_default().to_owned())
    }

    /// Bytes of `text` that later tokens cannot change.
    fn certain(&self, text: &str) -> usize {
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        if whole == text.len() || self.window.len() - self.context <= MAX_HELD_TOKENS {
            return whole;
        }
        // Only the last one can still be the beginning of a character.
        text.len() - char::REPLACEMENT_CHARACTER.len_utf8()
    }

    /// Drops the window's first tokens: all others are context, their text is out but for the last
    /// bytes.
    fn slide(&mut self, tokenizer: &Tokenizer, first: usize, unshown: usize) -> Result<(), DecodeError> {
        self.window.drain(..first);
        self.context = self.window.len();
        self.shown = tokenizer.decode(&self.window)?.len().saturating_sub(unshown);
        Ok(())
    }
}

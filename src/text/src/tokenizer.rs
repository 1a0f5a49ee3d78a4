//! Tokenizer: text to token ids and back, from the model's `tokenizer.json` and
//! `tokenizer_config.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use rooflet_model::fields::token_ids;

/// Maximum number of added tokens without an embedding in the model. Published models have one or
/// two of them, for padding and images. A tokenizer of another model has hundreds.
const MAX_ADDED_BEYOND: usize = 64;

/// Size of the pieces in which tokens are counted, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Sentencepiece's space at the beginning of a word.
const METASPACE: char = '\u{2581}';

/// Tokenizer of a model. Immutable and shared by all requests.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Special tokens by their name in templates.
    named_tokens: BTreeMap<String, String>,
    eos_token_ids: Vec<u32>,
    special_ids: HashSet<u32>,
    /// Byte of each character in GPT-2's alphabet, if the decoder uses that alphabet.
    byte_of: Option<HashMap<char, u8>>,
    /// True if the decoder replaces U+2581 by a space.
    has_metaspace: bool,
    /// True if the decoder replaces tokens such as `<0x0A>` by bytes.
    has_byte_fallback: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("eos_token_ids", &self.eos_token_ids)
            .finish_non_exhaustive()
    }
}

/// Error in the tokenizer's files.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json: {problem}")]
    InvalidTokenizer { problem: String },
    #[error("{file}: field `{field}` must be {expected}")]
    InvalidField {
        file: &'static str,
        field: &'static str,
        expected: &'static str,
    },
    #[error(
        "tokenizer.json has {tokens} tokens but config.json has vocab_size {vocab_size}: the files belong to different models"
    )]
    LargerThanModel { tokens: usize, vocab_size: u32 },
}

impl TokenizerError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidTokenizer { .. } | Self::InvalidField { .. } | Self::LargerThanModel { .. } => {
                "InvalidTokenizer"
            }
        }
    }
}

/// Error of the tokenizer for a text.
#[derive(Debug, thiserror::Error)]
#[error("tokenizing: {problem}")]
pub struct EncodeError {
    problem: String,
}

/// Error of the decoder for tokens.
#[derive(Debug, thiserror::Error)]
#[error("decoding tokens: {problem}")]
pub struct DecodeError {
    problem: String,
}

impl Tokenizer {
    /// Builds a tokenizer from the files `tokenizer.json`, `tokenizer_config.json` and
    /// `generation_config.json`. `config_eos` are the end-of-sequence tokens of `config.json`.
    pub fn new(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&Value>,
        generation_config: Option<&Value>,
        config_eos: &[u32],
    ) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer_json).map_err(|err| {
            TokenizerError::InvalidTokenizer {
                problem: err.to_string(),
            }
        })?;
        // Training settings in the file would truncate or pad prompts.
        inner
            .with_truncation(None)
            .map_err(|err| TokenizerError::InvalidTokenizer {
                problem: err.to_string(),
            })?;
        inner.with_padding(None);

        let named_tokens = named_tokens(tokenizer_config)?;
        // The end-of-sequence tokens of all files apply: files of one model often differ.
        let mut eos_token_ids = token_ids(generation_config.and_then(|config| config.get("eos_token_id")))
            .ok_or(TokenizerError::InvalidField {
                file: "generation_config.json",
                field: "eos_token_id",
                expected: "a token id or a list of token ids",
            })?;
        eos_token_ids.extend_from_slice(config_eos);
        let eos_token = named_tokens.get("eos_token");
        eos_token_ids.extend(eos_token.and_then(|token| inner.token_to_id(token)));
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        let special_ids = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter_map(|(id, token)| token.special.then_some(id))
            .collect();
        let byte_of = matches!(
            inner.get_decoder(),
            Some(tokenizers::DecoderWrapper::ByteLevel(_))
        )
        .then(byte_alphabet);
        // Decoders are nested in many ways, so search their JSON.
        let decoder = serde_json::to_string(&inner.get_decoder()).unwrap_or_default();
        Ok(Self {
            has_metaspace: decoder.contains(METASPACE),
            has_byte_fallback: decoder.contains("ByteFallback"),
            inner,
            named_tokens,
            eos_token_ids,
            special_ids,
            byte_of,
        })
    }

    /// Returns true if the text is the concatenation of [`Self::token_bytes`].
    pub(crate) fn is_byte_level(&self) -> bool {
        self.byte_of.is_some()
    }

    /// Returns the bytes of a token of a byte-level tokenizer; empty for a special token.
    pub(crate) fn token_bytes(&self, token: u32) -> Vec<u8> {
        let Some(byte_of) = &self.byte_of else {
            return Vec::new();
        };
        if self.special_ids.contains(&token) {
            return Vec::new();
        }
        let Some(text) = self.inner.id_to_token(token) else {
            return Vec::new();
        };
        // A token added as plain text may contain other characters than the alphabet.
        text.chars()
            .map(|c| byte_of.get(&c).copied())
            .collect::<Option<Vec<u8>>>()
            .unwrap_or(text.into_bytes())
    }

    /// Returns the bytes of a single token, with special tokens as text; empty for an unknown
    /// token.
    pub fn standalone_bytes(&self, token: u32) -> Vec<u8> {
        let Some(text) = self.inner.id_to_token(token) else {
            return Vec::new();
        };
        if self.special_ids.contains(&token) {
            return text.into_bytes();
        }
        if self.is_byte_level() {
            return self.token_bytes(token);
        }
        if let Some(byte) = self.fallback_byte(token) {
            return vec![byte];
        }
        if self.has_metaspace {
            return text.replace(METASPACE, " ").into_bytes();
        }
        text.into_bytes()
    }

    /// Checks that the tokenizer fits the model's vocabulary size.
    ///
    /// A few added tokens may lack an embedding. Returns the first of them: requests must not
    /// contain such tokens. Returns an error if more tokens or other tokens lack an embedding.
    pub fn check_vocab_size(&self, vocab_size: u32) -> Result<Option<u32>, TokenizerError> {
        let added = self.inner.get_added_tokens_decoder();
        let ids = self.inner.get_vocab(true).into_values();
        let beyond: BTreeSet<u32> = ids.filter(|id| *id >= vocab_size).collect();
        if beyond.len() <= MAX_ADDED_BEYOND && beyond.iter().all(|id| added.contains_key(id)) {
            return Ok(beyond.first().copied());
        }
        Err(TokenizerError::LargerThanModel {
            tokens: beyond.last().map_or(0, |id| *id as usize + 1),
            vocab_size,
        })
    }

    /// Tokenizes a rendered chat. The template has already written all special tokens.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        self.encode(text, false)
    }

    /// Tokenizes a raw prompt. Adds the tokenizer's initial tokens unless the prompt starts with
    /// the `bos_token`.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let begins = self.starts_with_bos(text);
        self.encode(text, !begins)
    }

    /// Tokenizes a raw prompt like [`Self::encode_prompt`]. Also returns the start of each token in
    /// the text, in characters.
    pub fn encode_prompt_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), EncodeError> {
        let begins = self.starts_with_bos(text);
        let encoding = self
            .inner
            .encode_char_offsets(text, !begins)
            .map_err(|err| EncodeError {
                problem: err.to_string(),
            })?;
        let offsets = encoding.get_offsets().iter().map(|(begin, _)| *begin);
        Ok((encoding.get_ids().to_vec(), offsets.collect()))
    }

    /// Counts the tokens of a text in pieces and stops above `most` tokens.
    ///
    /// The count ignores that tokens may span pieces. Memory use is limited to one piece;
    /// tokenizing a whole text requires hundreds of bytes per byte.
    pub fn count_in_pieces(&self, text: &str, most: usize) -> Result<usize, EncodeError> {
        let (mut count, mut rest) = (0, text);
        while !rest.is_empty() && count <= most {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            count += self.encode(piece, false)?.len();
            rest = after;
        }
        Ok(count)
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        self.inner
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|err| EncodeError {
                problem: err.to_string(),
            })
    }

    /// Returns the text of tokens without special tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DecodeError> {
        self.inner.decode(tokens, true).map_err(|err| DecodeError {
            problem: err.to_string(),
        })
    }

    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// Returns true if [`Self::decode`] drops the token: it is special or unknown.
    pub(crate) fn has_no_text(&self, token: u32) -> bool {
        self.is_special(token) || self.inner.id_to_token(token).is_none()
    }

    /// Returns the byte of a token such as `<0x0A>`, if the decoder has a byte fallback.
    pub(crate) fn fallback_byte(&self, token: u32) -> Option<u8> {
        let text = self.has_byte_fallback.then(|| self.inner.id_to_token(token))?;
        fallback_byte(&text?)
    }

    pub(crate) fn is_special(&self, token: u32) -> bool {
        self.special_ids.contains(&token)
    }

    /// Returns true if a text is the concatenation of [`Self::standalone_bytes`].
    pub(crate) fn decodes_by_concatenation(&self) -> bool {
        self.is_byte_level() || self.has_metaspace || self.has_byte_fallback
    }

    /// Returns the token as written in the vocabulary.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Returns the special tokens among these texts.
    pub fn special_tokens(&self, texts: &[&str]) -> Arc<[u32]> {
        let ids = texts.iter().filter_map(|text| self.token_id(text));
        ids.filter(|id| self.special_ids.contains(id)).collect()
    }

    /// Returns the token with exactly this text.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Returns the text of tokens with special tokens.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String, DecodeError> {
        self.inner.decode(tokens, false).map_err(|err| DecodeError {
            problem: err.to_string(),
        })
    }

    pub fn is_eos(&self, token: u32) -> bool {
        self.eos_token_ids.contains(&token)
    }

    /// Returns the special tokens by name, such as `bos_token`, for chat templates.
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.named_tokens
    }

    /// Returns true if a text starts with the `bos_token`.
    fn starts_with_bos(&self, text: &str) -> bool {
        let bos = self.named_tokens.get("bos_token");
        bos.is_some_and(|bos| text.starts_with(bos.as_str()))
    }
}

/// Returns the byte of a token that sentencepiece writes as `<0x0A>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns GPT-2's alphabet. A printable Latin-1 byte maps to its own character, all others to
/// U+0100 and following.
fn byte_alphabet() -> HashMap<char, u8> {
    let is_plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let plain = (0..=u8::MAX)
        .filter(|byte| is_plain(*byte))
        .map(|byte| (char::from(byte), byte));
    let others = (0..=u8::MAX).filter(|byte| !is_plain(*byte));
    plain.chain(('\u{100}'..).zip(others)).collect()
}

/// Returns the special tokens of `tokenizer_config.json`, including `extra_special_tokens`.
fn named_tokens(config: Option<&Value>) -> Result<BTreeMap<String, String>, TokenizerError> {
    let Some(config) = config.and_then(Value::as_object) else {
        return Ok(BTreeMap::new());
    };
    for field in ["bos_token", "eos_token"] {
        let value = config.get(field).filter(|value| !value.is_null());
        if value.is_some_and(|value| token_text(value).is_none()) {
            return Err(TokenizerError::InvalidField {
                file: "tokenizer_config.json",
                field,
                expected: "a string or an object with a string `content`",
            });
        }
    }
    let extra = config.get("extra_special_tokens").and_then(Value::as_object);
    let own = config.iter().filter(|(name, _)| name.ends_with("_token"));
    let all = extra.into_iter().flatten().chain(own);
    Ok(all
        .filter_map(|(name, value)| Some((name.clone(), token_text(value)?.to_owned())))
        .collect())
}

/// Returns the text of a token in these files: a string, or an object with `content`.
pub fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

#[cfg(test)]
mod tests;

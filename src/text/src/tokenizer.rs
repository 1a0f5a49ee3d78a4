//! Text to token ids and back, as the model's `tokenizer.json` says, with the facts of
//! `tokenizer_config.json` that belong to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use rooflet_model::fields::token_ids;

/// Tokens that were added behind a model's vocabulary and that it has no embeddings for: pads and
/// marks of images, as published models have one or two of. Of another model's tokenizer there are
/// hundreds.
const MAX_ADDED_BEYOND: usize = 64;

/// What is tokenised at once where tokens are only counted.
const PIECE_BYTES: usize = 64 << 10;

/// Stands for a space at the beginning of a word.
const METASPACE: char = '\u{2581}';

/// A model's tokenizer. Immutable: one is shared by all requests.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// By the names under which templates know them.
    named_tokens: BTreeMap<String, String>,
    eos_token_ids: Vec<u32>,
    special_ids: HashSet<u32>,
    /// Bytes of GPT-2's alphabet, where the decoder uses it.
    byte_of: Option<HashMap<char, u8>>,
    /// The decoder writes U+2581 as a space.
    has_metaspace: bool,
    /// The decoder writes tokens like `<0x0A>` as bytes.
    has_byte_fallback: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("eos_token_ids", &self.eos_token_ids)
            .finish_non_exhaustive()
    }
}

/// Why a tokenizer cannot be built.
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
        "tokenizer.json has {tokens} tokens, config.json a vocab_size of {vocab_size}: the files belong to different models"
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

/// The tokenizer could not read a text.
#[derive(Debug, thiserror::Error)]
#[error("tokenizing: {problem}")]
pub struct EncodeError {
    problem: String,
}

/// The tokenizer could not print tokens.
#[derive(Debug, thiserror::Error)]
#[error("decoding tokens: {problem}")]
pub struct DecodeError {
    problem: String,
}

impl Tokenizer {
    /// `tokenizer_config` is the text of `tokenizer_config.json`, `generation_config` of
    /// `generation_config.json`, each where there is one; `config_eos` comes from `config.json`.
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
        // Training settings left in the file would cut or pad prompts behind our back.
        inner
            .with_truncation(None)
            .map_err(|err| TokenizerError::InvalidTokenizer {
                problem: err.to_string(),
            })?;
        inner.with_padding(None);

        let named_tokens = named_tokens(tokenizer_config)?;
        // Every id that any of the files calls an end is one: files of one model often name
        // different ones.
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
        // Decoders are nested in many ways.
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

    /// Whether text is the concatenation of [`Self::token_bytes`].
    pub(crate) fn is_byte_level(&self) -> bool {
        self.byte_of.is_some()
    }

    /// What a token of a byte-level tokenizer stands for; nothing for a special token.
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
        // A token added as plain text need not be in the alphabet: then it stands for itself.
        text.chars()
            .map(|c| byte_of.get(&c).copied())
            .collect::<Option<Vec<u8>>>()
            .unwrap_or(text.into_bytes())
    }

    /// What a token by itself stands for, special ones spelled out; nothing for one that the
    /// tokenizer does not know.
    pub fn spelled(&self, token: u32) -> Vec<u8> {
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

    /// The first of few added tokens that the model has no embedding for, where there are any:
    /// requests must not have them. More of them, or others, are of another model.
    pub fn check_fits(&self, vocab_size: u32) -> Result<Option<u32>, TokenizerError> {
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

    /// Tokens of a rendered chat: the template has written all special tokens itself.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        self.encode(text, false)
    }

    /// Tokens of a bare prompt: begins as the tokenizer says texts begin, unless the prompt already
    /// does.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let begins = self.begins(text);
        self.encode(text, !begins)
    }

    /// Also where in the text each token begins, in characters.
    pub fn encode_prompt_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), EncodeError> {
        let begins = self.begins(text);
        let encoding = self
            .inner
            .encode_char_offsets(text, !begins)
            .map_err(|err| EncodeError {
                problem: err.to_string(),
            })?;
        let offsets = encoding.get_offsets().iter().map(|(begin, _)| *begin);
        Ok((encoding.get_ids().to_vec(), offsets.collect()))
    }

    /// How many tokens a text has, but for those that lie across the ends of pieces; counting ends
    /// with more than `most`. Takes memory for one piece, where reading the whole takes hundreds of
    /// bytes for each byte of the text.
    pub fn count_in_pieces(&self, text: &str, most: usize) -> Result<usize, EncodeError> {
        let (mut count, mut rest) = (0, text);
        while !rest.is_empty() && count <= most {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            count += self.encode(piece, false)?.len();
            rest = behind;
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

    /// Text of tokens, special ones left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DecodeError> {
        self.inner.decode(tokens, true).map_err(|err| DecodeError {
            problem: err.to_string(),
        })
    }

    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// Whether it is in no text of [`Self::decode`]: a special one, or one that the tokenizer does
    /// not know.
    pub fn is_silent(&self, token: u32) -> bool {
        self.is_special(token) || self.inner.id_to_token(token).is_none()
    }

    /// The byte that a token is written for, where the decoder puts bytes together to characters.
    pub(crate) fn fallback_byte(&self, token: u32) -> Option<u8> {
        let text = self.has_byte_fallback.then(|| self.inner.id_to_token(token))?;
        fallback_byte(&text?)
    }

    pub(crate) fn is_special(&self, token: u32) -> bool {
        self.special_ids.contains(&token)
    }

    /// Whether [`Self::spelled`] is what a token adds to a text.
    pub(crate) fn spells_text(&self) -> bool {
        self.is_byte_level() || self.has_metaspace || self.has_byte_fallback
    }

    /// How the vocabulary writes a token.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Of these texts, those that are special tokens.
    pub fn special_tokens(&self, texts: &[&str]) -> Arc<[u32]> {
        let ids = texts.iter().filter_map(|text| self.token_id(text));
        ids.filter(|id| self.special_ids.contains(id)).collect()
    }

    /// The token that stands for exactly this text, where there is one.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Text of tokens, special ones spelled out.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String, DecodeError> {
        self.inner.decode(tokens, false).map_err(|err| DecodeError {
            problem: err.to_string(),
        })
    }

    pub fn is_eos(&self, token: u32) -> bool {
        self.eos_token_ids.contains(&token)
    }

    /// Special tokens by name, such as `bos_token`, as chat templates print them.
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.named_tokens
    }

    /// Whether a text begins as texts do.
    fn begins(&self, text: &str) -> bool {
        let bos = self.named_tokens.get("bos_token");
        bos.is_some_and(|bos| text.starts_with(bos.as_str()))
    }
}

/// The byte that sentencepiece writes as `<0x0A>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// GPT-2's alphabet: a printable Latin-1 byte is its own character, the others follow from U+0100
/// on.
fn byte_alphabet() -> HashMap<char, u8> {
    let is_plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let plain = (0..=u8::MAX)
        .filter(|byte| is_plain(*byte))
        .map(|byte| (char::from(byte), byte));
    let others = (0..=u8::MAX).filter(|byte| !is_plain(*byte));
    plain.chain(('\u{100}'..).zip(others)).collect()
}

/// The special tokens of `tokenizer_config.json`: its own, and those that a model has beside.
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

/// A token as these files write it: text, or an object that holds it.
pub fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

#[cfg(test)]
mod tests;

//! Scripted models: the exact text is known without real weights. Tests of the worker and of the
//! whole binary share this file.
//!
//! With zero output and down projections a block passes the embedding through unchanged. Each
//! token's embedding is an axis of its own, so the head is a table: for each token, the token that
//! follows. What the API makes of that text can be asserted to the letter, through the real engine.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

/// Tokens, and dimensions.
const SIZE: usize = 64;
const END: u32 = 0;
/// More than any test lives to see.
pub(crate) const CONTEXT: u64 = 1 << 20;

/// A model that follows `script`.
pub(crate) struct Script {
    /// Token texts, in bytes; token 0 is the end of text.
    tokens: Vec<Vec<u8>>,
    next: HashMap<u32, Vec<u32>>,
    /// Tokens that are no text, besides the end.
    special: Vec<u32>,
    /// First token of each line.
    pub cues: Vec<u32>,
}

impl Script {
    /// Each line is said after its cue, token by token. A line that ends in `true` ends the text;
    /// another one begins again at its first piece.
    pub(crate) fn new(lines: &[(&[&[u8]], bool)]) -> Self {
        let mut script = Self {
            tokens: vec![b"<end>".to_vec()],
            next: HashMap::new(),
            special: Vec::new(),
            cues: Vec::new(),
        };
        for (index, (pieces, ends)) in lines.iter().enumerate() {
            let cue = script.add(format!("<cue {index}>").into_bytes());
            let said: Vec<u32> = pieces.iter().map(|piece| script.add(piece.to_vec())).collect();
            let after = if *ends { END } else { said[0] };
            let from = std::iter::once(cue).chain(said.iter().copied());
            for (token, next) in from.zip(said.iter().copied().chain([after])) {
                script.next.insert(token, vec![next]);
            }
            script.cues.push(cue);
        }
        script
    }

    /// After the line's cue, and ever after, each of `letters` is as probable as the others.
    pub(crate) fn choose(&mut self, line: usize, letters: std::ops::RangeInclusive<u8>) {
        let choices: Vec<u32> = letters.map(|letter| self.add(vec![letter])).collect();
        for token in choices.iter().copied().chain([self.cues[line]]) {
            self.next.insert(token, choices.clone());
        }
    }

    /// Another text that starts a line.
    pub(crate) fn rename_cue(&mut self, line: usize, text: &str) {
        self.tokens[self.cues[line] as usize] = text.as_bytes().to_vec();
    }

    /// Makes the token with this text a special one.
    pub(crate) fn make_special(&mut self, text: &str) {
        let place = self
            .tokens
            .iter()
            .position(|token| token == text.as_bytes())
            .expect("a token of the script's");
        self.special.push(place as u32);
    }

    fn add(&mut self, text: Vec<u8>) -> u32 {
        self.tokens.push(text);
        assert!(self.tokens.len() <= SIZE);
        self.tokens.len() as u32 - 1
    }

    /// Of a model for chats, too: `template` renders them, a line's cue being the text
    /// `<cue INDEX>`.
    pub(crate) fn write_for_chats(&self, dir: impl AsRef<Path>, template: &str) {
        let dir = dir.as_ref();
        self.write(dir);
        std::fs::write(dir.join("chat_template.jinja"), template).expect("writable");
    }

    pub(crate) fn write(&self, dir: impl AsRef<Path>) {
        let dir = dir.as_ref();
        let config = json!({
            "model_type": "llama", "hidden_size": SIZE, "num_hidden_layers": 1, "intermediate_size": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": SIZE,
            "max_position_embeddings": CONTEXT, "tie_word_embeddings": false, "eos_token_id": END
        });
        std::fs::write(dir.join("config.json"), config.to_string()).expect("writable");
        std::fs::write(dir.join("tokenizer.json"), self.tokenizer().to_string()).expect("writable");
        std::fs::write(dir.join("model.safetensors"), self.weights()).expect("writable");
    }

    fn is_added(&self, id: u32) -> bool {
        id == END || self.cues.contains(&id) || self.special.contains(&id)
    }

    fn tokenizer(&self) -> Value {
        // GPT-2's alphabet, as the tokenizer's own decoder has it.
        let plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let others: Vec<u8> = (0..=255).filter(|byte| !plain(*byte)).collect();
        let letter = |byte: &u8| match others.iter().position(|other| other == byte) {
            None => char::from(*byte),
            Some(index) => char::from_u32(0x100 + index as u32).expect("a letter"),
        };
        let mut vocab = serde_json::Map::new();
        for (id, bytes) in self.tokens.iter().enumerate() {
            let added = self.is_added(id as u32);
            let text = match String::from_utf8(bytes.clone()) {
                // Added tokens are texts, not pieces of the model's alphabet.
                Ok(text) if added => text,
                Ok(_) | Err(_) => bytes.iter().map(letter).collect(),
            };
            assert!(vocab.insert(text.clone(), json!(id)).is_none(), "`{text}` twice");
        }
        let added: Vec<Value> = (0..)
            .zip(&self.tokens)
            .filter(|(id, _)| self.is_added(*id))
            .map(|(id, bytes)| {
                let special = !self.cues.contains(&id);
                json!({"id": id, "content": String::from_utf8_lossy(bytes), "single_word": false,
                       "lstrip": false, "rstrip": false, "normalized": false, "special": special})
            })
            .collect();
        json!({
            "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": added,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": []}
        })
    }

    /// As a safetensors file: the header's length, the header, the numbers.
    fn weights(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut numbers = Vec::new();
        for (name, shape, values) in self.tensors() {
            let from = numbers.len();
            numbers.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, numbers.len()]});
            header.insert(name.to_owned(), tensor);
        }
        let mut header = Value::Object(header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &numbers].concat()
    }

    fn tensors(&self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let follows = |said: usize, before: usize| match self.next.get(&(before as u32)) {
            Some(next) => next.contains(&(said as u32)),
            None => said == 0,
        };
        let square = |value: &dyn Fn(usize, usize) -> f32| {
            (0..SIZE * SIZE)
                .map(|index| value(index / SIZE, index % SIZE))
                .collect::<Vec<_>>()
        };
        let axes = square(&|row, column| f32::from(row == column));
        let head = square(&|said, before| if follows(said, before) { 4.0 } else { 0.0 });
        let zeros = |name, rows, columns| (name, vec![rows, columns], vec![0.0; rows * columns]);
        let ones = |name| (name, vec![SIZE], vec![1.0; SIZE]);
        vec![
            ("model.embed_tokens.weight", vec![SIZE, SIZE], axes),
            ("lm_head.weight", vec![SIZE, SIZE], head),
            ones("model.norm.weight"),
            ones("model.layers.0.input_layernorm.weight"),
            ones("model.layers.0.post_attention_layernorm.weight"),
            zeros("model.layers.0.self_attn.q_proj.weight", SIZE, SIZE),
            zeros("model.layers.0.self_attn.k_proj.weight", SIZE / 2, SIZE),
            zeros("model.layers.0.self_attn.v_proj.weight", SIZE / 2, SIZE),
            zeros("model.layers.0.self_attn.o_proj.weight", SIZE, SIZE),
            zeros("model.layers.0.mlp.gate_proj.weight", 8, SIZE),
            zeros("model.layers.0.mlp.up_proj.weight", 8, SIZE),
            zeros("model.layers.0.mlp.down_proj.weight", SIZE, 8),
        ]
    }
}

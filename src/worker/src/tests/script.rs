//! Scripted models: models with a known answer for each prompt. The tests of the worker and the e2e
//! tests share this file.
//!
//! Zero output and down projections make each block pass the embedding through unchanged. Each
//! token has a unit vector as its embedding, so the output head is a table of the next token for
//! each token. Tests run such a model with the real engine and compare its answers exactly.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

/// Vocabulary size and hidden size.
const SIZE: usize = 64;
const END: u32 = 0;
/// Context length; longer than the answer of any test.
pub(crate) const CONTEXT: u64 = 1 << 20;

/// Scripted model.
pub(crate) struct Script {
    /// Token texts as bytes. Token 0 is the end-of-text token.
    tokens: Vec<Vec<u8>>,
    /// Equally probable next tokens by token.
    next: HashMap<u32, Vec<u32>>,
    /// Special tokens except end-of-text.
    special: Vec<u32>,
    /// Tokens with an embedding that is not finite.
    broken: Vec<u32>,
    /// Cue of each line: token that starts the line.
    pub cues: Vec<u32>,
}

impl Script {
    /// Returns a model that generates a line after the line's cue. Each line consists of its tokens
    /// and a flag: `true` ends the text after the line, `false` repeats the line endlessly.
    pub(crate) fn new(lines: &[(&[&[u8]], bool)]) -> Self {
        let mut script = Self {
            tokens: vec![b"<end>".to_vec()],
            next: HashMap::new(),
            special: Vec::new(),
            broken: Vec::new(),
            cues: Vec::new(),
        };
        for (index, (pieces, ends)) in lines.iter().enumerate() {
            let cue = script.add(format!("<cue {index}>").into_bytes());
            let line: Vec<u32> = pieces.iter().map(|piece| script.add(piece.to_vec())).collect();
            let after = if *ends { END } else { line[0] };
            let from = std::iter::once(cue).chain(line.iter().copied());
            for (token, next) in from.zip(line.iter().copied().chain([after])) {
                script.next.insert(token, vec![next]);
            }
            script.cues.push(cue);
        }
        script
    }

    /// Replaces a line by endless random letters: all `letters` are equally probable.
    pub(crate) fn choose(&mut self, line: usize, letters: std::ops::RangeInclusive<u8>) {
        let choices: Vec<u32> = letters.map(|letter| self.add(vec![letter])).collect();
        for token in choices.iter().copied().chain([self.cues[line]]) {
            self.next.insert(token, choices.clone());
        }
    }

    /// Sets the text of a line's cue.
    pub(crate) fn rename_cue(&mut self, line: usize, text: &str) {
        self.tokens[self.cues[line] as usize] = text.as_bytes().to_vec();
    }

    /// Marks the token with this text as special.
    pub(crate) fn make_special(&mut self, text: &str) {
        let place = self
            .tokens
            .iter()
            .position(|token| token == text.as_bytes())
            .expect("script has the token");
        self.special.push(place as u32);
    }

    /// Makes the model compute NaN after the cue of a line.
    pub(crate) fn break_line(&mut self, line: usize) {
        self.broken.push(self.cues[line]);
    }

    /// Makes the model compute NaN for each prompt.
    pub(crate) fn break_all(&mut self) {
        self.broken = (0..SIZE as u32).collect();
    }

    fn add(&mut self, text: Vec<u8>) -> u32 {
        self.tokens.push(text);
        assert!(self.tokens.len() <= SIZE);
        self.tokens.len() as u32 - 1
    }

    /// Writes the model directory with a chat template. Messages contain the text `<cue INDEX>` to
    /// start a line.
    pub(crate) fn write_for_chats(&self, dir: impl AsRef<Path>, template: &str) {
        let dir = dir.as_ref();
        self.write(dir);
        std::fs::write(dir.join("chat_template.jinja"), template).expect("directory is writable");
    }

    pub(crate) fn write(&self, dir: impl AsRef<Path>) {
        let dir = dir.as_ref();
        let config = json!({
            "model_type": "llama", "hidden_size": SIZE, "num_hidden_layers": 1, "intermediate_size": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": SIZE,
            "max_position_embeddings": CONTEXT, "tie_word_embeddings": false, "eos_token_id": END
        });
        std::fs::write(dir.join("config.json"), config.to_string()).expect("directory is writable");
        std::fs::write(dir.join("tokenizer.json"), self.tokenizer().to_string())
            .expect("directory is writable");
        std::fs::write(dir.join("model.safetensors"), self.weights()).expect("directory is writable");
    }

    fn is_added(&self, id: u32) -> bool {
        id == END || self.cues.contains(&id) || self.special.contains(&id)
    }

    fn tokenizer(&self) -> Value {
        // The byte-level alphabet of GPT-2, which the decoder `ByteLevel` expects.
        let plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let others: Vec<u8> = (0..=255).filter(|byte| !plain(*byte)).collect();
        let character = |byte: &u8| match others.iter().position(|other| other == byte) {
            None => char::from(*byte),
            Some(index) => char::from_u32(0x100 + index as u32).expect("code point is valid"),
        };
        let mut vocab = serde_json::Map::new();
        for (id, bytes) in self.tokens.iter().enumerate() {
            let added = self.is_added(id as u32);
            let text = match String::from_utf8(bytes.clone()) {
                // Added tokens are plain text, not in the byte-level alphabet.
                Ok(text) if added => text,
                Ok(_) | Err(_) => bytes.iter().map(character).collect(),
            };
            assert!(
                vocab.insert(text.clone(), json!(id)).is_none(),
                "duplicate token `{text}`"
            );
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

    /// Returns a safetensors file: length of the header, header, values.
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
        let follows = |token: usize, previous: usize| match self.next.get(&(previous as u32)) {
            Some(next) => next.contains(&(token as u32)),
            None => token == 0,
        };
        let square = |value: &dyn Fn(usize, usize) -> f32| {
            (0..SIZE * SIZE)
                .map(|index| value(index / SIZE, index % SIZE))
                .collect::<Vec<_>>()
        };
        let unit_vectors = square(&|row, column| match self.broken.contains(&(row as u32)) {
            true => f32::NAN,
            false => f32::from(row == column),
        });
        let head = square(&|token, previous| if follows(token, previous) { 4.0 } else { 0.0 });
        let zeros = |name, rows, columns| (name, vec![rows, columns], vec![0.0; rows * columns]);
        let ones = |name| (name, vec![SIZE], vec![1.0; SIZE]);
        vec![
            ("model.embed_tokens.weight", vec![SIZE, SIZE], unit_vectors),
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

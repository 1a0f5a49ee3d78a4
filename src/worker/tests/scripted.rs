//! Scripted models: the exact text is known without real weights.
//!
//! With zero output and down projections a block passes the embedding through unchanged. Each token's embedding is an
//! axis of its own, so the head is a table: for each token, the token that follows. What the API makes of that text can
//! be asserted to the letter, through the real engine.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, TensorView};

use super::*;

const SIZE: usize = 64;
const END: u32 = 0;
/// More than any test lives to see.
const CONTEXT: u64 = 1 << 20;

/// A model that never stops by itself, a configuration that serves it, and the prompt that starts it.
pub(super) fn endless() -> (tempfile::TempDir, WorkerConfig, u32) {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::new(&[(&[b"ab", b"cd"], false)]);
    script.write(dir.path());
    let config = WorkerConfig {
        model: Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap(),
        context_tokens: Some(CONTEXT),
        ..config()
    };
    (dir, config, script.cues[0])
}

/// A model that follows `script`.
pub(super) struct Script {
    /// Token texts, in bytes; token 0 is the end of text.
    tokens: Vec<Vec<u8>>,
    next: HashMap<u32, Vec<u32>>,
    /// Tokens that are no text, besides the end.
    special: Vec<u32>,
    /// First token of each line.
    pub(super) cues: Vec<u32>,
}

impl Script {
    /// Each line is said after its cue, token by token. A line that ends in `true` ends the text; another one begins
    /// again at its first piece.
    pub(super) fn new(lines: &[(&[&[u8]], bool)]) -> Self {
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

    /// Another text that starts a line.
    pub(super) fn rename_cue(&mut self, line: usize, text: &str) {
        self.tokens[self.cues[line] as usize] = text.as_bytes().to_vec();
    }

    /// Makes the token with this text a special one.
    pub(super) fn make_special(&mut self, text: &str) {
        let place = self
            .tokens
            .iter()
            .position(|token| token == text.as_bytes())
            .unwrap();
        self.special.push(u32::try_from(place).unwrap());
    }

    fn add(&mut self, text: Vec<u8>) -> u32 {
        self.tokens.push(text);
        assert!(self.tokens.len() <= SIZE);
        u32::try_from(self.tokens.len() - 1).unwrap()
    }

    /// Of a model for chats, too: `template` renders them, a line's cue being the text `<cue INDEX>`.
    pub(super) fn write_for_chats(&self, dir: &std::path::Path, template: &str) {
        self.write(dir);
        std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
    }

    pub(super) fn write(&self, dir: &std::path::Path) {
        let config = json!({
            "model_type": "llama", "hidden_size": SIZE, "num_hidden_layers": 1, "intermediate_size": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": SIZE,
            "max_position_embeddings": CONTEXT, "tie_word_embeddings": false, "eos_token_id": END
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), self.tokenizer().to_string()).unwrap();
        safetensors::serialize_to_file(
            self.tensors().iter().map(|(name, tensor)| (*name, tensor.view())),
            None,
            &dir.join("model.safetensors"),
        )
        .unwrap();
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
            Some(index) => char::from_u32(0x100 + u32::try_from(index).unwrap()).unwrap(),
        };
        let mut vocab = serde_json::Map::new();
        for (id, bytes) in self.tokens.iter().enumerate() {
            let added = self.is_added(u32::try_from(id).unwrap());
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
                json!({"id": id, "content": String::from_utf8(bytes.clone()).unwrap(), "single_word": false,
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

    fn tensors(&self) -> Vec<(&'static str, Floats)> {
        let axes = Floats::new(&[SIZE, SIZE], |index| f32::from(index / SIZE == index % SIZE));
        let head = Floats::new(&[SIZE, SIZE], |index| {
            let (said, before) = (index / SIZE, u32::try_from(index % SIZE).unwrap());
            let follows = self
                .next
                .get(&before)
                .map_or(said == 0, |next| next.contains(&(said as u32)));
            if follows { 4.0 } else { 0.0 }
        });
        let zeros = |rows, columns| Floats::new(&[rows, columns], |_| 0.0);
        let ones = || Floats::new(&[SIZE], |_| 1.0);
        vec![
            ("model.embed_tokens.weight", axes),
            ("lm_head.weight", head),
            ("model.norm.weight", ones()),
            ("model.layers.0.input_layernorm.weight", ones()),
            ("model.layers.0.post_attention_layernorm.weight", ones()),
            ("model.layers.0.self_attn.q_proj.weight", zeros(SIZE, SIZE)),
            ("model.layers.0.self_attn.k_proj.weight", zeros(SIZE / 2, SIZE)),
            ("model.layers.0.self_attn.v_proj.weight", zeros(SIZE / 2, SIZE)),
            ("model.layers.0.self_attn.o_proj.weight", zeros(SIZE, SIZE)),
            ("model.layers.0.mlp.gate_proj.weight", zeros(8, SIZE)),
            ("model.layers.0.mlp.up_proj.weight", zeros(8, SIZE)),
            ("model.layers.0.mlp.down_proj.weight", zeros(SIZE, 8)),
        ]
    }
}

struct Floats {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Floats {
    fn new(shape: &[usize], value: impl Fn(usize) -> f32) -> Self {
        let count = shape.iter().product();
        Self {
            shape: shape.to_vec(),
            bytes: (0..count).flat_map(|index| value(index).to_le_bytes()).collect(),
        }
    }

    fn view(&self) -> TensorView<'_> {
        TensorView::new(Dtype::F32, self.shape.clone(), &self.bytes).unwrap()
    }
}

/// Asks after `cue` and returns text, finish reason and tokens, first whole and then streamed: both must agree. The
/// streamed pieces come last.
async fn say(worker: &Subject, cue: u32, extra: Value) -> (String, String, u64, Vec<String>) {
    let body = merged(
        json!({"model": "tiny", "prompt": [cue], "max_tokens": 40, "temperature": 0}),
        extra,
    );
    let whole = worker.post("/v1/completions", &body).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let choice = &whole["choices"][0];
    let (text, reason) = (
        choice["text"].as_str().unwrap(),
        choice["finish_reason"].as_str().unwrap(),
    );

    let streaming = merged(
        body,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut events = worker.post("/v1/completions", &streaming).await.events();
    assert_eq!(events.pop().unwrap()["usage"], whole["usage"]);
    assert_eq!(events.pop().unwrap()["choices"][0]["finish_reason"], reason);
    let pieces: Vec<String> = events
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(pieces.concat(), text);
    (
        text.to_owned(),
        reason.to_owned(),
        whole["usage"]["completion_tokens"].as_u64().unwrap(),
        pieces,
    )
}

#[test]
fn what_a_scripted_model_says_is_told_to_the_letter() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::new(&[
        (
            &[b"H", b"\xc3", b"\xa9", b"llo ", b"\xf0\x9f", b"\x91\x8b", b"!"],
            true,
        ),
        (&[b"ab", b"cd"], false),
        (&[b"cut \xe2\x82"], true),
        (&[b"alpha", b" om", b"ega E", b"N", b"D tail"], true),
        (&[b"almost ", b"EN"], true),
        (&[b"x\xff", b"y"], true),
    ]);
    script.write(dir.path());
    let cues = script.cues.clone();
    let config = WorkerConfig {
        model: Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let said = |text: &str, reason: &str, tokens: u64, pieces: &[&str]| {
                (
                    text.to_owned(),
                    reason.to_owned(),
                    tokens,
                    pieces.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
                )
            };
            // Characters come out whole; the end of text counts as a token and is no text.
            let hello = said("Héllo 👋!", "stop", 8, &["H", "é", "llo ", "👋", "!"]);
            assert_eq!(say(worker, cues[0], json!({})).await, hello);
            // A text without end is cut at exactly max_tokens.
            for max_tokens in [1_u64, 2, 7, 33] {
                let (text, reason, tokens, _) = say(worker, cues[1], json!({"max_tokens": max_tokens})).await;
                assert_eq!((reason.as_str(), tokens), ("length", max_tokens));
                assert_eq!(text, "abcd".repeat(20)[..2 * max_tokens as usize]);
            }
            // Half a character at the end, by end of text and by max_tokens.
            assert_eq!(
                say(worker, cues[2], json!({})).await,
                said("cut \u{fffd}", "stop", 2, &["cut ", "\u{fffd}"])
            );
            let two = json!({"max_tokens": 2});
            assert_eq!(
                say(worker, cues[0], two).await,
                said("H\u{fffd}", "length", 2, &["H", "\u{fffd}"])
            );
            // A stop string over three tokens: nothing of it is seen, and nothing is computed after it.
            let stop = json!({"stop": ["never", "END"]});
            assert_eq!(
                say(worker, cues[3], stop.clone()).await,
                said("alpha omega ", "stop", 5, &["alpha", " om", "ega "])
            );
            // What was held back as its beginning is text when the end comes.
            assert_eq!(
                say(worker, cues[4], stop).await,
                said("almost EN", "stop", 3, &["almost ", "EN"])
            );
            assert_eq!(
                say(worker, cues[5], json!({})).await,
                said("x\u{fffd}y", "stop", 3, &["x\u{fffd}", "y"])
            );
        })
    });
}

/// vLLM's parameters, with its meanings.
#[test]
fn an_answer_ends_where_the_request_says() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::new(&[(&[b"a", b"b"], true)]);
    script.write(dir.path());
    let cue = script.cues[0];
    let config = WorkerConfig {
        model: Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let said = async |extra: Value| {
                let (text, reason, tokens, _) = say(worker, cue, extra).await;
                (text, reason, tokens)
            };
            let expect = |text: &str, reason: &str, tokens: u64| (text.to_owned(), reason.to_owned(), tokens);
            assert_eq!(said(json!({})).await, expect("ab", "stop", 3));
            let b = cue + 2;
            assert_eq!(said(json!({"stop_token_ids": [b]})).await, expect("a", "stop", 2));
            // The end of text is no text, and here it is followed by itself.
            assert_eq!(
                said(json!({"ignore_eos": true, "max_tokens": 6})).await,
                expect("ab", "length", 6)
            );
            // Where it must not end, the cue's is the first of the equally probable tokens.
            assert_eq!(
                said(json!({"min_tokens": 5})).await,
                expect("ab<cue 0>ab", "stop", 6)
            );
            assert_eq!(
                said(json!({"min_tokens": 3, "stop": "b", "stop_token_ids": [b]})).await,
                expect("a<cue 0>a", "stop", 4)
            );
            let ask = |extra: Value| {
                let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 9, "temperature": 0});
                merged(body, extra)
            };
            for (extra, reason) in [
                (json!({"stop": ["x", "b"]}), json!("b")),
                (json!({"stop_token_ids": [b]}), json!(b)),
            ] {
                let answer = worker.post("/v1/completions", &ask(extra)).await.json();
                assert_eq!(answer["choices"][0]["stop_reason"], reason);
            }
            for (extra, param) in [
                (json!({"min_tokens": 10}), "min_tokens"),
                (json!({"stop_token_ids": [64]}), "stop_token_ids"),
                (json!({"ignore_eos": 1}), "ignore_eos"),
            ] {
                let answer = worker.post("/v1/completions", &ask(extra)).await;
                assert_eq!(
                    (answer.status.as_u16(), &answer.json()["error"]["param"]),
                    (400, &json!(param))
                );
            }
        })
    });
}

#[test]
fn equal_chances_are_taken_equally() {
    let dir = tempfile::tempdir().unwrap();
    let mut script = Script::new(&[(&[b"-"], true)]);
    let cue = script.cues[0];
    let choices: Vec<u32> = (b'a'..=b'p').map(|letter| script.add(vec![letter])).collect();
    for token in choices.iter().copied().chain([cue]) {
        script.next.insert(token, choices.clone());
    }
    script.write(dir.path());
    let config = WorkerConfig {
        model: Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 240, "temperature": 1, "top_k": 16,
                              "seed": 5});
            let answer = worker.post("/v1/completions", &body).await.json();
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert_eq!(text.len(), 240, "{text}");
            for letter in 'a'..='p' {
                // 15 are expected; 4 standard deviations are 15.
                let count = text.chars().filter(|c| *c == letter).count();
                assert!((1..=30).contains(&count), "{count} × {letter} in {text}");
            }
            let one =
                json!({"model": "tiny", "prompt": [cue], "max_tokens": 20, "temperature": 1, "top_k": 1});
            let answer = worker.post("/v1/completions", &one).await.json();
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert!(
                text.chars().all(|c| text.starts_with(c)),
                "one candidate leaves no choice: {text}"
            );
        })
    });
}

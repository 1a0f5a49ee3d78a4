use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::detokenizer::Detokenizer;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn guide() -> Tokenizer {
    let dir = root().join("examples/models/guide");
    let bytes = std::fs::read(dir.join("tokenizer.json")).unwrap();
    let config = json(&dir.join("tokenizer_config.json"));
    let generation = json(&dir.join("generation_config.json"));
    Tokenizer::new(&bytes, config.as_ref(), generation.as_ref(), &[2, 0]).unwrap()
}

/// Returns a sentencepiece-style tokenizer like that of Llama 2: `▁` for spaces, one token per byte
/// for unknown characters.
fn sentencepiece() -> Tokenizer {
    let mut vocab = json!({"<unk>": 0, "<s>": 1, "</s>": 2});
    for byte in 0..=255_u32 {
        vocab[format!("<0x{byte:02X}>")] = json!(byte + 3);
    }
    for (index, piece) in ["▁", "a", "b", "▁a", "é", "▁▁"].iter().enumerate() {
        vocab[*piece] = json!(259 + index);
    }
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["▁ a", "▁ ▁"], "byte_fallback": true, "unk_token": "<unk>"}
    });
    Tokenizer::new(file.to_string().as_bytes(), None, None, &[]).unwrap()
}

fn stream(tokenizer: &Tokenizer, tokens: &[u32]) -> (Vec<String>, String) {
    let mut detokenizer = Detokenizer::new(tokenizer, &[].into());
    let pieces = tokens
        .iter()
        .map(|token| detokenizer.push(tokenizer, *token).unwrap())
        .collect();
    (pieces, detokenizer.flush(tokenizer).unwrap())
}

#[test]
fn decoding_matches_reference() {
    let fixture = json(&root().join("e2e/fixtures/chat.json")).unwrap();
    let tokenizer = guide();
    for case in fixture["decode"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let (pieces, rest) = stream(&tokenizer, &ids);
        assert_eq!(
            (json!(pieces), json!(rest)),
            (case["pieces"].clone(), case["rest"].clone()),
            "{ids:?}"
        );
    }
}

#[test]
fn encoding_matches_reference() {
    let fixture = json(&root().join("e2e/fixtures/chat.json")).unwrap();
    let tokenizer = guide();
    for case in fixture["chat"].as_array().unwrap() {
        let ids = tokenizer.encode_chat(case["text"].as_str().unwrap()).unwrap();
        assert_eq!(json!(ids), case["ids"], "{}", case["name"]);
    }
}

#[test]
fn merges_eos_tokens_of_all_files() {
    assert_eq!(guide().eos_token_ids, [0, 2]);
    let generation = json!({"eos_token_id": 7});
    let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
    let config = json!({"eos_token": {"content": "<|im_end|>"}});
    let tokenizer = Tokenizer::new(&bytes, Some(&config), Some(&generation), &[5]).unwrap();
    assert_eq!(tokenizer.eos_token_ids, [2, 5, 7]);
}

#[test]
fn error_names_the_invalid_file() {
    let message = |tokenizer: &[u8], config: Value| {
        Tokenizer::new(tokenizer, Some(&config), None, &[])
            .unwrap_err()
            .to_string()
    };
    assert!(message(b"{}", json!({})).starts_with("tokenizer.json: "));
    let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
    assert_eq!(
        message(&bytes, json!({"bos_token": 5})),
        "tokenizer_config.json: field `bos_token` must be a string or an object with a string `content`"
    );
}

#[test]
fn special_tokens_have_their_template_names() {
    let config = json!({
        "bos_token": {"content": "<s>"}, "pad_token": null, "unk_token": "<unk>", "add_bos_token": true,
        "extra_special_tokens": {"image": "<image>"}
    });
    let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::new(&bytes, Some(&config), None, &[]).unwrap();
    let named: Vec<(&str, &str)> = tokenizer
        .named_tokens()
        .iter()
        .map(|(name, token)| (name.as_str(), token.as_str()))
        .collect();
    assert_eq!(
        named,
        [("bos_token", "<s>"), ("image", "<image>"), ("unk_token", "<unk>")]
    );
}

#[test]
fn permits_few_added_tokens_without_embedding() {
    let with_added = |count: u32| {
        let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        let added = (1024..1024 + count).map(|id| {
            json!({"id": id, "content": format!("<{id}>"), "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        });
        file["added_tokens"].as_array_mut().unwrap().extend(added);
        Tokenizer::new(file.to_string().as_bytes(), None, None, &[]).unwrap()
    };
    assert_eq!(guide().check_vocab_size(1024).unwrap(), None);
    assert_eq!(with_added(2).check_vocab_size(1026).unwrap(), None);
    assert_eq!(with_added(2).check_vocab_size(1024).unwrap(), Some(1024));
    assert_eq!(with_added(2).check_vocab_size(1025).unwrap(), Some(1025));
    for (tokenizer, vocab_size, tokens) in [(guide(), 1000, 1024), (with_added(100), 1024, 1124)] {
        assert_eq!(
            tokenizer.check_vocab_size(vocab_size).unwrap_err().to_string(),
            format!(
                "tokenizer.json has {tokens} tokens but config.json has vocab_size {vocab_size}: the files belong to different models"
            )
        );
    }
}

#[test]
fn invalid_bytes_do_not_affect_other_text() {
    let tokenizer = sentencepiece();
    let byte = |byte: u32| byte + 3;
    // A line break, the beginning of a character, and a word.
    let (pieces, rest) = stream(&tokenizer, &[byte(0x0a), byte(0xc3), 262]);
    assert_eq!(
        (pieces.as_slice(), rest.as_str()),
        (&["\n", "", "\u{fffd} a"].map(str::to_owned)[..], "")
    );
}

#[test]
fn withheld_state_does_not_grow() {
    let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&bytes).unwrap();
    file["decoder"] = json!({"type": "Sequence", "decoders": [file["decoder"]]});
    let nested = Tokenizer::new(file.to_string().as_bytes(), None, None, &[]).unwrap();
    let stray = nested.token_id("\u{ff}").unwrap();
    let replaced = "\u{fffd}".repeat(300);
    // Special tokens, unknown tokens, and bytes that are not UTF-8.
    for (tokenizer, token, expected) in [
        (&sentencepiece(), 2, ""),
        (&sentencepiece(), 9999, ""),
        (&sentencepiece(), 0xff + 3, replaced.as_str()),
        (&nested, stray, replaced.as_str()),
    ] {
        let mut detokenizer = Detokenizer::new(tokenizer, &[].into());
        let mut text = String::new();
        for _ in 0..300 {
            text.push_str(&detokenizer.push(tokenizer, token).unwrap());
        }
        assert!(format!("{detokenizer:?}").len() < 400, "{detokenizer:?}");
        assert_eq!(text + &detokenizer.flush(tokenizer).unwrap(), expected, "{token}");
    }
}

#[test]
fn decodes_characters_that_span_tokens() {
    let tokenizer = sentencepiece();
    let ids = tokenizer.encode_prompt("a €b").unwrap();
    let (pieces, rest) = stream(&tokenizer, &ids);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("a €b", ""));
    // The character has three bytes and is returned with the last.
    assert_eq!(pieces.iter().filter(|piece| piece.is_empty()).count(), 2);
}

#[test]
fn text_starts_without_a_space_unless_it_continues_a_prompt() {
    let tokenizer = sentencepiece();
    let ids = tokenizer.encode_prompt("a").unwrap();
    // No prompt, one without text, and one that ends inside a character.
    for prompt in [&[][..], &[1], &[0xe2 + 3, 0x82 + 3]] {
        let detokenizer = Detokenizer::new(&tokenizer, &[].into());
        let piece = detokenizer
            .after_prompt(&tokenizer, prompt)
            .push(&tokenizer, ids[0]);
        assert_eq!(piece.unwrap(), "a", "{prompt:?}");
    }
    let detokenizer = Detokenizer::new(&tokenizer, &[].into());
    let after = [ids[0], 1, 2];
    let piece = detokenizer
        .after_prompt(&tokenizer, &after)
        .push(&tokenizer, ids[0]);
    assert_eq!(piece.unwrap(), " a", "special tokens are ignored");
}

proptest! {
    #[test]
    fn pieces_form_the_text(text in "[ab é€👋\n]{0,12}") {
        for tokenizer in [guide(), sentencepiece()] {
            let ids = tokenizer.encode_prompt(&text).unwrap();
            let (pieces, rest) = stream(&tokenizer, &ids);
            prop_assert_eq!(pieces.concat() + &rest, text.clone());
        }
    }

    /// A text that is split between two characters is preserved, including spaces at the split.
    #[test]
    fn answer_continues_its_prompt(text in "[ab é€👋]{2,12}", cut in 1_usize..24) {
        let tokenizer = sentencepiece();
        let ids = tokenizer.encode_prompt(&text).unwrap();
        let (prompt, answer) = ids.split_at(cut.min(ids.len()));
        let start = tokenizer.decode(prompt).unwrap();
        prop_assume!(!start.is_empty() && text.starts_with(&start));
        let mut detokenizer = Detokenizer::new(&tokenizer, &[].into()).after_prompt(&tokenizer, prompt);
        let pieces: String = answer.iter().map(|token| detokenizer.push(&tokenizer, *token).unwrap()).collect();
        prop_assert_eq!(start + &pieces + &detokenizer.flush(&tokenizer).unwrap(), text);
    }

    #[test]
    fn decodes_any_tokens_without_partial_characters(ids in proptest::collection::vec(0_u32..1024, 0..24)) {
        let tokenizer = guide();
        let (pieces, rest) = stream(&tokenizer, &ids);
        prop_assert_eq!(pieces.concat() + &rest, tokenizer.decode(&ids).unwrap());
    }

    /// For a run of byte tokens that is not UTF-8, the decoder of the library returns only U+FFFD.
    /// The detokeniser returns one U+FFFD per invalid part.
    #[test]
    fn pieces_of_any_bytes_form_the_text(ids in proptest::collection::vec(0_u32..270, 0..40)) {
        let tokenizer = sentencepiece();
        let mut valid: Vec<u32> = Vec::new();
        let known: Vec<u32> = ids.iter().copied().filter(|id| (3..265).contains(id)).collect();
        for run in known.chunk_by(|a, b| *a < 259 && *b < 259) {
            let bytes: Vec<u8> = run.iter().filter(|id| **id < 259).map(|id| (id - 3) as u8).collect();
            valid.extend(String::from_utf8_lossy(&bytes).bytes().map(|byte| u32::from(byte) + 3));
            valid.extend(run.iter().filter(|id| **id >= 259));
        }
        let (pieces, rest) = stream(&tokenizer, &ids);
        prop_assert!(rest.chars().count() <= 1);
        prop_assert_eq!(pieces.concat() + &rest, tokenizer.decode(&valid).unwrap());
    }
}

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::text::detokenizer::Detokenizer;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
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

/// A sentencepiece-style tokenizer as Llama 2 has it: `▁` for spaces, one token per byte for everything unknown.
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
fn decodings_of_the_reference() {
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
fn prompts_of_the_reference() {
    let fixture = json(&root().join("e2e/fixtures/chat.json")).unwrap();
    let tokenizer = guide();
    for case in fixture["chat"].as_array().unwrap() {
        let ids = tokenizer.encode_chat(case["text"].as_str().unwrap()).unwrap();
        assert_eq!(json!(ids), case["ids"], "{}", case["name"]);
    }
}

#[test]
fn every_file_may_name_an_end() {
    assert_eq!(guide().eos_token_ids, [0, 2]);
    let generation = json!({"eos_token_id": 7});
    let bytes = std::fs::read(root().join("examples/models/guide/tokenizer.json")).unwrap();
    let config = json!({"eos_token": {"content": "<|im_end|>"}});
    let tokenizer = Tokenizer::new(&bytes, Some(&config), Some(&generation), &[5]).unwrap();
    assert_eq!(tokenizer.eos_token_ids, [2, 5, 7]);
}

#[test]
fn unusable_files_are_named() {
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
    assert!(guide().check_fits(1024).is_ok());
    assert!(
        guide()
            .check_fits(1000)
            .unwrap_err()
            .to_string()
            .contains("vocab_size of 1000")
    );
}

#[test]
fn bytes_spread_over_tokens_come_out_whole() {
    let tokenizer = sentencepiece();
    let ids = tokenizer.encode_prompt("a €b").unwrap();
    let (pieces, rest) = stream(&tokenizer, &ids);
    assert_eq!((pieces.concat().as_str(), rest.as_str()), ("a €b", ""));
    // Three bytes of the sign, shown with the last.
    assert_eq!(pieces.iter().filter(|piece| piece.is_empty()).count(), 2);
}

#[test]
fn a_text_that_begins_begins_without_a_space() {
    let tokenizer = sentencepiece();
    let ids = tokenizer.encode_prompt("a").unwrap();
    // No prompt, one without text, and one that ends within a character.
    for prompt in [&[][..], &[1], &[0xe2 + 3, 0x82 + 3]] {
        let detokenizer = Detokenizer::new(&tokenizer, &[].into());
        let piece = detokenizer
            .going_on_with(&tokenizer, prompt)
            .push(&tokenizer, ids[0]);
        assert_eq!(piece.unwrap(), "a", "{prompt:?}");
    }
    let detokenizer = Detokenizer::new(&tokenizer, &[].into());
    let behind = [ids[0], 1, 2];
    let piece = detokenizer
        .going_on_with(&tokenizer, &behind)
        .push(&tokenizer, ids[0]);
    assert_eq!(piece.unwrap(), " a", "special tokens are no text");
}

proptest! {
    #[test]
    fn pieces_make_up_the_text(text in "[ab é€👋\n]{0,12}") {
        for tokenizer in [guide(), sentencepiece()] {
            let ids = tokenizer.encode_prompt(&text).unwrap();
            let (pieces, rest) = stream(&tokenizer, &ids);
            prop_assert_eq!(pieces.concat() + &rest, text.clone());
        }
    }

    /// However a text is cut between two characters, the parts make it up again: no space is lost at the cut.
    #[test]
    fn an_answer_goes_on_with_its_prompt(text in "[ab é€👋]{2,12}", cut in 1_usize..24) {
        let tokenizer = sentencepiece();
        let ids = tokenizer.encode_prompt(&text).unwrap();
        let (prompt, answer) = ids.split_at(cut.min(ids.len()));
        let said = tokenizer.decode(prompt).unwrap();
        prop_assume!(!said.is_empty() && text.starts_with(&said));
        let mut detokenizer = Detokenizer::new(&tokenizer, &[].into()).going_on_with(&tokenizer, prompt);
        let pieces: String = answer.iter().map(|token| detokenizer.push(&tokenizer, *token).unwrap()).collect();
        prop_assert_eq!(said + &pieces + &detokenizer.flush(&tokenizer).unwrap(), text);
    }

    #[test]
    fn any_tokens_make_text_without_partial_characters(ids in proptest::collection::vec(0_u32..1024, 0..24)) {
        let tokenizer = guide();
        let (pieces, rest) = stream(&tokenizer, &ids);
        prop_assert_eq!(pieces.concat() + &rest, tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn stray_bytes_do_not_hold_text_back_for_ever(ids in proptest::collection::vec(3_u32..259, 12..40)) {
        let tokenizer = sentencepiece();
        let (pieces, rest) = stream(&tokenizer, &ids);
        prop_assert!(pieces.concat().len() + 3 * MAX_TRAILING >= tokenizer.decode(&ids).unwrap().len() / 3);
        prop_assert!(rest.chars().count() <= MAX_TRAILING);
    }
}

/// Characters that may still be held when a text ends: one for each of four tokens, and where these make the character
/// before them no text any more (decoders take bytes that follow one another together), one more for each of its bytes but
/// the first.
const MAX_TRAILING: usize = 7;

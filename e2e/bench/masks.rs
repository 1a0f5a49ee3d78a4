//! Cost per token of the logits masks for a JSON Schema, in this process: a real vocabulary, no
//! model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rooflet::bench::{MaskBench, MaskVocabulary};

use crate::stats::{Samples, head, milliseconds, row};

/// PyPI package that contains the token ranks of OpenAI's `o200k_base`.
const PACKAGE: &str = "litellm==1.106.2";
/// Path of the ranks in the package.
const RANKS: &str = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790";

/// Vocabulary sizes: Qwen3's, and that of `o200k_base`.
const SIZES: [usize; 2] = [151_643, 199_998];
/// Number of answers per schema. From the second answer on, the caches are filled.
const ANSWERS: usize = 5;

/// Schema and a matching answer.
struct Case {
    name: &'static str,
    schema: &'static str,
    answer: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        name: "object of 6 members, nested",
        schema: r#"{"type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "address", "active", "notes"],
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
            "address": {"type": "object", "required": ["street", "city"], "additionalProperties": false,
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}}},
            "active": {"type": "boolean"}, "notes": {"type": "string"}}}"#,
        answer: r#"{"name": "Ada Lovelace", "age": 36, "tags": ["red", "blue"], "address": {"street": "12 St James's Square", "city": "London"}, "active": true, "notes": "She described, in 1843, how the Analytical Engine could compute Bernoulli numbers; the first published program. Élégant, n'est-ce pas? \"Quoted\" text\nand a second line of it follows here."}"#,
    },
    Case {
        name: "any JSON object",
        schema: r#"{"type": "object"}"#,
        answer: r#"{"items": [{"id": 1, "title": "First thing", "price": 12.5}, {"id": 2, "title": "Zweites Ding", "price": -3e2}], "next": null, "total": {"count": 2, "sum": -287.5}}"#,
    },
    Case {
        name: "strings of bounded length",
        schema: r#"{"type": "object", "additionalProperties": false, "required": ["title", "summary"],
            "properties": {"title": {"type": "string", "maxLength": 60}, "summary": {"type": "string", "minLength": 10, "maxLength": 400}}}"#,
        answer: r#"{"title": "Continuous batching on unified memory", "summary": "A request joins the batch at the next step and leaves it when it is done, so that no row waits for another. The prompt is read in chunks between steps; each chunk is as large as those that decode can bear."}"#,
    },
    Case {
        name: "patterns, dates, one of three kinds",
        schema: r#"{"type": "object", "additionalProperties": false, "required": ["sku", "when", "event"],
            "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}(-[a-z]+)?$"}, "when": {"type": "string", "format": "date-time"},
            "event": {"anyOf": [
                {"type": "object", "additionalProperties": false, "required": ["kind", "by"], "properties": {"kind": {"const": "sold"}, "by": {"type": "string"}}},
                {"type": "object", "additionalProperties": false, "required": ["kind", "reason"], "properties": {"kind": {"const": "returned"}, "reason": {"type": "string"}}},
                {"type": "null"}]}}}"#,
        answer: r#"{"sku": "ABC-12345-large", "when": "2026-03-01T12:30:00Z", "event": {"kind": "returned", "reason": "the box was open"}}"#,
    },
];

pub(crate) fn run() {
    let Some(ranks) = ranks() else {
        println!("NOT RUN: this benchmark needs `python3 -m pip` and access to PyPI for {PACKAGE}.");
        return;
    };
    head(&[
        "tokens",
        "schema",
        "grammar, ms",
        "first mask, ms",
        "mask, first answer, ms",
        "slowest, ms",
        "mask, later answers, ms",
        "slowest, ms",
    ]);
    for size in SIZES {
        let tokens = &ranks[..size.min(ranks.len())];
        let began = Instant::now();
        let vocabulary = MaskVocabulary::new(tokens.to_vec());
        let building = milliseconds(began.elapsed());
        let known: HashMap<&[u8], u32> = (0_u32..)
            .zip(tokens)
            .map(|(token, bytes)| (&bytes[..], token))
            .collect();
        for case in &CASES {
            measure(case, tokens.len(), &vocabulary, &known);
        }
        println!(
            "| {} | building the vocabulary, once, {building:.0} ms | | | | | | |",
            tokens.len()
        );
    }
}

fn measure(case: &Case, size: usize, vocabulary: &MaskVocabulary, known: &HashMap<&[u8], u32>) {
    let began = Instant::now();
    let mut begun = MaskBench::new(case.schema, vocabulary).expect("a supported schema");
    let grammar = milliseconds(began.elapsed());
    let began = Instant::now();
    begun.mask().expect("a token is allowed");
    let first = milliseconds(began.elapsed());
    let tokens = longest(case.answer.as_bytes(), known);
    let mut answers = (0..ANSWERS).map(|_| {
        let mut trial = begun.clone();
        let masks: Vec<f64> = tokens
            .iter()
            .map(|token| {
                let began = Instant::now();
                trial.mask().expect("a token is allowed");
                let took = milliseconds(began.elapsed());
                trial.accept(*token).expect("the answer matches the schema");
                took
            })
            .collect();
        masks
    });
    let one = Samples::new(answers.next().expect("at least one answer"));
    let later = Samples::new(answers.flatten());
    row(&[
        size.to_string(),
        case.name.to_owned(),
        format!("{grammar:.2}"),
        format!("{first:.2}"),
        format!("{one:.3}"),
        format!("{:.2}", one.quantile(1.0)),
        format!("{later:.3}"),
        format!("{:.2}", later.quantile(1.0)),
    ]);
}

/// Splits a text greedily into the longest tokens. A tokenizer's split differs slightly, which does
/// not matter here.
fn longest(mut text: &[u8], known: &HashMap<&[u8], u32>) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let lengths = (1..=text.len().min(64)).rev();
        let (length, token) = lengths
            .filter_map(|length| Some((length, *known.get(&text[..length])?)))
            .next()
            .expect("every byte is a token");
        tokens.push(token);
        text = &text[length..];
    }
    tokens
}

/// Returns the bytes of each token by rank, or `None` if the package cannot be installed.
fn ranks() -> Option<Vec<Vec<u8>>> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ranks");
    let file: PathBuf = home.join(RANKS);
    if !file.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .args([&home.into_os_string(), &PACKAGE.into()]);
        if !pip.status().is_ok_and(|status| status.success()) {
            return None;
        }
    }
    let text = std::fs::read_to_string(file).expect("the package contains the file");
    let tokens = text.lines().map(|line| {
        let (token, _) = line.split_once(' ').expect("a token and its rank");
        BASE64_STANDARD.decode(token).expect("base64")
    });
    Some(tokens.collect())
}

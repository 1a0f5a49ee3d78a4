use std::ops::Range;

use camino::Utf8PathBuf;
use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::ops::indexing::argmax_axis;
use rooflet_mlx::mlx_rs::transforms::eval;

use super::*;
use crate::batch::sequence::token_row;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_decoder::Decoder;
use rooflet_mlx as mlx;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::Weights;
use rooflet_model::config::FloatType;

pub(super) const ROOMY: Bytes = Bytes::gib(1);

/// All fixture models with their resume points.
fn models() -> Vec<(String, Decoder, ResumePoints)> {
    let fixtures =
        Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("e2e/fixtures/models");
    let mut paths: Vec<Utf8PathBuf> = fixtures
        .read_dir_utf8()
        .unwrap()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    paths.sort();
    let load = |path: &Utf8PathBuf| {
        let dir = ModelDir::inspect(path).unwrap();
        let mut weights = Weights::open(&dir.weight_files, FloatType::F32).unwrap();
        let model = Decoder::load(&dir.shape, &mut weights).unwrap();
        (path.to_string(), model, ResumePoints::of(&dir.shape.config))
    };
    paths.iter().map(load).collect()
}

/// Model that keeps all tokens.
pub(super) fn model() -> Decoder {
    let mut all = models().into_iter();
    all.find(|(_, _, resume_points)| *resume_points == ResumePoints::Anywhere)
        .unwrap()
        .1
}

pub(super) fn text(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 3 + at * at % 97).collect()
}

fn bits(logits: &Array) -> Vec<u32> {
    let floats = logits.to_vec_exact::<f32>().unwrap();
    floats.into_iter().map(f32::to_bits).collect()
}

/// Runs the tokens and updates the cache only.
fn prefill(model: &Decoder, tokens: &[u32], cache: &mut KvCache) {
    model.hidden(&token_row(tokens), cache).unwrap();
    eval(cache.arrays()).unwrap();
}

/// Prefills `tokens` in chunks of `chunk` and decodes `answer` tokens greedily. Returns the tokens
/// and the bits of all logits.
pub(super) fn compute(
    model: &Decoder,
    cache: &mut KvCache,
    tokens: &[u32],
    chunk: usize,
    answer: usize,
) -> (Vec<u32>, Vec<Vec<u32>>) {
    let (mut answered, mut seen) = (Vec::new(), Vec::new());
    let (last, first) = tokens.split_last().unwrap();
    for part in first.chunks(chunk) {
        prefill(model, part, cache);
    }
    let mut logits = model.forward(&token_row(&[*last]), cache).unwrap();
    for _ in 0..answer {
        seen.push(bits(&logits));
        let token: u32 = argmax_axis(&logits, -1, false).unwrap().item_exact();
        answered.push(token);
        logits = model.forward(&token_row(&[token]), cache).unwrap();
    }
    seen.push(bits(&logits));
    (answered, seen)
}

#[test]
fn cached_prefixes_do_not_change_logits() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    for (name, model, resume_points) in models() {
        if resume_points != ResumePoints::Anywhere {
            continue;
        }
        let mut prefixes = PrefixCache::new(ROOMY, resume_points);
        let mut row = model.new_cache();
        let mut tokens = text(530);
        let (response, _) = compute(&model, &mut row, &tokens, 100, 9);
        tokens.extend(&response);
        prefixes
            .store("", &tokens, &row, StoreStage::Finished, ROOMY)
            .unwrap();
        // Stored blocks must not change when the row continues.
        compute(&model, &mut row, &text(40), 7, 1);
        // Prefixes that end within the first block, at its end, within the last block, and after
        // the answer; and the very same text.
        for (same, more) in [
            (17, 5),
            (256, 1),
            (300, 33),
            (535, 300),
            (539, 1),
            (539, 0),
            (530, 0),
        ] {
            let mut prompt = tokens[..same].to_vec();
            prompt.extend((0..more).map(|at| 90 - at % 50));
            let fresh = compute(&model, &mut model.new_cache(), &prompt, 2048, 3);
            let found = prefixes
                .find("", &prompt, &model.new_cache())
                .unwrap()
                .expect("the prefix is cached");
            assert!(
                found.tokens == same || found.tokens == prompt.len() - 1,
                "{}",
                found.tokens
            );
            let mut cache = found.cache;
            let reused = compute(&model, &mut cache, &prompt[found.tokens..], 2048, 3);
            assert!(reused == fresh, "{name}: {same} tokens and {more} other tokens");
        }
    }
}

/// A request continues in the row in place, or in a copy if the capacity is too small or too large.
/// The row includes the answer of the other request.
#[test]
fn idle_rows_do_not_change_logits() {
    let _mlx = mlx::exclusive();
    for (name, model, resume_points) in models() {
        let mut prefixes = PrefixCache::new(ROOMY, resume_points);
        for (same, more) in [(539, 0), (530, 40), (300, 0), (535, 300)] {
            let (mut row, mut tokens) = (model.new_cache(), text(530));
            tokens.extend(compute(&model, &mut row, &tokens, 100, 9).0);
            let capacity = row.bytes();
            prefixes.store_row("", tokens.clone(), row, ROOMY);
            let mut prompt = tokens[..same].to_vec();
            prompt.extend((0..more).map(|at| 90 - at % 50));
            let found = prefixes.take_row("", &prompt, 0, prompt.len() + 9).unwrap();
            assert_eq!(prefixes.bytes(), Bytes::ZERO, "the request owns the row");
            if resume_points == ResumePoints::AtSnapshots {
                assert!(found.is_none(), "{name}: the row does not hold enough tokens");
                continue;
            }
            let found = found.unwrap();
            assert_eq!((found.tokens, found.in_blocks), (same.min(prompt.len() - 1), 0));
            let mut cache = found.cache;
            let room = 256 * prompt.len().div_ceil(256);
            assert_eq!(cache.bytes(), capacity / 768 * room, "{name}: {same} and {more}");
            let reused = compute(&model, &mut cache, &prompt[found.tokens..], 2048, 3);
            let fresh = compute(&model, &mut model.new_cache(), &prompt, 2048, 3);
            let is_cpu = Backend::current().unwrap() == Backend::Cpu;
            assert!(
                reused == fresh || !is_cpu,
                "{name}: {same} tokens and {more} other tokens"
            );
        }
    }
}

#[test]
fn blocks_evict_rows_and_longer_blocks_are_preferred() {
    let _mlx = mlx::exclusive();
    let model = model();
    let computed = |tokens: u32| {
        let mut row = model.new_cache();
        compute(&model, &mut row, &text(tokens), 700, 0);
        row
    };
    let token = block(&computed(1), 0..1).bytes();
    let mut prefixes = PrefixCache::new(ROOMY, ResumePoints::Anywhere);
    let room = Bytes(token * (768 + 700));
    prefixes
        .store("", &text(700), &computed(700), StoreStage::Finished, room)
        .unwrap();
    prefixes.store_row("", text(600), computed(600), room);
    assert_eq!(prefixes.bytes(), room);
    let mut row = |prompt: &[u32]| {
        prefixes
            .take_row("", prompt, 0, 9999)
            .unwrap()
            .map(|row| (row.tokens, row.in_blocks))
    };
    assert_eq!(row(&text(700)), None, "blocks hold 699 tokens");
    assert_eq!(row(&text(600)), Some((599, 599)));
    assert_eq!(row(&text(600)), None, "the row was taken");
    prefixes.store_row("", text(600), computed(600), room);
    prefixes
        .store("other", &text(1), &computed(1), StoreStage::Finished, room)
        .unwrap();
    assert_eq!(prefixes.bytes(), room, "too short to be stored");
    prefixes
        .store("other", &text(10), &computed(10), StoreStage::Finished, room)
        .unwrap();
    assert_eq!(prefixes.bytes(), Bytes(token * 710));
    // A row evicts older rows, but no blocks.
    prefixes.store_row("", text(300), computed(300), Bytes(token * (710 + 511)));
    assert_eq!(prefixes.bytes(), Bytes(token * 710));
    for (tokens, all) in [
        (600, 710 + 768),
        (300, 710 + 768 + 512),
        (700, 710 + 768 + 512),
        // Less than a block is not stored.
        (255, 710 + 768 + 512),
        (256, 710 + 768 + 256),
    ] {
        prefixes.store_row(
            "",
            text(tokens),
            computed(tokens),
            Bytes(token * (710 + 768 + 512)),
        );
        assert_eq!(prefixes.bytes(), Bytes(token * all), "{tokens}");
    }
}

/// Serves a prompt like the engine: starts with the cached prefix, prefills in chunks up to
/// snapshot points, decodes, and stores the result. Returns the number of cached tokens, the
/// answer, and the bits of all logits.
fn serve(
    model: &Decoder,
    prefixes: &mut PrefixCache,
    prompt: &[u32],
    answer: usize,
) -> (usize, Vec<u32>, Vec<Vec<u32>>) {
    let found = prefixes.find("", prompt, &model.new_cache()).unwrap();
    let (known, mut cache) = found.map_or((0, model.new_cache()), |found| (found.tokens, found.cache));
    let snapshot_points = prefixes.snapshot_points("", prompt, known);
    let mut read = known;
    while read + 1 < prompt.len() {
        let stop = snapshot_points.iter().copied().find(|stop| *stop > read);
        let end = stop.unwrap_or(prompt.len() - 1).min(read + 100);
        prefill(model, &prompt[read..end], &mut cache);
        read = end;
        let stage = if snapshot_points.contains(&read) {
            StoreStage::SnapshotPoint
        } else {
            StoreStage::PartialPrompt
        };
        prefixes.store("", prompt, &cache, stage, ROOMY).unwrap();
    }
    let (answered, seen) = compute(model, &mut cache, &prompt[read..], 100, answer);
    let all = [prompt, &answered].concat();
    prefixes
        .store("", &all, &cache, StoreStage::Finished, ROOMY)
        .unwrap();
    (known, answered, seen)
}

/// Texts of models with windows or recurrent states are resumed at snapshots, with equal bits.
#[test]
fn snapshots_do_not_change_logits() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    let mut tested = 0;
    for (name, model, resume_points) in models() {
        if resume_points == ResumePoints::Anywhere {
            continue;
        }
        tested += 1;
        let mut prefixes = PrefixCache::new(ROOMY, resume_points);
        let mut ask = |prompt: &[u32], answer: usize, expected: usize| {
            let (known, answered, seen) = serve(&model, &mut prefixes, prompt, answer);
            assert_eq!(known, expected, "{name}: {} tokens", prompt.len());
            let fresh = compute(&model, &mut model.new_cache(), prompt, 2048, answer);
            assert!(
                fresh == (answered.clone(), seen),
                "{name}: {} tokens after {known}",
                prompt.len()
            );
            answered
        };
        let first = text(600);
        let answered = ask(&first, 300, 0);
        ask(&first, 3, 599);
        // The last token of the answer is computed as well.
        let turn = [&first[..], &answered, &[5, 6, 7]].concat();
        ask(&turn, 3, 900);
        // Other prompts with the same beginning: the second one stores a snapshot where it diverges
        // from the first.
        let parting = |token: u32| [&first[..400], &vec![token; 200]].concat();
        ask(&parting(9), 3, 0);
        ask(&parting(9), 3, 599);
        ask(&parting(10), 3, 256);
        // Less than a block after a snapshot is computed again.
        ask(&first[..200], 3, 0);
        ask(&first[..200], 3, 0);
    }
    assert!(
        tested >= 4,
        "gemma3, gpt_oss, qwen3_next and qwen3_5 at least: {tested}"
    );
}

#[test]
fn snapshot_points_are_where_other_prompts_may_resume() {
    assert_eq!(snapshot_points(0, 0, 255), [0; 0]);
    assert_eq!(snapshot_points(0, 0, 256), [256]);
    assert_eq!(snapshot_points(0, 0, 20_000), [8192, 16_384, 20_000]);
    assert_eq!(snapshot_points(9000, 9000, 20_000), [16_384, 20_000]);
    assert_eq!(snapshot_points(0, 1024, 5000), [1024, 5000]);
    assert_eq!(
        snapshot_points(599, 512, 700),
        [0; 0],
        "too close to the cached tokens"
    );
    assert_eq!(snapshot_points(0, 512, 600), [512]);
    assert_eq!(snapshot_points(0, 0, 0), [0; 0]);
}

#[test]
fn short_prefixes_and_other_salts_are_not_reused() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut prefixes = PrefixCache::new(ROOMY, ResumePoints::Anywhere);
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(60), 60, 0);
    prefixes
        .store("a", &text(60), &row, StoreStage::Finished, ROOMY)
        .unwrap();
    let mut found = |salt: &str, tokens: &[u32]| {
        prefixes
            .find(salt, tokens, &model.new_cache())
            .unwrap()
            .map(|prefix| prefix.tokens)
    };
    assert_eq!(found("a", &text(9)), Some(8));
    assert_eq!(found("a", &text(8)), None);
    assert_eq!(found("a", &[]), None);
    assert_eq!(found("b", &text(60)), None);
    assert_eq!(found("", &text(60)), None);
}

#[test]
fn stored_prefixes_stay_within_the_limits() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(700), 700, 0);
    let token = block(&row, 0..1).bytes();
    let room = Bytes(token * 600);
    for (capacity, room) in [(room, ROOMY), (ROOMY, room)] {
        let mut prefixes = PrefixCache::new(capacity, ResumePoints::Anywhere);
        prefixes
            .store("old", &text(300), &row, StoreStage::Finished, room)
            .unwrap();
        assert_eq!(prefixes.bytes(), Bytes(token * 300));
        prefixes
            .store("new", &text(700), &row, StoreStage::Finished, room)
            .unwrap();
        assert_eq!(
            prefixes.bytes(),
            Bytes(token * 512),
            "the first two blocks of the new text"
        );
        let found = prefixes.find("new", &text(700), &model.new_cache());
        assert_eq!(found.unwrap().unwrap().tokens, 512);
        prefixes.evict(Bytes(token * 511));
        assert_eq!(prefixes.bytes(), Bytes::ZERO, "both blocks share one span");
    }
    let mut off = PrefixCache::new(Bytes::ZERO, ResumePoints::Anywhere);
    off.store("", &text(700), &row, StoreStage::Finished, ROOMY)
        .unwrap();
    assert_eq!(off.bytes(), Bytes::ZERO);
}

/// A text that was stored in small chunks, or read block by block from files, is stored in large
/// spans once it is complete, with equal bits.
#[test]
fn fragmented_text_is_merged() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut prefixes = PrefixCache::new(ROOMY, ResumePoints::Anywhere);
    let (tokens, mut row) = (text(2100), model.new_cache());
    for (index, part) in tokens.chunks(300).enumerate() {
        prefill(&model, part, &mut row);
        let read = &tokens[..300 * index + part.len()];
        prefixes
            .store("", read, &row, StoreStage::PartialPrompt, ROOMY)
            .unwrap();
    }
    let lengths = |prefixes: &mut PrefixCache| {
        let root = BlockKey::root("", "");
        let found = prefixes.tree.find(root, &tokens, Tiers::Memory);
        let all = found
            .in_memory
            .iter()
            .map(|(block, _)| block.layers()[0].0.dim(2));
        all.collect::<Vec<_>>()
    };
    // Chunks of 300 tokens complete one block or two.
    let fragmented = [256, 256, 256, 256, 256, 512, 512, 256];
    assert_eq!(lengths(&mut prefixes), fragmented);
    let bytes = prefixes.bytes();
    let full = Bytes(bytes.0 + 52 * bytes.0 / 2048);
    prefixes
        .store("", &tokens, &row, StoreStage::Finished, full)
        .unwrap();
    assert_eq!(lengths(&mut prefixes)[..8], fragmented, "no room for copies");
    prefixes
        .store("", &tokens, &row, StoreStage::Finished, ROOMY)
        .unwrap();
    assert_eq!(
        lengths(&mut prefixes),
        [2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 52]
    );
    assert_eq!(prefixes.bytes(), full);
    drop(row);
    let found = prefixes.find("", &tokens, &model.new_cache()).unwrap().unwrap();
    let (mut cache, rest) = (found.cache, &tokens[found.tokens..]);
    let reused = compute(&model, &mut cache, rest, 2048, 3);
    let fresh = compute(&model, &mut model.new_cache(), &tokens, 2048, 3);
    assert!(reused == fresh || Backend::current().unwrap() != Backend::Cpu);
}

pub(super) fn block(row: &KvCache, tokens: Range<usize>) -> KvBlock {
    row.blocks(&[tokens], false).unwrap().pop().unwrap()
}

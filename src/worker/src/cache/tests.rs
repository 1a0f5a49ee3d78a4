use std::ops::Range;

use camino::Utf8PathBuf;
use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::ops::indexing::argmax_axis;

use super::*;
use crate::batch::sequence::token_row;
use crate::models::Decoder;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_mlx as mlx;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::Weights;
use rooflet_model::config::FloatType;

pub(super) const ROOMY: Bytes = Bytes::gib(1);

/// Every model there is a fixture of, and where its texts can be cut.
fn models() -> Vec<(String, Decoder, Cuts)> {
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
        (path.to_string(), model, Cuts::of(&dir.shape.config))
    };
    paths.iter().map(load).collect()
}

/// One that keeps all tokens.
pub(super) fn model() -> Decoder {
    let mut all = models().into_iter();
    all.find(|(_, _, cuts)| *cuts == Cuts::Anywhere).unwrap().1
}

pub(super) fn text(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 3 + at * at % 97).collect()
}

fn bits(logits: &Array) -> Vec<u32> {
    let floats = logits.to_vec_exact::<f32>().unwrap();
    floats.into_iter().map(f32::to_bits).collect()
}

/// Reads `tokens` in chunks of `chunk`, then says `answer` more; the bits of all logits on the way.
pub(super) fn compute(
    model: &Decoder,
    cache: &mut KvCache,
    tokens: &[u32],
    chunk: usize,
    answer: usize,
) -> (Vec<u32>, Vec<Vec<u32>>) {
    let (mut said, mut seen) = (Vec::new(), Vec::new());
    let (last, first) = tokens.split_last().unwrap();
    for part in first.chunks(chunk) {
        model.prefill(&token_row(part), cache).unwrap();
    }
    let mut logits = model.forward(&token_row(&[*last]), cache).unwrap();
    for _ in 0..answer {
        seen.push(bits(&logits));
        let token: u32 = argmax_axis(&logits, -1, false).unwrap().item_exact();
        said.push(token);
        logits = model.forward(&token_row(&[token]), cache).unwrap();
    }
    seen.push(bits(&logits));
    (said, seen)
}

#[test]
fn what_follows_a_kept_prefix_has_the_bits_of_a_fresh_start() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    for (name, model, cuts) in models() {
        if cuts != Cuts::Anywhere {
            continue;
        }
        let mut prefixes = PrefixCache::new(ROOMY, cuts);
        let mut row = model.new_cache();
        let mut tokens = text(530);
        let (said, _) = compute(&model, &mut row, &tokens, 100, 9);
        tokens.extend(&said);
        prefixes.keep("", &tokens, &row, Keep::Everything, ROOMY).unwrap();
        // What is kept must not change when the row goes on.
        compute(&model, &mut row, &text(40), 7, 1);
        // Cut within the first block, at its end, within the last one; beyond what was said; the
        // very same text.
        for (same, more) in [
            (17, 5),
            (256, 1),
            (300, 33),
            (535, 300),
            (539, 1),
            (539, 0),
            (530, 0),
        ] {
            let mut asked = tokens[..same].to_vec();
            asked.extend((0..more).map(|at| 90 - at % 50));
            let fresh = compute(&model, &mut model.new_cache(), &asked, 2048, 3);
            let found = prefixes
                .find("", &asked, &model.new_cache())
                .unwrap()
                .expect("it is kept");
            assert!(
                found.tokens == same || found.tokens == asked.len() - 1,
                "{}",
                found.tokens
            );
            let mut cache = found.cache;
            let reused = compute(&model, &mut cache, &asked[found.tokens..], 2048, 3);
            assert!(reused == fresh, "{name}: {same} tokens and {more} others");
        }
    }
}

/// In place, or in a copy where it has too little room or too much; after what another request said
/// behind the beginning that they share.
#[test]
fn what_goes_on_in_the_row_of_another_has_the_bits_of_a_fresh_start() {
    let _mlx = mlx::exclusive();
    for (name, model, cuts) in models() {
        let mut prefixes = PrefixCache::new(ROOMY, cuts);
        for (same, more) in [(539, 0), (530, 40), (300, 0), (535, 300)] {
            let (mut row, mut tokens) = (model.new_cache(), text(530));
            tokens.extend(compute(&model, &mut row, &tokens, 100, 9).0);
            let capacity = row.bytes();
            prefixes.keep_row("", tokens.clone(), row, ROOMY);
            let mut asked = tokens[..same].to_vec();
            asked.extend((0..more).map(|at| 90 - at % 50));
            let found = prefixes.take_row("", &asked, 0, asked.len() + 9).unwrap();
            assert_eq!(prefixes.bytes(), Bytes::ZERO, "it is the request's now");
            if cuts == Cuts::AtSnapshots {
                assert!(found.is_none(), "{name}: it has forgotten too much");
                continue;
            }
            let found = found.unwrap();
            assert_eq!((found.tokens, found.in_blocks), (same.min(asked.len() - 1), 0));
            let mut cache = found.cache;
            let room = 256 * asked.len().div_ceil(256);
            assert_eq!(cache.bytes(), capacity / 768 * room, "{name}: {same} and {more}");
            let reused = compute(&model, &mut cache, &asked[found.tokens..], 2048, 3);
            let fresh = compute(&model, &mut model.new_cache(), &asked, 2048, 3);
            let is_cpu = Backend::current().unwrap() == Backend::Cpu;
            assert!(
                reused == fresh || !is_cpu,
                "{name}: {same} tokens and {more} others"
            );
        }
    }
}

#[test]
fn rows_give_way_to_blocks_and_are_not_taken_where_there_is_more_elsewhere() {
    let _mlx = mlx::exclusive();
    let model = model();
    let computed = |tokens: u32| {
        let mut row = model.new_cache();
        compute(&model, &mut row, &text(tokens), 700, 0);
        row
    };
    let token = block(&computed(1), 0..1).bytes();
    let mut prefixes = PrefixCache::new(ROOMY, Cuts::Anywhere);
    let room = Bytes(token * (768 + 700));
    prefixes
        .keep("", &text(700), &computed(700), Keep::Everything, room)
        .unwrap();
    prefixes.keep_row("", text(600), computed(600), room);
    assert_eq!(prefixes.bytes(), room);
    let mut row = |prompt: &[u32]| {
        prefixes
            .take_row("", prompt, 0, 9999)
            .unwrap()
            .map(|row| (row.tokens, row.in_blocks))
    };
    assert_eq!(row(&text(700)), None, "blocks have 699");
    assert_eq!(row(&text(600)), Some((599, 599)));
    assert_eq!(row(&text(600)), None, "another has it");
    prefixes.keep_row("", text(600), computed(600), room);
    prefixes
        .keep("other", &text(1), &computed(1), Keep::Everything, room)
        .unwrap();
    assert_eq!(prefixes.bytes(), room, "too short to be kept");
    prefixes
        .keep("other", &text(10), &computed(10), Keep::Everything, room)
        .unwrap();
    assert_eq!(prefixes.bytes(), Bytes(token * 710));
    // No block goes for a row, and older rows do.
    prefixes.keep_row("", text(300), computed(300), Bytes(token * (710 + 511)));
    assert_eq!(prefixes.bytes(), Bytes(token * 710));
    for (tokens, all) in [
        (600, 710 + 768),
        (300, 710 + 768 + 512),
        (700, 710 + 768 + 512),
        // Less than a block is not worth it.
        (255, 710 + 768 + 512),
        (256, 710 + 768 + 256),
    ] {
        prefixes.keep_row(
            "",
            text(tokens),
            computed(tokens),
            Bytes(token * (710 + 768 + 512)),
        );
        assert_eq!(prefixes.bytes(), Bytes(token * all), "{tokens}");
    }
}

/// As the engine does it: begins with what is known, reads on in chunks with stops, answers, and
/// keeps it. Returns how much was known, what it said, and the bits of all logits.
fn serve(
    model: &Decoder,
    prefixes: &mut PrefixCache,
    prompt: &[u32],
    answer: usize,
) -> (usize, Vec<u32>, Vec<Vec<u32>>) {
    let found = prefixes.find("", prompt, &model.new_cache()).unwrap();
    let (known, mut cache) = found.map_or((0, model.new_cache()), |found| (found.tokens, found.cache));
    let stops = prefixes.stops("", prompt, known);
    let mut read = known;
    while read + 1 < prompt.len() {
        let stop = stops.iter().copied().find(|stop| *stop > read);
        let end = stop.unwrap_or(prompt.len() - 1).min(read + 100);
        model.prefill(&token_row(&prompt[read..end]), &mut cache).unwrap();
        read = end;
        let keep = if stops.contains(&read) {
            Keep::Stop
        } else {
            Keep::WholeBlocks
        };
        prefixes.keep("", prompt, &cache, keep, ROOMY).unwrap();
    }
    let (said, seen) = compute(model, &mut cache, &prompt[read..], 100, answer);
    let all = [prompt, &said].concat();
    prefixes.keep("", &all, &cache, Keep::Everything, ROOMY).unwrap();
    (known, said, seen)
}

/// Windows and recurrent states: texts are gone on from at their snapshots, and nothing of it shows
/// in a bit.
#[test]
fn what_follows_a_snapshot_has_the_bits_of_a_fresh_start() {
    let _mlx = mlx::exclusive();
    if Backend::current().unwrap() != Backend::Cpu {
        return;
    }
    let mut tested = 0;
    for (name, model, cuts) in models() {
        if cuts == Cuts::Anywhere {
            continue;
        }
        tested += 1;
        let mut prefixes = PrefixCache::new(ROOMY, cuts);
        let mut ask = |prompt: &[u32], answer: usize, expected: usize| {
            let (known, said, seen) = serve(&model, &mut prefixes, prompt, answer);
            assert_eq!(known, expected, "{name}: {} tokens", prompt.len());
            let fresh = compute(&model, &mut model.new_cache(), prompt, 2048, answer);
            assert!(
                fresh == (said.clone(), seen),
                "{name}: {} tokens after {known}",
                prompt.len()
            );
            said
        };
        let first = text(600);
        let said = ask(&first, 300, 0);
        ask(&first, 3, 599);
        // The answer's last token has been computed, too.
        let turn = [&first[..], &said, &[5, 6, 7]].concat();
        ask(&turn, 3, 900);
        // Others that begin alike: the second leaves a snapshot where it parts from the first.
        let parting = |token: u32| [&first[..400], &vec![token; 200]].concat();
        ask(&parting(9), 3, 0);
        ask(&parting(9), 3, 599);
        ask(&parting(10), 3, 256);
        // What is less than a block from a snapshot is read again.
        ask(&first[..200], 3, 0);
        ask(&first[..200], 3, 0);
    }
    assert!(
        tested >= 4,
        "gemma3, gpt_oss, qwen3_next and qwen3_5 at least: {tested}"
    );
}

#[test]
fn stops_are_where_others_may_go_on() {
    assert_eq!(stops(0, 0, 255), [0; 0]);
    assert_eq!(stops(0, 0, 256), [256]);
    assert_eq!(stops(0, 0, 20_000), [8192, 16_384, 20_000]);
    assert_eq!(stops(9000, 9000, 20_000), [16_384, 20_000]);
    assert_eq!(stops(0, 1024, 5000), [1024, 5000]);
    assert_eq!(stops(599, 512, 700), [0; 0], "too near what is known");
    assert_eq!(stops(0, 512, 600), [512]);
    assert_eq!(stops(0, 0, 0), [0; 0]);
}

#[test]
fn too_little_is_not_reused_and_salts_are_kept_apart() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut prefixes = PrefixCache::new(ROOMY, Cuts::Anywhere);
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(60), 60, 0);
    prefixes
        .keep("a", &text(60), &row, Keep::Everything, ROOMY)
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
fn no_more_is_kept_than_there_is_room_for() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(700), 700, 0);
    let token = block(&row, 0..1).bytes();
    let room = Bytes(token * 600);
    for (capacity, room) in [(room, ROOMY), (ROOMY, room)] {
        let mut prefixes = PrefixCache::new(capacity, Cuts::Anywhere);
        prefixes
            .keep("old", &text(300), &row, Keep::Everything, room)
            .unwrap();
        assert_eq!(prefixes.bytes(), Bytes(token * 300));
        prefixes
            .keep("new", &text(700), &row, Keep::Everything, room)
            .unwrap();
        assert_eq!(
            prefixes.bytes(),
            Bytes(token * 512),
            "the first two blocks of the new one"
        );
        let found = prefixes.find("new", &text(700), &model.new_cache());
        assert_eq!(found.unwrap().unwrap().tokens, 512);
        prefixes.give_way(Bytes(token * 511));
        assert_eq!(prefixes.bytes(), Bytes::ZERO, "both lie in one piece");
    }
    let mut off = PrefixCache::new(Bytes::ZERO, Cuts::Anywhere);
    off.keep("", &text(700), &row, Keep::Everything, ROOMY).unwrap();
    assert_eq!(off.bytes(), Bytes::ZERO);
}

/// A text that came in small chunks, or block by block from a disk, lies in large pieces once it is
/// complete; with the same bits.
#[test]
fn a_scattered_text_is_put_together() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut prefixes = PrefixCache::new(ROOMY, Cuts::Anywhere);
    let (tokens, mut row) = (text(2100), model.new_cache());
    for (index, part) in tokens.chunks(300).enumerate() {
        model.prefill(&token_row(part), &mut row).unwrap();
        let read = &tokens[..300 * index + part.len()];
        prefixes.keep("", read, &row, Keep::WholeBlocks, ROOMY).unwrap();
    }
    let lengths = |prefixes: &mut PrefixCache| {
        let root = BlockKey::root("", "");
        let found = prefixes.tree.find(root, &tokens, Tiers::Memory);
        let all = found.held.iter().map(|(block, _)| block.layers()[0].0.dim(2));
        all.collect::<Vec<_>>()
    };
    // 300 tokens are a block, or two.
    let scattered = [256, 256, 256, 256, 256, 512, 512, 256];
    assert_eq!(lengths(&mut prefixes), scattered);
    let bytes = prefixes.bytes();
    let full = Bytes(bytes.0 + 52 * bytes.0 / 2048);
    prefixes.keep("", &tokens, &row, Keep::Everything, full).unwrap();
    assert_eq!(
        lengths(&mut prefixes)[..8],
        scattered,
        "there is no room for copies"
    );
    prefixes.keep("", &tokens, &row, Keep::Everything, ROOMY).unwrap();
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

use camino::Utf8PathBuf;
use mlx_rs::Array;
use mlx_rs::ops::indexing::argmax_axis;

use super::*;
use crate::mlx;
use crate::mlx::device::Backend;
use crate::mlx::load::Weights;
use crate::model_dir::ModelDir;
use crate::roofline::model::FloatType;
use crate::worker::models::Decoder;
use crate::worker::sequence::token_row;

const ROOMY: Bytes = Bytes::gib(1);

/// Every model there is a fixture of, but for those that do not keep all tokens.
fn models() -> Vec<(String, Decoder)> {
    let fixtures = Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("e2e/fixtures/models");
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
        Decoder::load(&dir.shape, &mut weights).unwrap()
    };
    let all = paths.iter().map(|path| (path.to_string(), load(path)));
    all.filter(|(_, model)| model.new_cache().keeps_all()).collect()
}

fn text(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 3 + at * at % 97).collect()
}

fn bits(logits: &Array) -> Vec<u32> {
    let floats = logits.to_vec_exact::<f32>().unwrap();
    floats.into_iter().map(f32::to_bits).collect()
}

/// Reads `tokens` in chunks of `chunk`, then says `answer` more; the bits of all logits on the way.
fn compute(
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
    for (name, model) in models() {
        let mut prefixes = PrefixCache::new(ROOMY);
        let mut row = model.new_cache();
        let mut tokens = text(530);
        let (said, _) = compute(&model, &mut row, &tokens, 100, 9);
        tokens.extend(&said);
        prefixes.keep("", &tokens, &row, Keep::Everything, ROOMY).unwrap();
        // What is kept must not change when the row goes on.
        compute(&model, &mut row, &text(40), 7, 1);
        // Cut within the first block, at its end, within the last one; beyond what was said; the very same text.
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
            let found = prefixes.find("", &asked).unwrap().expect("it is kept");
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

#[test]
fn too_little_is_not_reused_and_salts_are_kept_apart() {
    let _mlx = mlx::exclusive();
    let (_, model) = models().swap_remove(0);
    let mut prefixes = PrefixCache::new(ROOMY);
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(60), 60, 0);
    prefixes
        .keep("a", &text(60), &row, Keep::Everything, ROOMY)
        .unwrap();
    let mut found =
        |salt: &str, tokens: &[u32]| prefixes.find(salt, tokens).unwrap().map(|prefix| prefix.tokens);
    assert_eq!(found("a", &text(17)), Some(16));
    assert_eq!(found("a", &text(16)), None);
    assert_eq!(found("a", &[]), None);
    assert_eq!(found("b", &text(60)), None);
    assert_eq!(found("", &text(60)), None);
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let _mlx = mlx::exclusive();
    let (_, model) = models().swap_remove(0);
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(700), 700, 0);
    let token = row.block(&(0..1)).unwrap().bytes();
    let room = Bytes(token * 600);
    for (capacity, room) in [(room, ROOMY), (ROOMY, room)] {
        let mut prefixes = PrefixCache::new(capacity);
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
        prefixes.give_way(Bytes(token * 300));
        assert_eq!(prefixes.bytes(), Bytes(token * 256));
        assert_eq!(prefixes.find("new", &text(700)).unwrap().unwrap().tokens, 256);
    }
    let mut off = PrefixCache::new(Bytes::ZERO);
    off.keep("", &text(700), &row, Keep::Everything, ROOMY).unwrap();
    assert_eq!(off.bytes(), Bytes::ZERO);
}

#[test]
fn blocks_become_bytes_and_come_back() {
    let _mlx = mlx::exclusive();
    let (_, model) = models().swap_remove(0);
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(300), 300, 0);
    for tokens in [0..256, 256..300] {
        let block = row.block(&tokens).unwrap();
        assert_eq!(raw::to_bytes(&block).unwrap().data.len() as u64, block.bytes());
    }
    for dtype in [
        mlx_rs::Dtype::Float32,
        mlx_rs::Dtype::Float16,
        mlx_rs::Dtype::Bfloat16,
    ] {
        let array = |from: i32| {
            let numbers: Vec<f32> = (from..from + 24).map(|number| number as f32 / 7.0).collect();
            let array = Array::from_slice(&numbers, &[1, 2, 3, 4]);
            array.as_dtype(dtype).unwrap()
        };
        let block = KvBlock::new(vec![(array(0), array(24)), (array(48), array(72))]);
        let raw = raw::to_bytes(&block).unwrap();
        assert_eq!(raw.data.len() as u64, block.bytes());
        let back = raw::from_bytes(&raw).unwrap();
        for (one, other) in block.arrays().zip(back.arrays()) {
            assert_eq!(one.dtype(), other.dtype());
            assert_eq!(one.shape(), other.shape());
            let equal = one.eq(other).unwrap().all(None).unwrap();
            assert!(equal.item_exact::<bool>());
        }
    }
}

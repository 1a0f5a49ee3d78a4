use camino::Utf8PathBuf;
use rooflet_mlx::mlx_rs::ops::indexing::argmax_axis;
use rooflet_mlx::mlx_rs::transforms::eval;

use super::*;
use crate::replay::{Case, REFERENCE_TOLERANCE, Replay};
use rooflet_artifact::model_dir::ModelDir;
use rooflet_mlx as mlx;
use rooflet_mlx::backend::Backend;
use rooflet_model::config::FloatType;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::cache_bytes;

fn root() -> Utf8PathBuf {
    Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn load(model: &str) -> Decoder {
    let dir = ModelDir::inspect(&root().join(model)).unwrap();
    let mut weights = Weights::open(&dir.weight_files, FloatType::F32).unwrap();
    Decoder::load(&dir.shape, &mut weights).unwrap()
}

fn tokens(ids: &[u32]) -> Array {
    Array::from_slice(ids, &[1, i32::try_from(ids.len()).unwrap()])
}

/// Runs the tokens and updates the cache only.
fn prefill(model: &Decoder, ids: &[u32], cache: &mut KvCache) {
    model.hidden(&tokens(ids), cache).unwrap();
    eval(cache.arrays()).unwrap();
}

/// Bits of the logits. Float comparison would treat -0.0 as equal to 0.0, and NaN as unequal to
/// itself.
fn bits(logits: &Array) -> Vec<u32> {
    bits_of(&logits.to_vec_exact::<f32>().unwrap())
}

fn bits_of(logits: &[f32]) -> Vec<u32> {
    logits.iter().copied().map(f32::to_bits).collect()
}

fn cases(file: &str) -> Vec<Case> {
    Case::parse_all(&std::fs::read(root().join("e2e/fixtures").join(file)).unwrap()).unwrap()
}

/// Reference values of mlx-lm on the same MLX library.
fn mlx_lm() -> Vec<Case> {
    cases("logits.json")
}

/// Reference values of transformers in float32.
fn transformers() -> Vec<Case> {
    cases("reference.json")
}

#[test]
fn logits_equal_those_of_transformers() {
    let _mlx = mlx::exclusive();
    if !on_cpu() {
        return;
    }
    for case in transformers() {
        let replay = Replay::run(&load(&case.model), &case).unwrap();
        let name = format!("{} after {} tokens", case.model, case.prompt.len());
        let difference = replay.difference(&case);
        assert!(difference <= REFERENCE_TOLERANCE, "{name}: {difference}");
        assert_eq!(replay.shortfall, 0.0, "{name}");
    }
}

/// Returns true on the CPU backend, which computed the reference bits.
fn on_cpu() -> bool {
    Backend::current().unwrap() == Backend::Cpu
}

#[test]
fn logits_are_bit_identical_to_mlx_lm() {
    let _mlx = mlx::exclusive();
    if !on_cpu() {
        return;
    }
    for case in mlx_lm() {
        let replay = Replay::run(&load(&case.model), &case).unwrap();
        let name = format!("{} after {} tokens", case.model, case.prompt.len());
        assert!(bits_of(&replay.logits) == bits_of(&case.logits), "{name}");
        assert_eq!(replay.shortfall, 0.0, "{name}");
        assert!(
            bits_of(&replay.last) == bits_of(&case.last),
            "{name}, after cached decoding"
        );
    }
}

#[test]
fn prefill_chunks_do_not_change_logits() {
    let _mlx = mlx::exclusive();
    if !on_cpu() {
        return;
    }
    for case in mlx_lm() {
        let model = load(&case.model);
        for chunk in [1, 7, 40] {
            let mut cache = model.new_cache();
            let (last, first) = case.prompt.split_last().unwrap();
            for part in first.chunks(chunk) {
                prefill(&model, part, &mut cache);
            }
            let logits = model.forward(&tokens(&[*last]), &mut cache).unwrap();
            assert!(
                bits(&logits) == bits_of(&case.logits),
                "{} in chunks of {chunk}",
                case.model
            );
        }
    }
}

#[test]
fn growing_caches_keep_all_tokens() {
    let _mlx = mlx::exclusive();
    let model = load("e2e/fixtures/models/llama3");
    let ids: Vec<u32> = (0..500).map(|index| 3 + index % 250).collect();
    let mut whole = model.new_cache();
    let expected = model.forward(&tokens(&ids), &mut whole).unwrap();
    let mut grown = model.new_cache();
    prefill(&model, &ids[..250], &mut grown);
    let mut logits = None;
    for id in &ids[250..] {
        logits = Some(model.forward(&tokens(&[*id]), &mut grown).unwrap());
    }
    assert_eq!(grown.offset(), 500);
    assert!(bits(&logits.unwrap()) == bits(&expected));
}

/// A cache is no larger than its reservation, for several architectures and chunk lengths.
#[test]
fn caches_stay_within_their_reservations() {
    let _mlx = mlx::exclusive();
    for (name, bits) in [
        ("gemma3", 32),
        ("gpt-oss", 32),
        ("mistral", 32),
        ("qwen3", 32),
        ("qwen3-next", 32),
    ] {
        let path = root().join("e2e/fixtures/models").join(name);
        let shape = ModelDir::inspect(&path).unwrap().shape;
        let model = load(path.as_str());
        for chunk in [1, 100, 300] {
            let mut cache = model.new_cache();
            let ids: Vec<u32> = (0..600).map(|index| 3 + index % 250).collect();
            for part in ids.chunks(chunk) {
                prefill(&model, part, &mut cache);
                let held = u32::try_from(cache.offset()).unwrap();
                let reserved = cache_bytes(&shape.config.dimensions, held, KvBits::new(bits));
                assert!(
                    cache.bytes() as u64 <= reserved.0,
                    "{name}: {held} tokens in chunks of {chunk}"
                );
            }
        }
    }
}

/// The engine undoes a failed pass by truncation, which must also restore windows and recurrent
/// states.
#[test]
fn truncation_undoes_the_last_pass() {
    let _mlx = mlx::exclusive();
    for name in ["gemma3", "gpt-oss", "llama3", "qwen3-next"] {
        let model = load(&format!("e2e/fixtures/models/{name}"));
        let mut cache = model.new_cache();
        let prompt: Vec<u32> = (3..80).collect();
        prefill(&model, &prompt, &mut cache);
        let held = cache.offset();
        let other = model.forward(&tokens(&[200]), &mut cache).unwrap();
        cache.truncate(held);
        let again = model.forward(&tokens(&[7]), &mut cache).unwrap();
        let mut fresh = model.new_cache();
        prefill(&model, &prompt, &mut fresh);
        let expected = model.forward(&tokens(&[7]), &mut fresh).unwrap();
        assert!(bits(&again) == bits(&expected), "{name}");
        assert!(bits(&other) != bits(&expected), "{name}");
    }
}

/// A constant of another element type would promote all following values to float32, which doubles
/// the size of caches and the time of decode steps.
#[test]
fn caches_have_the_compute_type() {
    let _mlx = mlx::exclusive();
    let fixtures = root().join("e2e/fixtures/models");
    for entry in fixtures.read_dir_utf8().unwrap() {
        let path = entry.unwrap().into_path();
        let dir = ModelDir::inspect(&path).unwrap();
        let mut weights = Weights::open(&dir.weight_files, FloatType::BF16).unwrap();
        let model = Decoder::load(&dir.shape, &mut weights).unwrap();
        let mut cache = model.new_cache();
        let prompt: Vec<u32> = (3..43).collect();
        // The logits are not evaluated: a CPU does not support all operations in half precision.
        model.forward(&tokens(&prompt), &mut cache).unwrap();
        let logits = model.forward(&tokens(&[3]), &mut cache).unwrap();
        assert_eq!(logits.dtype(), rooflet_mlx::mlx_rs::Dtype::Float32);
        // Recurrent states are in float32 and have four dimensions; the first two are row and
        // heads.
        let (states, others): (Vec<&Array>, Vec<&Array>) = cache
            .arrays()
            .partition(|array| array.dtype() == rooflet_mlx::mlx_rs::Dtype::Float32);
        assert!(!others.is_empty(), "{path}");
        let types: Vec<rooflet_mlx::mlx_rs::Dtype> = others.iter().map(|array| array.dtype()).collect();
        assert!(
            types
                .iter()
                .all(|dtype| *dtype == rooflet_mlx::mlx_rs::Dtype::Bfloat16),
            "{path}: {types:?}"
        );
        let linear = dir.shape.config.dimensions.linear_layers();
        assert_eq!(states.len(), linear, "{path}");
    }
}

/// Row of a batch, and the same sequence decoded alone.
struct Row {
    token: u32,
    batched: KvCache,
    alone: KvCache,
}

impl Row {
    fn new(model: &Decoder, prompt: &[u32]) -> Self {
        let (last, first) = prompt.split_last().unwrap();
        let cache = || {
            let mut cache = model.new_cache();
            prefill(model, first, &mut cache);
            cache
        };
        Self {
            token: *last,
            batched: cache(),
            alone: cache(),
        }
    }
}

/// Rows have different lengths, and one of them grows its cache. One row leaves and one joins.
#[test]
fn batching_does_not_change_logits() {
    let _mlx = mlx::exclusive();
    if !on_cpu() {
        return;
    }
    let mut models: Vec<String> = mlx_lm().into_iter().map(|case| case.model).collect();
    models.dedup();
    for name in models {
        let model = load(&name);
        let prompt = |tokens: u32| (0..tokens).map(|at| 3 + at * 7 % 250).collect::<Vec<u32>>();
        let mut rows: Vec<Row> = [5, 253, 40, 1 + 8]
            .map(|length| Row::new(&model, &prompt(length)))
            .into();
        for step in 0..8 {
            match step {
                3 => drop(rows.remove(0)),
                5 => rows.push(Row::new(&model, &prompt(17))),
                _ => {}
            }
            let inputs: Vec<u32> = rows.iter().map(|row| row.token).collect();
            let mut caches: Vec<&mut KvCache> = rows.iter_mut().map(|row| &mut row.batched).collect();
            let inputs = Array::from_slice(&inputs, &[i32::try_from(inputs.len()).unwrap()]);
            let together = model.decode(&inputs, &mut caches).unwrap();
            for (index, row) in rows.iter_mut().enumerate() {
                let alone = model.forward(&tokens(&[row.token]), &mut row.alone).unwrap();
                let own = together.try_index(i32::try_from(index).unwrap()).unwrap();
                assert!(bits(&own) == bits(&alone), "{name}: row {index} in step {step}");
                row.token = argmax_axis(&alone, -1, false).unwrap().item_exact();
            }
        }
    }
}

/// The prompts have different lengths. Some parts follow cached tokens, and some exceed windows and
/// capacities.
#[test]
fn shared_prefill_does_not_change_logits() {
    let _mlx = mlx::exclusive();
    if !on_cpu() {
        return;
    }
    let mut models: Vec<String> = mlx_lm().into_iter().map(|case| case.model).collect();
    models.dedup();
    for name in models {
        let model = load(&name);
        let prompt = |seed: u32, tokens: u32| -> Vec<u32> {
            (0..tokens).map(|at| 3 + (at * 7 + seed * 31) % 250).collect()
        };
        let prompts = [(0, 70), (1, 1), (2, 261), (3, 19)].map(|(seed, tokens)| prompt(seed, tokens));
        let mut together: Vec<KvCache> = prompts.iter().map(|_| model.new_cache()).collect();
        let mut alone: Vec<KvCache> = prompts.iter().map(|_| model.new_cache()).collect();
        // Parts of some prompts, then the rest of all.
        for parts in [[0..30, 0..0, 0..255, 0..0], [30..70, 0..1, 255..261, 0..19]] {
            let going: Vec<usize> = (0..4).filter(|at| !parts[*at].is_empty()).collect();
            let of = |at: usize| &prompts[at][parts[at].clone()];
            let inputs: Vec<u32> = going.iter().flat_map(|at| of(*at)).copied().collect();
            let rows = together.iter_mut().enumerate();
            let rows = rows.filter(|(at, _)| going.contains(at));
            let length = |at: usize| i32::try_from(parts[at].len()).unwrap();
            let mut rows: Vec<_> = rows.map(|(at, cache)| (cache, length(at))).collect();
            let ends = model.hidden_ends(&tokens(&inputs), &mut rows).unwrap();
            for (place, at) in (0..).zip(going) {
                let own = model.logits_after(&ends, &[place]).unwrap();
                // The same tokens alone, with the hidden states of all tokens.
                let hidden = model.hidden(&tokens(of(at)), &mut alone[at]).unwrap();
                let expected = model.logits_after(&hidden, &[length(at) - 1]).unwrap();
                assert!(bits(&own) == bits(&expected), "{name}: {} tokens", parts[at].end);
            }
        }
        // The caches have the same contents as well.
        for (together, alone) in together.iter_mut().zip(&mut alone) {
            let next = |cache| bits(&model.forward(&tokens(&[9]), cache).unwrap());
            assert_eq!(together.offset(), alone.offset());
            assert!(next(together) == next(alone), "{name}: after the prompts");
        }
    }
}

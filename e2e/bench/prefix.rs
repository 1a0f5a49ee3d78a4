//! Time to first token with the prefix cache: computed (cold), cached in memory (hot), and cached
//! in files after a restart of the worker (restart).
//!
//! For comparison, the benchmark also measures the time to read the files, one decode step, and the
//! worker's CPU time for a hot prompt and for a decode step, which other programs do not disturb.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use sysinfo::{Pid, ProcessesToUpdate, System};

use crate::harness::{Http, Process, Scratch, eventually, free_port, repository};
use crate::stats::{Samples, head, milliseconds, row};

/// Prompt lengths in tokens, with the number of prompts. 16,000 tokens take many minutes on a CPU.
const CONTEXTS: [(u32, u32); 3] = [(1000, 3), (4000, 3), (16_000, 1)];
/// Number of decode steps over which the time of one step is averaged.
const STEPS: u64 = 32;
/// Number of requests over which CPU time is averaged, because the system counts it in hundredths
/// of a second.
const REPEATS: u32 = 20;

/// Request timeout, long enough for the longest prompt on a slow CPU.
const TIMEOUT: Duration = Duration::from_mins(20);

/// Hidden size of a Llama model with random weights, small enough to prefill the prompts within
/// seconds on a CPU.
const HIDDEN: usize = 128;
const LAYERS: usize = 4;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const INTERMEDIATE: usize = 352;
/// Vocabulary size of the guide, whose tokenizer the model uses.
const VOCABULARY: usize = 1024;

pub(crate) fn run() {
    println!(
        "Llama-shaped, random weights, float32: {LAYERS} layers of {HIDDEN}, {HEADS} heads, {KV_HEADS} KV heads, \
         {} bytes of cache per token. Median (p10-p90), ms.\n",
        2 * LAYERS * KV_HEADS * (HIDDEN / HEADS) * 4
    );
    let scratch = Scratch::new();
    let model = write_model(&scratch);
    head(&[
        "prompt, tokens",
        "cold",
        "hot",
        "restart",
        "reading the files",
        "one decode step",
        "hot / one step, CPU time",
        "cold / hot",
        "cold / restart",
    ]);
    for (tokens, rounds) in CONTEXTS {
        let files = scratch.join(&format!("prefixes-{tokens}"));
        let prompts: Vec<Vec<u32>> = (0..rounds).map(|round| prompt(round, tokens)).collect();
        let mut worker = Worker::start(&scratch, &model, &files);
        let cold: Vec<f64> = prompts.iter().map(|prompt| worker.ask(prompt, 1, 0)).collect();
        let known = tokens as u64 - 1;
        let hot: Vec<f64> = prompts
            .iter()
            .map(|prompt| worker.ask(prompt, 1, known))
            .collect();
        let step = |prompt: &Vec<u32>| {
            let (one, many) = (worker.ask(prompt, 1, known), worker.ask(prompt, 1 + STEPS, known));
            (many - one) / STEPS as f64
        };
        let step = Samples::new(prompts.iter().map(step));
        let before = worker.processor_time();
        for _ in 0..REPEATS {
            worker.ask(&prompts[0], 1, known);
        }
        let between = worker.processor_time();
        for _ in 0..REPEATS {
            worker.ask(&prompts[0], 1 + STEPS, known);
        }
        let hot_time = between - before;
        let step_time = (worker.processor_time() - between - hot_time) / STEPS as f64;
        let (hot_time, step_time) = (hot_time / f64::from(REPEATS), step_time / f64::from(REPEATS));
        assert!(worker.process.terminate().success());
        let read = Instant::now();
        let bytes: usize = files_in(&files)
            .iter()
            .map(|path| std::fs::read(path).expect("readable").len())
            .sum();
        let read = milliseconds(read.elapsed()) / f64::from(rounds);
        let worker = Worker::start(&scratch, &model, &files);
        let restart: Vec<f64> = prompts
            .iter()
            .map(|prompt| worker.ask(prompt, 1, known))
            .collect();
        let ratio = |other: &[f64]| Samples::new(cold.iter().zip(other).map(|(cold, other)| cold / other));
        row(&[
            tokens.to_string(),
            Samples::new(cold.iter().copied()).to_string(),
            Samples::new(hot.iter().copied()).to_string(),
            Samples::new(restart.iter().copied()).to_string(),
            format!("{read:.2} ({:.1} MB)", bytes as f64 / 1e6 / f64::from(rounds)),
            step.to_string(),
            format!("{hot_time:.2} / {step_time:.2} = {:.2}", hot_time / step_time),
            ratio(&hot).to_string(),
            ratio(&restart).to_string(),
        ]);
    }
}

/// Returns the prompt of a round. The prompts of two rounds share no prefix.
fn prompt(round: u32, tokens: u32) -> Vec<u32> {
    (0..tokens)
        .map(|at| 300 + (at * 31 + at * at % 97 + round * 7) % 700)
        .collect()
}

struct Worker {
    process: Process,
    http: Http,
}

impl Worker {
    fn start(scratch: &Scratch, model: &Path, files: &Path) -> Self {
        let port = free_port();
        let process = Process::start(
            [
                "worker".to_owned(),
                format!("--model={}", model.display()),
                format!("--listen=127.0.0.1:{port}"),
                "--name=m".to_owned(),
                format!("--prefix-cache-dir={}", files.display()),
            ],
            &scratch.join("worker.log"),
        );
        let http = Http::with_timeout(format!("http://127.0.0.1:{port}"), TIMEOUT);
        eventually("the worker being ready", || match http.get("/ready")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        });
        Self { process, http }
    }

    /// Returns the CPU time of the process in milliseconds.
    fn processor_time(&self) -> f64 {
        let pid = Pid::from_u32(self.process.pid());
        let mut system = System::new();
        system.refresh_processes(ProcessesToUpdate::Some(&[pid]), false);
        let process = system.process(pid).expect("the worker runs");
        process.accumulated_cpu_time() as f64
    }

    /// Returns the time of a request in milliseconds. Panics if the number of cached prompt tokens
    /// is not `cached`.
    fn ask(&self, prompt: &[u32], max_tokens: u64, cached: u64) -> f64 {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                          "logit_bias": {"0": -100, "1": -100, "2": -100}});
        let begin = Instant::now();
        let answer = self.http.post("/v1/completions", &body).expect("a response");
        let took = milliseconds(begin.elapsed());
        assert_eq!(answer.status, 200, "{}", answer.text);
        let usage = &answer.json()["usage"];
        assert_eq!(usage["completion_tokens"], max_tokens, "{usage}");
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached, "{usage}");
        took
    }
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).expect("created by the worker");
        entries.map(|entry| entry.expect("readable").path()).collect()
    };
    let dirs = entries(dir).into_iter().filter(|path| path.is_dir());
    dirs.flat_map(|dir| entries(&dir)).collect()
}

fn write_model(scratch: &Scratch) -> PathBuf {
    let dir = scratch.join("model");
    std::fs::create_dir(&dir).expect("a fresh directory");
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY,
        "max_position_embeddings": 32_768, "tie_word_embeddings": true, "eos_token_id": 0
    });
    std::fs::write(dir.join("config.json"), config.to_string()).expect("room");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(repository("examples/models/guide").join(file), dir.join(file))
            .expect("the guide model");
    }
    let kv = HIDDEN / HEADS * KV_HEADS;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ] {
            shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count: usize = shape.iter().product();
            let random = || (rand::random::<f32>() - 0.5) * 0.2;
            let bytes = (0..count).flat_map(|_| random().to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view =
            TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape needs");
        (name.clone(), view)
    });
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).expect("room");
    dir
}

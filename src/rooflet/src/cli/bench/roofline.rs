//! `rooflet bench-roofline`: predicts and measures decode speed on this machine with models of
//! random weights. The result shows how accurate predictions from the probe are.

mod models;
mod streams;

use anyhow::{Context, anyhow, bail};
use camino::{Utf8Path, Utf8PathBuf};
use sysinfo::System;

use self::models::{SHAPES, Shape};
use crate::cli::ui::digits::three_digits;
use crate::cli::{Failure, fit, ui};
use rooflet_api::wire::ProbeReport;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::task::Tasks;
use rooflet_composition::shutdown;
use rooflet_model::config::FloatType;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::predict::{
    DecodePrediction, Engine, EngineBuild, Hardware, MeasuredMachine, ModelCost, Parameters, Workload,
};
use rooflet_roofline::probing::spread;
use rooflet_worker::bench::{BareEngine, BenchError};

/// Bits of the weights.
const BITS: [u32; 2] = [4, 8];

/// Tokens of the prompt. Its length has little influence, but it must not be empty.
const PROMPT_TOKENS: u32 = 8;

/// Arguments of `rooflet bench-roofline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models by number of parameters. On a CPU, the largest default model takes half a second per
    /// token.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "20m,75m,220m,600m", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)))]
    sizes: Vec<String>,
    /// Tokens decoded per model and round.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(4..=4096))]
    tokens: u32,
    /// Number of repetitions, including the probe.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory in which the models are written and kept. Default: a temporary directory.
    #[arg(long, value_name = "DIR")]
    models: Option<Utf8PathBuf>,
    /// Measure throughput instead: this many concurrent answers against sequential answers.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: Vec<u32>,
    /// With --streams: directory of a model to use instead of random ones.
    #[arg(long, value_name = "DIR", requires = "streams")]
    model: Option<Utf8PathBuf>,
}

/// Model with its cost and results.
struct Subject {
    name: String,
    path: Utf8PathBuf,
    parameters: u64,
    cost: ModelCost,
    kv_bits: KvBits,
    runs: Vec<Run>,
}

/// Result of one round for one model.
struct Run {
    predicted: DecodePrediction,
    measured: f64,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    let temporary;
    let directory = match &args.models {
        Some(path) => path.clone(),
        None => {
            let path = std::env::temp_dir().join(format!("rooflet-bench-{}", std::process::id()));
            temporary = Temporary(Utf8PathBuf::from_path_buf(path).map_err(|path| {
                anyhow!(
                    "the temporary directory `{}` is not UTF-8: use --models",
                    path.display()
                )
            })?);
            temporary.0.clone()
        }
    };
    let measuring = tokio::task::spawn_blocking(move || match args.streams.is_empty() {
        true => measure_all(&args, &directory),
        false => streams::run(&args, &directory),
    });
    tokio::select! {
        done = measuring => done?,
        () = tasks.stop_token().cancelled_owned() => Err(anyhow!("interrupted before the measurement was complete").into()),
    }
}

fn measure_all(args: &Args, directory: &Utf8Path) -> Result<(), Failure> {
    let load_before = System::load_average().one;
    let report = fit::machine::measure()?;
    let mut subjects = prepare(args, directory, &report)?;
    let mut machine = machine(&report)?;
    for round in 0..args.rounds {
        if round > 0 {
            machine = self::machine(&fit::machine::measure()?)?;
        }
        for subject in &mut subjects {
            let run = measure(subject, args.tokens, machine, round == 0)?;
            ui::progress(&format!(
                "round {} of {}: {}: predicted {:.2}, measured {:.2} tokens/s",
                round + 1,
                args.rounds,
                subject.name,
                run.predicted.tokens_per_second.p50,
                run.measured
            ));
            subject.runs.push(run);
        }
    }
    ui::output(&table(&report, &subjects));
    ui::output(&format!(
        "\nLoad average {load_before:.1} before, {:.1} after.\n",
        System::load_average().one
    ));
    Ok(())
}

/// Temporary directory, removed on drop.
struct Temporary(Utf8PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A failure only leaves files that the system removes later.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn machine(report: &ProbeReport) -> Result<MeasuredMachine, Failure> {
    let machine = MeasuredMachine::new(&report.measurements);
    Ok(machine.context("the probe report lacks a figure that predictions need")?)
}

fn prepare(args: &Args, directory: &Utf8Path, report: &ProbeReport) -> Result<Vec<Subject>, Failure> {
    let chosen = SHAPES
        .iter()
        .filter(|shape| args.sizes.iter().any(|size| size == shape.name));
    let mut subjects = Vec::new();
    for shape in chosen {
        for bits in BITS {
            subjects.push(subject(shape, bits, directory, report)?);
        }
    }
    Ok(subjects)
}

fn subject(shape: &Shape, bits: u32, directory: &Utf8Path, report: &ProbeReport) -> anyhow::Result<Subject> {
    let (name, path) = (shape.title(bits), directory.join(shape.title(bits)));
    let shape = written(shape, bits, &path)?.shape;
    let element = match report.engine.device.as_str() {
        "cpu" => FloatType::F32,
        _ => shape.element,
    };
    Ok(Subject {
        name,
        path,
        parameters: shape.parameters,
        cost: ModelCost::of_checkpoint(&shape, element),
        kv_bits: KvBits::new(8 * element.bytes() as u32),
        runs: Vec::new(),
    })
}

/// Returns the model at `path`. Writes it if it is missing or incomplete.
fn written(shape: &Shape, bits: u32, path: &Utf8Path) -> anyhow::Result<ModelDir> {
    ModelDir::inspect(path).or_else(|_| {
        ui::progress(&format!("writing {}", shape.title(bits)));
        shape
            .write(path, bits)
            .with_context(|| format!("writing the model `{path}`"))?;
        ModelDir::inspect(path).map_err(anyhow::Error::from)
    })
}

fn measure(subject: &Subject, tokens: u32, machine: MeasuredMachine, first: bool) -> anyhow::Result<Run> {
    let wrong = |err: BenchError| anyhow!("{}: {err}", subject.name);
    let engine = BareEngine::load(subject.path.clone().into_std_path_buf(), 1).map_err(wrong)?;
    let question = "a".repeat(PROMPT_TOKENS as usize);
    // The warm-up loads weights and allocates buffers. GPUs compile kernels for each new shape, and
    // every context length is a shape.
    let warm_up = if first { tokens as usize } else { 2 };
    engine.chat(&question, warm_up).map_err(wrong)?;
    let answer = engine.chat(&question, tokens as usize).map_err(wrong)?;
    let Some(measured) = answer.decode_tokens_per_second else {
        bail!(
            "{}: the answer of {} tokens has no decode speed",
            subject.name,
            answer.completion_tokens
        );
    };
    let workload = Workload {
        batch: 1,
        context_tokens: PROMPT_TOKENS + tokens / 2,
        prompt_tokens: PROMPT_TOKENS,
        cached_tokens: 0,
        kv_bits: subject.kv_bits,
    };
    let predicted = DecodePrediction::new(
        Parameters::built_in(),
        Hardware::Measured(machine),
        &EngineBuild::from(Engine::Mlx),
        &subject.cost,
        workload,
    );
    Ok(Run { predicted, measured })
}

/// Formats the results. Other programs disturb rounds differently, so the fastest rounds of both
/// sides are compared. The last column shows the median ratio within rounds.
fn table(report: &ProbeReport, subjects: &[Subject]) -> String {
    let engine = &report.engine;
    let mut text = format!(
        "{}, {} {} on {}\n\n\
         | model | parameters, million | products and attention, % of the step | predicted, tokens/s | \
         measured, tokens/s | measured / predicted | of each round, median (p10-p90) |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
        report.machine.chip.name, engine.name, engine.version, engine.device
    );
    let mut errors = Vec::new();
    for subject in subjects {
        let over = |of: fn(&Run) -> f64| subject.runs.iter().map(of).collect::<Vec<_>>();
        let best = |of: fn(&Run) -> f64| over(of).into_iter().fold(0.0, f64::max);
        let predicted = best(|run| run.predicted.tokens_per_second.p50);
        let measured = best(|run| run.measured);
        let ratio = spread(over(|run| run.measured / run.predicted.tokens_per_second.p50));
        let moving = spread(over(|run| {
            run.predicted.working.memory / run.predicted.working.total
        }));
        errors.push((measured / predicted - 1.0).abs());
        text.push_str(&format!(
            "| {} | {:.0} | {:.0} | {} | {} | {:.2} | {:.2} ({:.2}-{:.2}) |\n",
            subject.name,
            subject.parameters as f64 / 1e6,
            moving.median * 100.0,
            three_digits(predicted, 2),
            three_digits(measured, 2),
            measured / predicted,
            ratio.median,
            ratio.p10,
            ratio.p90,
        ));
    }
    let errors = spread(errors);
    text.push_str(&format!(
        "\nAbsolute error over {} models: median {:.1} %, 90th percentile {:.1} %.\n",
        errors.samples,
        errors.median * 100.0,
        errors.p90 * 100.0
    ));
    text
}

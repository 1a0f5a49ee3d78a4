//! `rooflet bench`: measures an OpenAI-compatible server, or compares two in the same rounds.

mod client;
pub(super) mod event_stream;
mod html;
mod prompt;
#[cfg(feature = "mlx")]
pub(super) mod roofline;
mod table;
mod target;

use anyhow::{Context, anyhow};
use camino::Utf8PathBuf;
use futures::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::client::{ChatRequest, Server};
use self::target::{Load, Target, Trial};
use super::{Failure, ui};
use rooflet_api::v1alpha1::{PowerSource, ThermalState};
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;
use rooflet_benchmark::{Cell, CellReport, Conditions, Matrix, PromptState, Round};
use rooflet_composition::shutdown;
use rooflet_host::Host;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::chip;
use rooflet_roofline::predict::ModelCost;

/// Maximum number of concurrent requests; larger than any server's batch.
const MOST_CONCURRENT: i64 = 256;

const RUNS_OF_ONE: u32 = 5;
/// Default number of runs with two targets. With 8 runs, the probability that all favour one target
/// by chance is 2 in 2^8, well below 5 %.
const RUNS_OF_TWO: u32 = 8;

/// Arguments of `rooflet bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// URL of a server, or directory of a model for which a worker is started. With two targets,
    /// every round measures both in alternating order.
    #[arg(value_name = "URL|DIR", required = true, num_args = 1..=2)]
    targets: Vec<String>,
    /// `model` of the requests. Default: the only model that the server lists.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key for all servers at URLs.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Prompt lengths in tokens, such as 128,1k,4k.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = parse_tokens, default_value = "128,1k")]
    contexts: Vec<u32>,
    /// State of the prefix cache for a prompt. cold: not cached. hot: answered immediately before.
    /// warm: cached on disk only. restart: cached on disk only, after a restart of the server. warm
    /// and restart need a model directory.
    #[arg(
        long,
        value_name = "STATE,…",
        value_delimiter = ',',
        value_enum,
        default_value = "cold,hot"
    )]
    states: Vec<State>,
    /// Number of concurrent requests.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MOST_CONCURRENT), default_value = "1")]
    concurrency: Vec<u32>,
    /// Stream answers. Without streaming there is no time to first token.
    #[arg(long, value_enum, default_value = "yes")]
    stream: Streaming,
    /// Number of runs. Default: 5, or 8 when comparing; fewer than 6 cannot show a difference.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Tokens requested for each answer.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=8192))]
    tokens: u32,
    /// Predefined contexts, states, runs and tokens.
    #[arg(long, value_enum, conflicts_with_all = ["contexts", "states", "concurrency", "stream", "runs", "tokens"])]
    preset: Option<Preset>,
    /// Directory of the model that servers at local URLs serve. Results faster than its size and
    /// the chip's bandwidth allow are rejected. Not needed for targets that are directories.
    #[arg(long, value_name = "DIR")]
    facts: Option<Utf8PathBuf>,
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
    /// Also write a report with plots of the streamed answers.
    #[arg(long, value_name = "FILE")]
    html: Option<Utf8PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Cold,
    Warm,
    Restart,
    Hot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Streaming {
    Yes,
    No,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Preset {
    /// Prompts of 1k to 32k tokens, cold, hot and, for model directories, warm; three runs.
    CacheStudy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Result of the benchmark.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    rooflet: &'static str,
    machine: String,
    targets: Vec<TargetName>,
    matrix: Matrix,
    cells: Vec<CellReport>,
}

#[derive(Debug, Serialize)]
struct TargetName {
    name: String,
    model: String,
}

/// Formats a count with its noun: `1 run`, `2 runs`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn parse_tokens(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a number of tokens: use 128, 4k or 4096");
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = lower
        .strip_suffix('k')
        .map_or((lower.as_str(), 1), |digits| (digits, 1024));
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(factor)
        .filter(|tokens| *tokens > 0)
        .ok_or_else(wrong)
}

impl Args {
    fn matrix(&self) -> Matrix {
        let state = |state: &State| match state {
            State::Cold => PromptState::Cold,
            State::Warm => PromptState::Warm,
            State::Restart => PromptState::Restart,
            State::Hot => PromptState::Hot,
        };
        match self.preset {
            Some(Preset::CacheStudy) => {
                let mut matrix = Matrix::cache_study();
                let all_here = self.targets.iter().all(|target| !target::is_url(target));
                matrix.states.retain(|state| all_here || !state.needs_files());
                matrix
            }
            None => Matrix {
                contexts: self.contexts.clone(),
                states: self.states.iter().map(state).collect(),
                concurrency: self.concurrency.clone(),
                streaming: match self.stream {
                    Streaming::Yes => vec![true],
                    Streaming::No => vec![false],
                    Streaming::Both => vec![true, false],
                },
                runs: self.runs.unwrap_or(match self.targets.len() {
                    1 => RUNS_OF_ONE,
                    _ => RUNS_OF_TWO,
                }),
                tokens: self.tokens,
            },
        }
    }
}

pub(super) async fn run(args: Args) -> Result<ExitStatus, Failure> {
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    let stop = tasks.stop_token();
    // Dropping the benchmark ends its workers.
    tokio::select! {
        outcome = measured(args) => outcome,
        () = stop.cancelled() => Err(anyhow!("interrupted").into()),
    }
}

async fn measured(args: Args) -> Result<ExitStatus, Failure> {
    let clock = Clock::System;
    if let Some(path) = &args.html {
        // An unwritable file must fail before the measurement, not after an hour.
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("opening `{path}` for writing"))?;
    }
    let matrix = args.matrix();
    let stores = matrix.states.iter().any(|state| state.needs_files());
    let key = args.api_key.as_deref().filter(|key| !key.is_empty());
    let mut servers = Vec::new();
    // All targets are checked before the first model is loaded.
    for name in &args.targets {
        if stores && target::is_url(name) {
            let err =
                anyhow!("`{name}`: warm and restart need a model directory, for which a server is started");
            return Err(Failure::new(ExitStatus::Usage, err));
        }
        let server = target::is_url(name).then(|| Server::at(name, key)).transpose();
        servers.push(server.map_err(|err| Failure::new(ExitStatus::Usage, err))?);
    }
    // Prompts differ between runs of the program, but not between the two targets.
    let began = clock.now().as_millisecond().cast_unsigned();
    let mut targets = Vec::new();
    for (name, server) in args.targets.iter().zip(servers) {
        let load = Load::of(&matrix);
        targets.push(
            Target::open(name, server, args.model.as_deref(), load, began, &clock)
                .await
                .map_err(|err| Failure::new(ExitStatus::Unavailable, err))?,
        );
    }
    let cells = matrix.cells();
    let trials: Vec<Trial> = targets.iter().map(|target| target.trial).collect();
    let of_cell = |cell: &Cell| -> f64 {
        let seconds = |trial: &Trial| cell.seconds(&matrix, trial.prefill, trial.decode);
        trials.iter().map(seconds).sum()
    };
    let expected: f64 = cells.iter().map(of_cell).sum();
    ui::progress(&format!(
        "{}, {} each: about {}",
        counted(cells.len(), "combination"),
        counted(matrix.runs as usize, "run"),
        duration(expected)
    ));
    let bar = progress_bar(expected);
    let mut reports = Vec::new();
    let mut seed = began << 20;
    for cell in cells {
        bar.set_message(format!(
            "{} tokens, {}, {} at a time",
            cell.context_tokens, cell.state, cell.concurrency
        ));
        let ceilings = ceilings(&args, &cell)?;
        for target in &mut targets {
            target
                .prepare(&cell, &clock)
                .await
                .map_err(|err| Failure::new(ExitStatus::Unavailable, err))?;
        }
        let report = measure(&mut targets, &matrix, cell, &ceilings, &mut seed, &clock).await;
        reports.push(report.map_err(|err| Failure::new(ExitStatus::Unavailable, err))?);
        bar.inc((1e3 * of_cell(&cell)) as u64);
    }
    bar.finish_and_clear();
    let report = Report {
        rooflet: env!("CARGO_PKG_VERSION"),
        machine: Host::Native.identity().chip.name,
        targets: targets
            .iter()
            .map(|target| TargetName {
                name: target.name.clone(),
                model: target.client.model.clone(),
            })
            .collect(),
        matrix,
        cells: reports,
    };
    match args.output {
        Output::Table => ui::output(&table::table(&report)),
        Output::Json => ui::output(&format!("{}\n", serde_json::to_string_pretty(&report)?)),
    }
    if let Some(path) = &args.html {
        std::fs::write(path, html::report(&report, clock.now()))
            .with_context(|| format!("writing `{path}`"))?;
        ui::progress(&format!("wrote report {path}"));
    }
    if report.cells.iter().any(CellReport::has_failures) {
        return Err(anyhow!("requests failed").into());
    }
    Ok(if report.cells.iter().any(CellReport::has_impossible) {
        ExitStatus::Flagged
    } else {
        ExitStatus::Success
    })
}

/// Measures all runs of one cell on every target.
async fn measure(
    targets: &mut [Target],
    matrix: &Matrix,
    cell: Cell,
    ceilings: &[Option<f64>],
    seed: &mut u64,
    clock: &Clock,
) -> anyhow::Result<CellReport> {
    let mut rounds: Vec<Vec<Round>> = targets.iter().map(|_| Vec::new()).collect();
    let (mut kept, mut others): (Vec<Vec<String>>, Vec<Vec<String>>) = Default::default();
    // Two servers get the same prompts. A server that is compared with itself gets different ones,
    // because its prefix cache contains those of the first target.
    let alike = targets.len() == 2 && targets[0].client.base != targets[1].client.base;
    if cell.state != PromptState::Cold {
        let first = *seed;
        for target in targets.iter() {
            if alike {
                *seed = first;
            }
            let known = prompts(target, &cell, seed);
            // Sends each prompt once to fill the cache. Errors appear in the runs.
            run_requests(target, &cell, matrix.tokens, &known, clock).await;
            if cell.state == PromptState::Warm {
                // The server's memory holds only one of the two prompts.
                others.push(prompts(target, &cell, seed));
            }
            kept.push(known);
        }
    }
    for run in 0..matrix.runs as usize {
        let first = *seed;
        for turn in 0..targets.len() {
            let at = (run + turn) % targets.len();
            let fresh;
            let prompts = match kept.get(at) {
                Some(kept) => kept,
                None => {
                    if alike {
                        *seed = first;
                    }
                    fresh = prompts(&targets[at], &cell, seed);
                    &fresh
                }
            };
            if cell.state == PromptState::Restart {
                targets[at].restart(clock).await?;
            }
            if let Some(others) = others.get(at) {
                run_requests(&targets[at], &cell, matrix.tokens, others, clock).await;
            }
            let mut round = run_requests(&targets[at], &cell, matrix.tokens, prompts, clock).await;
            round.conditions.ceiling = ceilings[at];
            rounds[at].push(round);
        }
    }
    Ok(CellReport::new(matrix, cell, &rounds))
}

fn prompts(target: &Target, cell: &Cell, seed: &mut u64) -> Vec<String> {
    let words = target.trial.length.words(cell.context_tokens);
    (0..cell.concurrency)
        .map(|_| {
            *seed += 1;
            prompt::text(words, *seed)
        })
        .collect()
}

/// Sends all requests of a run concurrently.
async fn run_requests(target: &Target, cell: &Cell, tokens: u32, prompts: &[String], clock: &Clock) -> Round {
    let begin = clock.instant();
    let asked = prompts.iter().map(|prompt| {
        target.client.ask(ChatRequest {
            prompt,
            tokens,
            streaming: cell.streaming,
        })
    });
    let answers = join_all(asked).await;
    let seconds = (clock.instant() - begin).as_secs_f64();
    let power = Host::Native.power();
    let mut round = Round {
        samples: Vec::new(),
        failures: Vec::new(),
        seconds,
        conditions: Conditions {
            throttled: power.low_power_mode == Some(true)
                || matches!(
                    power.thermal_state,
                    ThermalState::Serious | ThermalState::Critical
                ),
            on_battery: power.source == PowerSource::Battery,
            ceiling: None,
        },
    };
    for answer in answers {
        match answer {
            Ok(sample) => round.samples.push(sample),
            Err(err) => round.failures.push(format!("{err:#}")),
        }
    }
    round
}

/// Returns the upper limit of tokens per second per stream from the chip's bandwidth, for each
/// target. `None` if chip or model are unknown.
fn ceilings(args: &Args, cell: &Cell) -> anyhow::Result<Vec<Option<f64>>> {
    let host = Host::Native;
    let Ok(chip) = chip::of_machine(&host.identity().chip, host.memory().total) else {
        return Ok(vec![None; args.targets.len()]);
    };
    let of_directory = |path: &Utf8PathBuf| -> anyhow::Result<f64> {
        let shape = ModelDir::inspect(path)?.shape;
        let cost = ModelCost::of_checkpoint(&shape, shape.element);
        let kv = cost.dimensions.kv_bytes(cell.context_tokens, KvBits::HALF);
        let bytes = cost.weights.streamed(&cost.dimensions, 1) + kv;
        Ok(chip.bandwidth.0 / bytes.0 as f64)
    };
    let ceiling = |target: &String| {
        let is_url = target.contains("://");
        let is_here = !is_url || target.contains("//127.0.0.1") || target.contains("//localhost");
        let directory = if is_url {
            args.facts.clone()
        } else {
            Some(Utf8PathBuf::from(target))
        };
        directory
            .filter(|_| is_here)
            .as_ref()
            .map(of_directory)
            .transpose()
    };
    args.targets.iter().map(ceiling).collect()
}

fn progress_bar(seconds: f64) -> ProgressBar {
    let bar = ProgressBar::new((1e3 * seconds) as u64);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %, {eta} left: {msg}")
        .expect("the template is a valid constant");
    bar.set_style(style);
    bar
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 90.0 => format!("{:.0} s", seconds.ceil()),
        _ if seconds < 5400.0 => format!("{:.0} min", (seconds / 60.0).ceil()),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_short_and_long_token_counts() {
        assert_eq!(parse_tokens("4k"), Ok(4096));
        assert_eq!(parse_tokens("128"), Ok(128));
        for wrong in ["", "k", "0", "-1", "4m", "1.5k", "9999999k"] {
            assert!(parse_tokens(wrong).is_err(), "{wrong}");
        }
    }
}

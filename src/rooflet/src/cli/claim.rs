//! `rooflet claim`: checks published performance numbers.

mod document;
mod report;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use serde::Serialize;
use serde_json::Value;

use super::{Failure, ui};
use rooflet_api::v1alpha1::{
    ClaimCheck, ClaimFinding, ClaimVerdict, ClaimedConditions, ClaimedFigure, ClaimedHardware, ClaimedModel,
    FigureKind, PerformanceClaimSpec, Published,
};
use rooflet_base::error::ExitStatus;
use rooflet_base::yaml;
use rooflet_claim::{Assessment, InvalidClaim};

/// Arguments that describe a single claim.
const OF_ONE_CLAIM: [&str; 17] = [
    "chip",
    "gpu_cores",
    "memory",
    "bandwidth",
    "model",
    "quantization",
    "engine",
    "prompt",
    "cached",
    "context",
    "generated",
    "batch",
    "decode",
    "prefill",
    "ttft",
    "figure",
    "statement",
];

/// Check published numbers against physics, known facts and their own arithmetic.
///
/// With --file: checks every claim of a YAML file. Otherwise checks one claim from the other flags.
/// docs/claims.md describes the format.
///
/// Exit codes: 0 if everything is plausible, 4 if something is wrong, 5 if a claim contains nothing
/// that can be checked.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(super) struct Args {
    /// File with claims: PerformanceClaim objects or their specs; `-` reads standard input.
    /// Repeatable.
    #[arg(long = "file", short = 'f', value_name = "FILE.yaml", conflicts_with_all = OF_ONE_CLAIM)]
    files: Vec<Utf8PathBuf>,
    /// Output format. json: one object, or a list for several claims.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Chip, such as "Apple M4 Pro".
    #[arg(long)]
    chip: Option<String>,
    /// GPU cores of the chip.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    gpu_cores: Option<u32>,
    /// Memory of the machine, such as 24GB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Bandwidth that the claim states for the chip, in GB/s.
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true)]
    bandwidth: Option<String>,
    /// Model, such as gemma-3-12b-it-4bit.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Weight format: mlx4, 4bit, q4_k_m, bf16 and others. Default: from the model's name.
    #[arg(long, value_name = "FORMAT")]
    quantization: Option<String>,
    /// Inference engine.
    #[arg(long)]
    engine: Option<String>,
    /// Prompt length in tokens.
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Prompt tokens in the prefix cache.
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    cached: Option<String>,
    /// Tokens in the KV cache during decoding.
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    context: Option<String>,
    /// Generated tokens.
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    generated: Option<String>,
    /// Sequences in the batch.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Decode speed in tokens per second, such as 77.7, ~26 or 12-15; or time per token, such as
    /// 12.5ms/token.
    #[arg(long, value_name = "TOK/S", allow_hyphen_values = true)]
    decode: Option<String>,
    /// Prefill speed in tokens per second.
    #[arg(long, value_name = "TOK/S", allow_hyphen_values = true)]
    prefill: Option<String>,
    /// Time to first token, in seconds.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    ttft: Option<String>,
    /// Other figure as KIND=VALUE, such as weightBytes=1.9GB. Repeatable.
    #[arg(long, value_name = "KIND=VALUE", allow_hyphen_values = true)]
    figure: Vec<String>,
    /// Arithmetic statement of the claim, such as "16829/571 = 29.5". Repeatable.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    statement: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Plain text.
    #[default]
    Text,
    Json,
    Yaml,
}

/// Checked claim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckedClaim {
    /// File and document, or name.
    claim: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    verdict: ClaimVerdict,
    findings: Vec<ClaimFinding>,
    checks: Vec<ClaimCheck>,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    if args.files.is_empty() {
        let usage = |err| Failure::new(ExitStatus::Usage, err);
        let spec = from_flags(args).map_err(usage)?;
        let checked =
            CheckedClaim::new("the claim".to_owned(), spec).map_err(|InvalidClaim { field, message }| {
                let flag = flag(args, &field).unwrap_or(field);
                usage(anyhow!("{flag}: {message}"))
            })?;
        let checked = [checked];
        ui::output(&print(&checked, false, args.output)?);
        return Ok(outcome(&checked));
    }
    let mut claims = Vec::new();
    for file in &args.files {
        claims.extend(document::read(file).unwrap_or_else(|err| vec![Err(err)]));
    }
    let several = claims.len() > 1;
    let (mut checked, mut unreadable) = (Vec::new(), Vec::new());
    for claim in claims {
        let outcome = claim.and_then(|(claim, spec)| {
            CheckedClaim::new(claim.clone(), spec).map_err(|err| anyhow!("{claim}: {err}"))
        });
        match outcome {
            Ok(one) => checked.push(one),
            Err(err) => unreadable.push(err),
        }
    }
    if !checked.is_empty() {
        ui::output(&print(&checked, several, args.output)?);
    }
    let Some(last) = unreadable.pop() else {
        return Ok(outcome(&checked));
    };
    unreadable.iter().for_each(ui::error);
    Err(Failure::new(ExitStatus::Config, last))
}

impl CheckedClaim {
    fn new(claim: String, spec: PerformanceClaimSpec) -> Result<Self, InvalidClaim> {
        let assessment = Assessment::new(&spec)?;
        Ok(Self {
            claim,
            source: spec.source,
            verdict: assessment.verdict,
            findings: assessment.findings,
            checks: assessment.checks,
        })
    }
}

/// Formats the results. `several` is true if several claims were passed, even if some were
/// unreadable.
fn print(checked: &[CheckedClaim], several: bool, output: Output) -> anyhow::Result<String> {
    Ok(match (output, checked) {
        (Output::Text, _) => checked.iter().map(report::text).collect::<Vec<_>>().join("\n"),
        (Output::Json, [one]) if !several => serde_json::to_string_pretty(one)? + "\n",
        (Output::Json, all) => serde_json::to_string_pretty(all)? + "\n",
        (Output::Yaml, _) => {
            let documents = checked
                .iter()
                .map(yaml::to_string)
                .collect::<Result<Vec<_>, _>>()?;
            documents.join("---\n")
        }
    })
}

/// Returns the exit status of the most severe verdict.
fn outcome(checked: &[CheckedClaim]) -> ExitStatus {
    if checked.iter().any(|checked| checked.verdict.is_flag()) {
        ExitStatus::Flagged
    } else if checked
        .iter()
        .any(|checked| checked.verdict == ClaimVerdict::Untestable)
    {
        ExitStatus::Untestable
    } else {
        ExitStatus::Success
    }
}

/// Figures with their own flag, in the order of [`from_flags`].
fn figure_flags(args: &Args) -> impl Iterator<Item = (&'static str, FigureKind, &str)> {
    [
        ("--decode", FigureKind::DecodeTokensPerSecond, &args.decode),
        ("--prefill", FigureKind::PrefillTokensPerSecond, &args.prefill),
        ("--ttft", FigureKind::TimeToFirstTokenSeconds, &args.ttft),
    ]
    .into_iter()
    .filter_map(|(flag, kind, value)| Some((flag, kind, value.as_deref()?)))
}

/// Returns the flag from which a field of the claim comes.
fn flag(args: &Args, field: &str) -> Option<String> {
    let index = |list: &str| -> Option<usize> {
        let (index, _) = field.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
        index.parse().ok()
    };
    if let Some(index) = index("figures") {
        let flags: Vec<_> = figure_flags(args).map(|(flag, ..)| flag.to_owned()).collect();
        let others = args.figure.iter().map(|text| format!("--figure {text}"));
        return flags.into_iter().chain(others).nth(index);
    }
    if let Some(index) = index("statements") {
        return Some(format!("--statement {}", args.statement.get(index)?));
    }
    let flag = match field {
        "model.name" => "model",
        "hardware.gpuCores" => "gpu-cores",
        _ => field.split_once('.').map_or(field, |(_, name)| name),
    };
    let command = <Args as clap::Args>::augment_args(clap::Command::new("claim"));
    let known = command.get_arguments().any(|own| own.get_long() == Some(flag));
    known.then(|| format!("--{flag}"))
}

fn from_flags(args: &Args) -> anyhow::Result<PerformanceClaimSpec> {
    let text = |value: &Option<String>| value.as_deref().map(Published::from);
    let mut figures: Vec<_> = figure_flags(args)
        .map(|(_, kind, value)| figure(kind, value))
        .collect();
    for text in &args.figure {
        let (kind, value) = text
            .split_once('=')
            .ok_or_else(|| anyhow!("--figure {text}: use KIND=VALUE, such as weightBytes=1.9GB"))?;
        let kind = serde_json::from_value(Value::from(kind.trim()))
            .map_err(|err| anyhow!("--figure {text}: {err}"))?;
        figures.push(figure(kind, value.trim()));
    }
    Ok(PerformanceClaimSpec {
        source: None,
        hardware: ClaimedHardware {
            chip: args.chip.clone(),
            gpu_cores: args.gpu_cores,
            memory: text(&args.memory),
            bandwidth: text(&args.bandwidth),
            ..ClaimedHardware::default()
        },
        model: ClaimedModel {
            name: args.model.clone(),
            quantization: args.quantization.clone(),
            ..ClaimedModel::default()
        },
        engine: args.engine.clone(),
        workload: ClaimedConditions {
            prompt: text(&args.prompt),
            cached: text(&args.cached),
            context: text(&args.context),
            generated: text(&args.generated),
            batch: args.batch,
            ..ClaimedConditions::default()
        },
        figures,
        statements: args.statement.clone(),
    })
}

fn figure(kind: FigureKind, value: &str) -> ClaimedFigure {
    ClaimedFigure {
        name: None,
        kind,
        value: Published::from(value),
        under: ClaimedConditions::default(),
        basis: None,
        presented_as: None,
        per: None,
        bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn file_and_claim_flags_are_exclusive() {
        for flag in [
            "--prefill=3",
            "--ttft=1",
            "--gpu-cores=8",
            "--batch=2",
            "--statement=1 = 1",
        ] {
            let line = Line::try_parse_from(["rooflet", "--file=x.yaml", flag]);
            assert!(
                line.err().unwrap().to_string().contains("cannot be used with"),
                "{flag}"
            );
        }
        let command = <Args as clap::Args>::augment_args(clap::Command::new("claim"));
        let of_all = ["files", "output"];
        let names: Vec<_> = command.get_arguments().map(|own| own.get_id().as_str()).collect();
        let rest: Vec<_> = names.into_iter().filter(|name| !of_all.contains(name)).collect();
        assert_eq!(rest, OF_ONE_CLAIM);
    }

    #[test]
    fn statement_may_start_with_a_minus() {
        let line = Line::try_parse_from(["rooflet", "--statement", "-2.58 = 181.82-184.40"]).unwrap();
        assert_eq!(run(&line.args).unwrap(), ExitStatus::Success);
    }

    #[test]
    fn errors_name_the_flag() {
        for (flags, expected) in [
            (&["--decode=fast"][..], "--decode: `fast` is not a number"),
            (&["--ttft=1", "--prefill=x"], "--prefill: `x` is not a number"),
            (
                &["--decode=3", "--figure=weightBytes=small"],
                "--figure weightBytes=small: `small` is not a number",
            ),
            (&["--decode", "-5"], "--decode: `-5` "),
            (&["--decode=3", "--prompt", "-5"], "--prompt: `-5` "),
            (
                &["--figure", "weightBytes=-1 GB"],
                "--figure weightBytes=-1 GB: `-1 GB` ",
            ),
            (&["--figure", "-1 GB"], "--figure -1 GB: use KIND=VALUE"),
            (&["--decode=3", "--memory=much"], "--memory: `much` is not"),
            (&["--decode=3", "--prompt=long"], "--prompt: `long` is not"),
        ] {
            let words = ["rooflet", "--chip=Apple M4 Pro", "--model=qwen3-8b-4bit"];
            let line = Line::try_parse_from(words.iter().chain(flags)).unwrap();
            let failure = run(&line.args).unwrap_err();
            let message = format!("{:#}", failure.error);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}

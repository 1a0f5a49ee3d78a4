//! `rooflet fit`: predicts whether a model fits a machine, and its speed.

mod cases;
pub(super) mod machine;
pub(super) mod model;
mod report;

use anyhow::anyhow;
use camino::Utf8PathBuf;

use super::{Failure, ui};
use machine::ProbeSource;
use model::NamedModel;
use rooflet_api::v1alpha1::DEFAULT_CONTEXT_TOKENS;
use rooflet_base::error::ExitStatus;
use rooflet_base::quantity;
use rooflet_base::units::Bytes;
use rooflet_model::weights::{NamedFormat, WeightFormat};
use rooflet_roofline::predict::{Engine, Parameters};
use rooflet_roofline::sizing::{Fit, Service};

/// Default prompt length for the time to first token, limited by the context.
const DEFAULT_PROMPT_TOKENS: u32 = 2000;

/// Predict whether a model fits a machine, and its speed there.
///
/// Exit codes: 0 if it fits, 3 if it does not.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Model: directory, config.json, hf://OWNER/NAME or hf://OWNER/NAME@REVISION, https:// URL of
    /// a directory, name of a published model (Qwen3-8B-4bit), or FILE.json#NAME for a table of
    /// shapes. For remote models, only headers are read, no weights.
    #[arg(required_unless_present = "cases", conflicts_with = "cases")]
    model: Option<String>,
    /// Chip, such as "Apple M4 Pro". Default: this machine.
    #[arg(long)]
    chip: Option<String>,
    /// GPU cores of --chip, if the chip has variants with different numbers of cores.
    #[arg(
        long,
        requires = "chip",
        conflicts_with = "all_chips",
        allow_negative_numbers = true
    )]
    gpu_cores: Option<u32>,
    /// Memory of the machine, such as 24Gi. Default: the smallest memory of --chip.
    #[arg(long, value_parser = memory_size, allow_negative_numbers = true)]
    memory: Option<Bytes>,
    /// Measured figures: a file with the output of `rooflet probe -o json`, or `now` to measure
    /// this machine first. Default: the last measurement of this machine's agent.
    #[arg(long, value_name = "FILE|now", conflicts_with_all = ["chip", "all_chips"])]
    probe: Option<ProbeSource>,
    /// Print one line per chip of the catalogue.
    #[arg(long, conflicts_with_all = ["chip", "cases"])]
    all_chips: bool,
    /// Inference engine.
    #[arg(long, value_enum, default_value_t)]
    engine: EngineName,
    /// Context length in tokens, prompt and answer together. Default: the model's maximum, at most
    /// 32768.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    context: Option<u32>,
    /// Number of concurrent streams.
    #[arg(long, value_name = "STREAMS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    concurrency: u32,
    /// Prompt length for the time to first token. Default: 2000, or the context if it is smaller.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    prompt: Option<u32>,
    /// Prompt tokens in the prefix cache, for an additional time to first token.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    cached: u32,
    /// Bits per element of the KV cache: 4, 8, 16 or 32. MLX's CPU back end uses 32 instead of 16.
    #[arg(long, value_name = "BITS", default_value_t = 16, value_parser = kv_bits, allow_negative_numbers = true)]
    kv_bits: u32,
    /// Weight format for names and FILE.json#NAME: mlx4, mlx8, bf16, q4_k_m and others.
    #[arg(long, value_name = "FORMAT", value_parser = weight_format)]
    quantization: Option<WeightFormat>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Predict every row of a CSV file of measurements, and print the rows with added predictions.
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "shapes",
        conflicts_with_all = ["output", "chip", "gpu_cores", "memory", "probe", "engine", "context", "concurrency", "prompt", "cached", "kv_bits", "quantization"]
    )]
    cases: Option<Utf8PathBuf>,
    /// Model dimensions for --cases, by name.
    #[arg(long, value_name = "FILE.json", requires = "cases")]
    shapes: Option<Utf8PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    #[default]
    Mlx,
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    if let (Some(cases), Some(shapes)) = (&args.cases, &args.shapes) {
        cases::run(cases, shapes)?;
        return Ok(ExitStatus::Success);
    }
    let name = args.model.as_deref().unwrap_or_default();
    let model = model::load(name, args.quantization)?;
    let service = service(args, &model)?;
    let fits = if args.all_chips {
        all_chips(args, &model, service)?
    } else {
        one_machine(args, &model, service)?
    };
    Ok(if fits {
        ExitStatus::Success
    } else {
        ExitStatus::DoesNotFit
    })
}

fn one_machine(args: &Args, model: &NamedModel, service: Service) -> Result<bool, Failure> {
    let machine = match &args.chip {
        Some(chip) => machine::of_chip(chip, args.gpu_cores, args.memory)?,
        None => machine::of_probe(args.probe.as_ref(), args.memory, service.engine)?,
    };
    let fit = Fit::new(&model.facts, service, &machine.machine, Parameters::built_in());
    ui::output(&match args.output {
        Output::Json => serde_json::to_string_pretty(&report::json(&fit, model, &machine.machine))? + "\n",
        Output::Text => report::text(&fit, model, service, &machine),
    });
    Ok(fit.admitted())
}

fn all_chips(args: &Args, model: &NamedModel, service: Service) -> Result<bool, Failure> {
    let fits: Vec<_> = machine::catalogue(args.memory)
        .into_iter()
        .map(|machine| {
            let fit = Fit::new(&model.facts, service, &machine, Parameters::built_in());
            (machine, fit)
        })
        .collect();
    if fits.is_empty() {
        let err = anyhow!("no chip of the catalogue is available with this --memory");
        return Err(Failure::new(ExitStatus::Usage, err));
    }
    let chosen = report::smallest_that_fits(fits);
    ui::output(&match args.output {
        Output::Json => {
            let list: Vec<_> = chosen
                .iter()
                .map(|(machine, fit)| report::json(fit, model, machine))
                .collect();
            serde_json::to_string_pretty(&list)? + "\n"
        }
        Output::Text => report::table(&chosen, model, service),
    });
    Ok(chosen.iter().any(|(_, fit)| fit.admitted()))
}

fn service(args: &Args, model: &NamedModel) -> Result<Service, Failure> {
    let context_tokens = args.context.unwrap_or_else(|| {
        let longest = model.facts.max_context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS);
        longest.min(DEFAULT_CONTEXT_TOKENS)
    });
    let prompt_tokens = args
        .prompt
        .unwrap_or_else(|| DEFAULT_PROMPT_TOKENS.min(context_tokens));
    if prompt_tokens > context_tokens {
        let err = anyhow!(
            "--prompt {prompt_tokens} exceeds the context of {context_tokens} tokens: raise --context"
        );
        return Err(Failure::new(ExitStatus::Usage, err));
    }
    if args.cached > 0 && args.cached >= prompt_tokens {
        let err = anyhow!(
            "--cached {} must be less than the prompt of {prompt_tokens} tokens: the last token is always computed",
            args.cached
        );
        return Err(Failure::new(ExitStatus::Usage, err));
    }
    let service = Service {
        engine: match args.engine {
            EngineName::Mlx => Engine::Mlx,
            EngineName::LlamaCpp => Engine::LlamaCpp,
        },
        context_tokens,
        concurrency: args.concurrency,
        prompt_tokens,
        cached_tokens: args.cached,
        kv_bits: args.kv_bits,
    };
    if let Some(foreign) = model
        .format
        .and_then(|format| format.incompatibility_with(service.engine))
    {
        return Err(Failure::new(
            ExitStatus::Usage,
            anyhow!("--quantization: {foreign}"),
        ));
    }
    match service.kv_problem(&model.facts) {
        Some(problem) => Err(Failure::new(
            ExitStatus::Usage,
            anyhow!("--kv-bits {}: {problem}: omit the flag", args.kv_bits),
        )),
        None => Ok(service),
    }
}

/// Parses a memory size such as `24Gi`. Product notations (`24GB`, `24 gb`, `24G`) mean the same.
pub(super) fn memory_size(text: &str) -> Result<Bytes, String> {
    let size = text.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let binary = match size.strip_suffix(['G', 'g']) {
        Some(number) => format!("{}Gi", number.trim_end()),
        None => text.trim().trim_end_matches(['B', 'b']).to_owned(),
    };
    let size = quantity::parse_bytes(&binary)
        .map_err(|_| format!("`{text}` is not a size: write a number with a unit, such as 24Gi or 24GB"))?;
    if size < Bytes::gib(1) {
        return Err(format!("must be at least 1 GiB, such as 24Gi, but is {size}"));
    }
    Ok(size)
}

fn weight_format(text: &str) -> Result<WeightFormat, String> {
    let named = NamedFormat::parse(text, None).map_err(|err| err.to_string())?;
    if named.is_ambiguous() {
        return Err(format!("ambiguous format; the most likely is {}", named.format));
    }
    Ok(named.format)
}

fn kv_bits(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bits @ (4 | 8 | 16 | 32)) => Ok(bits),
        Ok(_) | Err(_) => Err("must be 4, 8, 16 or 32".to_owned()),
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

    fn refused(flags: &[&str]) -> String {
        let machine = ["rooflet", "--chip=M4 Pro"];
        let line = Line::try_parse_from(machine.iter().chain(flags)).unwrap();
        format!("{:#}", run(&line.args).unwrap_err().error)
    }

    #[test]
    fn rejects_negative_numbers_with_the_flag() {
        for flag in [
            "--context",
            "--concurrency",
            "--prompt",
            "--cached",
            "--kv-bits",
            "--gpu-cores",
            "--memory",
        ] {
            let line = Line::try_parse_from(["rooflet", "qwen3-8b-4bit", "--chip=M4 Pro", flag, "-5"]);
            let message = line.err().unwrap().to_string();
            assert!(
                message.contains("invalid value '-5'") && message.contains(flag),
                "{message}"
            );
        }
    }

    #[test]
    fn rejects_contradictory_flags() {
        for (flags, expected) in [
            (
                &["qwen3-8b-4bit", "--quantization=mlx8"][..],
                "--quantization: the name `qwen3-8b-4bit` contains the weight format mlx4, but mlx8 is specified",
            ),
            (
                &["qwen3-8b", "--quantization=mlx4", "--engine=llama.cpp"],
                "--quantization: llama.cpp does not run mlx4, a format of mlx: use q4_k_m, or --engine mlx",
            ),
            (
                &["qwen3-8b", "--quantization=q4_k_m"],
                "--quantization: mlx does not run q4_k_m, a format of llama.cpp: use mlx4, or --engine llama.cpp",
            ),
        ] {
            let message = refused(flags);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}

//! `rooflet plan`: predicts whether Macs satisfy a demand, what limits them, and what to buy.

mod current;
mod flags;
mod html;
mod macs;
mod manifest;
mod table;
#[cfg(test)]
mod tests;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::fit::model;
use super::ui::output::Output;
use super::{Failure, block_on, objects};
use rooflet_api::v1alpha1::{
    CapacityPlanSpec, DemandSpec, FleetNode, MacSpec, ModelReplica, OfferSpec, PlanFleetSpec, PlanVerdict,
};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::ApiError;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::weights::WeightFormat;
use rooflet_roofline::memory::ServedModel;
use rooflet_scheduler::capacity;
use rooflet_scheduler::capacity::{LoadModelError, PlanError, WantedModel};

/// Predict whether Macs satisfy a demand, the largest possible demand, its limits, and which Macs
/// to buy.
///
/// Exit codes: 0 if they satisfy the demand, or with --recommend if a purchase does; 3 otherwise.
/// The command does not change the fleet.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CapacityPlan manifest, such as examples/plan.yaml, instead of the flags for one model; `-`
    /// reads standard input.
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with_all = flags::OF_ONE_MODEL)]
    filename: Option<Utf8PathBuf>,
    /// Model: a name such as qwen3-8b with --quantization, or any other MODEL of `rooflet fit`.
    #[arg(long, requires_all = ["requests_per_second", "prompt", "answer"])]
    model: Option<String>,
    /// Weight format, if the model does not define it: mlx4, mlx8, bf16 and others.
    #[arg(long, value_name = "FORMAT")]
    quantization: Option<String>,
    /// Arriving requests per second.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    requests_per_second: Option<f64>,
    /// Average prompt length in tokens.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    prompt: Option<u32>,
    /// Average tokens of a prompt that the prefix cache contains.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    cached_prompt: u32,
    /// Average answer length in tokens.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    answer: Option<u32>,
    /// Maximum tokens of a request. Default: prompt and answer.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    context: Option<u32>,
    /// Disk space of a replica for cached prefixes, such as 20Gi: serving.kvCache.diskSize of a
    /// ModelDeployment.
    #[arg(long, value_name = "SIZE")]
    disk_size: Option<String>,
    /// Maximum number of concurrent requests of a replica. The plan may choose fewer.
    #[arg(long, value_name = "STREAMS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    concurrency: u32,
    /// Minimum number of nodes with the model.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    replicas: u32,
    /// Required tokens per second of each stream.
    #[arg(long, value_name = "TOKENS/S", allow_negative_numbers = true)]
    decode: Option<f64>,
    /// Require the decode speed at the average context (prompt and half of the answer), not at the
    /// maximum.
    #[arg(long)]
    average_context: bool,
    /// Assumed ratio of the decode speeds with and without speculative decoding, 1 to 8.
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true)]
    speculative_speedup: Option<f64>,
    /// Maximum time to first token, such as 3s.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    first_token: Option<String>,
    /// Macs, such as "2 x M4 16Gi, M4 Pro/20 48Gi disk=200Gi 90W @ 2199": count, chip, GPU cores,
    /// memory, disk space for replicas, watts and price of each.
    #[arg(long, value_name = "MACS", conflicts_with_all = ["current", "compare"])]
    fleet: Option<String>,
    /// Macs to compare with those of other --compare flags, in the format of --fleet.
    #[arg(long, value_name = "MACS", conflicts_with = "current")]
    compare: Vec<String>,
    /// Use the FleetNodes of the kubeconfig's cluster, without their current replicas. Without a
    /// model and a manifest, the demand is one replica set per ModelDeployment of the cluster.
    #[arg(long)]
    current: bool,
    /// With --current: keep the reservations of running replicas.
    #[arg(long, requires = "current", conflicts_with_all = ["fleet", "compare"])]
    beside_running: bool,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", requires = "current")]
    kubeconfig: Option<Utf8PathBuf>,
    /// Recommend a purchase from the catalogue and the offers.
    #[arg(long, conflicts_with = "compare")]
    recommend: bool,
    /// Mac that can be bought, such as "M4 Pro/20 48Gi @ 2199"; "3 x …" limits the count,
    /// otherwise up to 10000 are tried.
    #[arg(long, value_name = "MAC", requires = "recommend")]
    offer: Vec<String>,
    /// Also write a report as one HTML file.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    html: Option<Utf8PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    let config = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
    let usage = |err: anyhow::Error| Failure::new(ExitStatus::Usage, err);
    let mut spec = match &args.filename {
        Some(file) => manifest::read(file).map_err(config)?,
        None if args.model.is_none() && !args.current => {
            return Err(usage(anyhow!(
                "no demand specified: pass --filename FILE, or --model MODEL with --requests-per-second, --prompt and \
                 --answer, or --current for the deployments of the cluster"
            )));
        }
        None if args.model.is_none() => {
            let spec = block_on(current::spec(args.kubeconfig.clone()))?;
            spec.ok_or_else(|| {
                usage(anyhow!(
                    "--current: the cluster has no ModelDeployment with replicas; pass --model or --filename"
                ))
            })?
        }
        None => flags::spec(args),
    };
    if let Some(fleet) = &args.fleet {
        spec.fleet.macs = macs::fleet(fleet).context("--fleet").map_err(usage)?;
    }
    let offers: Vec<OfferSpec> = args
        .offer
        .iter()
        .map(|offer| macs::offer(offer).context("--offer"))
        .collect::<anyhow::Result<_>>()
        .map_err(usage)?;
    spec.catalogue.extend(offers);
    if args.recommend && spec.catalogue.is_empty() {
        let err =
            anyhow!("--recommend needs a catalogue: add spec.catalogue to the manifest, or pass --offer");
        return Err(usage(err));
    }
    if !args.recommend {
        spec.catalogue.clear();
    }
    if args.current {
        spec.fleet = PlanFleetSpec {
            macs: Vec::new(),
            beside_running: args.beside_running,
        };
    }
    if !args.compare.is_empty() {
        return compare(args, &spec);
    }
    if spec.fleet.macs.is_empty() && !args.current && !args.recommend {
        let err = anyhow!(
            "no Macs specified: pass --fleet, --compare or --current, or add spec.fleet.macs to the manifest"
        );
        return Err(usage(err));
    }
    let verdict = ask(args, &spec)?;
    if let Some(file) = &args.html {
        let page = html::report(&verdict, Clock::System.now());
        std::fs::write(file, page).with_context(|| format!("writing {file}"))?;
    }
    args.output.print(&verdict, || Ok(table::text(&verdict)))?;
    let bought = verdict
        .purchase
        .as_ref()
        .is_some_and(|purchase| purchase.best.is_some());
    Ok(status(verdict.feasible || bought))
}

fn status(fits: bool) -> ExitStatus {
    if fits {
        ExitStatus::Success
    } else {
        ExitStatus::DoesNotFit
    }
}

fn compare(args: &Args, spec: &CapacityPlanSpec) -> Result<ExitStatus, Failure> {
    let mut verdicts = Vec::new();
    for text in &args.compare {
        let macs: Vec<MacSpec> = macs::fleet(text)
            .context("--compare")
            .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
        let mut spec = spec.clone();
        spec.fleet.macs = macs;
        verdicts.push((text.clone(), ask(args, &spec)?));
    }
    let listed: Vec<Value> = verdicts
        .iter()
        .map(|(fleet, verdict)| serde_json::json!({"fleet": fleet, "verdict": verdict}))
        .collect();
    args.output.print(&listed, || Ok(table::comparison(&verdicts)))?;
    Ok(status(verdicts.iter().any(|(_, verdict)| verdict.feasible)))
}

fn ask(args: &Args, spec: &CapacityPlanSpec) -> Result<PlanVerdict, Failure> {
    let (nodes, replicas) = if args.current {
        block_on(fleet(args.kubeconfig.clone()))?
    } else {
        (Vec::new(), Vec::new())
    };
    let current = capacity::current_fleet(&nodes, &replicas, spec.fleet.beside_running);
    let question =
        capacity::question(spec, current, &nodes, &load).map_err(|err| unusable(args, spec, &err))?;
    Ok(capacity::answer(&question))
}

/// Converts an error of a field into an error of the flag that set it.
fn unusable(args: &Args, spec: &CapacityPlanSpec, err: &PlanError) -> Failure {
    let Some(flag) = flags::of_field(args, &err.field) else {
        let status = if args.filename.is_some() {
            ExitStatus::Config
        } else {
            ExitStatus::Usage
        };
        return Failure::new(status, anyhow!("{err}"));
    };
    // Index within a list.
    let index = err
        .field
        .split(['[', ']'])
        .nth(1)
        .and_then(|index| index.parse().ok());
    let of_list = |index: usize| match flag {
        "--fleet" | "--compare" => {
            let mac = spec.fleet.macs.get(index)?;
            Some(macs::shown(
                &mac.chip,
                mac.gpu_cores,
                &mac.memory,
                mac.disk.as_deref(),
            ))
        }
        "--offer" => {
            let mac = spec.catalogue.get(index)?;
            Some(macs::shown(
                &mac.chip,
                mac.gpu_cores,
                &mac.memory,
                mac.disk.as_deref(),
            ))
        }
        _ => None,
    };
    let which = index
        .and_then(of_list)
        .map_or(String::new(), |mac| format!(" `{mac}`"));
    Failure::new(ExitStatus::Usage, anyhow!("{flag}{which}: {}", err.message))
}

async fn fleet(kubeconfig: Option<Utf8PathBuf>) -> Result<(Vec<FleetNode>, Vec<ModelReplica>), Failure> {
    let client = objects::client(kubeconfig).await?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client);
    let all = ListParams::default();
    let nodes = nodes.list(&all).await.map_err(ApiError::from)?;
    let replicas = replicas.list(&all).await.map_err(ApiError::from)?;
    Ok((nodes.items, replicas.items))
}

/// Loads models that `rooflet fit` reads: paths, FILE.json#NAME and remote models. The planner
/// itself resolves names and `local://` sources.
fn load(demand: &DemandSpec) -> Option<Result<WantedModel, LoadModelError>> {
    let text = &demand.model;
    let path = text.contains('#') || text.contains('/') || Utf8Path::new(text).exists();
    if text.starts_with("local://") || !path {
        return None;
    }
    let load = || -> Result<WantedModel, LoadModelError> {
        let format: Option<WeightFormat> = match &demand.quantization {
            Some(format) => Some(format.parse()?),
            None => None,
        };
        let model = model::load(text, format)
            .map_err(|failure| LoadModelError::Unreadable(format!("{:#}", failure.error)))?;
        model.format.map_or(Ok(()), capacity::runs_on_nodes)?;
        let cost = model.facts.cost();
        let cost = cost.ok_or_else(|| LoadModelError::UnknownFamily {
            name: model.name.clone(),
        })?;
        Ok(WantedModel {
            served: ServedModel {
                cost,
                kv_bits: KvBits::HALF,
            },
            longest_context: model.facts.max_context_tokens,
        })
    };
    Some(load())
}

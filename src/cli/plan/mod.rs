//! `rooflet plan`: whether Macs carry a demand, how far, what breaks first, and what to buy.

mod macs;
mod table;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};
use kube::api::ListParams;
use kube::{Api, CustomResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fit::model;
use super::{Failure, block_on, ui};
use crate::api::v1alpha1::{
    CapacityPlan, CapacityPlanSpec, DEFAULT_MAX_UTILIZATION_PERCENT, DemandSpec, FleetNode, MacSpec,
    ModelReplica, ObjectivesSpec, OfferSpec, PlanFleetSpec, PlanVerdict, TimeToFirstTokenObjective,
};
use crate::capacity;
use crate::client::{ApiError, KubeconfigSource, connect};
use crate::error::ExitStatus;
use crate::roofline::dimensions::KvBits;
use crate::roofline::memory::ServedModel;
use crate::schema::StructuralSchema;
use crate::yaml;

/// Tell whether Macs carry a demand, how far, what breaks first, and what to buy.
///
/// Exits with 0 if they do and with 3 if they do not. Nothing is changed anywhere.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A CapacityPlan manifest, such as examples/plan.yaml, instead of the flags for one model.
    #[arg(
        long,
        short = 'f',
        value_name = "FILE",
        conflicts_with = "model",
        required_unless_present = "model"
    )]
    filename: Option<Utf8PathBuf>,
    /// The model: a name such as qwen3-8b with --quantization, or what `rooflet fit` takes.
    #[arg(long, requires_all = ["requests_per_second", "prompt", "answer"])]
    model: Option<String>,
    /// Format of the weights where the model does not say it: mlx4, mlx8, bf16 and others.
    #[arg(long, value_name = "FORMAT")]
    quantization: Option<String>,
    /// Requests that arrive per second.
    #[arg(long, value_name = "RATE")]
    requests_per_second: Option<f64>,
    /// Tokens of the average prompt.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: Option<u32>,
    /// Tokens of the average answer.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    answer: Option<u32>,
    /// Tokens that one request may have. Default: prompt and answer.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Requests that a replica serves at the same time.
    #[arg(long, value_name = "STREAMS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// Nodes that must have the model at least.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Tokens per second that each stream must get.
    #[arg(long, value_name = "TOKENS/S")]
    decode: Option<f64>,
    /// The longest wait for the first token, such as 3s.
    #[arg(long, value_name = "DURATION")]
    first_token: Option<String>,
    /// The Macs, such as "2 x M4 16Gi, M4 Pro/20 48Gi @ 2199".
    #[arg(long, value_name = "MACS", conflicts_with_all = ["current", "compare"])]
    fleet: Option<String>,
    /// Macs to compare with other --compare.
    #[arg(long, value_name = "MACS", conflicts_with = "current")]
    compare: Vec<String>,
    /// The FleetNodes there are, by kubeconfig; as if nothing ran on them.
    #[arg(long)]
    current: bool,
    /// With --current: leave to what runs now what it has reserved.
    #[arg(long, requires = "current")]
    beside_running: bool,
    /// Which API server to ask. Default: what kubectl would use.
    #[arg(long, value_name = "FILE", requires = "current")]
    kubeconfig: Option<Utf8PathBuf>,
    /// Say what to buy of the catalogue and the offers.
    #[arg(long)]
    recommend: bool,
    /// A Mac that can be bought, such as "M4 Pro/20 48Gi @ 2199"; "3 x …" for at most three.
    #[arg(long, value_name = "MAC", requires = "recommend")]
    offer: Vec<String>,
    /// How the answer is printed.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    let config = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
    let usage = |err: anyhow::Error| Failure::new(ExitStatus::Usage, err);
    let mut spec = match &args.filename {
        Some(file) => manifest(file).map_err(config)?,
        None => flags(args),
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
            anyhow!("--recommend needs something to choose from: spec.catalogue of the manifest, or --offer");
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
        let err = anyhow!("which Macs? --fleet, --compare, --current, or spec.fleet.macs of the manifest");
        return Err(usage(err));
    }
    let verdict = ask(args, &spec)?;
    print(args, &verdict, || table::text(&verdict))?;
    Ok(status(
        verdict.feasible || verdict.purchase.is_some_and(|purchase| purchase.found),
    ))
}

fn status(fits: bool) -> ExitStatus {
    if fits {
        ExitStatus::Success
    } else {
        ExitStatus::DoesNotFit
    }
}

fn print<T: serde::Serialize>(args: &Args, value: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
    ui::output(&match args.output {
        Output::Table => text(),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => yaml::to_string(value)?,
    });
    Ok(())
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
    print(args, &listed, || table::comparison(&verdicts))?;
    Ok(status(verdicts.iter().any(|(_, verdict)| verdict.feasible)))
}

fn ask(args: &Args, spec: &CapacityPlanSpec) -> Result<PlanVerdict, Failure> {
    let (nodes, replicas) = if args.current {
        let source = args
            .kubeconfig
            .clone()
            .map_or(KubeconfigSource::Environment, KubeconfigSource::File);
        block_on(fleet(source))?
    } else {
        (Vec::new(), Vec::new())
    };
    let current = capacity::current_fleet(&nodes, &replicas, spec.fleet.beside_running);
    let question = capacity::question(spec, current, &nodes, &load)
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    Ok(capacity::answer(&question))
}

async fn fleet(source: KubeconfigSource) -> Result<(Vec<FleetNode>, Vec<ModelReplica>), Failure> {
    let client = connect(&source)
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client);
    let all = ListParams::default();
    let nodes = nodes.list(&all).await.map_err(ApiError::from)?;
    let replicas = replicas.list(&all).await.map_err(ApiError::from)?;
    Ok((nodes.items, replicas.items))
}

/// What `rooflet fit` reads: paths, FILE.json#NAME and remote models. A bare word is a name, unless a path is there.
fn load(demand: &DemandSpec) -> Option<Result<ServedModel, String>> {
    let text = &demand.model;
    let local = text.starts_with("local://");
    let path = text.contains('#') || text.contains('/') || Utf8Path::new(text).exists();
    if local || !path {
        return None;
    }
    let load = || -> Result<ServedModel, String> {
        let format = match demand.quantization.as_deref().filter(|_| text.contains('#')) {
            Some(format) => Some(
                format
                    .parse()
                    .map_err(|err: crate::roofline::weights::UnknownWeightFormat| err.to_string())?,
            ),
            None => None,
        };
        let model = model::load(text, format).map_err(|failure| format!("{:#}", failure.error))?;
        let cost = model.facts.cost().ok_or_else(|| {
            format!(
                "`{}` is of a family that is not known here, so its speed cannot be told",
                model.name
            )
        })?;
        Ok(ServedModel {
            cost,
            kv_bits: KvBits::HALF,
        })
    };
    Some(load())
}

fn flags(args: &Args) -> CapacityPlanSpec {
    let first_token = args.first_token.clone().map(|max| TimeToFirstTokenObjective {
        max,
        at_prompt_tokens: args.prompt,
    });
    CapacityPlanSpec {
        demand: vec![DemandSpec {
            name: None,
            model: args.model.clone().unwrap_or_default(),
            quantization: args.quantization.clone(),
            kv_bits: None,
            requests_per_second: args.requests_per_second.unwrap_or_default(),
            prompt_tokens: args.prompt.unwrap_or(1),
            answer_tokens: args.answer.unwrap_or(1),
            context_tokens: args.context,
            max_concurrency: args.concurrency,
            replicas: args.replicas,
            objectives: ObjectivesSpec {
                decode_tokens_per_second: args.decode,
                time_to_first_token: first_token,
            },
        }],
        max_utilization_percent: DEFAULT_MAX_UTILIZATION_PERCENT,
        ..CapacityPlanSpec::default()
    }
}

/// A CapacityPlan from a file, by the schema that the API server has.
fn manifest(file: &Utf8Path) -> anyhow::Result<CapacityPlanSpec> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    parse(&text).with_context(|| file.to_string())
}

fn parse(text: &str) -> anyhow::Result<CapacityPlanSpec> {
    let mut documents = yaml::documents(text)?;
    let mut object = match documents.len() {
        1 => documents.remove(0),
        count => return Err(anyhow!("expected one CapacityPlan, found {count} documents")),
    };
    if object.get("kind").and_then(Value::as_str) != Some("CapacityPlan") {
        return Err(anyhow!(
            "kind: must be CapacityPlan, in apiVersion rooflet.dev/v1alpha1"
        ));
    }
    let crd = CapacityPlan::crd();
    let schema = crd
        .spec
        .versions
        .first()
        .and_then(|version| version.schema.as_ref());
    let schema = serde_json::to_value(schema.map(|schema| &schema.open_api_v3_schema))?;
    let schema = StructuralSchema::trusted(&schema);
    if let Some(field) = schema.prune(&mut object).first() {
        return Err(anyhow!("{field}: unknown field"));
    }
    schema.apply_defaults(&mut object);
    let problems = schema.validate(&object, None);
    if !problems.is_empty() {
        let all: Vec<_> = problems.iter().map(crate::schema::FieldError::summary).collect();
        return Err(anyhow!("{}", all.join("; ")));
    }
    section(&mut object, "spec")
}

fn section<T: DeserializeOwned>(object: &mut Value, name: &str) -> anyhow::Result<T> {
    let value = object.get_mut(name).map(Value::take).unwrap_or_default();
    serde_json::from_value(value).with_context(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_by_its_schema() {
        let plan = |demand: &str| {
            parse(&format!(
                "apiVersion: rooflet.dev/v1alpha1\nkind: CapacityPlan\nmetadata: {{name: p}}\nspec:\n  demand: [{demand}]\n"
            ))
        };
        let good = "{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 1, promptTokens: 900, answerTokens: 300}";
        assert_eq!(plan(good).unwrap().demand[0].max_concurrency, 4);
        let message = |demand: &str| format!("{:#}", plan(demand).unwrap_err());
        let misspelt = message(&good.replace("promptTokens", "promptTokns"));
        assert!(
            misspelt.contains("spec.demand[0].promptTokns: unknown field"),
            "{misspelt}"
        );
        let zero = message(&good.replace("answerTokens: 300", "answerTokens: 0"));
        assert!(zero.contains("spec.demand[0].answerTokens"), "{zero}");
    }
}

//! Parser of a CapacityPlan: converts its spec to a [`Question`], or returns the invalid field.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::question::{NodeClass, PlannedModel, Question};
use crate::Fleet;
use rooflet_api::v1alpha1::{
    CapacityPlanSpec, DemandSpec, FleetNode, MacSpec, ModelReplica, ModelSource, NodeModel, OfferSpec,
};
use rooflet_base::quantity;
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_model::kv_cache::KvBits;
use rooflet_model::library;
use rooflet_model::library::LibraryError;
use rooflet_model::weights::{UnknownWeightFormat, WeightFormat, Weights};
use rooflet_roofline::admission::Objectives;
use rooflet_roofline::chip;
use rooflet_roofline::chip::ChipVariant;
use rooflet_roofline::disk::NodeDisk;
use rooflet_roofline::memory::{Demand, ServedModel, allocatable};
use rooflet_roofline::predict::{Engine, Hardware, ModelCost};
use rooflet_roofline::published;

/// Invalid field of a plan, with the expected value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PlanError {
    pub field: String,
    pub message: String,
}

impl PlanError {
    /// Returns the CamelCase reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        "InvalidPlan"
    }
}

/// Maximum values in the schema of CapacityPlan.
const MAX_TOKENS: u32 = 16_777_216;
const MAX_REQUESTS_PER_SECOND: f64 = 1_000_000.0;
const MAX_SPECULATIVE_SPEEDUP: f64 = 8.0;
pub(super) const MAX_COUNT: u32 = 10_000;

fn invalid(field: String, message: impl ToString) -> PlanError {
    PlanError {
        field,
        message: message.to_string(),
    }
}

/// Model of a demand.
#[derive(Debug, Clone)]
pub struct WantedModel {
    pub served: ServedModel,
    /// Maximum context in tokens; `None` if only the dimensions are known.
    pub longest_context: Option<u32>,
}

/// Reason why a model that is neither in the library nor on a node cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadModelError {
    #[error(transparent)]
    WeightFormat(#[from] UnknownWeightFormat),
    #[error("nodes run MLX, which does not run {format}: use {instead}")]
    ForeignFormat {
        format: WeightFormat,
        instead: WeightFormat,
    },
    /// The causes of the failure, in one line.
    #[error("{0}")]
    Unreadable(String),
    #[error("`{name}` has an unknown model family, so its speed is unknown")]
    UnknownFamily { name: String },
}

impl LoadModelError {
    /// Returns the invalid field of a demand.
    fn field(&self) -> &'static str {
        match self {
            Self::WeightFormat(_) | Self::ForeignFormat { .. } => "quantization",
            Self::Unreadable(_) | Self::UnknownFamily { .. } => "model",
        }
    }
}

/// Returns an error for a format of weights that nodes cannot run.
pub fn runs_on_nodes(format: WeightFormat) -> Result<(), LoadModelError> {
    format
        .incompatibility_with(Engine::Mlx)
        .map_or(Ok(()), |foreign| {
            let instead = foreign.instead();
            Err(LoadModelError::ForeignFormat { format, instead })
        })
}

/// Converts `spec` to a question about the Macs that it lists, or else about `current`.
///
/// `load` loads models that are neither in the library nor on a node. It returns `None` for sources
/// that it does not support.
pub fn question(
    spec: &CapacityPlanSpec,
    current: Vec<NodeClass>,
    nodes: &[FleetNode],
    load: &dyn Fn(&DemandSpec) -> Option<Result<WantedModel, LoadModelError>>,
) -> Result<Question, PlanError> {
    if spec.demand.is_empty() {
        return Err(invalid(
            "spec.demand".to_owned(),
            "must not be empty: list at least one model",
        ));
    }
    let percent = spec.max_utilization_percent;
    if !(1..=100).contains(&percent) {
        let message = format!("{percent} must be from 1 to 100");
        return Err(invalid("spec.maxUtilizationPercent".to_owned(), message));
    }
    let mut classes = current;
    if !spec.fleet.macs.is_empty() {
        classes = node_classes(&spec.fleet.macs, "spec.fleet.macs")?;
        if classes.iter().all(|class| class.nodes == 0) && spec.catalogue.is_empty() {
            let message = "every count is 0: list at least one Mac";
            return Err(invalid("spec.fleet.macs".to_owned(), message));
        }
    }
    for (index, offer) in spec.catalogue.iter().enumerate() {
        if let Some(available) = offer
            .available
            .filter(|available| !(1..=MAX_COUNT).contains(available))
        {
            let message =
                format!("{available} must be from 1 to {MAX_COUNT}; omit it for an unlimited number");
            return Err(invalid(format!("spec.catalogue[{index}].available"), message));
        }
    }
    let offers: Vec<MacSpec> = spec.catalogue.iter().map(mac_of_offer).collect();
    let mut models: Vec<PlannedModel> = Vec::new();
    for (index, demand) in spec.demand.iter().enumerate() {
        let field = format!("spec.demand[{index}]");
        let model = planned(demand, &field, nodes, load)?;
        if models.iter().any(|known| known.name == model.name) {
            let message = format!(
                "duplicate model `{}`; set different names, or add the requests",
                model.name
            );
            return Err(invalid(format!("{field}.name"), message));
        }
        models.push(model);
    }
    Ok(Question {
        classes,
        offers: node_classes(&offers, "spec.catalogue")?,
        open_offers: spec.catalogue.iter().any(|offer| offer.available.is_none()),
        models,
        utilization: f64::from(percent) / 100.0,
    })
}

fn mac_of_offer(offer: &OfferSpec) -> MacSpec {
    MacSpec {
        name: offer.name.clone(),
        chip: offer.chip.clone(),
        gpu_cores: offer.gpu_cores,
        memory: offer.memory.clone(),
        disk: offer.disk.clone(),
        count: offer.available.unwrap_or(MAX_COUNT),
        price: offer.price,
        watts: offer.watts,
    }
}

/// Checks a number against the rules of the schema, because flags bypass the schema.
fn checked(value: f64, field: String, holds: impl FnOnce(f64) -> bool, must: &str) -> Result<(), PlanError> {
    if value.is_finite() && holds(value) {
        Ok(())
    } else {
        Err(invalid(field, format!("{value} must be {must}")))
    }
}

fn planned(
    demand: &DemandSpec,
    field: &str,
    nodes: &[FleetNode],
    load: &dyn Fn(&DemandSpec) -> Option<Result<WantedModel, LoadModelError>>,
) -> Result<PlannedModel, PlanError> {
    let at = |name: &str| format!("{field}.{name}");
    for (name, tokens) in [
        ("promptTokens", demand.prompt_tokens),
        ("answerTokens", demand.answer_tokens),
        ("contextTokens", demand.context_tokens.unwrap_or(1)),
    ] {
        if !(1..=MAX_TOKENS).contains(&tokens) {
            return Err(invalid(
                at(name),
                format!("{tokens} must be from 1 to {MAX_TOKENS}"),
            ));
        }
    }
    let average = demand.prompt_tokens.saturating_add(demand.answer_tokens);
    if demand.cached_prompt_tokens >= demand.prompt_tokens {
        let message = format!(
            "{} must be less than promptTokens = {}: prefill computes at least the last token of a prompt",
            demand.cached_prompt_tokens, demand.prompt_tokens
        );
        return Err(invalid(at("cachedPromptTokens"), message));
    }
    if let Some(speedup) = demand.speculative_speedup {
        checked(
            speedup,
            at("speculativeSpeedup"),
            |speedup| (1.0..=MAX_SPECULATIVE_SPEEDUP).contains(&speedup),
            "from 1 to 8; omit it for no speculative decoding",
        )?;
    }
    let context_tokens = demand.context_tokens.unwrap_or(average);
    if context_tokens < average {
        let message = format!(
            "{context_tokens} is less than promptTokens + answerTokens = {average}: the average request would be rejected"
        );
        return Err(invalid(at("contextTokens"), message));
    }
    checked(
        demand.requests_per_second,
        at("requestsPerSecond"),
        |rate| (0.0..=MAX_REQUESTS_PER_SECOND).contains(&rate),
        "from 0 to 1000000 requests per second",
    )?;
    if let Some(decode) = demand.objectives.decode_tokens_per_second {
        checked(
            decode,
            at("objectives.decodeTokensPerSecond"),
            |rate| rate > 0.0,
            "more than 0 tokens per second; omit it for no objective",
        )?;
    }
    if let Some(first) = &demand.objectives.time_to_first_token {
        let longest = quantity::parse_duration(&first.max);
        if longest.is_none_or(|longest| longest.is_zero()) {
            let message = format!(
                "`{}` must be a duration above zero, such as 3s or 1m30s",
                first.max
            );
            return Err(invalid(at("objectives.timeToFirstToken.max"), message));
        }
        if let Some(prompt) = first.at_prompt_tokens.filter(|prompt| *prompt > context_tokens) {
            let message =
                format!("{prompt} is more than contextTokens = {context_tokens}: such a prompt is rejected");
            return Err(invalid(at("objectives.timeToFirstToken.atPromptTokens"), message));
        }
    }
    let disk = demand
        .disk_size
        .as_ref()
        .map(|size| quantity::parse_bytes(size).map_err(|err| invalid(at("diskSize"), err)));
    let WantedModel {
        served,
        longest_context,
    } = match load(demand) {
        Some(loaded) => loaded.map_err(|err| invalid(at(err.field()), err))?,
        None => known(demand, field, nodes)?,
    };
    if let Some(longest) = longest_context.filter(|longest| *longest < context_tokens) {
        let name = match demand.context_tokens {
            Some(_) => "contextTokens",
            None => "promptTokens",
        };
        let message = format!(
            "{context_tokens} tokens of prompt and answer exceed the maximum context of `{}`, {longest} tokens",
            demand.model
        );
        return Err(invalid(at(name), message));
    }
    // Same check as admission: every node would reject the replica.
    let served = served
        .with_kv_bits(demand.kv_bits)
        .map_err(|err| invalid(at("kvBits"), err))?;
    Ok(PlannedModel {
        name: demand.name.clone().unwrap_or_else(|| demand.model.clone()),
        served,
        requests_per_second: demand.requests_per_second,
        prompt_tokens: demand.prompt_tokens,
        cached_prompt_tokens: demand.cached_prompt_tokens,
        decode_context: demand.decode_context,
        speculative_speedup: demand.speculative_speedup,
        answer_tokens: demand.answer_tokens,
        demand: Demand {
            context_tokens,
            max_concurrency: demand.max_concurrency,
        },
        disk: disk.transpose()?.unwrap_or(Bytes::ZERO),
        objectives: Objectives::from(&demand.objectives),
        replicas: demand.replicas,
    })
}

/// Returns a model of a node or of the library.
fn known(demand: &DemandSpec, field: &str, nodes: &[FleetNode]) -> Result<WantedModel, PlanError> {
    if let Ok(ModelSource::Local(name)) = demand.model.parse() {
        let models = nodes
            .iter()
            .filter_map(|node| node.status.as_ref())
            .flat_map(|status| &status.models);
        let found = models.filter(|model| model.name == name).find_map(published);
        return found.ok_or_else(|| {
            let message = format!("no FleetNode has a servable directory `{name}` in its --model-dir");
            invalid(format!("{field}.model"), message)
        });
    }
    if let Ok(ModelSource::Hub(model)) = demand.model.parse() {
        // Without a revision, any commit matches.
        let whole = model.to_string();
        let is_it = |name: &str| {
            let rest = name.strip_prefix(&whole);
            rest.is_some_and(|rest| rest.is_empty() || model.revision.is_none() && rest.starts_with('@'))
        };
        let models = nodes.iter().filter_map(|node| node.status.as_ref());
        let mut models = models
            .flat_map(|status| &status.models)
            .filter(|model| is_it(&model.name));
        if let Some(found) = models.find_map(published) {
            return Ok(found);
        }
    }
    if demand.model.contains("://") {
        let message = "plans in the cluster do not query hubs: set a known model such as qwen3-8b with its quantization, \
                       local://NAME, or hf://OWNER/NAME that a node has downloaded; `rooflet plan` on the command line \
                       reads hf:// and files";
        return Err(invalid(format!("{field}.model"), message));
    }
    let format = demand.quantization.as_deref().map(|format| {
        let parsed: Result<WeightFormat, _> = format.parse();
        parsed.map_err(|err| invalid(format!("{field}.quantization"), err))
    });
    let found = library::find(&demand.model, format.transpose()?).map_err(|err| {
        let name = match &err {
            LibraryError::UnknownModel { .. } => "model",
            LibraryError::UnknownFormat { .. } | LibraryError::ConflictingFormat { .. } => "quantization",
        };
        invalid(format!("{field}.{name}"), err)
    })?;
    runs_on_nodes(found.format).map_err(|err| invalid(format!("{field}.{}", err.field()), err))?;
    let served = ServedModel {
        cost: ModelCost {
            weights: Weights::estimate(&found.dimensions, found.format),
            dimensions: found.dimensions,
        },
        kv_bits: KvBits::HALF,
    };
    Ok(WantedModel {
        served,
        longest_context: None,
    })
}

fn published(model: &NodeModel) -> Option<WantedModel> {
    Some(WantedModel {
        served: ServedModel::published(model).ok()?,
        longest_context: Some(model.max_context_tokens),
    })
}

/// Returns the node classes of a list of Macs, with unique names.
fn node_classes(macs: &[MacSpec], list: &str) -> Result<Vec<NodeClass>, PlanError> {
    let mut classes: Vec<NodeClass> = Vec::new();
    for (index, mac) in macs.iter().enumerate() {
        let field = format!("{list}[{index}]");
        let mut class = node_class(mac, &field)?;
        let namesake = classes.iter().find(|known| known.name == class.name);
        let other_bin = namesake.is_some_and(|known| known.chip != class.chip);
        if mac.name.is_none() && other_bin {
            class.name = format!("{} {}", class.chip, class.name);
        }
        let is_used = |name: &str| classes.iter().any(|known| known.name == name);
        // Two entries of one Mac at one price are duplicates.
        let is_listed = classes.iter().any(|known| {
            (&known.chip, known.allocatable, known.price) == (&class.chip, class.allocatable, class.price)
        });
        if let (None, Some(price), true, false) = (&mac.name, mac.price, is_used(&class.name), is_listed) {
            class.name = format!("{} @ {price}", class.name);
        }
        if is_used(&class.name) {
            let message = format!(
                "duplicate class `{}`; add the counts, or set different names in {list}[].name",
                class.name
            );
            return Err(invalid(format!("{field}.name"), message));
        }
        classes.push(class);
    }
    Ok(classes)
}

fn node_class(mac: &MacSpec, field: &str) -> Result<NodeClass, PlanError> {
    let memory = quantity::parse_bytes(&mac.memory).map_err(|err| invalid(format!("{field}.memory"), err))?;
    let chip = chip::find(&mac.chip, mac.gpu_cores, Some(memory))
        .map_err(|err| invalid(format!("{field}.chip"), err))?;
    if !chip.memory.contains(&memory) {
        let sizes: Vec<_> = chip.memory.iter().map(ToString::to_string).collect();
        let message = format!(
            "{} with {} GPU cores is sold with {}, not with {memory}",
            chip.name,
            chip.gpu_cores,
            sizes.join(", ")
        );
        return Err(invalid(format!("{field}.memory"), message));
    }
    if mac.count > MAX_COUNT {
        let message = format!("{} must be from 0 to {MAX_COUNT}", mac.count);
        return Err(invalid(format!("{field}.count"), message));
    }
    for (name, value) in [("price", mac.price), ("watts", mac.watts)] {
        if let Some(value) = value {
            let must = "0 or more; omit it if unknown";
            checked(value, format!("{field}.{name}"), |value| value >= 0.0, must)?;
        }
    }
    let disk = mac
        .disk
        .as_ref()
        .map(|size| quantity::parse_bytes(size).map_err(|err| invalid(format!("{field}.disk"), err)));
    let disk = disk.transpose()?.map(|limit| NodeDisk::new(limit, Bytes::ZERO));
    Ok(NodeClass {
        name: mac.name.clone().unwrap_or_else(|| default_name(chip, memory)),
        chip: chip.to_string(),
        nodes: mac.count,
        hardware: Some(Hardware::Chip(chip)),
        calibrations: Vec::new(),
        bandwidth: Some(chip.bandwidth),
        allocatable: allocatable(memory, None),
        held: Bytes::ZERO,
        committed: 0.0,
        disk,
        price: mac.price,
        watts: mac.watts,
    })
}

/// Returns the default name of a class: `M4 Pro 24 GB`.
fn default_name(chip: &ChipVariant, memory: Bytes) -> String {
    let bare = chip.name.trim_start_matches("Apple ");
    format!("{bare} {} GB", memory.0 >> 30)
}

/// Returns the classes of schedulable nodes. Each class has the speed of its slowest node and the
/// capacity of its smallest. `beside_running`: the reservations of running replicas remain.
pub fn current_fleet(nodes: &[FleetNode], replicas: &[ModelReplica], beside_running: bool) -> Vec<NodeClass> {
    let running = replicas.iter().filter(|_| beside_running);
    let fleet = Fleet::new(nodes, running);
    let mut classes: BTreeMap<String, NodeClass> = BTreeMap::new();
    for state in fleet
        .nodes
        .iter()
        .filter(|state| !state.cordoned && state.not_ready.is_none())
    {
        let Some(node) = nodes.iter().find(|node| node.name_any() == state.name) else {
            continue;
        };
        let status = node.status.clone().unwrap_or_default();
        let held = state.allocatable - state.free();
        let committed = state
            .commitments()
            .iter()
            .map(|one| one.share)
            .sum::<f64>()
            .min(1.0);
        let cores = status
            .chip
            .gpu_cores
            .map_or(String::new(), |cores| format!(" ({cores} GPU cores)"));
        let chip = format!("{}{cores}", status.chip.name);
        let memory = quantity::parse_bytes(&status.capacity.memory)
            .map_or(status.capacity.memory.clone(), |memory| memory.to_string());
        let alike = format!("{chip}, {memory}");
        // A node with running replicas forms its own class.
        let name = if held > Bytes::ZERO {
            format!("{alike}, {}", state.name)
        } else {
            alike
        };
        let measured = published::speed(&status).map(|speed| speed.decode_bytes_per_second);
        let nominal = state
            .hardware()
            .and_then(|hardware| hardware.chip())
            .map(|chip| chip.bandwidth.0);
        let class = NodeClass {
            name: name.clone(),
            chip,
            nodes: 1,
            hardware: state.hardware(),
            calibrations: state.calibrations().to_vec(),
            bandwidth: measured.or(nominal).map(BytesPerSecond),
            allocatable: state.allocatable,
            held,
            committed,
            disk: state.node_disk(),
            price: None,
            watts: None,
        };
        match classes.get_mut(&name) {
            None => drop(classes.insert(name, class)),
            Some(known) => {
                known.nodes += 1;
                known.allocatable = known.allocatable.min(class.allocatable);
                let disks = known.disk.into_iter().chain(class.disk);
                known.disk = disks.min_by_key(|disk| disk.free);
                let slower = class.bandwidth < known.bandwidth;
                if slower {
                    known.hardware = class.hardware;
                    known.calibrations = class.calibrations;
                    known.bandwidth = class.bandwidth;
                }
            }
        }
    }
    classes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::FleetNodeSpec;
    use rooflet_base::yaml;

    fn parse(text: &str) -> Result<Question, PlanError> {
        let spec: CapacityPlanSpec = yaml::from_str(text).unwrap();
        question(&spec, Vec::new(), &[], &|_| None)
    }

    #[test]
    fn finds_downloaded_hub_model_on_a_node() {
        let mut node = FleetNode::new("a", FleetNodeSpec::default());
        let served = ServedModel::of_size(Bytes::gib(1), 4);
        let model = served.publish("hf://o/n@c0".to_owned(), "llama".to_owned(), 2048);
        node.status.get_or_insert_default().models.push(model);
        let is_known = |model: &str| {
            let text =
                format!("{{model: '{model}', requestsPerSecond: 1, promptTokens: 9, answerTokens: 9}}");
            known(
                &yaml::from_str(&text).unwrap(),
                "demand",
                std::slice::from_ref(&node),
            )
            .is_ok()
        };
        let found_models = ["hf://o/n", "hf://o/n@c0", "hf://o/n@c1", "hf://o/nn", "hf://o"].map(is_known);
        assert_eq!(found_models, [true, true, false, false, false]);
    }

    #[test]
    fn errors_start_with_the_field() {
        let macs = "fleet: {macs: [{chip: M4, memory: 16Gi}]}";
        let demand = |fields: &str| {
            format!(
                "demand: [{{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 1, promptTokens: 900, answerTokens: 300{fields}}}]\n"
            )
        };
        assert!(parse(&format!("{}{macs}", demand(""))).is_ok());
        let message = |text: &str| parse(text).unwrap_err().to_string();
        let windows = format!("{}{macs}", demand(", kvBits: 8")).replace("qwen3-8b", "gemma3-12b");
        let windows = message(&windows);
        assert!(
            windows.starts_with("spec.demand[0].kvBits: the KV cache of this model cannot be quantised"),
            "{windows}"
        );
        let small = message(&format!("{}{macs}", demand(", contextTokens: 512")));
        assert!(
            small.starts_with("spec.demand[0].contextTokens: 512 is less than"),
            "{small}"
        );
        let objectives = "objectives: {timeToFirstToken: {max: 2s, atPromptTokens: 1201}}";
        let long = message(&format!("{}{macs}", demand(&format!(", {objectives}"))));
        assert!(
            long.starts_with("spec.demand[0].objectives.timeToFirstToken.atPromptTokens: 1201 is more than"),
            "{long}"
        );
        let chip = message(&format!(
            "{}fleet: {{macs: [{{chip: M4 Mini, memory: 16Gi}}]}}",
            demand("")
        ));
        assert!(chip.starts_with("spec.fleet.macs[0].chip: no chip"), "{chip}");
        let memory = message(&format!(
            "{}fleet: {{macs: [{{chip: M4, memory: 20Gi}}]}}",
            demand("")
        ));
        assert!(
            memory.contains("spec.fleet.macs[0].memory") && memory.contains("16.0 GiB"),
            "{memory}"
        );
        let disk = message(&format!("{}{macs}", demand(", diskSize: much")));
        assert!(disk.starts_with("spec.demand[0].diskSize: "), "{disk}");
        let disk = message(&format!(
            "{}{}",
            demand(""),
            macs.replace("16Gi", "16Gi, disk: 1X")
        ));
        assert!(disk.starts_with("spec.fleet.macs[0].disk: "), "{disk}");
        // Nodes run MLX only.
        for (model, format) in [
            ("qwen3-8b", Some("q4_k_m")),
            ("qwen3-8b", Some("iq2_xs")),
            ("qwen3-8b-q4_k_m", None),
        ] {
            let format = format.map_or(String::new(), |format| format!(", quantization: {format}"));
            let foreign = message(&format!(
                "demand: [{{model: {model}{format}, requestsPerSecond: 1, promptTokens: 900, answerTokens: 300}}]\n{macs}"
            ));
            assert!(
                foreign.starts_with("spec.demand[0].quantization: nodes run MLX")
                    && foreign.contains("use mlx"),
                "{foreign}"
            );
        }
        let model = "demand: [{model: qwen9, requestsPerSecond: 1, promptTokens: 1, answerTokens: 1}]";
        assert!(message(model).starts_with("spec.demand[0].model: unknown model `qwen9`"));
    }

    #[test]
    fn offers_of_one_mac_at_different_prices_have_different_names() {
        let names = |offers: &str| {
            parse(&format!(
                "demand: [{{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 1, promptTokens: 900, answerTokens: 300}}]\n\
                 fleet: {{macs: []}}\ncatalogue: [{offers}]"
            ))
            .map(|question| question.offers.into_iter().map(|offer| offer.name).collect::<Vec<_>>())
            .map_err(|err| err.to_string())
        };
        assert_eq!(
            names("{chip: M4, memory: 16Gi, price: 599}, {chip: M4, memory: 16Gi, price: 499, available: 2}"),
            Ok(vec!["M4 16 GB".to_owned(), "M4 16 GB @ 499".to_owned()])
        );
        let third = names(
            "{chip: M4, memory: 16Gi, price: 599}, {chip: M4, memory: 16Gi, price: 499}, {chip: M4, memory: 16Gi, price: 599}",
        );
        let third = third.unwrap_err();
        assert!(
            third.starts_with("spec.catalogue[2].name: duplicate class `M4 16 GB`"),
            "{third}"
        );
        for offers in [
            "{chip: M4, memory: 16Gi}, {chip: M4, memory: 16Gi}",
            "{chip: M4, memory: 16Gi, price: 599}, {chip: M4, memory: 16Gi, price: 599}",
            "{name: a, chip: M4, memory: 16Gi, price: 599}, {name: a, chip: M4, memory: 16Gi, price: 499}",
        ] {
            let message = names(offers).unwrap_err();
            assert!(
                message.starts_with("spec.catalogue[1].name: duplicate class `")
                    && message.contains("spec.catalogue[].name"),
                "{message}"
            );
        }
    }

    /// The smallest node of a class determines its disk, and running replicas keep their
    /// reservations.
    #[test]
    fn current_fleet_includes_disks_and_reservations() {
        let node = |name: &str, disk: Option<&str>| {
            let mut node = FleetNode::new(name, FleetNodeSpec::default());
            let status = serde_json::json!({
                "capacity": { "memory": "16Gi" }, "allocatable": { "memory": "10Gi", "disk": disk },
                "models": [ServedModel::of_size(Bytes::gib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 64)],
                "conditions": [{ "type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            });
            node.status = Some(serde_json::from_value(status).unwrap());
            node
        };
        let spec = serde_json::json!({ "nodeName": "b", "serving": { "kvCache": { "diskSize": "30Gi" } } });
        let replica = ModelReplica::test("guide", spec);
        let nodes = [
            node("a", Some("200Gi")),
            node("b", Some("100Gi")),
            node("c", None),
        ];
        let free = |beside_running| {
            let classes = current_fleet(&nodes, std::slice::from_ref(&replica), beside_running);
            let free = classes
                .iter()
                .map(|class| (class.nodes, class.disk.map(|disk| disk.free)));
            free.collect::<Vec<_>>()
        };
        assert_eq!(free(false), [(3, Some(Bytes::gib(100)))]);
        assert_eq!(
            free(true),
            [(2, Some(Bytes::gib(200))), (1, Some(Bytes::gib(70)))]
        );
    }
}

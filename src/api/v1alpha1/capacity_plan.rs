//! CapacityPlan: what a fleet could carry, as a question and its answer. Nothing else changes because of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DEFAULT_MAX_CONCURRENCY, ObjectivesSpec, Percentiles};

/// A question about capacity: models and how they are used, against machines that are there or might be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "CapacityPlan",
    plural = "capacityplans",
    shortname = "cplan",
    category = "rooflet",
    namespaced,
    status = "CapacityPlanStatus",
    derive = "PartialEq",
    doc = "CapacityPlan asks whether machines can carry a demand. The controller answers in its status and changes nothing else.",
    printcolumn(
        name = "Feasible",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Feasible\")].status",
        description = "Whether the machines carry the demand."
    ),
    printcolumn(
        name = "Binding",
        type_ = "string",
        json_path = ".status.binding",
        description = "What runs out first, and the multiple of the demand at which it does."
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodes",
        description = "Nodes that are used / nodes there are."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation."
    ),
    printcolumn(
        name = "Survives-Loss",
        type_ = "boolean",
        json_path = ".status.verdict.survivesNodeLoss",
        description = "Whether the demand is still carried when any one node is lost.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CapacityPlanSpec {
    /// Models, and how much they are used.
    #[schemars(length(min = 1, max = 200))]
    pub(crate) demand: Vec<DemandSpec>,
    /// The machines. Default: the FleetNodes there are, as if nothing ran on them.
    #[serde(default, skip_serializing_if = "PlanFleetSpec::is_empty")]
    pub(crate) fleet: PlanFleetSpec,
    /// The largest share of its time that a node may be busy, in percent. What is left keeps queues short.
    #[serde(default = "default_max_utilization")]
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_utilization_percent: u32,
    /// What could be bought; the answer then holds the least that has to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub(crate) catalogue: Vec<OfferSpec>,
}

fn default_max_utilization() -> u32 {
    DEFAULT_MAX_UTILIZATION_PERCENT
}

/// Busier than this, a node's queue grows out of proportion: at 80 % a request waits on average as long as two further
/// ones take (M/D/1), at 90 % as long as four and a half.
pub(crate) const DEFAULT_MAX_UTILIZATION_PERCENT: u32 = 80;

/// One model and its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DemandSpec {
    /// What the answer calls it. Default: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) name: Option<String>,
    /// The model: a name from the built-in table such as `qwen3-8b`, with `quantization`; or `local://NAME`, a directory
    /// that some node has. `rooflet plan` reads directories, config.json files and FILE.json#NAME, too.
    #[schemars(length(min = 1, max = 1024))]
    pub(crate) model: String,
    /// Format of the weights where the model does not say it, such as mlx4, mlx8 or bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub(crate) quantization: Option<String>,
    /// Bits of one element of the KV cache. Default: 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 32))]
    pub(crate) kv_bits: Option<u32>,
    /// Requests that arrive per second, over the whole fleet; 0: the model has to be there, nothing more.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub(crate) requests_per_second: f64,
    /// Tokens of a prompt, on average.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) prompt_tokens: u32,
    /// Tokens of an answer, on average.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) answer_tokens: u32,
    /// Tokens that one request may have, prompt and answer together. Default: the sum of the averages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub(crate) context_tokens: Option<u32>,
    /// Requests that one replica serves at the same time.
    #[serde(default = "default_max_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) max_concurrency: u32,
    /// Nodes that must have the model at least.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) replicas: u32,
    /// Speed that every replica must hold.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    pub(crate) objectives: ObjectivesSpec,
}

fn default_max_concurrency() -> u32 {
    DEFAULT_MAX_CONCURRENCY
}

fn default_replicas() -> u32 {
    1
}

/// Machines that are there, or might be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.macs) || size(self.macs) == 0 || !has(self.besideRunning) || !self.besideRunning").message("besideRunning speaks of the FleetNodes there are; leave it out where macs lists the machines"))]
pub(crate) struct PlanFleetSpec {
    /// Macs by their data sheet. Empty: the FleetNodes there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub(crate) macs: Vec<MacSpec>,
    /// Leave to the replicas that run now what they have reserved, and plan with the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) beside_running: bool,
}

impl PlanFleetSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Macs that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MacSpec {
    /// What the answer calls them. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) name: Option<String>,
    /// The chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub(crate) chip: String,
    /// GPU cores, where the chip comes with several counts. Default: the largest of that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub(crate) memory: String,
    /// How many.
    #[serde(default = "default_count")]
    #[schemars(range(min = 0, max = 10_000))]
    pub(crate) count: u32,
    /// Price of one, in whatever currency all prices are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub(crate) price: Option<f64>,
    /// Power that one draws while it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub(crate) watts: Option<f64>,
}

fn default_count() -> u32 {
    1
}

/// Macs that could be bought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OfferSpec {
    /// What the answer calls them. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) name: Option<String>,
    /// The chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub(crate) chip: String,
    /// GPU cores, where the chip comes with several counts. Default: the largest of that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub(crate) memory: String,
    /// How many could be had at most.
    #[serde(default = "default_available")]
    #[schemars(range(min = 1, max = 500))]
    pub(crate) available: u32,
    /// Price of one. Where any offer has none, the fewest Macs are sought instead of the least price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub(crate) price: Option<f64>,
    /// Power that one draws while it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub(crate) watts: Option<f64>,
}

fn default_available() -> u32 {
    100
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CapacityPlanStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
    /// What runs out first, and the multiple of the demand at which it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<String>,
    /// Nodes that are used / nodes there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<String>,
    /// The whole answer, with its working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<PlanVerdict>,
    /// Ready (the question was understood and answered), Feasible.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub(crate) conditions: Vec<Condition>,
}

/// Whether the machines carry the demand, how, and how far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanVerdict {
    /// Whether the machines carry the whole demand.
    pub(crate) feasible: bool,
    /// The answer in a sentence.
    pub(crate) summary: String,
    /// What runs out first: Memory, WorkingSet, Bandwidth, Compute, Overhead or Policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<String>,
    /// The multiple of the demand that the machines carry, with replicas added where they help.
    pub(crate) demand_factor: f64,
    /// No placement carries more than this multiple.
    pub(crate) demand_factor_bound: f64,
    /// Whether the factor is proven to be the largest.
    pub(crate) proven: bool,
    /// The multiple that the placement below carries as it is.
    pub(crate) placement_factor: f64,
    /// Machines there are.
    pub(crate) nodes: u32,
    /// Machines that the placement uses.
    pub(crate) nodes_used: u32,
    /// Whether the demand is still carried when any one node is lost, after its replicas have moved.
    pub(crate) survives_node_loss: bool,
    /// What each model needs and gets.
    pub(crate) models: Vec<PlanModel>,
    /// What each class of node has and gives.
    pub(crate) classes: Vec<PlanClass>,
    /// Which nodes run what.
    pub(crate) placements: Vec<PlanPlacement>,
    /// What the loss of one node of each class would mean.
    pub(crate) node_losses: Vec<PlanNodeLoss>,
    /// Price of all machines, where each has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<f64>,
    /// Power of all machines, where each is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watts: Option<f64>,
    /// The least that has to be bought. Absent without a catalogue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) purchase: Option<PlanPurchase>,
}

/// One model of the demand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanModel {
    /// What the demand calls it.
    pub(crate) name: String,
    /// Requests per second that arrive.
    pub(crate) requests_per_second: f64,
    /// Answer tokens per second that this means.
    pub(crate) tokens_per_second: f64,
    /// Whether it is served whole.
    pub(crate) served: bool,
    /// Replicas of the placement.
    pub(crate) replicas: u32,
    /// What one replica is on each class of node.
    pub(crate) fits: Vec<PlanFit>,
}

/// One replica of a model on one class of node, with the node to itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanFit {
    /// The class of node.
    pub(crate) class: String,
    /// Whether admission would take it.
    pub(crate) admitted: bool,
    /// Every reason against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) refusals: Vec<String>,
    /// Changes of which each alone would admit it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) suggestions: Vec<String>,
    /// What rules: the first reason against it, or the bound of its speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<String>,
    /// Memory that it reserves, in bytes.
    pub(crate) memory_bytes: u64,
    /// Of that, the weights.
    pub(crate) weights_bytes: u64,
    /// Of that, the KV cache of all streams at full context.
    pub(crate) kv_bytes: u64,
    /// Tokens per second of each stream, with all streams busy at full context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_per_second: Option<Percentiles>,
    /// Seconds to the first token of the average prompt, on an idle node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_to_first_token_seconds: Option<Percentiles>,
    /// Percent of the chip's time that admission keeps for it.
    pub(crate) chip_time_percent: f64,
    /// Requests per second that it could answer.
    pub(crate) max_requests_per_second: f64,
    /// Measured, Calibrated or Nominal.
    pub(crate) basis: String,
}

/// Nodes that are alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanClass {
    /// What the fleet calls it.
    pub(crate) name: String,
    /// The chip.
    pub(crate) chip: String,
    /// Nodes of the class.
    pub(crate) nodes: u32,
    /// Nodes of it that the placement uses.
    pub(crate) nodes_used: u32,
    /// Memory bandwidth of one, in bytes per second; absent where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth_bytes_per_second: Option<f64>,
    /// Measured or Nominal.
    pub(crate) basis: String,
    /// Memory that models may use of one node, in bytes.
    pub(crate) memory_limit_bytes: u64,
    /// Memory that is reserved on the fullest node.
    pub(crate) memory_used_bytes: u64,
    /// Percent of the chip's time that the busiest node spends on the demand.
    pub(crate) utilization_percent: f64,
    /// Percent of the chip's time that the most promised node keeps for objectives.
    pub(crate) reserved_percent: f64,
    /// Answer tokens per second that all nodes of the class give.
    pub(crate) tokens_per_second: f64,
    /// What runs out first on these nodes as the demand grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binding: Option<String>,
    /// The multiple of the demand, split as in the placement, at which it does; absent where nothing is served here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) breaks_at: Option<f64>,
}

/// Nodes of one class that run the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanPlacement {
    /// The class of node.
    pub(crate) class: String,
    /// How many nodes.
    pub(crate) nodes: u32,
    /// What each of them runs.
    pub(crate) replicas: Vec<PlanReplica>,
    /// Memory reserved on each, in bytes.
    pub(crate) memory_bytes: u64,
    /// Percent of the chip's time that each spends on the demand.
    pub(crate) utilization_percent: f64,
}

/// One replica of a placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanReplica {
    /// The model.
    pub(crate) model: String,
    /// Requests per second that it answers.
    pub(crate) requests_per_second: f64,
    /// Memory that it reserves, in bytes.
    pub(crate) memory_bytes: u64,
    /// Percent of the chip's time that it spends.
    pub(crate) utilization_percent: f64,
    /// Mean seconds until the first token: waiting behind other prompts on the node, then its own prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_time_to_first_token_seconds: Option<f64>,
}

/// What the loss of one node would mean.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanNodeLoss {
    /// The class of the node that is lost.
    pub(crate) class: String,
    /// Whether the others carry the demand once its replicas have moved.
    pub(crate) survives: bool,
    /// Models that then are not served whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) broken: Vec<String>,
    /// Models with a single replica, on such a node: they answer nothing until it has moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) interrupted: Vec<String>,
}

/// What to buy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanPurchase {
    /// Whether something in the catalogue is enough.
    pub(crate) found: bool,
    /// Price, or Nodes where an offer has no price.
    pub(crate) minimises: String,
    /// What to buy; empty where nothing has to be bought.
    pub(crate) items: Vec<PlanPurchaseItem>,
    /// Macs in all.
    pub(crate) nodes: u32,
    /// What they cost, where every offer has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<f64>,
    /// Nothing cheaper than this (or fewer Macs) is enough.
    pub(crate) lower_bound: f64,
    /// Whether nothing cheaper is enough, proven.
    pub(crate) proven: bool,
    /// The multiple of the demand that the machines then carry.
    pub(crate) demand_factor: f64,
    /// Whether the demand is then still carried when any one node is lost.
    pub(crate) survives_node_loss: bool,
}

/// Macs of one offer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanPurchaseItem {
    /// The offer.
    pub(crate) name: String,
    /// How many of it.
    pub(crate) count: u32,
    /// Price of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_needs_little_and_refuses_what_it_does_not_know() {
        let spec: CapacityPlanSpec = crate::yaml::from_str(
            "demand: [{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 0.5, promptTokens: 900, answerTokens: 300}]",
        )
        .unwrap();
        assert_eq!(spec.max_utilization_percent, 80);
        assert_eq!(spec.demand[0].max_concurrency, 4);
        assert!(spec.fleet.macs.is_empty() && !spec.fleet.beside_running);
        let misspelt = "demand: [{model: m, requestPerSecond: 1, promptTokens: 1, answerTokens: 1}]";
        let message = crate::yaml::from_str::<CapacityPlanSpec>(misspelt)
            .unwrap_err()
            .to_string();
        assert!(message.contains("requestPerSecond"), "{message}");
    }
}

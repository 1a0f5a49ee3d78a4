//! The answer to a CapacityPlan, with its working.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Percentiles;

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
    /// The multiple of the demand that the placement below carries as it is.
    pub(crate) placement_factor: f64,
    /// Models that no machine can serve; the placement below is for the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unservable: Vec<String>,
    /// The multiple of the demand that is carried of the others; only where some are unservable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) others_factor: Option<f64>,
    /// Machines there are.
    pub(crate) nodes: u32,
    /// Machines that the placement uses.
    pub(crate) nodes_used: u32,
    /// Whether the others carry the demand when any one node is lost, once its replicas have moved.
    pub(crate) survives_node_loss: bool,
    /// What each model needs and gets.
    pub(crate) models: Vec<PlanModel>,
    /// What each class of node has and gives.
    pub(crate) classes: Vec<PlanClass>,
    /// Which nodes run what.
    pub(crate) placements: Vec<PlanPlacement>,
    /// What is used of all machines, and what more of it would give.
    pub(crate) headroom: PlanHeadroom,
    /// What the loss of one node of each class would mean; only where the demand is carried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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

/// What the placement uses of all machines together, and what more of it would give.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanHeadroom {
    /// Memory that replicas reserve, in bytes.
    pub(crate) memory_used_bytes: u64,
    /// Memory that models may use, in bytes.
    pub(crate) memory_limit_bytes: u64,
    /// Percent of the time of all chips that the demand takes.
    pub(crate) busy_percent: f64,
    /// The largest such percentage that is allowed.
    pub(crate) busy_limit_percent: f64,
    /// Answer tokens per second of the demand that are given.
    pub(crate) tokens_per_second: f64,
    /// Answer tokens per second at the largest multiple of the demand.
    pub(crate) max_tokens_per_second: f64,
    /// The multiple of the demand that was found if every machine had twice the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) twice_memory_factor: Option<f64>,
    /// The multiple of the demand that was found if every chip were twice as fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) twice_speed_factor: Option<f64>,
    /// The same if disks had room for all that replicas may store; absent where that is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unlimited_disk_factor: Option<f64>,
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
    /// Tokens of the average prompt.
    pub(crate) prompt_tokens: u32,
    /// Tokens of the average answer.
    pub(crate) answer_tokens: u32,
    /// Tokens that one request may have.
    pub(crate) context_tokens: u32,
    /// Requests that a replica serves at the same time.
    pub(crate) max_concurrency: u32,
    /// Tokens per second that each stream must get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) objective_tokens_per_second: Option<f64>,
    /// The longest wait for the first token, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) objective_first_token_seconds: Option<f64>,
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
    /// Bytes of memory that one decoded token moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_token: Option<f64>,
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
    /// What replicas may store on the disk of one node, in bytes; absent where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_limit_bytes: Option<u64>,
    /// What of it is promised on the fullest node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_used_bytes: Option<u64>,
    /// Percent of the chip's time that the busiest node spends on the demand.
    pub(crate) utilization_percent: f64,
    /// Percent of the chip's time that the most promised node keeps for objectives.
    pub(crate) reserved_percent: f64,
    /// Answer tokens per second that all nodes of the class give.
    pub(crate) tokens_per_second: f64,
    /// Price of one, where it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<f64>,
    /// Power of one, where it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watts: Option<f64>,
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
    /// What it may store on its node's disk, in bytes; absent where nothing is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_bytes: Option<u64>,
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
    /// Whether that is proven. Where it is not, no placement was found that carries it.
    pub(crate) proven: bool,
    /// The multiple of the demand that the others carry; only where it is less than the demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) demand_factor: Option<f64>,
    /// Models whose only replica was on such a node: they answer nothing until it has moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) interrupted: Vec<String>,
}

/// What to buy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanPurchase {
    /// Price, or Nodes where an offer has no price.
    pub(crate) minimises: String,
    /// The least that has to be bought. Absent: nothing that is enough was found, and `shortfall` says why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) best: Option<PlanBasket>,
    /// Nothing cheaper than this (or fewer Macs) is enough.
    pub(crate) lower_bound: f64,
    /// Whether nothing cheaper is enough, proven; without `best`, whether nothing of the catalogue can be enough.
    pub(crate) proven: bool,
    /// Why there is no `best`, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shortfall: Option<String>,
    /// Others that are enough: one that survives the loss of a node, and each offer by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alternatives: Vec<PlanBasket>,
}

/// Macs that are enough beside those that are there, and what they give.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PlanBasket {
    /// What to buy; empty where nothing has to be bought.
    pub(crate) items: Vec<PlanPurchaseItem>,
    /// Macs in all.
    pub(crate) nodes: u32,
    /// What they cost, where each has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<f64>,
    /// Power that they draw, where each is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watts: Option<f64>,
    /// The multiple of the demand that all machines then carry.
    pub(crate) demand_factor: f64,
    /// Whether the demand is then still carried when any one node is lost, once its replicas have moved.
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
    /// Power of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watts: Option<f64>,
}

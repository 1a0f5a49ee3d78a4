//! The answer to a CapacityPlan, with its working.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Percentiles;

/// Whether the machines carry the demand, how, and how far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanVerdict {
    /// Whether the machines carry the whole demand.
    pub feasible: bool,
    /// The answer in a sentence.
    pub summary: String,
    /// What runs out first: Memory, WorkingSet, Bandwidth, Compute, Overhead or Policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The multiple of the demand that the machines carry, with replicas added where they help.
    pub demand_factor: f64,
    /// No placement carries more than this multiple.
    pub demand_factor_bound: f64,
    /// Whether the factor is proven to be the largest.
    pub proven: bool,
    /// The multiple of the demand that the placement below carries as it is.
    pub placement_factor: f64,
    /// Models that no machine can serve; the placement below is for the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unservable: Vec<String>,
    /// The multiple of the demand that is carried of the others; only where some are unservable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_factor: Option<f64>,
    /// Machines there are.
    pub nodes: u32,
    /// Machines that the placement uses.
    pub nodes_used: u32,
    /// Whether the others carry the demand when any one node is lost, once its replicas have moved.
    pub survives_node_loss: bool,
    /// What each model needs and gets.
    pub models: Vec<PlanModel>,
    /// What each class of node has and gives.
    pub classes: Vec<PlanClass>,
    /// Which nodes run what.
    pub placements: Vec<PlanPlacement>,
    /// What is used of all machines, and what more of it would give.
    pub headroom: PlanHeadroom,
    /// What the loss of one node of each class would mean; only where the demand is carried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_losses: Vec<PlanNodeLoss>,
    /// Price of all machines, where each has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of all machines, where each is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// The least that has to be bought. Absent without a catalogue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purchase: Option<PlanPurchase>,
}

/// What the placement uses of all machines together, and what more of it would give.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanHeadroom {
    /// Memory that replicas reserve, in bytes.
    pub memory_used_bytes: u64,
    /// Memory that models may use, in bytes.
    pub memory_limit_bytes: u64,
    /// Percent of the time of all chips that the demand takes.
    pub busy_percent: f64,
    /// The largest such percentage that is allowed.
    pub busy_limit_percent: f64,
    /// Answer tokens per second of the demand that are given.
    pub tokens_per_second: f64,
    /// Answer tokens per second at the largest multiple of the demand.
    pub max_tokens_per_second: f64,
    /// The multiple of the demand that was found if every machine had twice the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twice_memory_factor: Option<f64>,
    /// The multiple of the demand that was found if every chip were twice as fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twice_speed_factor: Option<f64>,
    /// The same if disks had room for all that replicas may store; absent where that is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlimited_disk_factor: Option<f64>,
}

/// One model of the demand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanModel {
    /// What the demand calls it.
    pub name: String,
    /// Requests per second that arrive.
    pub requests_per_second: f64,
    /// Answer tokens per second that this means.
    pub tokens_per_second: f64,
    /// Tokens of the average prompt.
    pub prompt_tokens: u32,
    /// Tokens of the average answer.
    pub answer_tokens: u32,
    /// Tokens that one request may have.
    pub context_tokens: u32,
    /// Requests that a replica serves at the same time.
    pub max_concurrency: u32,
    /// Tokens per second that each stream must get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective_tokens_per_second: Option<f64>,
    /// The longest wait for the first token, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective_first_token_seconds: Option<f64>,
    /// Whether it is served whole.
    pub served: bool,
    /// Replicas of the placement.
    pub replicas: u32,
    /// What one replica is on each class of node.
    pub fits: Vec<PlanFit>,
}

/// One replica of a model on one class of node, with the node to itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanFit {
    /// The class of node.
    pub class: String,
    /// Whether admission would take it.
    pub admitted: bool,
    /// Every reason against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// Changes of which each alone would admit it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
    /// What rules: the first reason against it, or the bound of its speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Memory that it reserves, in bytes.
    pub memory_bytes: u64,
    /// Of that, the weights.
    pub weights_bytes: u64,
    /// Of that, the KV cache of all streams at full context.
    pub kv_bytes: u64,
    /// Tokens per second of each stream, with all streams busy at full context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<Percentiles>,
    /// Bytes of memory that one decoded token moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<f64>,
    /// Seconds to the first token of the average prompt, on an idle node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds: Option<Percentiles>,
    /// Percent of the chip's time that admission keeps for it.
    pub chip_time_percent: f64,
    /// Requests per second that it could answer.
    pub max_requests_per_second: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// Nodes that are alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanClass {
    /// What the fleet calls it.
    pub name: String,
    /// The chip.
    pub chip: String,
    /// Nodes of the class.
    pub nodes: u32,
    /// Nodes of it that the placement uses.
    pub nodes_used: u32,
    /// Memory bandwidth of one, in bytes per second; absent where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_second: Option<f64>,
    /// Measured or Nominal.
    pub basis: String,
    /// Memory that models may use of one node, in bytes.
    pub memory_limit_bytes: u64,
    /// Memory that is reserved on the fullest node.
    pub memory_used_bytes: u64,
    /// What replicas may store on the disk of one node, in bytes; absent where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_limit_bytes: Option<u64>,
    /// What of it is promised on the fullest node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_used_bytes: Option<u64>,
    /// Percent of the chip's time that the busiest node spends on the demand.
    pub utilization_percent: f64,
    /// Percent of the chip's time that the most promised node keeps for objectives.
    pub reserved_percent: f64,
    /// Answer tokens per second that all nodes of the class give.
    pub tokens_per_second: f64,
    /// Price of one, where it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of one, where it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// What runs out first on these nodes as the demand grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The multiple of the demand, split as in the placement, at which it does; absent where nothing is served here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaks_at: Option<f64>,
}

/// Nodes of one class that run the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPlacement {
    /// The class of node.
    pub class: String,
    /// How many nodes.
    pub nodes: u32,
    /// What each of them runs.
    pub replicas: Vec<PlanReplica>,
    /// Memory reserved on each, in bytes.
    pub memory_bytes: u64,
    /// Percent of the chip's time that each spends on the demand.
    pub utilization_percent: f64,
}

/// One replica of a placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanReplica {
    /// The model.
    pub model: String,
    /// Requests per second that it answers.
    pub requests_per_second: f64,
    /// Memory that it reserves, in bytes.
    pub memory_bytes: u64,
    /// What it may store on its node's disk, in bytes; absent where nothing is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Percent of the chip's time that it spends.
    pub utilization_percent: f64,
    /// Mean seconds until the first token: waiting behind other prompts on the node, then its own prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_time_to_first_token_seconds: Option<f64>,
}

/// What the loss of one node would mean.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanNodeLoss {
    /// The class of the node that is lost.
    pub class: String,
    /// Whether the others carry the demand once its replicas have moved.
    pub survives: bool,
    /// Whether that is proven. Where it is not, no placement was found that carries it.
    pub proven: bool,
    /// The multiple of the demand that the others carry; only where it is less than the demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand_factor: Option<f64>,
    /// Models whose only replica was on such a node: they answer nothing until it has moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<String>,
}

/// What to buy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPurchase {
    /// Price, or Nodes where an offer has no price.
    pub minimises: String,
    /// The least that has to be bought. Absent: nothing that is enough was found, and `shortfall` says why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<PlanBasket>,
    /// Nothing cheaper than this (or fewer Macs) is enough.
    pub lower_bound: f64,
    /// Whether nothing cheaper is enough, proven; without `best`, whether nothing of the catalogue can be enough.
    pub proven: bool,
    /// Why there is no `best`, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<String>,
    /// Others that are enough: one that survives the loss of a node, and each offer by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<PlanBasket>,
}

/// Macs that are enough beside those that are there, and what they give.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanBasket {
    /// What to buy; empty where nothing has to be bought.
    pub items: Vec<PlanPurchaseItem>,
    /// Macs in all.
    pub nodes: u32,
    /// What they cost, where each has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power that they draw, where each is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// The multiple of the demand that all machines then carry.
    pub demand_factor: f64,
    /// Whether the demand is then still carried when any one node is lost, once its replicas have moved.
    pub survives_node_loss: bool,
}

/// Macs of one offer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPurchaseItem {
    /// The offer.
    pub name: String,
    /// How many of it.
    pub count: u32,
    /// Price of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
}

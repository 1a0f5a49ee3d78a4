//! Answer to a CapacityPlan, with its calculation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Percentiles;

fn is_zero(tokens: &u32) -> bool {
    *tokens == 0
}

/// Feasibility of a demand, with a placement and its limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanVerdict {
    /// True if the machines satisfy the whole demand.
    pub feasible: bool,
    /// Answer in a sentence.
    pub summary: String,
    /// First exhausted resource: Memory, WorkingSet, Bandwidth, Compute, Overhead or Policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Largest multiple of the demand that the machines satisfy, with additional replicas if they
    /// help.
    pub demand_factor: f64,
    /// Upper bound of the multiple for any placement.
    pub demand_factor_bound: f64,
    /// True if the factor is proven to be the maximum.
    pub proven: bool,
    /// Multiple of the demand that the placement below satisfies without changes.
    pub placement_factor: f64,
    /// Models that no machine can serve. The placement contains only the other models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unservable: Vec<String>,
    /// Multiple of the demand that is satisfied for the servable models. Set only if some are
    /// unservable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_factor: Option<f64>,
    /// Number of machines.
    pub nodes: u32,
    /// Number of machines that the placement uses.
    pub nodes_used: u32,
    /// True if the machines satisfy the demand after the loss of any one node, once its replicas
    /// have moved.
    pub survives_node_loss: bool,
    /// Assumptions of the demand that the admission of a ModelDeployment does not make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// Requirements and result of each model.
    pub models: Vec<PlanModel>,
    /// Capacity and use of each node class.
    pub classes: Vec<PlanClass>,
    /// Placement: replicas of each node.
    pub placements: Vec<PlanPlacement>,
    /// Use of all machines, and effect of more resources.
    pub headroom: PlanHeadroom,
    /// Effect of the loss of one node of each class. Set only if the demand is satisfied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_losses: Vec<PlanNodeLoss>,
    /// Price of all machines, if every machine has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of all machines in watts, if known for every machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Smallest sufficient purchase. Unset without a catalogue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purchase: Option<PlanPurchase>,
}

/// Use of all machines together, and effect of more resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanHeadroom {
    /// Reserved memory, in bytes.
    pub memory_used_bytes: u64,
    /// Allocatable memory, in bytes.
    pub memory_limit_bytes: u64,
    /// Mean utilization of all chips by the demand, in percent.
    pub busy_percent: f64,
    /// Maximum utilization, in percent.
    pub busy_limit_percent: f64,
    /// Served answer tokens per second.
    pub tokens_per_second: f64,
    /// Answer tokens per second at the largest multiple of the demand.
    pub max_tokens_per_second: f64,
    /// Multiple of the demand if every machine had twice the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twice_memory_factor: Option<f64>,
    /// Multiple of the demand if every chip were twice as fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twice_speed_factor: Option<f64>,
    /// Multiple of the demand with unlimited disks. Unset if disk space is not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlimited_disk_factor: Option<f64>,
}

/// Model of the demand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanModel {
    /// Name in the demand.
    pub name: String,
    /// Arriving requests per second.
    pub requests_per_second: f64,
    /// Resulting answer tokens per second.
    pub tokens_per_second: f64,
    /// Average tokens of a prompt.
    pub prompt_tokens: u32,
    /// Average tokens of a prompt that the prefix cache contains.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_prompt_tokens: u32,
    /// Average tokens of an answer.
    pub answer_tokens: u32,
    /// Maximum tokens of a request.
    pub context_tokens: u32,
    /// Maximum number of concurrent requests of a replica.
    pub max_concurrency: u32,
    /// Required tokens per second of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective_tokens_per_second: Option<f64>,
    /// Maximum time to first token, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective_first_token_seconds: Option<f64>,
    /// True if the whole demand for the model is satisfied.
    pub served: bool,
    /// Number of replicas in the placement.
    pub replicas: u32,
    /// Properties of one replica on each node class.
    pub fits: Vec<PlanFit>,
}

/// Properties of a replica that is alone on a node of a class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanFit {
    /// Node class.
    pub class: String,
    /// True if the node admits the replica.
    pub admitted: bool,
    /// Reasons for rejection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// Changes, each of which alone leads to admission.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
    /// Binding limit: the first reason for rejection, or the limit of the speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Reserved memory, in bytes.
    pub memory_bytes: u64,
    /// Bytes of the weights in `memoryBytes`.
    pub weights_bytes: u64,
    /// Bytes in `memoryBytes` for the KV cache of all streams at full context.
    pub kv_bytes: u64,
    /// Number of streams that the plan chose for a replica on this class, up to the maximum.
    pub streams: u32,
    /// Tokens per second of each stream, with all streams busy at the context of the decode
    /// objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<Percentiles>,
    /// Memory traffic per decoded token, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<f64>,
    /// Seconds to the first token of the average prompt, on an idle node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds: Option<Percentiles>,
    /// Reserved share of the chip's time, in percent.
    pub chip_time_percent: f64,
    /// Maximum requests per second.
    pub max_requests_per_second: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// Class of equal nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanClass {
    /// Name in the fleet.
    pub name: String,
    /// Chip of the nodes.
    pub chip: String,
    /// Number of nodes in the class.
    pub nodes: u32,
    /// Number of nodes that the placement uses.
    pub nodes_used: u32,
    /// Memory bandwidth of one node, in bytes per second. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_second: Option<f64>,
    /// Measured or Nominal.
    pub basis: String,
    /// Allocatable memory of one node, in bytes.
    pub memory_limit_bytes: u64,
    /// Reserved memory on the fullest node, in bytes.
    pub memory_used_bytes: u64,
    /// Allocatable disk space of one node, in bytes. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_limit_bytes: Option<u64>,
    /// Reserved disk space on the fullest node, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_used_bytes: Option<u64>,
    /// Utilization of the busiest node by the demand, in percent.
    pub utilization_percent: f64,
    /// Largest share of a chip's time that objectives reserve, in percent.
    pub reserved_percent: f64,
    /// Answer tokens per second of all nodes in the class.
    pub tokens_per_second: f64,
    /// Price of one node, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of one node in watts, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// First exhausted resource of these nodes as the demand grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Multiple of the demand, distributed as in the placement, at which `binding` is exhausted.
    /// Unset if these nodes serve nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaks_at: Option<f64>,
}

/// Nodes of one class with the same replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPlacement {
    /// Node class.
    pub class: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Replicas on each node.
    pub replicas: Vec<PlanReplica>,
    /// Reserved memory on each node, in bytes.
    pub memory_bytes: u64,
    /// Utilization of each node by the demand, in percent.
    pub utilization_percent: f64,
}

/// Replica in a placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanReplica {
    /// Name of the model in the demand.
    pub model: String,
    /// Served requests per second.
    pub requests_per_second: f64,
    /// Reserved memory, in bytes.
    pub memory_bytes: u64,
    /// Reserved disk space, in bytes. Unset without a reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Used share of the chip's time, in percent.
    pub utilization_percent: f64,
    /// Mean time to first token in seconds: wait for other prompts on the node, plus prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_time_to_first_token_seconds: Option<f64>,
}

/// Effect of the loss of one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanNodeLoss {
    /// Class of the lost node.
    pub class: String,
    /// True if the remaining nodes satisfy the demand once the replicas have moved.
    pub survives: bool,
    /// True if `survives` is proven. If it is not proven, no sufficient placement was found.
    pub proven: bool,
    /// Multiple of the demand that the remaining nodes satisfy. Set only if it is below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand_factor: Option<f64>,
    /// Models whose only replica runs on such a node. They are unavailable until that
    /// replica has moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<String>,
}

/// Recommended purchase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPurchase {
    /// Minimized quantity: Price, or Nodes if an offer has no price.
    pub minimises: String,
    /// Smallest sufficient purchase. Unset if none was found; `shortfall` contains the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<PlanBasket>,
    /// Lower bound of the price (or number of Macs) of any sufficient purchase.
    pub lower_bound: f64,
    /// True if `best` is proven to be the minimum. Without `best`: true if no purchase from the
    /// catalogue can suffice.
    pub proven: bool,
    /// Reason why there is no `best`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<String>,
    /// Other sufficient purchases: one that survives the loss of a node, and one for each offer
    /// alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<PlanBasket>,
    /// Offers that `best` does not contain, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected_offers: Vec<PlanRejectedOffer>,
}

/// Reason why the recommended purchase does not contain an offer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanRejectedOffer {
    /// Name of the offer.
    pub name: String,
    /// Model that the offer cannot serve. Unset if it can serve all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// If the offer cannot serve `model`: ExceedsNodeMemory, InsufficientDisk or
    /// ObjectiveOutOfReach. Otherwise: InsufficientCount, HigherPrice or
    /// NoPurchaseFound.
    pub reason: String,
    /// Reason with both amounts, such as `18 tok/s at p10, 30 needed`.
    pub message: String,
    /// Amount that the offer has, in the unit of `required`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<f64>,
    /// Amount that the plan requires: bytes, tokens per second, seconds, multiples of the demand,
    /// or the price (number of Macs if an offer has no price) of the recommended purchase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<f64>,
}

/// Sufficient purchase in addition to the existing machines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanBasket {
    /// Macs to buy. Empty if nothing has to be bought.
    pub items: Vec<PlanPurchaseItem>,
    /// Number of Macs to buy.
    pub nodes: u32,
    /// Total price, if every Mac has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Total power in watts, if known for every Mac.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Multiple of the demand that all machines then satisfy.
    pub demand_factor: f64,
    /// True if the demand is then satisfied after the loss of any one node, once its replicas have
    /// moved.
    pub survives_node_loss: bool,
}

/// Macs of an offer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPurchaseItem {
    /// Name of the offer.
    pub name: String,
    /// Number of Macs.
    pub count: u32,
    /// Price of one Mac.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Power of one Mac, in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
}

//! CapacityPlan: what a fleet could carry, as a question and its answer. Nothing else changes because of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DEFAULT_MAX_CONCURRENCY, ObjectivesSpec, PlanVerdict};

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
pub struct CapacityPlanSpec {
    /// Models, and how much they are used.
    #[schemars(length(min = 1, max = 200))]
    pub demand: Vec<DemandSpec>,
    /// The machines. Default: the FleetNodes there are, as if nothing ran on them.
    #[serde(default, skip_serializing_if = "PlanFleetSpec::is_empty")]
    pub fleet: PlanFleetSpec,
    /// The largest share of its time that a node may be busy, in percent. What is left keeps queues short.
    #[serde(default = "default_max_utilization")]
    #[schemars(range(min = 1, max = 100))]
    pub max_utilization_percent: u32,
    /// What could be bought; the answer then holds the least that has to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub catalogue: Vec<OfferSpec>,
}

fn default_max_utilization() -> u32 {
    DEFAULT_MAX_UTILIZATION_PERCENT
}

/// Busier than this, a node's queue grows out of proportion: at 80 % a request waits on average as long as two further
/// ones take (M/D/1), at 90 % as long as four and a half.
pub const DEFAULT_MAX_UTILIZATION_PERCENT: u32 = 80;

/// One model and its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DemandSpec {
    /// What the answer calls it. Default: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The model: a published one by its name, such as `qwen3-8b` with `quantization` or `Qwen3-8B-4bit`; or
    /// `local://NAME`, a directory that some node has, or `hf://OWNER/NAME`, which some node has downloaded. `rooflet plan` asks the hub itself, and reads directories and config.json files, too.
    #[schemars(length(min = 1, max = 1024))]
    pub model: String,
    /// Format of the weights where the model does not say it, such as mlx4, mlx8 or bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub quantization: Option<String>,
    /// Bits of one element of the KV cache. Default: 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 32))]
    pub kv_bits: Option<u32>,
    /// What a replica may store on its node's disk, as `kvCache.diskSize` of a ModelDeployment. Default: nothing is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk_size: Option<String>,
    /// Requests that arrive per second, over the whole fleet; 0: the model has to be there, nothing more.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub requests_per_second: f64,
    /// Tokens of a prompt, on average.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub prompt_tokens: u32,
    /// Tokens of an answer, on average.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub answer_tokens: u32,
    /// Tokens that one request may have, prompt and answer together. Default: the sum of the averages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_tokens: Option<u32>,
    /// Requests that one replica serves at the same time.
    #[serde(default = "default_max_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrency: u32,
    /// Nodes that must have the model at least.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10_000))]
    pub replicas: u32,
    /// Speed that every replica must hold.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    pub objectives: ObjectivesSpec,
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
pub struct PlanFleetSpec {
    /// Macs by their data sheet. Empty: the FleetNodes there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub macs: Vec<MacSpec>,
    /// Leave to the replicas that run now what they have reserved, and plan with the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_running: bool,
}

impl PlanFleetSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Macs that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacSpec {
    /// What the answer calls them. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub chip: String,
    /// GPU cores, where the chip comes with several counts. Default: the largest of that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub memory: String,
    /// What replicas may store on the disk of each, such as `200Gi`. Absent: it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk: Option<String>,
    /// How many.
    #[serde(default = "default_count")]
    #[schemars(range(min = 0, max = 10_000))]
    pub count: u32,
    /// Price of one, in whatever currency all prices are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub price: Option<f64>,
    /// Power that one draws while it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub watts: Option<f64>,
}

fn default_count() -> u32 {
    1
}

/// Macs that could be bought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferSpec {
    /// What the answer calls them. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub chip: String,
    /// GPU cores, where the chip comes with several counts. Default: the largest of that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub memory: String,
    /// What replicas may store on the disk of each, such as `200Gi`. Absent: it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk: Option<String>,
    /// How many could be had at most. Absent: as many as it takes; the search tries up to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub available: Option<u32>,
    /// Price of one. Where any offer has none, the fewest Macs are sought instead of the least price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub price: Option<f64>,
    /// Power that one draws while it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub watts: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityPlanStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What runs out first, and the multiple of the demand at which it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Nodes that are used / nodes there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// The whole answer, with its working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<PlanVerdict>,
    /// Ready (the question was understood and answered), Feasible.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_needs_little_and_refuses_what_it_does_not_know() {
        let spec: CapacityPlanSpec = rooflet_base::yaml::from_str(
            "demand: [{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 0.5, promptTokens: 900, answerTokens: 300}]",
        )
        .unwrap();
        assert_eq!(spec.max_utilization_percent, 80);
        assert_eq!(spec.demand[0].max_concurrency, 4);
        assert!(spec.fleet.macs.is_empty() && !spec.fleet.beside_running);
        let misspelt = "demand: [{model: m, requestPerSecond: 1, promptTokens: 1, answerTokens: 1}]";
        let message = rooflet_base::yaml::from_str::<CapacityPlanSpec>(misspelt)
            .unwrap_err()
            .to_string();
        assert!(message.contains("requestPerSecond"), "{message}");
    }
}

//! CapacityPlan: what-if question about capacity, and its answer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DEFAULT_MAX_CONCURRENCY, ObjectivesSpec, PlanVerdict};

/// Question about capacity: a demand for models against existing or hypothetical machines.
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
    doc = "CapacityPlan asks whether machines satisfy a demand. The controller writes the answer to the status and changes nothing else.",
    printcolumn(
        name = "Feasible",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Feasible\")].status",
        description = "Whether the machines satisfy the demand."
    ),
    printcolumn(
        name = "Binding",
        type_ = "string",
        json_path = ".status.binding",
        description = "First exhausted resource, and the multiple of the demand at which it is exhausted."
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodes",
        description = "Used nodes / all nodes."
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
        description = "Whether the machines satisfy the demand after the loss of any one node.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct CapacityPlanSpec {
    /// Models and their use.
    #[schemars(length(min = 1, max = 200))]
    pub demand: Vec<DemandSpec>,
    /// Machines. Default: the existing FleetNodes without their replicas.
    #[serde(default, skip_serializing_if = "PlanFleetSpec::is_empty")]
    pub fleet: PlanFleetSpec,
    /// Maximum utilization of a node, in percent. The rest keeps queues short.
    #[serde(default = "default_max_utilization")]
    #[schemars(range(min = 1, max = 100))]
    pub max_utilization_percent: u32,
    /// Machines that can be bought. The answer then contains the smallest sufficient purchase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub catalogue: Vec<OfferSpec>,
}

fn default_max_utilization() -> u32 {
    DEFAULT_MAX_UTILIZATION_PERCENT
}

/// Default of `maxUtilizationPercent`. At 80 % utilization, a request waits on average for 2
/// service times (M/D/1 queue); at 90 %, for 4.5.
pub const DEFAULT_MAX_UTILIZATION_PERCENT: u32 = 80;

/// Model and its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DemandSpec {
    /// Name in the answer. Default: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Model: the name of a published model (`qwen3-8b` with `quantization`, or `Qwen3-8B-4bit`),
    /// `local://NAME` (a directory of some node) or `hf://OWNER/NAME` (downloaded by some node).
    /// `rooflet plan` also accepts other hub models, directories and config.json files.
    #[schemars(length(min = 1, max = 1024))]
    pub model: String,
    /// Format of the weights, such as mlx4, mlx8 or bf16, if the model name does not include it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub quantization: Option<String>,
    /// Bits of one element of the KV cache. Default: 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 32))]
    pub kv_bits: Option<u32>,
    /// Reserved disk space of a replica, as `kvCache.diskSize` of a ModelDeployment. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk_size: Option<String>,
    /// Arriving requests per second in the whole fleet. 0 requires only that the model is
    /// available.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub requests_per_second: f64,
    /// Average tokens of a prompt.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub prompt_tokens: u32,
    /// Average tokens of a prompt that the prefix cache contains. Prefill computes only the other
    /// tokens. Must be less than `promptTokens`. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 16_777_215))]
    pub cached_prompt_tokens: u32,
    /// Average tokens of an answer.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub answer_tokens: u32,
    /// Maximum tokens of a request, prompt and answer together. Default: the sum of the averages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_tokens: Option<u32>,
    /// Context at which every stream must decode at `objectives.decodeTokensPerSecond`: Full or
    /// Average.
    #[serde(default, skip_serializing_if = "DecodeContext::is_full")]
    pub decode_context: DecodeContext,
    /// Assumed ratio of the decode speeds with and without speculative decoding. The answer names
    /// this assumption. Default: no speculative decoding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 8.0))]
    pub speculative_speedup: Option<f64>,
    /// Maximum number of concurrent requests of a replica. The plan may choose fewer.
    #[serde(default = "default_max_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrency: u32,
    /// Minimum number of nodes with the model.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10_000))]
    pub replicas: u32,
    /// Required speed of every replica.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    pub objectives: ObjectivesSpec,
}

fn default_max_concurrency() -> u32 {
    DEFAULT_MAX_CONCURRENCY
}

fn default_replicas() -> u32 {
    1
}

fn is_zero(tokens: &u32) -> bool {
    *tokens == 0
}

/// Context at which a decode objective applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecodeContext {
    /// All streams at `contextTokens`, as in the admission of a ModelDeployment.
    #[default]
    Full,
    /// All streams at the average context: the prompt and half of the answer.
    Average,
}

impl DecodeContext {
    fn is_full(&self) -> bool {
        *self == Self::Full
    }
}

/// Existing or hypothetical machines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.macs) || size(self.macs) == 0 || !has(self.besideRunning) || !self.besideRunning").message("besideRunning applies to existing FleetNodes; it must not be set together with macs"))]
pub struct PlanFleetSpec {
    /// Hypothetical Macs, by their data sheets. If empty, the existing FleetNodes are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub macs: Vec<MacSpec>,
    /// If true, the reservations of existing replicas stay and only the rest is available to the
    /// plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_running: bool,
}

impl PlanFleetSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Equal Macs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MacSpec {
    /// Name in the answer. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub chip: String,
    /// Number of GPU cores, if the chip has several variants. Default: the largest variant with
    /// that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub memory: String,
    /// Disk space for replicas on each Mac, such as `200Gi`. If unset, disk space is not
    /// considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk: Option<String>,
    /// Number of Macs.
    #[serde(default = "default_count")]
    #[schemars(range(min = 0, max = 10_000))]
    pub count: u32,
    /// Price of one Mac. All prices must have the same currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub price: Option<f64>,
    /// Power of one Mac under load, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub watts: Option<f64>,
}

fn default_count() -> u32 {
    1
}

/// Macs that can be bought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferSpec {
    /// Name in the answer. Default: chip and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Chip, such as `M4 Pro`.
    #[schemars(length(min = 1, max = 63))]
    pub chip: String,
    /// Number of GPU cores, if the chip has several variants. Default: the largest variant with
    /// that bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub gpu_cores: Option<u32>,
    /// Memory, such as `24Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub memory: String,
    /// Disk space for replicas on each Mac, such as `200Gi`. If unset, disk space is not
    /// considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub disk: Option<String>,
    /// Maximum number of Macs. If unset, up to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub available: Option<u32>,
    /// Price of one Mac. If any offer has no price, the number of Macs is minimized instead of the
    /// price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub price: Option<f64>,
    /// Power of one Mac under load, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub watts: Option<f64>,
}

/// Answer to the question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityPlanStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// First exhausted resource, and the multiple of the demand at which it is exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Used nodes / all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Complete answer with its calculation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<PlanVerdict>,
    /// Ready (the question was answered), Feasible.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_has_defaults_and_rejects_unknown_fields() {
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

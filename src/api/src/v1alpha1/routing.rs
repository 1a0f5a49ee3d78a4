//! Routing of requests for a model.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rooflet_base::quantity::DURATION_PATTERN;

/// Settings of the gateway for a model. A change restarts nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoutingSpec {
    /// Maximum time in the queue for a replica with capacity, as a Go duration of at most `10m`. Default:
    /// 60s. The request header `x-slo-ttft-ms` overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    #[x_kube(validation = Rule::new("duration(self) <= duration('10m')").message("must be at most 10m: the gateway holds no request longer"))]
    pub queue_timeout: Option<String>,
    /// Maximum number of queued requests in one gateway. Further requests receive 429. Default: 8
    /// per concurrent request of the ready replicas, and 256 while fewer replicas are ready than
    /// desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_queued_requests: Option<u32>,
    /// Served names in the same namespace that serve a request if this model cannot, in this order.
    /// Causes: no ready replica, a full or slow queue, or failed replicas before the first token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub fallbacks: Vec<String>,
    /// Sends the request to a second replica if the first is slow to start its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedging: Option<HedgingSpec>,
}

impl RoutingSpec {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Condition for a second attempt in parallel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HedgingSpec {
    /// Time without a first token, as a Go duration such as `2s`. The slower attempt is discarded,
    /// so choose a value above the time that most requests need.
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub after: String,
}

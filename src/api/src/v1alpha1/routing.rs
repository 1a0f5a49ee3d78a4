//! How the gateway treats requests for a model.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rooflet_base::quantity::DURATION_PATTERN;

/// How the gateway treats requests for the model. A change restarts nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoutingSpec {
    /// How long a request may wait for a replica that can take it, as a Go-style duration; default 60s. A request's header
    /// `x-slo-ttft-ms` overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub queue_timeout: Option<String>,
    /// Requests that may wait in one gateway; more are answered 429. Default: eight for each that the replicas answer at the
    /// same time, and 256 while there are fewer replicas than there should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_queued_requests: Option<u32>,
    /// Served names in the same namespace that answer instead, the first that can, when this model cannot: it has no
    /// ready replica, its queue is full or too long, or its replicas failed before the first token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub fallbacks: Vec<String>,
    /// Asks a second replica as well when the first has not begun to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedging: Option<HedgingSpec>,
}

impl RoutingSpec {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// When a second replica is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HedgingSpec {
    /// Time without a first token, as a Go-style duration such as `2s`. The work of whoever is slower is thrown away, so
    /// this belongs above what most requests need.
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub after: String,
}

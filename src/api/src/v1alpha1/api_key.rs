//! APIKey: permission of a client to use the models of a namespace, with limits.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Permission of a client to use the models of this namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "APIKey",
    root = "ApiKey",
    plural = "apikeys",
    shortname = "akey",
    category = "rooflet",
    namespaced,
    status = "ApiKeyStatus",
    derive = "PartialEq",
    doc = "APIKey permits a client to use the models of its namespace, within limits. Gateways enforce it. `rooflet key create` creates one and shows its secret once.",
    printcolumn(
        name = "Models",
        type_ = "string",
        json_path = ".spec.models",
        description = "Models that the key permits; all of the namespace if empty."
    ),
    printcolumn(
        name = "Tokens/Min",
        type_ = "integer",
        json_path = ".spec.tokensPerMinute",
        description = "Maximum tokens per minute."
    ),
    printcolumn(
        name = "Requests-Today",
        type_ = "integer",
        json_path = ".status.requestsToday",
        description = "Requests of the day of last use (UTC)."
    ),
    printcolumn(
        name = "Tokens-Today",
        type_ = "integer",
        json_path = ".status.tokensToday",
        description = "Tokens of the day of last use (UTC)."
    ),
    printcolumn(
        name = "Last-Used",
        type_ = "date",
        json_path = ".status.lastUsedTime",
        description = "Time since the last request."
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".spec.expiresAt",
        description = "Time at which the key expires."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeySpec {
    /// Hash of the secret: `sha256:` and 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub secret_hash: String,
    /// Last four characters of the secret, to recognize it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    pub secret_hint: Option<String>,
    /// Served names that the key permits. Default: all models of the namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub models: Vec<String>,
    /// Maximum requests per minute. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub requests_per_minute: Option<u32>,
    /// Maximum tokens of prompts and responses per minute. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens_per_minute: Option<u64>,
    /// Maximum tokens of prompts and responses per day (UTC). Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens_per_day: Option<u64>,
    /// Maximum requests in progress. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrent_requests: Option<u32>,
    /// Time at which the key expires. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// Use of a key, as reported by gateways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiKeyStatus {
    /// Time of the last request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_time: Option<Time>,
    /// Day of `requestsToday` and `tokensToday` (UTC), such as `2026-03-01`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// Requests of that day through all gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_today: Option<u64>,
    /// Tokens of prompts and responses of that day through all gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_today: Option<u64>,
    /// Use through each gateway, by the gateway's identity.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gateways: BTreeMap<String, GatewayUsage>,
}

/// Use of a key through one gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayUsage {
    /// Time of this report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// Requests in progress at that time.
    pub in_progress: u32,
    /// Requests since the first use of the key.
    pub requests: u64,
    /// Tokens of prompts and responses since the first use of the key.
    pub tokens: u64,
    /// Use by day (UTC), and by served name of the model. The last 35 days are kept.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub days: BTreeMap<String, BTreeMap<String, KeyUsage>>,
}

/// Requests and tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KeyUsage {
    /// Admitted requests.
    pub requests: u64,
    /// Tokens of prompts, including cached tokens.
    pub prompt_tokens: u64,
    /// Tokens of responses.
    pub completion_tokens: u64,
}

impl KeyUsage {
    /// Tokens of prompts and responses.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

impl std::ops::AddAssign for KeyUsage {
    fn add_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
    }
}

impl ApiKeyStatus {
    /// Returns the use of a day, over all gateways and models.
    pub fn on_day(&self, day: &str) -> KeyUsage {
        let of_day = self.gateways.values().filter_map(|gateway| gateway.days.get(day));
        let mut sum = KeyUsage::default();
        of_day.flat_map(BTreeMap::values).for_each(|usage| sum += *usage);
        sum
    }
}

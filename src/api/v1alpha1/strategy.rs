//! How a change of a ModelDeployment reaches its replicas.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CountOrPercent;

/// How replicas of an old revision are replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == 'RollingUpdate' || !has(self.rollingUpdate)").message("rollingUpdate may only be set when type is RollingUpdate"))]
pub(crate) struct StrategySpec {
    /// RollingUpdate replaces replicas a few at a time, Recreate stops all of them first.
    #[serde(default, rename = "type")]
    pub(crate) kind: StrategyType,
    /// Bounds of a rolling update. Default: one replica at a time, in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rolling_update: Option<RollingUpdateSpec>,
}

/// The kinds of rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum StrategyType {
    #[default]
    RollingUpdate,
    Recreate,
}

/// Bounds of a rolling update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!((self.maxUnavailable == 0 || self.maxUnavailable == '0%') && (self.maxSurge == 0 || self.maxSurge == '0%'))").message("maxUnavailable and maxSurge may not both be 0: nothing could ever be replaced"))]
pub(crate) struct RollingUpdateSpec {
    /// Replicas that may be missing at any time: a number, or a percentage of `replicas`, rounded down.
    #[serde(default = "default_max_unavailable")]
    pub(crate) max_unavailable: CountOrPercent,
    /// Replicas that may be there beyond the wanted number, where a node has room: a number, or a percentage of
    /// `replicas`, rounded up.
    #[serde(default = "default_max_surge")]
    pub(crate) max_surge: CountOrPercent,
}

fn default_max_unavailable() -> CountOrPercent {
    CountOrPercent::Count(1)
}

fn default_max_surge() -> CountOrPercent {
    CountOrPercent::ZERO
}

impl Default for RollingUpdateSpec {
    fn default() -> Self {
        Self {
            max_unavailable: default_max_unavailable(),
            max_surge: default_max_surge(),
        }
    }
}

//! API keys, gateways and certificates of a scenario.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scenario::{ScenarioError, duration_text};

/// Maximum number of gateways.
const MAX_GATEWAYS: usize = 16;
/// Shortest lifetime of a certificate. Its validity begins an hour before its issue, so it is
/// renewed after 20 min.
const MIN_LIFETIME: Duration = Duration::from_secs(3600);

/// API keys, gateways and certificates. Every request then needs a key, and machines authenticate
/// each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Access {
    /// Number of gateways. Each request arrives at a random one.
    #[serde(default = "default_gateways")]
    pub gateways: usize,
    #[serde(default)]
    pub keys: Vec<AccessKey>,
    /// Lifetime of the certificates of nodes and gateways. They are renewed after two thirds of it.
    #[serde(default = "default_lifetime", with = "duration_text")]
    pub certificate_lifetime: Duration,
    /// Rotations of the fleet's authorities.
    #[serde(default)]
    pub rotations: Vec<AccessRotation>,
    /// Mean time between restarts of a gateway. Zero: none.
    #[serde(default, with = "duration_text")]
    pub gateway_restarts: Duration,
    /// Interval between attempts with missing, unknown, deleted or stolen credentials.
    #[serde(default = "default_intrusions", with = "duration_text")]
    pub intrusions: Duration,
}

fn default_gateways() -> usize {
    2
}

fn default_lifetime() -> Duration {
    Duration::from_secs(6 * 3600)
}

fn default_intrusions() -> Duration {
    Duration::from_secs(20)
}

/// APIKey in the namespace `default`, with the limits of its spec.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessKey {
    pub name: String,
    /// Served names that the key permits. Default: all.
    #[serde(default)]
    pub models: Vec<String>,
    #[serde(default)]
    pub requests_per_minute: Option<u32>,
    #[serde(default)]
    pub tokens_per_minute: Option<u64>,
    #[serde(default)]
    pub tokens_per_day: Option<u64>,
    #[serde(default)]
    pub concurrent_requests: Option<u32>,
    #[serde(default, with = "duration_text")]
    pub created: Duration,
    /// Time at which the key expires. Zero: never.
    #[serde(default, with = "duration_text")]
    pub expires: Duration,
    /// Time at which an administrator deletes the key. Zero: never.
    #[serde(default, with = "duration_text")]
    pub deleted: Duration,
}

/// Rotation of the authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessRotation {
    #[serde(with = "duration_text")]
    pub at: Duration,
    /// Minimum time during which the old authorities are trusted.
    #[serde(with = "duration_text")]
    pub after: Duration,
}

impl Access {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        if !(1..=MAX_GATEWAYS).contains(&self.gateways) {
            let message = format!("must be between 1 and {MAX_GATEWAYS}");
            return Err(ScenarioError::new("access.gateways", message));
        }
        if self.certificate_lifetime < MIN_LIFETIME {
            let message =
                "must be at least 1h, because the validity of a certificate begins an hour before its issue";
            return Err(ScenarioError::new("access.certificateLifetime", message));
        }
        if self.intrusions < Duration::from_secs(1) {
            let message = "must be at least 1s";
            return Err(ScenarioError::new("access.intrusions", message));
        }
        let mut names = BTreeSet::new();
        for (index, key) in self.keys.iter().enumerate() {
            let field = |name: &str| format!("access.keys[{index}].{name}");
            if !names.insert(&key.name) {
                let message = format!("another key is named `{}`", key.name);
                return Err(ScenarioError::new(field("name"), message));
            }
            for (name, end) in [("expires", key.expires), ("deleted", key.deleted)] {
                if !end.is_zero() && end <= key.created {
                    return Err(ScenarioError::new(field(name), "must be later than created"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn key(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.name == name)
    }
}

//! Objects for tests: each has the least that its kind needs, in the namespace `default`, and what the test says beside it.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ModelDeployment, ModelReplica, ModelRevision};

impl ModelDeployment {
    /// Of `local://guide`. `spec` is a merge patch.
    pub fn test(name: &str, spec: Value) -> Self {
        let least = json!({ "model": { "source": "local://guide" } });
        let mut deployment = Self::new(name, merged(least, spec));
        deployment.metadata.namespace = Some("default".to_owned());
        deployment
    }
}

impl ModelReplica {
    /// Of `local://guide`, for one short request. `spec` is a merge patch.
    pub fn test(name: &str, spec: Value) -> Self {
        let least = json!({
            "model": { "source": "local://guide" },
            "serving": { "contextTokens": 16, "maxConcurrency": 1 },
        });
        let mut replica = Self::new(name, merged(least, spec));
        replica.metadata.namespace = Some("default".to_owned());
        replica
    }
}

impl ModelRevision {
    /// The first one of `local://guide`. `spec` is a merge patch.
    pub fn test(name: &str, spec: Value) -> Self {
        let least = json!({ "revision": 1, "model": { "source": "local://guide" }, "serving": {} });
        let mut revision = Self::new(name, merged(least, spec));
        revision.metadata.namespace = Some("default".to_owned());
        revision
    }
}

fn merged<T: DeserializeOwned>(mut least: Value, spec: Value) -> T {
    json_patch::merge(&mut least, &spec);
    serde_json::from_value(least).expect("a spec")
}

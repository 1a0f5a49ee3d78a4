//! Minimal objects for tests, in the namespace `default`.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ModelDeployment, ModelReplica, ModelRevision};

impl ModelDeployment {
    /// Returns a deployment of `local://guide`. `spec` is a merge patch.
    pub fn test(name: &str, spec: Value) -> Self {
        let least = json!({ "model": { "source": "local://guide" } });
        let mut deployment = Self::new(name, merged(least, spec));
        deployment.metadata.namespace = Some("default".to_owned());
        deployment
    }
}

impl ModelReplica {
    /// Returns a replica of `local://guide` for one short request. `spec` is a merge patch.
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
    /// Returns the first revision of `local://guide`. `spec` is a merge patch.
    pub fn test(name: &str, spec: Value) -> Self {
        let least = json!({ "revision": 1, "model": { "source": "local://guide" }, "serving": {} });
        let mut revision = Self::new(name, merged(least, spec));
        revision.metadata.namespace = Some("default".to_owned());
        revision
    }
}

fn merged<T: DeserializeOwned>(mut least: Value, spec: Value) -> T {
    json_patch::merge(&mut least, &spec);
    serde_json::from_value(least).expect("the patched spec is valid")
}

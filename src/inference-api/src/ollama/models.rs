//! Responses of `/api/tags`, `/api/ps` and `/api/show`.

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::model_name::with_tag;

/// End of the residency of a model that is never unloaded.
pub const NEVER: &str = "9999-12-31T23:59:59Z";

/// Maximum size of a worker's list of running models, in bytes.
pub const MAX_RUNNING_BYTES: usize = 64 << 10;

/// Facts about a loaded model; unknown ones are empty or 0.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// `model_type` of `config.json`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of the weights in memory.
    pub weights_bytes: u64,
    /// Maximum tokens of prompt and answer.
    pub context_tokens: u64,
    /// Storage of the weights, such as `int4`.
    pub quantization: String,
}

/// Response of `GET /api/tags`.
#[derive(Debug, Serialize)]
pub struct ModelList {
    pub models: Vec<ListedModel>,
}

/// Response of `GET /api/ps`.
#[derive(Debug, Serialize)]
pub struct RunningList {
    pub models: Vec<RunningModel>,
}

/// Model of the list.
#[derive(Debug, Serialize)]
pub struct ListedModel {
    name: String,
    model: String,
    modified_at: String,
    /// Bytes of the weights in memory; 0 if no replica has loaded the model.
    size: u64,
    digest: String,
    details: Details,
}

/// Model with a ready replica.
#[derive(Debug, Serialize)]
pub struct RunningModel {
    name: String,
    model: String,
    size: u64,
    digest: String,
    details: Details,
    /// UTC in RFC 3339 format, in whole seconds.
    expires_at: String,
    size_vram: u64,
    context_length: u64,
}

/// Response of `POST /api/show`.
#[derive(Debug, Serialize)]
pub struct ShownModel {
    pub modelfile: String,
    /// Sampling defaults, one per line.
    pub parameters: String,
    pub template: String,
    pub details: Details,
    pub model_info: Map<String, Value>,
    pub capabilities: Vec<&'static str>,
    /// Time in RFC 3339 format.
    pub modified_at: String,
}

#[derive(Debug, Serialize)]
pub struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl ListedModel {
    /// Creates the entry of a model. `identity` is unique in the fleet, and `modified_at` a time in
    /// RFC 3339 format.
    pub fn new(name: &str, identity: &str, modified_at: String, facts: &ModelFacts) -> Self {
        Self {
            name: with_tag(name),
            model: with_tag(name),
            modified_at,
            size: facts.weights_bytes,
            digest: digest(identity),
            details: Details::new(facts),
        }
    }
}

impl RunningModel {
    /// Creates the entry of a model; see [`ListedModel::new`].
    pub fn new(name: &str, identity: &str, facts: &ModelFacts) -> Self {
        Self {
            name: with_tag(name),
            model: with_tag(name),
            size: facts.weights_bytes,
            digest: digest(identity),
            details: Details::new(facts),
            expires_at: NEVER.to_owned(),
            size_vram: facts.weights_bytes,
            context_length: facts.context_tokens,
        }
    }

    /// Sets the end of the model's residency: UTC in RFC 3339 format, in whole seconds.
    #[must_use]
    pub fn until(self, expires_at: String) -> Self {
        Self { expires_at, ..self }
    }
}

/// Returns the end of a model's residency: the latest one of its workers' lists of running models. `None` if no
/// worker has loaded the model.
pub fn residency<'a>(lists: impl IntoIterator<Item = &'a [u8]>) -> Option<String> {
    let ends = lists.into_iter().filter_map(|list| {
        let list: Value = serde_json::from_slice(list).ok()?;
        let end = list.pointer("/models/0/expires_at")?.as_str()?;
        Some(end.to_owned())
    });
    // Times in this format are in the order of their texts.
    ends.max()
}

impl Details {
    pub fn new(facts: &ModelFacts) -> Self {
        Self {
            parent_model: "",
            format: "safetensors",
            family: facts.architecture.clone(),
            families: vec![facts.architecture.clone()],
            parameter_size: match facts.parameters {
                0 => String::new(),
                parameters => short_number(parameters),
            },
            quantization_level: facts.quantization.clone(),
        }
    }
}

/// Returns a digest in the format that clients expect. It identifies the deployment, not the
/// weights.
fn digest(identity: &str) -> String {
    hex::encode(Sha256::digest(identity.as_bytes()))
}

/// Returns a number such as `7.6B`.
fn short_number(number: u64) -> String {
    let number = number as f64;
    match number {
        _ if number >= 1e9 => format!("{:.1}B", number / 1e9),
        _ if number >= 1e6 => format!("{:.2}M", number / 1e6),
        _ if number >= 1e3 => format!("{:.0}K", number / 1e3),
        _ => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in Ollama's own lists, such as that of qwen3:0.6b.
    #[test]
    fn parameter_sizes_are_short() {
        for (number, text) in [
            (8_030_261_312, "8.0B"),
            (751_632_384, "751.63M"),
            (22_000, "22K"),
            (7, "7"),
        ] {
            assert_eq!(short_number(number), text);
        }
    }

    /// Ollama's client shows the first 12 characters of the digest.
    #[test]
    fn entries_have_the_members_that_clients_read() {
        let facts = ModelFacts {
            architecture: "qwen3".to_owned(),
            ..ModelFacts::default()
        };
        let listed = ListedModel::new(
            "guide",
            "default/guide",
            "2026-03-01T10:00:00Z".to_owned(),
            &facts,
        );
        let listed = serde_json::to_value(listed).unwrap();
        assert_eq!(listed["name"], "guide:latest");
        assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
        assert_eq!(listed["details"]["families"], serde_json::json!(["qwen3"]));
        let running = serde_json::to_value(RunningModel::new("guide", "default/guide", &facts)).unwrap();
        assert_eq!(running["digest"], listed["digest"]);
        assert_eq!(running["expires_at"], NEVER);
    }

    #[test]
    fn residency_ends_with_the_last_worker() {
        let list = |ends: &[&str]| {
            let model = |end: &&str| {
                RunningModel::new("guide", "guide", &ModelFacts::default()).until((*end).to_owned())
            };
            let models = ends.iter().map(model).collect();
            serde_json::to_vec(&RunningList { models }).unwrap()
        };
        let (early, late) = ("2026-03-01T10:00:00Z", "2026-03-01T10:00:01Z");
        let lists = [list(&[late]), list(&[]), list(&[early]), b"no JSON".to_vec()];
        assert_eq!(residency(lists.iter().map(Vec::as_slice)).as_deref(), Some(late));
        assert_eq!(residency([list(&[]).as_slice()]), None);
    }
}

//! Responses of `GET /v1/models`.

use serde::Serialize;

/// Response of `GET /v1/models`.
#[derive(Debug, Serialize)]
pub struct ModelList {
    pub object: &'static str,
    pub data: Vec<Model>,
}

impl ModelList {
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list", data }
    }
}

/// Response of `GET /v1/models/{model}`.
#[derive(Debug, Clone, Serialize)]
pub struct Model {
    pub id: String,
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: i64,
    pub owned_by: &'static str,
    /// Maximum number of tokens of prompt and completion, under the name that other servers use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
}

impl Model {
    pub fn new(id: String, created: i64, max_model_len: Option<usize>) -> Self {
        Self {
            id,
            object: "model",
            created,
            owned_by: "rooflet",
            max_model_len,
        }
    }
}

//! What `GET /v1/models` answers.

use serde::Serialize;

/// `GET /v1/models`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Model>,
}

impl ModelList {
    pub(crate) fn new(data: Vec<Model>) -> Self {
        Self { object: "list", data }
    }
}

/// `GET /v1/models/{model}`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Model {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created: i64,
    pub(crate) owned_by: &'static str,
    /// Longest prompt plus completion; the name is the one other servers use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<usize>,
}

impl Model {
    pub(crate) fn new(id: String, created: i64, max_model_len: Option<usize>) -> Self {
        Self {
            id,
            object: "model",
            created,
            owned_by: "rooflet",
            max_model_len,
        }
    }
}

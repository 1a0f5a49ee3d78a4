//! Errors of reading a `config.json`.

use crate::fields::{CONFIG_FILE, FieldError, Fields};

/// Reason why the engine cannot run a model with this `config.json`.
#[derive(Debug, thiserror::Error)]
pub enum ModelConfigError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("{CONFIG_FILE}: model_type `{found}` is not supported; supported: {supported}")]
    UnsupportedArchitecture { found: String, supported: String },
    #[error("{CONFIG_FILE}: field `{field}` is {found}, which is not supported: {supported}")]
    UnsupportedFeature {
        field: String,
        found: String,
        supported: String,
    },
}

impl ModelConfigError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Field(_) => "InvalidModelConfig",
            Self::UnsupportedArchitecture { .. } => "UnsupportedArchitecture",
            Self::UnsupportedFeature { .. } => "UnsupportedModelFeature",
        }
    }
}

pub(super) fn unsupported(fields: &Fields<'_>, field: &str, supported: &str) -> ModelConfigError {
    ModelConfigError::UnsupportedFeature {
        field: fields.name(field),
        found: fields.found(field),
        supported: supported.to_owned(),
    }
}

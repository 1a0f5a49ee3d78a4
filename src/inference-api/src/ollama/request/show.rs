//! Request of `/api/show`.

use crate::openai::ApiError;
use crate::openai::request::fields::Fields;
use crate::openai::request::parse_model;

/// Request of `POST /api/show`. Other fields have no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShowRequest {
    pub model: String,
}

impl ShowRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let (_, fields) = Fields::split(body, &[])?;
        Ok(Self {
            model: parse_model(&fields)?,
        })
    }
}

//! OpenAI's HTTP vocabulary, shared by worker, agent and gateway: requests parsed from JSON into values that hold
//! only what is supported, responses, and the one error body. No I/O and no model.

pub(crate) mod body;
#[cfg_attr(
    not(feature = "mlx"),
    expect(dead_code, reason = "some errors only a worker answers with")
)]
pub(crate) mod error;
pub(crate) mod headers;
#[cfg(feature = "mlx")]
pub(crate) mod json;
pub(crate) mod kept;
#[cfg(feature = "mlx")]
pub(crate) mod message;
pub(crate) mod models;
pub(crate) mod openapi;
pub(crate) mod pages;
#[cfg(feature = "mlx")]
pub(crate) mod request;
#[cfg(feature = "mlx")]
pub(crate) mod response;
#[cfg(feature = "mlx")]
pub(crate) mod response_format;
#[cfg(feature = "mlx")]
pub(crate) mod responses;
pub(crate) mod routes;
#[cfg(feature = "mlx")]
pub(crate) mod tools;
pub(crate) mod top_level;

/// Completions of one request, prompts times `n`; each occupies the engine like a request of its own.
pub(crate) const MAX_COMPLETIONS: usize = 64;

pub(crate) use error::ApiError;

//! OpenAI's HTTP vocabulary, shared by worker, agent and gateway: requests parsed from JSON into
//! values that hold only what is supported, responses, and the one error body. No I/O and no model.

pub mod body;
pub mod error;
pub mod headers;
pub mod json;
pub mod kept;
pub mod message;
pub mod models;
pub mod openapi;
pub mod pages;
pub mod request;
pub mod response;
pub mod response_format;
pub mod responses;
pub mod routes;
pub mod tools;
pub mod top_level;

/// Completions of one request, prompts times `n`; each occupies the engine like a request of its
/// own.
pub const MAX_COMPLETIONS: usize = 64;

pub use error::ApiError;

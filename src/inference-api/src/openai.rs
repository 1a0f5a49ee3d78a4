//! Types of OpenAI's HTTP API, shared by worker, agent and gateway: requests, parsed from JSON into
//! values with only supported parameters, responses, and the error body. No I/O and no model.

pub mod body;
pub mod error;
pub mod headers;
pub mod json;
pub mod message;
pub mod models;
pub mod openapi;
pub mod origins;
pub mod preamble;
pub mod request;
pub mod response;
pub mod response_format;
pub mod responses;
pub mod routes;
pub mod stored_reference;
pub mod tools;
pub mod top_level;

/// Maximum number of completions per request (prompts times `n`). Each occupies the engine like a
/// separate request.
pub const MAX_COMPLETIONS: usize = 64;

pub use error::ApiError;

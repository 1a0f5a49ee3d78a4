//! OpenAI's HTTP vocabulary, shared by worker, agent and gateway: requests parsed from JSON into values that hold
//! only what is supported, responses, and the one error body. No I/O and no model.

pub(crate) mod error;
pub(crate) mod request;
pub(crate) mod response;

pub(crate) use error::ApiError;

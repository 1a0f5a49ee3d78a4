//! `/v1/responses`: OpenAI's later API for the same thing. A request becomes a
//! [`ChatRequest`](super::request::ChatRequest), an answer's parts become items and events.

pub mod event;
mod input;
pub mod item;
pub mod item_list;
pub mod namespace;
pub mod request;

pub use request::{Recall, ResponsesRequest};

/// What ids of responses begin with; the keeper follows, and then what is the response's own.
pub const ID_PREFIX: &str = "resp_";

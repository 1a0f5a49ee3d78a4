//! `/v1/responses`: OpenAI's later API for the same thing. A request becomes a [`ChatRequest`](super::request::ChatRequest),
//! an answer's parts become items and events.

pub(crate) mod event;
mod input;
pub(crate) mod item;
pub(crate) mod item_list;
pub(crate) mod namespace;
pub(crate) mod request;

pub(crate) use request::{Recall, ResponsesRequest};

/// What ids of responses begin with; the keeper follows, and then what is the response's own.
pub(crate) const ID_PREFIX: &str = "resp_";

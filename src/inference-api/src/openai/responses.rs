//! OpenAI's Responses API (`/v1/responses`). A request becomes a
//! [`ChatRequest`](super::request::ChatRequest), the parts of an answer become items and events.

pub mod event;
mod input;
pub mod item;
pub mod item_list;
pub mod namespace;
pub mod request;

pub use request::{ResponsesRequest, StoredItems};

/// Prefix of response ids. The replica's identifier and a unique suffix follow.
pub const ID_PREFIX: &str = "resp_";

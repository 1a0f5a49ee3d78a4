//! Anthropic's Messages API: the same inference under other names. A request becomes a chat request
//! of [`openai`](crate::openai), an answer's parts become blocks and events, errors get another
//! shape. Data only.

pub mod error;
mod message;
pub mod request;
pub mod response;

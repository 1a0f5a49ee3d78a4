//! Anthropic's Messages API. A request becomes a chat request of [`openai`](crate::openai), the
//! parts of an answer become blocks and events, and errors get another body. Data only.

pub mod error;
mod message;
pub mod request;
pub mod response;

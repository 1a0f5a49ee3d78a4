//! Request and response types of the inference APIs: OpenAI's and Anthropic's.
//!
//! The gateway, the agent and the worker share these types. Requests are parsed into values that
//! hold only what is supported. The crate does no I/O and knows no model.

pub mod anthropic;
pub mod openai;

//! Request and response types of the inference APIs: OpenAI's and Anthropic's.
//!
//! The gateway, the agent and the worker share these types. Requests are parsed into values that
//! contain only supported parameters. The crate does no I/O and does not depend on a model.

pub mod anthropic;
pub mod openai;

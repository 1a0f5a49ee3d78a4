//! Request and response types of the inference APIs: OpenAI's, Anthropic's and Ollama's.
//!
//! The gateway, the agent and the worker share these types. Requests are parsed into values that
//! contain only supported parameters. The crate does no I/O and does not depend on a model.

pub mod anthropic;
pub mod ollama;
pub mod openai;

//! HTTP API: one module per endpoint, and modules that several endpoints share.

pub(crate) mod answers;
pub(crate) mod app;
pub(crate) mod body;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod ollama;
pub(crate) mod responses;
pub(crate) mod scores;
pub(crate) mod server;
pub(crate) mod spans;
pub(crate) mod stream;
pub(crate) mod submission;
pub(crate) mod tokenize;

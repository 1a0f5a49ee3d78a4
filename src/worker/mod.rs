//! A worker: one model behind an OpenAI-compatible HTTP server.

pub(crate) mod models;

//! The node agent.

mod backoff;
mod models;
mod replica;
mod sync;

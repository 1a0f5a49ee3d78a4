//! The node agent.

mod backoff;
mod manifests;
mod models;
mod monitor;
mod replica;
mod state;
mod sync;
mod workers;

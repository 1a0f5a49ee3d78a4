//! The node agent.

mod backoff;
mod models;
mod monitor;
mod replica;
mod state;
mod sync;
mod workers;

//! Simulated Macs: real agents on machines that do not exist, and workers without models.

mod answers;
mod chip;
pub mod fleet;
mod mac;
pub mod worker;

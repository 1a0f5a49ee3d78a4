//! Composition: binds listeners, builds the roles of a process from their configuration, and waits
//! for their end.

pub(crate) mod anonymous;
pub(crate) mod audit_log;
pub(crate) mod data_dir;
mod kubeconfig;
pub(crate) mod listeners;
pub(crate) mod low_priority;
#[cfg(feature = "mlx")]
pub(crate) mod memory_budget;
mod network_link;
pub(crate) mod own_log;
pub(crate) mod page_options;
pub(crate) mod process_kubeconfigs;
mod secrets_seal;
pub(crate) mod server;
pub(crate) mod shutdown;
mod simulated_answers;
mod simulated_chip;
pub(crate) mod simulated_fleet;
mod simulated_mac;
pub(crate) mod simulated_worker;
mod status_server;
pub(crate) mod supervisor;
pub(crate) mod tls_files;
pub(crate) mod token_issuers;
pub(crate) mod traces;

#[cfg(test)]
mod control_plane_tests;

//! Composition: binds listeners, builds the roles of a process from their configuration, and waits
//! for their end.

pub mod anonymous;
pub mod audit_log;
pub mod data_dir;
mod kubeconfig;
pub mod listeners;
pub mod low_priority;
mod network_link;
pub mod own_log;
pub mod page_options;
pub mod process_kubeconfigs;
mod secrets_seal;
pub mod server;
pub mod shutdown;
pub mod simulated;
mod status_server;
pub mod supervisor;
pub mod tls_files;
pub mod token_issuers;
pub mod traces;

//! Embeddable Kubernetes API server.
//!
//! The server provides discovery, OpenAPI, CustomResourceDefinitions with CEL rules, watches,
//! tables, patches, garbage collection, and the built-in kinds that clients need. kubectl and
//! `kube` clients use it like kube-apiserver. The server has no application kinds: an application
//! adds its kinds as CustomResourceDefinitions and its permissions as an
//! [`authorization::Authorizer`].
//!
//! [`EmbeddedServer`] is a complete server with defaults. [`ApiServer`] is for programs with their
//! own store, TLS configuration, certificate authorities or tasks. Example
//! (`examples/embedded.rs`):
//!
#![doc = concat!("```ignore\n", include_str!("../examples/embedded.rs"), "```")]
//!
//! # Modules
//!
//! - `endpoints` parses a request, determines its verb and route, and writes the response.
//!   `authentication` and [`authorization`] admit or reject it.
//! - `engine` is the only code that reads and writes objects. It handles all kinds. Objects are
//!   stored as JSON.
//! - `object` contains the rules for fields that all objects have, such as `managed_fields`.
//! - `registry` contains the served resources: `builtin` kinds, and those of `crd`.
//! - `controller` contains the server's own controllers, which use the same engine.
//!
//! All errors are `status::ApiError`s.

mod admission;
mod audit;
mod authentication;
pub mod authorization;
mod builtin;
mod certificates;
mod controller;
mod crd;
mod discovery;
mod embedded;
mod endpoints;
mod engine;
mod metrics;
mod object;
mod registry;
mod reviews;
mod server;
mod status;

#[cfg(test)]
mod tests;

pub use audit::{Audit, AuditPolicy, AuditSink};
pub use builtin::SECRET_STORAGE;
pub use controller::certificates::{CertificateSigners, NodeResource};
pub use controller::expiry::EventRetention;
pub use embedded::{EmbeddedOptions, EmbeddedServer, StartEmbeddedError, StopEmbeddedError};
pub use endpoints::in_flight::InFlightLimits;
pub use server::{ApiServer, ApiServerConfig, StartApiServerError};

/// Returns the configuration of a store for the API server.
pub fn store_config(path: impl Into<std::path::PathBuf>) -> rooflet_store::StoreConfig {
    let mut config = rooflet_store::StoreConfig::at(path);
    config.parse = object::managed_fields::parse_object;
    config.locate_excerpt = rooflet_apimachinery::selector::locate_labels;
    config
}

/// Registers all metrics of the API server without starting a server, for the generated reference
/// of metrics.
pub fn register_metrics(registry: &rooflet_base::metrics::Registry) -> rooflet_base::metrics::Result<()> {
    metrics::ApiServerMetrics::register(registry).map(drop)
}

//! An embeddable Kubernetes API server.
//!
//! The server has discovery, OpenAPI, CustomResourceDefinitions with CEL rules, watches, tables,
//! patches, garbage collection, and the built-in kinds that clients need. kubectl and `kube`
//! clients use it like a real one. No kind of any application is known here: an application's kinds
//! are CustomResourceDefinitions, and its rules on users are an [`authorization::Authorizer`].
//!
//! [`EmbeddedServer`] is a complete server with defaults. [`ApiServer`] is for programs that bring
//! their own store, TLS configuration, certificate authorities or tasks. An example,
//! `examples/embedded.rs`:
//!
#![doc = concat!("```ignore\n", include_str!("../examples/embedded.rs"), "```")]
//!
//! # Inside
//!
//! - `endpoints` reads a request, finds its verb and route, and writes the reply. `authentication` and [`authorization`] decide
//!   whether it is allowed.
//! - `engine` is the one path on which objects of every kind are read and written. Objects are JSON in the store.
//! - `registry` has the resources that are served: `builtin` kinds, and those of `crd`.
//! - `controller` has the server's own controllers, which use the same engine.
//!
//! Every failure is a `status::ApiError`.

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
mod server;
mod status;

#[cfg(test)]
mod tests;

pub use controller::certificates::CertificateSigners;
pub use embedded::{EmbeddedOptions, EmbeddedServer, StartEmbeddedError, StopEmbeddedError};
pub use endpoints::in_flight::InFlightLimits;
pub use server::{ApiServer, ApiServerConfig, StartApiServerError};

//! Web page of the fleet.
//!
//! The crate serves the built page (`page/`), signs users in, and forwards the page's requests to
//! the API server, the gateway and the agents. `docs/web-page-interface.md` describes the interface between
//! page and server.
//!
//! Invariants:
//! - A request reaches the API server only with the credential of the user who signed in.
//! - A credential never leaves the server, and is in no log line.
//! - Only pages that this server served can use a session.

mod api_proxy;
mod assets;
mod client_certificate;
mod combined_watch;
mod connections;
mod error;
mod failures;
mod forward;
mod guard;
mod history;
mod history_source;
mod listen;
mod monitoring;
mod preview;
mod prometheus;
mod server;
mod sessions;
mod sign_in;
mod sign_in_code;
mod sign_in_link;
mod signed_in;
mod state;
#[cfg(test)]
mod tests;
mod upstreams;

pub use connections::GatewayAddress;
pub use history_source::HistorySource;
pub use listen::WebListen;
pub use preview::{FleetObjects, Planner};
pub use prometheus::{PrometheusConfig, PrometheusUrl};
pub use server::{WebConfig, serve};
pub use sign_in_link::{SignInLinkError, kubeconfig_extension, sign_in_link};

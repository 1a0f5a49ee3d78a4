//! HTTP: connections, request parsing, handlers, and response bodies.

mod admission;
pub(crate) mod body;
pub(crate) mod connection;
mod gzip;
pub(crate) mod handlers;
pub(crate) mod in_flight;
pub(crate) mod negotiate;
pub(crate) mod options;
mod patch_request;
pub(crate) mod reply;
mod representation;
pub(crate) mod request;
mod review;
pub(crate) mod routes;
mod snapshot;
mod token_request;
mod watch;

//! HTTP: from a connection to a request, from a request to its handler, and from a result to the
//! bytes of the reply.

mod answer;
pub(crate) mod body;
pub(crate) mod connection;
mod gzip;
pub(crate) mod handlers;
pub(crate) mod in_flight;
pub(crate) mod negotiate;
pub(crate) mod options;
mod patch_request;
mod protobuf;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod routes;
mod watch;

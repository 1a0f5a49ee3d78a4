//! The one client path to the Kubernetes API, ours or a real cluster's: nothing above this module can tell which.
//!
//! Owns how a kubeconfig becomes a client, local copies of kinds that a watch keeps fresh ([`Cache`]), how status is
//! written ([`patch_status`]), how events are published ([`Recorder`]) and how one of several controllers leads
//! ([`Elector`]).

mod attempts;
mod backoff;
mod cache;
mod connect;
mod election;
mod error;
mod events;
mod renewable;
mod signing;
mod status;

pub use attempts::Attempts;
pub use backoff::{Backoff, wait_after};
pub use cache::{Cache, CachedKind, Changes, watch, watch_heeding};
pub use connect::{
    ConnectError, KubeconfigSource, client_certificate, connect, connect_via, server_of, with_token,
};
pub use election::{Elector, Leadership, RENEW_DEADLINE};
pub use error::ApiError;
pub use events::{EventType, Recorder};
pub use renewable::Renewable;
pub use signing::{SigningError, sign_node};
pub use status::{FIELD_MANAGER, merge_diff, patch_status};

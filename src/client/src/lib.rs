//! The only client of the Kubernetes API, embedded or real. Code above this crate does not depend
//! on which server it uses.
//!
//! The crate creates clients from a kubeconfig, maintains local copies of kinds through watches
//! ([`Cache`]), writes status ([`patch_status`]), publishes events ([`Recorder`]) and elects a
//! leader ([`Elector`]).
//!
//! Invariant: an event that arrives twice or late never replaces a newer version of an object in a
//! cache.

mod attempts;
mod backoff;
mod bound_token;
mod cache;
mod connect;
mod election;
mod error;
mod events;
mod remedy;
mod renewable;
mod signing;
mod sleep;
mod status;

pub use attempts::Attempts;
pub use backoff::{Backoff, wait_after};
pub use bound_token::{BoundToken, TokenBinding};
pub use cache::{Cache, CachedKind, Change, Changes, Feed, ObjectKey, watch, watch_heeding};
pub use connect::{
    ConnectError, KubeconfigSource, PassedKubeconfig, UserCredential, bearer_token, client_certificate,
    cluster_extension, connect, connect_as, connect_via, server_of, with_token,
};
pub use election::{Elector, Leadership, RENEW_DEADLINE};
pub use error::ApiError;
pub use events::{EventType, Recorder};
pub use renewable::Renewable;
pub use signing::{
    CertificateKind, FLEET_CLIENT_SIGNER, NODE_SERVING_SIGNER, SERVICE_ACCOUNT_PREFIX, SigningError,
    own_service_account, sign,
};
pub use status::{FIELD_MANAGER, merge_diff, patch_status};

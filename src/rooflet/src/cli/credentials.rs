//! Verbs that create, use and remove credentials: bootstrap tokens, node certificates and API keys.

pub(super) mod join;
pub(super) mod key;
pub(super) mod leave;
pub(super) mod token;

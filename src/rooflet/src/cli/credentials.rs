//! Verbs that create and use credentials: bootstrap tokens, node certificates and API keys.

pub(super) mod join;
pub(super) mod key;
pub(super) mod token;

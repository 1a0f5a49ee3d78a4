//! Verbs that create, use and remove credentials: bootstrap tokens, node certificates, API keys and
//! links of the web page.

pub(super) mod join;
pub(super) mod key;
pub(super) mod leave;
pub(super) mod login;
pub(super) mod token;
pub(super) mod web_page;
pub(super) mod whoami;

//! Responses to clients: a replica's response, the early head of a stream, or an error.

pub(crate) mod body;
pub(crate) mod early;
pub(crate) mod outcome;
pub(crate) mod refusal;

//! The answer to a client: a replica's response, an early beginning of a stream, or an error.

pub(crate) mod answer;
pub(crate) mod early;
pub(crate) mod outcome;
pub(crate) mod refusal;

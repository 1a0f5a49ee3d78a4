//! Selection of the next token: penalties, logit bias, masks, sampling and log probabilities.

pub(crate) mod adjustment;
pub(crate) mod choice;
pub(crate) mod logprobs;
pub(crate) mod sampler;

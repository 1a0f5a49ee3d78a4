//! PerformanceClaim → verdict. [`plan`] judges, [`apply`] writes status and events.

mod apply;
mod plan;

pub(super) use apply::ClaimJudge;

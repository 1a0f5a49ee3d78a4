//! How long the last start of a deployment's replicas took, from their conditions.

use crate::deployment::replica::condition;
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{LastStart, ModelReplica};
use rooflet_base::clock::since;

/// The newest start of a replica of `source`: `before`, or that of one of `replicas` that got its node later.
pub(super) fn last_start(
    before: Option<LastStart>,
    source: &str,
    replicas: &[&ModelReplica],
) -> Option<LastStart> {
    let of_source = replicas
        .iter()
        .filter(|replica| replica.spec.model.source == source);
    before
        .into_iter()
        .filter(|start| start.source == source)
        .chain(of_source.filter_map(|replica| start(replica)))
        // Of equal ones the first: what a condition says later of a start that is known already is not of the start.
        .reduce(|newest, start| match start.began_at > newest.began_at {
            true => start,
            false => newest,
        })
}

/// `None` for one that does not answer yet, or whose worker was started more than once.
fn start(replica: &ModelReplica) -> Option<LastStart> {
    let since_when = |kind| {
        let condition = condition(replica, kind).filter(|condition| condition.status == "True")?;
        Some(condition.last_transition_time.clone())
    };
    let is_first = replica.status.as_ref().is_some_and(|status| status.restarts == 0);
    let began_at = since_when(condition_type::SCHEDULED).filter(|_| is_first)?;
    // A download happens once, and the next start has it behind it.
    let arrived = since_when(condition_type::ARTIFACTS_READY).map_or(began_at.0, |at| at.0.max(began_at.0));
    let took = since(since_when(condition_type::READY)?.0, arrived);
    Some(LastStart {
        source: replica.spec.model.source.clone(),
        began_at,
        seconds: u32::try_from(took.as_secs()).unwrap_or(u32::MAX),
    })
}

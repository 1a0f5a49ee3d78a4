//! Duration of the last start of a deployment's replicas, from their conditions.

use crate::deployment::replica::condition;
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{LastStart, ModelReplica};
use rooflet_base::clock::since;

/// Returns the newest start of a replica with this model source: `before`, or the start of a
/// replica that was bound later.
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
        // A known start is kept, because a later change of a condition is not part of the start.
        .reduce(|newest, start| match start.began_at > newest.began_at {
            true => start,
            false => newest,
        })
}

/// Returns `None` for a replica that is not Ready, or whose worker was restarted.
fn start(replica: &ModelReplica) -> Option<LastStart> {
    let since_when = |kind| {
        let condition = condition(replica, kind).filter(|condition| condition.status == "True")?;
        Some(condition.last_transition_time.clone())
    };
    let is_first = replica.status.as_ref().is_some_and(|status| status.restarts == 0);
    let began_at = since_when(condition_type::SCHEDULED).filter(|_| is_first)?;
    // The download is excluded, because the next start needs none.
    let arrived = since_when(condition_type::ARTIFACTS_READY).map_or(began_at.0, |at| at.0.max(began_at.0));
    let took = since(since_when(condition_type::READY)?.0, arrived);
    Some(LastStart {
        source: replica.spec.model.source.clone(),
        began_at,
        seconds: u32::try_from(took.as_secs()).unwrap_or(u32::MAX),
    })
}

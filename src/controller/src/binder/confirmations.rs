//! Delayed confirmations of bindings.
//!
//! The agent of the node reports the binding with its first status. The binder writes the condition
//! Scheduled only if the agent is late: at the same time, the two writes would conflict.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use crate::intent::{Intent, PlannedWrite, Version};
use rooflet_api::v1alpha1::ModelReplica;

/// Time for the agent's first status. An agent that runs needs milliseconds; after its heartbeat's
/// period, it may not run.
const CONFIRM_DELAY: Duration = Duration::from_secs(10);

/// Confirmations that wait for the agents, by the UID of the replica.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    waiting: BTreeMap<String, Confirmation>,
}

#[derive(Debug)]
struct Confirmation {
    of: Version,
    due: Instant,
    write: PlannedWrite,
}

/// Removes the confirmation from the writes of one binding. A nominated replica keeps it: the
/// confirmation also releases the nominated node.
pub(super) fn split(batch: &mut Vec<PlannedWrite>, replica: Option<&ModelReplica>) -> Option<PlannedWrite> {
    let status = replica.and_then(|replica| replica.status.as_ref());
    let is_nominated = status.is_some_and(|status| status.nominated_node_name.is_some());
    let is_confirmation = |write: &PlannedWrite| matches!(write.intent, Intent::ConfirmBinding { .. });
    let at = batch.iter().position(is_confirmation).filter(|_| !is_nominated)?;
    Some(batch.remove(at))
}

impl Confirmations {
    /// Adds the confirmation of a binding that was written at `now`.
    pub(super) fn add(&mut self, of: Version, write: PlannedWrite, now: Instant) {
        let due = now + CONFIRM_DELAY;
        self.waiting
            .insert(of.uid.clone(), Confirmation { of, due, write });
    }

    /// Returns whether a confirmation of the replica waits.
    pub(super) fn contains(&self, replica: &ModelReplica) -> bool {
        let uid = replica.uid();
        uid.is_some_and(|uid| self.waiting.contains_key(&uid))
    }

    /// Removes the confirmations that are due or no longer needed. Returns the due ones.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        is_needed: impl Fn(&Version) -> bool,
    ) -> Vec<PlannedWrite> {
        let mut due = Vec::new();
        self.waiting.retain(|_, confirmation| {
            let is_kept = is_needed(&confirmation.of);
            if is_kept && confirmation.due <= now {
                due.push(confirmation.write.clone());
            }
            is_kept && confirmation.due > now
        });
        due
    }

    /// Returns the time until the next confirmation is due.
    pub(super) fn next_due(&self, now: Instant) -> Option<Duration> {
        let due = self.waiting.values().map(|confirmation| confirmation.due).min()?;
        Some(due.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    fn replica(name: &str) -> ModelReplica {
        let mut replica = ModelReplica::test(name, serde_json::json!({}));
        replica.metadata.uid = Some(format!("uid-{name}"));
        replica
    }

    fn batch(replica: &ModelReplica) -> Vec<PlannedWrite> {
        let (of, node) = (Version::of(replica), "mini".to_owned());
        let bind = Intent::Bind {
            of: of.clone(),
            node: node.clone(),
        };
        vec![bind.into(), Intent::ConfirmBinding { of, node }.into()]
    }

    #[test]
    fn confirmation_is_due_only_if_the_agent_is_late() {
        let (prompt, late, now) = (replica("prompt"), replica("late"), Clock::System.instant());
        let mut confirmations = Confirmations::default();
        for bound in [&prompt, &late] {
            let mut writes = batch(bound);
            let write = split(&mut writes, Some(bound)).expect("a confirmation");
            assert_eq!(writes.len(), 1, "the binding itself is not delayed");
            confirmations.add(Version::of(bound), write, now);
        }
        assert!(confirmations.contains(&late));
        assert_eq!(confirmations.next_due(now), Some(CONFIRM_DELAY));
        let is_late = |of: &Version| of.name == "late";
        assert!(confirmations.take_due(now, is_late).is_empty());
        assert!(!confirmations.contains(&prompt), "the agent has reported");
        let due = confirmations.take_due(now + CONFIRM_DELAY, is_late);
        assert!(
            matches!(&due[..], [PlannedWrite { intent: Intent::ConfirmBinding { of, .. }, .. }] if of.name == "late")
        );
        assert_eq!(confirmations.next_due(now), None);
    }

    #[test]
    fn nominated_replica_is_confirmed_with_its_binding() {
        let mut nominated = replica("nominated");
        nominated.status.get_or_insert_default().nominated_node_name = Some("mini".to_owned());
        let mut writes = batch(&nominated);
        assert_eq!(split(&mut writes, Some(&nominated)), None);
        assert_eq!(writes.len(), 2);
    }
}

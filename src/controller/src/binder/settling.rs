//! Short delay of scheduling while deployments create replicas.
//!
//! Objects that are applied together are then scheduled together: large replicas are placed before
//! small ones fragment the free memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};

/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Start of the current delay.
#[derive(Debug, Default)]
pub struct Settling {
    since: Option<Instant>,
}

impl Settling {
    /// Returns the remaining delay.
    ///
    /// After [`MAX_DELAY`], there is no delay until all deployments have created their replicas: a
    /// deployment that never creates them delays the others only once.
    pub fn wait(
        &mut self,
        deployments: &[Arc<ModelDeployment>],
        replicas: &[Arc<ModelReplica>],
        now: Instant,
    ) -> Option<Duration> {
        let is_placed = |replica: &Arc<ModelReplica>| replica.spec.node_name.is_some();
        let is_unsettled = !replicas.iter().all(is_placed) && are_replicas_missing(deployments, replicas);
        self.delay(is_unsettled, now)
    }

    /// Returns the remaining delay. `is_unsettled`: a replica has no node while a deployment has
    /// fewer replicas than desired.
    pub(super) fn delay(&mut self, is_unsettled: bool, now: Instant) -> Option<Duration> {
        if !is_unsettled {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let left = MAX_DELAY.saturating_sub(now - since);
        (!left.is_zero()).then_some(left)
    }
}

/// Returns whether a deployment has fewer replicas than `spec.replicas`.
pub(crate) fn are_replicas_missing(
    deployments: &[Arc<ModelDeployment>],
    replicas: &[Arc<ModelReplica>],
) -> bool {
    let mut missing: BTreeMap<(Option<&str>, &str), i32> = deployments
        .iter()
        .filter(|deployment| deployment.metadata.deletion_timestamp.is_none())
        .filter_map(|deployment| {
            let namespace = deployment.metadata.namespace.as_deref();
            let name = deployment.metadata.name.as_deref()?;
            let known = deployment.status.as_ref().map_or(0, |status| status.replicas);
            // Skip complete deployments early. Nearly all deployments are complete.
            (known < deployment.spec.replicas).then_some(((namespace, name), deployment.spec.replicas))
        })
        .collect();
    if missing.is_empty() {
        return false;
    }
    for replica in replicas {
        let namespace = replica.metadata.namespace.as_deref();
        let deployment = replica.labels().get(DEPLOYMENT_LABEL);
        let missing = deployment.and_then(|name| missing.get_mut(&(namespace, name.as_str())));
        if let Some(missing) = missing.filter(|_| replica.metadata.deletion_timestamp.is_none()) {
            *missing -= 1;
        }
    }
    missing.values().any(|missing| *missing > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::{Clock, ManualClock};

    fn deployment(name: &str, replicas: i32, known: i32) -> Arc<ModelDeployment> {
        let mut deployment = ModelDeployment::test(name, serde_json::json!({ "replicas": replicas }));
        deployment.status.get_or_insert_default().replicas = known;
        Arc::new(deployment)
    }

    fn replica(of: &str, node: Option<&str>) -> Arc<ModelReplica> {
        let mut replica = ModelReplica::test("guide-1", serde_json::json!({ "nodeName": node }));
        replica.metadata.labels = Some([(DEPLOYMENT_LABEL.to_owned(), of.to_owned())].into());
        Arc::new(replica)
    }

    #[test]
    fn delays_until_replicas_are_created_but_not_forever() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let (small, large) = (deployment("small", 1, 1), deployment("large", 2, 0));
        let (bound, waiting) = (replica("small", Some("a")), replica("small", None));
        let first = replica("large", None);
        let mut settling = Settling::default();
        let mut wait =
            |deployments: &[&Arc<ModelDeployment>], replicas: &[&Arc<ModelReplica>]| -> Option<Duration> {
                let deployments: Vec<_> = deployments.iter().copied().cloned().collect();
                let replicas: Vec<_> = replicas.iter().copied().cloned().collect();
                settling.wait(&deployments, &replicas, clock.instant())
            };
        assert_eq!(wait(&[&small], &[&waiting]), None);
        assert_eq!(
            wait(&[&small, &large], &[&bound]),
            None,
            "no replica is unscheduled"
        );
        assert_eq!(wait(&[&small, &large], &[&waiting]), Some(MAX_DELAY));
        manual.advance(MAX_DELAY / 4);
        assert_eq!(
            wait(&[&small, &large], &[&waiting, &first]),
            Some(MAX_DELAY * 3 / 4)
        );
        assert_eq!(
            wait(&[&small, &large], &[&waiting, &first, &first]),
            None,
            "all replicas are created"
        );
        assert_eq!(wait(&[&large], &[&waiting]), Some(MAX_DELAY));
        manual.advance(MAX_DELAY);
        assert_eq!(wait(&[&large], &[&waiting]), None);
        manual.advance(MAX_DELAY);
        assert_eq!(
            wait(&[&large], &[&waiting]),
            None,
            "the deployment never creates its replicas"
        );
        assert_eq!(wait(&[&small], &[&waiting]), None);
        assert_eq!(
            wait(&[&large], &[&waiting]),
            Some(MAX_DELAY),
            "no replica was missing in between"
        );
    }
}

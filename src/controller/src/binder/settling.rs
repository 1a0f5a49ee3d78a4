//! Waits a moment while replicas are about to be made, so that what is applied together is placed together: the large ones
//! find room before the small ones have scattered over it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};

/// The longest that a replica waits for others.
const LONGEST: Duration = Duration::from_secs(1);

/// Since when there has been something to wait for.
#[derive(Debug, Default)]
pub struct Settling {
    since: Option<Instant>,
}

impl Settling {
    /// For how long nothing should be placed yet. Once the longest wait is over there is none until everything has settled: a
    /// deployment that never makes its replicas holds the others up once.
    pub fn wait(
        &mut self,
        deployments: &[Arc<ModelDeployment>],
        replicas: &[Arc<ModelReplica>],
        now: Instant,
    ) -> Option<Duration> {
        let is_placed = |replica: &Arc<ModelReplica>| replica.spec.node_name.is_some();
        if replicas.iter().all(is_placed) || !are_to_come(deployments, replicas) {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let left = LONGEST.saturating_sub(now - since);
        (!left.is_zero()).then_some(left)
    }
}

/// Whether a deployment has fewer replicas than it asks for.
fn are_to_come(deployments: &[Arc<ModelDeployment>], replicas: &[Arc<ModelReplica>]) -> bool {
    let mut missing: BTreeMap<(Option<&str>, &str), i32> = deployments
        .iter()
        .filter(|deployment| deployment.metadata.deletion_timestamp.is_none())
        .filter_map(|deployment| {
            let namespace = deployment.metadata.namespace.as_deref();
            let name = deployment.metadata.name.as_deref()?;
            let known = deployment.status.as_ref().map_or(0, |status| status.replicas);
            // Nearly all of them are whole.
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
    fn replicas_wait_for_those_that_are_about_to_be_made_and_not_for_ever() {
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
            "nothing is to be placed"
        );
        assert_eq!(wait(&[&small, &large], &[&waiting]), Some(LONGEST));
        manual.advance(LONGEST / 4);
        assert_eq!(
            wait(&[&small, &large], &[&waiting, &first]),
            Some(LONGEST * 3 / 4)
        );
        assert_eq!(
            wait(&[&small, &large], &[&waiting, &first, &first]),
            None,
            "all are there"
        );
        assert_eq!(wait(&[&large], &[&waiting]), Some(LONGEST));
        manual.advance(LONGEST);
        assert_eq!(wait(&[&large], &[&waiting]), None);
        manual.advance(LONGEST);
        assert_eq!(wait(&[&large], &[&waiting]), None, "it never makes its replicas");
        assert_eq!(wait(&[&small], &[&waiting]), None);
        assert_eq!(
            wait(&[&large], &[&waiting]),
            Some(LONGEST),
            "it had settled in between"
        );
    }
}

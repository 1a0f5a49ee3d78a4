//! Rotation of the authorities of a fleet on a Kubernetes cluster without an interruption.
//!
//! The steps are those of the [embedded server](crate::authority_rotation). kube-apiserver does not
//! use these authorities, so the leading controller cannot observe which certificates are in use.
//! It records the nodes for which it has issued a certificate of the new authorities instead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::authority_rotation::{
    Content, Observed, ROTATION, RotationPhase, RotationStatus, Step, next_step, store_status,
};
use crate::cluster_authorities::{ClusterAuthorities, RotateClusterError};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::FLEET_TRUST_NAMESPACE;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, Cache, Changes};
use rooflet_pki::is_issued_by;

/// Interval between steps of a rotation.
const PERIOD: Duration = Duration::from_secs(2);

/// Last certificate that this controller issued, in PEM, by node. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssuedNodes(Arc<Mutex<BTreeMap<String, String>>>);

impl IssuedNodes {
    pub(crate) fn record(&self, node: &str, certificate: &str) {
        lock(&self.0).insert(node.to_owned(), certificate.to_owned());
    }

    /// Returns the nodes of `waiting_for` that run, and that have no certificate of the first one
    /// of `authorities`.
    fn missing(&self, waiting_for: &[String], ready: &BTreeSet<String>, authorities: &str) -> Vec<String> {
        let issued = lock(&self.0);
        let has_new = |node: &String| {
            let certificate = issued.get(node);
            certificate.is_some_and(|pem| is_issued_by(pem.as_bytes(), authorities))
        };
        let missing = waiting_for
            .iter()
            .filter(|node| ready.contains(*node) && !has_new(node));
        missing.cloned().collect()
    }
}

/// Error of a step.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Authorities(#[from] RotateClusterError),
    #[error("storing the status of the rotation")]
    Store(#[from] ApiError),
}

/// Executor of requested rotations.
pub(crate) struct ClusterRotation {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) authorities: ClusterAuthorities,
    pub(crate) fleet: Cache<FleetNode>,
    pub(crate) issued: IssuedNodes,
}

impl ClusterRotation {
    /// Starts to watch requests.
    pub(crate) fn watch(
        client: &Client,
        clock: &Clock,
        tasks: &Tasks,
    ) -> (Cache<ConfigMap>, watch::Receiver<u64>) {
        let changes = Changes::new();
        let config = watcher::Config::default().fields(&format!("metadata.name={ROTATION}"));
        let api: Api<DeserializeGuard<ConfigMap>> = Api::namespaced(client.clone(), FLEET_TRUST_NAMESPACE);
        let stored = rooflet_client::watch(tasks, api, config, clock, &changes);
        (stored, changes.subscribe())
    }

    pub(crate) async fn run(self, stored: Cache<ConfigMap>, mut changed_rx: watch::Receiver<u64>) {
        stored.synced().await;
        self.fleet.synced().await;
        let started = self.clock.now();
        loop {
            changed_rx.mark_unchanged();
            let found = stored.list();
            let content = Content::parse(found.first().map(|config_map| &**config_map));
            let now = self.clock.now();
            let ready = self.ready_nodes();
            let rotating = content
                .status
                .as_ref()
                .filter(|status| status.phase == RotationPhase::Rotating);
            let observed = Observed {
                now,
                since: started,
                users_of_previous: rotating.map_or_else(Vec::new, |status| {
                    let authorities = self.authorities.nodes.certificate_pem();
                    self.issued.missing(&status.waiting_for, &ready, &authorities)
                }),
                have_previous: self.authorities.have_previous(),
            };
            if let Some(step) = next_step(&content, observed)
                && let Err(err) = self.execute(step, now, &ready).await
            {
                warn!(
                    error = %Chain(&err),
                    "failed to rotate the authorities of the fleet; retrying in {} s", PERIOD.as_secs()
                );
            }
            let is_idle = rotating.is_none() && !content.is_pending();
            tokio::select! {
                changed = changed_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(PERIOD), if !is_idle => {}
            }
        }
    }

    fn ready_nodes(&self) -> BTreeSet<String> {
        let is_ready = |node: &FleetNode| {
            let status = node.status.as_ref();
            status.is_some_and(|status| is_true(&status.conditions, condition_type::READY))
        };
        let nodes = self.fleet.list();
        let ready = nodes.iter().filter(|node| is_ready(node));
        ready.map(|node| node.name_any()).collect()
    }

    async fn execute(&self, step: Step, now: Timestamp, ready: &BTreeSet<String>) -> Result<(), StepError> {
        let status = match step {
            Step::Rotate(status) => {
                self.authorities.rotate(&self.client, now).await?;
                info!(
                    retire_after = %status.retire_after,
                    "new certificate authorities issue certificates; the old ones are trusted until they are retired"
                );
                RotationStatus {
                    waiting_for: ready.iter().cloned().collect(),
                    ..status
                }
            }
            Step::Retire(status) => {
                self.authorities.retire(&self.client).await?;
                info!("the old certificate authorities are not trusted any more");
                let Some(status) = status else { return Ok(()) };
                status
            }
            Step::Report(status) => status,
        };
        Ok(store_status(&self.client, &status).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;
    use rooflet_pki::{Authority, AuthorityKind, Identity, Role};

    #[test]
    fn running_nodes_without_a_new_certificate_are_waited_for() {
        let now = at(1_767_225_600);
        let authority = |number: i64| {
            let (authority, _) =
                Authority::generate(AuthorityKind::Client, at(1_767_225_600 + number)).expect("generated");
            authority
        };
        let (old, new) = (authority(1), authority(2));
        let certificate = |authority: &Authority, node: &str| {
            let identity = Identity::new(Role::Node, node);
            let issued = authority.issue_client(&identity, Duration::from_secs(3600), now);
            issued.expect("issued").certificate_pem
        };
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ready = |names: &[&str]| text(names).into_iter().collect::<BTreeSet<_>>();
        let trusted = new.certificate_pem() + &old.certificate_pem();
        let issued = IssuedNodes::default();
        let missing = |nodes: &[&str]| issued.missing(&text(&["a", "b", "c"]), &ready(nodes), &trusted);
        issued.record("a", &certificate(&old, "a"));
        assert_eq!(missing(&["a", "b", "d"]), ["a", "b"]);
        issued.record("a", &certificate(&new, "a"));
        issued.clone().record("b", &certificate(&new, "b"));
        assert_eq!(missing(&["a", "b", "c"]), ["c"]);
    }
}

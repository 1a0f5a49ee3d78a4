//! Revocation of deleted nodes. The server records the FleetNodes that exist. When one is deleted,
//! the certificates that were issued to the node before are revoked, and the node must join again.
//!
//! On a Kubernetes cluster, the leading controller does the same. The record is stored in a ConfigMap, so that a deletion is also found after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tracing::info;

use crate::authority_rotation::FleetAuthorities;
use crate::cluster_authorities::ClusterAuthorities;
use crate::fleet_trust::{FleetTrust, apply, config_maps};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::{Clock, since};
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, Attempts, Cache, Changes};
use rooflet_pki::Revocations;

/// ConfigMap with name and UID of the existing FleetNodes. Only the server reads it.
const KNOWN_NODES: &str = "rooflet-known-nodes";
const KNOWN: &str = "nodes.json";
/// Interval between checks whether an authority was rotated.
const ROTATION_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Longest lifetime of a certificate. A revocation is not needed longer.
const RETENTION: Duration = Duration::from_secs(366 * 24 * 3600);

/// Existing and revoked nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// UID of the FleetNode by name.
    known: BTreeMap<String, String>,
    /// Time of revocation by node.
    pub(crate) revoked: BTreeMap<String, Timestamp>,
}

impl Ledger {
    /// Revokes the known nodes whose FleetNode is gone or was created again. `present` has the UIDs
    /// of all FleetNodes. Returns the revoked nodes.
    pub(crate) fn observe(&mut self, present: BTreeMap<String, String>, now: Timestamp) -> Vec<String> {
        let known = self.known.iter();
        let gone = known.filter(|(name, uid)| present.get(*name) != Some(*uid));
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.revoked.insert(name.clone(), now);
        }
        self.known = present;
        self.revoked.retain(|_, revoked| since(now, *revoked) < RETENTION);
        gone
    }
}

/// Authorities that are published.
pub enum PublishedAuthorities {
    /// Authorities of the embedded API server.
    Server(FleetAuthorities),
    /// Authorities of a fleet on a Kubernetes cluster.
    Cluster(ClusterAuthorities),
}

impl PublishedAuthorities {
    fn trust(&self, revoked: BTreeMap<String, Timestamp>) -> FleetTrust {
        match self {
            Self::Server(authorities) => authorities.trust(revoked),
            Self::Cluster(authorities) => authorities.trust(revoked),
        }
    }
}

/// Publisher of the fleet's trust.
pub struct TrustPublisher {
    pub client: Client,
    pub clock: Clock,
    pub authorities: PublishedAuthorities,
    /// Revocations that this process applies to its connections and to new certificates.
    pub revocations: Revocations,
}

impl TrustPublisher {
    pub fn start(self, tasks: &Tasks) {
        let changes = Changes::new();
        let fleet: Cache<FleetNode> = rooflet_client::watch(
            tasks,
            Api::all(self.client.clone()),
            watcher::Config::default(),
            &self.clock,
            &changes,
        );
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            let running = self.run(fleet, changes.subscribe());
            stop.run_until_cancelled(running).await;
        });
    }

    pub(crate) async fn run(self, fleet: Cache<FleetNode>, mut changed_rx: watch::Receiver<u64>) {
        let mut attempts = Attempts::new("publishing the authorities of the fleet");
        let mut stored = loop {
            match self.load().await {
                Ok(ledger) => break ledger,
                Err(err) => tokio::time::sleep(attempts.failed(&err)).await,
            }
        };
        self.revocations.replace(stored.revoked.clone());
        fleet.synced().await;
        let mut published = None;
        loop {
            changed_rx.mark_unchanged();
            let mut current = stored.clone();
            for node in current.observe(present(&fleet), self.clock.now()) {
                info!(node, "FleetNode was deleted; its certificates are revoked");
            }
            let trust = self.authorities.trust(current.revoked.clone());
            let is_published = published.as_ref() == Some(&trust);
            if current != stored || !is_published {
                self.revocations.replace(current.revoked.clone());
                match self.publish(&current, (!is_published).then_some(&trust)).await {
                    Ok(()) => {
                        attempts.succeeded();
                        (stored, published) = (current, Some(trust));
                    }
                    Err(err) => {
                        tokio::time::sleep(attempts.failed(&err)).await;
                        continue;
                    }
                }
            }
            tokio::select! {
                changed = changed_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(ROTATION_CHECK_PERIOD) => {}
            }
        }
    }

    async fn load(&self) -> Result<Ledger, ApiError> {
        let config_map = config_maps(&self.client).get_opt(KNOWN_NODES).await?;
        let known = config_map.and_then(|map| serde_json::from_str(map.data?.get(KNOWN)?).ok());
        let trust = FleetTrust::read(&self.client).await?;
        Ok(Ledger {
            known: known.unwrap_or_default(),
            revoked: trust.unwrap_or_default().revoked,
        })
    }

    /// Stores the revocations first: if the second write fails, the deletion is found again.
    async fn publish(&self, current: &Ledger, trust: Option<&FleetTrust>) -> Result<(), ApiError> {
        if let Some(trust) = trust {
            trust.publish(&self.client).await?;
        }
        let known =
            serde_json::to_string(&current.known).map_err(|err| ApiError::Invalid(err.to_string()))?;
        apply(&self.client, KNOWN_NODES, &json!({ KNOWN: known })).await
    }
}

/// Returns the UIDs of all FleetNodes by name, also of those that this version cannot parse.
fn present(fleet: &Cache<FleetNode>) -> BTreeMap<String, String> {
    let parsed = fleet.list();
    let parsed = parsed
        .iter()
        .map(|node| (node.name_any(), node.uid().unwrap_or_default()));
    let unparsed = fleet.unreadable();
    let unparsed = unparsed.into_iter().map(|node| (node.name, node.uid));
    parsed.chain(unparsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    fn nodes(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, uid): &(&str, &str)| ((*name).to_owned(), (*uid).to_owned());
        list.iter().map(owned).collect()
    }

    #[test]
    fn deleted_or_recreated_node_is_revoked_and_new_node_is_not() {
        let mut ledger = Ledger::default();
        ledger.observe(nodes(&[("a", "1"), ("b", "2"), ("c", "3")]), at(100));
        assert_eq!(ledger.revoked, BTreeMap::new());
        ledger.observe(nodes(&[("a", "1"), ("c", "4"), ("d", "5")]), at(200));
        let revoked = [("b".to_owned(), at(200)), ("c".to_owned(), at(200))];
        assert_eq!(ledger.revoked, BTreeMap::from(revoked.clone()));
        // A node that joined again keeps the time that invalidates its previous certificates.
        ledger.observe(nodes(&[("a", "1"), ("b", "6"), ("c", "4"), ("d", "5")]), at(300));
        assert_eq!(ledger.revoked, BTreeMap::from(revoked));
    }

    #[test]
    fn revocation_is_kept_as_long_as_a_certificate_can_be_valid() {
        let mut ledger = Ledger::default();
        ledger.observe(nodes(&[("a", "1")]), at(0));
        ledger.observe(nodes(&[]), at(100));
        let year = 365 * 24 * 3600;
        ledger.observe(nodes(&[]), at(100 + year));
        assert!(ledger.revoked.contains_key("a"));
        ledger.observe(nodes(&[]), at(100 + year + 2 * 24 * 3600));
        assert!(ledger.revoked.is_empty());
    }
}

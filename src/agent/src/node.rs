//! Keeps this node's FleetNode and its Lease at the API server: registers, reports, renews. The object's spec and
//! labels of others belong to the user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::SimulatedMachine;
use super::holder::Holder;
use super::node_status::{NodeFacts, node_status};
use super::probe::ProbeState;
use super::quiet_hours::QuietHours;
use super::sync::Reports;
use super::wired::WiredWatch;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::{
    ARCH_LABEL, CHIP_LABEL, HOSTNAME_LABEL, LEASE_DURATION, LEASE_NAMESPACE, OS_LABEL, SIMULATED_LABEL,
    lease_name,
};
use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec, FleetNodeStatus};
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_base::units::Bytes;
use rooflet_client::{ApiError, Attempts, Cache, Changes, EventType, FIELD_MANAGER, Recorder, patch_status};
use rooflet_host::{Host, Identity};

/// The Lease is renewed this often.
pub const LEASE_PERIOD: Duration = Duration::from_secs(10);

/// The status is looked at again after this time, whatever has been heard.
const LOOK: Duration = Duration::from_secs(30);

/// See the module. Clones share everything.
#[derive(Clone)]
pub(crate) struct NodeReporter {
    pub client: Client,
    pub name: String,
    pub host: Host,
    pub identity: Identity,
    pub holder: Holder,
    /// Whether the node's Lease is this agent's, as far as it has heard.
    pub is_held: Arc<AtomicBool>,
    /// On the disk that is watched for space.
    pub state_path: Utf8PathBuf,
    pub endpoint: String,
    pub quiet_hours: QuietHours,
    pub(super) wired: WiredWatch,
    pub simulated: Option<SimulatedMachine>,
    pub clock: Clock,
    pub cache: Cache<FleetNode>,
    pub changes: Changes,
    pub recorder: Recorder,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    pub probe_rx: watch::Receiver<ProbeState>,
}

impl NodeReporter {
    /// Registers and reports until `stop`; then says that the node is not ready.
    pub(crate) async fn report(mut self, stop: CancellationToken) {
        let mut changed_rx = self.changes.subscribe();
        let mut attempts = Attempts::new("reporting the node");
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.cache.synced() => {}
            }
            changed_rx.mark_unchanged();
            self.reports_rx.mark_unchanged();
            self.probe_rx.mark_unchanged();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.write(false) => outcome,
            };
            let wait = match outcome {
                Ok(()) => {
                    attempts.succeeded();
                    LOOK
                }
                Err(err @ (ApiError::Conflict(_) | ApiError::AlreadyExists(_))) => attempts.failed(&err),
                Err(err) => {
                    let wait = attempts.failed(&err);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                    continue;
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changed_rx.changed() => {}
                _ = self.reports_rx.changed() => {}
                // Of a machine that is not measured nothing ever comes.
                Ok(()) = self.probe_rx.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Says that the agent stops, so that nobody has to wait for the Lease to run out.
    pub(crate) async fn say_stopping(&self) -> Result<(), ApiError> {
        self.write(true).await
    }

    async fn write(&self, stopping: bool) -> Result<(), ApiError> {
        let api: Api<FleetNode> = Api::all(self.client.clone());
        let node = match self.cache.get(None, &self.name) {
            Some(node) => node,
            None if stopping => return Ok(()),
            None => {
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                let created = api.create(&params, &self.first()).await?;
                info!(node = self.name, "registered the node");
                self.recorder.publish(
                    &created,
                    EventType::Normal,
                    "Registered",
                    "the agent has registered the node",
                );
                self.cache.wrote(created.clone());
                Arc::new(created)
            }
        };
        if !self.is_held.load(Ordering::Relaxed) {
            self.lease().await?;
        }
        let node = self.label(&api, node).await?;
        let previous = node.status.clone().unwrap_or_default();
        let stranded = self.stranded();
        let facts = NodeFacts {
            identity: &self.identity,
            machine_id: &self.holder.machine_id,
            memory: self.host.memory(),
            disk: self.host.disk(&self.state_path).ok(),
            power: self.host.power(),
            presence: self.host.presence(),
            stranded,
            quiet: self.quiet_hours.contain(self.clock.time_of_day()),
            endpoint: &self.endpoint,
            probe: &self.probe_rx.latest(),
            reports: &self.reports_rx.latest(),
            generation: node.metadata.generation,
            stopping,
        };
        let status = node_status(&facts, &previous, self.clock.now());
        if let Some(written) = patch_status(&api, node.as_ref(), &status).await? {
            self.tell(&written, &previous, &status);
            self.cache.wrote(written);
        }
        Ok(())
    }

    /// Wired memory that did not come back.
    fn stranded(&self) -> Option<Bytes> {
        let idle = self.reports_rx.latest().idle;
        self.wired.look(self.host.wired()?, idle, self.clock.instant())
    }

    fn tell(&self, node: &FleetNode, previous: &FleetNodeStatus, next: &FleetNodeStatus) {
        for kind in [
            condition_type::READY,
            condition_type::MEMORY_PRESSURE,
            condition_type::DISK_PRESSURE,
            condition_type::THERMAL_PRESSURE,
            condition_type::ON_BATTERY,
            condition_type::LID_CLOSED,
            condition_type::QUIET_HOURS,
            condition_type::REBOOT_REQUIRED,
            condition_type::PROBE_FRESH,
        ] {
            let (was, is) = (
                is_true(&previous.conditions, kind),
                is_true(&next.conditions, kind),
            );
            let Some(condition) = next
                .conditions
                .iter()
                .find(|one| one.type_ == kind)
                .filter(|_| was != is)
            else {
                continue;
            };
            let good = is == (kind == condition_type::READY || kind == condition_type::PROBE_FRESH);
            let event = if good {
                EventType::Normal
            } else {
                EventType::Warning
            };
            let message = if condition.message.is_empty() {
                kind
            } else {
                &condition.message
            };
            self.recorder.publish(node, event, &condition.reason, message);
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        [
            (HOSTNAME_LABEL, self.identity.hostname.to_lowercase()),
            (OS_LABEL, self.identity.os.to_owned()),
            (ARCH_LABEL, self.identity.architecture.to_owned()),
            (CHIP_LABEL, label_value(&self.identity.chip.name)),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), label_value(&value)))
        .chain(self.simulated.iter().flat_map(|machine| {
            let simulated = (SIMULATED_LABEL.to_owned(), "true".to_owned());
            machine.labels.clone().into_iter().chain([simulated])
        }))
        .collect()
    }

    fn first(&self) -> FleetNode {
        FleetNode {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.labels()),
                ..ObjectMeta::default()
            },
            spec: FleetNodeSpec::default(),
            status: None,
        }
    }

    /// Labels of ours that are not there or wrong; all others stay.
    async fn label(&self, api: &Api<FleetNode>, node: Arc<FleetNode>) -> Result<Arc<FleetNode>, ApiError> {
        let wrong = wrong_labels(self.labels(), node.labels());
        if wrong.is_empty() {
            return Ok(node);
        }
        let patch = json!({"metadata": {"labels": wrong}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = api.patch(&self.name, &params, &Patch::Merge(&patch)).await?;
        self.cache.wrote(written.clone());
        Ok(Arc::new(written))
    }

    /// The node's Lease, if there is one; an error where it is another living agent's.
    async fn lease(&self) -> Result<Option<Lease>, ApiError> {
        let lease = lease_of(&self.client, &self.name).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let checked = spec.map_or(Ok(()), |spec| self.holder.check(spec, self.clock.now()));
        checked.map_err(|taken| ApiError::Invalid(taken.to_string()))?;
        Ok(lease)
    }

    /// Renews the Lease until `stop`.
    pub(crate) async fn renew(self, stop: CancellationToken) {
        let mut attempts = Attempts::new("renewing the node's Lease");
        let mut known = None;
        let mut changed_rx = self.changes.subscribe();
        loop {
            // Until the node is registered there is nothing to vouch for.
            while self.cache.get(None, &self.name).is_none() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = changed_rx.changed() => {}
                    () = tokio::time::sleep(LEASE_PERIOD) => {}
                }
            }
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = tokio::time::timeout(LEASE_PERIOD, self.renew_once(&mut known)) => outcome,
            };
            let outcome = outcome.unwrap_or_else(|_| {
                Err(ApiError::Unreachable(format!(
                    "no answer within {} s",
                    LEASE_PERIOD.as_secs()
                )))
            });
            let wait = match outcome {
                Ok(()) => {
                    attempts.succeeded();
                    LEASE_PERIOD
                }
                Err(err) => {
                    attempts.failed(&err);
                    LEASE_PERIOD / 5
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// `known`: the Lease's version as this agent last wrote it. Whoever writes it in between is found out by that.
    async fn renew_once(&self, known: &mut Option<String>) -> Result<(), ApiError> {
        let Some(node) = self.cache.get(None, &self.name) else {
            return Ok(());
        };
        if let Some(version) = known.take() {
            match self.write_lease(&node, Some(version)).await {
                Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {}
                outcome => return outcome.map(|version| *known = version),
            }
        }
        self.is_held.store(false, Ordering::Relaxed);
        let version = self.lease().await?.and_then(|lease| lease.resource_version());
        *known = self.write_lease(&node, version).await?;
        self.is_held.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Over the given version, or as a new one; returns the version that it has then.
    async fn write_lease(
        &self,
        node: &FleetNode,
        version: Option<String>,
    ) -> Result<Option<String>, ApiError> {
        let name = lease_name(&self.name);
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.to_string()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(self.clock.now())),
            ..LeaseSpec::default()
        };
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let written = match version {
            Some(version) => {
                let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
                let params = PatchParams {
                    field_manager,
                    ..PatchParams::default()
                };
                leases.patch(&name, &params, &Patch::Merge(&patch)).await
            }
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some(LEASE_NAMESPACE.to_owned()),
                        owner_references: owner(node).map(|owner| vec![owner]),
                        ..ObjectMeta::default()
                    },
                    spec: Some(spec),
                };
                let params = PostParams {
                    field_manager,
                    ..PostParams::default()
                };
                leases.create(&params, &lease).await
            }
        };
        Ok(written?.resource_version())
    }
}

/// The Lease of a node, if there is one.
pub(super) async fn lease_of(client: &Client, node: &str) -> Result<Option<Lease>, ApiError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    Ok(leases.get_opt(&lease_name(node)).await?)
}

/// The Lease goes with the node.
fn owner(node: &FleetNode) -> Option<OwnerReference> {
    node.owner_ref(&())
}

/// What has to be set, or taken away, of the labels that there are.
fn wrong_labels(
    ours: BTreeMap<String, String>,
    there: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let mut wrong: BTreeMap<_, _> = ours.into_iter().map(|(key, value)| (key, Some(value))).collect();
    // A real machine that takes the name of a simulated one is not simulated.
    wrong.entry(SIMULATED_LABEL.to_owned()).or_insert(None);
    wrong.retain(|key, value| there.get(key) != value.as_ref());
    wrong
}

/// Text as a label's value: other characters become dashes.
fn label_value(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
                c
            } else {
                '-'
            }
        })
        .take(63)
        .collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_others_stay_and_a_real_machine_is_not_called_simulated() {
        let labels = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            all.iter().map(own).collect()
        };
        let there = labels(&[
            ("theirs", "1"),
            ("rooflet.dev/chip", "M1"),
            (SIMULATED_LABEL, "true"),
        ]);
        let real = wrong_labels(labels(&[("rooflet.dev/chip", "M4")]), &there);
        let expect = [
            ("rooflet.dev/chip".to_owned(), Some("M4".to_owned())),
            (SIMULATED_LABEL.to_owned(), None),
        ];
        assert_eq!(real, expect.into());
        let simulated = labels(&[("rooflet.dev/chip", "M1"), (SIMULATED_LABEL, "true")]);
        assert_eq!(wrong_labels(simulated, &there), BTreeMap::new());
        assert_eq!(wrong_labels(labels(&[]), &labels(&[])), BTreeMap::new());
    }

    #[test]
    fn any_text_becomes_a_label_value() {
        assert_eq!(label_value("Apple M4 Pro"), "Apple-M4-Pro");
        assert_eq!(label_value("AMD EPYC 9R14 (KVM)"), "AMD-EPYC-9R14--KVM");
        assert_eq!(label_value("…"), "");
        assert!(label_value(&"x".repeat(100)).len() <= 63);
    }
}

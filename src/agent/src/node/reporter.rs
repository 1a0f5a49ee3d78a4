//! Registration and status reports of this node's FleetNode. The agent never changes the object's
//! spec or labels that other clients set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::facts::NodeFacts;
use super::lease::NodeLease;
use super::probe::ProbeState;
use super::probe_record::ProbeRecord;
use super::quiet_hours::QuietHours;
use super::status::{differs_in_use_only, node_status};
use super::wired::WiredWatch;
use crate::config::SimulatedMachine;
use crate::reports::Reports;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::{ARCH_LABEL, CHIP_LABEL, HOSTNAME_LABEL, OS_LABEL, SIMULATED_LABEL};
use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec, FleetNodeStatus};
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_base::units::Bytes;
use rooflet_client::{ApiError, Attempts, Cache, Changes, EventType, FIELD_MANAGER, Recorder, patch_status};
use rooflet_host::{Host, Identity};

/// Interval after which the status is computed although nothing has changed.
const RESYNC: Duration = Duration::from_secs(30);

/// Minimum time between two computations of the status because of changes.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Delay of a status that differs only in the use of the node by its replicas. The steps of a start,
/// and the starts of several replicas, then cause one write.
const USE_DELAY: Duration = Duration::from_secs(1);

/// Delay before a deleted FleetNode is created again: the deletion revokes the certificate of a
/// joined node within this time.
const REGISTER_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Writer of the FleetNode. Clones share everything.
#[derive(Clone)]
pub(crate) struct NodeReporter {
    pub client: Client,
    pub name: String,
    pub host: Host,
    pub identity: Identity,
    pub lease: NodeLease,
    /// Path on the disk whose free space is reported.
    pub state_path: Utf8PathBuf,
    pub endpoint: String,
    /// Log of a gateway on this machine.
    pub gateway_log: Option<Utf8PathBuf>,
    pub quiet_hours: QuietHours,
    pub(crate) wired: WiredWatch,
    pub matrix_unit_kernels: Option<bool>,
    pub is_anonymous: bool,
    /// True if the token of the agent belongs to a FleetNode, which the agent must not create.
    pub has_token: bool,
    pub simulated: Option<SimulatedMachine>,
    pub clock: Clock,
    pub cache: Cache<FleetNode>,
    pub changes: Changes,
    pub recorder: Recorder,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    pub probe_rx: watch::Receiver<ProbeState>,
    pub(crate) probe_record: ProbeRecord,
}

impl NodeReporter {
    /// Registers the node and reports its status until `stop`.
    pub(crate) async fn report(mut self, stop: CancellationToken) {
        let mut changed_rx = self.changes.subscribe();
        let mut attempts = Attempts::new("reporting the node");
        let mut was_registered = false;
        let mut delayed_since = None;
        // Before the first sync pass, the models of this node are unknown. An empty list would
        // claim that it has none.
        tokio::select! {
            () = stop.cancelled() => return,
            _ = self.reports_rx.changed() => {}
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.cache.synced() => {}
            }
            let is_registered = self.cache.get(None, &self.name).is_some();
            if was_registered && !is_registered && !self.has_token {
                info!(
                    node = self.name,
                    "FleetNode was deleted; registering it again unless the node is revoked"
                );
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(REGISTER_AGAIN_AFTER) => {}
                }
            }
            changed_rx.mark_unchanged();
            self.reports_rx.mark_unchanged();
            self.probe_rx.mark_unchanged();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.write(false, &mut delayed_since) => outcome,
            };
            was_registered = self.cache.get(None, &self.name).is_some();
            let wait = match outcome {
                Ok(delay) => {
                    attempts.succeeded();
                    delay.unwrap_or(RESYNC)
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
                () = tokio::time::sleep(MIN_PERIOD.min(wait)) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changed_rx.changed() => {}
                _ = self.reports_rx.changed() => {}
                // The channel of a machine that is never probed is closed, which disables this
                // branch.
                Ok(()) = self.probe_rx.changed() => {}
                () = tokio::time::sleep(wait.saturating_sub(MIN_PERIOD)) => {}
            }
        }
    }

    /// Reports that the agent stops, so that the node becomes not ready before its Lease expires.
    pub(crate) async fn report_stopping(&self) -> Result<(), ApiError> {
        self.write(true, &mut None).await.map(drop)
    }

    /// Writes the status if it differs. Returns the time until a delayed write is due.
    /// `delayed_since` is the time of the first difference that is not written.
    async fn write(
        &self,
        stopping: bool,
        delayed_since: &mut Option<Instant>,
    ) -> Result<Option<Duration>, ApiError> {
        let api: Api<FleetNode> = Api::all(self.client.clone());
        let node = match self.cache.get(None, &self.name) {
            Some(node) => node,
            None if stopping => return Ok(None),
            None if self.has_token => {
                return Err(ApiError::NotFound(format!(
                    "FleetNode {name}: run `rooflet token create --node {name}` as an administrator, and join again",
                    name = self.name
                )));
            }
            None => {
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                let created = api.create(&params, &self.new_node()).await?;
                info!(node = self.name, "registered the node");
                self.recorder.publish(
                    &created,
                    EventType::Normal,
                    "Registered",
                    "agent registered the node",
                );
                self.cache.wrote(created.clone());
                Arc::new(created)
            }
        };
        self.lease.check().await?;
        let node = self.update_labels(&api, node).await?;
        let probe = self.probe_rx.latest();
        self.probe_record
            .publish(&self.client, &node, probe.last.as_ref())
            .await;
        let previous = node.status.clone().unwrap_or_default();
        let leaked = self.leaked();
        let facts = NodeFacts {
            identity: &self.identity,
            machine_id: &self.lease.holder.machine_id,
            memory: self.host.memory(),
            disk: self.host.disk(&self.state_path).ok(),
            power: self.host.power(),
            presence: self.host.presence(),
            leaked,
            quiet: self.quiet_hours.contain(self.clock.time_of_day()),
            matrix_unit_kernels: self.matrix_unit_kernels,
            is_anonymous: self.is_anonymous,
            other_agent: self.lease.other_agent(),
            endpoint: &self.endpoint,
            has_gateway_log: self.gateway_log.as_ref().is_some_and(|log| log.exists()),
            probe: &probe,
            reports: &self.reports_rx.latest(),
            generation: node.metadata.generation,
            stopping,
        };
        let status = node_status(&facts, &previous, self.clock.now());
        if !stopping && differs_in_use_only(&previous, &status) {
            let now = self.clock.instant();
            let since = *delayed_since.get_or_insert(now);
            let left = USE_DELAY.saturating_sub(now - since);
            if !left.is_zero() {
                return Ok(Some(left));
            }
        }
        *delayed_since = None;
        if let Some(written) = patch_status(&api, node.as_ref(), &status).await? {
            self.publish_events(&written, &previous, &status);
            self.cache.wrote(written);
        }
        Ok(None)
    }

    /// Returns the wired memory that was not freed after the last worker exited.
    fn leaked(&self) -> Option<Bytes> {
        let idle = self.reports_rx.latest().idle;
        let (wired, gpu) = (self.host.wired()?, self.host.gpu_memory());
        self.wired.observe(wired, gpu, idle, self.clock.instant())
    }

    fn publish_events(&self, node: &FleetNode, previous: &FleetNodeStatus, next: &FleetNodeStatus) {
        for kind in [
            condition_type::READY,
            condition_type::MEMORY_PRESSURE,
            condition_type::DISK_PRESSURE,
            condition_type::THERMAL_PRESSURE,
            condition_type::ON_BATTERY,
            condition_type::LID_CLOSED,
            condition_type::QUIET_HOURS,
            condition_type::REBOOT_REQUIRED,
            condition_type::LOW_POWER_MODE,
            condition_type::MEMORY_REDUCED,
            condition_type::MATRIX_UNITS_UNUSED,
            condition_type::ANONYMOUS_ACCESS,
            condition_type::DUPLICATE_AGENT,
            condition_type::PROBE_FRESH,
        ] {
            let (was, is) = (
                is_true(&previous.conditions, kind),
                is_true(&next.conditions, kind),
            );
            let Some(condition) = next
                .conditions
                .iter()
                .find(|condition| condition.type_ == kind)
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

    fn new_node(&self) -> FleetNode {
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

    /// Sets the agent's own labels if they differ. Other labels stay.
    async fn update_labels(
        &self,
        api: &Api<FleetNode>,
        node: Arc<FleetNode>,
    ) -> Result<Arc<FleetNode>, ApiError> {
        let changes = label_changes(self.labels(), node.labels());
        if changes.is_empty() {
            return Ok(node);
        }
        let patch = json!({"metadata": {"labels": changes}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = api.patch(&self.name, &params, &Patch::Merge(&patch)).await?;
        self.cache.wrote(written.clone());
        Ok(Arc::new(written))
    }
}

/// Returns the labels to set (`Some`) and to remove (`None`).
fn label_changes(
    desired: BTreeMap<String, String>,
    current: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let mut changes: BTreeMap<_, _> = desired
        .into_iter()
        .map(|(key, value)| (key, Some(value)))
        .collect();
    // A real machine may reuse the name of a simulated one.
    changes.entry(SIMULATED_LABEL.to_owned()).or_insert(None);
    changes.retain(|key, value| current.get(key) != value.as_ref());
    changes
}

/// Converts text to a label value: unsupported characters become dashes.
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
    fn keeps_other_labels_and_removes_simulated_label_of_real_machine() {
        let labels = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            all.iter().map(own).collect()
        };
        let there = labels(&[
            ("theirs", "1"),
            ("rooflet.dev/chip", "M1"),
            (SIMULATED_LABEL, "true"),
        ]);
        let real = label_changes(labels(&[("rooflet.dev/chip", "M4")]), &there);
        let expect = [
            ("rooflet.dev/chip".to_owned(), Some("M4".to_owned())),
            (SIMULATED_LABEL.to_owned(), None),
        ];
        assert_eq!(real, expect.into());
        let simulated = labels(&[("rooflet.dev/chip", "M1"), (SIMULATED_LABEL, "true")]);
        assert_eq!(label_changes(simulated, &there), BTreeMap::new());
        assert_eq!(label_changes(labels(&[]), &labels(&[])), BTreeMap::new());
    }

    #[test]
    fn converts_any_text_to_a_label_value() {
        assert_eq!(label_value("Apple M4 Pro"), "Apple-M4-Pro");
        assert_eq!(label_value("AMD EPYC 9R14 (KVM)"), "AMD-EPYC-9R14--KVM");
        assert_eq!(label_value("…"), "");
        assert!(label_value(&"x".repeat(100)).len() <= 63);
    }
}

//! Keeps this node's FleetNode at the API server: registers and reports. The object's spec and
//! labels of others belong to the user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
use super::quiet_hours::QuietHours;
use super::status::node_status;
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

/// The status is looked at again after this time, whatever has been heard.
const LOOK: Duration = Duration::from_secs(30);

/// See the module. Clones share everything.
#[derive(Clone)]
pub(crate) struct NodeReporter {
    pub client: Client,
    pub name: String,
    pub host: Host,
    pub identity: Identity,
    pub lease: NodeLease,
    /// On the disk that is watched for space.
    pub state_path: Utf8PathBuf,
    pub endpoint: String,
    pub quiet_hours: QuietHours,
    pub(crate) wired: WiredWatch,
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
        self.lease.check().await?;
        let node = self.label(&api, node).await?;
        let previous = node.status.clone().unwrap_or_default();
        let stranded = self.stranded();
        let facts = NodeFacts {
            identity: &self.identity,
            machine_id: &self.lease.holder.machine_id,
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

//! Timeline of events, changed conditions and worker exits. The module is pure.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};

const DEPLOYMENT: &str = "ModelDeployment";
const REVISION: &str = "ModelRevision";
const REPLICA: &str = "ModelReplica";
const NODE: &str = "FleetNode";

/// Observed objects of one namespace, all nodes, and the events about them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) deployments: Vec<ModelDeployment>,
    pub(super) replicas: Vec<ModelReplica>,
    pub(super) nodes: Vec<FleetNode>,
    pub(super) events: Vec<Event>,
}

/// Object that the timeline is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Focus {
    Deployment(String),
    Replica(String),
    Node(String),
}

impl fmt::Display for Focus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment(name) => write!(f, "{DEPLOYMENT} {name}"),
            Self::Replica(name) => write!(f, "{REPLICA} {name}"),
            Self::Node(name) => write!(f, "{NODE} {name}"),
        }
    }
}

/// Origin of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Origin {
    Event,
    Condition,
    Exit,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Event => "event",
            Self::Condition => "condition",
            Self::Exit => "exit",
        })
    }
}

/// Entry of a timeline. Entries are ordered by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Entry {
    pub(super) time: Timestamp,
    /// Short kind and name, such as `mrep/guide-1`.
    pub(super) object: String,
    pub(super) from: Origin,
    pub(super) reason: String,
    pub(super) message: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Timeline {
    pub(super) entries: Vec<Entry>,
}

impl Timeline {
    /// Returns the entries since `since` about `focus` and its related objects, or about all
    /// objects.
    pub(super) fn new(objects: &Objects, focus: Option<&Focus>, since: Timestamp) -> Self {
        let scope = focus.map(|focus| Scope::new(objects, focus));
        let includes = |kind: &str, name: &str| scope.as_ref().is_none_or(|scope| scope.has(kind, name));
        let mut entries: Vec<Entry> = objects
            .events
            .iter()
            .filter(|event| includes(kind_of(event), name_of(event)))
            .filter_map(of_event)
            .collect();
        for deployment in &objects.deployments {
            let conditions = deployment.status.as_ref().map(|status| &status.conditions);
            if includes(DEPLOYMENT, &deployment.name_any()) {
                add_conditions(&mut entries, DEPLOYMENT, deployment, conditions);
            }
        }
        for replica in &objects.replicas {
            let conditions = replica.status.as_ref().map(|status| &status.conditions);
            if includes(REPLICA, &replica.name_any()) {
                add_conditions(&mut entries, REPLICA, replica, conditions);
                entries.extend(of_exit(replica, &objects.events));
            }
        }
        for node in &objects.nodes {
            let conditions = node.status.as_ref().map(|status| &status.conditions);
            if includes(NODE, &node.name_any()) {
                add_conditions(&mut entries, NODE, node, conditions);
            }
        }
        entries.retain(|entry| entry.time >= since);
        entries.sort();
        Self { entries }
    }
}

/// Names of the focused object and its related objects, per kind.
struct Scope {
    deployments: BTreeSet<String>,
    replicas: BTreeSet<String>,
    nodes: BTreeSet<String>,
    /// True if the scope contains deleted replicas of its deployments.
    has_deleted: bool,
}

impl Scope {
    fn new(objects: &Objects, focus: &Focus) -> Self {
        let is_related = |replica: &&ModelReplica| match focus {
            Focus::Deployment(name) => deployment_of(replica).as_deref() == Some(name.as_str()),
            Focus::Replica(name) => replica.name_any() == *name,
            Focus::Node(name) => replica.spec.node_name.as_ref() == Some(name),
        };
        let related: Vec<_> = objects.replicas.iter().filter(is_related).collect();
        let mut scope = Self {
            deployments: BTreeSet::new(),
            replicas: related.iter().map(|replica| replica.name_any()).collect(),
            nodes: related
                .iter()
                .filter_map(|replica| replica.spec.node_name.clone())
                .collect(),
            has_deleted: matches!(focus, Focus::Deployment(_)),
        };
        match focus {
            Focus::Deployment(name) => scope.deployments.insert(name.clone()),
            Focus::Replica(name) => {
                let deployment = related.iter().find_map(|replica| deployment_of(replica));
                let deployment = deployment.or_else(|| deployment_in_name(REPLICA, name).map(str::to_owned));
                scope.deployments.extend(deployment);
                scope.replicas.insert(name.clone())
            }
            Focus::Node(name) => scope.nodes.insert(name.clone()),
        };
        scope
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        let is_deleted_one = || {
            let deployment = deployment_in_name(kind, name);
            self.has_deleted && deployment.is_some_and(|deployment| self.deployments.contains(deployment))
        };
        match kind {
            DEPLOYMENT => self.deployments.contains(name),
            REVISION => is_deleted_one(),
            REPLICA => self.replicas.contains(name) || is_deleted_one(),
            NODE => self.nodes.contains(name),
            _ => false,
        }
    }
}

impl Objects {
    /// Returns whether the object, or an event about it, exists.
    pub(super) fn has(&self, focus: &Focus) -> bool {
        let (kind, name) = match focus {
            Focus::Deployment(name) => (DEPLOYMENT, name),
            Focus::Replica(name) => (REPLICA, name),
            Focus::Node(name) => (NODE, name),
        };
        let exists = match focus {
            Focus::Deployment(_) => self.deployments.iter().any(|one| one.name_any() == *name),
            Focus::Replica(_) => self.replicas.iter().any(|one| one.name_any() == *name),
            Focus::Node(_) => self.nodes.iter().any(|one| one.name_any() == *name),
        };
        exists
            || self
                .events
                .iter()
                .any(|event| kind_of(event) == kind && name_of(event) == name)
    }
}

pub(super) fn is_about_a_node(event: &Event) -> bool {
    kind_of(event) == NODE
}

fn deployment_of(replica: &ModelReplica) -> Option<String> {
    replica.labels().get(DEPLOYMENT_LABEL).cloned()
}

/// Returns the deployment in the generated name of a revision (`DEPLOYMENT-HASH`) or replica
/// (`DEPLOYMENT-HASH-SUFFIX`).
fn deployment_in_name<'a>(kind: &str, name: &'a str) -> Option<&'a str> {
    let revision = match kind {
        REPLICA => name.rsplit_once('-')?.0,
        _ => name,
    };
    Some(revision.rsplit_once('-')?.0)
}

fn kind_of(event: &Event) -> &str {
    event.involved_object.kind.as_deref().unwrap_or_default()
}

fn name_of(event: &Event) -> &str {
    event.involved_object.name.as_deref().unwrap_or_default()
}

/// Returns the kind and name as kubectl accepts them.
fn short(kind: &str, name: &str) -> String {
    let kind = match kind {
        DEPLOYMENT => "mdep",
        REVISION => "mrev",
        REPLICA => "mrep",
        NODE => "mac",
        other => other,
    };
    format!("{kind}/{name}")
}

/// Returns `None` for an event without a time.
fn of_event(event: &Event) -> Option<Entry> {
    let series = event.series.as_ref();
    let times = [
        series
            .and_then(|series| series.last_observed_time.as_ref())
            .map(|time| time.0),
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        event.first_timestamp.as_ref().map(|time| time.0),
        event.metadata.creation_timestamp.as_ref().map(|time| time.0),
    ];
    let count = series
        .and_then(|series| series.count)
        .or(event.count)
        .unwrap_or(1);
    let reason = event.reason.clone().unwrap_or_default();
    Some(Entry {
        time: times.into_iter().flatten().next()?,
        object: short(kind_of(event), name_of(event)),
        from: Origin::Event,
        reason: match count {
            ..=1 => reason,
            count => format!("{reason} (×{count})"),
        },
        message: event.message.clone().unwrap_or_default(),
    })
}

fn add_conditions<K: Resource>(
    entries: &mut Vec<Entry>,
    kind: &str,
    object: &K,
    conditions: Option<&Vec<Condition>>,
) {
    let of_condition = |condition: &Condition| Entry {
        time: condition.last_transition_time.0,
        object: short(kind, &object.name_any()),
        from: Origin::Condition,
        reason: format!("{}={} {}", condition.type_, condition.status, condition.reason),
        message: condition.message.clone(),
    };
    entries.extend(conditions.into_iter().flatten().map(of_condition));
}

/// Returns the last exit of the replica's worker, unless an event describes it.
fn of_exit(replica: &ModelReplica, events: &[Event]) -> Option<Entry> {
    let name = replica.name_any();
    let end = replica.status.as_ref()?.last_termination.as_ref()?;
    let describes = |event: &Event| {
        let message = event.message.as_deref().unwrap_or_default();
        kind_of(event) == REPLICA && name_of(event) == name && message.ends_with(&end.message)
    };
    if events.iter().any(describes) {
        return None;
    }
    Some(Entry {
        time: end.finished_at.parse().ok()?,
        object: short(REPLICA, &name),
        from: Origin::Exit,
        reason: end.reason.clone(),
        message: end.message.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HASH: &str = "7f9c6b5d4";

    fn event(time: &str, kind: &str, name: &str, reason: &str, count: i32) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason, "message": format!("about {name}"), "count": count,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": time,
        }))
        .expect("an event")
    }

    fn condition(time: &str, kind: &str, status: &str) -> serde_json::Value {
        json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": time})
    }

    fn replica(name: &str, deployment: &str, node: &str) -> ModelReplica {
        let spec = json!({
            "model": {"source": "local://guide"},
            "serving": {"name": deployment, "maxConcurrency": 4},
            "nodeName": node,
        });
        let mut replica = ModelReplica::new(name, serde_json::from_value(spec).expect("a spec"));
        replica
            .labels_mut()
            .insert(DEPLOYMENT_LABEL.to_owned(), deployment.to_owned());
        replica.status = Some(
            serde_json::from_value(json!({
                "conditions": [condition("2026-01-01T10:02:00Z", "Ready", "False")],
                "lastTermination": {
                    "signal": 9, "reason": "Killed", "message": "worker exited with signal 9",
                    "finishedAt": "2026-01-01T10:01:00Z",
                },
            }))
            .expect("a status"),
        );
        replica
    }

    fn node(name: &str) -> FleetNode {
        let mut node = FleetNode::new(name, serde_json::from_value(json!({})).expect("a spec"));
        let status = json!({"conditions": [condition("2026-01-01T10:03:00Z", "Ready", "True")]});
        node.status = Some(serde_json::from_value(status).expect("a status"));
        node
    }

    fn deployment(name: &str) -> ModelDeployment {
        let spec = json!({"model": {"source": "local://guide"}});
        let mut deployment = ModelDeployment::new(name, serde_json::from_value(spec).expect("a spec"));
        let status = json!({"conditions": [condition("2026-01-01T08:00:00Z", "Available", "True")]});
        deployment.status = Some(serde_json::from_value(status).expect("a status"));
        deployment
    }

    fn fleet() -> Objects {
        let name = |deployment: &str, suffix: &str| format!("{deployment}-{HASH}-{suffix}");
        let event = |time: &str, kind: &str, name: &str, reason: &str| {
            event(&format!("2026-01-01T{time}Z"), kind, name, reason, 1)
        };
        Objects {
            deployments: vec![deployment("guide"), deployment("guide-2")],
            replicas: vec![
                replica(&name("guide", "aaaaa"), "guide", "mini-1"),
                replica(&name("guide-2", "bbbbb"), "guide-2", "mini-2"),
            ],
            nodes: vec![node("mini-1"), node("mini-2")],
            events: vec![
                event("10:00:00", DEPLOYMENT, "guide", "ScaledUp"),
                event("10:00:01", REVISION, &format!("guide-{HASH}"), "Created"),
                event("10:00:02", REPLICA, &name("guide", "zzzzz"), "Deleted"),
                event("10:00:03", REPLICA, &name("guide-2", "yyyyy"), "Deleted"),
                event("10:00:04", NODE, "mini-2", "NodeNotReady"),
                event("09:00:00", NODE, "mini-1", "NodeReady"),
            ],
        }
    }

    /// Compares time, object, origin and reason of each entry.
    fn check(objects: &Objects, focus: Option<&Focus>, expect: &[&str]) {
        let since = "2026-01-01T09:30:00Z".parse().expect("a time");
        let timeline = Timeline::new(objects, focus, since);
        let lines: Vec<_> = timeline
            .entries
            .iter()
            .map(|entry| {
                let time = entry.time.to_string();
                let object = entry.object.replace(HASH, "H");
                format!("{} {object} {} {}", &time[11..19], entry.from, entry.reason)
            })
            .collect();
        assert_eq!(lines, expect);
    }

    #[test]
    fn deployment_has_its_replicas_deleted_ones_and_their_nodes() {
        check(
            &fleet(),
            Some(&Focus::Deployment("guide".to_owned())),
            &[
                "10:00:00 mdep/guide event ScaledUp",
                "10:00:01 mrev/guide-H event Created",
                "10:00:02 mrep/guide-H-zzzzz event Deleted",
                "10:01:00 mrep/guide-H-aaaaa exit Killed",
                "10:02:00 mrep/guide-H-aaaaa condition Ready=False R",
                "10:03:00 mac/mini-1 condition Ready=True R",
            ],
        );
    }

    #[test]
    fn replica_has_its_deployment_and_node_and_node_has_its_replicas() {
        let replica = Focus::Replica(format!("guide-2-{HASH}-bbbbb"));
        let of_replica = [
            "10:00:04 mac/mini-2 event NodeNotReady",
            "10:01:00 mrep/guide-2-H-bbbbb exit Killed",
            "10:02:00 mrep/guide-2-H-bbbbb condition Ready=False R",
            "10:03:00 mac/mini-2 condition Ready=True R",
        ];
        check(&fleet(), Some(&replica), &of_replica);
        check(&fleet(), Some(&Focus::Node("mini-2".to_owned())), &of_replica);
    }

    #[test]
    fn all_entries_appear_once_without_a_focus() {
        let mut fleet = fleet();
        let timeline = Timeline::new(&fleet, None, Timestamp::UNIX_EPOCH);
        assert_eq!(timeline.entries.len(), 6 + 2 + 2 * 2 + 2);
        let name = fleet.replicas[0].name_any();
        let mut exited = event("2026-01-01T10:01:00Z", REPLICA, &name, "WorkerExited", 3);
        exited.message = Some("Killed: worker exited with signal 9".to_owned());
        fleet.events.push(exited);
        let timeline = Timeline::new(&fleet, None, Timestamp::UNIX_EPOCH);
        assert_eq!(timeline.entries.len(), 14, "the event replaces the exit");
        let mut reasons = timeline.entries.iter().map(|entry| entry.reason.as_str());
        assert!(reasons.any(|reason| reason == "WorkerExited (×3)"));
    }

    #[test]
    fn deleted_object_with_events_exists() {
        let fleet = fleet();
        let replica = |name: String| fleet.has(&Focus::Replica(name));
        assert!(replica(format!("guide-{HASH}-aaaaa")));
        assert!(replica(format!("guide-{HASH}-zzzzz")));
        assert!(!replica(format!("guide-{HASH}-ccccc")));
        assert!(!fleet.has(&Focus::Deployment("other".to_owned())));
        assert!(fleet.has(&Focus::Node("mini-1".to_owned())));
    }
}

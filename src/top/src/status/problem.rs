//! Problems of a fleet, from the conditions of its objects.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::table_kind::TableKind;
use crate::view::{Condition, DeploymentRow, MacRow, ReplicaRow, View};
use rooflet_api::conditions::condition_type;

/// Maximum number of objects that a line names.
const MAX_NAMES: usize = 3;

/// Effect of a problem. More severe problems are first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Severity {
    /// A machine or a model does not serve.
    Error,
    /// The fleet serves, but not as requested.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error  ",
            Self::Warning => "warning",
        })
    }
}

/// Problem of one object, or the same problem of several objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Short kinds and names, such as `mdep/default/guide`.
    pub(super) objects: Vec<String>,
    pub(super) reason: String,
    pub(super) message: String,
    /// Start of the problem, of the first object.
    pub(super) since: Option<Timestamp>,
}

impl Finding {
    fn new(severity: Severity, object: &str, condition: &Condition) -> Self {
        Self {
            severity,
            objects: vec![object.to_owned()],
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: Some(condition.last_transition_time),
        }
    }

    /// Returns the objects as text.
    pub(super) fn objects(&self) -> String {
        let named: Vec<&str> = self.objects.iter().take(MAX_NAMES).map(String::as_str).collect();
        match self.objects.len() - named.len() {
            0 => named.join(", "),
            hidden => format!("{} and {hidden} more", named.join(", ")),
        }
    }
}

/// Returns the problems of a fleet, the most severe first. Objects with the same reason and message
/// share a finding.
pub(super) fn findings(view: &View) -> Vec<Finding> {
    let mut all: Vec<Finding> = view
        .problems
        .iter()
        .map(|problem| unread(problem.table, &problem.message))
        .collect();
    all.extend(view.macs.iter().flat_map(of_mac));
    all.extend(view.deployments.iter().flat_map(of_deployment));
    // The condition of a deployment contains the problems of its replicas.
    let is_covered = |replica: &ReplicaRow| {
        let name = |row: &DeploymentRow| {
            row.namespace == replica.namespace && replica.deployment.as_ref() == Some(&row.name)
        };
        view.deployments.iter().any(name)
    };
    all.extend(
        view.replicas
            .iter()
            .filter(|row| !is_covered(row))
            .flat_map(of_replica),
    );
    let mut merged: Vec<Finding> = Vec::new();
    for finding in all {
        let is_same = |known: &&mut Finding| {
            (known.severity, &known.reason, &known.message)
                == (finding.severity, &finding.reason, &finding.message)
        };
        match merged.iter_mut().find(is_same) {
            Some(known) => known.objects.extend(finding.objects),
            None => merged.push(finding),
        }
    }
    merged.sort_by_key(|finding| finding.severity);
    merged
}

/// Returns the problem of a kind that could not be read.
fn unread(table: TableKind, message: &str) -> Finding {
    Finding {
        severity: Severity::Error,
        objects: vec![table.title().to_owned()],
        reason: "Unreadable".to_owned(),
        message: message.to_owned(),
        since: None,
    }
}

fn of_mac(mac: &MacRow) -> Vec<Finding> {
    let object = format!("mac/{}", mac.name);
    let ready = Condition::find(&mac.conditions, condition_type::READY);
    let mut found = Vec::new();
    match ready {
        Some(ready) if ready.status == "True" => {}
        Some(ready) => found.push(Finding::new(Severity::Error, &object, ready)),
        None => found.push(Finding {
            severity: Severity::Error,
            objects: vec![object.clone()],
            reason: "NoStatus".to_owned(),
            message: "the agent has reported no status yet".to_owned(),
            since: mac.created,
        }),
    }
    found.extend(
        mac.problem_conditions()
            .map(|condition| Finding::new(Severity::Warning, &object, condition)),
    );
    let drained = Condition::find(&mac.conditions, condition_type::DRAINED);
    match drained {
        Some(drained) if mac.draining => found.push(Finding::new(Severity::Warning, &object, drained)),
        _ if mac.cordoned => found.push(Finding {
            severity: Severity::Warning,
            objects: vec![object],
            reason: "Cordoned".to_owned(),
            message: "no new replica is scheduled on the node; `rooflet uncordon NAME` permits it".to_owned(),
            since: None,
        }),
        Some(_) | None => {}
    }
    found
}

fn of_deployment(deployment: &DeploymentRow) -> Vec<Finding> {
    let object = format!("mdep/{}", deployment.id());
    let find = |kind, status| {
        Condition::find(&deployment.conditions, kind).filter(|condition| condition.status == status)
    };
    let mut found = Vec::new();
    let ready = Condition::find(&deployment.conditions, condition_type::READY);
    if let Some(ready) = ready.filter(|ready| ready.status != "True") {
        let serves = deployment.ready_replicas > 0;
        let severity = match serves {
            true => Severity::Warning,
            false => Severity::Error,
        };
        found.push(Finding::new(severity, &object, ready));
    }
    let warnings = [
        find(condition_type::DEGRADED, "True"),
        find(condition_type::PROGRESSING, "False"),
        find(condition_type::OBJECTIVES_MET, "False"),
        find(condition_type::PREDICTION_ACCURATE, "False"),
        find(condition_type::NAME_SHARED, "True"),
    ];
    for condition in warnings.into_iter().flatten() {
        // Several conditions may have the same cause.
        let is_known =
            |known: &Finding| known.message == condition.message || known.reason == condition.reason;
        if !found.iter().any(is_known) {
            found.push(Finding::new(Severity::Warning, &object, condition));
        }
    }
    if deployment.paused && !found.iter().any(|known| known.reason.contains("Paused")) {
        found.push(Finding {
            severity: Severity::Warning,
            objects: vec![object],
            reason: "Paused".to_owned(),
            message: "changed templates are not rolled out; `rooflet rollout resume` continues".to_owned(),
            since: None,
        });
    }
    found
}

/// Returns the problem of a replica without a deployment.
fn of_replica(replica: &ReplicaRow) -> Option<Finding> {
    let ready = Condition::find(&replica.conditions, condition_type::READY);
    let ready = ready.filter(|ready| ready.status != "True" && replica.phase != "Succeeded")?;
    let object = format!("mrep/{}", replica.id());
    Some(Finding::new(Severity::Error, &object, ready))
}

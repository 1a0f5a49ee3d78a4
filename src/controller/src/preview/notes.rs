//! Consequences of a change besides the replicas that move, start or stop.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::model::Model;
use super::{Change, ChangedObject, PreviewOptions, ProposedChange};
use crate::autoscaler::bounds_of;
use crate::deployment::served_name;
use crate::intent::Snapshot;
use crate::owner::controller;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_base::quantity::parse_bytes;
use rooflet_base::units::Bytes;
use rooflet_client::ObjectKey;

/// Returns the consequences, one sentence each. `model` has the objects after the change.
pub(super) fn notes(
    before: &Snapshot,
    model: &Model,
    change: &ProposedChange,
    options: &PreviewOptions<'_>,
) -> Vec<String> {
    match (&change.object, &change.change) {
        (ChangedObject::Node(name), Change::Delete) => deleted_node(before, name),
        (ChangedObject::Node(_), Change::Patch(_)) => Vec::new(),
        (ChangedObject::Deployment(namespace, name), change) => {
            let key = ObjectKey::new(Some(namespace), name);
            let Some(deployment) = find(before, &key) else {
                return Vec::new();
            };
            match change {
                Change::Delete => deleted_deployment(before, deployment, options),
                Change::Patch(patch) => {
                    let wanted = patch
                        .pointer("/spec/replicas")
                        .and_then(serde_json::Value::as_i64);
                    let after = find(&model.snapshot, &key);
                    let scaled = wanted.zip(after);
                    let note = scaled.and_then(|(wanted, after)| autoscaled(after, wanted, model));
                    note.into_iter().collect()
                }
            }
        }
    }
}

fn find<'s>(snapshot: &'s Snapshot, key: &ObjectKey) -> Option<&'s ModelDeployment> {
    let mut deployments = snapshot.deployments.iter().map(AsRef::as_ref);
    deployments.find(|deployment: &&ModelDeployment| ObjectKey::of(*deployment) == *key)
}

/// Returns the effect of the autoscaler on a replica count that a user sets.
fn autoscaled(deployment: &ModelDeployment, wanted: i64, model: &Model) -> Option<String> {
    let bounds = bounds_of(deployment, model.now)?;
    let (least, most) = (*bounds.start(), *bounds.end());
    let shown = shown(deployment);
    let range = format!("within {least} to {most}");
    Some(match i32::try_from(wanted) {
        Ok(wanted) if bounds.contains(&wanted) => format!(
            "the autoscaler of {shown} changes spec.replicas by the load, {range} (spec.autoscaling), so this count may \
             not last"
        ),
        Ok(_) | Err(_) => format!(
            "the autoscaler sets spec.replicas of {shown} to {}, because spec.autoscaling permits counts {range}",
            deployment.spec.replicas
        ),
    })
}

fn deleted_deployment(
    before: &Snapshot,
    deployment: &ModelDeployment,
    options: &PreviewOptions<'_>,
) -> Vec<String> {
    let uid = deployment.uid();
    let replicas = before.replicas.iter().map(AsRef::as_ref);
    let own = replicas.filter(|replica: &&ModelReplica| {
        controller(&replica.metadata).is_some_and(|owner| Some(&owner.uid) == uid.as_ref())
    });
    let mut notes: Vec<String> = freed(own).into_iter().collect();
    let model = served_name(deployment);
    let namespace = deployment.metadata.namespace.as_deref();
    let others: Vec<_> = before
        .deployments
        .iter()
        .map(AsRef::as_ref)
        .filter(|other: &&ModelDeployment| {
            other.metadata.namespace.as_deref() == namespace
                && other.metadata.name != deployment.metadata.name
        })
        .collect();
    let others_serve: Vec<_> = others
        .iter()
        .filter(|other| served_name(other) == model)
        .map(|other| self::shown(other))
        .collect();
    if !others_serve.is_empty() {
        let others = others_serve.join(", ");
        notes.push(format!("the model name {model:?} is still served by {others}"));
        return notes;
    }
    notes.push(format!(
        "no deployment serves the model name {model:?}: gateways reject its requests with 404"
    ));
    let falls_back =
        |other: &&&ModelDeployment| other.spec.routing.fallbacks.iter().any(|name| name == model);
    notes.extend(others.iter().filter(falls_back).map(|other| {
        format!(
            "{} has {model:?} in spec.routing.fallbacks: gateways skip this fallback",
            self::shown(other)
        )
    }));
    match &options.keys {
        None => notes.push("API keys are not checked, because they could not be listed".to_owned()),
        Some(keys) => {
            let of_namespace = keys
                .iter()
                .filter(|key| key.metadata.namespace.as_deref() == namespace);
            let permits = of_namespace.filter(|key| key.spec.models.iter().any(|name| name == model));
            notes.extend(permits.map(|key| {
                let key_name = format!("{}/{}", namespace.unwrap_or_default(), key.name_any());
                match key.spec.models.len() {
                    1 => format!("the API key {key_name} permits only {model:?}, and no other model"),
                    _ => format!("the API key {key_name} has {model:?} in spec.models"),
                }
            }));
        }
    }
    notes
}

/// Returns what the replicas reserve on their nodes.
fn freed<'r>(replicas: impl Iterator<Item = &'r ModelReplica>) -> Option<String> {
    let (mut memory, mut chip_time_percent, mut nodes) = (Bytes(0), 0.0, BTreeSet::new());
    for replica in replicas {
        let (Some(node), Some(status)) = (&replica.spec.node_name, &replica.status) else {
            continue;
        };
        nodes.insert(node.as_str());
        let reserved = status.reserved_memory.as_deref().unwrap_or_default();
        memory += parse_bytes(reserved).unwrap_or(Bytes(0));
        let admission = status.admission.as_ref();
        chip_time_percent += admission.map_or(0.0, |admission| admission.chip_time_percent);
    }
    if memory == Bytes(0) {
        return None;
    }
    let [first, others @ ..] = &nodes.into_iter().collect::<Vec<_>>()[..] else {
        return None;
    };
    let on = match others {
        [] => (*first).to_owned(),
        [second] => format!("{first} and {second}"),
        others => format!("{first} and {} other nodes", others.len()),
    };
    let chip_time = match chip_time_percent {
        none if none < 0.5 => String::new(),
        percent => format!(", and {percent:.0} % of a chip's time"),
    };
    Some(format!("frees {memory} of reserved memory on {on}{chip_time}"))
}

fn deleted_node(before: &Snapshot, name: &str) -> Vec<String> {
    let replicas = before.replicas.iter();
    let has_replicas = replicas
        .filter(|replica| replica.metadata.deletion_timestamp.is_none())
        .any(|replica| replica.spec.node_name.as_deref() == Some(name));
    let mut notes = Vec::new();
    if has_replicas {
        notes.push(format!(
            "the replicas of {name} stop before replacements start: to move them first, run `rooflet drain {name}`"
        ));
    }
    notes.push(format!(
        "the certificates of {name} are revoked: to return, its Mac must join again with a new token"
    ));
    notes
}

fn shown(deployment: &ModelDeployment) -> String {
    let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", deployment.name_any())
}

//! Ownership and adoption of revisions and replicas.
//!
//! Like Kubernetes' ControllerRefManager, a deployment adopts objects with its label that have no
//! controller. `kubectl delete --cascade=orphan` creates such orphans.

use std::collections::HashMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::owner::controller;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, controller_reference};
use rooflet_api::v1alpha1::ModelDeployment;

/// Namespace and name of a deployment.
type DeploymentKey<'a> = (Option<&'a str>, &'a str);

/// Relation of a revision or replica to the deployment of its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation<'a> {
    /// The deployment controls the object.
    Controlled,
    /// The object has no controller. The deployment of this name adopts it.
    Orphan(&'a str),
    /// The object has no label or another controller, or cannot be adopted.
    Foreign,
}

pub(super) fn relation<K: Resource>(object: &K) -> Relation<'_> {
    let label = object.labels().get(DEPLOYMENT_LABEL).map(String::as_str);
    let is_adoptable =
        object.meta().deletion_timestamp.is_none() && !object.annotations().contains_key(MIRROR_ANNOTATION);
    match (label, controller(object.meta())) {
        (Some(label), Some(controller))
            if controller.kind == ModelDeployment::kind(&()) && controller.name == label =>
        {
            Relation::Controlled
        }
        (Some(label), None) if is_adoptable => Relation::Orphan(label),
        (Some(_) | None, _) => Relation::Foreign,
    }
}

/// Objects of one kind by owner.
pub(super) struct Owned<'a, K> {
    by_controller: HashMap<&'a str, Vec<&'a K>>,
    orphans: HashMap<DeploymentKey<'a>, Vec<&'a K>>,
    foreign: HashMap<Option<&'a str>, Vec<&'a K>>,
}

impl<'a, K: Resource<DynamicType = ()>> Owned<'a, K> {
    pub(super) fn new(objects: &'a [Arc<K>]) -> Self {
        let mut owned = Self {
            by_controller: HashMap::new(),
            orphans: HashMap::new(),
            foreign: HashMap::new(),
        };
        for object in objects {
            let namespace = object.meta().namespace.as_deref();
            if let Some(controller) = controller(object.meta()) {
                let controlled = owned.by_controller.entry(&controller.uid).or_default();
                controlled.push(object.as_ref());
            }
            match relation(object.as_ref()) {
                Relation::Controlled => {}
                Relation::Orphan(label) => {
                    owned.orphans.entry((namespace, label)).or_default().push(object);
                }
                Relation::Foreign => owned.foreign.entry(namespace).or_default().push(object),
            }
        }
        owned
    }

    /// Returns the objects that the deployment controls.
    pub(super) fn of(&self, deployment: &ModelDeployment) -> Vec<&'a K> {
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        self.by_controller.get(uid).cloned().unwrap_or_default()
    }

    /// Returns the objects that the deployment can adopt.
    pub(super) fn orphans_of(&self, deployment: &'a ModelDeployment) -> Vec<&'a K> {
        let meta = &deployment.metadata;
        if meta.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let key = (
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        self.orphans.get(&key).cloned().unwrap_or_default()
    }

    /// Returns the objects in the deployment's namespace that no deployment of their label controls
    /// and that cannot be adopted.
    pub(super) fn foreign_in_namespace_of(&self, deployment: &'a ModelDeployment) -> Vec<&'a K> {
        let namespace = deployment.metadata.namespace.as_deref();
        self.foreign.get(&namespace).cloned().unwrap_or_default()
    }
}

/// Returns the merge patch that makes the deployment the controller of the orphan. The server
/// rejects the patch if the orphan has changed.
pub(super) fn adoption<K: Resource>(deployment: &ModelDeployment, orphan: &K) -> Value {
    let owners = orphan.owner_references().iter().cloned();
    let owners: Vec<_> = owners.chain(controller_reference(deployment)).collect();
    json!({ "metadata": { "resourceVersion": orphan.resource_version(), "ownerReferences": owners } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::ModelRevision;

    fn deployment(name: &str, uid: &str) -> ModelDeployment {
        let mut deployment = ModelDeployment::test(name, json!({}));
        deployment.metadata.uid = Some(uid.to_owned());
        deployment
    }

    fn revision(name: &str, label: Option<&str>, owner: Option<&ModelDeployment>) -> Arc<ModelRevision> {
        let mut revision = ModelRevision::test(name, json!({}));
        revision.metadata.resource_version = Some("7".to_owned());
        revision.metadata.labels =
            label.map(|label| [(DEPLOYMENT_LABEL.to_owned(), label.to_owned())].into());
        revision.metadata.owner_references =
            owner.map(|owner| controller_reference(owner).into_iter().collect());
        Arc::new(revision)
    }

    #[test]
    fn deployment_adopts_labelled_objects_without_a_controller() {
        let guide = deployment("guide", "uid-2");
        let predecessor = deployment("guide", "uid-1");
        let mut elsewhere = deployment("guide", "uid-3");
        elsewhere.metadata.namespace = Some("other".to_owned());
        let mut ending = revision("ending", Some("guide"), None);
        Arc::make_mut(&mut ending).metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        let mut mirror = revision("mirror", Some("guide"), None);
        Arc::make_mut(&mut mirror)
            .annotations_mut()
            .insert(MIRROR_ANNOTATION.to_owned(), "guide.yaml".to_owned());
        let objects = [
            revision("own", Some("guide"), Some(&guide)),
            revision("orphan", Some("guide"), None),
            revision("of-its-predecessor", Some("guide"), Some(&predecessor)),
            revision("of-another", Some("guide"), Some(&deployment("canary", "uid-4"))),
            revision("by-hand", None, None),
            ending,
            mirror,
        ];
        let owned = Owned::new(&objects);
        let names = |found: Vec<&ModelRevision>| -> Vec<String> {
            found.into_iter().map(ResourceExt::name_any).collect()
        };
        assert_eq!(names(owned.of(&guide)), ["own"]);
        assert_eq!(names(owned.orphans_of(&guide)), ["orphan"]);
        assert_eq!(
            names(owned.foreign_in_namespace_of(&guide)),
            ["of-another", "by-hand", "ending", "mirror"]
        );
        assert!(owned.orphans_of(&elsewhere).is_empty());
        assert!(owned.foreign_in_namespace_of(&elsewhere).is_empty());
        let mut deleted = guide.clone();
        deleted.metadata.deletion_timestamp = objects[5].metadata.deletion_timestamp.clone();
        assert!(owned.orphans_of(&deleted).is_empty());
    }

    #[test]
    fn adoption_keeps_other_owners_and_requires_the_observed_version() {
        let mut other = controller_reference(&deployment("list", "uid-9")).unwrap();
        other.controller = None;
        let mut orphan = revision("orphan", Some("guide"), None);
        Arc::make_mut(&mut orphan).metadata.owner_references = Some(vec![other]);
        let patch = adoption(&deployment("guide", "uid-2"), orphan.as_ref());
        let metadata = &patch["metadata"];
        assert_eq!(metadata["resourceVersion"], "7");
        let owners = metadata["ownerReferences"].as_array().unwrap();
        let owners: Vec<_> = owners
            .iter()
            .map(|owner| (owner["uid"].as_str().unwrap(), owner["controller"] == true))
            .collect();
        assert_eq!(owners, [("uid-9", false), ("uid-2", true)]);
    }
}

//! Whose revisions and replicas are, and which of nobody's a deployment takes over, as Kubernetes' ControllerRefManager
//! does: those that carry its label and that no controller has. `kubectl delete --cascade=orphan` leaves such.

use std::collections::HashMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::world::controller;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, controller_reference};
use rooflet_api::v1alpha1::ModelDeployment;

/// A namespace and the name of a deployment in it.
type Place<'a> = (Option<&'a str>, &'a str);

/// Objects of one kind by whose they are.
pub(super) struct Owned<'a, K> {
    by_controller: HashMap<&'a str, Vec<&'a K>>,
    orphans: HashMap<Place<'a>, Vec<&'a K>>,
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
            let meta = object.meta();
            let namespace = meta.namespace.as_deref();
            let label = object.labels().get(DEPLOYMENT_LABEL).map(String::as_str);
            let controller = controller(meta);
            if let Some(controller) = controller {
                let of_it = owned.by_controller.entry(&controller.uid).or_default();
                of_it.push(object.as_ref());
            }
            let is_free =
                meta.deletion_timestamp.is_none() && !object.annotations().contains_key(MIRROR_ANNOTATION);
            match (label, controller) {
                (Some(label), Some(controller))
                    if controller.kind == ModelDeployment::kind(&()) && controller.name == label => {}
                (Some(label), None) if is_free => {
                    owned.orphans.entry((namespace, label)).or_default().push(object);
                }
                (Some(_) | None, _) => owned.foreign.entry(namespace).or_default().push(object),
            }
        }
        owned
    }

    /// What the deployment controls.
    pub(super) fn of(&self, deployment: &ModelDeployment) -> Vec<&'a K> {
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        self.by_controller.get(uid).cloned().unwrap_or_default()
    }

    /// What the deployment should control and nobody does.
    pub(super) fn orphans_of(&self, deployment: &'a ModelDeployment) -> Vec<&'a K> {
        let meta = &deployment.metadata;
        if meta.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let place = (
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        self.orphans.get(&place).cloned().unwrap_or_default()
    }

    /// Objects in the deployment's namespace that belong to no deployment and cannot be adopted.
    pub(super) fn foreign_beside(&self, deployment: &'a ModelDeployment) -> Vec<&'a K> {
        let namespace = deployment.metadata.namespace.as_deref();
        self.foreign.get(&namespace).cloned().unwrap_or_default()
    }
}

/// The merge patch that makes the deployment control the orphan, refused if anybody else has written it meanwhile.
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
    fn a_deployment_takes_over_what_bears_its_label_and_nobody_controls() {
        let guide = deployment("guide", "uid-2");
        let before = deployment("guide", "uid-1");
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
            revision("of-its-forerunner", Some("guide"), Some(&before)),
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
            names(owned.foreign_beside(&guide)),
            ["of-another", "by-hand", "ending", "mirror"]
        );
        assert!(owned.orphans_of(&elsewhere).is_empty() && owned.foreign_beside(&elsewhere).is_empty());
        let mut deleted = guide.clone();
        deleted.metadata.deletion_timestamp = objects[5].metadata.deletion_timestamp.clone();
        assert!(owned.orphans_of(&deleted).is_empty());
    }

    #[test]
    fn an_adoption_leaves_other_owners_and_asks_for_the_version_that_was_seen() {
        let mut other = controller_reference(&deployment("list", "uid-9")).unwrap();
        other.controller = None;
        let mut orphan = revision("orphan", Some("guide"), None);
        Arc::make_mut(&mut orphan).metadata.owner_references = Some(vec![other]);
        let patch = adoption(&deployment("guide", "uid-2"), orphan.as_ref());
        let metadata = &patch["metadata"];
        assert_eq!(metadata["resourceVersion"], "7");
        let owners = metadata["ownerReferences"].as_array().unwrap();
        let told: Vec<_> = owners
            .iter()
            .map(|owner| (owner["uid"].as_str().unwrap(), owner["controller"] == true))
            .collect();
        assert_eq!(told, [("uid-9", false), ("uid-2", true)]);
    }
}

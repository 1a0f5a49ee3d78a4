//! Objects by the deployment whose plan reads them. A pass for one deployment reads its own objects
//! only, however many objects the server has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use super::ownership::{Relation, relation};
use super::served_names::served_name;
use crate::intent::Snapshot;
use crate::owner::controller;
use crate::queue::Priority;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision};
use rooflet_client::ObjectKey;

/// Namespace and served name.
type ServedName = (Option<String>, String);

/// Deployments whose plan may differ after a change.
pub(crate) type Affected = BTreeMap<ObjectKey, Priority>;

/// Index of the deployments and their objects; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct DeploymentIndex {
    deployments: BTreeMap<ObjectKey, Arc<ModelDeployment>>,
    /// Deployments by the name under which clients request their model.
    served: HashMap<ServedName, BTreeSet<ObjectKey>>,
    revisions: Related<ModelRevision>,
    replicas: Related<ModelReplica>,
    /// Deployments that are not complete. Their plans depend on the fleet most.
    unsettled: BTreeSet<ObjectKey>,
    /// Deployments with fewer replicas than desired.
    incomplete: BTreeSet<ObjectKey>,
    autoscaled: BTreeSet<ObjectKey>,
}

/// Objects of one kind by the deployments that they name.
#[derive(Debug)]
struct Related<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    of: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// Objects by namespace that no deployment of their label controls or adopts.
    foreign: HashMap<Option<String>, BTreeSet<ObjectKey>>,
}

impl<K> Default for Related<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            of: HashMap::new(),
            foreign: HashMap::new(),
        }
    }
}

/// Returns the deployments that the object names: by its label, and as its controller.
fn named<K: Resource>(object: &K) -> BTreeSet<ObjectKey> {
    let label = object.labels().get(DEPLOYMENT_LABEL).map(String::as_str);
    let controller = controller(object.meta())
        .filter(|controller| controller.kind == ModelDeployment::kind(&()))
        .map(|controller| controller.name.as_str());
    let namespace = object.meta().namespace.as_deref();
    let names = label.into_iter().chain(controller);
    names.map(|name| ObjectKey::new(namespace, name)).collect()
}

/// Returns the key of the deployment in the object's label.
pub(crate) fn labelled<K: Resource>(object: &K) -> Option<ObjectKey> {
    let label = object.labels().get(DEPLOYMENT_LABEL)?;
    Some(ObjectKey::new(object.meta().namespace.as_deref(), label))
}

impl<K: Resource<DynamicType = ()>> Related<K> {
    /// Adds, replaces or, with `None`, removes an object. Returns the deployments that it named or
    /// names.
    fn set(&mut self, key: &ObjectKey, object: Option<&Arc<K>>) -> BTreeSet<ObjectKey> {
        let mut affected = BTreeSet::new();
        if let Some(before) = self.objects.remove(key) {
            affected = named(before.as_ref());
            for deployment in &affected {
                remove(&mut self.of, deployment, key);
            }
            remove(&mut self.foreign, &key.namespace, key);
        }
        if let Some(object) = object {
            for deployment in named(object.as_ref()) {
                self.of.entry(deployment.clone()).or_default().insert(key.clone());
                affected.insert(deployment);
            }
            if relation(object.as_ref()) == Relation::Foreign {
                let foreign = self.foreign.entry(key.namespace.clone()).or_default();
                foreign.insert(key.clone());
            }
            self.objects.insert(key.clone(), object.clone());
        }
        affected
    }

    fn of(&self, deployment: &ObjectKey) -> impl Iterator<Item = &Arc<K>> {
        let keys = self.of.get(deployment).into_iter().flatten();
        keys.filter_map(|key| self.objects.get(key))
    }

    /// Returns the objects that the deployment's plan reads, ordered by namespace and name.
    fn with_foreign(&self, deployment: &ObjectKey) -> Vec<Arc<K>> {
        let own = self.of.get(deployment).into_iter().flatten();
        let foreign = self.foreign.get(&deployment.namespace).into_iter().flatten();
        let keys: BTreeSet<_> = own.chain(foreign).collect();
        keys.into_iter()
            .filter_map(|key| self.objects.get(key).cloned())
            .collect()
    }
}

fn remove<K: Eq + std::hash::Hash>(sets: &mut HashMap<K, BTreeSet<ObjectKey>>, of: &K, key: &ObjectKey) {
    if let Some(set) = sets.get_mut(of) {
        set.remove(key);
        if set.is_empty() {
            sets.remove(of);
        }
    }
}

impl DeploymentIndex {
    /// Adds, updates or, with `None`, removes a deployment.
    pub(crate) fn set_deployment(
        &mut self,
        key: &ObjectKey,
        deployment: Option<&Arc<ModelDeployment>>,
    ) -> Affected {
        let mut affected = Affected::new();
        let before = self.deployments.get(key);
        if before.zip(deployment).is_some_and(|(a, b)| Arc::ptr_eq(a, b)) {
            return affected;
        }
        let identity = |deployment: &Arc<ModelDeployment>| {
            let meta = &deployment.metadata;
            let name = (key.namespace.clone(), served_name(deployment).to_owned());
            (name, meta.uid.clone(), meta.deletion_timestamp.is_some())
        };
        let (old, new) = (before.map(identity), deployment.map(identity));
        if old != new {
            for (name, _, _) in old.into_iter().chain(new.clone()) {
                remove(&mut self.served, &name, key);
                let namesakes = self.served.get(&name).into_iter().flatten();
                affected.extend(namesakes.map(|namesake| (namesake.clone(), Priority::Dependent)));
            }
            if let Some((name, _, _)) = new {
                self.served.entry(name).or_default().insert(key.clone());
            }
        }
        match deployment {
            Some(deployment) => {
                affected.insert(key.clone(), priority(deployment));
                self.deployments.insert(key.clone(), deployment.clone());
            }
            None => {
                self.deployments.remove(key);
            }
        }
        set_member(
            &mut self.unsettled,
            key,
            deployment.is_some_and(|one| is_unsettled(one)),
        );
        let is_autoscaled = deployment.is_some_and(|one| one.spec.autoscaling.is_some());
        set_member(&mut self.autoscaled, key, is_autoscaled);
        self.count_replicas(key);
        affected
    }

    /// Adds, updates or, with `None`, removes a revision.
    pub(crate) fn set_revision(
        &mut self,
        key: &ObjectKey,
        revision: Option<&Arc<ModelRevision>>,
    ) -> Affected {
        let was_foreign = self.is_foreign_revision(key);
        let mut affected: Affected = self
            .revisions
            .set(key, revision)
            .into_iter()
            .map(|deployment| (deployment, Priority::Dependent))
            .collect();
        if was_foreign || self.is_foreign_revision(key) {
            // A name of a revision may be free now. Foreign revisions are rare.
            let in_namespace = self
                .unsettled
                .iter()
                .filter(|deployment| deployment.namespace == key.namespace);
            affected.extend(in_namespace.map(|deployment| (deployment.clone(), Priority::Resync)));
        }
        affected
    }

    fn is_foreign_revision(&self, key: &ObjectKey) -> bool {
        let foreign = self.revisions.foreign.get(&key.namespace);
        foreign.is_some_and(|foreign| foreign.contains(key))
    }

    /// Adds, updates or, with `None`, removes a replica.
    pub(crate) fn set_replica(&mut self, key: &ObjectKey, replica: Option<&Arc<ModelReplica>>) -> Affected {
        let affected = self.replicas.set(key, replica);
        for deployment in &affected {
            self.count_replicas(deployment);
        }
        affected
            .into_iter()
            .map(|deployment| (deployment, Priority::Dependent))
            .collect()
    }

    /// Updates whether replicas of the deployment are missing.
    fn count_replicas(&mut self, key: &ObjectKey) {
        let is_incomplete = self.deployments.get(key).is_some_and(|deployment| {
            let known = deployment.status.as_ref().map_or(0, |status| status.replicas);
            let desired = deployment.spec.replicas;
            let existing = || {
                let own = self.replicas.of(key);
                own.filter(|replica| {
                    replica.metadata.deletion_timestamp.is_none()
                        && labelled(replica.as_ref()).as_ref() == Some(key)
                })
                .count()
            };
            deployment.metadata.deletion_timestamp.is_none()
                && known < desired
                && usize::try_from(desired).is_ok_and(|desired| existing() < desired)
        });
        set_member(&mut self.incomplete, key, is_incomplete);
    }

    /// Returns whether a deployment has fewer replicas than desired.
    pub(crate) fn are_replicas_missing(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// Returns the keys of all deployments.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.deployments.keys()
    }

    /// Returns the deployments that are not complete.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &ObjectKey> {
        self.unsettled.iter()
    }

    /// Returns whether the deployment is not complete.
    pub(crate) fn is_unsettled(&self, deployment: &ObjectKey) -> bool {
        self.unsettled.contains(deployment)
    }

    /// Returns the deployments whose number of replicas the autoscaler sets.
    pub(crate) fn autoscaled(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<ModelDeployment>)> {
        let keys = self.autoscaled.iter();
        keys.filter_map(|key| self.deployments.get_key_value(key))
    }

    pub(crate) fn is_autoscaled(&self, deployment: &ObjectKey) -> bool {
        self.autoscaled.contains(deployment)
    }

    /// Returns the replicas that name the deployment.
    pub(crate) fn replicas_of(&self, deployment: &ObjectKey) -> impl Iterator<Item = &Arc<ModelReplica>> {
        self.replicas.of(deployment)
    }

    /// Returns the objects that the deployment's plan reads: the deployment, its namesakes, and the
    /// revisions and replicas that belong to it or may conflict with it. `None` if the deployment
    /// does not exist.
    pub(crate) fn snapshot(&self, key: &ObjectKey) -> Option<Snapshot> {
        let deployment = self.deployments.get(key)?;
        let name = (key.namespace.clone(), served_name(deployment).to_owned());
        let namesakes = self.served.get(&name).into_iter().flatten();
        Some(Snapshot {
            deployments: namesakes
                .filter_map(|namesake| self.deployments.get(namesake).cloned())
                .collect(),
            revisions: self.revisions.with_foreign(key),
            replicas: self.replicas.of(key).cloned().collect(),
            ..Snapshot::default()
        })
    }
}

fn set_member(set: &mut BTreeSet<ObjectKey>, key: &ObjectKey, is_member: bool) {
    match is_member {
        true => drop(set.insert(key.clone())),
        false => drop(set.remove(key)),
    }
}

/// Returns the priority of a changed deployment.
fn priority(deployment: &ModelDeployment) -> Priority {
    let observed = deployment
        .status
        .as_ref()
        .and_then(|status| status.observed_generation)
        // The definition's default for new objects is -1.
        .filter(|generation| *generation >= 0);
    match observed {
        None => Priority::Created,
        Some(_) if observed != deployment.metadata.generation => Priority::Changed,
        Some(_) => Priority::Dependent,
    }
}

/// Returns whether the deployment is rejected, or has other replicas than desired.
fn is_unsettled(deployment: &ModelDeployment) -> bool {
    let desired = deployment.spec.replicas;
    deployment.status.as_ref().is_none_or(|status| {
        status.observed_generation != deployment.metadata.generation
            || [
                status.replicas,
                status.updated_replicas,
                status.ready_replicas,
                status.available_replicas,
            ] != [desired; 4]
            || !is_true(&status.conditions, condition_type::ADMITTED)
    })
}

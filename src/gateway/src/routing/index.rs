//! Index of the watched objects by model. A changed object updates the entry of its own model; a
//! changed node updates the models with replicas on the node.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::ResourceExt;

use super::facts::{DeploymentFacts, NodeFacts, ReplicaFacts};
use super::table::{Model, ModelKey, RoutingTable};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_client::ObjectKey;

/// Objects of one model, by name.
#[derive(Debug, Default)]
struct Sources {
    deployments: BTreeMap<String, DeploymentFacts>,
    replicas: BTreeMap<String, ReplicaFacts>,
}

/// Facts about all watched objects, and the routing table derived from them.
#[derive(Debug, Default)]
pub(crate) struct RouteIndex {
    models: HashMap<ModelKey, Sources>,
    /// Served name of each deployment.
    deployments: HashMap<ObjectKey, String>,
    /// Served name and node of each replica.
    replicas: HashMap<ObjectKey, (String, Option<String>)>,
    nodes: HashMap<String, NodeFacts>,
    /// Replicas on each node.
    residents: HashMap<String, BTreeSet<ObjectKey>>,
    /// Models whose entry in the table may be outdated.
    outdated: BTreeSet<ModelKey>,
    table: RoutingTable,
}

impl RouteIndex {
    /// Creates the index of the given objects.
    pub(crate) fn of<'a>(
        deployments: impl IntoIterator<Item = &'a ModelDeployment>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
    ) -> Self {
        let mut index = Self::default();
        for node in nodes {
            index.set_node(&node.name_any(), Some(node));
        }
        for deployment in deployments {
            index.set_deployment(&ObjectKey::of(deployment), Some(deployment));
        }
        for replica in replicas {
            index.set_replica(&ObjectKey::of(replica), Some(replica));
        }
        index
    }

    /// Adds, updates or, with `None`, removes a deployment.
    pub(crate) fn set_deployment(&mut self, key: &ObjectKey, deployment: Option<&ModelDeployment>) {
        let facts = deployment.map(DeploymentFacts::of);
        let known = self.deployments.get(key).and_then(|served| {
            let sources = self.models.get(&model_key(key, served))?;
            sources.deployments.get(&key.name)
        });
        if known == facts.as_ref() {
            return;
        }
        if let Some(served) = self.deployments.remove(key) {
            self.sources(model_key(key, &served))
                .deployments
                .remove(&key.name);
        }
        if let Some(facts) = facts {
            self.deployments.insert(key.clone(), facts.served_name.clone());
            let model = model_key(key, &facts.served_name);
            self.sources(model).deployments.insert(key.name.clone(), facts);
        }
    }

    /// Adds, updates or, with `None`, removes a replica.
    pub(crate) fn set_replica(&mut self, key: &ObjectKey, replica: Option<&ModelReplica>) {
        let facts = replica.and_then(ReplicaFacts::of);
        let known = self.replicas.get(key).and_then(|(served, _)| {
            let sources = self.models.get(&model_key(key, served))?;
            sources.replicas.get(&key.name)
        });
        if known == facts.as_ref() {
            return;
        }
        if let Some((served, node)) = self.replicas.remove(key) {
            self.sources(model_key(key, &served)).replicas.remove(&key.name);
            if let Some(node) = node
                && let Some(residents) = self.residents.get_mut(&node)
            {
                residents.remove(key);
                if residents.is_empty() {
                    self.residents.remove(&node);
                }
            }
        }
        if let Some(facts) = facts {
            if let Some(node) = &facts.node {
                let residents = self.residents.entry(node.clone()).or_default();
                residents.insert(key.clone());
            }
            let (served, node) = (facts.served_name.clone(), facts.node.clone());
            let model = model_key(key, &served);
            self.replicas.insert(key.clone(), (served, node));
            self.sources(model).replicas.insert(key.name.clone(), facts);
        }
    }

    /// Adds, updates or, with `None`, removes a node.
    pub(crate) fn set_node(&mut self, name: &str, node: Option<&FleetNode>) {
        let facts = node.map(NodeFacts::of);
        if self.nodes.get(name) == facts.as_ref() {
            return;
        }
        match facts {
            Some(facts) => drop(self.nodes.insert(name.to_owned(), facts)),
            None => drop(self.nodes.remove(name)),
        }
        for replica in self.residents.get(name).into_iter().flatten() {
            if let Some((served, _)) = self.replicas.get(replica) {
                self.outdated.insert(model_key(replica, served));
            }
        }
    }

    fn sources(&mut self, model: ModelKey) -> &mut Sources {
        self.outdated.insert(model.clone());
        self.models.entry(model).or_default()
    }

    /// Updates the entries of changed models. Returns whether the table changed.
    pub(crate) fn update(&mut self) -> bool {
        let mut changed = false;
        for key in std::mem::take(&mut self.outdated) {
            let (model, silent) = self.entry(&key);
            changed |= self.table.set(&key, model, silent);
            let is_empty = |sources: &Sources| sources.deployments.is_empty() && sources.replicas.is_empty();
            if self.models.get(&key).is_some_and(is_empty) {
                self.models.remove(&key);
            }
        }
        changed
    }

    /// Returns the table at the last [`RouteIndex::update`].
    pub(crate) fn table(&self) -> &RoutingTable {
        &self.table
    }

    /// Returns the model, and its replicas on silent nodes.
    fn entry(&self, key: &ModelKey) -> (Option<Model>, BTreeSet<u64>) {
        let Some(sources) = self.models.get(key) else {
            return (None, BTreeSet::new());
        };
        let new = || Model {
            namespace: key.0.clone(),
            name: key.1.clone(),
            created: i64::MAX,
            ..Model::default()
        };
        let mut model = None;
        for deployment in sources.deployments.values() {
            deployment.add_to(model.get_or_insert_with(new));
        }
        let mut silent = BTreeSet::new();
        for replica in sources.replicas.values() {
            let node = replica.node.as_ref().and_then(|node| self.nodes.get(node));
            if node == Some(&NodeFacts::Silent) {
                silent.insert(replica.id);
            }
            replica.add_to(&mut model, node.and_then(NodeFacts::host), new);
        }
        (model, silent)
    }
}

#[cfg(test)]
impl RoutingTable {
    pub(crate) fn new<'a>(
        deployments: impl IntoIterator<Item = &'a ModelDeployment>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
    ) -> Self {
        let mut index = RouteIndex::of(deployments, replicas, nodes);
        index.update();
        index.table
    }
}

/// Returns the key of the model that an object serves.
fn model_key(object: &ObjectKey, served_name: &str) -> ModelKey {
    (
        object.namespace.clone().unwrap_or_default(),
        served_name.to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::{deployment, node, replica};

    /// Object and its new fields; without fields, the object is removed.
    #[derive(Debug, Clone)]
    enum Change {
        Deployment(&'static str, Option<&'static str>),
        Replica(&'static str, Option<String>),
        Node(&'static str, Option<&'static str>),
    }

    fn change() -> impl Strategy<Value = Change> {
        let deployment = (
            prop_oneof![Just("a"), Just("b"), Just("other/a")],
            prop_oneof![Just(""), Just("serves=a"), Just("serves=b replicas=0")],
            any::<bool>(),
        );
        let replica = (
            prop_oneof![Just("r1"), Just("r2"), Just("r3"), Just("other/r1")],
            prop_oneof![Just("serves=a"), Just("serves=b"), Just("serves=c")],
            prop_oneof![
                Just(""),
                Just("on=m"),
                Just("on=n ready"),
                Just("on=m ready"),
                Just("unplaced")
            ],
            any::<bool>(),
        );
        let node = (
            prop_oneof![Just("m"), Just("n")],
            prop_oneof![Just("True"), Just("Unknown")],
            any::<bool>(),
        );
        prop_oneof![
            deployment.prop_map(|(key, fields, exists)| Change::Deployment(key, exists.then_some(fields))),
            replica.prop_map(|(key, serves, state, exists)| {
                Change::Replica(key, exists.then(|| format!("{serves} {state}")))
            }),
            node.prop_map(|(name, truth, exists)| Change::Node(name, exists.then_some(truth))),
        ]
    }

    fn key(text: &str) -> ObjectKey {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        ObjectKey::new(Some(namespace), name)
    }

    proptest! {
        #[test]
        fn incremental_table_equals_table_of_all_objects(
            changes in proptest::collection::vec((change(), any::<bool>()), 0..40),
        ) {
            let mut index = RouteIndex::default();
            let (mut deployments, mut replicas, mut nodes) =
                (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
            for (change, updates) in changes {
                match change {
                    Change::Deployment(name, fields) => {
                        let object = fields.map(|fields| deployment(&format!("{name} {fields}")));
                        index.set_deployment(&key(name), object.as_ref());
                        deployments.remove(name);
                        deployments.extend(object.map(|object| (name, object)));
                    }
                    Change::Replica(name, fields) => {
                        let object = fields.map(|fields| replica(&format!("{name} {fields}")));
                        index.set_replica(&key(name), object.as_ref());
                        replicas.remove(name);
                        replicas.extend(object.map(|object| (name, object)));
                    }
                    Change::Node(name, truth) => {
                        let object = truth.map(|truth| node(name, "http://127.0.0.1:1", truth));
                        index.set_node(name, object.as_ref());
                        nodes.remove(name);
                        nodes.extend(object.map(|object| (name, object)));
                    }
                }
                if updates {
                    let before = index.table().clone();
                    let is_changed = index.update();
                    prop_assert_eq!(is_changed, *index.table() != before);
                    let differs = |key: &ModelKey| index.table().get(key) != before.get(key);
                    for key in index.table().changed_since(&before) {
                        prop_assert!(differs(&key), "{key:?} did not change");
                    }
                    for model in index.table().all().chain(before.all()) {
                        let is_reported = index.table().changed_since(&before).contains(&model.key());
                        prop_assert_eq!(is_reported, differs(&model.key()));
                    }
                }
            }
            index.update();
            let mut again = RouteIndex::of(deployments.values(), replicas.values(), nodes.values());
            again.update();
            prop_assert_eq!(index.table(), again.table());
            prop_assert_eq!(index.models.len(), again.models.len());
            prop_assert_eq!(index.residents, again.residents);
        }
    }
}

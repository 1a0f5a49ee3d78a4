//! Fleet model of the scheduler, updated incrementally.

pub(crate) mod machine;
pub(crate) mod node;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kube::ResourceExt;

use super::request::{ReplicaKey, ReplicaRequest};
use crate::fleet::machine::{Fits, Machines, Offer};
use crate::fleet::node::{Claim, Copies, Load, NodeFacts, NodeState, Resident};
use crate::placement::filter::filter;
use crate::placement::ranking::{Ranking, shared};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, NodeModel};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::Speed;

/// Maximum number of changes that are stored for rankings. Beyond it, rankings are computed again.
const MAX_CHANGES: usize = 100_000;
/// Maximum number of kept rankings. Requests of one deployment are scheduled together, so few
/// rankings are in use at a time. The size of a ranking is about 150 bytes per node.
const MAX_RANKINGS: usize = 32;

/// All nodes, ordered by name, with the reservations on them.
///
/// Incremental updates lead to the same state as a construction from all objects.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    pub nodes: Vec<NodeState>,
    machines: Machines,
    /// Node of each bound replica.
    bound: HashMap<ReplicaKey, String>,
    /// Node of each replica for which others are preempted.
    nominated: HashMap<ReplicaKey, String>,
    /// Claims of replicas on missing nodes, by node.
    missing: BTreeMap<String, BTreeMap<ReplicaKey, Claim>>,
    /// Claims of replicas that are nominated for missing nodes, by node.
    missing_nominees: BTreeMap<String, BTreeMap<ReplicaKey, Claim>>,
    /// Number of simultaneous node failures for which placements keep capacity free.
    pub(super) reserve_node_failures: usize,
    /// Nodes with replicas of each deployment, without terminating replicas.
    nodes_of_deployments: HashMap<ReplicaKey, BTreeSet<String>>,
    /// Number of nodes by the lowest priority of their replicas that can be preempted.
    lowest_priorities: BTreeMap<i32, usize>,
    changes: Changes,
    /// Changes since the last call of [`Fleet::take_growth`].
    growth: Growth,
    rankings: Vec<Ranking>,
    /// Replicas that were bound, unbound or nominated during [`Fleet::recording_moves`].
    moved: Option<BTreeSet<ReplicaKey>>,
}

/// Changes after which a node may accept a replica that it rejected before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Growth {
    /// Nodes on which replicas released capacity.
    pub(crate) freed: BTreeSet<String>,
    /// Nodes that were added, updated or removed.
    pub(crate) updated: BTreeSet<String>,
    /// Deployments whose numbers of replicas per node changed.
    pub(crate) regrouped: HashSet<ReplicaKey>,
    /// True if nodes were added or removed, or labels changed.
    pub(crate) is_topology_changed: bool,
}

impl Growth {
    pub(crate) fn is_empty(&self) -> bool {
        self.freed.is_empty() && self.updated.is_empty() && self.regrouped.is_empty()
    }
}

/// Changed nodes, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    /// Incremented when the indices of nodes change or the list of changes is cleared.
    pub(super) epoch: u64,
    pub(super) nodes: Vec<usize>,
}

impl Changes {
    fn mark(&mut self, at: usize) {
        if self.nodes.len() >= MAX_CHANGES {
            self.restart();
        }
        self.nodes.push(at);
    }

    fn restart(&mut self) {
        self.epoch += 1;
        self.nodes.clear();
    }
}

impl Fleet {
    /// Creates a fleet. Every bound replica counts on its node until the object is deleted.
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = &'a FleetNode>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
    ) -> Self {
        let mut fleet = Self::default();
        for node in nodes {
            fleet.set_node(node);
        }
        for replica in replicas {
            fleet.set_replica(replica);
        }
        fleet
    }

    /// Sets the number of node failures for which placements keep capacity free.
    pub fn with_reserve(self, node_failures: usize) -> Self {
        Self {
            reserve_node_failures: node_failures,
            ..self
        }
    }

    /// Runs `act`. Returns its result and the replicas that were bound, unbound or nominated.
    pub fn recording_moves<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> (T, BTreeSet<ReplicaKey>) {
        self.moved = Some(BTreeSet::new());
        let outcome = act(self);
        (outcome, self.moved.take().unwrap_or_default())
    }

    fn record_move(&mut self, key: &ReplicaKey) {
        if let Some(moved) = &mut self.moved
            && !moved.contains(key)
        {
            moved.insert(key.clone());
        }
    }

    /// Adds or updates a node. Returns whether a fact changed on which placements depend.
    pub fn set_node(&mut self, node: &FleetNode) -> bool {
        let name = node.name_any();
        let facts = NodeFacts::new(node);
        match self.position(&name) {
            Ok(at) => {
                let state = &mut self.nodes[at];
                let same_machine = *state.machine == facts.machine;
                if same_machine
                    && state.labels == facts.labels
                    && state.taints == facts.taints
                    && state.usage_taints == facts.usage_taints
                    && state.cordoned == facts.cordoned
                    && state.draining == facts.draining
                    && state.not_ready == facts.not_ready
                    && state.allocatable == facts.allocatable
                    && state.disk_limit == facts.disk_limit
                    && state.class == facts.class
                    && state.disk == facts.disk
                    && state.link == facts.link
                {
                    return false;
                }
                if !same_machine {
                    let (id, machine) = self.machines.enter(facts.machine);
                    self.machines.leave(state.machine_id);
                    (state.machine_id, state.machine) = (id, machine);
                }
                let same_labels = state.labels == facts.labels;
                state.labels = facts.labels;
                state.taints = facts.taints;
                state.usage_taints = facts.usage_taints;
                state.cordoned = facts.cordoned;
                state.draining = facts.draining;
                state.not_ready = facts.not_ready;
                state.allocatable = facts.allocatable;
                state.disk_limit = facts.disk_limit;
                state.class = facts.class;
                state.disk = facts.disk;
                state.link = facts.link;
                if !same_machine {
                    self.refit(at);
                }
                if same_labels {
                    self.changes.mark(at);
                } else {
                    // Labels determine a node's topology domain, which rankings compute once.
                    self.changes.restart();
                    self.growth.is_topology_changed = true;
                }
            }
            Err(at) => {
                let (machine_id, machine) = self.machines.enter(facts.machine);
                let state = NodeState {
                    name: name.clone(),
                    labels: facts.labels,
                    taints: facts.taints,
                    usage_taints: facts.usage_taints,
                    cordoned: facts.cordoned,
                    draining: facts.draining,
                    not_ready: facts.not_ready,
                    allocatable: facts.allocatable,
                    disk_limit: facts.disk_limit,
                    class: facts.class,
                    disk: facts.disk,
                    link: facts.link,
                    machine,
                    machine_id,
                    residents: BTreeMap::new(),
                    nominees: BTreeMap::new(),
                    load: Load::default(),
                    copies: BTreeMap::new(),
                    sources: Vec::new(),
                    lowest_priority: None,
                };
                self.nodes.insert(at, state);
                for (key, claim) in self.missing.remove(&name).unwrap_or_default() {
                    self.enter(at, key, claim);
                }
                for (key, claim) in self.missing_nominees.remove(&name).unwrap_or_default() {
                    self.nominate(&name, key, claim);
                }
                self.changes.restart();
                self.growth.is_topology_changed = true;
            }
        }
        self.growth.updated.insert(name);
        true
    }

    /// Removes a node. Its replicas count again if a node of this name is added.
    pub fn remove_node(&mut self, name: &str) {
        let Ok(at) = self.position(name) else { return };
        let state = self.nodes.remove(at);
        for deployment in state.copies.keys() {
            if let Some(nodes) = self.nodes_of_deployments.get_mut(deployment) {
                nodes.remove(name);
            }
        }
        self.machines.leave(state.machine_id);
        self.count_lowest(state.lowest_priority, None);
        let claims: BTreeMap<_, _> = state
            .residents
            .into_iter()
            .map(|(key, resident)| (key, resident.claim))
            .collect();
        if !claims.is_empty() {
            self.missing.insert(name.to_owned(), claims);
        }
        for (key, nominee) in state.nominees {
            self.nominate(name, key, nominee.claim);
        }
        self.changes.restart();
        self.growth.is_topology_changed = true;
        self.growth.updated.insert(name.to_owned());
    }

    /// Adds or updates a replica.
    pub fn set_replica(&mut self, replica: &ModelReplica) {
        let key = ReplicaKey::of(replica);
        let claim = Claim::new(replica);
        if self.has_claim(&key, replica.spec.node_name.as_deref(), &claim) {
            return;
        }
        self.remove_replica(&key);
        let nominated = claim.request.nominated.clone();
        match (&replica.spec.node_name, nominated) {
            (Some(node), _) => self.bind(node.clone(), key, claim),
            (None, Some(node)) if !claim.ending => self.nominate(&node, key, claim),
            (None, _) => {}
        }
    }

    /// Returns whether the replica is bound to this node with the same claim. Most changes of a
    /// replica's status do not change its claim.
    fn has_claim(&self, key: &ReplicaKey, node: Option<&str>, claim: &Claim) -> bool {
        let bound = node.filter(|node| self.bound.get(key).map(String::as_str) == Some(*node));
        let resident = bound
            .and_then(|node| self.node(node))
            .and_then(|node| node.residents.get(key));
        resident.is_some_and(|resident| resident.claim == *claim) && !self.nominated.contains_key(key)
    }

    /// Removes a replica with its binding and nomination.
    pub fn remove_replica(&mut self, key: &ReplicaKey) {
        self.unbind(key);
        self.end_nomination(key);
    }

    /// Removes the nomination of the replica.
    pub fn end_nomination(&mut self, key: &ReplicaKey) {
        let Some(name) = self.nominated.remove(key) else {
            return;
        };
        self.record_move(key);
        if let Ok(at) = self.position(&name) {
            self.nodes[at].nominees.remove(key);
            self.changes.mark(at);
            self.growth.freed.insert(name);
        } else if let Some(nominees) = self.missing_nominees.get_mut(&name) {
            nominees.remove(key);
            if nominees.is_empty() {
                self.missing_nominees.remove(&name);
            }
        }
    }

    /// Removes a replica from its node. Returns the node and the claim, for [`Fleet::undo`].
    pub(super) fn unbind(&mut self, key: &ReplicaKey) -> Option<(String, Claim)> {
        self.record_move(key);
        let name = self.bound.remove(key)?;
        let claim = if let Ok(at) = self.position(&name) {
            let resident = self.nodes[at].residents.remove(key);
            self.recount(at);
            self.changes.mark(at);
            self.growth.freed.insert(name.clone());
            resident?.claim
        } else {
            self.missing.get_mut(&name)?.remove(key)?
        };
        self.growth.regrouped.extend(claim.request.deployment.clone());
        Some((name, claim))
    }

    /// Binds a replica to a node. Returns its earlier binding, for [`Fleet::undo`].
    pub(super) fn place(&mut self, request: &ReplicaRequest, node: &str) -> Option<(String, Claim)> {
        let before = self.unbind(&request.key);
        self.bind(node.to_owned(), request.key.clone(), Claim::planned(request));
        before
    }

    /// Restores the binding before a [`Fleet::place`] or [`Fleet::unbind`].
    pub(super) fn undo(&mut self, key: &ReplicaKey, before: Option<(String, Claim)>) {
        self.unbind(key);
        if let Some((node, claim)) = before {
            self.bind(node, key.clone(), claim);
        }
    }

    fn bind(&mut self, node: String, key: ReplicaKey, claim: Claim) {
        self.growth.regrouped.extend(claim.request.deployment.clone());
        match self.position(&node) {
            Ok(at) => self.enter(at, key.clone(), claim),
            Err(_) => drop(
                self.missing
                    .entry(node.clone())
                    .or_default()
                    .insert(key.clone(), claim),
            ),
        }
        self.bound.insert(key, node);
    }

    fn enter(&mut self, at: usize, key: ReplicaKey, claim: Claim) {
        let node = &mut self.nodes[at];
        let fit = self.machines.fit(node.machine_id, &claim.request);
        node.residents.insert(key, Resident::new(claim, fit));
        self.recount(at);
        self.changes.mark(at);
    }

    /// Reserves the memory that preempted replicas release on the node for a replica.
    pub(super) fn nominate(&mut self, name: &str, key: ReplicaKey, claim: Claim) {
        self.record_move(&key);
        self.nominated.insert(key.clone(), name.to_owned());
        let Ok(at) = self.position(name) else {
            let nominees = self.missing_nominees.entry(name.to_owned()).or_default();
            nominees.insert(key, claim);
            return;
        };
        let node = &mut self.nodes[at];
        let fit = self.machines.fit(node.machine_id, &claim.request);
        node.nominees.insert(key, Resident::new(claim, fit));
        self.changes.mark(at);
    }

    fn refit(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for resident in node.residents.values_mut().chain(node.nominees.values_mut()) {
            let fit = self.machines.fit(node.machine_id, &resident.claim.request);
            *resident = Resident::new(resident.claim.clone(), fit);
        }
        self.recount(at);
    }

    /// Recomputes the sums of a node.
    fn recount(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let before = std::mem::take(&mut node.copies);
        let lowest_before = node.lowest_priority;
        node.recount();
        for deployment in before
            .keys()
            .filter(|deployment| !node.copies.contains_key(*deployment))
        {
            if let Some(nodes) = self.nodes_of_deployments.get_mut(deployment) {
                nodes.remove(&node.name);
                if nodes.is_empty() {
                    self.nodes_of_deployments.remove(deployment);
                }
            }
        }
        for deployment in node
            .copies
            .keys()
            .filter(|deployment| !before.contains_key(*deployment))
        {
            let nodes = self.nodes_of_deployments.entry(deployment.clone()).or_default();
            nodes.insert(node.name.clone());
        }
        let lowest = node.lowest_priority;
        self.count_lowest(lowest_before, lowest);
    }

    fn count_lowest(&mut self, before: Option<i32>, now: Option<i32>) {
        if before == now {
            return;
        }
        if let Some(now) = now {
            *self.lowest_priorities.entry(now).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(count) = self.lowest_priorities.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.lowest_priorities.remove(&before);
            }
        }
    }

    /// Returns the lowest priority of all replicas that can be preempted.
    pub(super) fn lowest_priority(&self) -> Option<i32> {
        self.lowest_priorities.keys().next().copied()
    }

    /// Returns the indices of the nodes with replicas of the request's deployment, in order, with
    /// their numbers of replicas.
    pub(super) fn siblings(&self, request: &ReplicaRequest) -> Vec<(usize, Copies)> {
        let deployment = request.deployment.as_ref();
        let nodes = deployment.and_then(|deployment| self.nodes_of_deployments.get(deployment));
        nodes
            .into_iter()
            .flatten()
            .filter_map(|name| {
                let at = self.position(name).ok()?;
                Some((at, self.nodes[at].copies_of(request)))
            })
            .collect()
    }

    pub(super) fn is_bound(&self, key: &ReplicaKey) -> bool {
        self.bound.contains_key(key)
    }

    /// Returns the number of bound replicas.
    pub(super) fn placed(&self) -> usize {
        self.bound.len()
    }

    pub(super) fn position(&self, name: &str) -> Result<usize, usize> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(name))
    }

    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.position(name).ok().map(|at| &self.nodes[at])
    }

    /// Returns the availability of a model, or `None` if no node has it.
    pub fn offer(&self, model: &str) -> Option<&Offer> {
        self.machines.offer(model)
    }

    /// Returns the copies of a model on all nodes.
    pub fn models<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a NodeState, &'a NodeModel)> {
        self.nodes
            .iter()
            .filter_map(move |node| Some((node, node.machine.model(name)?)))
    }

    /// Calls `read` with the current ranking of the nodes for requests like this one, best first,
    /// and with the nodes.
    pub(super) fn ranked<T>(
        &mut self,
        request: &ReplicaRequest,
        read: impl FnOnce(&mut Ranking, &[NodeState], &Fits<'_>) -> T,
    ) -> T {
        let template = shared(request);
        let found = self
            .rankings
            .iter()
            .position(|ranking| ranking.is_for(&template, self.changes.epoch));
        let fits = self.machines.fits(request);
        let mut ranking = match found {
            Some(at) => self.rankings.remove(at),
            None => Ranking::new(template, request, &self.nodes, &fits, &self.changes),
        };
        ranking.catch_up(&self.nodes, &fits, &self.changes);
        let result = read(&mut ranking, &self.nodes, &fits);
        // Rankings are ordered by their last use.
        self.rankings.retain(|ranking| ranking.is_of(self.changes.epoch));
        if self.rankings.len() >= MAX_RANKINGS {
            self.rankings.remove(0);
        }
        self.rankings.push(ranking);
        result
    }

    /// Returns the requirements of requests like this one on each machine, by machine id, and the
    /// nodes.
    pub(super) fn fits(&mut self, request: &ReplicaRequest) -> (Fits<'_>, &[NodeState]) {
        (self.machines.fits(request), &self.nodes)
    }
    /// Returns the changes since the last call.
    pub(crate) fn take_growth(&mut self) -> Growth {
        std::mem::take(&mut self.growth)
    }

    /// Returns the replicas for which others are preempted on the node.
    pub(crate) fn nominees(&self, name: &str) -> Vec<ReplicaKey> {
        match self.node(name) {
            Some(node) => node.nominees.keys().cloned().collect(),
            None => (self.missing_nominees.get(name))
                .map(|nominees| nominees.keys().cloned().collect())
                .unwrap_or_default(),
        }
    }

    /// Returns the smallest memory that the request needs on a node of the fleet, or `None` if it
    /// runs on none of their machines.
    pub(crate) fn least_memory(&mut self, request: &ReplicaRequest) -> Option<Bytes> {
        self.machines.least_memory(request)
    }

    /// Returns the memory that the request needs on the node, or `None` if it never runs there.
    pub(crate) fn memory_on(&mut self, name: &str, request: &ReplicaRequest) -> Option<Bytes> {
        let at = self.position(name).ok()?;
        let fit = self.machines.fit(self.nodes[at].machine_id, request);
        fit.memory(request)
    }

    /// Returns the speed of the replica on the node without other replicas, or `None` if the speed is unknown.
    pub fn speed_on(&mut self, name: &str, request: &ReplicaRequest) -> Option<Speed> {
        let at = self.position(name).ok()?;
        let fit = self.machines.fit(self.nodes[at].machine_id, request);
        fit.requirements.as_ref()?.speed
    }

    /// Returns an upper bound of the number of requests like this one that the node accepts, if
    /// they may preempt all replicas of lower priorities. Topology spread is not considered.
    pub(crate) fn room(&mut self, name: &str, request: &ReplicaRequest) -> usize {
        let Ok(at) = self.position(name) else { return 0 };
        let node = &self.nodes[at];
        let fit = self.machines.fit(node.machine_id, request);
        let load = node.load_after_preemption(request);
        if filter(request, node, fit, &load).is_err() {
            return 0;
        }
        let needed = fit.memory(request).unwrap_or(Bytes::ZERO);
        match (needed, &fit.requirements) {
            // A replica of unknown size fills its node.
            (_, None) => 1,
            (Bytes::ZERO, Some(_)) => usize::MAX,
            (needed, Some(_)) => {
                let count = load.free(node.allocatable).0 / needed.0;
                usize::try_from(count).unwrap_or(usize::MAX).max(1)
            }
        }
    }
}

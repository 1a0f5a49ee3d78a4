//! The fleet as the scheduler sees it, kept up to date object by object.

pub(crate) mod machine;
pub(crate) mod node;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::ResourceExt;

use super::request::{ReplicaKey, ReplicaRequest};
use crate::fleet::machine::{Fits, Machines, Offer};
use crate::fleet::node::{Claim, Copies, Load, NodeFacts, NodeState, Resident};
use crate::placement::ranking::Ranking;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, NodeModel};

/// Changes that are remembered for rankings to catch up; beyond them they are made anew.
const MAX_CHANGES: usize = 100_000;
/// Kinds of requests whose rankings are kept. Requests come deployment by deployment, so that few
/// are in use at a time; one takes about 150 bytes a node.
const MAX_RANKINGS: usize = 32;

/// All nodes, ordered by name, and what is promised on them.
///
/// Made from all objects, or changed object by object: the outcome is the same.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    pub nodes: Vec<NodeState>,
    machines: Machines,
    /// The node of every replica that has one.
    bound: HashMap<ReplicaKey, String>,
    /// The node of every replica for which others are leaving.
    nominated: HashMap<ReplicaKey, String>,
    /// Replicas on nodes that are not there (any more).
    homeless: BTreeMap<String, BTreeMap<ReplicaKey, Claim>>,
    /// Replicas for which others were to leave nodes that are not there (any more).
    homeless_nominees: BTreeMap<String, BTreeMap<ReplicaKey, Claim>>,
    /// The replicas of any so many nodes are to find room on the others.
    pub(super) reserve_node_failures: usize,
    /// The nodes with replicas of each deployment, those that are ending not included.
    holders: HashMap<ReplicaKey, BTreeSet<String>>,
    changes: Changes,
    rankings: Vec<Ranking>,
    /// While [`Fleet::noting_moves`]: the replicas that were put anywhere.
    moved: Option<BTreeSet<ReplicaKey>>,
}

/// Which nodes changed, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    /// Counts up whenever places of nodes change, or too much is remembered.
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
    /// Every replica counts on the node it is bound to until the object is gone.
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

    /// Placements are to leave room for the replicas of any so many nodes.
    pub fn with_reserve(self, node_failures: usize) -> Self {
        Self {
            reserve_node_failures: node_failures,
            ..self
        }
    }

    /// What `act` gives, and the replicas that it put on a node, took off one, or keeps room for.
    pub fn noting_moves<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> (T, BTreeSet<ReplicaKey>) {
        self.moved = Some(BTreeSet::new());
        let outcome = act(self);
        (outcome, self.moved.take().unwrap_or_default())
    }

    fn note(&mut self, key: &ReplicaKey) {
        if let Some(moved) = &mut self.moved
            && !moved.contains(key)
        {
            moved.insert(key.clone());
        }
    }

    /// The node is new, or has changed.
    pub fn set_node(&mut self, node: &FleetNode) {
        let name = node.name_any();
        let facts = NodeFacts::new(node);
        match self.position(&name) {
            Ok(at) => {
                let state = &mut self.nodes[at];
                let same_machine = *state.machine == facts.machine;
                if same_machine
                    && state.labels == facts.labels
                    && state.taints == facts.taints
                    && state.preferences == facts.preferences
                    && state.cordoned == facts.cordoned
                    && state.draining == facts.draining
                    && state.not_ready == facts.not_ready
                    && state.allocatable == facts.allocatable
                    && state.disk_limit == facts.disk_limit
                    && state.class == facts.class
                    && state.disk == facts.disk
                    && state.link == facts.link
                {
                    return;
                }
                if !same_machine {
                    let (id, machine) = self.machines.enter(facts.machine);
                    self.machines.leave(state.machine_id);
                    (state.machine_id, state.machine) = (id, machine);
                }
                let same_labels = state.labels == facts.labels;
                state.labels = facts.labels;
                state.taints = facts.taints;
                state.preferences = facts.preferences;
                state.cordoned = facts.cordoned;
                state.draining = facts.draining;
                state.not_ready = facts.not_ready;
                state.allocatable = facts.allocatable;
                state.disk_limit = facts.disk_limit;
                state.class = facts.class;
                state.disk = facts.disk;
                state.link = facts.link;
                if !same_machine {
                    self.appraise_anew(at);
                }
                if same_labels {
                    self.changes.mark(at);
                } else {
                    // They decide which domain a node belongs to, which rankings look up once.
                    self.changes.restart();
                }
            }
            Err(at) => {
                let (machine_id, machine) = self.machines.enter(facts.machine);
                let state = NodeState {
                    name: name.clone(),
                    labels: facts.labels,
                    taints: facts.taints,
                    preferences: facts.preferences,
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
                for (key, claim) in self.homeless.remove(&name).unwrap_or_default() {
                    self.enter(at, key, claim);
                }
                for (key, claim) in self.homeless_nominees.remove(&name).unwrap_or_default() {
                    self.nominate(&name, key, claim);
                }
                self.changes.restart();
            }
        }
    }

    /// The node is gone. Its replicas count again when it comes back.
    pub fn remove_node(&mut self, name: &str) {
        let Ok(at) = self.position(name) else { return };
        let state = self.nodes.remove(at);
        for deployment in state.copies.keys() {
            if let Some(nodes) = self.holders.get_mut(deployment) {
                nodes.remove(name);
            }
        }
        self.machines.leave(state.machine_id);
        let claims: BTreeMap<_, _> = state
            .residents
            .into_iter()
            .map(|(key, resident)| (key, resident.claim))
            .collect();
        if !claims.is_empty() {
            self.homeless.insert(name.to_owned(), claims);
        }
        for (key, nominee) in state.nominees {
            self.nominate(name, key, nominee.claim);
        }
        self.changes.restart();
    }

    /// The replica is new, or has changed.
    pub fn set_replica(&mut self, replica: &ModelReplica) {
        let key = ReplicaKey::of(replica);
        self.remove_replica(&key);
        let claim = Claim::new(replica);
        let nominated = claim.request.nominated.clone();
        match (&replica.spec.node_name, nominated) {
            (Some(node), _) => self.hold(node.clone(), key, claim),
            (None, Some(node)) if !claim.ending => self.nominate(&node, key, claim),
            (None, _) => {}
        }
    }

    /// The replica is gone, or what was decided for it is taken back.
    pub fn remove_replica(&mut self, key: &ReplicaKey) {
        self.withdraw(key);
        self.end_nomination(key);
    }

    /// Nothing is kept for the replica any more.
    pub fn end_nomination(&mut self, key: &ReplicaKey) {
        let Some(name) = self.nominated.remove(key) else {
            return;
        };
        self.note(key);
        if let Ok(at) = self.position(&name) {
            self.nodes[at].nominees.remove(key);
            self.changes.mark(at);
        } else if let Some(nominees) = self.homeless_nominees.get_mut(&name) {
            nominees.remove(key);
            if nominees.is_empty() {
                self.homeless_nominees.remove(&name);
            }
        }
    }

    /// Takes a replica off its node; [`Fleet::take_back`] undoes it. Where it was, and what it
    /// claimed.
    pub(super) fn withdraw(&mut self, key: &ReplicaKey) -> Option<(String, Claim)> {
        self.note(key);
        let name = self.bound.remove(key)?;
        let claim = if let Ok(at) = self.position(&name) {
            let resident = self.nodes[at].residents.remove(key);
            self.recount(at);
            self.changes.mark(at);
            resident?.claim
        } else {
            self.homeless.get_mut(&name)?.remove(key)?
        };
        Some((name, claim))
    }

    /// Enters a placement that was decided, or tried. Where the replica was before.
    pub(super) fn promise(&mut self, request: &ReplicaRequest, node: &str) -> Option<(String, Claim)> {
        let before = self.withdraw(&request.key);
        self.hold(node.to_owned(), request.key.clone(), Claim::promised(request));
        before
    }

    /// Undoes a [`Fleet::promise`].
    pub(super) fn take_back(&mut self, key: &ReplicaKey, before: Option<(String, Claim)>) {
        self.withdraw(key);
        if let Some((node, claim)) = before {
            self.hold(node, key.clone(), claim);
        }
    }

    fn hold(&mut self, node: String, key: ReplicaKey, claim: Claim) {
        match self.position(&node) {
            Ok(at) => self.enter(at, key.clone(), claim),
            Err(_) => drop(
                self.homeless
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

    /// Keeps what others leave on the node for a replica.
    pub(super) fn nominate(&mut self, name: &str, key: ReplicaKey, claim: Claim) {
        self.note(&key);
        self.nominated.insert(key.clone(), name.to_owned());
        let Ok(at) = self.position(name) else {
            let nominees = self.homeless_nominees.entry(name.to_owned()).or_default();
            nominees.insert(key, claim);
            return;
        };
        let node = &mut self.nodes[at];
        let fit = self.machines.fit(node.machine_id, &claim.request);
        node.nominees.insert(key, Resident::new(claim, fit));
        self.changes.mark(at);
    }

    fn appraise_anew(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        for resident in node.residents.values_mut().chain(node.nominees.values_mut()) {
            let fit = self.machines.fit(node.machine_id, &resident.claim.request);
            *resident = Resident::new(resident.claim.clone(), fit);
        }
        self.recount(at);
    }

    /// Sums up anew what a node has.
    fn recount(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let before = std::mem::take(&mut node.copies);
        node.recount();
        for deployment in before
            .keys()
            .filter(|deployment| !node.copies.contains_key(*deployment))
        {
            if let Some(nodes) = self.holders.get_mut(deployment) {
                nodes.remove(&node.name);
                if nodes.is_empty() {
                    self.holders.remove(deployment);
                }
            }
        }
        for deployment in node
            .copies
            .keys()
            .filter(|deployment| !before.contains_key(*deployment))
        {
            let nodes = self.holders.entry(deployment.clone()).or_default();
            nodes.insert(node.name.clone());
        }
    }

    /// The places of the nodes with replicas of the request's deployment, in order, and how many
    /// each has.
    pub(super) fn siblings(&self, request: &ReplicaRequest) -> Vec<(usize, Copies)> {
        let deployment = request.deployment.as_ref();
        let nodes = deployment.and_then(|deployment| self.holders.get(deployment));
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

    /// How many replicas have a node.
    pub(super) fn placed(&self) -> usize {
        self.bound.len()
    }

    pub(super) fn position(&self, name: &str) -> Result<usize, usize> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(name))
    }

    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.position(name).ok().map(|at| &self.nodes[at])
    }

    /// What all nodes together have of a model; `None`: no node has it.
    pub fn offer(&self, model: &str) -> Option<&Offer> {
        self.machines.offer(model)
    }

    /// The copies of a model on all nodes.
    pub fn models<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a NodeState, &'a NodeModel)> {
        self.nodes
            .iter()
            .filter_map(move |node| Some((node, node.machine.model(name)?)))
    }

    /// The nodes for requests like this one, the best first, as they are now; and the nodes
    /// themselves.
    pub(super) fn ranked<T>(
        &mut self,
        request: &ReplicaRequest,
        look: impl FnOnce(&mut Ranking, &[NodeState], &Fits<'_>) -> T,
    ) -> T {
        let found = self
            .rankings
            .iter()
            .position(|ranking| ranking.is_for(request, self.changes.epoch));
        let fits = self.machines.fits(request);
        let mut ranking = match found {
            Some(at) => self.rankings.remove(at),
            None => Ranking::new(request, &self.nodes, &fits, &self.changes),
        };
        ranking.catch_up(&self.nodes, &fits, &self.changes);
        let looked = look(&mut ranking, &self.nodes, &fits);
        // The one used last is the last.
        self.rankings.retain(|ranking| ranking.is_of(self.changes.epoch));
        if self.rankings.len() >= MAX_RANKINGS {
            self.rankings.remove(0);
        }
        self.rankings.push(ranking);
        looked
    }

    /// What requests like this one take of each node's machine, by the machine's place; and the
    /// nodes.
    pub(super) fn fits(&mut self, request: &ReplicaRequest) -> (Fits<'_>, &[NodeState]) {
        (self.machines.fits(request), &self.nodes)
    }
}

//! Queue of unschedulable replicas, as in kube-scheduler.
//!
//! A replica that no node accepts enters the queue. It leaves the queue when a change of the fleet
//! can make a node accept it, when its retry time is reached, or when it is due for a periodic
//! attempt. All other changes reduce the capacity of the fleet, so another attempt would fail.
//!
//! Replicas with the same requirements form a kind. For each changed node, the queue checks only
//! the kinds whose memory is free on the node. It takes as many replicas of a kind as the node can
//! hold. So the cost of a change depends neither on the size of the fleet nor on the number of
//! waiting replicas. Exceptions:
//!
//! - With a node-loss reserve, every change that releases capacity takes all replicas: the reserve
//!   depends on all nodes.
//! - If nodes were added, updated or removed and few replicas wait, all replicas are taken, so that
//!   the reported reasons are current.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::{Fleet, Growth};
use crate::placement::ranking::shared;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_api::v1alpha1::{AntiAffinity, ModelSource, WhenUnsatisfiable};
use rooflet_base::units::Bytes;

/// Minimum time between two rounds of periodic attempts. It is shorter than the resync period of
/// the binder, so that each resync includes a round.
const ROUND: Duration = Duration::from_secs(10);
/// Number of replicas in a round of periodic attempts, if more are waiting.
const MIN_PER_ROUND: usize = 64;
/// Number of rounds in which each replica is attempted at least once.
const ROUNDS: usize = 20;
/// Maximum product of nodes and waiting replicas for which a change of a node takes all replicas.
const MAX_REFRESHED: usize = 10_000;

/// Deployment and revision of a replica, in scheduling order.
type Revision = (String, Option<String>, Option<String>);
/// Creation time and name of a replica, in scheduling order.
type Member = (Option<Timestamp>, ReplicaKey);
/// Number of a kind.
type KindId = u64;
/// Part of a request that nearly determines its kind.
type KindHint = (
    Option<ReplicaKey>,
    Option<ModelSource>,
    Option<u32>,
    u32,
    i32,
    Bytes,
);

fn revision(request: &ReplicaRequest) -> Revision {
    let deployment = request
        .deployment
        .as_ref()
        .map(|deployment| deployment.name.clone());
    (
        request.key.namespace.clone(),
        deployment,
        request.revision.clone(),
    )
}

/// Waiting replicas with the same requirements.
#[derive(Debug, Clone)]
struct Kind {
    /// Requirements, without the key of a replica.
    template: ReplicaRequest,
    hint: KindHint,
    /// Lower bound of the memory that the kind needs on any node; `None` if it runs on no machine.
    memory: Option<Bytes>,
    members: BTreeMap<Revision, BTreeSet<Member>>,
    /// Revisions by the creation time of their oldest waiting replica.
    order: BTreeSet<(Option<Timestamp>, Revision)>,
}

impl Kind {
    fn oldest(&self, revision: &Revision) -> Option<(Option<Timestamp>, Revision)> {
        let (created, _) = self.members.get(revision)?.first()?;
        Some((*created, revision.clone()))
    }

    fn change(&mut self, revision: &Revision, change: impl FnOnce(&mut BTreeSet<Member>)) {
        if let Some(before) = self.oldest(revision) {
            self.order.remove(&before);
        }
        let members = self.members.entry(revision.clone()).or_default();
        change(members);
        if members.is_empty() {
            self.members.remove(revision);
        }
        self.order.extend(self.oldest(revision));
    }

    /// Returns the members in scheduling order.
    fn in_order(&self) -> impl Iterator<Item = &ReplicaKey> {
        let members = self
            .order
            .iter()
            .filter_map(|(_, revision)| self.members.get(revision));
        members.flatten().map(|(_, key)| key)
    }
}

/// Waiting replica.
#[derive(Debug, Clone)]
struct Entry {
    kind: KindId,
    revision: Revision,
    created: Option<Timestamp>,
    /// Time at which a reason against a node expires.
    retry_at: Option<Timestamp>,
    attempted: Timestamp,
}

/// Queue of unschedulable replicas; see the module documentation.
#[derive(Debug, Clone)]
pub struct UnschedulableQueue {
    entries: HashMap<ReplicaKey, Entry>,
    kinds: BTreeMap<KindId, Kind>,
    /// Kinds by [`KindHint`].
    by_hint: BTreeMap<KindHint, BTreeSet<KindId>>,
    /// Kinds that run on a machine of the fleet, by memory.
    by_memory: BTreeSet<(Bytes, KindId)>,
    /// Kinds with a topology spread that can forbid a node, by deployment.
    spread: BTreeMap<Option<ReplicaKey>, BTreeSet<KindId>>,
    /// Number of replicas of each priority.
    priorities: BTreeMap<i32, usize>,
    by_revision: BTreeMap<Revision, BTreeSet<ReplicaKey>>,
    by_retry: BTreeSet<(Timestamp, ReplicaKey)>,
    by_attempt: BTreeSet<(Timestamp, ReplicaKey)>,
    last_round: Option<Timestamp>,
    next_kind: KindId,
    max_refreshed: usize,
}

impl Default for UnschedulableQueue {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            kinds: BTreeMap::new(),
            by_hint: BTreeMap::new(),
            by_memory: BTreeSet::new(),
            spread: BTreeMap::new(),
            priorities: BTreeMap::new(),
            by_revision: BTreeMap::new(),
            by_retry: BTreeSet::new(),
            by_attempt: BTreeSet::new(),
            last_round: None,
            next_kind: 0,
            max_refreshed: MAX_REFRESHED,
        }
    }
}

impl UnschedulableQueue {
    /// Creates a queue that never takes all replicas after a change of a node.
    #[cfg(test)]
    pub(crate) fn without_refresh() -> Self {
        Self {
            max_refreshed: 0,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn contains(&self, key: &ReplicaKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Adds a replica that no node accepted at `now`. `created`: its creation time. `retry_at`: the
    /// time at which a reason against a node expires.
    pub fn add(
        &mut self,
        request: &ReplicaRequest,
        created: Option<Timestamp>,
        retry_at: Option<Timestamp>,
        now: Timestamp,
        fleet: &mut Fleet,
    ) {
        self.remove(&request.key);
        let key = request.key.clone();
        let kind = self.kind_of(request, fleet);
        let revision = revision(request);
        if let Some(kind) = self.kinds.get_mut(&kind) {
            kind.change(&revision, |members| {
                members.insert((created, key.clone()));
            });
        }
        *self.priorities.entry(request.priority).or_default() += 1;
        self.by_revision
            .entry(revision.clone())
            .or_default()
            .insert(key.clone());
        self.by_retry.extend(retry_at.map(|at| (at, key.clone())));
        self.by_attempt.insert((now, key.clone()));
        let entry = Entry {
            kind,
            revision,
            created,
            retry_at,
            attempted: now,
        };
        self.entries.insert(key, entry);
    }

    /// Returns the kind of the request, and creates it if necessary.
    fn kind_of(&mut self, request: &ReplicaRequest, fleet: &mut Fleet) -> KindId {
        let mut template = shared(request);
        // A deployment that must not share a node with itself depends on its own replicas.
        if request.anti_affinity() == AntiAffinity::Required {
            template.deployment = request.deployment.clone();
            template.revision = request.revision.clone();
        }
        let hint = (
            template.deployment.clone(),
            template.source.clone(),
            template.context_tokens,
            template.max_concurrency,
            template.priority,
            template.disk,
        );
        let alike = self.by_hint.entry(hint.clone()).or_default();
        let known = alike
            .iter()
            .find(|id| self.kinds[*id].template.is_like(&template));
        if let Some(known) = known {
            return *known;
        }
        let id = self.next_kind;
        self.next_kind += 1;
        alike.insert(id);
        let spread = template.placement.spread.as_ref();
        if spread.is_some_and(|spread| spread.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule) {
            self.spread
                .entry(template.deployment.clone())
                .or_default()
                .insert(id);
        }
        let memory = fleet.least_memory(&template);
        self.by_memory.extend(memory.map(|memory| (memory, id)));
        let kind = Kind {
            template,
            hint,
            memory,
            members: BTreeMap::new(),
            order: BTreeSet::new(),
        };
        self.kinds.insert(id, kind);
        id
    }

    /// Removes a replica. Returns whether it was in the queue.
    pub fn remove(&mut self, key: &ReplicaKey) -> bool {
        let Some(entry) = self.entries.remove(key) else {
            return false;
        };
        self.by_attempt.remove(&(entry.attempted, key.clone()));
        if let Some(at) = entry.retry_at {
            self.by_retry.remove(&(at, key.clone()));
        }
        remove_from(&mut self.by_revision, &entry.revision, key);
        let Some(kind) = self.kinds.get_mut(&entry.kind) else {
            return true;
        };
        kind.change(&entry.revision, |members| {
            members.remove(&(entry.created, key.clone()));
        });
        let priority = kind.template.priority;
        if kind.members.is_empty()
            && let Some(kind) = self.kinds.remove(&entry.kind)
        {
            remove_from(&mut self.by_hint, &kind.hint, &entry.kind);
            remove_from(&mut self.spread, &kind.template.deployment, &entry.kind);
            if let Some(memory) = kind.memory {
                self.by_memory.remove(&(memory, entry.kind));
            }
        }
        if let Some(count) = self.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&priority);
            }
        }
        true
    }

    /// Removes and returns the replicas of the request's deployment and revision.
    pub fn take_revision(&mut self, request: &ReplicaRequest) -> Vec<ReplicaKey> {
        let keys = self
            .by_revision
            .get(&revision(request))
            .cloned()
            .unwrap_or_default();
        self.take(keys)
    }

    /// Removes and returns the replicas that a node may accept after the changes of the fleet since
    /// the last call, and those that are due at `now`.
    pub fn take_ready(&mut self, fleet: &mut Fleet, now: Timestamp) -> Vec<ReplicaKey> {
        let growth = fleet.take_growth();
        if self.entries.is_empty() {
            return Vec::new();
        }
        let is_any = fleet.reserve_node_failures > 0 && !growth.is_empty();
        let visits = self.entries.len().saturating_mul(fleet.nodes.len());
        if is_any || !growth.updated.is_empty() && visits <= self.max_refreshed {
            let all = self.entries.keys().cloned().collect();
            return self.take(all);
        }
        let mut ready = self.due(now);
        for node in growth.freed.union(&growth.updated) {
            let nominees = fleet.nominees(node).into_iter();
            ready.extend(nominees.filter(|key| self.contains(key)));
        }
        for (kind, room) in self.rooms(&growth, fleet) {
            // The room of a node does not include the nominees of the node.
            let Some(kind) = self.kinds.get(&kind) else {
                continue;
            };
            let others = kind.in_order().filter(|key| !ready.contains(*key));
            let others: Vec<_> = others.take(room).cloned().collect();
            ready.extend(others);
        }
        self.take(ready)
    }

    fn take(&mut self, keys: BTreeSet<ReplicaKey>) -> Vec<ReplicaKey> {
        keys.into_iter().filter(|key| self.remove(key)).collect()
    }

    /// Returns the replicas whose retry time is reached, and those of a round of periodic attempts.
    fn due(&mut self, now: Timestamp) -> BTreeSet<ReplicaKey> {
        let expired = self.by_retry.iter().take_while(|(at, _)| *at <= now);
        let mut due: BTreeSet<_> = expired.map(|(_, key)| key.clone()).collect();
        let round = SignedDuration::try_from(ROUND).unwrap_or(SignedDuration::MAX);
        let last = *self.last_round.get_or_insert(now);
        if now.duration_since(last) >= round {
            self.last_round = Some(now);
            let count = MIN_PER_ROUND.max(self.entries.len().div_ceil(ROUNDS));
            let oldest = self.by_attempt.iter().take(count);
            let oldest = oldest.take_while(|(at, _)| now.duration_since(*at) >= round);
            due.extend(oldest.map(|(_, key)| key.clone()));
        }
        due
    }

    /// Returns the number of replicas of each kind that the changed nodes may accept.
    fn rooms(&mut self, growth: &Growth, fleet: &mut Fleet) -> BTreeMap<KindId, usize> {
        let mut rooms: BTreeMap<KindId, usize> = BTreeMap::new();
        let mut add = |kind: KindId, room: usize| {
            let known = rooms.entry(kind).or_default();
            *known = known.saturating_add(room);
        };
        for node in &growth.updated {
            for (id, kind) in &mut self.kinds {
                // The machine may need less memory for a model than the known ones.
                let memory = fleet.memory_on(node, &kind.template);
                if let Some(memory) = memory.filter(|memory| kind.memory.is_none_or(|known| *memory < known))
                {
                    self.by_memory.remove(&(kind.memory.unwrap_or_default(), *id));
                    self.by_memory.insert((memory, *id));
                    kind.memory = Some(memory);
                }
                add(*id, fleet.room(node, &kind.template));
            }
        }
        let highest = self.priorities.keys().next_back().copied().unwrap_or(i32::MIN);
        for node in growth.freed.difference(&growth.updated) {
            let Some(state) = fleet.node(node) else { continue };
            let free = state.free_after_preemption(highest);
            for (_, id) in self.by_memory.range(..=(free, KindId::MAX)) {
                add(*id, fleet.room(node, &self.kinds[id].template));
            }
        }
        // More replicas in one domain can permit more in another.
        if growth.is_topology_changed {
            self.spread
                .values()
                .flatten()
                .for_each(|kind| add(*kind, usize::MAX));
        } else {
            for deployment in &growth.regrouped {
                let kinds = self.spread.get(&Some(deployment.clone()));
                kinds
                    .into_iter()
                    .flatten()
                    .for_each(|kind| add(*kind, usize::MAX));
            }
        }
        rooms
    }
}

fn remove_from<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, of: &K, value: &V) {
    if let Some(set) = sets.get_mut(of) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(of);
        }
    }
}

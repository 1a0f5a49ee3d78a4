//! Decisions about evictions: the cause, the time, and the conditions that delay an eviction.
//!
//! A NoExecute taint in the node's spec evicts immediately. For every other cause, a replica is
//! evicted only if another node has room and its deployment can spare it. If the deployment's
//! strategy has a surge, the replacement must be Ready first.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::budgets::{Budgets, is_ready};
use super::observed::Observed;
use super::silence::reported_silent_for;
use crate::deployment::{Chips, Floor, Throughput, leaving_since};
use rooflet_api::conditions::{AGENT_STOPPED, condition_type};
use rooflet_api::meta::{LEASE_DURATION, MOVE_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, Taint, TaintEffect};
use rooflet_base::clock::since;
use rooflet_scheduler::{
    Fleet, ReplicaKey, ReplicaRequest, TolerationPeriod, bind_all, deployment_of, toleration_period,
    usage_taints,
};

/// Time that a node must be silent before its replicas are replaced. A toleration of
/// [`UNREACHABLE`] overrides it.
pub(super) const EVICT_AFTER: Duration = Duration::from_secs(30);

/// The same time while most nodes are silent. The likely cause is then a network partition, after
/// which each evicted replica would exist twice. Kubernetes evicts no Pods in a small cluster then.
pub(super) const EVICT_AFTER_DISRUPTION: Duration = Duration::from_secs(300);

/// Time within which an agent that was stopped with its workers may start again.
const STOPPED_AFTER: Duration = Duration::from_secs(10);

/// Key of the taint that represents silence in tolerations.
const UNREACHABLE: &str = "rooflet.dev/unreachable";

/// Reason why a replica has to leave its node.
#[derive(Debug, Clone, PartialEq)]
enum Cause {
    /// NoExecute taint in the node's spec. The eviction is immediate.
    SpecTaint(String),
    /// Taint of the machine's use, such as its battery. The replica is evicted when its deployment
    /// can spare it and a node without such a taint accepts a replacement.
    UsageTaint(String),
    /// Drain, move or stopped agent. The replica is evicted when its deployment can spare it.
    Planned(String),
    /// Silent node. The replica is evicted if another node accepts a replacement.
    Silent(String),
}

/// Nodes that are considered for a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    Any,
    /// Nodes without an untolerated usage taint, which would evict the replacement again.
    WithoutUsageTaint,
}

/// Decision about one replica that its deployment can replace.
#[derive(Debug, PartialEq)]
pub(super) enum Eviction {
    /// Evict the replica, with this event message.
    Now(String),
    /// Request a replacement and evict the replica when the replacement is Ready.
    Replace { cause: String, why: String },
    /// The replica has to leave the node, but this reason delays the eviction.
    NotYet(String),
    /// Nothing requires an eviction.
    No,
}

/// Decisions about evictions of one pass. Each decision accounts for the earlier ones.
pub(super) struct Evictions<'p, 'a> {
    observed: &'p Observed<'a>,
    /// Computed on first use, like the fleet, because most passes evict nothing.
    budgets: Option<Budgets>,
    /// Fleet with the unscheduled replicas placed.
    fleet: Option<Fleet>,
    /// Replicas with a disruption budget that this pass evicts.
    evicted: BTreeSet<ReplicaKey>,
    /// True if most nodes are silent.
    is_disrupted: bool,
    /// Time after which a decision changes although no object changes.
    pub(super) requeue_after: Option<Duration>,
}

impl<'p, 'a> Evictions<'p, 'a> {
    pub(super) fn new(observed: &'p Observed<'a>) -> Self {
        Self {
            observed,
            budgets: None,
            fleet: None,
            evicted: BTreeSet::new(),
            is_disrupted: observed.is_disrupted(),
            requeue_after: None,
        }
    }

    pub(super) fn of(&mut self, node: &FleetNode, replica: &ModelReplica) -> Eviction {
        match self.cause(node, replica) {
            None => match reported_silent_for(node, self.observed.now) {
                Some(_) => Eviction::NotYet("its node does not report".to_owned()),
                None => Eviction::No,
            },
            Some(Cause::SpecTaint(cause)) => Eviction::Now(cause),
            Some(Cause::Silent(cause)) => self.if_placeable(cause, replica, Destination::Any),
            Some(Cause::UsageTaint(cause)) => self.planned(cause, replica, Destination::WithoutUsageTaint),
            Some(Cause::Planned(cause)) => self.planned(cause, replica, Destination::Any),
        }
    }

    /// Returns the most urgent cause to evict the replica now.
    fn cause(&mut self, node: &FleetNode, replica: &ModelReplica) -> Option<Cause> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let tolerations = &replica.spec.placement.tolerations;
        let mut causes = Vec::new();
        let mut waits = Vec::new();
        let taints = self.observed.timings.tainted.get(name);
        for (taint, lasting) in taints.into_iter().flatten() {
            // For a replica that was bound after the taint appeared, the period starts at binding.
            let lasting = bound_for(replica, self.observed.now).map_or(*lasting, |bound| bound.min(*lasting));
            let limit = match toleration_period(taint, tolerations) {
                TolerationPeriod::Unlimited => continue,
                TolerationPeriod::None => None,
                TolerationPeriod::Limited(limit) if lasting < limit => {
                    waits.push(limit - lasting);
                    continue;
                }
                TolerationPeriod::Limited(limit) => Some(limit),
            };
            let mut message = format!("{name} has the taint {}:NoExecute", taint.key);
            if let Some(limit) = limit {
                message.push_str(&format!(", which was tolerated for {} s", limit.as_secs()));
            }
            causes.push(match node.spec.taints.contains(taint) {
                true => Cause::SpecTaint(message),
                false => Cause::UsageTaint(message),
            });
        }
        if node.spec.drain {
            causes.push(Cause::Planned(format!("{name} is being drained")));
        }
        if let Some(to) = moves_to(replica) {
            causes.push(Cause::Planned(format!("its move to {to} was requested")));
        }
        if let Some(stopped_for) = stopped_for(node, self.observed.now).filter(|_| !is_ready(replica)) {
            match STOPPED_AFTER.saturating_sub(stopped_for) {
                left if left.is_zero() => {
                    causes.push(Cause::Planned(format!("the agent of {name} was stopped")));
                }
                left => waits.push(left),
            }
        }
        let spec_taint = causes.iter().find(|cause| matches!(cause, Cause::SpecTaint(_)));
        let cause = match (spec_taint, reported_silent_for(node, self.observed.now)) {
            (Some(spec_taint), _) => Some(spec_taint.clone()),
            (None, Some(silent_for)) => {
                let default = match self.is_disrupted {
                    true => EVICT_AFTER_DISRUPTION,
                    false => EVICT_AFTER,
                };
                let limit = match toleration_period(&unreachable(), tolerations) {
                    TolerationPeriod::None => Some(default),
                    TolerationPeriod::Limited(limit) => Some(limit),
                    // Silence is tolerated, but another cause evicts the replica.
                    TolerationPeriod::Unlimited => (!causes.is_empty()).then_some(default),
                };
                limit.and_then(|limit| {
                    // The condition may be outdated: a delayed write of a former leader can
                    // report a node as silent that has renewed its Lease since.
                    let observed = self.observed.timings.silence.get(name);
                    let unconfirmed = LEASE_DURATION.saturating_sub(observed.copied().unwrap_or_default());
                    let wait = limit.saturating_sub(silent_for).max(unconfirmed);
                    if !wait.is_zero() {
                        waits.push(wait);
                        return None;
                    }
                    Some(Cause::Silent(format!("{name} does not report")))
                })
            }
            (None, None) => {
                let is_planned = |cause: &&Cause| matches!(cause, Cause::Planned(_));
                causes.iter().find(is_planned).or(causes.first()).cloned()
            }
        };
        for wait in waits {
            self.requeue(wait);
        }
        cause
    }

    /// Decides about an eviction that waits until the deployment can spare the replica.
    fn planned(&mut self, cause: String, replica: &ModelReplica, to: Destination) -> Eviction {
        let Some(budget) = self.budgets().of(replica) else {
            return self.if_placeable(cause, replica, to);
        };
        if budget.has_replacement() && budget.is_complete_without(replica) {
            if let Some(why) = self.below_floor(replica) {
                return Eviction::NotYet(why);
            }
            self.record_eviction(replica);
            return Eviction::Now(format!("{cause}; its deployment is complete without it"));
        }
        let waited = leaving_since(replica).map(|at| since(self.observed.now, at));
        let timeout = budget.replacement_timeout;
        let left = waited.map_or(timeout, |waited| timeout.saturating_sub(waited));
        let is_first = budget.replaces_first(replica) && !left.is_zero();
        if !is_first && !budget.can_spare(replica) {
            return Eviction::NotYet(
                "its deployment has no replica to spare, see spec.strategy.rollingUpdate.maxUnavailable"
                    .to_owned(),
            );
        }
        if !is_first && let Some(why) = self.below_floor(replica) {
            return Eviction::NotYet(why);
        }
        let elsewhere = match budget.has_replacement() {
            true => None,
            false => match self.place_elsewhere(replica, to) {
                Ok(elsewhere) => Some(elsewhere),
                Err(why) => return not_placeable(&why),
            },
        };
        if is_first && self.budgets().request_replacement(replica) {
            self.requeue(left);
            let why = match elsewhere {
                Some(elsewhere) => {
                    format!("waits until its replacement is Ready; {elsewhere} has room for it")
                }
                None => "waits until its replacement is Ready".to_owned(),
            };
            return Eviction::Replace { cause, why };
        }
        if is_first {
            return Eviction::NotYet(
                "other replicas of its deployment are replaced first, see \
                 spec.strategy.rollingUpdate.maxSurge"
                    .to_owned(),
            );
        }
        self.record_eviction(replica);
        let destination = match elsewhere {
            Some(elsewhere) => format!("{elsewhere} has room for a replacement"),
            None => "its replacement exists".to_owned(),
        };
        let exception = match waited {
            Some(_) if left.is_zero() => format!(
                "; the replacement was not Ready within {} s",
                budget.replacement_timeout.as_secs()
            ),
            Some(_) => "; no node has room for the replacement before the eviction".to_owned(),
            None => String::new(),
        };
        Eviction::Now(format!("{cause}; {destination}{exception}"))
    }

    fn if_placeable(&mut self, cause: String, replica: &ModelReplica, to: Destination) -> Eviction {
        match self.place_elsewhere(replica, to) {
            Ok(elsewhere) => Eviction::Now(format!("{cause}; {elsewhere} has room for a replacement")),
            Err(why) => not_placeable(&why),
        }
    }

    fn record_eviction(&mut self, replica: &ModelReplica) {
        self.budgets().record_eviction(replica);
        self.evicted.insert(ReplicaKey::of(replica));
    }

    /// Returns a message if the eviction would reduce the deployment's throughput below its floor.
    /// If the throughput cannot be predicted, only the replica counts limit evictions.
    fn below_floor(&mut self, replica: &ModelReplica) -> Option<String> {
        let key = deployment_of(replica)?;
        let mut deployments = self.observed.deployments.iter();
        let deployment = deployments.find(|deployment| ReplicaKey::of(**deployment) == key)?;
        let rolling = deployment.spec.strategy.rolling_update.as_ref()?;
        rolling.min_throughput?;
        self.fleet();
        let stays = |other: &&&ModelReplica| {
            other.metadata.deletion_timestamp.is_none()
                && deployment_of(other).as_ref() == Some(&key)
                && !self.evicted.contains(&ReplicaKey::of(**other))
        };
        let chips = Chips::new(self.fleet.as_ref()?, deployment);
        let replicas = self.observed.replicas.iter().filter(stays).copied();
        let throughput = Throughput::of(chips, replicas);
        let floor = Floor::of(deployment, &throughput);
        let (now, left) = (throughput.total(), throughput.total_without(replica));
        (!floor.holds(left) && left < now).then(|| {
            format!(
                "its deployment would keep {left:.1} of {now:.1} predicted tokens/s, but \
                 spec.strategy.rollingUpdate.minThroughput requires {:.1}",
                floor.tokens_per_second()
            )
        })
    }

    fn budgets(&mut self) -> &mut Budgets {
        let observed = self.observed;
        self.budgets
            .get_or_insert_with(|| Budgets::new(&observed.deployments, &observed.replicas))
    }

    fn requeue(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |before| before.min(after)));
    }

    /// Returns the node that accepts a replacement, and reserves the memory there in the fleet.
    fn place_elsewhere(&mut self, replica: &ModelReplica, to: Destination) -> Result<String, PlacementError> {
        let excluded = match to {
            Destination::Any => Vec::new(),
            Destination::WithoutUsageTaint => self.nodes_with_usage_taint(replica),
        };
        let request = ReplicaRequest {
            refused: excluded.into_iter().chain(left_node(replica)).collect(),
            nominated: moves_to(replica).map(str::to_owned),
            ..ReplicaRequest::new(replica)
        };
        let decision = bind_all([&request], self.fleet()).pop();
        match decision.map(|decision| decision.outcome) {
            Some(Ok(placement)) => Ok(placement.node().to_owned()),
            Some(Err(unschedulable)) => Err(PlacementError::Unschedulable(unschedulable.to_string())),
            None => Err(PlacementError::NoDecision),
        }
    }

    /// Returns the nodes with an untolerated usage taint, and the taint.
    fn nodes_with_usage_taint(&self, replica: &ModelReplica) -> Vec<(String, String)> {
        let tolerations = &replica.spec.placement.tolerations;
        let nodes = self.observed.nodes.iter().filter_map(|node| {
            let is_limited =
                |taint: &Taint| toleration_period(taint, tolerations) != TolerationPeriod::Unlimited;
            let taint = usage_taints(node).find(is_limited)?;
            Some((node.name_any(), format!("taint {}:NoExecute", taint.key)))
        });
        nodes.collect()
    }

    fn fleet(&mut self) -> &mut Fleet {
        let observed = self.observed;
        self.fleet.get_or_insert_with(|| {
            // The same reserve as in the binder, which must find a node for the replacement.
            let mut fleet = Fleet::new(observed.nodes.iter().copied(), observed.replicas.iter().copied())
                .with_reserve(observed.reserve_node_failures);
            // Unscheduled replicas use the free memory first.
            let unscheduled: Vec<_> = observed
                .replicas
                .iter()
                .filter(|replica| {
                    replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
                })
                .map(|replica| ReplicaRequest::new(replica))
                .collect();
            bind_all(&unscheduled, &mut fleet);
            fleet
        })
    }
}

/// Returns the time since the agent reported an orderly stop.
fn stopped_for(node: &FleetNode, now: Timestamp) -> Option<Duration> {
    let conditions = &node.status.as_ref()?.conditions;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::READY)?;
    (ready.reason == AGENT_STOPPED).then(|| since(now, ready.last_transition_time.0))
}

/// Reason why no other node accepts a replacement.
#[derive(Debug, thiserror::Error)]
enum PlacementError {
    #[error("{0}")]
    Unschedulable(String),
    #[error("the scheduler returned no decision")]
    NoDecision,
}

fn not_placeable(why: &PlacementError) -> Eviction {
    Eviction::NotYet(format!("no other node accepts a replacement: {why}"))
}

/// Returns the target node of a requested move.
pub(crate) fn moves_to(replica: &ModelReplica) -> Option<&str> {
    let to = replica.annotations().get(MOVE_ANNOTATION)?.as_str();
    (replica.spec.node_name.as_deref() != Some(to)).then_some(to)
}

/// Returns the node of the replica, as a node that must not run its replacement, with the reason.
pub(crate) fn left_node(replica: &ModelReplica) -> Option<(String, String)> {
    let node = replica.spec.node_name.clone()?;
    Some((node, format!("{} leaves this node", replica.name_any())))
}

fn unreachable() -> Taint {
    Taint {
        key: UNREACHABLE.to_owned(),
        value: None,
        effect: TaintEffect::NoExecute,
    }
}

/// Returns the time since the replica was bound, according to the condition Scheduled. A replica
/// without a report was bound seconds ago: its agent or the binder soon writes the condition.
fn bound_for(replica: &ModelReplica, now: Timestamp) -> Option<Duration> {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    match find(condition_type::SCHEDULED).filter(|condition| condition.status == "True") {
        Some(scheduled) => Some(since(now, scheduled.last_transition_time.0)),
        None if find(condition_type::READY).is_none() => Some(Duration::ZERO),
        None => None,
    }
}

//! Which replica has to leave its node, since when, and what has to happen before.
//!
//! A person's taint expels at once. Everything else is gentle: a replica goes where another node has room and its
//! deployment can spare it; where the deployment's strategy has a surge, its replacement answers requests first.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::budgets::{Budgets, is_serving};
use super::observed::Observed;
use super::silence::known_silent_for;
use crate::deployment::{Chips, Floor, Throughput, leaving_since};
use rooflet_api::conditions::{AGENT_STOPPED, condition_type};
use rooflet_api::meta::{LEASE_DURATION, MOVE_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, Taint, TaintEffect};
use rooflet_base::clock::since;
use rooflet_scheduler::{
    Fleet, ReplicaKey, ReplicaRequest, Stay, bind_all, deployment_of, stay, taints_of_preferences,
};

/// A node that is silent may come back within this time before its replicas are replaced, where their tolerations of
/// [`UNREACHABLE`] say nothing else.
pub(super) const EVICT_AFTER: Duration = Duration::from_secs(30);

/// The same while most nodes are silent: then the network between is the likelier fault, and what is replaced now is
/// there twice when it comes back. Kubernetes evicts nobody in a small cluster as long as that lasts.
pub(super) const EVICT_AFTER_DISRUPTION: Duration = Duration::from_secs(300);

/// An agent that was stopped in order, and its workers with it, may be started again within this time.
const STOPPED_AFTER: Duration = Duration::from_secs(10);

/// The taint that silence stands for.
const UNREACHABLE: &str = "rooflet.dev/unreachable";

/// Why a replica has to leave its node.
#[derive(Debug, Clone, PartialEq)]
enum Cause {
    /// A person's taint: at once.
    Expelled(String),
    /// The machine's use, such as its battery: as soon as it can be spared, if a node without such
    /// a taint takes it.
    Unwelcome(String),
    /// As soon as it can be spared.
    Planned(String),
    /// Nobody hears of it: where it can be replaced.
    Silent(String),
}

/// Nodes to which an evicted replica may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    Any,
    /// Nodes that it would not have to leave again for the use of their machines.
    Welcome,
}

/// What is to become of a replica that can be replaced.
#[derive(Debug, PartialEq)]
pub(super) enum Eviction {
    /// It goes, for this reason.
    Now(String),
    /// It has to go, and its replacement is to come first.
    Replace { cause: String, why: String },
    /// It has to go, and this is in the way.
    NotYet(String),
    /// It stays.
    No,
}

/// Decides for one replica after the other; what is decided counts for those that follow.
pub(super) struct Evictions<'p, 'a> {
    observed: &'p Observed<'a>,
    /// Made when they are first asked for, as is the fleet: in most passes nobody leaves.
    budgets: Option<Budgets>,
    /// With those that wait already placed.
    fleet: Option<Fleet>,
    /// Those that go with this plan, where their deployments could spare them.
    gone: BTreeSet<ReplicaKey>,
    /// Most nodes are silent.
    is_disrupted: bool,
    /// When time alone changes the answer.
    pub(super) requeue_after: Option<Duration>,
}

impl<'p, 'a> Evictions<'p, 'a> {
    pub(super) fn new(observed: &'p Observed<'a>) -> Self {
        Self {
            observed,
            budgets: None,
            fleet: None,
            gone: BTreeSet::new(),
            is_disrupted: observed.is_disrupted(),
            requeue_after: None,
        }
    }

    pub(super) fn of(&mut self, node: &FleetNode, replica: &ModelReplica) -> Eviction {
        match self.cause(node, replica) {
            None => match known_silent_for(node, self.observed.now) {
                Some(_) => Eviction::NotYet("its node does not report".to_owned()),
                None => Eviction::No,
            },
            Some(Cause::Expelled(cause)) => Eviction::Now(cause),
            Some(Cause::Silent(cause)) => self.where_there_is_room(cause, replica, Destination::Any),
            Some(Cause::Unwelcome(cause)) => self.planned(cause, replica, Destination::Welcome),
            Some(Cause::Planned(cause)) => self.planned(cause, replica, Destination::Any),
        }
    }

    /// What makes it leave now, the most urgent first.
    fn cause(&mut self, node: &FleetNode, replica: &ModelReplica) -> Option<Cause> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let tolerations = &replica.spec.placement.tolerations;
        let mut causes = Vec::new();
        let mut waits = Vec::new();
        let taints = self.observed.heard.tainted.get(name);
        for (taint, lasting) in taints.into_iter().flatten() {
            // What came to the node later counts from then on.
            let lasting = bound_for(replica, self.observed.now).map_or(*lasting, |bound| bound.min(*lasting));
            let limit = match stay(taint, tolerations) {
                Stay::Forever => continue,
                Stay::Untolerated => None,
                Stay::For(limit) if lasting < limit => {
                    waits.push(limit - lasting);
                    continue;
                }
                Stay::For(limit) => Some(limit),
            };
            let mut said = format!("{name} has the taint {}:NoExecute", taint.key);
            if let Some(limit) = limit {
                said.push_str(&format!(", which was tolerated for {} s,", limit.as_secs()));
            }
            causes.push(match node.spec.taints.contains(taint) {
                true => Cause::Expelled(said),
                false => Cause::Unwelcome(said),
            });
        }
        if node.spec.drain {
            causes.push(Cause::Planned(format!("{name} is being drained")));
        }
        if let Some(to) = moves_to(replica) {
            causes.push(Cause::Planned(format!("it is to move to {to}")));
        }
        if let Some(stopped_for) = stopped_for(node, self.observed.now).filter(|_| !is_serving(replica)) {
            match STOPPED_AFTER.saturating_sub(stopped_for) {
                left if left.is_zero() => {
                    causes.push(Cause::Planned(format!("the agent of {name} was stopped")));
                }
                left => waits.push(left),
            }
        }
        let expelled = causes.iter().find(|cause| matches!(cause, Cause::Expelled(_)));
        let cause = match (expelled, known_silent_for(node, self.observed.now)) {
            (Some(expelled), _) => Some(expelled.clone()),
            (None, Some(silent_for)) => {
                let usual = match self.is_disrupted {
                    true => EVICT_AFTER_DISRUPTION,
                    false => EVICT_AFTER,
                };
                let limit = match stay(&unreachable(), tolerations) {
                    Stay::Untolerated => Some(usual),
                    Stay::For(limit) => Some(limit),
                    // Something else makes it leave, whatever of silence is tolerated.
                    Stay::Forever => (!causes.is_empty()).then_some(usual),
                };
                limit.and_then(|limit| {
                    // What is written may be late: who led before asked for it, and stood still.
                    let heard_nothing_for = self.observed.heard.silence.get(name);
                    let unheard =
                        LEASE_DURATION.saturating_sub(heard_nothing_for.copied().unwrap_or_default());
                    let wait = limit.saturating_sub(silent_for).max(unheard);
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

    /// It goes when nobody misses it.
    fn planned(&mut self, cause: String, replica: &ModelReplica, to: Destination) -> Eviction {
        let Some(budget) = self.budgets().of(replica) else {
            return self.where_there_is_room(cause, replica, to);
        };
        if budget.has_replacement() && budget.is_complete_without(replica) {
            if let Some(why) = self.below_floor(replica) {
                return Eviction::NotYet(why);
            }
            self.spend(replica);
            return Eviction::Now(format!("{cause} and its deployment is complete without it"));
        }
        let waited = leaving_since(replica).map(|at| since(self.observed.now, at));
        let left = waited.map_or(budget.patience, |waited| budget.patience.saturating_sub(waited));
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
                Err(why) => return no_room(&why),
            },
        };
        if is_first && self.budgets().ask(replica) {
            self.requeue(left);
            let why = match elsewhere {
                Some(elsewhere) => format!("its replacement comes first, and {elsewhere} has room for it"),
                None => "its replacement does not answer requests yet".to_owned(),
            };
            return Eviction::Replace { cause, why };
        }
        if is_first {
            return Eviction::NotYet(
                "others of its deployment go first, see spec.strategy.rollingUpdate.maxSurge".to_owned(),
            );
        }
        self.spend(replica);
        let whereto = match elsewhere {
            Some(elsewhere) => format!("{elsewhere} has room for a replacement"),
            None => "its replacement is there".to_owned(),
        };
        let because = match waited {
            Some(_) if left.is_zero() => format!(
                ", which has not answered requests within {} s",
                budget.patience.as_secs()
            ),
            Some(_) => ", though no node has room for one beside it".to_owned(),
            None => String::new(),
        };
        Eviction::Now(format!("{cause} and {whereto}{because}"))
    }

    fn where_there_is_room(&mut self, cause: String, replica: &ModelReplica, to: Destination) -> Eviction {
        match self.place_elsewhere(replica, to) {
            Ok(elsewhere) => Eviction::Now(format!("{cause} and {elsewhere} has room for a replacement")),
            Err(why) => no_room(&why),
        }
    }

    fn spend(&mut self, replica: &ModelReplica) {
        self.budgets().spend(replica);
        self.gone.insert(ReplicaKey::of(replica));
    }

    /// Why it is missed in tokens per second, however many others answer. Where nobody can predict the deployment's speed
    /// only the counts bind.
    fn below_floor(&mut self, replica: &ModelReplica) -> Option<String> {
        let key = deployment_of(replica)?;
        let mut deployments = self.observed.deployments.iter();
        let deployment = deployments.find(|deployment| ReplicaKey::of(**deployment) == key)?;
        let rolling = deployment.spec.strategy.rolling_update.as_ref()?;
        rolling.min_throughput?;
        self.fleet();
        let stays = |one: &&&ModelReplica| {
            one.metadata.deletion_timestamp.is_none()
                && deployment_of(one).as_ref() == Some(&key)
                && !self.gone.contains(&ReplicaKey::of(**one))
        };
        let chips = Chips::new(self.fleet.as_ref()?, deployment);
        let replicas = self.observed.replicas.iter().filter(stays).copied();
        let throughput = Throughput::of(chips, replicas);
        let floor = Floor::of(deployment, &throughput);
        let (now, left) = (throughput.total(), throughput.total_without(replica));
        (!floor.holds(left) && left < now).then(|| {
            format!(
                "its deployment would be left with {left:.1} of {now:.1} predicted tokens/s, and \
                 spec.strategy.rollingUpdate.minThroughput holds {:.1}",
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

    /// The node that would take another one like it; the place is kept.
    fn place_elsewhere(&mut self, replica: &ModelReplica, to: Destination) -> Result<String, NoPlace> {
        let unwelcome = match to {
            Destination::Any => Vec::new(),
            Destination::Welcome => self.unwelcome_nodes(replica),
        };
        let request = ReplicaRequest {
            refused: unwelcome.into_iter().chain(left_node(replica)).collect(),
            nominated: moves_to(replica).map(str::to_owned),
            ..ReplicaRequest::new(replica)
        };
        let decision = bind_all([&request], self.fleet()).pop();
        match decision.map(|decision| decision.outcome) {
            Some(Ok(placement)) => Ok(placement.node().to_owned()),
            Some(Err(unschedulable)) => Err(NoPlace::Unschedulable(unschedulable.to_string())),
            None => Err(NoPlace::Undecided),
        }
    }

    /// Nodes that a replica would leave again for the use of their machines.
    fn unwelcome_nodes(&self, replica: &ModelReplica) -> Vec<(String, String)> {
        let tolerations = &replica.spec.placement.tolerations;
        let nodes = self.observed.nodes.iter().filter_map(|node| {
            let taint =
                taints_of_preferences(node).find(|taint| stay(taint, tolerations) != Stay::Forever)?;
            Some((node.name_any(), format!("taint {}:NoExecute", taint.key)))
        });
        nodes.collect()
    }

    fn fleet(&mut self) -> &mut Fleet {
        let observed = self.observed;
        self.fleet.get_or_insert_with(|| {
            // As the binder will see it, or the replacement of what goes would find no node.
            let mut fleet = Fleet::new(observed.nodes.iter().copied(), observed.replicas.iter().copied())
                .with_reserve(observed.reserve_node_failures);
            // Those that wait already come first.
            let waiting: Vec<_> = observed
                .replicas
                .iter()
                .filter(|replica| {
                    replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
                })
                .map(|replica| ReplicaRequest::new(replica))
                .collect();
            bind_all(&waiting, &mut fleet);
            fleet
        })
    }
}

/// For how long its agent has been stopped, in order.
fn stopped_for(node: &FleetNode, now: Timestamp) -> Option<Duration> {
    let conditions = &node.status.as_ref()?.conditions;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::READY)?;
    (ready.reason == AGENT_STOPPED).then(|| since(now, ready.last_transition_time.0))
}

/// Reason why no other node takes a replica.
#[derive(Debug, thiserror::Error)]
enum NoPlace {
    #[error("{0}")]
    Unschedulable(String),
    #[error("nothing was decided")]
    Undecided,
}

fn no_room(why: &NoPlace) -> Eviction {
    Eviction::NotYet(format!("no other node takes it: {why}"))
}

/// The node to which somebody wants it to move.
pub(crate) fn moves_to(replica: &ModelReplica) -> Option<&str> {
    let to = replica.annotations().get(MOVE_ANNOTATION)?.as_str();
    (replica.spec.node_name.as_deref() != Some(to)).then_some(to)
}

/// Where its replacement does not go, and why.
pub(crate) fn left_node(replica: &ModelReplica) -> Option<(String, String)> {
    let node = replica.spec.node_name.clone()?;
    Some((node, format!("{} is leaving it", replica.name_any())))
}

fn unreachable() -> Taint {
    Taint {
        key: UNREACHABLE.to_owned(),
        value: None,
        effect: TaintEffect::NoExecute,
    }
}

/// For how long it has had its node, by the scheduler's own word.
fn bound_for(replica: &ModelReplica, now: Timestamp) -> Option<Duration> {
    let conditions = &replica.status.as_ref()?.conditions;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::SCHEDULED && condition.status == "True")?;
    Some(since(now, scheduled.last_transition_time.0))
}

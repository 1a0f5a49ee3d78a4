//! Which nodes can take a replica at all, and why the others cannot.

use std::collections::BTreeMap;
use std::fmt;

use super::fleet::{Fleet, NodeState, ReplicaRequest};
use crate::api::v1alpha1::{ModelSource, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::roofline::admission::{Refusal, Suggestion, Verdict, suggestions};
use crate::roofline::memory::{RUNTIME_OVERHEAD, ServedModel};
use crate::roofline::predict::Parameters;
use crate::units::Bytes;

/// Kinds of shortage whose numbers are told.
const MAX_TOLD: usize = 3;

/// Why a node cannot take a replica. The order is that in which they are told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rejection {
    NotReady {
        reason: String,
    },
    Cordoned,
    Taint {
        taint: String,
    },
    NodeSelector,
    ModelMissing {
        model: String,
    },
    ModelNotServable {
        problem: String,
    },
    ContextTooLong {
        model_max_tokens: u32,
    },
    /// Its agent refused the same a short time ago.
    Refused {
        message: String,
    },
    Memory {
        free: Bytes,
        /// The sum with its parts.
        working: String,
        suggestions: Vec<Suggestion>,
    },
    /// Its memory would do, and its speed does not.
    Speed {
        refusal: Refusal,
        suggestions: Vec<Suggestion>,
    },
}

impl Rejection {
    /// A CamelCase word for conditions, events and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotReady { .. } => "NodeNotReady",
            Self::Cordoned => "NodeCordoned",
            Self::Taint { .. } => "UntoleratedTaint",
            Self::NodeSelector => "NodeSelectorMismatch",
            Self::ModelMissing { .. } => "ModelNotFound",
            Self::ModelNotServable { .. } => "ModelNotServable",
            Self::ContextTooLong { .. } => "ContextTooLong",
            Self::Refused { .. } => "RefusedByAgent",
            Self::Memory { .. } => "InsufficientMemory",
            Self::Speed { refusal, .. } => refusal.reason(),
        }
    }

    /// How near a node is to taking the replica: what one more change would have to be about is told last.
    fn rank(&self) -> u8 {
        match self {
            Self::NotReady { .. } => 0,
            Self::Cordoned => 1,
            Self::Taint { .. } => 2,
            Self::NodeSelector => 3,
            Self::ModelMissing { .. } => 4,
            Self::ModelNotServable { .. } => 5,
            Self::ContextTooLong { .. } => 6,
            Self::Refused { .. } => 7,
            Self::Memory { .. } => 8,
            Self::Speed { .. } => 9,
        }
    }

    /// Among rejections of the same kind, more is nearer.
    fn margin(&self) -> f64 {
        match self {
            Self::Memory { free, .. } => free.0 as f64,
            Self::Speed { refusal, .. } => match refusal {
                Refusal::Bandwidth { free_share, .. } => *free_share,
                Refusal::TooSlow { predicted, .. } => predicted.p10,
                Refusal::FirstTokenTooLate { predicted, .. } => -predicted.p90,
                Refusal::SpeedUnknown | Refusal::Memory(_) => 0.0,
            },
            Self::NotReady { .. }
            | Self::Cordoned
            | Self::Taint { .. }
            | Self::NodeSelector
            | Self::ModelMissing { .. }
            | Self::ModelNotServable { .. }
            | Self::ContextTooLong { .. }
            | Self::Refused { .. } => 0.0,
        }
    }

    /// The numbers behind it and what would help, where there are any.
    fn working(&self) -> Option<String> {
        let (mut text, suggestions) = match self {
            Self::Memory {
                free,
                working,
                suggestions,
            } => (format!("needs {working}, {free} free"), suggestions),
            Self::Speed { refusal, suggestions } => (refusal.to_string(), suggestions),
            Self::NotReady { .. }
            | Self::Cordoned
            | Self::Taint { .. }
            | Self::NodeSelector
            | Self::ModelMissing { .. }
            | Self::ModelNotServable { .. }
            | Self::ContextTooLong { .. }
            | Self::Refused { .. } => return None,
        };
        if !suggestions.is_empty() {
            let changes: Vec<_> = suggestions.iter().map(ToString::to_string).collect();
            text.push_str(&format!("; {} would fit", changes.join(" or ")));
        }
        Some(text)
    }

    /// Nodes with the same words are counted together.
    fn words(&self) -> String {
        match self {
            Self::NotReady { reason } => format!("not ready ({reason})"),
            Self::Cordoned => "cordoned".to_owned(),
            Self::Taint { taint } => format!("had the untolerated taint {taint}"),
            Self::NodeSelector => "did not match spec.placement.nodeSelector".to_owned(),
            Self::ModelMissing { model } => format!("had no model `{model}` in its model directory"),
            Self::ModelNotServable { problem } => format!("cannot serve the model: {problem}"),
            Self::ContextTooLong { model_max_tokens } => {
                format!("had a model with a context of at most {model_max_tokens} tokens")
            }
            Self::Refused { message } => format!("refused it a short time ago: {message}"),
            Self::Memory { .. } => "insufficient memory".to_owned(),
            Self::Speed { refusal, .. } => match refusal {
                Refusal::Bandwidth { .. } => "insufficient bandwidth".to_owned(),
                Refusal::SpeedUnknown => "not probed yet".to_owned(),
                Refusal::TooSlow { .. } | Refusal::FirstTokenTooLate { .. } => {
                    "too slow for spec.objectives".to_owned()
                }
                Refusal::Memory(_) => "insufficient memory".to_owned(),
            },
        }
    }
}

/// Every node's reason against a replica. `Display` is the message of conditions and events.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unschedulable {
    pub(crate) rejections: BTreeMap<String, Rejection>,
}

impl Unschedulable {
    /// The reason that is nearest to a placement: what one more change would have to be about.
    pub(crate) fn reason(&self) -> &'static str {
        self.rejections
            .values()
            .max_by_key(|rejection| rejection.rank())
            .map_or("NoNodes", Rejection::reason)
    }
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.rejections.len();
        if nodes == 0 {
            return f.write_str("0/0 nodes are available: no FleetNode has joined");
        }
        write!(f, "0/{nodes} nodes are available: ")?;
        let mut rejections: Vec<_> = self.rejections.iter().collect();
        rejections.sort_by(|(_, a), (_, b)| a.rank().cmp(&b.rank()).then(a.margin().total_cmp(&b.margin())));
        let mut counted: Vec<(String, usize)> = Vec::new();
        for words in rejections.iter().map(|(_, rejection)| rejection.words()) {
            match counted.iter_mut().find(|(known, _)| *known == words) {
                Some((_, count)) => *count += 1,
                None => counted.push((words, 1)),
            }
        }
        let parts: Vec<_> = counted
            .iter()
            .map(|(words, count)| format!("{count} {words}"))
            .collect();
        f.write_str(&parts.join(", "))?;
        // Of each kind of shortage, the node that comes nearest to having enough.
        let mut told: Vec<(String, &String, &Rejection)> = Vec::new();
        for (node, rejection) in rejections.into_iter().rev() {
            let words = rejection.words();
            if told.iter().all(|(known, ..)| *known != words) {
                told.push((words, node, rejection));
            }
        }
        let numbers = told
            .into_iter()
            .filter_map(|(_, node, rejection)| Some((node, rejection.working()?)));
        for (node, working) in numbers.take(MAX_TOLD) {
            write!(f, "; {node}: {working}")?;
        }
        Ok(())
    }
}

/// What a placement takes; `None` while only the agent can tell.
pub(super) type Needed = Option<Verdict>;

/// Whether `node` can take the replica, and what that would take.
pub(super) fn filter(request: &ReplicaRequest, node: &NodeState) -> Result<Needed, Rejection> {
    if let Some(reason) = &node.not_ready {
        let reason = reason.clone();
        return Err(Rejection::NotReady { reason });
    }
    if node.cordoned {
        return Err(Rejection::Cordoned);
    }
    let repels = |taint: &&Taint| match taint.effect {
        TaintEffect::NoSchedule | TaintEffect::NoExecute => !tolerated(taint, &request.placement.tolerations),
        TaintEffect::PreferNoSchedule => false,
    };
    if let Some(taint) = node.taints.iter().find(repels) {
        let taint = written(taint);
        return Err(Rejection::Taint { taint });
    }
    if !node.is_selected(&request.placement) {
        return Err(Rejection::NodeSelector);
    }
    if let Some(message) = request.refused.get(&node.name) {
        let message = message.clone();
        return Err(Rejection::Refused { message });
    }
    fits(request, node)
}

/// Whether `taint` is one of those that do not matter.
pub(crate) fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let same_effect = toleration.effect.is_none_or(|effect| effect == taint.effect);
        let same_key = key.is_empty() || key == taint.key;
        same_effect
            && same_key
            && match toleration.operator {
                TolerationOperator::Exists => true,
                TolerationOperator::Equal => {
                    !key.is_empty()
                        && toleration.value.as_deref().unwrap_or_default()
                            == taint.value.as_deref().unwrap_or_default()
                }
            }
    })
}

/// How many taints would rather not have the replica.
pub(super) fn reluctance(request: &ReplicaRequest, node: &NodeState) -> usize {
    node.taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule)
        .filter(|taint| !tolerated(taint, &request.placement.tolerations))
        .count()
}

fn written(taint: &Taint) -> String {
    let effect = match taint.effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    match &taint.value {
        Some(value) => format!("{{{}={value}:{effect}}}", taint.key),
        None => format!("{{{}:{effect}}}", taint.key),
    }
}

fn fits(request: &ReplicaRequest, node: &NodeState) -> Result<Needed, Rejection> {
    let free = node.free();
    let name = match &request.source {
        Some(ModelSource::Local(name)) => name,
        // Only the agent sees what lies at a path. Until it has said what that takes, the node is full.
        Some(ModelSource::File(_)) if free >= RUNTIME_OVERHEAD => return Ok(None),
        Some(ModelSource::File(path)) => {
            return Err(Rejection::Memory {
                free,
                working: format!("{RUNTIME_OVERHEAD} for the runtime and what {path} takes"),
                suggestions: Vec::new(),
            });
        }
        None => {
            return Err(Rejection::ModelNotServable {
                problem: "its source is not one that this version serves".to_owned(),
            });
        }
    };
    let Some(model) = node.model(name) else {
        let model = name.clone();
        return Err(Rejection::ModelMissing { model });
    };
    if let Some(problem) = &model.problem {
        let problem = problem.clone();
        return Err(Rejection::ModelNotServable { problem });
    }
    let model_max_tokens = model.max_context_tokens;
    if model_max_tokens > 0
        && request
            .context_tokens
            .is_some_and(|tokens| tokens > model_max_tokens)
    {
        return Err(Rejection::ContextTooLong { model_max_tokens });
    }
    let Some(served) = ServedModel::published(model) else {
        return Err(Rejection::ModelNotServable {
            problem: "its agent does not say what the model costs; it may be an older version".to_owned(),
        });
    };
    let ask = request.ask(model, &served);
    let verdict = node.judge(&ask);
    // A replica of which nobody knows what it takes may take everything, whatever is overridden.
    if request.overridden && node.undetermined == 0 {
        return Ok(Some(verdict));
    }
    let Some(refusal) = verdict.refusals.first().cloned() else {
        return Ok(Some(verdict));
    };
    let suggestions = node.with_supply(|supply| suggestions(&ask, supply, Parameters::built_in()));
    Err(match refusal {
        Refusal::Memory(_) => Rejection::Memory {
            free,
            working: verdict.reservation.to_string(),
            suggestions,
        },
        Refusal::SpeedUnknown
        | Refusal::TooSlow { .. }
        | Refusal::FirstTokenTooLate { .. }
        | Refusal::Bandwidth { .. } => Rejection::Speed { refusal, suggestions },
    })
}

/// [`filter`] over all nodes.
pub(super) fn feasible<'a>(
    request: &ReplicaRequest,
    fleet: &'a Fleet,
) -> Result<Vec<(&'a NodeState, Needed)>, Unschedulable> {
    let mut feasible = Vec::new();
    let mut rejections = BTreeMap::new();
    for node in &fleet.nodes {
        match filter(request, node) {
            Ok(needed) => feasible.push((node, needed)),
            Err(rejection) => drop(rejections.insert(node.name.clone(), rejection)),
        }
    }
    if feasible.is_empty() {
        Err(Unschedulable { rejections })
    } else {
        Ok(feasible)
    }
}

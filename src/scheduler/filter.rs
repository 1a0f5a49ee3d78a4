//! Which nodes can take a replica at all, and why the others cannot.

use std::collections::BTreeMap;
use std::fmt;

use super::fleet::{Fleet, NodeState, ReplicaRequest, footprint};
use crate::api::v1alpha1::{ModelSource, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::roofline::memory::{RUNTIME_OVERHEAD, Reservation, longest_context};
use crate::units::Bytes;

/// A shorter context than this is no advice worth giving, in tokens.
const SHORTEST_ADVICE_TOKENS: u32 = 256;

/// Why a node cannot take a replica. The order is that in which they are told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
        needs: Need,
    },
}

/// Memory that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    pub(crate) total: Bytes,
    /// The sum with its parts.
    working: String,
    /// The context with which it would fit, in tokens.
    fitting_context_tokens: Option<u32>,
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
        }
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
        }
    }
}

/// Every node's reason against a replica. `Display` is the message of conditions and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unschedulable {
    pub(crate) rejections: BTreeMap<String, Rejection>,
}

impl Unschedulable {
    /// The reason that is nearest to a placement: what one more change would have to be about.
    pub(crate) fn reason(&self) -> &'static str {
        self.rejections
            .values()
            .max()
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
        let mut rejections: Vec<_> = self.rejections.values().collect();
        rejections.sort();
        let mut counted: Vec<(String, usize)> = Vec::new();
        for words in rejections.iter().map(|rejection| rejection.words()) {
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
        let memory = rejections.iter().filter_map(|rejection| match rejection {
            Rejection::Memory { free, needs } => Some((*free, needs)),
            Rejection::NotReady { .. }
            | Rejection::Cordoned
            | Rejection::Taint { .. }
            | Rejection::NodeSelector
            | Rejection::ModelMissing { .. }
            | Rejection::ModelNotServable { .. }
            | Rejection::ContextTooLong { .. }
            | Rejection::Refused { .. } => None,
        });
        if let Some((free, needs)) = memory.max_by_key(|(free, _)| *free) {
            write!(f, ": needs {}, {free} free at most", needs.working)?;
            if let Some(tokens) = needs.fitting_context_tokens {
                write!(f, "; spec.serving.contextTokens: {tokens} would fit")?;
            }
        }
        Ok(())
    }
}

/// What a placement takes; `None` while only the agent can tell.
pub(super) type Needed = Option<Reservation>;

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
    let selected = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    if !request.placement.node_selector.iter().all(selected) {
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
                needs: Need {
                    total: RUNTIME_OVERHEAD,
                    working: format!("{RUNTIME_OVERHEAD} for the runtime and what {path} takes"),
                    fitting_context_tokens: None,
                },
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
    let needed = request.reservation(model);
    if needed.total() > free {
        let fitting = longest_context(footprint(model), request.max_concurrency, free);
        return Err(Rejection::Memory {
            free,
            needs: Need {
                total: needed.total(),
                working: needed.to_string(),
                fitting_context_tokens: fitting.filter(|tokens| *tokens >= SHORTEST_ADVICE_TOKENS),
            },
        });
    }
    Ok(Some(needed))
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

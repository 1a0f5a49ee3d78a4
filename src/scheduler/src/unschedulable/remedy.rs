//! Remedies for an unschedulable replica: changes by a user, smallest first. Every remedy is
//! verified before it is reported.

use crate::condition_taints::condition_of;
use crate::fleet::node::{Load, NodeState, nominal_size};
use crate::placement::filter::{format_taint, untolerated_taints};
use crate::placement::rejection::Rejection;
use crate::request::ReplicaRequest;
use crate::unschedulable::Search;
use crate::unschedulable::index::RejectionIndex;
use rooflet_api::meta::AGENT_LABELS;
use rooflet_api::v1alpha1::{ModelSource, NodeModel};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{Requirements, Verdict, shorter, suggestions};
use rooflet_roofline::chip;
use rooflet_roofline::memory::allocatable;
use rooflet_roofline::predict::{Hardware, Parameters};

/// Maximum number of reported remedies, and of kinds of nodes that are tried.
const MAX_REMEDIES: usize = 3;
const MAX_TRIED: usize = 6;

/// [`effort`] of removing other replicas from a node.
const LEAVING: u32 = 8;

/// Returns the effort of a remedy for the user: a command, a placement rule, a change of what is
/// served, copying files, or work on a machine. Efforts for one node add up.
fn effort(rejection: &Rejection) -> u32 {
    match rejection {
        Rejection::Cordoned => 1,
        Rejection::Taint { .. } | Rejection::NodeSelector | Rejection::TopologyKeyMissing { .. } => 2,
        Rejection::AntiAffinity | Rejection::Skew { .. } => 3,
        Rejection::ContextTooLong { .. }
        | Rejection::Memory { .. }
        | Rejection::Disk { .. }
        | Rejection::Speed { .. } => 4,
        Rejection::ModelMissing { .. } | Rejection::ModelNotServable { .. } => 5,
        Rejection::NotReady { .. } | Rejection::Refused { .. } => 6,
        Rejection::FailureReserve { .. } => LEAVING,
    }
}

/// Rejections of one node.
pub(crate) struct Case {
    at: usize,
    /// Bit set of rejection kinds.
    pub(super) kinds: u32,
    effort: u32,
    /// Higher is closer.
    pub(super) margin: f64,
}

impl Case {
    pub(crate) fn new(node: &NodeState, at: usize, request: &ReplicaRequest) -> Self {
        Self {
            at,
            kinds: 0,
            effort: 0,
            margin: node.load_for(request).free(node.allocatable).0 as f64,
        }
    }

    pub(crate) fn add(&mut self, rejection: &Rejection) {
        self.kinds |= 1 << rejection.rank();
        self.effort += effort(rejection);
        if matches!(rejection, Rejection::Disk { .. } | Rejection::Speed { .. }) {
            self.margin = rejection.margin();
        }
    }
}

/// Returns alternative remedies, smallest change first. Each suffices without other changes.
pub(crate) fn remedies(search: &Search<'_>, index: &RejectionIndex) -> Vec<String> {
    let copy = index.copy();
    let finder = RemedyFinder {
        search,
        index,
        model: copy.and_then(|at| search.nodes[at].machine.model_of(search.request)),
    };
    let mut cases: Vec<Case> = index.cases().map(|at| search.evaluate(at).1).collect();
    cases.sort_by_key(|case| (case.effort, case.at));
    let mut found: Vec<(u32, String)> = cases
        .into_iter()
        .take(MAX_TRIED)
        .filter_map(|case| finder.find(case.at))
        .collect();
    found.sort();
    found.truncate(MAX_REMEDIES);
    let mut texts: Vec<_> = found.into_iter().map(|(_, text)| text).collect();
    if !finder.could_ever_hold() {
        texts.extend(finder.purchase());
    }
    texts
}

struct RemedyFinder<'a> {
    search: &'a Search<'a>,
    index: &'a RejectionIndex,
    /// Servable copy of the model on any node.
    model: Option<&'a NodeModel>,
}

impl RemedyFinder<'_> {
    /// Returns all changes for the node at index `at`, or `None` if unknown.
    fn find(&self, at: usize) -> Option<(u32, String)> {
        let search = self.search;
        let node = &search.nodes[at];
        let mut all = Vec::new();
        search.against(at, |rejection| all.push(rejection));
        let mut longest = None;
        let mut sum = 0;
        let mut changes = Vec::new();
        for rejection in &all {
            match rejection {
                Rejection::ContextTooLong { model_max_tokens } => longest = Some(*model_max_tokens),
                Rejection::Memory { needed: None, .. } => return None,
                Rejection::Memory { .. } | Rejection::Disk { .. } | Rejection::Speed { .. } => {}
                Rejection::NotReady { .. }
                | Rejection::Cordoned
                | Rejection::Taint { .. }
                | Rejection::NodeSelector
                | Rejection::ModelMissing { .. }
                | Rejection::ModelNotServable { .. }
                | Rejection::TopologyKeyMissing { .. }
                | Rejection::Refused { .. }
                | Rejection::AntiAffinity
                | Rejection::Skew { .. }
                | Rejection::FailureReserve { .. } => {
                    changes.push(self.change(rejection, node, at)?);
                    sum += effort(rejection);
                }
            }
        }
        let (effort, served) = self.room(node, longest)?;
        sum += effort;
        changes.extend(served);
        Some((sum, changes.join(", and ")))
    }

    /// Returns the change that removes one rejection, except for lack of capacity.
    fn change(&self, rejection: &Rejection, node: &NodeState, at: usize) -> Option<String> {
        let (request, name) = (self.search.request, &node.name);
        Some(match rejection {
            Rejection::NotReady { reason } => format!("make {name} ready ({reason})"),
            Rejection::Cordoned if node.draining => format!("end the drain (`rooflet uncordon {name}`)"),
            Rejection::Cordoned => format!("`rooflet uncordon {name}`"),
            Rejection::Taint { .. } => {
                let taints: Vec<_> = untolerated_taints(request, node).map(format_taint).collect();
                let ends = match untolerated_taints(request, node).find_map(condition_of) {
                    Some(condition) => format!("wait until {condition} of {name} ends"),
                    None => format!("remove it from {name}"),
                };
                format!(
                    "tolerate {} (spec.placement.tolerations) or {ends}",
                    taints.join(" and ")
                )
            }
            Rejection::NodeSelector => {
                let selector = &request.placement.node_selector;
                let differs = |(key, value): &(&String, &String)| node.labels.get(*key) != Some(*value);
                let missing: Vec<_> = selector.iter().filter(differs).collect();
                let unmatched = match self.index.is_any_selected() {
                    true => "",
                    false => ", which no node matches",
                };
                // The agent overwrites these labels.
                if missing
                    .iter()
                    .any(|(key, _)| AGENT_LABELS.contains(&key.as_str()))
                {
                    return Some(format!("another spec.placement.nodeSelector{unmatched}"));
                }
                let other = missing.iter().any(|(key, _)| node.labels.contains_key(*key));
                let overwrite = if other { " --overwrite" } else { "" };
                let missing: Vec<_> = missing
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                format!(
                    "`kubectl label mac {name} {}{overwrite}`, or another spec.placement.nodeSelector{unmatched}",
                    missing.join(" ")
                )
            }
            Rejection::ModelMissing { model } => {
                format!("put the model `{model}` under {name}'s --model-dir")
            }
            Rejection::ModelNotServable { problem } => {
                let Some(ModelSource::Local(model)) = &request.source else {
                    return None;
                };
                // Otherwise the files are not the cause.
                node.machine.model(model)?.problem.as_ref()?;
                format!("fix the model `{model}` on {name}: {problem}")
            }
            Rejection::TopologyKeyMissing { key } => format!("add the label {key} to {name}"),
            Rejection::AntiAffinity => "spec.placement.antiAffinity: Preferred".to_owned(),
            Rejection::Skew { .. } => {
                let skew = self.search.domains?.skew_with(at)?;
                format!("spec.placement.spread.maxSkew: {skew}, or whenUnsatisfiable: ScheduleAnyway")
            }
            Rejection::FailureReserve { .. } => "add a node, or lower --reserve-node-failures".to_owned(),
            // `room` handles lack of capacity. For a rejection by the agent, no remedy is known.
            Rejection::ContextTooLong { .. }
            | Rejection::Memory { .. }
            | Rejection::Disk { .. }
            | Rejection::Speed { .. }
            | Rejection::Refused { .. } => return None,
        })
    }

    /// Returns the change after which the node has memory and chip time for the replica (smaller
    /// requirements or fewer other replicas), with its effort. The change is `None` if none is
    /// necessary. `longest`: maximum context of the model, if the request exceeds it.
    fn room(&self, node: &NodeState, longest: Option<u32>) -> Option<(u32, Option<String>)> {
        let request = self.search.request;
        let load = node.load_for(request);
        let Some(name) = request.source.as_ref()?.listed_as() else {
            return Some((0, None));
        };
        let here = node.machine.model(&name);
        let download = match (here, &request.artifact) {
            (None, Some(artifact)) => Bytes(artifact.download_bytes),
            (Some(_), _) | (None, None) => Bytes::ZERO,
        };
        let copy = here.filter(|model| request.served(model).is_some());
        // The size is unknown until the files exist.
        let Some(model) = copy.or(self.model) else {
            return Some((0, None));
        };
        let served = request.served(model)?;
        let ask = request.ask(model, &served, download);
        let parameters = Parameters::built_in();
        let serving = effort(&Rejection::ContextTooLong { model_max_tokens: 0 });
        if let Some(longest) = longest {
            let found = node.with_capacity(&load, |supply| shorter(&ask, longest, supply, parameters))?;
            return Some((serving, Some(found.to_string())));
        }
        let admits = |load: &Load| {
            let forced = request.overridden && load.undetermined == 0;
            forced || node.with_capacity(load, |supply| Verdict::new(&ask, supply, parameters).admitted())
        };
        if admits(&load) {
            return Some((0, None));
        }
        let found = node.with_capacity(&load, |supply| suggestions(&ask, supply, parameters));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        if !found.is_empty() {
            return Some((serving, Some(format!("{} for {}", found.join(" or "), node.name))));
        }
        if load.is_empty() || !admits(&Load::default()) {
            return None;
        }
        let fewer = format!("fewer other replicas on {}", node.name);
        Some((LEAVING, Some(fewer)))
    }

    /// Returns whether an existing node could run the replica without other replicas.
    fn could_ever_hold(&self) -> bool {
        let request = self.search.request;
        let needed = |model: &NodeModel| {
            let served = request.served(model)?;
            let requirements = Requirements::new(
                &request.ask(model, &served, Bytes::ZERO),
                None,
                &[],
                Parameters::built_in(),
            );
            Some(requirements.reservation.total())
        };
        self.index.could_ever_hold(self.model.and_then(needed))
    }

    /// Returns the smallest suitable Mac.
    fn purchase(&self) -> Option<String> {
        let request = self.search.request;
        let model = self.model?;
        let served = request.served(model)?;
        let ask = request.ask(model, &served, Bytes::ZERO);
        let least = chip::catalogue().iter();
        let mut holds = false;
        let least = least.filter_map(|chip| {
            let hardware = Some(Hardware::Chip(chip));
            let requirements = Requirements::new(&ask, hardware, &[], Parameters::built_in());
            let needed = requirements.reservation.total();
            holds |= chip
                .memory
                .iter()
                .any(|memory| needed <= allocatable(*memory, None));
            let fits = |memory: &Bytes| requirements.fits_empty_node(allocatable(*memory, None));
            let memory = chip.memory.iter().copied().filter(fits).min()?;
            Some((memory, chip))
        });
        let least = least.min_by(|(memory, chip), (other_memory, other)| {
            let by_bandwidth = chip.bandwidth.0.total_cmp(&other.bandwidth.0);
            memory.cmp(other_memory).then(by_bandwidth)
        });
        Some(match least {
            Some((memory, chip)) if request.has_objectives() => {
                format!("a Mac with at least {}, such as {chip}", nominal_size(memory))
            }
            Some((memory, _)) => format!("a Mac with at least {}", nominal_size(memory)),
            None if holds => "lower spec.objectives: no available Mac reaches them".to_owned(),
            None => "a smaller model: no available Mac has enough memory for this one".to_owned(),
        })
    }
}

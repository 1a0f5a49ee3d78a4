//! Resource that runs out first as the demand grows.
//!
//! The bottleneck is determined by trial: the search runs with twice the memory, with chips of
//! twice the speed, and with unlimited disks. The resource that increases the capacity most is the
//! bottleneck. Its explanation comes from the nodes that are full.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::instance::{Group, Instance, Limit, MAX_FACTOR, Placement, TOLERANCE};
use super::question::{Judged, Question};
use super::search::{self, Capacity};
use super::streams::StreamChoices;
use super::working::Working;
use rooflet_roofline::predict::Constraint;

/// Share of idle time below which a node counts as busy.
const IDLE: f64 = 0.02;
/// Minimum ratio between two trials for a significant difference. Smaller differences are search
/// noise.
const SIGNIFICANT: f64 = 1.02;

/// Maximum capacity that is searched on better machines, as a multiple of the current bound.
const CEILING: f64 = 4.0;

/// Bottleneck, with an explanation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Binding {
    pub(super) constraint: Constraint,
    pub(super) why: String,
}

/// Capacity on better machines, as multiples of the demand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WhatIfs {
    pub(super) twice_memory: f64,
    pub(super) twice_speed: f64,
    /// `None` if disks do not limit the plan.
    pub(super) unlimited_disk: Option<f64>,
}

impl WhatIfs {
    /// Evaluates better machines. The current machines carry `factor` times the demand; `bound` is
    /// an upper bound of that factor. `limits`: maximum streams of each model.
    pub(super) fn new(
        question: &Question,
        judged: &Judged<'_>,
        limits: &[u32],
        factor: f64,
        bound: f64,
    ) -> Self {
        let ceiling = CEILING * bound.max(1.0);
        let with_limits = |better: &Question| StreamChoices::new(better, false).judged(limits).instance;
        let carried = |instance: Instance| search::reachable(&instance, ceiling).max(factor);
        Self {
            twice_memory: carried(with_limits(&question.with_memory(2))),
            twice_speed: carried(judged.with_speed(2.0)),
            unlimited_disk: question
                .counts_disk()
                .then(|| carried(with_limits(&question.without_disks()))),
        }
    }
}

/// Explains why no node can serve the model, with the refusal of the node with the most memory.
pub(super) fn unservable(working: &Working<'_>, model: usize) -> Option<Binding> {
    let judged = working.judged;
    let fits = judged.fits[model].iter().enumerate();
    let (class, fit) = fits
        .filter(|(class, _)| judged.classes[*class].nodes > 0)
        .max_by_key(|(class, _)| judged.classes[*class].allocatable)?;
    let refusal = fit.verdict.refusals.first();
    let why = refusal.map_or_else(|| "its speed is unknown".to_owned(), ToString::to_string);
    Some(Binding {
        constraint: refusal.map_or(Constraint::Policy, |one| one.constraint()),
        why: format!("{} on {}: {why}", working.name(model), judged.classes[class].name),
    })
}

/// Returns the first model that requires more replicas than suitable nodes exist.
fn too_few_nodes(working: &Working<'_>) -> Option<Binding> {
    let judged = working.judged;
    judged.models.iter().enumerate().find_map(|(model, planned)| {
        let classes = judged.instance.classes.iter().enumerate();
        let able = classes.filter(|(class, _)| judged.instance.need(model, *class).is_some());
        let nodes: u32 = able.map(|(_, class)| class.nodes).sum();
        (nodes < planned.replicas).then(|| Binding {
            constraint: Constraint::Policy,
            why: format!(
                "{} requires {} nodes, one per replica; number of nodes that can serve it: {nodes}",
                working.name(model),
                planned.replicas
            ),
        })
    })
}

/// Returns the bottleneck of `capacity`, or `None` if the capacity is practically unlimited.
pub(super) fn binding(working: &Working<'_>, capacity: &Capacity, what_ifs: WhatIfs) -> Option<Binding> {
    let Some(most) = &capacity.placement else {
        if let Some(few) = too_few_nodes(working) {
            return Some(few);
        }
        let disk = what_ifs.unlimited_disk;
        return Some(Binding {
            constraint: match disk.is_some_and(|disk| disk > SIGNIFICANT * what_ifs.twice_memory) {
                true => Constraint::Disk,
                false => Constraint::Memory,
            },
            why: "The required replicas do not fit together".to_owned(),
        });
    };
    if capacity.factor >= MAX_FACTOR * (1.0 - TOLERANCE) {
        return None;
    }
    // Models that limit the growth: their capacity equals the factor.
    let models = working.judged.models.iter().enumerate();
    let limited = models.filter(|(model, planned)| {
        planned.requests_per_second > 0.0
            && most.answered(*model) <= capacity.factor * planned.requests_per_second * 1.001
    });
    let limited: Vec<usize> = limited.map(|(model, _)| model).collect();
    if limited.is_empty() {
        return None;
    }
    let bottleneck = Bottleneck {
        working,
        most,
        limited: &limited,
    };
    let others = what_ifs.twice_memory.max(what_ifs.twice_speed);
    if what_ifs
        .unlimited_disk
        .is_some_and(|disk| disk > SIGNIFICANT * others)
    {
        let why = bottleneck.of_disk().unwrap_or_else(|| {
            "Disk runs out first: additional replicas need more disk than is free".to_owned()
        });
        return Some(Binding {
            constraint: Constraint::Disk,
            why,
        });
    }
    if what_ifs.twice_memory > SIGNIFICANT * what_ifs.twice_speed {
        let why = bottleneck.of_memory().unwrap_or_else(|| {
            "Memory runs out first: additional replicas do not fit next to the existing ones".to_owned()
        });
        return Some(Binding {
            constraint: Constraint::Memory,
            why,
        });
    }
    bottleneck.of_reservations().or_else(|| bottleneck.of_time())
}

/// Largest placement, and the models that limit its growth.
struct Bottleneck<'a> {
    working: &'a Working<'a>,
    most: &'a Placement,
    limited: &'a [usize],
}

impl Bottleneck<'_> {
    /// Returns nodes with idle time, each with a limiting model that they do not serve yet.
    fn demanded(&self) -> impl Iterator<Item = (&Group, usize)> {
        let instance = &self.working.judged.instance;
        let idle = self.most.groups.iter().filter(move |group| {
            let reserved = instance.classes[group.class].reserved;
            reserved + self.working.utilization(group) + IDLE <= instance.utilization
        });
        idle.flat_map(move |group| {
            let absent = move |model: &usize| group.replicas.iter().all(|share| share.model != *model);
            let known = move |model: &usize| instance.need(*model, group.class).is_some();
            let models = self.limited.iter().copied().filter(absent).filter(known);
            models.map(move |model| (group, model))
        })
    }

    fn of_memory(&self) -> Option<String> {
        let judged = self.working.judged;
        let full = |(group, model): &(&Group, usize)| {
            judged.instance.need(*model, group.class).is_some_and(|need| {
                self.working.memory(group) + need.memory > judged.instance.classes[group.class].memory
            })
        };
        let (group, model) = self.demanded().find(full)?;
        Some(format!(
            "Memory runs out first: nodes of {} have idle time but not enough memory for {}",
            judged.classes[group.class].name,
            self.working.name(model)
        ))
    }

    fn of_disk(&self) -> Option<String> {
        let judged = self.working.judged;
        let full = |(group, model): &(&Group, usize)| {
            let need = judged.instance.need(*model, group.class);
            let free = judged.instance.classes[group.class].disk;
            need.zip(free)
                .is_some_and(|(need, free)| self.working.disk(group) + need.disk > free)
        };
        let (group, model) = self.demanded().find(full)?;
        Some(format!(
            "Disk runs out first: nodes of {} have idle time, but their disks have no space for {}",
            judged.classes[group.class].name,
            self.working.name(model)
        ))
    }

    fn of_reservations(&self) -> Option<Binding> {
        let judged = self.working.judged;
        let is_reserved = |(group, model): &(&Group, usize)| {
            let shares = group
                .replicas
                .iter()
                .map(|share| share.model)
                .chain([*model])
                .filter_map(|model| Some(judged.instance.need(model, group.class)?.reserved));
            judged.instance.classes[group.class].reserved + shares.sum::<f64>() > 1.0
        };
        let (group, model) = self.demanded().find(is_reserved)?;
        Some(Binding {
            constraint: Constraint::Bandwidth,
            why: format!(
                "Bandwidth runs out first: objectives reserve the bandwidth of {}, and none is left for {}",
                judged.classes[group.class].name,
                self.working.name(model)
            ),
        })
    }

    fn of_time(&self) -> Option<Binding> {
        let judged = self.working.judged;
        let hosts = self.most.groups.iter().filter(|group| {
            group
                .replicas
                .iter()
                .any(|share| self.limited.contains(&share.model))
        });
        let tight: Vec<_> = hosts
            .filter_map(|group| Some((group, self.working.first_limit(group)?)))
            .collect();
        let first = tight
            .iter()
            .map(|(_, (.., factor))| *factor)
            .fold(f64::INFINITY, f64::min);
        // If several classes are full, report the one with the most nodes.
        let mut nodes: BTreeMap<usize, u32> = BTreeMap::new();
        let equal = || tight.iter().filter(|(_, (.., factor))| *factor <= first * 1.01);
        for (group, _) in equal() {
            *nodes.entry(group.class).or_default() += group.nodes;
        }
        let idle = |class: usize| judged.instance.classes[class].nodes - self.used(class);
        let (group, (constraint, limit, _)) = equal().max_by_key(|(group, _)| {
            (
                idle(group.class) == 0,
                nodes.get(&group.class).copied(),
                Reverse(group.class),
            )
        })?;
        let others = nodes.len() - 1;
        let class = match others {
            0 => judged.classes[group.class].name.clone(),
            1 => format!("{} and one other class", judged.classes[group.class].name),
            others => format!("{} and {others} other classes", judged.classes[group.class].name),
        };
        let what = match limit {
            Limit::Device => format!(
                "nodes of {class} are then busy {:.0} % of the time",
                100.0 * judged.instance.utilization
            ),
            Limit::Objectives => {
                format!("prefill on {class} then leaves too little time for the decode objectives")
            }
            Limit::FirstToken => {
                format!("the time to first token on {class} is then too long because of other prompts")
            }
        };
        Some(Binding {
            constraint: *constraint,
            why: format!(
                "{} runs out first: {what}{}",
                constraint.as_str(),
                self.too_small()
            ),
        })
    }

    fn used(&self, class: usize) -> u32 {
        let groups = self.most.groups.iter().filter(|group| group.class == class);
        groups.map(|group| group.nodes).sum()
    }

    /// Describes idle nodes that are too small for some models.
    fn too_small(&self) -> String {
        let judged = self.working.judged;
        let idle = |class: &usize| judged.instance.classes[*class].nodes - self.used(*class);
        let classes = (0..judged.classes.len()).filter(|class| idle(class) > 0);
        let Some(class) = classes.max_by_key(|class| (idle(class), Reverse(*class))) else {
            return String::new();
        };
        let models = 0..judged.models.len();
        let small = models
            .filter(|model| judged.instance.need(*model, class).is_none())
            .count();
        let (idle, name) = (idle(&class), &judged.classes[class].name);
        match small {
            0 => String::new(),
            small => format!(
                "; {idle} of {name} are then idle because {small} of {} models do not fit",
                judged.models.len()
            ),
        }
    }
}

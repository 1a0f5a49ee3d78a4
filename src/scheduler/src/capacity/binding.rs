//! What runs out first as the demand grows. Asked by trial: of twice the memory, chips twice as
//! fast and disks that are not counted, what helps more is what is short; the sentence about it
//! comes from the nodes that are full.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::instance::{Group, Limit, MAX_FACTOR, Placement, TOLERANCE};
use super::question::{Judged, Question};
use super::search::{self, Capacity};
use super::working::Working;
use rooflet_roofline::predict::Constraint;

/// A node with less of its time left than this is counted as busy when the reason of a limit is
/// sought.
const IDLE: f64 = 0.02;
/// One trial helps more than the other from this share on; below it the search may as well have
/// been luckier.
const CLEARLY: f64 = 1.02;

/// Better machines are asked for so many times the demand at most that the present ones could
/// carry.
const CEILING: f64 = 4.0;

/// What is short, and a sentence about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Binding {
    pub(super) constraint: Constraint,
    pub(super) why: String,
}

/// Multiples of the demand on better machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WhatIfs {
    pub(super) twice_memory: f64,
    pub(super) twice_speed: f64,
    /// Where disks are counted.
    pub(super) unlimited_disk: Option<f64>,
}

impl WhatIfs {
    /// On machines like those of `judged`, which carry `factor` as they are and `bound` at most.
    pub(super) fn new(question: &Question, judged: &Judged<'_>, factor: f64, bound: f64) -> Self {
        let ceiling = CEILING * bound.max(1.0);
        let carried = |instance| search::reachable(&instance, ceiling).max(factor);
        Self {
            twice_memory: carried(Judged::new(&question.with_memory(2), false).instance),
            twice_speed: carried(judged.with_speed(2.0)),
            unlimited_disk: question
                .counts_disk()
                .then(|| carried(Judged::new(&question.without_disks(), false).instance)),
        }
    }
}

/// A model that no node can have, and why the node with most memory cannot.
pub(super) fn unservable(working: &Working<'_>, model: usize) -> Option<Binding> {
    let judged = working.judged;
    let fits = judged.fits[model].iter().enumerate();
    let (class, fit) = fits
        .filter(|(class, _)| judged.classes[*class].nodes > 0)
        .max_by_key(|(class, _)| judged.classes[*class].allocatable)?;
    let refusal = fit.verdict.refusals.first();
    let why = refusal.map_or_else(|| "nobody knows how fast it is".to_owned(), ToString::to_string);
    Some(Binding {
        constraint: refusal.map_or(Constraint::Policy, |one| one.constraint()),
        why: format!("{} on {}: {why}", working.name(model), judged.classes[class].name),
    })
}

/// A model that must be on more nodes than there are for it.
fn too_few_nodes(working: &Working<'_>) -> Option<Binding> {
    let judged = working.judged;
    judged.models.iter().enumerate().find_map(|(model, planned)| {
        let classes = judged.instance.classes.iter().enumerate();
        let able = classes.filter(|(class, _)| judged.instance.need(model, *class).is_some());
        let nodes: u32 = able.map(|(_, class)| class.nodes).sum();
        (nodes < planned.replicas).then(|| Binding {
            constraint: Constraint::Policy,
            why: format!(
                "{} must be on {} nodes, each with one replica, and {nodes} of the fleet's can have it",
                working.name(model),
                planned.replicas
            ),
        })
    })
}

/// What keeps `capacity` from being more; `None` where nothing in sight does.
pub(super) fn binding(working: &Working<'_>, capacity: &Capacity, what_ifs: WhatIfs) -> Option<Binding> {
    let Some(most) = &capacity.placement else {
        if let Some(few) = too_few_nodes(working) {
            return Some(few);
        }
        let disk = what_ifs.unlimited_disk;
        return Some(Binding {
            constraint: match disk.is_some_and(|disk| disk > CLEARLY * what_ifs.twice_memory) {
                true => Constraint::Disk,
                false => Constraint::Memory,
            },
            why: "The replicas that must be there do not fit beside one another".to_owned(),
        });
    };
    if capacity.factor >= MAX_FACTOR * (1.0 - TOLERANCE) {
        return None;
    }
    // The models that stop growth: they are answered no more than the factor.
    let models = working.judged.models.iter().enumerate();
    let limited = models.filter(|(model, planned)| {
        planned.requests_per_second > 0.0
            && most.answered(*model) <= capacity.factor * planned.requests_per_second * 1.001
    });
    let limited: Vec<usize> = limited.map(|(model, _)| model).collect();
    if limited.is_empty() {
        return None;
    }
    let short = Short {
        working,
        most,
        limited: &limited,
    };
    let others = what_ifs.twice_memory.max(what_ifs.twice_speed);
    if what_ifs
        .unlimited_disk
        .is_some_and(|disk| disk > CLEARLY * others)
    {
        let why = short.of_disk().unwrap_or_else(|| {
            "Disk runs out first: replicas that would help may store more than there is beside those that are there"
                .to_owned()
        });
        return Some(Binding {
            constraint: Constraint::Disk,
            why,
        });
    }
    if what_ifs.twice_memory > CLEARLY * what_ifs.twice_speed {
        let why = short.of_memory().unwrap_or_else(|| {
            "Memory runs out first: replicas that would help do not fit beside those that are there"
                .to_owned()
        });
        return Some(Binding {
            constraint: Constraint::Memory,
            why,
        });
    }
    short.of_promises().or_else(|| short.of_time())
}

/// The largest placement, and the models that stop its growth.
struct Short<'a> {
    working: &'a Working<'a>,
    most: &'a Placement,
    limited: &'a [usize],
}

impl Short<'_> {
    /// Nodes that have time left, each with a model that would help and is not there.
    fn wanted(&self) -> impl Iterator<Item = (&Group, usize)> {
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
        let (group, model) = self.wanted().find(full)?;
        Some(format!(
            "Memory runs out first: nodes of {} have time left and no room for {}",
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
        let (group, model) = self.wanted().find(full)?;
        Some(format!(
            "Disk runs out first: nodes of {} have time left, and their disks are promised to others than {}",
            judged.classes[group.class].name,
            self.working.name(model)
        ))
    }

    fn of_promises(&self) -> Option<Binding> {
        let judged = self.working.judged;
        let promised = |(group, model): &(&Group, usize)| {
            let shares = group
                .replicas
                .iter()
                .map(|share| share.model)
                .chain([*model])
                .filter_map(|model| Some(judged.instance.need(model, group.class)?.reserved));
            judged.instance.classes[group.class].reserved + shares.sum::<f64>() > 1.0
        };
        let (group, model) = self.wanted().find(promised)?;
        Some(Binding {
            constraint: Constraint::Bandwidth,
            why: format!(
                "Bandwidth runs out first: that of {} is promised to objectives, and none is left for {}",
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
        // Of the classes that are full together the one with most such nodes speaks for all.
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
                format!("prompts then leave too little of the time of {class} for the decode objectives")
            }
            Limit::FirstToken => {
                format!("first tokens then wait too long behind other prompts on {class}")
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

    /// Nodes that stay idle although more is wanted, and how many models they could not have
    /// anyway.
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
                "; {idle} of {name} stay idle then, which {small} of {} models do not fit",
                judged.models.len()
            ),
        }
    }
}

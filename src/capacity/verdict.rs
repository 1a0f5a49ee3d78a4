//! The answer: feasible or not, where everything goes, what is left, what breaks first, and what one lost node means.

use std::collections::BTreeMap;

use super::instance::{Group, Limit, Placement, TOLERANCE};
use super::question::{Judged, PlannedModel, Question};
use super::{purchase, search};
use crate::api::v1alpha1::{
    Percentiles, PlanClass, PlanFit, PlanModel, PlanNodeLoss, PlanPlacement, PlanReplica, PlanVerdict,
};
use crate::roofline::predict::{Constraint, Interval};
use crate::units::Bytes;

/// A node with less of its time left than this is counted as busy when the reason of a limit is sought.
const IDLE: f64 = 0.02;

/// Answers `question`.
pub(crate) fn answer(question: &Question) -> PlanVerdict {
    let judged = Judged::new(question, false);
    let capacity = search::capacity(&judged.instance);
    let feasible = capacity.carries_demand();
    let most = capacity.placement.clone().unwrap_or_default();
    // Without enough for all, the placement shows what there would be for all alike.
    let shown = if feasible {
        search::frugal(&judged.instance, &most)
    } else {
        most.clone().scaled(&judged.instance, capacity.factor.min(1.0))
    };
    let working = Working {
        judged: &judged,
        placement: &shown,
        most: &most,
    };
    let classes = working.classes();
    let binding = working.binding(capacity.factor);
    let node_losses = if feasible {
        working.node_losses()
    } else {
        Vec::new()
    };
    let owned = |value: fn(&super::question::NodeClass) -> Option<f64>| -> Option<f64> {
        let each = question.classes.iter().filter(|class| class.nodes > 0);
        let all: Option<Vec<f64>> = each
            .map(|class| Some(value(class)? * f64::from(class.nodes)))
            .collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    };
    let mut verdict = PlanVerdict {
        feasible,
        summary: String::new(),
        binding: binding
            .as_ref()
            .map(|(constraint, _)| constraint.as_str().to_owned()),
        demand_factor: capacity.factor,
        demand_factor_bound: capacity.bound,
        proven: capacity.proven(),
        placement_factor: working
            .placement_factor(&classes)
            .unwrap_or(capacity.factor.min(1.0)),
        nodes: judged.instance.nodes(),
        nodes_used: shown.groups.iter().map(|group| group.nodes).sum(),
        survives_node_loss: feasible && node_losses.iter().all(|loss| loss.survives),
        models: working.models(),
        classes,
        placements: working.placements(),
        node_losses,
        price: owned(|class| class.price),
        watts: owned(|class| class.watts),
        purchase: (!question.offers.is_empty()).then(|| purchase::recommend(question)),
    };
    verdict.summary = summary(&verdict, &binding, &judged);
    verdict
}

fn summary(verdict: &PlanVerdict, binding: &Option<(Constraint, String)>, judged: &Judged<'_>) -> String {
    let why = binding.as_ref().map_or("", |(_, why)| why.as_str());
    if verdict.nodes == 0 {
        return "There is no node.".to_owned();
    }
    if verdict.feasible {
        let loss = if verdict.survives_node_loss {
            "any one node may fail".to_owned()
        } else {
            let breaks = verdict.node_losses.iter().filter(|loss| !loss.survives);
            let classes: Vec<_> = breaks.map(|loss| loss.class.as_str()).collect();
            format!("the loss of one node breaks it ({})", classes.join(", "))
        };
        return format!(
            "The demand fits: {} of {} nodes are used, and the fleet carries it {}. {why}; {loss}.",
            verdict.nodes_used,
            verdict.nodes,
            times(verdict.demand_factor)
        );
    }
    let nowhere = verdict
        .models
        .iter()
        .filter(|model| model.fits.iter().all(|fit| !fit.admitted));
    let nowhere: Vec<_> = nowhere.map(|model| model.name.as_str()).collect();
    if !nowhere.is_empty() {
        return format!(
            "The demand does not fit: no node can serve {}. {why}.",
            nowhere.join(", ")
        );
    }
    let proof = if verdict.demand_factor_bound < 1.0 - TOLERANCE {
        "No placement carries all of it".to_owned()
    } else {
        format!(
            "No placement that carries all of it was found, and none carries more than {}",
            times(verdict.demand_factor_bound)
        )
    };
    let most = if judged.models.is_empty() || verdict.demand_factor <= 0.0 {
        "not even one replica of each model".to_owned()
    } else {
        format!("{:.0} % of it", verdict.demand_factor * 100.0)
    };
    format!("The demand does not fit: the fleet carries {most}. {proof}. {why}.")
}

/// `1.6 times`.
fn times(factor: f64) -> String {
    if factor >= super::instance::MAX_FACTOR {
        format!("more than {factor:.0} times")
    } else if factor >= 10.0 {
        format!("{factor:.0} times")
    } else {
        format!("{factor:.2} times")
    }
}

struct Working<'a> {
    judged: &'a Judged<'a>,
    /// For the demand as it is.
    placement: &'a Placement,
    /// For the largest factor.
    most: &'a Placement,
}

impl Working<'_> {
    fn name(&self, model: usize) -> String {
        self.judged.models[model].name.clone()
    }

    fn memory(&self, group: &Group) -> Bytes {
        let of = |model: usize| {
            self.judged
                .instance
                .need(model, group.class)
                .map_or(Bytes::ZERO, |need| need.memory)
        };
        group.replicas.iter().map(|share| of(share.model)).sum()
    }

    /// What the group's nodes use of each limit: name, used, room.
    fn rows(&self, group: &Group) -> Vec<(Limit, f64, f64)> {
        let rows = self
            .judged
            .instance
            .node_rows(group.class, &group.models())
            .unwrap_or_default();
        let used = |terms: &[f64]| {
            terms
                .iter()
                .zip(&group.replicas)
                .map(|(term, share)| term * share.rate)
                .sum()
        };
        rows.iter()
            .map(|row| (row.limit, used(&row.terms), row.room))
            .collect()
    }

    fn utilization(&self, group: &Group) -> f64 {
        let rows = self.rows(group);
        let device = rows.iter().find(|(limit, _, _)| *limit == Limit::Device);
        device.map_or(0.0, |(_, used, _)| *used)
    }

    /// What the chip's time on these nodes goes into most.
    fn composition(&self, group: &Group) -> Constraint {
        let mut spent: BTreeMap<Constraint, f64> = BTreeMap::new();
        for share in &group.replicas {
            if let Some(load) = &self.judged.fits[share.model][group.class].load {
                *spent.entry(Constraint::Compute).or_default() += share.rate * load.prefill;
                *spent.entry(load.decode_bound).or_default() += share.rate * (load.service - load.prefill);
            }
        }
        let most = spent.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Constraint::Bandwidth, |(constraint, _)| constraint)
    }

    /// The limit that is reached first as the loads grow together: the constraint, what it is about, and when.
    fn first_limit(&self, group: &Group) -> Option<(Constraint, Limit, f64)> {
        let rows = self.rows(group).into_iter().filter(|(_, used, _)| *used > 0.0);
        let first = rows
            .map(|(limit, used, room)| (limit, room / used))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        first.map(|(limit, factor)| {
            let constraint = match limit {
                Limit::Device => self.composition(group),
                Limit::Objectives => Constraint::Bandwidth,
                Limit::FirstToken => Constraint::Compute,
            };
            (constraint, limit, factor)
        })
    }

    fn placement_factor(&self, classes: &[PlanClass]) -> Option<f64> {
        classes
            .iter()
            .filter_map(|class| class.breaks_at)
            .min_by(f64::total_cmp)
    }

    fn classes(&self) -> Vec<PlanClass> {
        let of_class = |(index, class): (usize, &&super::question::NodeClass)| {
            let groups: Vec<_> = self
                .placement
                .groups
                .iter()
                .filter(|group| group.class == index)
                .collect();
            let most =
                |value: &dyn Fn(&Group) -> f64| groups.iter().map(|group| value(group)).fold(0.0, f64::max);
            let first = groups
                .iter()
                .filter_map(|group| self.first_limit(group))
                .min_by(|a, b| a.2.total_cmp(&b.2));
            let reserved = |group: &Group| {
                let each = group
                    .replicas
                    .iter()
                    .filter_map(|share| self.judged.instance.need(share.model, index));
                class.committed + each.map(|need| need.reserved).sum::<f64>()
            };
            let tokens = |group: &&Group| {
                let answers = |share: &super::instance::Share| {
                    share.rate * f64::from(self.judged.models[share.model].answer_tokens)
                };
                f64::from(group.nodes) * group.replicas.iter().map(answers).sum::<f64>()
            };
            let basis = self
                .judged
                .fits
                .iter()
                .filter_map(|fits| Some(fits[index].verdict.speed?.basis))
                .max();
            PlanClass {
                name: class.name.clone(),
                chip: class.chip.clone(),
                nodes: class.nodes,
                nodes_used: groups.iter().map(|group| group.nodes).sum(),
                bandwidth_bytes_per_second: class.bandwidth.map(|bandwidth| bandwidth.0),
                basis: basis.map_or("Unknown", |basis| basis.as_str()).to_owned(),
                memory_limit_bytes: class.allocatable.0,
                memory_used_bytes: class.held.0
                    + groups.iter().map(|group| self.memory(group).0).max().unwrap_or(0),
                utilization_percent: 100.0 * (class.committed + most(&|group| self.utilization(group))),
                reserved_percent: 100.0 * most(&reserved).max(class.committed),
                tokens_per_second: groups.iter().map(tokens).fold(0.0, |sum, one| sum + one),
                binding: first.map(|(constraint, _, _)| constraint.as_str().to_owned()),
                breaks_at: first.map(|(_, _, factor)| factor),
            }
        };
        self.judged.classes.iter().enumerate().map(of_class).collect()
    }

    fn models(&self) -> Vec<PlanModel> {
        let of_model = |(index, model): (usize, &PlannedModel)| {
            let answered = self.placement.answered(index);
            let replicas = self.placement.replicas(index);
            PlanModel {
                name: model.name.clone(),
                requests_per_second: model.requests_per_second,
                tokens_per_second: model.requests_per_second * f64::from(model.answer_tokens),
                served: answered >= model.requests_per_second * (1.0 - 10.0 * TOLERANCE)
                    && replicas >= model.replicas,
                replicas,
                fits: self.fits(index, model),
            }
        };
        self.judged.models.iter().enumerate().map(of_model).collect()
    }

    fn fits(&self, index: usize, model: &PlannedModel) -> Vec<PlanFit> {
        let nowhere = self.judged.fits[index].iter().all(|fit| !fit.verdict.admitted());
        let of_class = |(class, fit): (usize, &super::question::Fit)| {
            let verdict = &fit.verdict;
            let supply = self.judged.classes[class];
            let suggestions = if nowhere {
                model.suggestions(supply)
            } else {
                Vec::new()
            };
            PlanFit {
                class: supply.name.clone(),
                admitted: verdict.admitted() && fit.load.is_some(),
                refusals: verdict.refusals.iter().map(ToString::to_string).collect(),
                suggestions: suggestions.iter().map(ToString::to_string).collect(),
                binding: verdict.binding().map(|constraint| constraint.as_str().to_owned()),
                memory_bytes: verdict.reservation.total().0,
                weights_bytes: verdict.reservation.weights.0,
                kv_bytes: verdict.reservation.kv_cache.0,
                tokens_per_second: verdict.speed.map(|speed| percentiles(speed.decode)),
                time_to_first_token_seconds: verdict.speed.map(|speed| percentiles(speed.first_token)),
                chip_time_percent: 100.0 * verdict.share,
                max_requests_per_second: finite(self.judged.instance.alone(index, class)),
                basis: verdict
                    .speed
                    .map_or("Unknown", |speed| speed.basis.as_str())
                    .to_owned(),
            }
        };
        self.judged.fits[index].iter().enumerate().map(of_class).collect()
    }

    fn placements(&self) -> Vec<PlanPlacement> {
        let of_group = |group: &Group| {
            let load = |share: &super::instance::Share| self.judged.fits[share.model][group.class].load;
            // Pollaczek and Khinchine: the mean wait behind the prefills of all models on the node.
            let (mut busy, mut squared) = (0.0, 0.0);
            for share in &group.replicas {
                let prefill = load(share).map_or(0.0, |load| load.prefill);
                busy += share.rate * prefill;
                squared += share.rate * prefill * prefill;
            }
            let wait = squared / (2.0 * (1.0 - busy).max(1e-6));
            let replica = |share: &super::instance::Share| PlanReplica {
                model: self.name(share.model),
                requests_per_second: share.rate,
                memory_bytes: self
                    .judged
                    .instance
                    .need(share.model, group.class)
                    .map_or(0, |need| need.memory.0),
                utilization_percent: 100.0 * share.rate * load(share).map_or(0.0, |load| load.service),
                mean_time_to_first_token_seconds: load(share).map(|load| wait + load.prefill),
            };
            PlanPlacement {
                class: self.judged.classes[group.class].name.clone(),
                nodes: group.nodes,
                replicas: group.replicas.iter().map(replica).collect(),
                memory_bytes: self.memory(group).0,
                utilization_percent: 100.0 * self.utilization(group),
            }
        };
        self.placement.groups.iter().map(of_group).collect()
    }

    fn node_losses(&self) -> Vec<PlanNodeLoss> {
        let instance = &self.judged.instance;
        let of_class = |(index, class): (usize, &&super::question::NodeClass)| {
            let broken = search::without_one(instance, index).err();
            let single = |model: &usize| {
                self.placement.replicas(*model) == 1
                    && self.placement.groups.iter().any(|group| {
                        group.class == index && group.replicas.iter().any(|share| share.model == *model)
                    })
            };
            PlanNodeLoss {
                class: class.name.clone(),
                survives: broken.is_none(),
                broken: broken
                    .unwrap_or_default()
                    .into_iter()
                    .map(|model| self.name(model))
                    .collect(),
                interrupted: (0..self.judged.models.len())
                    .filter(single)
                    .map(|model| self.name(model))
                    .collect(),
            }
        };
        let classes = self.judged.classes.iter().enumerate();
        classes
            .filter(|(_, class)| class.nodes > 0)
            .map(of_class)
            .collect()
    }

    /// What stands in the way of more, and a sentence about it.
    fn binding(&self, factor: f64) -> Option<(Constraint, String)> {
        let models = self.judged.models.iter().enumerate();
        // A model that no node can have comes before everything else.
        let nowhere = models
            .clone()
            .find(|(model, _)| self.judged.fits[*model].iter().all(|fit| fit.load.is_none()));
        if let Some((model, planned)) = nowhere {
            let refusals = self.judged.fits[model].iter().enumerate();
            let nearest = refusals
                .filter(|(class, _)| self.judged.classes[*class].nodes > 0)
                .max_by_key(|(class, _)| self.judged.classes[*class].allocatable);
            return nearest.map(|(class, fit)| {
                let name = &self.judged.classes[class].name;
                let why = fit
                    .verdict
                    .refusals
                    .first()
                    .map_or_else(|| "nobody knows how fast it is".to_owned(), ToString::to_string);
                let constraint = fit
                    .verdict
                    .refusals
                    .first()
                    .map_or(Constraint::Policy, |one| one.constraint());
                (constraint, format!("{} on {name}: {why}", planned.name))
            });
        }
        // The models that stop growth: they are answered no more than the factor.
        let limited = models.filter(|(model, planned)| {
            planned.requests_per_second > 0.0
                && self.most.answered(*model) <= factor * planned.requests_per_second * 1.001
        });
        let limited: Vec<usize> = limited.map(|(model, _)| model).collect();
        if self.most.groups.is_empty() {
            let why = "the replicas that must be there do not fit beside one another".to_owned();
            return Some((Constraint::Memory, why));
        }
        if let Some(found) = self.blocked_by_room(&limited) {
            return Some(found);
        }
        let hosts = self
            .most
            .groups
            .iter()
            .filter(|group| group.replicas.iter().any(|share| limited.contains(&share.model)));
        let tight = hosts.filter_map(|group| Some((group, self.first_limit(group)?)));
        let (group, (constraint, limit, _)) = tight.min_by(|a, b| a.1.2.total_cmp(&b.1.2))?;
        let class = &self.judged.classes[group.class].name;
        let what = match limit {
            Limit::Device => format!(
                "nodes of {class} are then busy {:.0} % of the time",
                100.0 * self.judged.instance.utilization
            ),
            Limit::Objectives => {
                format!("prompts then leave too little of the time of {class} for the decode objectives")
            }
            Limit::FirstToken => {
                format!("first tokens then wait too long behind other prompts on {class}")
            }
        };
        Some((
            constraint,
            format!("{} runs out first: {what}", constraint.as_str()),
        ))
    }

    /// A node that has time left for a model which stops growth, and no room for a replica of it.
    fn blocked_by_room(&self, limited: &[usize]) -> Option<(Constraint, String)> {
        let instance = &self.judged.instance;
        for group in &self.most.groups {
            let supply = &instance.classes[group.class];
            let busy = supply.reserved + self.utilization(group);
            if busy + IDLE > instance.utilization {
                continue;
            }
            let reserved: f64 = supply.reserved
                + group
                    .replicas
                    .iter()
                    .filter_map(|share| Some(instance.need(share.model, group.class)?.reserved))
                    .sum::<f64>();
            for model in limited {
                let Some(need) = instance.need(*model, group.class) else {
                    continue;
                };
                if group.replicas.iter().any(|share| share.model == *model) {
                    continue;
                }
                let (name, class) = (self.name(*model), &self.judged.classes[group.class].name);
                if self.memory(group) + need.memory > supply.memory {
                    let why = format!(
                        "Memory runs out first: nodes of {class} have time left and no room for {name}"
                    );
                    return Some((Constraint::Memory, why));
                }
                if reserved + need.reserved > 1.0 {
                    let why = format!(
                        "Bandwidth runs out first: that of {class} is promised to objectives, and none is left for {name}"
                    );
                    return Some((Constraint::Bandwidth, why));
                }
            }
        }
        None
    }
}

fn percentiles(interval: Interval) -> Percentiles {
    Percentiles {
        p10: interval.p10,
        p50: interval.p50,
        p90: interval.p90,
    }
}

/// JSON has no infinity.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

//! Conversion of a placement to the status of a plan: numbers of every model, class and group of
//! nodes.

use std::collections::BTreeMap;

use super::instance::{Group, Limit, Need, Placement, Share, TOLERANCE};
use super::question::{Fit, Judged, NodeClass, PlannedModel};
use rooflet_api::v1alpha1::{
    Percentiles, PlanClass, PlanFit, PlanHeadroom, PlanModel, PlanPlacement, PlanReplica,
};
use rooflet_base::units::Bytes;
use rooflet_roofline::predict::{Constraint, Interval};

/// Evaluated question and its placement.
pub(super) struct Working<'a> {
    pub(super) judged: &'a Judged<'a>,
    /// Placement for the demand, or for the carried part of it.
    pub(super) placement: &'a Placement,
    /// Carried part of the demand; 1 for the complete demand.
    pub(super) part: f64,
}

impl Working<'_> {
    pub(super) fn name(&self, model: usize) -> String {
        self.judged.models[model].name.clone()
    }

    pub(super) fn memory(&self, group: &Group) -> Bytes {
        self.needs(group).map(|need| need.memory).sum()
    }

    pub(super) fn disk(&self, group: &Group) -> Bytes {
        self.needs(group).map(|need| need.disk).sum()
    }

    fn needs(&self, group: &Group) -> impl Iterator<Item = &Need> {
        let shares = group.replicas.iter();
        shares.filter_map(move |share| self.judged.instance.need(share.model, group.class))
    }

    /// Returns limit, use and capacity of the group's nodes.
    pub(super) fn rows(&self, group: &Group) -> Vec<(Limit, f64, f64)> {
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

    pub(super) fn utilization(&self, group: &Group) -> f64 {
        let rows = self.rows(group);
        let device = rows.iter().find(|(limit, _, _)| *limit == Limit::Device);
        device.map_or(0.0, |(_, used, _)| *used)
    }

    /// Returns the constraint that uses most of the chip's time on these nodes.
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

    /// Returns the limit that is reached first if all loads grow: constraint, limit, and multiple
    /// of the demand.
    pub(super) fn first_limit(&self, group: &Group) -> Option<(Constraint, Limit, f64)> {
        let rows = self.rows(group).into_iter().filter(|(_, used, _)| *used > 0.0);
        let first = rows
            .map(|(limit, used, room)| (limit, room / used))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        // The loads may be only a part of the demand.
        first.map(|(limit, times)| {
            let factor = times * self.part;
            let constraint = match limit {
                Limit::Device => self.composition(group),
                Limit::Objectives => Constraint::Bandwidth,
                Limit::FirstToken => Constraint::Compute,
            };
            (constraint, limit, factor)
        })
    }

    pub(super) fn placement_factor(&self, classes: &[PlanClass]) -> Option<f64> {
        classes
            .iter()
            .filter_map(|class| class.breaks_at)
            .min_by(f64::total_cmp)
    }

    pub(super) fn classes(&self) -> Vec<PlanClass> {
        let of_class = |(index, class): (usize, &&NodeClass)| {
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
                let answers =
                    |share: &Share| share.rate * f64::from(self.judged.models[share.model].answer_tokens);
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
                disk_limit_bytes: class.disk.map(|disk| disk.limit.0),
                disk_used_bytes: class.disk.map(|disk| {
                    let largest = groups.iter().map(|group| self.disk(group)).max();
                    (disk.limit - disk.free + largest.unwrap_or(Bytes::ZERO)).0
                }),
                utilization_percent: 100.0 * (class.committed + most(&|group| self.utilization(group))),
                reserved_percent: 100.0 * most(&reserved).max(class.committed),
                tokens_per_second: groups.iter().map(tokens).fold(0.0, |sum, one| sum + one),
                price: class.price,
                watts: class.watts,
                binding: first.map(|(constraint, _, _)| constraint.as_str().to_owned()),
                breaks_at: first.map(|(_, _, factor)| factor),
            }
        };
        self.judged.classes.iter().enumerate().map(of_class).collect()
    }

    /// Returns the total headroom of all nodes, without the results of better machines.
    pub(super) fn headroom(&self) -> PlanHeadroom {
        let sum = |value: &dyn Fn(&Group) -> f64| -> f64 {
            let each = self.placement.groups.iter();
            each.map(|group| f64::from(group.nodes) * value(group))
                .fold(0.0, |sum, one| sum + one)
        };
        let classes = || self.judged.classes.iter();
        let all = |value: &dyn Fn(&NodeClass) -> f64| -> f64 {
            classes().map(|class| f64::from(class.nodes) * value(class)).sum()
        };
        let nodes = all(&|_| 1.0).max(1.0);
        let tokens: f64 = (0..self.judged.models.len())
            .map(|model| self.placement.answered(model) * f64::from(self.judged.models[model].answer_tokens))
            .fold(0.0, |sum, one| sum + one);
        PlanHeadroom {
            memory_used_bytes: (sum(&|group| self.memory(group).0 as f64) + all(&|class| class.held.0 as f64))
                as u64,
            memory_limit_bytes: all(&|class| class.allocatable.0 as f64) as u64,
            busy_percent: 100.0 * (sum(&|group| self.utilization(group)) + all(&|class| class.committed))
                / nodes,
            busy_limit_percent: 100.0 * self.judged.instance.utilization,
            tokens_per_second: tokens,
            ..PlanHeadroom::default()
        }
    }

    pub(super) fn models(&self) -> Vec<PlanModel> {
        let of_model = |(index, model): (usize, &PlannedModel)| {
            let answered = self.placement.answered(index);
            let replicas = self.placement.replicas(index);
            PlanModel {
                name: model.name.clone(),
                requests_per_second: model.requests_per_second,
                tokens_per_second: model.requests_per_second * f64::from(model.answer_tokens),
                prompt_tokens: model.prompt_tokens,
                cached_prompt_tokens: model.cached_prompt_tokens,
                answer_tokens: model.answer_tokens,
                context_tokens: model.demand.context_tokens,
                max_concurrency: model.demand.max_concurrency,
                objective_tokens_per_second: model.objectives.decode,
                objective_first_token_seconds: model.objectives.first_token.map(|one| one.max_seconds),
                served: answered >= model.requests_per_second * (1.0 - 10.0 * TOLERANCE)
                    && replicas >= model.replicas,
                replicas,
                fits: self.fits(index, model),
            }
        };
        self.judged.models.iter().enumerate().map(of_model).collect()
    }

    fn fits(&self, index: usize, model: &PlannedModel) -> Vec<PlanFit> {
        let nowhere = !self.judged.fits[index].iter().any(Fit::servable);
        let of_class = |(class, fit): (usize, &Fit)| {
            let verdict = &fit.verdict;
            let supply = self.judged.classes[class];
            let suggestions = if nowhere {
                model.suggestions(supply)
            } else {
                Vec::new()
            };
            PlanFit {
                class: supply.name.clone(),
                admitted: fit.servable(),
                refusals: verdict.refusals.iter().map(ToString::to_string).collect(),
                suggestions: suggestions.iter().map(ToString::to_string).collect(),
                binding: verdict.binding().map(|constraint| constraint.as_str().to_owned()),
                memory_bytes: verdict.reservation.total().0,
                weights_bytes: verdict.reservation.weights.0,
                kv_bytes: verdict.reservation.kv_cache.0,
                streams: fit.streams,
                tokens_per_second: verdict.speed.map(|speed| percentiles(speed.decode)),
                bytes_per_token: verdict.speed.map(|speed| speed.bytes_per_token),
                time_to_first_token_seconds: fit.load.map(|load| percentiles(load.first_token)),
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

    pub(super) fn placements(&self) -> Vec<PlanPlacement> {
        let of_group = |group: &Group| {
            let load = |share: &Share| self.judged.fits[share.model][group.class].load;
            // Pollaczek–Khinchine formula: mean wait behind the prefills of all models on the node.
            let (mut busy, mut squared) = (0.0, 0.0);
            for share in &group.replicas {
                let prefill = load(share).map_or(0.0, |load| load.prefill);
                busy += share.rate * prefill;
                squared += share.rate * prefill * prefill;
            }
            let wait = squared / (2.0 * (1.0 - busy).max(1e-6));
            let replica = |share: &Share| PlanReplica {
                model: self.name(share.model),
                requests_per_second: share.rate,
                memory_bytes: self
                    .judged
                    .instance
                    .need(share.model, group.class)
                    .map_or(0, |need| need.memory.0),
                disk_bytes: Some(self.judged.models[share.model].disk.0).filter(|disk| *disk > 0),
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
}

fn percentiles(interval: Interval) -> Percentiles {
    Percentiles {
        p10: interval.p10,
        p50: interval.p50,
        p90: interval.p90,
    }
}

/// Returns 0 for infinity, which JSON cannot represent.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

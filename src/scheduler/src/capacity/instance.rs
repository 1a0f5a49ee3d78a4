//! Numeric instance of a planning question: needs of each model on each class of node, and supply
//! of each class. The search uses only these numbers, which `question` computes.
//!
//! Constraints on a node with the models `p`, each serving `y` requests per second:
//!
//! - memory: `Σ memory ≤ free memory`; the same for disk, if known.
//! - device: `Σ y·service ≤ utilisation`. The utilisation law `U = X·S` (Denning and Buzen, 1978).
//! - admission: `Σ reserved ≤ 1`, the shares of the device that admission reserves.
//! - objectives: `Σ objective_share + Σ y·prefill ≤ 1`: beside prefill, all streams of all models can decode
//!   at their objectives simultaneously.
//! - first token: the mean wait behind other prefills of `t` seconds each, `Σ y·t² / 2(1 − Σ y·t)`
//!   in an M/G/1 queue (Pollaczek and Khinchine), is at most the smallest permitted wait `w` of all
//!   models. This is equivalent to the linear form `Σ y·(t + t²/2w) ≤ 1`.

use rooflet_base::units::Bytes;

/// Relative difference below which loads are equal.
pub(super) const TOLERANCE: f64 = 1e-6;
/// Maximum reported multiple of the demand.
pub(super) const MAX_FACTOR: f64 = 1000.0;

/// Numeric instance; see the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Instance {
    pub(super) classes: Vec<ClassSupply>,
    pub(super) models: Vec<ModelLoad>,
    /// Needs by model, then class; `None` if the model cannot run on the class.
    pub(super) needs: Vec<Vec<Option<Need>>>,
    /// Maximum utilization of a node, from 0 to 1.
    pub(super) utilization: f64,
}

/// Supply of a class of equal nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ClassSupply {
    pub(super) nodes: u32,
    /// Free memory of each node.
    pub(super) memory: Bytes,
    /// Free disk of each node; `None` if unknown, which disables the limit.
    pub(super) disk: Option<Bytes>,
    /// Share of each device that other replicas have reserved.
    pub(super) reserved: f64,
    /// Price of one node; used only for purchases.
    pub(super) price: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ModelLoad {
    /// Requests per second of the fleet.
    pub(super) rate: f64,
    /// Minimum number of nodes with a replica.
    pub(super) min_replicas: u32,
}

/// Needs of one replica on one node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Need {
    pub(super) memory: Bytes,
    pub(super) disk: Bytes,
    /// Share of the device's time that admission reserves.
    pub(super) reserved: f64,
    /// Part of `reserved` for the decode objective with all streams busy; 0 without an objective.
    pub(super) objective_share: f64,
    /// Device time per request in seconds: prefill, plus its part of the decode steps of a full
    /// batch.
    pub(super) service: f64,
    /// Part of `service` for prefill.
    pub(super) prefill: f64,
    /// Maximum mean wait before prefill in seconds; `None` for no limit.
    pub(super) wait: Option<f64>,
}

impl Need {
    /// Returns the less demanding of each need: the smaller amount and the longer wait.
    pub(super) fn at_most(&self, other: &Self) -> Self {
        let waits = self.wait.zip(other.wait);
        Self {
            memory: self.memory.min(other.memory),
            disk: self.disk.min(other.disk),
            reserved: self.reserved.min(other.reserved),
            objective_share: self.objective_share.min(other.objective_share),
            service: self.service.min(other.service),
            prefill: self.prefill.min(other.prefill),
            wait: waits.map(|(one, other)| one.max(other)),
        }
    }
}

/// Limit of a node other than memory and disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    Device,
    Objectives,
    FirstToken,
}

/// Linear limit of the request rates of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeRow {
    pub(super) limit: Limit,
    /// Coefficient of each model's requests per second.
    pub(super) terms: Vec<f64>,
    pub(super) room: f64,
}

impl Instance {
    pub(super) fn need(&self, model: usize, class: usize) -> Option<&Need> {
        self.needs[model][class].as_ref()
    }

    pub(super) fn nodes(&self) -> u32 {
        self.classes.iter().map(|class| class.nodes).sum()
    }

    /// Returns the instance without demand for `models`.
    pub(super) fn without(&self, models: &[usize]) -> Self {
        let mut rest = self.clone();
        for model in models {
            rest.models[*model] = ModelLoad {
                rate: 0.0,
                min_replicas: 0,
            };
        }
        rest
    }

    /// Returns the instance without one node of `class`. Required replicas exist for this case, so
    /// one replica of each model suffices.
    pub(super) fn without_node(&self, class: usize) -> Self {
        let mut rest = self.clone();
        rest.classes[class].nodes -= 1;
        for load in &mut rest.models {
            load.min_replicas = load.min_replicas.min(1);
        }
        rest
    }

    /// Returns the limits of a node of `class` with `models`, or `None` if the models do not fit
    /// together.
    pub(super) fn node_rows(&self, class: usize, models: &[usize]) -> Option<Vec<NodeRow>> {
        let supply = &self.classes[class];
        let needs: Vec<&Need> = models
            .iter()
            .map(|model| self.need(*model, class))
            .collect::<Option<_>>()?;
        supply.rows(&needs, self.utilization)
    }

    /// Returns the maximum requests per second of `model` on an otherwise empty node of `class`, or
    /// 0 if it does not fit.
    pub(super) fn alone(&self, model: usize, class: usize) -> f64 {
        self.need(model, class)
            .map_or(0.0, |need| self.classes[class].carried(need, self.utilization))
    }
}

impl ClassSupply {
    /// Returns the limits of a node with replicas of these needs, or `None` if they do not fit
    /// together.
    fn rows(&self, needs: &[&Need], utilization: f64) -> Option<Vec<NodeRow>> {
        let memory: Bytes = needs.iter().map(|need| need.memory).sum();
        let disk: Bytes = needs.iter().map(|need| need.disk).sum();
        let reserved = self.reserved + needs.iter().map(|need| need.reserved).sum::<f64>();
        if memory > self.memory || self.disk.is_some_and(|free| disk > free) || reserved > 1.0 + TOLERANCE {
            return None;
        }
        let mut rows = vec![NodeRow {
            limit: Limit::Device,
            terms: needs.iter().map(|need| need.service).collect(),
            room: (utilization - self.reserved).max(0.0),
        }];
        // Without objectives, the first row implies this one.
        let objective_share: f64 = needs.iter().map(|need| need.objective_share).sum();
        if objective_share > 0.0 {
            rows.push(NodeRow {
                limit: Limit::Objectives,
                terms: needs.iter().map(|need| need.prefill).collect(),
                room: (1.0 - self.reserved - objective_share).max(0.0),
            });
        }
        let wait = needs.iter().filter_map(|need| need.wait).min_by(f64::total_cmp);
        if let Some(wait) = wait {
            rows.push(NodeRow {
                limit: Limit::FirstToken,
                terms: needs
                    .iter()
                    .map(|need| waiting_share(need.prefill, wait))
                    .collect(),
                room: 1.0,
            });
        }
        Some(rows)
    }

    /// Returns the maximum requests per second of one replica on an otherwise empty node, or 0 if
    /// it does not fit.
    pub(super) fn carried(&self, need: &Need, utilization: f64) -> f64 {
        let Some(rows) = self.rows(&[need], utilization) else {
            return 0.0;
        };
        let most = |row: &NodeRow| {
            if row.terms[0] > 0.0 {
                row.room / row.terms[0]
            } else {
                f64::INFINITY
            }
        };
        rows.iter().map(most).fold(f64::INFINITY, f64::min)
    }
}

/// Returns the coefficient of one request per second in the limit of the wait; see the module
/// documentation.
pub(super) fn waiting_share(prefill: f64, wait: f64) -> f64 {
    prefill + prefill * prefill / (2.0 * wait.max(1e-6))
}

/// Replicas on nodes, with their request rates.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Placement {
    pub(super) groups: Vec<Group>,
}

/// Violation of an instance's constraints by a placement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum InvalidPlacement {
    #[error("{0:?} has a model twice or out of order")]
    ModelOrder(Group),
    #[error("{0:?} does not fit")]
    DoesNotFit(Group),
    #[error("{group:?}: {load} of {room} at {limit:?}")]
    Overload {
        group: Group,
        load: f64,
        room: f64,
        limit: Limit,
    },
    #[error("class {class}: {used} nodes used")]
    TooManyNodes { class: usize, used: u32 },
    #[error("model {model}: {replicas} replicas")]
    TooFewReplicas { model: usize, replicas: u32 },
}

/// Nodes of one class that run the same models.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) class: usize,
    pub(super) nodes: u32,
    /// Sorted by model.
    pub(super) replicas: Vec<Share>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub(super) model: usize,
    /// Requests per second of one node.
    pub(super) rate: f64,
}

impl Group {
    pub(super) fn models(&self) -> Vec<usize> {
        self.replicas.iter().map(|share| share.model).collect()
    }

    /// Returns the maximum requests per second of the `k`th replica of a node, with the current
    /// loads of the other replicas.
    fn room(&self, instance: &Instance, k: usize) -> f64 {
        let rows = instance.node_rows(self.class, &self.models()).unwrap_or_default();
        let most = |row: &NodeRow| {
            let loads = row.terms.iter().zip(&self.replicas).enumerate();
            let others: f64 = loads
                .filter(|(other, _)| *other != k)
                .map(|(_, (term, share))| term * share.rate)
                .sum();
            if row.terms[k] > 0.0 {
                ((row.room - others) / row.terms[k]).max(0.0)
            } else {
                f64::INFINITY
            }
        };
        rows.iter().map(most).fold(f64::INFINITY, f64::min)
    }
}

impl Placement {
    pub(super) fn replicas(&self, model: usize) -> u32 {
        self.of(model).map(|(nodes, _)| nodes).sum()
    }

    /// Returns the total requests per second of `model`.
    pub(super) fn answered(&self, model: usize) -> f64 {
        let each = self.of(model).map(|(nodes, rate)| f64::from(nodes) * rate);
        // `sum` of an empty iterator returns −0.
        each.fold(0.0, |sum, one| sum + one)
    }

    fn of(&self, model: usize) -> impl Iterator<Item = (u32, f64)> {
        self.groups.iter().filter_map(move |group| {
            let share = group.replicas.iter().find(|share| share.model == model)?;
            Some((group.nodes, share.rate))
        })
    }

    /// Returns the number of used nodes of `class`.
    pub(super) fn nodes(&self, class: usize) -> u32 {
        let groups = self.groups.iter().filter(|group| group.class == class);
        groups.map(|group| group.nodes).sum()
    }

    pub(super) fn total_replicas(&self) -> u32 {
        let of = |group: &Group| group.nodes * group.replicas.len() as u32;
        self.groups.iter().map(of).sum()
    }

    /// Returns the carried multiple of the demand: the minimum over all models. Single models may
    /// exceed it.
    pub(super) fn factor(&self, instance: &Instance) -> f64 {
        let factor = |(index, model): (usize, &ModelLoad)| {
            if model.rate > 0.0 {
                self.answered(index) / model.rate
            } else {
                MAX_FACTOR
            }
        };
        let models = instance.models.iter().enumerate().map(factor);
        models.fold(MAX_FACTOR, f64::min)
    }

    /// Scales the loads to exactly `factor` times the demand, with the same proportions.
    pub(super) fn scaled(mut self, instance: &Instance, factor: f64) -> Self {
        let ratios: Vec<f64> = (0..instance.models.len())
            .map(|model| {
                let answered = self.answered(model);
                if answered > 0.0 {
                    factor * instance.models[model].rate / answered
                } else {
                    0.0
                }
            })
            .collect();
        for share in self.groups.iter_mut().flat_map(|group| &mut group.replicas) {
            share.rate *= ratios[share.model];
        }
        self
    }

    /// Assigns load to idle replicas if their nodes have capacity. Divides the load of such models
    /// in proportion to the free capacity of each replica.
    pub(super) fn without_idle(mut self, instance: &Instance) -> Self {
        for model in 0..instance.models.len() {
            let answered = self.answered(model);
            let replicas: Vec<(usize, usize)> = self
                .groups
                .iter()
                .enumerate()
                .filter_map(|(g, group)| {
                    Some((g, group.replicas.iter().position(|share| share.model == model)?))
                })
                .collect();
            let idle = |(g, k): &(usize, usize)| self.groups[*g].replicas[*k].rate <= TOLERANCE * answered;
            if answered <= 0.0 || !replicas.iter().any(idle) {
                continue;
            }
            let rooms: Vec<f64> = replicas
                .iter()
                .map(|(g, k)| self.groups[*g].room(instance, *k))
                .collect();
            let nodes = replicas.iter().map(|(g, _)| f64::from(self.groups[*g].nodes));
            let total: f64 = nodes.zip(&rooms).map(|(nodes, room)| nodes * room).sum();
            if total.is_finite() && total > 0.0 {
                for ((g, k), room) in replicas.into_iter().zip(rooms) {
                    self.groups[g].replicas[k].rate = answered * room / total;
                }
            }
        }
        self
    }

    /// Merges groups with equal contents, and sorts them.
    pub(super) fn merged(mut self) -> Self {
        self.groups
            .retain(|group| group.nodes > 0 && !group.replicas.is_empty());
        self.groups.sort_by(|a, b| {
            (a.class, a.models()).cmp(&(b.class, b.models())).then_with(|| {
                b.rates()
                    .partial_cmp(&a.rates())
                    .unwrap_or(std::cmp::Ordering::Equal)
            })
        });
        self.groups.dedup_by(|next, kept| {
            let same = next.class == kept.class
                && next.replicas.len() == kept.replicas.len()
                && next.replicas.iter().zip(&kept.replicas).all(|(a, b)| {
                    a.model == b.model && (a.rate - b.rate).abs() <= TOLERANCE * a.rate.max(b.rate)
                });
            if same {
                kept.nodes += next.nodes;
            }
            same
        });
        self
    }

    /// Checks all constraints of the instance.
    pub(super) fn check(&self, instance: &Instance) -> Result<(), InvalidPlacement> {
        let mut used = vec![0u32; instance.classes.len()];
        for group in &self.groups {
            used[group.class] += group.nodes;
            let models = group.models();
            if models.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(InvalidPlacement::ModelOrder(group.clone()));
            }
            let rows = instance
                .node_rows(group.class, &models)
                .ok_or_else(|| InvalidPlacement::DoesNotFit(group.clone()))?;
            for row in rows {
                let load: f64 = row
                    .terms
                    .iter()
                    .zip(&group.replicas)
                    .map(|(t, share)| t * share.rate)
                    .sum();
                if load > row.room * (1.0 + TOLERANCE) + TOLERANCE {
                    return Err(InvalidPlacement::Overload {
                        group: group.clone(),
                        load,
                        room: row.room,
                        limit: row.limit,
                    });
                }
            }
        }
        for (class, used) in used.iter().enumerate() {
            if *used > instance.classes[class].nodes {
                return Err(InvalidPlacement::TooManyNodes { class, used: *used });
            }
        }
        for (model, load) in instance.models.iter().enumerate() {
            if self.replicas(model) < load.min_replicas {
                return Err(InvalidPlacement::TooFewReplicas {
                    model,
                    replicas: self.replicas(model),
                });
            }
        }
        Ok(())
    }
}

impl Group {
    fn rates(&self) -> Vec<f64> {
        self.replicas.iter().map(|share| share.rate).collect()
    }
}

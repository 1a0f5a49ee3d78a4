//! A planning question in terms of models and machines, and its translation into bare numbers.
//!
//! Whether a replica may be on a node at all is [admission](rooflet_roofline::admission)'s
//! judgement, the same that the scheduler and the agents pass. What it can answer there follows
//! from the pessimistic end of the same predictions: the 10th percentile of decode speed, the 90th
//! of prefill time.

use super::instance::{ClassSupply, Instance, ModelLoad, Need};
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_roofline::admission::{
    Ask, BEST_EFFORT_SHARE, Commitment, FirstTokenObjective, Objectives, Refusal, Speed, Suggestion, Supply,
    Verdict, suggestions,
};
use rooflet_roofline::disk::{DiskDemand, NodeDisk};
use rooflet_roofline::memory::{Demand, Held, NodeMemory, ServedModel};
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::predict::{Constraint, Engine, Hardware, Interval, Parameters};

/// Nodes that are alike, there or offered.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeClass {
    pub name: String,
    /// For people: chip and cores.
    pub chip: String,
    /// How many there are, or could be had.
    pub nodes: u32,
    /// `None`: nobody can tell how fast they are.
    pub hardware: Option<Hardware>,
    /// What runs there have taught about its speed.
    pub calibrations: Vec<Calibration>,
    /// Memory bandwidth, by the data sheet or the probe.
    pub bandwidth: Option<BytesPerSecond>,
    /// Memory that models may use.
    pub allocatable: Bytes,
    /// Memory and chip time of each that are left to others.
    pub held: Bytes,
    pub committed: f64,
    /// What replicas may store on its disk; `None`: nobody knows, and it is not counted.
    pub disk: Option<NodeDisk>,
    pub price: Option<f64>,
    pub watts: Option<f64>,
}

/// A model and its use.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedModel {
    pub name: String,
    pub served: ServedModel,
    pub requests_per_second: f64,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
    pub demand: Demand,
    /// What a replica may store on its node's disk.
    pub disk: Bytes,
    pub objectives: Objectives,
    pub replicas: u32,
}

/// All that is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub classes: Vec<NodeClass>,
    /// What could be bought; `nodes` of each is how many could be had.
    pub offers: Vec<NodeClass>,
    /// Of an offer there are as many as it takes, and `nodes` is only how many are tried.
    pub open_offers: bool,
    pub models: Vec<PlannedModel>,
    /// The largest share of its time that a node may be busy.
    pub utilization: f64,
}

/// One replica of a model on an otherwise idle node of a class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    pub verdict: Verdict,
    /// `None`: nobody knows how fast it would be.
    pub load: Option<Load>,
}

/// What answering takes of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Seconds of the chip per request: prefill, and the decode steps of its answer among those of
    /// the other streams.
    pub service: f64,
    /// Of that, the prefill.
    pub prefill: f64,
    /// Seconds to the first token of the average prompt on an idle node.
    pub first_token: Interval,
    /// What the decode steps are bound by.
    pub decode_bound: Constraint,
}

impl PlannedModel {
    fn ask(&self) -> Ask<'_> {
        Ask {
            model: &self.served,
            engine: Engine::Mlx,
            demand: self.demand,
            disk: DiskDemand::of_prefixes(self.disk),
            objectives: self.objectives,
        }
    }

    /// Changes of which each alone would let a node of `class` have it.
    pub fn suggestions(&self, class: &NodeClass) -> Vec<Suggestion> {
        class.with_supply(|supply| suggestions(&self.ask(), supply, Parameters::built_in()))
    }
}

impl NodeClass {
    fn with_supply<T>(&self, judge: impl FnOnce(&Supply<'_>) -> T) -> T {
        judge(&Supply {
            memory: NodeMemory {
                allocatable: self.allocatable,
                available: self.allocatable,
            },
            held: &[Held {
                reserved: self.held,
                resident: Bytes::ZERO,
            }],
            disk: self.disk,
            hardware: self.hardware,
            calibrations: &self.calibrations,
            commitments: &[Commitment {
                replica: "what runs there".to_owned(),
                share: self.committed,
                decode: None,
            }],
        })
    }
}

impl Fit {
    pub(super) fn new(model: &PlannedModel, class: &NodeClass) -> Self {
        let parameters = Parameters::built_in();
        let verdict = class.with_supply(|supply| Verdict::new(&model.ask(), supply, parameters));
        let load = class
            .hardware
            .map(|hardware| load(model, hardware, &class.calibrations, parameters));
        Self { verdict, load }
    }

    /// A replica can be there, and what it answers is known.
    pub(super) fn servable(&self) -> bool {
        self.verdict.admitted() && self.load.is_some()
    }

    /// In bare numbers, on a chip `speed` times as fast; `None` where it cannot be placed.
    fn need(&self, model: &PlannedModel, speed: f64) -> Option<Need> {
        let load = self.load?;
        let predicted = self.verdict.speed?;
        let objectives = model.objectives;
        let decode = objectives
            .decode
            .map(|rate| rate / (predicted.decode.p10 * speed));
        let first_token = predicted.first_token.p90 / speed;
        let reserved = if speed == 1.0 {
            if !self.verdict.admitted() {
                return None;
            }
            self.verdict.share
        } else {
            // Admission's own sum, for the faster chip.
            let refused = |refusal: &Refusal| matches!(refusal, Refusal::Memory(_) | Refusal::Disk { .. });
            if self.verdict.refusals.iter().any(refused) {
                return None;
            }
            let first = objectives
                .first_token
                .map_or(0.0, |one| first_token / one.max_seconds);
            decode.unwrap_or(0.0).max(first).max(BEST_EFFORT_SHARE)
        };
        Some(Need {
            memory: self.verdict.reservation.total(),
            disk: model.disk,
            reserved,
            promised: decode.unwrap_or(0.0),
            service: load.service / speed,
            prefill: load.prefill / speed,
            wait: objectives
                .first_token
                .map(|objective| (objective.max_seconds - first_token).max(0.0)),
        })
    }
}

/// At the average request: the prompt prefilled whole, the answer decoded at the context it has
/// halfway, with all streams busy, which is how a node is when it is saturated.
fn load(
    model: &PlannedModel,
    hardware: Hardware,
    calibrations: &[Calibration],
    parameters: &Parameters,
) -> Load {
    let ask = Ask {
        model: &model.served,
        engine: Engine::Mlx,
        demand: Demand {
            context_tokens: model.prompt_tokens.saturating_add(model.answer_tokens / 2),
            ..model.demand
        },
        disk: DiskDemand::default(),
        objectives: Objectives {
            decode: None,
            first_token: Some(FirstTokenObjective {
                max_seconds: f64::INFINITY,
                prompt_tokens: Some(model.prompt_tokens),
            }),
        },
    };
    let speed = Speed::new(&ask, hardware, parameters).calibrated(&model.served.cost, calibrations);
    let prefill = speed.first_token.p90;
    let together = speed.decode.p10 * f64::from(model.demand.max_concurrency.max(1));
    Load {
        service: prefill + f64::from(model.answer_tokens) / together,
        prefill,
        first_token: speed.first_token,
        decode_bound: speed.binding,
    }
}

impl Question {
    /// The same on machines with so many times the memory.
    pub(super) fn with_memory(&self, times: u64) -> Self {
        let mut question = self.clone();
        for class in &mut question.classes {
            class.allocatable = class.allocatable * times;
        }
        question
    }

    /// Whether a disk may be too small for anything that is asked.
    pub(super) fn counts_disk(&self) -> bool {
        let is_known = self.classes.iter().any(|class| class.disk.is_some());
        is_known && self.models.iter().any(|model| model.disk > Bytes::ZERO)
    }

    /// The same on machines whose disks are not counted.
    pub(super) fn without_disks(&self) -> Self {
        let mut question = self.clone();
        for class in &mut question.classes {
            class.disk = None;
        }
        question
    }
}

/// A question with every replica judged on every class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged<'a> {
    pub(super) models: &'a [PlannedModel],
    pub(super) classes: Vec<&'a NodeClass>,
    /// By model, then class.
    pub(super) fits: Vec<Vec<Fit>>,
    pub(super) instance: Instance,
}

impl<'a> Judged<'a> {
    /// Of the fleet, and of the offers where they are asked for, in this order. What exists costs
    /// nothing.
    pub(super) fn new(question: &'a Question, with_offers: bool) -> Self {
        let offers = question.offers.iter().filter(|_| with_offers);
        let priced = question.offers.iter().all(|offer| offer.price.is_some());
        let most_bandwidth = question.offers.iter().map(bandwidth).fold(1.0, f64::max);
        let price = |offer: &NodeClass| match offer.price {
            // What exists costs nothing, and that alone tells it from what is a gift.
            Some(price) if priced => price.max(1e-6),
            // The fewest Macs; of equally many, those with less bandwidth.
            Some(_) | None => 1.0 + 1e-3 * bandwidth(offer) / most_bandwidth,
        };
        let priced_classes: Vec<(&NodeClass, f64)> = question
            .classes
            .iter()
            .map(|class| (class, 0.0))
            .chain(offers.map(|offer| (offer, price(offer))))
            .collect();
        let fits: Vec<Vec<Fit>> = question
            .models
            .iter()
            .map(|model| {
                priced_classes
                    .iter()
                    .map(|(class, _)| Fit::new(model, class))
                    .collect()
            })
            .collect();
        let needs = question
            .models
            .iter()
            .zip(&fits)
            .map(|(model, fits)| fits.iter().map(|fit| fit.need(model, 1.0)).collect())
            .collect();
        let supply = |(class, price): &(&NodeClass, f64)| ClassSupply {
            nodes: class.nodes,
            memory: class.allocatable - class.held,
            disk: class.disk.map(|disk| disk.free),
            reserved: class.committed.min(1.0),
            price: *price,
        };
        let instance = Instance {
            classes: priced_classes.iter().map(supply).collect(),
            models: question
                .models
                .iter()
                .map(|model| ModelLoad {
                    rate: model.requests_per_second,
                    min_replicas: model.replicas,
                })
                .collect(),
            needs,
            utilization: question.utilization,
        };
        Self {
            models: &question.models,
            classes: priced_classes.into_iter().map(|(class, _)| class).collect(),
            fits,
            instance,
        }
    }

    /// In bare numbers on chips so many times as fast.
    pub(super) fn with_speed(&self, times: f64) -> Instance {
        let needs = self.models.iter().zip(&self.fits);
        Instance {
            needs: needs
                .map(|(model, fits)| fits.iter().map(|fit| fit.need(model, times)).collect())
                .collect(),
            ..self.instance.clone()
        }
    }

    /// Models that no node can have, where there are nodes.
    pub(super) fn unservable(&self) -> Vec<usize> {
        let classes = &self.instance.classes;
        let somewhere = |model: &usize| {
            let fits = self.fits[*model].iter().zip(classes);
            fits.clone().any(|(fit, class)| class.nodes > 0 && fit.servable())
                || classes.iter().all(|class| class.nodes == 0)
        };
        (0..self.models.len()).filter(|model| !somewhere(model)).collect()
    }
}

/// 0 where nobody knows.
fn bandwidth(class: &NodeClass) -> f64 {
    class.bandwidth.map_or(0.0, |bandwidth| bandwidth.0)
}

//! Planning question in terms of models and machines, and its conversion to an [`Instance`].
//!
//! [Admission](rooflet_roofline::admission) decides whether a node accepts a replica, with the same
//! rules as in scheduler and agent. The capacity of a replica follows from the pessimistic end of
//! the same predictions: the 10th percentile of decode speed and the 90th of prefill time.

use super::instance::{ClassSupply, Instance, ModelLoad, Need};
use rooflet_api::v1alpha1::DecodeContext;
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_roofline::admission::{
    AdmissionRequest, BEST_EFFORT_SHARE, Commitment, FirstTokenObjective, NodeCapacity, Objectives, Refusal,
    Requirements, Speed, Suggestion, Verdict, suggestions,
};
use rooflet_roofline::disk::{DiskDemand, NodeDisk};
use rooflet_roofline::memory::{Demand, Held, NodeMemory, ServedModel};
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::predict::{Constraint, Engine, Hardware, Interval, Parameters};

/// Class of equal nodes, existing or offered.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeClass {
    pub name: String,
    /// Chip and cores, for display.
    pub chip: String,
    /// Number of existing or available nodes.
    pub nodes: u32,
    /// `None` if the speed is unknown.
    pub hardware: Option<Hardware>,
    /// Calibrations from real requests.
    pub calibrations: Vec<Calibration>,
    /// Memory bandwidth, from the data sheet or the probe.
    pub bandwidth: Option<BytesPerSecond>,
    /// Memory available to models.
    pub allocatable: Bytes,
    /// Memory that other replicas reserve on each node.
    pub held: Bytes,
    /// Share of chip time that other replicas reserve on each node.
    pub committed: f64,
    /// Disk space for replicas; `None` if unknown, which disables the disk limit.
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
    /// Tokens of the average prompt that the prefix cache contains.
    pub cached_prompt_tokens: u32,
    pub answer_tokens: u32,
    /// Context at which the decode objective applies.
    pub decode_context: DecodeContext,
    /// Assumed ratio of the decode speeds with and without speculative decoding.
    pub speculative_speedup: Option<f64>,
    /// Context tokens and maximum number of streams of a replica.
    pub demand: Demand,
    /// Disk space of a replica.
    pub disk: Bytes,
    pub objectives: Objectives,
    pub replicas: u32,
}

/// Planning question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub classes: Vec<NodeClass>,
    /// Offers; `nodes` is the available number.
    pub offers: Vec<NodeClass>,
    /// True for an unlimited offer. `nodes` is then only the number that is tried.
    pub open_offers: bool,
    pub models: Vec<PlannedModel>,
    /// Maximum utilization of a node, from 0 to 1.
    pub utilization: f64,
}

/// Evaluation of one replica of a model on an idle node of a class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    /// Number of streams of the replica.
    pub streams: u32,
    pub verdict: Verdict,
    /// `None` if the speed is unknown.
    pub load: Option<Load>,
    /// Lower limit of every need over all tried numbers of streams; `None` if the node rejects the
    /// replica.
    pub(super) least: Option<Need>,
}

/// Resources that requests use on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Chip seconds per request: prefill, plus the request's share of the decode steps.
    pub service: f64,
    /// Part of `service` for prefill.
    pub prefill: f64,
    /// Time to first token of the average prompt on an idle node, in seconds.
    pub first_token: Interval,
    /// Constraint of the decode steps.
    pub decode_bound: Constraint,
}

impl PlannedModel {
    fn ask(&self) -> AdmissionRequest<'_> {
        AdmissionRequest {
            model: &self.served,
            engine: Engine::Mlx,
            demand: self.demand,
            disk: DiskDemand::of_prefixes(self.disk),
            objectives: self.objectives,
        }
    }

    /// Returns the context of the average request while it decodes: the prompt and half of the
    /// answer.
    pub(super) fn average_context(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.answer_tokens / 2)
    }

    /// Returns the share of a prompt that the prefix cache contains.
    fn cached_share(&self) -> f64 {
        f64::from(self.cached_prompt_tokens) / f64::from(self.prompt_tokens.max(1))
    }

    /// Returns whether the demand makes assumptions that admission does not make.
    fn has_assumptions(&self) -> bool {
        self.cached_prompt_tokens > 0
            || self.decode_context == DecodeContext::Average
            || self.speculative_speedup.is_some()
    }

    /// Returns the speed on `class` under the assumptions of the demand, with `objectives` and all
    /// streams at `context_tokens`. `None` if the speed of the class is unknown.
    fn speed(&self, class: &NodeClass, context_tokens: u32, objectives: Objectives) -> Option<Speed> {
        let ask = AdmissionRequest {
            demand: Demand {
                context_tokens,
                ..self.demand
            },
            disk: DiskDemand::default(),
            objectives,
            ..self.ask()
        };
        let speed =
            Speed::with_cached_share(&ask, self.cached_share(), class.hardware?, Parameters::built_in())
                .calibrated(&self.served.cost, &class.calibrations);
        let speedup = self.speculative_speedup.unwrap_or(1.0);
        Some(Speed {
            decode: speed.decode.scale(speedup),
            bytes_per_token: speed.bytes_per_token / speedup,
            ..speed
        })
    }

    /// Returns the speed for which the objectives are checked. `None` if the speed is unknown.
    fn objective_speed(&self, class: &NodeClass) -> Option<Speed> {
        let full = self.speed(class, self.demand.context_tokens, self.objectives)?;
        Some(match self.decode_context {
            DecodeContext::Full => full,
            DecodeContext::Average => {
                let average = self.speed(class, self.average_context(), self.objectives)?;
                Speed {
                    first_token: full.first_token,
                    prompt_tokens: full.prompt_tokens,
                    first_token_basis: full.first_token_basis,
                    ..average
                }
            }
        })
    }

    /// Returns the assumptions of the demand that the admission of a ModelDeployment does not make.
    pub(super) fn assumptions(&self) -> Vec<String> {
        let name = &self.name;
        let mut all = Vec::new();
        if self.cached_prompt_tokens > 0 {
            all.push(format!(
                "{name}: the prefix cache contains {} of {} prompt tokens ({:.0} %); a prompt of another length has the \
                 same share",
                self.cached_prompt_tokens,
                self.prompt_tokens,
                100.0 * self.cached_share()
            ));
        }
        if self.decode_context == DecodeContext::Average {
            all.push(format!(
                "{name}: streams decode at the average context of {} tokens, not at the full {}; the memory is reserved \
                 for the full context",
                self.average_context(),
                self.demand.context_tokens
            ));
        }
        if let Some(speedup) = self.speculative_speedup {
            all.push(format!(
                "{name}: speculative decoding decodes {speedup} times as fast; the memory of a draft model is not \
                 included"
            ));
        }
        all
    }

    /// Returns alternative changes after which a node of `class` accepts the model.
    pub fn suggestions(&self, class: &NodeClass) -> Vec<Suggestion> {
        class.with_supply(|supply| suggestions(&self.ask(), supply, Parameters::built_in()))
    }
}

impl NodeClass {
    pub(super) fn supply(&self, price: f64) -> ClassSupply {
        ClassSupply {
            nodes: self.nodes,
            memory: self.allocatable - self.held,
            disk: self.disk.map(|disk| disk.free),
            reserved: self.committed.min(1.0),
            price,
        }
    }

    fn with_supply<T>(&self, judge: impl FnOnce(&NodeCapacity<'_>) -> T) -> T {
        judge(&NodeCapacity {
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
                replica: "existing replicas".to_owned(),
                share: self.committed,
                decode: None,
            }],
        })
    }
}

impl Fit {
    pub(super) fn new(model: &PlannedModel, class: &NodeClass) -> Self {
        let parameters = Parameters::built_in();
        let ask = model.ask();
        let requirements = Requirements::new(&ask, class.hardware, &class.calibrations, parameters);
        let assumed = model.has_assumptions().then(|| model.objective_speed(class));
        let requirements = match assumed.flatten() {
            Some(speed) => requirements.with_speed(speed),
            None => requirements,
        };
        let fit = Self {
            streams: model.demand.max_concurrency,
            verdict: class.with_supply(|supply| requirements.verdict(supply)),
            load: load(model, class),
            least: None,
        };
        Self {
            least: fit.need(model, 1.0),
            ..fit
        }
    }

    /// Returns whether the node accepts a replica, and its speed is known.
    pub(super) fn servable(&self) -> bool {
        self.verdict.admitted() && self.load.is_some()
    }

    /// Returns the needs on a chip with `speed` times the speed, or `None` if the node rejects the
    /// replica.
    pub(super) fn need(&self, model: &PlannedModel, speed: f64) -> Option<Need> {
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
            // Same formula as admission, for the faster chip.
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
            objective_share: decode.unwrap_or(0.0),
            service: load.service / speed,
            prefill: load.prefill / speed,
            wait: objectives
                .first_token
                .map(|objective| (objective.max_seconds - first_token).max(0.0)),
        })
    }
}

/// Returns the load of an average request on a saturated node: prefill of the tokens of the prompt
/// that are not cached, and decode at half the answer's context with all streams busy. `None` if the
/// speed is unknown.
fn load(model: &PlannedModel, class: &NodeClass) -> Option<Load> {
    let objectives = Objectives {
        decode: None,
        first_token: Some(FirstTokenObjective {
            max_seconds: f64::INFINITY,
            prompt_tokens: Some(model.prompt_tokens),
        }),
    };
    let speed = model.speed(class, model.average_context(), objectives)?;
    let prefill = speed.first_token.p90;
    let together = speed.decode.p10 * f64::from(model.demand.max_concurrency.max(1));
    Some(Load {
        service: prefill + f64::from(model.answer_tokens) / together,
        prefill,
        first_token: speed.first_token,
        decode_bound: speed.binding,
    })
}

/// Part of the price of a Mac that depends on its bandwidth, if an offer has no price. The number of
/// Macs is the other part.
pub(super) const UNPRICED_BANDWIDTH: f64 = 1e-3;

impl Question {
    /// Returns the classes of the fleet, followed by the offers if `with_offers`, with the price of
    /// a node. Existing nodes cost nothing.
    pub(super) fn priced_classes(&self, with_offers: bool) -> Vec<(&NodeClass, f64)> {
        let offers = self.offers.iter().filter(|_| with_offers);
        let most_bandwidth = self.offers.iter().map(bandwidth).fold(1.0, f64::max);
        let price = |offer: &NodeClass| match offer.price {
            // Price 0 marks existing nodes, so free offers get a minimal price.
            Some(price) if self.has_prices() => price.max(1e-6),
            // Without prices, minimize the number of Macs, then their bandwidth.
            Some(_) | None => 1.0 + UNPRICED_BANDWIDTH * bandwidth(offer) / most_bandwidth,
        };
        let fleet = self.classes.iter().map(|class| (class, 0.0));
        fleet.chain(offers.map(|offer| (offer, price(offer)))).collect()
    }

    /// Returns whether every offer has a price.
    pub(super) fn has_prices(&self) -> bool {
        self.offers.iter().all(|offer| offer.price.is_some())
    }

    /// Returns the question for machines with `times` the memory.
    pub(super) fn with_memory(&self, times: u64) -> Self {
        let mut question = self.clone();
        for class in &mut question.classes {
            class.allocatable = class.allocatable * times;
        }
        question
    }

    /// Returns whether disks may limit the plan.
    pub(super) fn counts_disk(&self) -> bool {
        let is_known = self.classes.iter().any(|class| class.disk.is_some());
        is_known && self.models.iter().any(|model| model.disk > Bytes::ZERO)
    }

    /// Returns the question without disk limits.
    pub(super) fn without_disks(&self) -> Self {
        let mut question = self.clone();
        for class in &mut question.classes {
            class.disk = None;
        }
        question
    }
}

/// Question with the evaluation of every model on every class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged<'a> {
    pub(super) models: &'a [PlannedModel],
    pub(super) classes: Vec<&'a NodeClass>,
    /// Evaluations by model, then class.
    pub(super) fits: Vec<&'a [Fit]>,
    pub(super) instance: Instance,
}

impl<'a> Judged<'a> {
    pub(super) fn new(
        question: &'a Question,
        classes: &[(&'a NodeClass, f64)],
        fits: Vec<&'a [Fit]>,
    ) -> Self {
        let needs = question
            .models
            .iter()
            .zip(&fits)
            .map(|(model, fits)| fits.iter().map(|fit| fit.need(model, 1.0)).collect())
            .collect();
        let instance = Instance {
            classes: classes
                .iter()
                .map(|(class, price)| class.supply(*price))
                .collect(),
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
            classes: classes.iter().map(|(class, _)| *class).collect(),
            fits,
            instance,
        }
    }

    /// Returns an instance that no choice of streams exceeds: every replica has the smallest of each
    /// need over all tried numbers of streams.
    pub(super) fn with_least_needs(&self) -> Instance {
        Instance {
            needs: self
                .fits
                .iter()
                .map(|fits| fits.iter().map(|fit| fit.least).collect())
                .collect(),
            ..self.instance.clone()
        }
    }

    /// Returns the instance for chips with `times` the speed.
    pub(super) fn with_speed(&self, times: f64) -> Instance {
        let needs = self.models.iter().zip(&self.fits);
        Instance {
            needs: needs
                .map(|(model, fits)| fits.iter().map(|fit| fit.need(model, times)).collect())
                .collect(),
            ..self.instance.clone()
        }
    }

    /// Returns the models that no existing node can serve.
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

/// Returns the bandwidth, or 0 if unknown.
fn bandwidth(class: &NodeClass) -> f64 {
    class.bandwidth.map_or(0.0, |bandwidth| bandwidth.0)
}

//! Planning question in terms of models and machines, and its conversion to an [`Instance`].
//!
//! [Admission](rooflet_roofline::admission) decides whether a node accepts a replica, with the same
//! rules as in scheduler and agent. The capacity of a replica follows from the pessimistic end of
//! the same predictions: the 10th percentile of decode speed and the 90th of prefill time.

use super::instance::{ClassSupply, Instance, ModelLoad, Need};
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_roofline::admission::{
    AdmissionRequest, BEST_EFFORT_SHARE, Commitment, FirstTokenObjective, NodeCapacity, Objectives, Refusal,
    Speed, Suggestion, Verdict, suggestions,
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
    pub answer_tokens: u32,
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
    /// Lower limit of every need over all tried numbers of streams.
    least: Option<Need>,
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

    /// Returns alternative changes after which a node of `class` accepts the model.
    pub fn suggestions(&self, class: &NodeClass) -> Vec<Suggestion> {
        class.with_supply(|supply| suggestions(&self.ask(), supply, Parameters::built_in()))
    }
}

impl NodeClass {
    fn supply(&self, price: f64) -> ClassSupply {
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
        let verdict = class.with_supply(|supply| Verdict::new(&model.ask(), supply, parameters));
        let load = class
            .hardware
            .map(|hardware| load(model, hardware, &class.calibrations, parameters));
        Self {
            streams: model.demand.max_concurrency,
            verdict,
            load,
            least: None,
        }
    }

    /// Evaluates the number of streams, up to `most`, with which one node carries the most
    /// requests. Of equally good numbers, the smallest is chosen, because it needs the least
    /// memory.
    fn with_best_streams(model: &PlannedModel, class: &NodeClass, most: u32, utilization: f64) -> Self {
        let of = |streams: u32| {
            let mut few = model.clone();
            few.demand.max_concurrency = streams;
            Self::new(&few, class)
        };
        let carried = |need: &Need| class.supply(1.0).carried(need, utilization);
        let mut best = of(1);
        let mut least = best.need(model, 1.0);
        let mut carries = least.as_ref().map(carried);
        let most = most.min(model.demand.max_concurrency);
        for streams in stream_counts().take_while(|streams| *streams <= most).skip(1) {
            let fit = of(streams);
            let need = fit.need(model, 1.0);
            least = match (least, need) {
                (Some(least), Some(need)) => Some(least.at_most(&need)),
                (least, need) => least.or(need),
            };
            let more = need.as_ref().map(carried);
            if more.is_some_and(|more| carries.is_none_or(|known| more > known * MORE)) {
                (best, carries) = (fit, more);
            }
        }
        Self { least, ..best }
    }

    /// Returns whether the node accepts a replica, and its speed is known.
    pub(super) fn servable(&self) -> bool {
        self.verdict.admitted() && self.load.is_some()
    }

    /// Returns the needs on a chip with `speed` times the speed, or `None` if the node rejects the
    /// replica.
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

/// Returns the load of an average request on a saturated node: complete prefill of the prompt, and
/// decode at half the answer's context with all streams busy.
fn load(
    model: &PlannedModel,
    hardware: Hardware,
    calibrations: &[Calibration],
    parameters: &Parameters,
) -> Load {
    let ask = AdmissionRequest {
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

/// Minimum ratio of carried requests at which a larger number of streams is chosen despite its
/// additional memory.
const MORE: f64 = 1.001;
/// Number of streams up to which every number is tried. Above it, each tried number is a quarter
/// larger than the previous one.
const EVERY_STREAM: u32 = 16;

/// Returns the numbers of streams that are tried, in ascending order. They do not depend on the
/// limit, so a higher limit only adds to them.
fn stream_counts() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1u32), |streams| {
        Some(if *streams < EVERY_STREAM {
            streams + 1
        } else {
            streams + streams / 4
        })
    })
}

impl Question {
    /// Returns the limits of the streams per replica that a plan compares, largest first.
    ///
    /// For one model, the number of streams with which a node carries most is the best. Several
    /// models on one node share its memory, so fewer streams may be better for all of them. The
    /// limits are powers of two, so a higher `maxConcurrency` only adds to them.
    pub(super) fn stream_limits(&self) -> Vec<u32> {
        let most = self.models.iter().map(|model| model.demand.max_concurrency).max();
        let most = most.unwrap_or(1).max(1);
        if self.models.len() == 1 {
            return vec![most];
        }
        let mut limits: Vec<u32> = std::iter::successors(Some(1u32), |limit| limit.checked_mul(2))
            .take_while(|limit| *limit <= most)
            .collect();
        limits.reverse();
        limits
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
    pub(super) fits: Vec<Vec<Fit>>,
    pub(super) instance: Instance,
}

impl<'a> Judged<'a> {
    /// Evaluates the fleet, followed by the offers if `with_offers`, with up to `most_streams`
    /// streams per replica. Existing nodes cost nothing.
    pub(super) fn new(question: &'a Question, with_offers: bool, most_streams: u32) -> Self {
        let offers = question.offers.iter().filter(|_| with_offers);
        let priced = question.offers.iter().all(|offer| offer.price.is_some());
        let most_bandwidth = question.offers.iter().map(bandwidth).fold(1.0, f64::max);
        let price = |offer: &NodeClass| match offer.price {
            // Price 0 marks existing nodes, so free offers get a minimal price.
            Some(price) if priced => price.max(1e-6),
            // Without prices, minimize the number of Macs, then their bandwidth.
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
                    .map(|(class, _)| {
                        Fit::with_best_streams(model, class, most_streams, question.utilization)
                    })
                    .collect()
            })
            .collect();
        let needs = question
            .models
            .iter()
            .zip(&fits)
            .map(|(model, fits)| fits.iter().map(|fit| fit.need(model, 1.0)).collect())
            .collect();
        let supply = |(class, price): &(&NodeClass, f64)| class.supply(*price);
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

    /// Returns the streams of every model on every class.
    pub(super) fn streams(&self) -> Vec<Vec<u32>> {
        let of = |fits: &Vec<Fit>| fits.iter().map(|fit| fit.streams).collect();
        self.fits.iter().map(of).collect()
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

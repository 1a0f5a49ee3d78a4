//! Figures of a run, collected during the run and summarized at its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use crate::options::RunOptions;
use crate::outcome::{
    AccessOutcome, ControlOutcome, DemandOutcome, DeploymentOutcome, Outcome, Quantiles, Scaled,
};
use crate::rules::violation::Violation;
use crate::scenario::fault::FaultSpec;
use crate::scenario::{Scenario, format_duration};
use crate::world::gateway_state::{DropReason, Request};
use crate::world::store::{Change, Object};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelReplica, ObjectivesSpec};
use rooflet_roofline::admission::Objectives;

/// Ratio between the bounds of a bucket.
const BUCKET: f64 = 1.01;

/// Counters that are kept outside the ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) nodes: usize,
    pub(crate) events: u64,
    pub(crate) passes: u64,
    pub(crate) writes: u64,
}

/// Histogram with a relative error of 0.5 %.
#[derive(Debug, Default)]
struct Histogram {
    buckets: BTreeMap<i32, u64>,
    count: u64,
}

impl Histogram {
    fn add(&mut self, value: f64) {
        let bucket = (value.max(1e-6).ln() / BUCKET.ln()).floor() as i32;
        *self.buckets.entry(bucket).or_default() += 1;
        self.count += 1;
    }

    fn quantile(&self, part: f64) -> f64 {
        let rank = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return rounded(BUCKET.powf(f64::from(*bucket) + 0.5));
            }
        }
        0.0
    }

    fn quantiles(&self) -> Option<Quantiles> {
        (self.count > 0).then(|| Quantiles {
            p10: self.quantile(0.10),
            p50: self.quantile(0.50),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
        })
    }
}

/// Rounds to three significant digits, the accuracy of the predictions.
fn rounded(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let digits = (2 - value.log10().floor() as i32).max(0) as usize;
    format!("{value:.digits$}").parse().unwrap_or(value)
}

/// Requests of one demand.
#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    answered: u64,
    good: u64,
    tokens: u64,
    good_tokens: u64,
    dropped: BTreeMap<DropReason, u64>,
    first_token: Histogram,
    rate: Histogram,
    objectives: Objectives,
}

/// Availability of one deployment.
#[derive(Debug, Default)]
struct Meter {
    ready: usize,
    since: Duration,
    first: Option<Duration>,
    available: Duration,
    /// Integral of the number of ready replicas over time.
    replica_seconds: f64,
    scaled: Vec<Scaled>,
}

impl Meter {
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.since);
        if self.first.is_some() {
            self.replica_seconds += passed.as_secs_f64() * self.ready as f64;
            if self.ready > 0 {
                self.available += passed;
            }
        }
        self.since = now;
    }
}

/// Figures of a run, and its journal.
#[derive(Debug)]
pub(crate) struct Ledger {
    tallies: Vec<Tally>,
    meters: BTreeMap<String, Meter>,
    placements: u64,
    pub(crate) evictions: u64,
    pub(crate) starts: u64,
    pub(crate) access: Option<AccessOutcome>,
    /// Lines of the journal; `None` if the options do not request it.
    journal: Option<Vec<String>>,
}

impl Ledger {
    pub(crate) fn new(scenario: &Scenario, journal: bool) -> Self {
        let tallies = scenario.demand.iter().map(|demand| {
            let deployment = scenario
                .deployments
                .iter()
                .find(|known| known.name == demand.deployment);
            let objectives = deployment
                .and_then(|deployment| serde_json::from_value(deployment.spec["objectives"].clone()).ok())
                .unwrap_or_else(ObjectivesSpec::default);
            let objectives = if objectives.is_empty() {
                &demand.objectives
            } else {
                &objectives
            };
            Tally {
                objectives: Objectives::from(objectives),
                ..Tally::default()
            }
        });
        let meters = scenario
            .deployments
            .iter()
            .map(|deployment| (deployment.name.clone(), Meter::default()));
        Self {
            tallies: tallies.collect(),
            meters: meters.collect(),
            placements: 0,
            evictions: 0,
            starts: 0,
            access: scenario.access.as_ref().map(|_| AccessOutcome::default()),
            journal: journal.then(Vec::new),
        }
    }

    /// Appends a line to the journal, if there is one.
    pub(crate) fn log(&mut self, at: Duration, line: impl FnOnce() -> String) {
        if let Some(journal) = &mut self.journal {
            journal.push(format!("{:>12} {}", format_duration(at), line()));
        }
    }

    /// Counts a change of an object.
    pub(crate) fn count_change(&mut self, now: Duration, change: &Change) {
        if let Object::Deployment(deployment) = &change.object
            && let Some(meter) = self.meters.get_mut(&deployment.name_any())
        {
            let (at, replicas) = (now, deployment.spec.replicas);
            if meter.scaled.last().is_none_or(|last| last.replicas != replicas) {
                meter.scaled.push(Scaled { at, replicas });
            }
        }
        let Object::Replica(replica) = &change.object else {
            return;
        };
        let before = match &change.before {
            Some(Object::Replica(before)) => Some(before),
            Some(_) | None => None,
        };
        if replica.spec.node_name.is_some() && before.is_none_or(|before| before.spec.node_name.is_none()) {
            self.placements += 1;
        }
        let was = before.is_some_and(is_ready);
        let is = !change.deleted && is_ready(replica);
        let meter = replica
            .labels()
            .get(DEPLOYMENT_LABEL)
            .and_then(|name| self.meters.get_mut(name));
        if let Some(meter) = meter.filter(|_| was != is) {
            meter.advance(now);
            if is {
                meter.ready += 1;
                meter.first.get_or_insert(now);
            } else {
                meter.ready = meter.ready.saturating_sub(1);
            }
        }
    }

    pub(crate) fn request_arrived(&mut self, demand: usize) {
        self.tallies[demand].requests += 1;
    }

    pub(crate) fn request_dropped(&mut self, demand: usize, reason: DropReason) {
        *self.tallies[demand].dropped.entry(reason).or_default() += 1;
    }

    pub(crate) fn request_completed(&mut self, now: Duration, request: &Request) {
        let tally = &mut self.tallies[request.demand];
        let first = request.first_token.unwrap_or(now);
        let waited = first.saturating_sub(request.arrived).as_secs_f64();
        let rate = f64::from(request.answer_tokens) / now.saturating_sub(first).as_secs_f64().max(1e-6);
        tally.answered += 1;
        tally.first_token.add(waited);
        tally.rate.add(rate);
        let in_time = tally
            .objectives
            .first_token
            .is_none_or(|objective| waited <= objective.max_seconds);
        // The virtual clock rounds to microseconds.
        let fast = tally
            .objectives
            .decode
            .is_none_or(|objective| rate * 1.000_01 >= objective);
        let tokens = u64::from(request.answer_tokens);
        tally.tokens += tokens;
        if in_time && fast {
            tally.good += 1;
            tally.good_tokens += tokens;
        }
    }

    /// Summarizes the run.
    pub(crate) fn close(
        mut self,
        scenario: &Scenario,
        options: &RunOptions,
        totals: Totals,
        faults: Vec<FaultSpec>,
        violation: Option<Violation>,
    ) -> Outcome {
        let end = violation
            .as_ref()
            .map_or(scenario.duration, |violation| violation.at);
        let deployments = self.meters.iter_mut().map(|(name, meter)| {
            meter.advance(end);
            let time = meter
                .first
                .map_or(Duration::ZERO, |first| end.saturating_sub(first))
                .as_secs_f64();
            let of_time = |seconds: f64| if time > 0.0 { seconds / time } else { 0.0 };
            DeploymentOutcome {
                name: name.clone(),
                available_percent: thousandths(100.0 * of_time(meter.available.as_secs_f64())),
                mean_ready: thousandths(of_time(meter.replica_seconds)),
                ready_at_end: meter.ready,
                first_ready_seconds: meter.first.map(|first| rounded(first.as_secs_f64())),
                scaled: match meter.scaled.len() {
                    0 | 1 => Vec::new(),
                    _ => std::mem::take(&mut meter.scaled),
                },
            }
        });
        let demand = self.tallies.iter().zip(&scenario.demand).map(|(tally, demand)| {
            let ended = tally.answered + tally.dropped.values().sum::<u64>();
            DemandOutcome {
                deployment: demand.deployment.clone(),
                requests: tally.requests,
                answered: tally.answered,
                as_promised: tally.good,
                dropped: tally
                    .dropped
                    .iter()
                    .map(|(reason, count)| (reason.as_str(), *count))
                    .collect(),
                slo_percent: match ended {
                    0 => 100.0,
                    ended => thousandths(100.0 * tally.good as f64 / ended as f64),
                },
                first_token_seconds: tally.first_token.quantiles(),
                tokens_per_second: tally.rate.quantiles(),
                total_tokens_per_second: rounded(tally.tokens as f64 / end.as_secs_f64().max(1.0)),
                promised_tokens_per_second: rounded(tally.good_tokens as f64 / end.as_secs_f64().max(1.0)),
            }
        });
        Outcome {
            basis: "simulated from data sheets; nothing was measured",
            seed: options.seed,
            policy: options.policy.to_string(),
            duration: scenario.duration,
            nodes: totals.nodes,
            deployments: deployments.collect(),
            demand: demand.collect(),
            control: ControlOutcome {
                placements: self.placements,
                moves: self.evictions,
                worker_starts: self.starts,
                passes: totals.passes,
                writes: totals.writes,
                events: totals.events,
            },
            access: self.access,
            faults,
            violation,
            journal: self.journal.unwrap_or_default(),
        }
    }
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoReplica => "NoReadyReplica",
            Self::NoCapacity => "ReplicasBusyOrUnreachable",
            Self::WorkerLost => "WorkerLost",
            Self::CutShort => "CutShort",
            Self::GaveUp => "ClientGaveUp",
            Self::KeyRefused => "KeyRefused",
        }
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn is_ready(replica: &Arc<ModelReplica>) -> bool {
    let status = replica.status.as_ref();
    status.is_some_and(|status| is_true(&status.conditions, condition_type::READY))
        && replica.metadata.deletion_timestamp.is_none()
}

//! State of the gateway and its clients.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::random::Random;
use crate::scenario::Scenario;
use crate::world::access::Permit;
use crate::world::view::View;
use rooflet_gateway::{Assignment, QueuedRequest, RequestRouter};

/// Request of a client.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) demand: usize,
    pub(crate) arrived: Duration,
    pub(crate) prompt_tokens: u32,
    pub(crate) answer_tokens: u32,
    pub(crate) first_token: Option<Duration>,
    /// Replica that processes the request.
    pub(crate) assignment: Option<Assignment>,
    /// Key and gateway of the request, if the scenario has API keys.
    pub(crate) permit: Option<Permit>,
}

/// Reason for an incomplete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DropReason {
    /// No replica was ready or starting.
    NoReplica,
    /// No ready replica accepted the request.
    NoCapacity,
    /// The worker crashed.
    WorkerLost,
    /// The worker was stopped during the answer.
    CutShort,
    /// The client's timeout expired.
    GaveUp,
    /// The client's key does not permit the request, or not now.
    KeyRefused,
}

/// Machine class, model fingerprint, bits of the KV cache, streams, prompt tokens and context
/// tokens of a prediction.
type SpeedKey = (String, u64, u64, u32, u32, u32);

/// State of the gateway and its clients.
#[derive(Debug)]
pub(crate) struct GatewayState {
    pub(crate) view: View,
    pub(crate) changed: bool,
    pub(crate) stale: u32,
    pub(crate) router: RequestRouter,
    /// Queued requests, by id.
    pub(crate) waiting: BTreeMap<u64, (Request, QueuedRequest)>,
    /// Random stream of each demand.
    pub(crate) arrivals: Vec<Random>,
    /// Served name of each demand's model.
    pub(crate) models: Vec<String>,
    pub(crate) random: Random,
    pub(crate) round_robin_index: usize,
    pub(crate) requests: u64,
    /// Cached predictions: tokens per second, and seconds to the first token.
    pub(crate) speeds: BTreeMap<SpeedKey, (f64, f64)>,
}

impl GatewayState {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let arrivals = scenario.demand.iter().enumerate();
        Self {
            view: View::default(),
            changed: true,
            stale: 0,
            router: RequestRouter::new(),
            waiting: BTreeMap::new(),
            arrivals: arrivals
                .map(|(index, _)| Random::stream(seed, &format!("demand {index}")))
                .collect(),
            models: scenario
                .demand
                .iter()
                .map(|demand| scenario.served_name(&demand.deployment))
                .collect(),
            random: Random::stream(seed, "routing"),
            round_robin_index: 0,
            requests: 0,
            speeds: BTreeMap::new(),
        }
    }
}

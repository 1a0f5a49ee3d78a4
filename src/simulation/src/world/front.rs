//! State of the gateway and its clients.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::random::Random;
use crate::scenario::Scenario;
use crate::world::view::View;
use rooflet_gateway::{Assignment, QueuedRequest, RequestRouter};

/// One request of a client.
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
}

/// Why a request was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// No replica was ready, and none was coming.
    NoReplica,
    /// Those there were could not take it.
    Refused,
    /// Its worker died.
    WorkerLost,
    /// Its worker was stopped before it was answered.
    CutShort,
    /// The client waited too long.
    GaveUp,
}

/// Class, model, bits of its KV cache, streams, and the lengths of prompt and context.
type Use = (String, u64, u64, u32, u32, u32);

/// The gateway and its clients.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) view: View,
    pub(crate) changed: bool,
    pub(crate) stale: u32,
    pub(crate) router: RequestRouter,
    /// Held by the gateway until a replica has room.
    pub(crate) waiting: BTreeMap<u64, (Request, QueuedRequest)>,
    pub(crate) arrivals: Vec<Random>,
    /// The model that each demand asks for.
    pub(crate) asked: Vec<String>,
    pub(crate) choice: Random,
    pub(crate) turn: usize,
    pub(crate) requests: u64,
    /// Predictions that were made before: tokens per second, and seconds to the first token.
    pub(crate) speeds: BTreeMap<Use, (f64, f64)>,
}

impl Front {
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
            asked: scenario
                .demand
                .iter()
                .map(|demand| scenario.served_name(&demand.deployment))
                .collect(),
            choice: Random::stream(seed, "routing"),
            turn: 0,
            requests: 0,
            speeds: BTreeMap::new(),
        }
    }
}

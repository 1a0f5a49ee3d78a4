//! Simulated network: delays, lost messages, outages and disorder, with their random streams.

pub(crate) mod disorder;

use std::time::Duration;

use crate::network::disorder::Disorder;
use crate::random::Random;
use crate::scenario::Scenario;

/// State of the network.
pub(crate) struct Network<'a> {
    scenario: &'a Scenario,
    pub(crate) random: Random,
    pub(crate) lost_share: f64,
    pub(crate) slow_network: f64,
    /// Earlier, higher value of `slow_network`, and the time until which it applied.
    pub(crate) slower_until: Option<(f64, Duration)>,
    pub(crate) disorder: Disorder,
    /// Number of active faults that stop the API server.
    pub(crate) outages: u32,
    /// Time of the last crash of the API server.
    pub(crate) crashed: Option<Duration>,
    /// Random stream that decides how many of the last writes a crash loses.
    pub(crate) disk: Random,
}

impl<'a> Network<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        Self {
            scenario,
            random: Random::stream(seed, "network"),
            lost_share: 0.0,
            slow_network: 1.0,
            slower_until: None,
            disorder: Disorder::new(seed),
            outages: 0,
            crashed: None,
            disk: Random::stream(seed, "disk"),
        }
    }
}

impl Network<'_> {
    /// Returns true if the API server does not respond.
    pub(crate) fn is_out(&self) -> bool {
        self.outages > 0
    }

    /// Draws the delay of a message.
    pub(crate) fn latency(&mut self) -> Duration {
        let network = &self.scenario.network;
        self.random
            .between(network.shortest, network.longest)
            .mul_f64(self.slow_network)
    }
}

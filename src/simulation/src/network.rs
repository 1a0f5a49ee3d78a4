//! Simulated network: delays, losses, outages and disorder, with their random streams.

pub(crate) mod disorder;

use std::time::Duration;

use crate::network::disorder::Disorder;
use crate::random::Random;
use crate::scenario::Scenario;

/// See the module.
pub(crate) struct Network<'a> {
    scenario: &'a Scenario,
    pub(crate) random: Random,
    pub(crate) lost_share: f64,
    pub(crate) slow_network: f64,
    /// A higher value that `slow_network` had before, and until when.
    pub(crate) slower_until: Option<(f64, Duration)>,
    pub(crate) disorder: Disorder,
    /// Number of faults that keep the API server away, and when it crashed last.
    pub(crate) outages: u32,
    pub(crate) crashed: Option<Duration>,
    /// Decides which of the last writes are on disk.
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
    /// Nobody is answered.
    pub(crate) fn is_out(&self) -> bool {
        self.outages > 0
    }

    pub(crate) fn latency(&mut self) -> Duration {
        let network = &self.scenario.network;
        self.random
            .between(network.shortest, network.longest)
            .mul_f64(self.slow_network)
    }
}

//! What a fleet would do for replicas that do not exist yet.

use std::collections::{BTreeMap, BTreeSet};

use super::bind::bind_all;
use super::fleet::Fleet;
use super::node::NodeState;
use super::request::{ReplicaKey, ReplicaRequest};
use crate::api::v1alpha1::ModelSource;
use crate::roofline::admission::{Appraisal, Speed};
use crate::roofline::predict::Parameters;

impl NodeState {
    /// How fast the request would be with the chip to itself; `None` where that cannot be told.
    pub(crate) fn speed_alone(&self, request: &ReplicaRequest) -> Option<Speed> {
        let Some(ModelSource::Local(name)) = &request.source else {
            return None;
        };
        let model = self.machine.model(name)?;
        let served = request.served(model)?;
        let ask = request.ask(model, &served);
        let machine = &self.machine;
        let parameters = Parameters::built_in();
        Appraisal::new(&ask, machine.hardware, &machine.calibrations, parameters).speed
    }
}

/// Where replicas of a deployment would be, were they placed now.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outlook {
    /// Decode tokens per second of those whose speed can be told, their streams busy; those on one chip share its time.
    /// `None` where no replica's can.
    pub(crate) tokens_per_second: Option<f64>,
    /// The most that one of them has.
    fastest: f64,
    pub(crate) nodes: BTreeSet<String>,
    /// Replicas on nodes whose speed nobody can tell.
    pub(crate) unknown: usize,
    /// Replicas without a node, and why.
    pub(crate) unplaced: Option<(usize, String)>,
}

impl Fleet {
    /// Tries on a copy how `count` replicas would be placed if those of `leaving` were gone: beside what else runs, and by all
    /// rules.
    pub(crate) fn outlook<'a>(
        &self,
        request: &ReplicaRequest,
        count: usize,
        leaving: impl IntoIterator<Item = &'a ReplicaKey>,
    ) -> Outlook {
        let mut fleet = self.clone();
        for key in leaving {
            fleet.remove_replica(key);
        }
        let requests: Vec<_> = (0..count)
            .map(|number| {
                let mut request = request.clone();
                request.key.name = format!("{}{number}", request.key.name);
                request
            })
            .collect();
        let mut outlook = Outlook::default();
        // By node: the figures of its replicas, and their number.
        let mut chips: BTreeMap<String, (f64, u32)> = BTreeMap::new();
        for decision in bind_all(&requests, &mut fleet) {
            let placement = match decision.outcome {
                Ok(placement) => placement,
                Err(why) => {
                    let (unplaced, _) = outlook.unplaced.get_or_insert_with(|| (0, why.to_string()));
                    *unplaced += 1;
                    continue;
                }
            };
            let node = fleet.node(placement.node());
            match node.and_then(|node| node.speed_alone(request)) {
                Some(speed) => {
                    let each = speed.decode.p50 * f64::from(request.max_concurrency);
                    outlook.fastest = outlook.fastest.max(each);
                    let (sum, replicas) = chips.entry(placement.node().to_owned()).or_default();
                    *sum += each;
                    *replicas += 1;
                }
                None => outlook.unknown += 1,
            }
            outlook.nodes.insert(placement.node().to_owned());
        }
        let shared = chips.values().map(|(sum, replicas)| sum / f64::from(*replicas));
        outlook.tokens_per_second = (!chips.is_empty() || outlook.unknown == 0).then(|| shared.sum());
        outlook
    }
}

impl Outlook {
    /// What it may come to: where nobody can tell, as fast as the fastest. `None` where nothing is known.
    pub(crate) fn at_most(&self) -> Option<f64> {
        Some(self.tokens_per_second? + self.unknown as f64 * self.fastest)
    }
}

//! The best a fleet could do for a deployment, whatever else runs: a bound, not a placement.

use super::fleet::Fleet;
use super::request::ReplicaRequest;
use crate::api::v1alpha1::ModelSource;
use crate::roofline::admission::Appraisal;
use crate::roofline::predict::Parameters;

impl Fleet {
    /// Decode tokens per second that `count` replicas have at most, all their streams busy: on the nodes where they
    /// are fastest; those on one chip share its time, so that one there is worth as much as several. `None` where the speed of some node cannot be told.
    pub(crate) fn throughput_at_most(&self, request: &ReplicaRequest, count: usize) -> Option<f64> {
        let Some(ModelSource::Local(name)) = &request.source else {
            return None;
        };
        let selector = &request.placement.node_selector;
        let mut figures = Vec::new();
        for node in &self.nodes {
            let is_selected = selector
                .iter()
                .all(|(key, value)| node.labels.get(key) == Some(value));
            let machine = &node.machine;
            let served = machine
                .model(name)
                .filter(|model| is_selected && model.problem.is_none())
                .and_then(|model| Some((model, request.served(model)?)));
            if let Some((model, served)) = served {
                let ask = request.ask(model, &served);
                let alone = Appraisal::new(
                    &ask,
                    machine.hardware,
                    &machine.calibrations,
                    Parameters::built_in(),
                );
                let each = alone.speed?.decode.p50 * f64::from(request.max_concurrency);
                let total = alone.reservation.total().0.max(1);
                if node.allocatable.0 >= total {
                    figures.push(each);
                }
            }
        }
        figures.sort_by(|a, b| b.total_cmp(a));
        Some(figures.iter().take(count).sum())
    }
}

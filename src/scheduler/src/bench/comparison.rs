//! Comparison of placement policies on five mixed fleets with deployments without objectives.
//!
//! The fleets and deployments were fixed before the first comparison. The Macs and models are real,
//! the mixes are assumed.

use super::{mac, models, request_for};
use crate::fleet::Fleet;
use crate::placement::bind::bind_all;
use crate::placement::filter::filter;
use crate::placement::rival::Rival;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_api::v1alpha1::{FleetNode, PlacementStrategy};

/// Chip, GPU cores, memory in GiB, and number of Macs.
type Macs = (&'static str, u32, u64, usize);
/// Model in 4 bits, context tokens, streams and replicas.
type Demand = (&'static str, u32, u32, usize);

struct Mix {
    name: &'static str,
    macs: &'static [Macs],
    demands: &'static [Demand],
    /// Deployment that is created last. It shows how many replicas have to move for a large model.
    large: Demand,
    /// True if an exhaustive search takes at most a few seconds.
    is_small: bool,
}

const MIXES: [Mix; 5] = [
    Mix {
        name: "workgroup: 6 M4, 4 M4 Pro, 2 M3 Ultra",
        macs: &[("M4", 10, 16, 6), ("M4 Pro", 20, 48, 4), ("M3 Ultra", 80, 256, 2)],
        demands: &[
            ("qwen3-0.6b", 8192, 4, 1),
            ("qwen3-1.7b", 8192, 4, 1),
            ("qwen3-4b", 8192, 2, 1),
            ("qwen3-8b", 8192, 2, 1),
            ("llama3-8b", 8192, 2, 1),
        ],
        large: ("llama3.3-70b", 32768, 4, 1),
        is_small: true,
    },
    Mix {
        name: "office: 10 M4, 2 M4 Pro",
        macs: &[("M4", 10, 16, 10), ("M4 Pro", 16, 24, 2)],
        demands: &[
            ("qwen3-4b", 8192, 2, 3),
            ("qwen3-8b", 4096, 1, 2),
            ("qwen3-0.6b", 4096, 4, 2),
        ],
        large: ("qwen3-14b", 4096, 1, 1),
        is_small: true,
    },
    Mix {
        name: "home: M4, M4 Pro, M4 Max",
        macs: &[("M4", 10, 16, 1), ("M4 Pro", 16, 24, 1), ("M4 Max", 32, 36, 1)],
        demands: &[
            ("qwen3-0.6b", 8192, 1, 1),
            ("qwen3-1.7b", 8192, 1, 1),
            ("qwen3-4b", 8192, 1, 1),
            ("llama3-8b", 8192, 1, 1),
            ("qwen3-14b", 8192, 1, 1),
        ],
        large: ("qwen3-32b", 4096, 1, 1),
        is_small: true,
    },
    Mix {
        name: "laboratory: 3 M4 Max, 1 M3 Ultra",
        macs: &[("M4 Max", 40, 64, 3), ("M3 Ultra", 80, 256, 1)],
        demands: &[
            ("llama3.3-70b", 8192, 2, 1),
            ("qwen3-32b", 8192, 2, 2),
            ("qwen3-14b", 8192, 4, 2),
            ("qwen3-4b", 8192, 4, 2),
        ],
        large: ("llama3.3-70b", 32768, 4, 1),
        is_small: true,
    },
    Mix {
        name: "company: 40 M4, 20 M4 Pro, 10 M4 Max, 4 M3 Ultra",
        macs: &[
            ("M4", 10, 32, 40),
            ("M4 Pro", 20, 48, 20),
            ("M4 Max", 40, 128, 10),
            ("M3 Ultra", 80, 256, 4),
        ],
        demands: &[
            ("qwen3-0.6b", 8192, 4, 12),
            ("qwen3-1.7b", 8192, 4, 12),
            ("qwen3-4b", 8192, 2, 16),
            ("qwen3-8b", 8192, 2, 16),
            ("llama3-8b", 8192, 2, 8),
            ("qwen3-14b", 8192, 2, 8),
            ("qwen3-32b", 8192, 2, 4),
            ("llama3.3-70b", 8192, 2, 2),
        ],
        large: ("llama3.3-70b", 32768, 4, 1),
        is_small: false,
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Strategy(PlacementStrategy),
    Baseline(Rival),
    /// Highest total speed with the largest possible number of replicas, by exhaustive search.
    Optimum,
}

const POLICIES: [(&str, Policy); 7] = [
    (
        "default (SloSlack)",
        Policy::Strategy(PlacementStrategy::SloSlack),
    ),
    ("BinPack", Policy::Strategy(PlacementStrategy::BinPack)),
    ("Spread", Policy::Strategy(PlacementStrategy::Spread)),
    ("Fastest", Policy::Strategy(PlacementStrategy::Fastest)),
    ("LeastAllocated by memory", Policy::Baseline(Rival::LeastLoaded)),
    ("MostAllocated by memory", Policy::Baseline(Rival::BestFit)),
    ("optimum", Policy::Optimum),
];

/// Result of a policy on a fleet.
#[derive(Debug, Clone)]
pub struct PolicyResult {
    pub fleet: &'static str,
    pub policy: &'static str,
    pub replicas: usize,
    /// Replicas with a node.
    pub placed: usize,
    /// Mean of the predicted decode speeds of one stream if all replicas are busy, in tokens per
    /// second. Replicas without a node count as 0.
    pub mean: f64,
    /// 10th percentile of the same speeds.
    pub p10: f64,
    /// Macs without replicas.
    pub idle: usize,
    pub macs: usize,
    /// Number of replicas that have to leave a Mac so that one large model fits. `None` if no Mac
    /// can hold the model.
    pub moves: Option<usize>,
}

/// Places the deployments of every fleet with every policy. The optimum is missing for the largest
/// fleet.
pub fn compare_policies() -> Vec<PolicyResult> {
    let results = MIXES.iter().flat_map(|mix| {
        let policies = POLICIES.into_iter();
        let policies = policies.filter(|(_, policy)| mix.is_small || *policy != Policy::Optimum);
        policies.map(|(name, policy)| mix.result(name, policy))
    });
    results.collect()
}

impl Mix {
    fn nodes(&self) -> Vec<FleetNode> {
        let mut names: Vec<_> = self.demands.iter().map(|(model, ..)| *model).collect();
        names.push(self.large.0);
        let models = models(names);
        let macs = self.macs.iter().flat_map(|mac| std::iter::repeat_n(mac, mac.3));
        let macs = macs.enumerate();
        macs.map(|(index, (chip, cores, gib, _))| mac(index, chip, *cores, *gib, &models))
            .collect()
    }

    fn requests(&self, strategy: PlacementStrategy) -> Vec<ReplicaRequest> {
        let demands = self.demands.iter().enumerate();
        let requests = demands.flat_map(|(deployment, demand)| {
            (0..demand.3).map(move |replica| request_of(deployment, replica, *demand, strategy))
        });
        requests.collect()
    }

    fn result(&self, name: &'static str, policy: Policy) -> PolicyResult {
        let mut fleet = Fleet::new(&self.nodes(), []);
        let strategy = match policy {
            Policy::Strategy(strategy) => strategy,
            Policy::Baseline(_) | Policy::Optimum => PlacementStrategy::SloSlack,
        };
        let requests = self.requests(strategy);
        match policy {
            Policy::Strategy(_) => drop(bind_all(&requests, &mut fleet)),
            Policy::Baseline(rival) => drop(rival.place_all(&requests, &mut fleet)),
            Policy::Optimum => {
                let mut search = Search::new(&fleet);
                search.extend(&requests, &mut fleet);
                for (request, node) in requests.iter().zip(&search.best) {
                    if let Some(node) = node {
                        let name = fleet.nodes[*node].name.clone();
                        fleet.place(request, &name);
                    }
                }
            }
        }
        let mut speeds = speeds(&fleet);
        let placed = speeds.len();
        speeds.resize(requests.len(), 0.0);
        speeds.sort_by(f64::total_cmp);
        PolicyResult {
            fleet: self.name,
            policy: name,
            replicas: requests.len(),
            placed,
            mean: speeds.iter().sum::<f64>() / requests.len() as f64,
            p10: speeds[requests.len() / 10],
            idle: fleet.nodes.iter().filter(|node| node.load.is_empty()).count(),
            macs: fleet.nodes.len(),
            moves: self.moves(&fleet),
        }
    }

    /// Returns the smallest number of replicas that have to leave one Mac for the large model.
    fn moves(&self, fleet: &Fleet) -> Option<usize> {
        let request = request_of(self.demands.len(), 0, self.large, PlacementStrategy::SloSlack);
        let per_node = (0..fleet.nodes.len()).map(|at| {
            let mut fleet = fleet.clone();
            let mut residents: Vec<_> = fleet.nodes[at].residents.iter().collect();
            residents.sort_by_key(|(_, resident)| resident.bytes());
            let mut keys: Vec<ReplicaKey> = residents.into_iter().map(|(key, _)| key.clone()).collect();
            let mut moved = 0;
            loop {
                let (fits, nodes) = fleet.fits(&request);
                let node = &nodes[at];
                if filter(&request, node, &fits[node.machine_id], &node.load).is_ok() {
                    return Some(moved);
                }
                fleet.remove_replica(&keys.pop()?);
                moved += 1;
            }
        });
        per_node.flatten().min()
    }
}

fn request_of(
    deployment: usize,
    replica: usize,
    (model, context_tokens, streams, _): Demand,
    strategy: PlacementStrategy,
) -> ReplicaRequest {
    let mut request = request_for(deployment, replica, model, context_tokens, streams, None);
    request.placement.strategy = strategy;
    request
}

/// Returns the predicted decode speed of each placed replica if all are busy, in tokens per second.
fn speeds(fleet: &Fleet) -> Vec<f64> {
    let nodes = fleet.nodes.iter();
    nodes.flat_map(|node| node.load.shared_speeds()).collect()
}

/// Exhaustive search for the placement with the most replicas, and among these with the highest
/// total speed.
struct Search {
    /// Demands on each node, for the detection of equal nodes.
    contents: Vec<Vec<String>>,
    chosen: Vec<Option<usize>>,
    best: Vec<Option<usize>>,
    best_value: (usize, f64),
}

impl Search {
    fn new(fleet: &Fleet) -> Self {
        Self {
            contents: vec![Vec::new(); fleet.nodes.len()],
            chosen: Vec::new(),
            best: Vec::new(),
            best_value: (0, -1.0),
        }
    }

    /// Tries all nodes for the first request. Of equal nodes, only the first one is tried.
    fn extend(&mut self, requests: &[ReplicaRequest], fleet: &mut Fleet) {
        let Some((request, rest)) = requests.split_first() else {
            let value = (self.chosen.iter().flatten().count(), speeds(fleet).iter().sum());
            if value > self.best_value {
                self.best_value = value;
                self.best.clone_from(&self.chosen);
            }
            return;
        };
        let demand = request.deployment.as_ref().map_or("", |key| &key.name);
        let mut tried = Vec::new();
        for at in 0..fleet.nodes.len() {
            let (fits, nodes) = fleet.fits(request);
            let node = &nodes[at];
            let machine = node.machine_id;
            if tried.contains(&(machine, self.contents[at].clone()))
                || filter(request, node, &fits[machine], &node.load).is_err()
            {
                continue;
            }
            tried.push((machine, self.contents[at].clone()));
            let name = node.name.clone();
            fleet.place(request, &name);
            self.contents[at].push(demand.to_owned());
            self.chosen.push(Some(at));
            self.extend(rest, fleet);
            self.chosen.pop();
            self.contents[at].pop();
            fleet.undo(&request.key, None);
        }
        if tried.is_empty() {
            self.chosen.push(None);
            self.extend(rest, fleet);
            self.chosen.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheduler places replicas one after the other. In the office, the first deployment gets
    /// the two M4 Pro, and the small model that would gain most from them comes last.
    #[test]
    fn default_reaches_95_percent_of_the_optimal_speed() {
        let results = compare_policies();
        let optima = results.iter().filter(|result| result.policy == "optimum");
        for optimum in optima {
            let of_default = results
                .iter()
                .find(|result| result.fleet == optimum.fleet && result.policy.starts_with("default"))
                .unwrap();
            let share = of_default.mean / optimum.mean;
            assert_eq!(of_default.placed, optimum.placed, "{}", optimum.fleet);
            assert!(
                (0.95..=1.0 + 1e-9).contains(&share),
                "{}: {share:.3}",
                optimum.fleet
            );
        }
    }
}

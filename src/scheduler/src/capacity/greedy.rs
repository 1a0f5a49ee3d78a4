//! Greedy placement for instances of any size, one replica at a time.
//!
//! Models that could not be placed move to the front, and the placement restarts ("squeaky wheel"
//! optimisation; Joslin and Clements, 1999). Deterministic and independent of time.

use std::cmp::Ordering;

use super::instance::{Group, Instance, MAX_FACTOR, Placement, Share, TOLERANCE, waiting_share};
use rooflet_base::units::Bytes;

/// Search effort.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Effort {
    rules: &'static [Rule],
    /// Maximum number of orders that are tried for one demand.
    rounds: usize,
    /// Relative gap between the largest feasible and the smallest infeasible factor at which the
    /// search stops.
    close: f64,
}

impl Effort {
    /// Effort for the answer.
    pub(super) const FULL: Self = Self {
        rules: &RULES,
        rounds: 3,
        close: 0.01,
    };
    /// Effort for comparisons with the answer.
    pub(super) const QUICK: Self = Self {
        rules: &[Rule::Cheapest],
        rounds: 2,
        close: 0.03,
    };
}

/// Maximum number of evaluated node choices; after that, the best known answer is used.
const MAX_WORK: usize = 12_000_000;

/// Rule for the choice between feasible nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Node with the highest capacity; minimizes replicas.
    MostRoom,
    /// Node with the least remaining memory; keeps empty nodes for large models.
    TightestMemory,
    /// Node that uses the smallest share of its resources per request.
    Cheapest,
}

const RULES: [Rule; 3] = [Rule::Cheapest, Rule::TightestMemory, Rule::MostRoom];

/// Node during placement.
#[derive(Debug, Clone)]
struct NodeLoad {
    class: usize,
    replicas: Vec<Share>,
    memory: Bytes,
    disk: Bytes,
    reserved: f64,
    objective_share: f64,
    device: f64,
    prefill: f64,
    /// `Σ rate·prefill²`.
    prefill_squared: f64,
    wait: f64,
}

impl NodeLoad {
    fn empty(instance: &Instance, class: usize) -> Self {
        Self {
            class,
            replicas: Vec::new(),
            memory: Bytes::ZERO,
            disk: Bytes::ZERO,
            reserved: instance.classes[class].reserved,
            objective_share: 0.0,
            device: 0.0,
            prefill: 0.0,
            prefill_squared: 0.0,
            wait: f64::INFINITY,
        }
    }

    /// Returns the additional requests per second of `model` that the node can serve, or `None` if
    /// the model does not fit.
    fn room(&self, instance: &Instance, model: usize) -> Option<f64> {
        let supply = &instance.classes[self.class];
        let need = instance.need(model, self.class)?;
        let is_full = self.memory + need.memory > supply.memory
            || supply.disk.is_some_and(|free| self.disk + need.disk > free);
        if is_full || self.replicas.iter().any(|share| share.model == model) {
            return None;
        }
        let reserved = self.reserved + need.reserved;
        let objective_share = self.objective_share + need.objective_share;
        let objectives = 1.0 - supply.reserved - objective_share - self.prefill;
        if reserved > 1.0 + TOLERANCE || (objective_share > 0.0 && objectives < 0.0) {
            return None;
        }
        let wait = need.wait.map_or(self.wait, |wait| wait.min(self.wait));
        let mut room =
            (instance.utilization - supply.reserved - self.device).max(0.0) / need.service.max(1e-12);
        if objective_share > 0.0 && need.prefill > 0.0 {
            room = room.min(objectives / need.prefill);
        }
        if wait.is_finite() {
            let taken = self.prefill + self.prefill_squared / (2.0 * wait.max(1e-6));
            if taken > 1.0 {
                return None;
            }
            let share = waiting_share(need.prefill, wait);
            if share > 0.0 {
                room = room.min((1.0 - taken) / share);
            }
        }
        Some(room)
    }

    fn put(&mut self, instance: &Instance, model: usize, rate: f64) {
        let Some(need) = instance.need(model, self.class) else {
            return;
        };
        self.memory += need.memory;
        self.disk += need.disk;
        self.reserved += need.reserved;
        self.objective_share += need.objective_share;
        self.device += rate * need.service;
        self.prefill += rate * need.prefill;
        self.prefill_squared += rate * need.prefill * need.prefill;
        self.wait = need.wait.map_or(self.wait, |wait| wait.min(self.wait));
        self.replicas.push(Share { model, rate });
    }
}

/// Result of one attempt.
struct Attempt {
    placement: Placement,
    /// Models that are not completely placed.
    unplaced: Vec<usize>,
    work: usize,
}

/// Returns a placement for `factor` times the demand, or the unplaced models of the best attempt.
pub(super) fn place(instance: &Instance, factor: f64) -> Result<Placement, Vec<usize>> {
    let mut fewest: Option<Vec<usize>> = None;
    for rule in RULES {
        match rounds(instance, factor, rule, Effort::FULL.rounds, &mut 0) {
            Ok(placement) => return Ok(placement),
            Err(unplaced) => {
                if fewest.as_ref().is_none_or(|known| unplaced.len() < known.len()) {
                    fewest = Some(unplaced);
                }
            }
        }
    }
    Err(fewest.unwrap_or_default())
}

/// Returns the placement with the largest factor found up to `bound`, or `None` if the required
/// replicas do not fit.
pub(super) fn most_demand(instance: &Instance, bound: f64, effort: Effort) -> Option<Placement> {
    let mut work = 0;
    let mut rule = Rule::Cheapest;
    let mut attempt = |factor: f64, work: &mut usize| {
        let first = rule;
        let others = effort.rules.iter().copied().filter(|other| *other != first);
        for next in std::iter::once(first).chain(others) {
            if let Ok(placement) = rounds(instance, factor, next, effort.rounds, work) {
                rule = next;
                return Some(placement);
            }
            if *work > MAX_WORK {
                return None;
            }
        }
        None
    };
    let (mut low, mut high) = (0.0, bound.min(MAX_FACTOR));
    let mut best = attempt(low, &mut work)?;
    // Try factor 1 first: whether the demand is carried matters most.
    let mut next = if high > 1.0 { 1.0 } else { 0.9 * high };
    while high - low > effort.close * high.max(1e-9) && work <= MAX_WORK {
        match attempt(next, &mut work) {
            Some(placement) => {
                low = placement.factor(instance).max(next);
                best = placement;
            }
            None => high = next,
        }
        next = if low == 0.0 {
            high / 4.0
        } else {
            (low * high).sqrt()
        };
        if next < 1e-6 {
            break;
        }
    }
    Some(best)
}

fn rounds(
    instance: &Instance,
    factor: f64,
    rule: Rule,
    rounds: usize,
    work: &mut usize,
) -> Result<Placement, Vec<usize>> {
    let mut order = by_difficulty(instance);
    let mut unplaced = Vec::new();
    for _ in 0..rounds {
        let attempt = fill(instance, factor, &order, rule);
        *work += attempt.work;
        if attempt.unplaced.is_empty() {
            return Ok(attempt.placement);
        }
        unplaced = attempt.unplaced;
        order.sort_by_key(|model| !unplaced.contains(model));
    }
    Err(unplaced)
}

/// Returns the models in order of difficulty: fewest suitable nodes first, then largest share of a
/// node.
fn by_difficulty(instance: &Instance) -> Vec<usize> {
    let key = |model: &usize| {
        let mut nodes = 0u64;
        let mut smallest = f64::INFINITY;
        for (class, supply) in instance.classes.iter().enumerate() {
            let Some(need) = instance.need(*model, class) else {
                continue;
            };
            nodes += u64::from(supply.nodes);
            let memory = need.memory.share_of(supply.memory);
            let disk = supply.disk.map_or(0.0, |free| need.disk.share_of(free));
            let device = need
                .reserved
                .max(instance.models[*model].rate * need.service)
                .min(1.0);
            smallest = smallest.min(memory.max(disk).max(device));
        }
        (nodes, smallest)
    };
    let mut order: Vec<usize> = (0..instance.models.len()).collect();
    order.sort_by(|a, b| {
        let ((a_nodes, a_share), (b_nodes, b_share)) = (key(a), key(b));
        a_nodes
            .cmp(&b_nodes)
            .then(b_share.total_cmp(&a_share))
            .then(a.cmp(b))
    });
    order
}

fn fill(instance: &Instance, factor: f64, order: &[usize], rule: Rule) -> Attempt {
    let mut fresh: Vec<u32> = instance.classes.iter().map(|class| class.nodes).collect();
    let empty: Vec<NodeLoad> = (0..fresh.len())
        .map(|class| NodeLoad::empty(instance, class))
        .collect();
    let mut nodes: Vec<NodeLoad> = Vec::new();
    let (mut unplaced, mut work) = (Vec::new(), 0);
    let mut hosts: Vec<Host> = Vec::new();
    for model in order.iter().copied() {
        let load = &instance.models[model];
        let wanted = load.rate * factor;
        let (mut left, mut replicas) = (wanted, 0);
        // A node runs one replica of a model, so the capacities do not change while a model is
        // placed.
        work += nodes.len() + fresh.len();
        let used = nodes.iter().enumerate().map(|(index, node)| (Some(index), node));
        let unused = empty
            .iter()
            .filter(|node| fresh[node.class] > 0)
            .map(|node| (None, node));
        hosts.clear();
        hosts.extend(
            used.chain(unused)
                .filter_map(|(index, node)| Host::new(instance, node, index, model)),
        );
        while left > TOLERANCE * wanted || replicas < load.min_replicas {
            let still = load.min_replicas.saturating_sub(replicas).max(1);
            // With a required number of replicas, divide the remaining demand between them.
            let share = left / f64::from(still);
            work += hosts.len();
            let choices = hosts.iter().enumerate();
            let best = choices
                .filter_map(|(position, host)| Some((position, host.choice(share, rule)?)))
                .min_by(|a, b| compare(&a.1, &b.1).then(a.0.cmp(&b.0)));
            let Some((position, choice)) = best else {
                break;
            };
            let class = hosts[position].class;
            match hosts[position].node {
                Some(index) => {
                    nodes[index].put(instance, model, choice.rate);
                    hosts.remove(position);
                }
                None => {
                    let mut node = empty[class].clone();
                    node.put(instance, model, choice.rate);
                    nodes.push(node);
                    fresh[class] -= 1;
                    if fresh[class] == 0 {
                        hosts.remove(position);
                    }
                }
            }
            left -= choice.rate;
            replicas += 1;
        }
        if left > TOLERANCE * wanted || replicas < load.min_replicas {
            unplaced.push(model);
        }
    }
    Attempt {
        placement: collect(nodes),
        unplaced,
        work,
    }
}

/// Candidate node for a replica of the model that is being placed.
struct Host {
    class: usize,
    /// `None` for an unused node of the class.
    node: Option<usize>,
    /// Requests per second that the node can serve.
    room: f64,
    /// Share of memory that remains free.
    left: f64,
    /// Sum of the shares of memory, disk and reserved time that the replica uses.
    taken: f64,
    /// Chip time per request, in seconds.
    service: f64,
}

impl Host {
    fn new(instance: &Instance, node: &NodeLoad, index: Option<usize>, model: usize) -> Option<Self> {
        let room = node.room(instance, model)?;
        let need = instance.need(model, node.class)?;
        let supply = &instance.classes[node.class];
        let disk = supply.disk.map_or(0.0, |free| need.disk.share_of(free));
        Some(Self {
            class: node.class,
            node: index,
            room,
            left: (supply.memory - node.memory - need.memory).share_of(supply.memory),
            taken: need.memory.share_of(supply.memory) + disk + need.reserved,
            service: need.service,
        })
    }

    /// Returns the choice of this node for `share` requests per second, or `None` if it can serve
    /// none.
    fn choice(&self, share: f64, rule: Rule) -> Option<Choice> {
        let rate = self.room.min(share);
        if share > 0.0 && rate < 1e-9 * share {
            return None;
        }
        let part = self.taken + rate * self.service;
        let served = if share > 0.0 { rate / share } else { 1.0 };
        let key = match rule {
            Rule::MostRoom => [-served, self.left, part],
            Rule::TightestMemory => [if served > 0.5 { 0.0 } else { 1.0 }, self.left, part],
            Rule::Cheapest => [part / served, self.left, -served],
        };
        Some(Choice { rate, key })
    }
}

/// Choice of a node, ranked by [`compare`]; smaller is better.
struct Choice {
    rate: f64,
    key: [f64; 3],
}

fn compare(a: &Choice, b: &Choice) -> Ordering {
    let pairs = a.key.iter().zip(&b.key);
    pairs.fold(Ordering::Equal, |known, (a, b)| known.then(a.total_cmp(b)))
}

fn collect(nodes: Vec<NodeLoad>) -> Placement {
    let groups = nodes.into_iter().map(|mut node| {
        node.replicas.sort_by_key(|share| share.model);
        Group {
            class: node.class,
            nodes: 1,
            replicas: node.replicas,
        }
    });
    Placement {
        groups: groups.collect(),
    }
    .merged()
}

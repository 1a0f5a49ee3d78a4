//! What is heard of nodes, timed by our own clock: the clocks of two machines never agree.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::silence::is_known_silent;
use rooflet_api::meta::{LEASE_DURATION, lease_name};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, Taint, TaintEffect};
use rooflet_scheduler::taints_of;

/// How long things have been so, as far as this process knows: one that starts counts from then on.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// For how long nothing was heard of each node.
    pub silence: BTreeMap<String, Duration>,
    /// For how long a node that replicas are bound to has not been there.
    pub missing: BTreeMap<String, Duration>,
    /// For how long each node has had its taints of effect NoExecute.
    pub tainted: BTreeMap<String, Vec<(Taint, Duration)>>,
}

impl Heard {
    /// Nodes that are about to be taken for silent.
    pub fn doubtful(&self, nodes: &[&FleetNode]) -> Vec<String> {
        nodes
            .iter()
            .filter(|node| !is_known_silent(node))
            .map(|node| node.name_any())
            .filter(|name| {
                self.silence
                    .get(name)
                    .is_some_and(|silence| *silence >= LEASE_DURATION)
            })
            .collect()
    }
}

/// A node's Lease. Whether it was renewed is told by its version: a clock that was set back may show the same time again.
#[derive(Debug)]
struct Beat {
    /// Its version as the watch shows it.
    watched: Option<String>,
    /// The same as the server itself said when it was asked.
    asked: Option<String>,
    /// Since when neither has changed.
    since: Instant,
}

/// When what was last seen of each node.
#[derive(Debug, Default)]
pub struct Heartbeats {
    seen: HashMap<String, Beat>,
    missing: HashMap<String, Instant>,
    tainted: HashMap<String, Vec<(Taint, Instant)>>,
}

impl Heartbeats {
    /// Looks at everything. A node seen for the first time counts as heard of.
    pub fn observe(
        &mut self,
        nodes: &[&FleetNode],
        replicas: &[&ModelReplica],
        lease: impl Fn(&str) -> Option<Lease>,
        now: Instant,
    ) -> Heard {
        Heard {
            silence: self.silence(nodes, lease, now),
            missing: self.missing(replicas, now),
            tainted: self.tainted(nodes, now),
        }
    }

    /// A second opinion on one node: the version of its Lease by what the server itself says. A watch may have
    /// stalled. For how long the node has been silent then.
    pub fn confirm(&mut self, node: &str, version: Option<String>, now: Instant) -> Duration {
        let Some(beat) = self.seen.get_mut(node) else {
            return Duration::ZERO;
        };
        if version != beat.watched && version != beat.asked {
            beat.since = now;
        }
        beat.asked = version;
        now - beat.since
    }

    fn silence(
        &mut self,
        nodes: &[&FleetNode],
        lease: impl Fn(&str) -> Option<Lease>,
        now: Instant,
    ) -> BTreeMap<String, Duration> {
        let mut seen = HashMap::new();
        let silence = nodes
            .iter()
            .map(|node| {
                let name = node.name_any();
                let watched = lease(&lease_name(&name)).and_then(|lease| lease.resource_version());
                let beat = match self.seen.remove(&name) {
                    // What the server has said already is no news when the watch shows it.
                    Some(beat) if watched == beat.watched || watched == beat.asked => {
                        Beat { watched, ..beat }
                    }
                    Some(_) | None => Beat {
                        watched,
                        asked: None,
                        since: now,
                    },
                };
                let silence = now - beat.since;
                seen.insert(name.clone(), beat);
                (name, silence)
            })
            .collect();
        self.seen = seen;
        silence
    }

    fn missing(&mut self, replicas: &[&ModelReplica], now: Instant) -> BTreeMap<String, Duration> {
        let mut missing = HashMap::new();
        for node in replicas
            .iter()
            .filter_map(|replica| replica.spec.node_name.as_ref())
        {
            if !self.seen.contains_key(node) {
                let since = self.missing.get(node).copied().unwrap_or(now);
                missing.insert(node.clone(), since);
            }
        }
        self.missing = missing;
        self.missing
            .iter()
            .map(|(node, since)| (node.clone(), now - *since))
            .collect()
    }

    fn tainted(&mut self, nodes: &[&FleetNode], now: Instant) -> BTreeMap<String, Vec<(Taint, Duration)>> {
        let mut before = std::mem::take(&mut self.tainted);
        let mut durations = BTreeMap::new();
        for node in nodes {
            let mut taints = taints_of(node);
            taints.retain(|taint| taint.effect == TaintEffect::NoExecute);
            if taints.is_empty() {
                continue;
            }
            let name = node.name_any();
            let known = before.remove(&name).unwrap_or_default();
            let since = |taint: &Taint| {
                known
                    .iter()
                    .find(|(one, _)| one == taint)
                    .map(|(_, since)| *since)
            };
            let seen: Vec<_> = taints
                .into_iter()
                .map(|taint| {
                    let since = since(&taint).unwrap_or(now);
                    (taint, since)
                })
                .collect();
            let lasting = |(taint, since): &(Taint, Instant)| (taint.clone(), now - *since);
            durations.insert(name.clone(), seen.iter().map(lasting).collect());
            self.tainted.insert(name, seen);
        }
        durations
    }
}

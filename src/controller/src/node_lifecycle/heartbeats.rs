//! Times since nodes renewed their Leases, disappeared or got taints. All times are measured with
//! the controller's clock, because the clocks of two machines differ.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::silence::is_reported_silent;
use rooflet_api::meta::{LEASE_DURATION, lease_name};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, Taint, TaintEffect};
use rooflet_scheduler::taints_of;

/// Durations of node states, since this process observed them.
#[derive(Debug, Clone, Default)]
pub struct Timings {
    /// Time since the last observed renewal of each node's Lease.
    pub silence: BTreeMap<String, Duration>,
    /// Time since a node with bound replicas has been missing.
    pub missing: BTreeMap<String, Duration>,
    /// NoExecute taints of each node and the time since they appeared.
    pub tainted: BTreeMap<String, Vec<(Taint, Duration)>>,
}

impl Timings {
    /// Returns the nodes whose Lease has expired but whose condition Ready does not report it yet.
    pub fn newly_silent(&self, nodes: &[&FleetNode]) -> Vec<String> {
        nodes
            .iter()
            .filter(|node| !is_reported_silent(node))
            .map(|node| node.name_any())
            .filter(|name| {
                self.silence
                    .get(name)
                    .is_some_and(|silence| *silence >= LEASE_DURATION)
            })
            .collect()
    }
}

/// Last observed versions of a node's Lease. A changed version is a renewal. The renew time is not
/// used, because a clock that was set back can produce the same time again.
#[derive(Debug)]
struct LeaseVersion {
    /// Version from the watch.
    watched: Option<String>,
    /// Version from the last list request.
    listed: Option<String>,
    /// Time of the last change of either version.
    since: Instant,
}

/// Observations of all nodes from pass to pass.
#[derive(Debug, Default)]
pub struct Heartbeats {
    leases: HashMap<String, LeaseVersion>,
    missing: HashMap<String, Instant>,
    tainted: HashMap<String, Vec<(Taint, Instant)>>,
}

impl Heartbeats {
    /// Records the current state and returns the durations. For a new node, the silence is zero.
    pub fn observe(
        &mut self,
        nodes: &[&FleetNode],
        replicas: &[&ModelReplica],
        lease: impl Fn(&str) -> Option<Lease>,
        now: Instant,
    ) -> Timings {
        Timings {
            silence: self.silence(nodes, lease, now),
            missing: self.missing(replicas, now),
            tainted: self.tainted(nodes, now),
        }
    }

    /// Records the version of a node's Lease from a list request and returns the node's silence.
    /// Used before a node is reported as silent, because the watch may have stalled.
    pub fn confirm(&mut self, node: &str, version: Option<String>, now: Instant) -> Duration {
        let Some(lease) = self.leases.get_mut(node) else {
            return Duration::ZERO;
        };
        if version != lease.watched && version != lease.listed {
            lease.since = now;
        }
        lease.listed = version;
        now - lease.since
    }

    fn silence(
        &mut self,
        nodes: &[&FleetNode],
        lease: impl Fn(&str) -> Option<Lease>,
        now: Instant,
    ) -> BTreeMap<String, Duration> {
        let mut leases = HashMap::new();
        let silence = nodes
            .iter()
            .map(|node| {
                let name = node.name_any();
                let watched = lease(&lease_name(&name)).and_then(|lease| lease.resource_version());
                let known = match self.leases.remove(&name) {
                    // A version that was listed earlier is no renewal when the watch delivers it.
                    Some(known) if watched == known.watched || watched == known.listed => {
                        LeaseVersion { watched, ..known }
                    }
                    Some(_) | None => LeaseVersion {
                        watched,
                        listed: None,
                        since: now,
                    },
                };
                let silence = now - known.since;
                leases.insert(name.clone(), known);
                (name, silence)
            })
            .collect();
        self.leases = leases;
        silence
    }

    fn missing(&mut self, replicas: &[&ModelReplica], now: Instant) -> BTreeMap<String, Duration> {
        let mut missing = HashMap::new();
        for node in replicas
            .iter()
            .filter_map(|replica| replica.spec.node_name.as_ref())
        {
            if !self.leases.contains_key(node) {
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
                let mut known = known.iter();
                let (_, since) = known.find(|(known, _)| known == taint)?;
                Some(*since)
            };
            let current: Vec<_> = taints
                .into_iter()
                .map(|taint| {
                    let since = since(&taint).unwrap_or(now);
                    (taint, since)
                })
                .collect();
            let lasting = |(taint, since): &(Taint, Instant)| (taint.clone(), now - *since);
            durations.insert(name.clone(), current.iter().map(lasting).collect());
            self.tainted.insert(name, current);
        }
        durations
    }
}

//! Certificates of nodes and gateways: their renewal, revocation and rotation. The decisions are
//! those of the server and of its machines, with real certificates.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;

use crate::rules::access::{Presented, spare_lifetime};
use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::access::{AccessEvent, AccessState, Peer, Stolen};
use crate::world::event::{Event, Reader};
use crate::world::gateway_state::Request;
use rooflet_trust::RotationPhase;

/// Interval at which a machine checks its certificates.
const KEEP_PERIOD: Duration = Duration::from_secs(30);
/// The same during a rotation, in which the server observes which certificates are used.
const ROTATION_KEEP_PERIOD: Duration = Duration::from_secs(10);
/// Interval at which the server checks the progress of a rotation.
const ROTATION_STEP: Duration = Duration::from_secs(2);
/// Time until an administrator joins a rejected machine again.
const REJOIN_DELAY: Duration = Duration::from_secs(60);
/// Delay before a request of an administrator is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time in which a connected machine follows a rotation.
const FOLLOWING: Duration = Duration::from_secs(60);
/// Stolen certificates of each rotation that are tried.
const STOLEN_PER_ROTATION: usize = 2;

impl Run<'_> {
    pub(crate) fn start_certificates(&mut self, access: &AccessState) {
        let gateways = (0..access.gateways.len()).map(Peer::Gateway);
        let nodes = (0..access.machines.len()).map(Peer::Node);
        for peer in gateways.chain(nodes) {
            self.world
                .after(KEEP_PERIOD, Event::Access(AccessEvent::KeepCertificates { peer }));
        }
    }

    /// Observes deleted FleetNodes and changed connections.
    pub(crate) fn observe_access(&mut self) {
        let Some(mut access) = self.world.access.take() else {
            return;
        };
        access.advance_to(self.world.now);
        if std::mem::replace(&mut access.was_out, self.network.is_out()) && !self.network.is_out() {
            access.server.restart().expect("the authorities are unchanged");
        }
        if !self.network.is_out() {
            self.observe_nodes(&mut access);
        }
        self.observe_connections(&mut access);
        self.observe_reports(&access);
        self.world.access = Some(access);
    }

    fn observe_nodes(&mut self, access: &mut AccessState) {
        let now = self.world.now;
        self.mark_observed(self.world.store.newest());
        let nodes = self.world.store.nodes.values();
        let present: BTreeMap<String, String> = nodes
            .map(|node| (node.name_any(), node.uid().unwrap_or_default()))
            .collect();
        if present == access.present {
            return;
        }
        access.server.observe_nodes(present.clone());
        let before = std::mem::replace(&mut access.present, present);
        let revoked: Vec<usize> = before
            .iter()
            .filter(|(name, uid)| access.present.get(*name) != Some(*uid))
            .filter_map(|(name, _)| self.world.by_name.get(name).copied())
            .collect();
        for node in &revoked {
            access.stolen.push(access.credentials(*node, now));
            access.machines[*node].revoked = Some(now);
            if let Some(tally) = &mut self.rules.ledger.access {
                tally.revocations += 1;
            }
            self.reject(access, *node);
        }
        if !revoked.is_empty() && !self.world.planted.has(Bug::RevocationNotPublished) {
            self.publish_trust(access);
        }
    }

    fn observe_connections(&mut self, access: &mut AccessState) {
        let now = self.world.now;
        let are_fresh = self.gateways_are_fresh();
        for index in 0..access.gateways.len() {
            let gateway = &mut access.gateways[index];
            let was_fresh = gateway.fresh_since.is_some();
            gateway.fresh_since = are_fresh.then(|| gateway.fresh_since.unwrap_or(now));
            if are_fresh && !was_fresh {
                self.send_trust(Peer::Gateway(index));
            }
        }
        for index in 0..access.machines.len() {
            let is_connected = self.world.nodes[index].is_connected();
            let machine = &mut access.machines[index];
            let was_connected = machine.connected_since.is_some();
            machine.connected_since = is_connected.then(|| machine.connected_since.unwrap_or(now));
            if is_connected && !was_connected {
                self.send_trust(Peer::Node(index));
            }
        }
    }

    fn send_trust(&mut self, peer: Peer) {
        let wait = self.network.latency();
        self.world
            .after(wait, Event::Access(AccessEvent::DeliverTrust { peer }));
    }

    fn publish_trust(&mut self, access: &AccessState) {
        let gateways = (0..access.gateways.len()).map(Peer::Gateway);
        let nodes = (0..access.machines.len()).map(Peer::Node);
        for peer in gateways.chain(nodes) {
            self.send_trust(peer);
        }
    }

    /// Ends the connection of an agent whose certificate the API server rejects.
    fn reject(&mut self, access: &mut AccessState, node: usize) {
        if std::mem::replace(&mut access.machines[node].is_rejected, true) {
            return;
        }
        let name = self.world.nodes[node].machine.name.clone();
        self.rules
            .ledger
            .log(self.world.now, || format!("the API server rejects {name}"));
        self.world.nodes[node].cut += 1;
        self.connection_changed(node);
        access.machines[node].connected_since = None;
        self.world
            .after(REJOIN_DELAY, Event::Access(AccessEvent::Rejoin { node }));
    }

    pub(crate) fn rejoin(&mut self, access: &mut AccessState, node: usize) {
        if !access.machines[node].is_rejected {
            return;
        }
        let state = &self.world.nodes[node];
        if self.network.is_out() || !state.agent_runs() || state.isolated > 0 || state.cut > 1 {
            self.world
                .after(REJOIN_DELAY, Event::Access(AccessEvent::Rejoin { node }));
            return;
        }
        let now = self.world.now;
        let local_time = state.local_time(self.world.clock());
        let incarnation = state.incarnation;
        let name = state.machine.name.clone();
        let (server, machine) = (&access.server, &mut access.machines[node]);
        machine
            .trust
            .follow(server)
            .and_then(|()| machine.trust.join(server, access.lifetime))
            .and_then(|()| machine.trust.renew(server, access.lifetime, local_time))
            .expect("the server issues certificates");
        machine.revoked = None;
        machine.is_rejected = false;
        machine.missed_retirement = false;
        machine.joined = now;
        machine.last_kept = now;
        machine.connected_since = Some(now);
        if let Some(tally) = &mut self.rules.ledger.access {
            tally.rejoined += 1;
        }
        self.rules.ledger.log(now, || format!("{name} joins again"));
        self.world.nodes[node].cut -= 1;
        self.connection_changed(node);
        self.relist(Reader::Agent(node), incarnation);
    }

    pub(crate) fn deliver_trust(&mut self, access: &mut AccessState, peer: Peer) {
        let server = &access.server;
        let followed = match peer {
            Peer::Gateway(gateway) if self.gateways_are_fresh() => {
                access.gateways[gateway].trust.follow(server)
            }
            Peer::Node(node) if self.world.nodes[node].is_connected() => {
                access.machines[node].trust.follow(server)
            }
            Peer::Gateway(_) | Peer::Node(_) => return,
        };
        followed.expect("the published authorities are usable");
        self.check_certificates(access, peer);
    }

    pub(crate) fn keep_certificates(&mut self, access: &mut AccessState, peer: Peer) {
        self.check_certificates(access, peer);
        let period = match access.server.is_rotating() {
            true => ROTATION_KEEP_PERIOD,
            false => KEEP_PERIOD,
        };
        self.world
            .after(period, Event::Access(AccessEvent::KeepCertificates { peer }));
    }

    /// Lets a machine renew its certificates if they are due.
    fn check_certificates(&mut self, access: &mut AccessState, peer: Peer) {
        let now = self.world.clock();
        let (server, lifetime) = (&access.server, access.lifetime);
        let renews = !self.world.planted.has(Bug::CertificateNotRenewed);
        let renewed = match peer {
            Peer::Gateway(gateway) => {
                if !self.gateways_are_fresh() || !renews {
                    return;
                }
                access.gateways[gateway].trust.renew(server, lifetime, now)
            }
            Peer::Node(node) => {
                let state = &self.world.nodes[node];
                if !state.is_connected() {
                    return;
                }
                let local_time = state.local_time(now);
                let machine = &mut access.machines[node];
                let certificate = machine.trust.client_certificate();
                if !certificate.is_some_and(|certificate| server.accepts(&certificate)) {
                    self.check_rejection(access, node);
                    self.reject(access, node);
                    return;
                }
                machine.last_kept = self.world.now;
                machine.missed_retirement = false;
                match renews {
                    true => machine.trust.renew(server, lifetime, local_time),
                    false => return,
                }
            }
        };
        let renewed = renewed.expect("the server issues certificates");
        if let Some(tally) = &mut self.rules.ledger.access {
            tally.renewals += u64::from(renewed);
        }
    }

    /// Checks that the API server has a reason to reject a node.
    fn check_rejection(&mut self, access: &AccessState, node: usize) {
        let machine = &access.machines[node];
        let away = self.world.now.saturating_sub(machine.last_kept);
        if machine.revoked.is_none() && !machine.missed_retirement && away <= spare_lifetime(access) {
            let name = self.world.nodes[node].machine.name.clone();
            self.rules.report_rejected_node(self.world.now, &name);
        }
    }

    pub(crate) fn rotate(&mut self, access: &mut AccessState, index: usize) {
        let Some(rotation) = self
            .world
            .scenario
            .access
            .as_ref()
            .and_then(|spec| spec.rotations.get(index))
        else {
            return;
        };
        if self.network.is_out() {
            self.world
                .after(RETRY_DELAY, Event::Access(AccessEvent::Rotate { index }));
            return;
        }
        access.server.request_rotation(rotation.after);
        self.rotation_step(access);
    }

    pub(crate) fn rotation_step(&mut self, access: &mut AccessState) {
        let now = self.world.now;
        if self.network.is_out() {
            self.world
                .after(ROTATION_STEP, Event::Access(AccessEvent::RotationStep));
            return;
        }
        // Before the step, so that the certificates are those of the replaced authorities.
        let replaced: Vec<Stolen> = (0..access.machines.len().min(STOLEN_PER_ROTATION))
            .map(|node| access.credentials(node, now))
            .collect();
        let phase = access.server.step_rotation().expect("keys are generated");
        match phase {
            Some(RotationPhase::Rotating) => {
                self.rules
                    .ledger
                    .log(now, || "new authorities issue certificates".to_owned());
                access.rotated = now;
                access.replaced = replaced;
                self.publish_trust(access);
            }
            Some(RotationPhase::Completed) => {
                self.rules
                    .ledger
                    .log(now, || "the old authorities are retired".to_owned());
                access.retired = Some(now);
                let followed = access.rotated + FOLLOWING;
                for machine in access
                    .machines
                    .iter_mut()
                    .filter(|machine| machine.last_kept < followed)
                {
                    machine.missed_retirement = true;
                }
                let retired = std::mem::take(&mut access.replaced);
                access
                    .stolen
                    .extend(retired.into_iter().map(|stolen| Stolen { since: now, ..stolen }));
                if let Some(tally) = &mut self.rules.ledger.access {
                    tally.rotations += 1;
                }
                self.publish_trust(access);
            }
            None => {}
        }
        if phase.is_some() || access.server.is_rotating() {
            self.world
                .after(ROTATION_STEP, Event::Access(AccessEvent::RotationStep));
        }
    }

    /// Returns whether the gateway of a request reaches the agent of a node, and checks their
    /// handshake.
    pub(crate) fn reaches(&mut self, request: &Request, node: usize) -> bool {
        if !self.world.nodes[node].is_reachable() {
            return false;
        }
        let Some(permit) = &request.permit else {
            return true;
        };
        let Some(access) = self.world.access.take() else {
            return true;
        };
        let connects = self.connect(&access, permit.gateway, node);
        self.world.access = Some(access);
        connects
    }

    fn connect(&mut self, access: &AccessState, gateway: usize, node: usize) -> bool {
        let state = &self.world.nodes[node];
        let (now, name) = (self.world.clock(), &state.machine.name);
        let connects = access.connects(gateway, node, name, now, state.local_time(now));
        if let Some(tally) = &mut self.rules.ledger.access {
            tally.handshakes += 1;
        }
        let freshness = self.freshness();
        self.rules
            .check_connection(&self.world, access, (gateway, node), connects, freshness);
        connects
    }

    /// Uses credentials without permission, and connects two machines.
    pub(crate) fn intrude(&mut self, access: &mut AccessState) {
        let Some(spec) = &self.world.scenario.access else {
            return;
        };
        self.world
            .after(spec.intrusions, Event::Access(AccessEvent::Intrude));
        if !self.network.is_out() {
            self.observe_nodes(access);
        }
        let gateway = access.random.below(access.gateways.len());
        let node = access.random.below(access.machines.len());
        if self.world.nodes[node].is_reachable() {
            self.connect(access, gateway, node);
        }
        if let Some(model) = self.world.gateway.models.first().cloned() {
            let deleted = access.keys.iter().position(|key| key.deleted.is_some());
            let all = [
                Some(Presented::Unknown),
                Some(Presented::Nothing),
                deleted.map(Presented::Key),
            ];
            for presented in all.into_iter().flatten() {
                self.count_intrusion();
                if let Some(permit) = self.decide(access, gateway, presented, &model, 1) {
                    let (now, instant) = (self.world.clock(), self.world.origin + self.world.now);
                    let state = &mut access.gateways[gateway];
                    state.gate.end(&permit.admitted, None, instant, now);
                    self.rules
                        .access
                        .request_ended(self.world.now, (permit.key, gateway), 1, 0);
                }
            }
        }
        self.use_wrong_role(access, gateway, node);
        if !access.stolen.is_empty() {
            let index = access.random.below(access.stolen.len());
            let stolen = access.stolen[index].clone();
            self.use_stolen(access, gateway, node, &stolen);
        }
    }

    fn count_intrusion(&mut self) {
        if let Some(tally) = &mut self.rules.ledger.access {
            tally.intrusions += 1;
        }
    }

    /// Presents the certificates of two machines in the role of the other.
    fn use_wrong_role(&mut self, access: &AccessState, gateway: usize, node: usize) {
        let now = self.world.clock();
        let name = &self.world.nodes[node].machine.name;
        let (verifier, machine) = (&access.gateways[gateway].trust, &access.machines[node].trust);
        let wrong = [
            (
                "a gateway as an agent",
                verifier
                    .certificate()
                    .is_some_and(|own| verifier.accepts_server(&own, name, now)),
            ),
            (
                "an agent under another name",
                machine
                    .certificate()
                    .is_some_and(|own| verifier.accepts_server(&own, "another-node", now)),
            ),
            (
                "a serving certificate as a client of an agent",
                machine
                    .certificate()
                    .is_some_and(|own| machine.accepts_client(&own, now)),
            ),
            (
                "a serving certificate as a client of the API server",
                machine
                    .certificate()
                    .is_some_and(|own| access.server.accepts(&own)),
            ),
        ];
        for (what, is_accepted) in wrong {
            self.count_intrusion();
            if is_accepted {
                self.rules
                    .report_intrusion(self.world.now, format!("{what} is accepted"));
            }
        }
    }

    /// Presents certificates of a deleted FleetNode or of retired authorities.
    fn use_stolen(&mut self, access: &AccessState, gateway: usize, node: usize, stolen: &Stolen) {
        let (at, freshness, now) = (self.world.now, self.freshness(), self.world.clock());
        let knows = |since: Option<Duration>| {
            since.is_some_and(|since| at.saturating_sub(since.max(stolen.since)) > freshness)
        };
        let name = self.world.nodes[stolen.node].machine.name.clone();
        let verifier = &access.gateways[gateway];
        let machine = &access.machines[node];
        let client = stolen.client.as_ref();
        let by_gateway = knows(verifier.fresh_since)
            && stolen
                .serving
                .as_ref()
                .is_some_and(|own| verifier.trust.accepts_server(own, &name, now));
        let by_agent = knows(machine.connected_since)
            && client.is_some_and(|own| {
                let local_time = self.world.nodes[node].local_time(now);
                machine.trust.accepts_client(own, local_time)
            });
        let by_server = !self.network.is_out() && client.is_some_and(|own| access.server.accepts(own));
        for (who, is_accepted) in [
            ("a gateway", by_gateway),
            ("an agent", by_agent),
            ("the API server", by_server),
        ] {
            self.count_intrusion();
            if is_accepted {
                let message = format!("{who} accepts an old certificate of {name}");
                self.rules.report_intrusion(at, message);
            }
        }
    }
}

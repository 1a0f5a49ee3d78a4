//! API keys: their delivery to gateways, decisions on requests, and reports. Decisions, limits and
//! reports are those of the gateway.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::random;
use crate::rules::access::{FRESHNESS, KeyDecision, Presented};
use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::access::{AccessEvent, AccessState, NAMESPACE, Permit, object, secret};
use crate::world::event::Event;
use crate::world::gateway_state::{DropReason, Request};
use rooflet_api::v1alpha1::ApiKey;
use rooflet_gateway::{KeyGate, KeyRefusal, UsageReport};
use rooflet_pki::ApiKeySecret;

/// Time between two reports of a gateway.
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// Timeout of a report's write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a watch or a list is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Highest slowdown of the network with which reports arrive in time.
const TOLERATED_SLOWDOWN: f64 = 10.0;
/// Number of a secret that no key has.
const UNKNOWN_SECRET: usize = 1_000_000;

impl Run<'_> {
    /// Schedules the first events of keys and certificates.
    pub(crate) fn start_access(&mut self) {
        let (Some(spec), Some(mut access)) = (&self.world.scenario.access, self.world.access.take()) else {
            return;
        };
        for (key, scheduled) in spec.keys.iter().enumerate() {
            let created = AccessEvent::ChangeKey { key, exists: true };
            self.world.after(scheduled.created, Event::Access(created));
            if !scheduled.deleted.is_zero() {
                let deleted = AccessEvent::ChangeKey { key, exists: false };
                self.world.after(scheduled.deleted, Event::Access(deleted));
            }
        }
        for gateway in 0..spec.gateways {
            self.start_gateway(gateway, 0);
        }
        for (index, rotation) in spec.rotations.iter().enumerate() {
            self.world
                .after(rotation.at, Event::Access(AccessEvent::Rotate { index }));
        }
        self.world
            .after(spec.intrusions, Event::Access(AccessEvent::Intrude));
        self.start_certificates(&access);
        self.next_gateway_restart(&mut access);
        self.world.access = Some(access);
        self.observe_access();
    }

    fn next_gateway_restart(&mut self, access: &mut AccessState) {
        let Some(spec) = &self.world.scenario.access else {
            return;
        };
        if !spec.gateway_restarts.is_zero() {
            let wait = access.random.exponential(spec.gateway_restarts.as_secs_f64());
            let gateway = access.random.below(spec.gateways);
            let event = Event::Access(AccessEvent::RestartGateway { gateway });
            self.world.after(random::seconds(wait), event);
        }
    }

    pub(crate) fn access(&mut self, event: AccessEvent) {
        let Some(mut access) = self.world.access.take() else {
            return;
        };
        access.advance_to(self.world.now);
        self.handle_access(&mut access, event);
        self.world.access = Some(access);
    }

    fn handle_access(&mut self, access: &mut AccessState, event: AccessEvent) {
        match event {
            AccessEvent::ChangeKey { key, exists } => self.change_key(access, key, exists),
            AccessEvent::ListKeys { gateway, incarnation } => self.list_keys(access, gateway, incarnation),
            AccessEvent::DeliverKey {
                gateway,
                incarnation,
                key,
            } => self.deliver_key(access, gateway, incarnation, key),
            AccessEvent::Report { gateway, incarnation } => self.report_use(access, gateway, incarnation),
            AccessEvent::ReportArrives {
                gateway,
                incarnation,
                report,
                answers,
            } => self.report_arrives(access, gateway, incarnation, report, answers),
            AccessEvent::ReportAnswered {
                gateway,
                incarnation,
                report,
                is_written,
            } => self.report_answered(access, gateway, incarnation, report, is_written),
            AccessEvent::RestartGateway { gateway } => self.restart_gateway(access, gateway),
            AccessEvent::Rotate { index } => self.rotate(access, index),
            AccessEvent::RotationStep => self.rotation_step(access),
            AccessEvent::DeliverTrust { peer } => self.deliver_trust(access, peer),
            AccessEvent::KeepCertificates { peer } => self.keep_certificates(access, peer),
            AccessEvent::Rejoin { node } => self.rejoin(access, node),
            AccessEvent::Intrude => self.intrude(access),
        }
    }

    /// Returns true if gateways receive changes from the API server.
    pub(crate) fn gateways_are_fresh(&self) -> bool {
        !self.network.is_out() && self.world.gateway.stale == 0
    }

    /// Returns the longest time until a connected machine has received a change.
    pub(crate) fn freshness(&self) -> Duration {
        let recent = self
            .network
            .slower_until
            .filter(|(_, until)| self.world.now.saturating_sub(*until) < Duration::from_secs(60));
        let slow = recent
            .map_or(1.0, |(slow, _)| slow)
            .max(self.network.slow_network);
        FRESHNESS + self.world.scenario.network.longest.mul_f64(slow.max(1.0)) * 2
    }

    /// Records whether the reports of gateways arrive in time.
    pub(crate) fn observe_reports(&mut self, access: &AccessState) {
        let are_healthy = self.gateways_are_fresh()
            && self.network.lost_share == 0.0
            && self.network.slow_network <= TOLERATED_SLOWDOWN
            && access.gateways.iter().all(|gateway| gateway.is_read);
        self.rules.access.observe_reports(self.world.now, are_healthy);
    }

    fn start_gateway(&mut self, gateway: usize, incarnation: u32) {
        let wait = self.network.latency();
        let list = AccessEvent::ListKeys { gateway, incarnation };
        self.world.after(wait, Event::Access(list));
        let report = AccessEvent::Report { gateway, incarnation };
        self.world.after(REPORT_PERIOD, Event::Access(report));
    }

    fn restart_gateway(&mut self, access: &mut AccessState, gateway: usize) {
        let now = self.world.now;
        let is_fresh = self.gateways_are_fresh();
        let state = &mut access.gateways[gateway];
        state.incarnation += 1;
        state.gate = KeyGate::new(&state.identity);
        state.is_read = false;
        state.received.clear();
        state.unanswered_reports = 0;
        state.fresh_since = is_fresh.then_some(now);
        let (incarnation, identity) = (state.incarnation, state.identity.clone());
        self.rules.ledger.log(now, || format!("{identity} restarts"));
        self.rules.access.gateway_restarted(now, gateway);
        self.observe_reports(access);
        if let Some(tally) = &mut self.rules.ledger.access {
            tally.gateway_restarts += 1;
        }
        self.start_gateway(gateway, incarnation);
        self.next_gateway_restart(access);
    }

    fn change_key(&mut self, access: &mut AccessState, key: usize, exists: bool) {
        if self.network.is_out() {
            // The administrator repeats the command.
            self.world
                .after(RETRY_DELAY, Event::Access(AccessEvent::ChangeKey { key, exists }));
            return;
        }
        let now = self.world.now;
        let Some(spec) = self
            .world
            .scenario
            .access
            .as_ref()
            .and_then(|spec| spec.keys.get(key))
        else {
            return;
        };
        let hash = ApiKeySecret::parse(&secret(key))
            .map(|secret| secret.hash())
            .unwrap_or_default();
        let stored = &mut access.keys[key];
        stored.version += 1;
        if exists {
            let object = object(spec, key, hash, self.world.scenario.start, self.world.clock());
            stored.object = Some(Arc::new(object));
            stored.created = Some(now);
        } else {
            stored.object = None;
            stored.deleted = Some(now);
        }
        let name = &spec.name;
        self.rules.ledger.log(now, || {
            format!("key {name} is {}", if exists { "created" } else { "deleted" })
        });
        self.announce_key(access, key);
    }

    /// Sends the stored version of a key to all gateways.
    fn announce_key(&mut self, access: &AccessState, key: usize) {
        for (gateway, state) in access.gateways.iter().enumerate() {
            let wait = self.network.latency();
            let event = AccessEvent::DeliverKey {
                gateway,
                incarnation: state.incarnation,
                key,
            };
            self.world.after(wait, Event::Access(event));
        }
    }

    fn list_keys(&mut self, access: &mut AccessState, gateway: usize, incarnation: u32) {
        if access.gateways[gateway].incarnation != incarnation {
            return;
        }
        if !self.gateways_are_fresh() {
            let list = AccessEvent::ListKeys { gateway, incarnation };
            self.world.after(RETRY_DELAY, Event::Access(list));
            return;
        }
        for key in 0..access.keys.len() {
            self.apply_key(access, gateway, key);
        }
        let state = &mut access.gateways[gateway];
        state.gate.set_read();
        state.is_read = true;
        self.observe_reports(access);
    }

    fn deliver_key(&mut self, access: &mut AccessState, gateway: usize, incarnation: u32, key: usize) {
        if access.gateways[gateway].incarnation != incarnation || !access.gateways[gateway].is_read {
            return;
        }
        if self.gateways_are_fresh() {
            self.apply_key(access, gateway, key);
        } else {
            let again = AccessEvent::DeliverKey {
                gateway,
                incarnation,
                key,
            };
            self.world.after(RETRY_DELAY, Event::Access(again));
        }
    }

    /// Gives a gateway the stored version of a key.
    fn apply_key(&mut self, access: &mut AccessState, gateway: usize, key: usize) {
        let Some(spec) = self
            .world
            .scenario
            .access
            .as_ref()
            .and_then(|spec| spec.keys.get(key))
        else {
            return;
        };
        let (now, instant) = (self.world.clock(), self.world.origin + self.world.now);
        let mut found = access.keys[key].object.clone();
        if found.is_none() && self.world.planted.has(Bug::KeyDeletionIgnored) {
            return;
        }
        if self.world.planted.has(Bug::OtherGatewaysIgnored)
            && let Some(found) = &mut found
        {
            Arc::make_mut(found).status = None;
        }
        let state = &mut access.gateways[gateway];
        match found {
            Some(_) => state.received.insert(key),
            None => state.received.remove(&key),
        };
        state
            .gate
            .apply(NAMESPACE, &spec.name, found.as_ref(), instant, now);
    }

    fn report_use(&mut self, access: &mut AccessState, gateway: usize, incarnation: u32) {
        let now = self.world.clock();
        let state = &mut access.gateways[gateway];
        if state.incarnation != incarnation {
            return;
        }
        let reports = match self.world.planted.has(Bug::UseNotReported) {
            true => Vec::new(),
            false => state.gate.reports(now),
        };
        state.unanswered_reports = reports.len();
        if reports.is_empty() {
            let next = AccessEvent::Report { gateway, incarnation };
            self.world.after(REPORT_PERIOD, Event::Access(next));
        }
        let lost_share = self.network.lost_share;
        for report in reports {
            let report = Box::new(report);
            // Half of the lost writes lose the request, half the response.
            let is_lost = access.random.chance(lost_share);
            let is_sent = !(is_lost && access.random.chance(0.5));
            let arrives = is_sent && !self.network.is_out();
            let (wait, event) = match arrives {
                true => (
                    self.network.latency(),
                    AccessEvent::ReportArrives {
                        gateway,
                        incarnation,
                        report,
                        answers: !is_lost,
                    },
                ),
                false => (
                    WRITE_TIMEOUT,
                    AccessEvent::ReportAnswered {
                        gateway,
                        incarnation,
                        report,
                        is_written: false,
                    },
                ),
            };
            self.world.after(wait, Event::Access(event));
        }
    }

    fn report_arrives(
        &mut self,
        access: &mut AccessState,
        gateway: usize,
        incarnation: u32,
        report: Box<UsageReport>,
        answers: bool,
    ) {
        let spec = self.world.scenario.access.as_ref();
        let key = spec
            .and_then(|spec| spec.key(report.name()))
            .filter(|_| report.namespace() == NAMESPACE);
        let is_out = self.network.is_out();
        let written = key
            .filter(|_| !is_out)
            .is_some_and(|key| write_report(access, key, &report.patch()));
        if let Some(key) = key.filter(|_| written) {
            self.announce_key(access, key);
        }
        let (wait, is_written) = match answers && !is_out {
            true => (self.network.latency(), written),
            false => (WRITE_TIMEOUT, false),
        };
        let answered = AccessEvent::ReportAnswered {
            gateway,
            incarnation,
            report,
            is_written,
        };
        self.world.after(wait, Event::Access(answered));
    }

    fn report_answered(
        &mut self,
        access: &mut AccessState,
        gateway: usize,
        incarnation: u32,
        report: Box<UsageReport>,
        is_written: bool,
    ) {
        let state = &mut access.gateways[gateway];
        if state.incarnation != incarnation {
            return;
        }
        match is_written {
            true => state.gate.reported(*report),
            false => state.gate.not_reported(&report),
        }
        state.unanswered_reports = state.unanswered_reports.saturating_sub(1);
        if state.unanswered_reports == 0 {
            let next = AccessEvent::Report { gateway, incarnation };
            self.world.after(REPORT_PERIOD, Event::Access(next));
        }
    }

    /// Lets a random gateway decide on a request. Returns the request if it is admitted.
    pub(crate) fn permitted(&mut self, mut request: Request) -> Option<Request> {
        let Some(mut access) = self.world.access.take() else {
            return Some(request);
        };
        access.advance_to(self.world.now);
        let demand = &self.world.scenario.demand[request.demand];
        let spec = self.world.scenario.access.as_ref();
        let presented = match &demand.key {
            None => Presented::Nothing,
            Some(key) => spec
                .and_then(|spec| spec.key(key))
                .map_or(Presented::Unknown, Presented::Key),
        };
        let gateway = access.random.below(access.gateways.len());
        let model = self.world.gateway.models[request.demand].clone();
        let prompt = u64::from(request.prompt_tokens);
        request.permit = self.decide(&mut access, gateway, presented, &model, prompt);
        self.world.access = Some(access);
        if request.permit.is_some() {
            return Some(request);
        }
        self.drop_request(request, DropReason::KeyRefused);
        None
    }

    /// Lets a gateway decide on the key of a request, and checks the decision.
    pub(crate) fn decide(
        &mut self,
        access: &mut AccessState,
        gateway: usize,
        presented: Presented,
        model: &str,
        prompt_tokens: u64,
    ) -> Option<Permit> {
        let text = match presented {
            Presented::Key(key) => Some(secret(key)),
            Presented::Unknown => Some(secret(UNKNOWN_SECRET)),
            Presented::Nothing => None,
        };
        let (now, instant) = (self.world.clock(), self.world.origin + self.world.now);
        let state = &mut access.gateways[gateway];
        let decided = state
            .gate
            .admit(text.as_deref(), (NAMESPACE, model), prompt_tokens, instant, now);
        let incarnation = state.incarnation;
        let decision = KeyDecision {
            gateway,
            presented,
            model,
            prompt_tokens,
            refusal: decided.as_ref().err().copied(),
            freshness: self.freshness(),
        };
        self.rules.check_key(&self.world, access, decision);
        if let Some(tally) = &mut self.rules.ledger.access {
            match decision.refusal {
                None => tally.admitted += 1,
                Some(refusal) => *tally.refused.entry(reason(refusal)).or_default() += 1,
            }
        }
        let key = match presented {
            Presented::Key(key) => key,
            Presented::Unknown | Presented::Nothing => return None,
        };
        decided.ok().map(|admitted| Permit {
            gateway,
            incarnation,
            key,
            admitted,
        })
    }

    /// Ends the use of a request's key.
    pub(crate) fn end_permit(&mut self, request: &Request, answer_tokens: Option<u64>) {
        let Some(permit) = &request.permit else {
            return;
        };
        let Some(mut access) = self.world.access.take() else {
            return;
        };
        let state = &mut access.gateways[permit.gateway];
        if state.incarnation == permit.incarnation {
            let (now, instant) = (self.world.clock(), self.world.origin + self.world.now);
            state.gate.end(&permit.admitted, answer_tokens, instant, now);
            let prompt = u64::from(request.prompt_tokens);
            let used = answer_tokens.map_or(0, |answer| prompt + answer);
            let through = (permit.key, permit.gateway);
            self.rules
                .access
                .request_ended(self.world.now, through, prompt, used);
        }
        self.world.access = Some(access);
    }
}

/// Applies a report to the stored key, as the API server does. Returns false if the report is for
/// another version.
fn write_report(access: &mut AccessState, key: usize, patch: &Value) -> bool {
    let stored = &mut access.keys[key];
    let Some(current) = &stored.object else {
        return false;
    };
    let version = patch["metadata"]["resourceVersion"].as_str();
    let has_uid = patch["metadata"]["uid"].as_str() == current.metadata.uid.as_deref();
    if !has_uid
        || version.is_some_and(|version| current.metadata.resource_version.as_deref() != Some(version))
    {
        return false;
    }
    let Ok(mut value) = serde_json::to_value(current.as_ref()) else {
        return false;
    };
    json_patch::merge(&mut value, &serde_json::json!({"status": patch["status"]}));
    let Ok(mut next) = serde_json::from_value::<ApiKey>(value) else {
        return false;
    };
    stored.version += 1;
    next.metadata.resource_version = Some(stored.version.to_string());
    stored.object = Some(Arc::new(next));
    true
}

fn reason(refusal: KeyRefusal) -> &'static str {
    match refusal {
        KeyRefusal::Unauthenticated => "Unauthenticated",
        KeyRefusal::Expired => "ExpiredKey",
        KeyRefusal::NotRead => "KeysNotRead",
        KeyRefusal::ModelNotPermitted => "ModelNotPermitted",
        KeyRefusal::RequestsPerMinute => "RequestsPerMinute",
        KeyRefusal::TokensPerMinute => "TokensPerMinute",
        KeyRefusal::ConcurrentRequests => "ConcurrentRequests",
        KeyRefusal::TokensPerDay => "TokensPerDay",
    }
}

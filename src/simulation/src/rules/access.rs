//! Invariants of access: no request without permission is served, and no permitted one is refused.
//!
//! The rules use the actual keys, requests and deleted nodes, not the copies that gateways and
//! agents have. A gateway may use an outdated copy for a stated time only, and a limit that
//! gateways share may be exceeded by what the other gateways have not reported yet.

mod limits;

use std::collections::VecDeque;
use std::time::Duration;

use crate::rules::Rules;
use crate::rules::access::limits::LevelBounds;
use crate::scenario::access::AccessKey;
use crate::world::World;
use crate::world::access::AccessState;
use rooflet_gateway::KeyRefusal;

/// Longest time until a connected machine has received a change.
pub(crate) const FRESHNESS: Duration = Duration::from_secs(5);
/// Longest time until a gateway has received the use through another one: the period of reports (10
/// s), a retry, and the delays of messages.
const SETTLING: Duration = Duration::from_secs(45);
/// Age after which the requests in progress of a gateway no longer count.
const STALE: Duration = Duration::from_secs(31);
/// Longest time until all gateways have received a retirement of authorities. Faults of gateways
/// are shorter.
const RETIREMENT_TIME: Duration = Duration::from_secs(600);
/// Tolerance of the arithmetic of limits, as a share of the limit.
const TOLERANCE: f64 = 1e-6;

const SERVED: &str = "no request without permission is served";
const REFUSED: &str = "no request with permission is refused";

/// Credential that a client of a gateway presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presented {
    Key(usize),
    Unknown,
    Nothing,
}

/// Use of a key through one process of a gateway.
#[derive(Debug, Default)]
struct GatewayUse {
    requests: Option<LevelBounds>,
    tokens: Option<LevelBounds>,
    in_progress: u32,
    /// Times at which the number of requests in progress changed, with the new number.
    history: VecDeque<(Duration, u32)>,
}

impl GatewayUse {
    fn set_in_progress(&mut self, now: Duration, count: u32) {
        self.in_progress = count;
        self.history.push_back((now, count));
    }

    /// Returns the highest number of requests in progress since a time.
    fn most_in_progress(&mut self, since: Duration) -> u32 {
        // The last change before the time determines the number at that time.
        while self.history.get(1).is_some_and(|(at, _)| *at <= since) {
            self.history.pop_front();
        }
        self.history.iter().map(|(_, count)| *count).max().unwrap_or(0)
    }
}

/// Ended request.
#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Duration,
    gateway: usize,
    tokens: u64,
    /// True if a restarted gateway may not have reported it.
    may_be_lost: bool,
}

/// Use of a key.
#[derive(Debug, Default)]
struct KeyHistory {
    gateways: Vec<GatewayUse>,
    /// Requests that ended on the current day.
    today: Vec<Ended>,
}

/// Use of all keys, and the time up to which all gateways have received it.
#[derive(Debug, Default)]
pub(crate) struct AccessRules {
    keys: Vec<KeyHistory>,
    /// Time since which reports are not delayed; `None` while they are.
    healthy_since: Option<Duration>,
    settled_until: Duration,
}

impl AccessRules {
    pub(crate) fn new(keys: usize, gateways: usize) -> Self {
        let history = || KeyHistory {
            gateways: (0..gateways).map(|_| GatewayUse::default()).collect(),
            today: Vec::new(),
        };
        Self {
            keys: (0..keys).map(|_| history()).collect(),
            healthy_since: None,
            settled_until: Duration::ZERO,
        }
    }

    /// Records whether reports and watches of gateways work.
    pub(crate) fn observe_reports(&mut self, now: Duration, are_healthy: bool) {
        self.settle(now);
        self.healthy_since = are_healthy.then(|| self.healthy_since.unwrap_or(now));
    }

    fn settle(&mut self, now: Duration) {
        let settled = now.saturating_sub(SETTLING);
        if self.healthy_since.is_some_and(|since| settled >= since) {
            self.settled_until = self.settled_until.max(settled);
        }
    }

    /// Records that a gateway restarted: it forgets its limits, and use that it has not reported.
    pub(crate) fn gateway_restarted(&mut self, now: Duration, gateway: usize) {
        self.settle(now);
        let settled_until = self.settled_until;
        for key in &mut self.keys {
            for (index, other) in key.gateways.iter_mut().enumerate() {
                if index == gateway {
                    other.requests = None;
                    other.tokens = None;
                    other.set_in_progress(now, 0);
                } else {
                    let bounds = [&mut other.requests, &mut other.tokens];
                    for bounds in bounds.into_iter().flatten() {
                        bounds.forget(gateway, settled_until);
                    }
                }
            }
            let lost = key.today.iter_mut().filter(|ended| ended.gateway == gateway);
            for ended in lost.filter(|ended| ended.at > settled_until) {
                ended.may_be_lost = true;
            }
        }
    }

    /// Records the end of a request that a running process of a gateway admitted.
    pub(crate) fn request_ended(
        &mut self,
        now: Duration,
        (key, gateway): (usize, usize),
        reserved: u64,
        used: u64,
    ) {
        let history = &mut self.keys[key];
        for (index, through) in history.gateways.iter_mut().enumerate() {
            if index == gateway {
                through.set_in_progress(now, through.in_progress.saturating_sub(1));
                if let Some(bounds) = &mut through.tokens {
                    bounds.charge_own(now, used as f64 - reserved as f64);
                }
            } else {
                if let Some(bounds) = &mut through.requests {
                    bounds.charge_other(now, 1.0, gateway);
                }
                if let Some(bounds) = &mut through.tokens {
                    bounds.charge_other(now, used as f64, gateway);
                }
            }
        }
        history.today.push(Ended {
            at: now,
            gateway,
            tokens: used,
            may_be_lost: false,
        });
    }

    /// Returns the fault of a decision by the limits of a key.
    fn check_limits(
        &mut self,
        (now, day): (Duration, Duration),
        spec: &AccessKey,
        (key, gateway): (usize, usize),
        prompt_tokens: u64,
        refusal: Option<KeyRefusal>,
    ) -> Option<String> {
        self.settle(now);
        let settled = self.settled_until;
        let history = &mut self.keys[key];
        history
            .today
            .retain(|ended| ended.at >= day || ended.at > settled);
        // Use of other gateways that this one may not have received yet.
        let unsettled: Vec<Ended> = history
            .today
            .iter()
            .copied()
            .filter(|ended| ended.at > settled)
            .collect();
        let earlier = |amount: fn(&Ended) -> f64| {
            let others = unsettled.iter().filter(move |ended| ended.gateway != gateway);
            others.map(move |ended| (ended.at, amount(ended), ended.gateway))
        };
        let since = settled.min(now.saturating_sub(SETTLING)).saturating_sub(STALE);
        let others = history
            .gateways
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| *index != gateway);
        let others_in_progress: u32 = others.map(|(_, other)| other.most_in_progress(since)).sum();
        let through = &mut history.gateways[gateway];
        if let Some(limit) = spec.requests_per_minute {
            let new = || LevelBounds::new(f64::from(limit), now, earlier(|_| 1.0));
            through.requests.get_or_insert_with(new);
        }
        if let Some(limit) = spec.tokens_per_minute {
            let new = || LevelBounds::new(limit as f64, now, earlier(|ended| ended.tokens as f64));
            through.tokens.get_or_insert_with(new);
        }
        let needed_tokens = spec
            .tokens_per_minute
            .map(|limit| prompt_tokens.clamp(1, limit) as f64);
        let tokens = |counts: &dyn Fn(&Ended) -> bool| -> u64 {
            let today = history.today.iter().filter(|ended| ended.at >= day);
            today
                .filter(|ended| counts(ended))
                .map(|ended| ended.tokens)
                .sum()
        };
        let Some(refusal) = refusal else {
            let requests = spec.requests_per_minute.zip(through.requests.as_mut());
            if let Some((limit, bounds)) = requests {
                let level = bounds.highest(now, settled);
                if level < 1.0 - f64::from(limit) * TOLERANCE {
                    return Some(format!(
                        "{limit} requests per minute: at most {level:.3} are left"
                    ));
                }
                bounds.charge_own(now, 1.0);
            }
            if let Some((needed, bounds)) = needed_tokens.zip(through.tokens.as_mut()) {
                let level = bounds.highest(now, settled);
                if level < needed - needed.max(1.0) * TOLERANCE - 0.001 {
                    return Some(format!(
                        "a prompt of {needed} tokens: at most {level:.3} are left in this minute"
                    ));
                }
                bounds.charge_own(now, prompt_tokens as f64);
            }
            if let Some(limit) = spec
                .concurrent_requests
                .filter(|limit| through.in_progress >= *limit)
            {
                return Some(format!(
                    "{} requests of at most {limit} are in progress",
                    through.in_progress
                ));
            }
            // The gateway counts its own requests at once, and those of others when they have
            // arrived.
            let known =
                |ended: &Ended| !ended.may_be_lost && (ended.gateway == gateway || ended.at <= settled);
            let used = tokens(&known);
            if let Some(limit) = spec.tokens_per_day.filter(|limit| used >= *limit) {
                return Some(format!("{used} of {limit} tokens of the day are used"));
            }
            through.set_in_progress(now, through.in_progress + 1);
            return None;
        };
        match refusal {
            KeyRefusal::RequestsPerMinute => {
                let level = through.requests.as_mut()?.lowest(now, settled);
                (level >= 1.0 + TOLERANCE)
                    .then(|| format!("at least {level:.3} requests are left in this minute"))
            }
            KeyRefusal::TokensPerMinute => {
                let (needed, bounds) = needed_tokens.zip(through.tokens.as_mut())?;
                let level = bounds.lowest(now, settled);
                (level >= needed + 0.001 + needed * TOLERANCE).then(|| {
                    format!("at least {level:.3} tokens are left in this minute, and {needed} are needed")
                })
            }
            KeyRefusal::ConcurrentRequests => {
                let limit = spec.concurrent_requests.unwrap_or(u32::MAX);
                let most = through.in_progress + others_in_progress;
                (most < limit).then(|| format!("at most {most} of {limit} requests are in progress"))
            }
            KeyRefusal::TokensPerDay => {
                let limit = spec.tokens_per_day.unwrap_or(u64::MAX);
                let most = tokens(&|_| true);
                (most < limit).then(|| format!("{most} of {limit} tokens of the day are used"))
            }
            KeyRefusal::Unauthenticated
            | KeyRefusal::Expired
            | KeyRefusal::NotRead
            | KeyRefusal::ModelNotPermitted => None,
        }
    }
}

/// Facts of a decision of a gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyDecision<'a> {
    pub(crate) gateway: usize,
    pub(crate) presented: Presented,
    pub(crate) model: &'a str,
    pub(crate) prompt_tokens: u64,
    pub(crate) refusal: Option<KeyRefusal>,
    /// Longest time until a connected gateway has received a change.
    pub(crate) freshness: Duration,
}

impl Rules {
    /// Checks the decision of a gateway on a key.
    pub(crate) fn check_key(&mut self, world: &World<'_>, access: &AccessState, decision: KeyDecision<'_>) {
        let KeyDecision {
            gateway,
            presented,
            model,
            refusal,
            ..
        } = decision;
        let now = world.now;
        let (rule, fault) = match (key_fault(world, access, &decision), refusal, presented) {
            (Some(fault), None, _) => (SERVED, Some(fault)),
            (Some(fault), Some(_), _) => (REFUSED, Some(fault)),
            (
                None,
                None
                | Some(
                    KeyRefusal::RequestsPerMinute
                    | KeyRefusal::TokensPerMinute
                    | KeyRefusal::ConcurrentRequests
                    | KeyRefusal::TokensPerDay,
                ),
                Presented::Key(key),
            ) => {
                let Some(spec) = world
                    .scenario
                    .access
                    .as_ref()
                    .and_then(|access| access.keys.get(key))
                else {
                    return;
                };
                let since_midnight = world.clock().as_second().rem_euclid(86_400);
                let day = now.saturating_sub(Duration::from_secs(u64::try_from(since_midnight).unwrap_or(0)));
                // The day begins at a whole second.
                let day = Duration::from_secs(day.as_secs());
                let prompt = decision.prompt_tokens;
                let fault = self
                    .access
                    .check_limits((now, day), spec, (key, gateway), prompt, refusal);
                (if refusal.is_some() { REFUSED } else { SERVED }, fault)
            }
            (None, _, _) => return,
        };
        if let Some(fault) = fault {
            let gateway = &access.gateways[gateway].identity;
            let refused = refusal.map_or(String::new(), |refusal| format!(", refused with {refusal:?}"));
            let message = format!("{gateway}, {presented:?}, model {model}{refused}: {fault}");
            self.report(now, rule, message);
        }
    }

    /// Checks a connection between two machines that was accepted or rejected.
    pub(crate) fn check_connection(
        &mut self,
        world: &World<'_>,
        access: &AccessState,
        (gateway, node): (usize, usize),
        connects: bool,
        freshness: Duration,
    ) {
        let now = world.now;
        let (verifier, machine) = (&access.gateways[gateway], &access.machines[node]);
        let name = &world.nodes[node].machine.name;
        let is_fresh = |time: Duration| {
            verifier
                .fresh_since
                .is_some_and(|since| now - since.min(now) >= time)
        };
        let is_past = |at: Duration| now.saturating_sub(at) > freshness;
        if let Some(revoked) = machine.revoked {
            if connects && is_past(revoked) && is_fresh(freshness) {
                let message = format!(
                    "{} connects to {name}, whose FleetNode was deleted at {}",
                    verifier.identity,
                    crate::scenario::format_duration(revoked)
                );
                self.report(now, SERVED, message);
            }
            return;
        }
        if connects || machine.is_rejected {
            return;
        }
        // Each side needs a certificate that is valid by both clocks, of authorities that the other
        // side trusts.
        let away = now.saturating_sub(machine.last_kept);
        let is_recent = |at: Duration| now.saturating_sub(at) < RETIREMENT_TIME;
        let missed_retirement =
            machine.missed_retirement || !is_fresh(freshness) && access.retired.is_some_and(is_recent);
        let is_excused = !is_past(machine.joined) || missed_retirement || away > spare_lifetime(access);
        if !is_excused {
            let message = format!("{} does not connect to {name}", verifier.identity);
            self.report(now, REFUSED, message);
        }
    }

    /// Reports a credential that was accepted although it is stolen, revoked or of a retired
    /// authority.
    pub(crate) fn report_intrusion(&mut self, at: Duration, message: String) {
        self.report(at, SERVED, message);
    }

    /// Reports that the API server rejects a node that has done everything right.
    pub(crate) fn report_rejected_node(&mut self, at: Duration, name: &str) {
        let message = format!("the API server rejects the certificate of {name}");
        self.report(at, REFUSED, message);
    }
}

/// Returns the time for which a certificate stays valid if the machine loses the API server just
/// before a renewal.
pub(crate) fn spare_lifetime(access: &AccessState) -> Duration {
    // A third of the lifetime, less the tolerance for wrong clocks.
    (access.lifetime / 3).saturating_sub(Duration::from_secs(15 * 60))
}

/// Returns the fault of a decision that depends on the key itself.
fn key_fault(world: &World<'_>, access: &AccessState, decision: &KeyDecision<'_>) -> Option<String> {
    let KeyDecision {
        presented, refusal, ..
    } = *decision;
    let now = world.now;
    let gateway = &access.gateways[decision.gateway];
    let is_known = |at: Duration| {
        let seen = gateway.fresh_since.map(|since| since.max(at));
        seen.is_some_and(|seen| now.saturating_sub(seen) > decision.freshness)
    };
    let Presented::Key(number) = presented else {
        return refusal.is_none().then(|| "the client has no key".to_owned());
    };
    let spec = world.scenario.access.as_ref()?.keys.get(number)?;
    let stored = &access.keys[number];
    let deleted = stored.deleted.filter(|at| is_known(*at));
    let is_expired = !spec.expires.is_zero() && now >= spec.expires;
    let is_permitted = spec.models.is_empty() || spec.models.iter().any(|model| model == decision.model);
    match refusal {
        None if stored.created.is_none() => Some("the key does not exist yet".to_owned()),
        None if is_expired => Some("the key has expired".to_owned()),
        None if !is_permitted => Some("the key does not permit the model".to_owned()),
        None => deleted.map(|at| format!("the key was deleted at {}", crate::scenario::format_duration(at))),
        Some(KeyRefusal::Unauthenticated) => {
            let must_know = stored.created.is_some_and(is_known) || gateway.received.contains(&number);
            (must_know && stored.deleted.is_none()).then(|| "the key exists".to_owned())
        }
        Some(KeyRefusal::Expired) => (!is_expired).then(|| "the key has not expired".to_owned()),
        Some(KeyRefusal::NotRead) => {
            (gateway.is_read || is_known(Duration::ZERO)).then(|| "the keys could be read".to_owned())
        }
        Some(KeyRefusal::ModelNotPermitted) => is_permitted.then(|| "the key permits the model".to_owned()),
        Some(
            KeyRefusal::RequestsPerMinute
            | KeyRefusal::TokensPerMinute
            | KeyRefusal::ConcurrentRequests
            | KeyRefusal::TokensPerDay,
        ) => None,
    }
}

//! The conditions of this node's FleetNode, each from the facts it is about. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::facts::NodeFacts;
use super::pressure::Pressure;
use super::probe::{ProbeState, ProbeStep};
use crate::replica::rfc3339;
use rooflet_api::conditions::{AGENT_STOPPED, PROBE_EXPIRED, SIMULATED_CHIP, Truth, condition_type, is_true};
use rooflet_api::v1alpha1::{PlausibilityVerdict, PowerSource, ThermalState};
use rooflet_base::units::Bytes;

/// Less free disk than this share of all is pressure, in percent.
const LOW_PERCENT: u64 = 5;

/// Who touched the machine within this time is there.
pub(crate) const PRESENT_WITHIN: Duration = Duration::from_secs(5 * 60);

/// One condition as it is now.
pub(crate) struct Stated<'a> {
    pub(crate) kind: &'static str,
    pub(crate) truth: Truth,
    pub(crate) reason: &'a str,
    pub(crate) message: String,
}

impl<'a> Stated<'a> {
    fn new(kind: &'static str, truth: Truth, reason: &'a str, message: impl Into<String>) -> Self {
        Self {
            kind,
            truth,
            reason,
            message: message.into(),
        }
    }

    /// What speaks against serving while it is true; there is nothing to say while it is not.
    fn adverse(kind: &'static str, is: bool, (reason, message): (&'a str, &str), otherwise: &'a str) -> Self {
        match is {
            true => Self::new(kind, Truth::True, reason, message),
            false => Self::new(kind, Truth::False, otherwise, ""),
        }
    }
}

/// All that can be said, in the order in which it is shown.
pub(crate) fn conditions<'a>(
    facts: &NodeFacts<'a>,
    before: &[Condition],
    now: Timestamp,
) -> impl Iterator<Item = Stated<'a>> {
    [
        Some(ready(facts)),
        Some(memory_pressure(facts)),
        Some(disk_pressure(facts)),
        thermal_pressure(facts),
        on_battery(facts),
        lid_closed(facts),
        user_present(facts),
        Some(quiet_hours(facts)),
        wired_memory_leaked(facts, before),
        reboot_required(facts, before),
        Some(probe_fresh(facts, now)),
    ]
    .into_iter()
    .flatten()
}

fn ready<'a>(facts: &NodeFacts<'a>) -> Stated<'a> {
    let stated = |truth, reason, message: &str| Stated::new(condition_type::READY, truth, reason, message);
    match (facts.stopping, &facts.reports.models_problem) {
        (true, _) => stated(Truth::False, AGENT_STOPPED, "the agent was stopped"),
        (false, Some(problem)) => stated(Truth::False, problem.reason, &problem.message),
        (false, None) => stated(Truth::True, "AgentReady", "the agent reports and can serve"),
    }
}

fn memory_pressure<'a>(facts: &NodeFacts<'a>) -> Stated<'a> {
    let (truth, reason, message) = pressure_words(facts.reports.pressure);
    Stated::new(condition_type::MEMORY_PRESSURE, truth, reason, message)
}

fn pressure_words(pressure: Pressure) -> (Truth, &'static str, &'static str) {
    match pressure {
        Pressure::None => (Truth::False, "MemoryAvailable", ""),
        Pressure::Easing => (
            Truth::True,
            "MemoryRecovering",
            "other programs needed the memory a short time ago",
        ),
        Pressure::Low => (
            Truth::True,
            "MemoryLow",
            "other programs need the memory: replicas without objectives are stopped, by the lowest priority",
        ),
        Pressure::Critical => (
            Truth::True,
            "MemoryCritical",
            "the memory runs out: replicas are stopped, those without objectives and of the lowest priority first",
        ),
    }
}

fn disk_pressure<'a>(facts: &NodeFacts<'a>) -> Stated<'a> {
    let stated =
        |truth, reason, message: String| Stated::new(condition_type::DISK_PRESSURE, truth, reason, message);
    match facts.disk {
        None => stated(
            Truth::Unknown,
            "Unreadable",
            "the disk cannot be looked at".to_owned(),
        ),
        Some(disk) if is_low(disk.free, disk.total) => stated(
            Truth::True,
            "DiskLow",
            format!("less than {LOW_PERCENT} % of the disk with the agent's files is free"),
        ),
        Some(_) => stated(Truth::False, "DiskAvailable", String::new()),
    }
}

fn is_low(free: Bytes, total: Bytes) -> bool {
    free.0 < total.0 / 100 * LOW_PERCENT
}

fn thermal_pressure<'a>(facts: &NodeFacts<'a>) -> Option<Stated<'a>> {
    let is_hot = match facts.power.thermal_state {
        ThermalState::Unknown => return None,
        ThermalState::Nominal | ThermalState::Fair => false,
        ThermalState::Serious | ThermalState::Critical => true,
    };
    let hot = (
        "ThermalStateSerious",
        "the machine is hot enough to be slowed down",
    );
    let kind = condition_type::THERMAL_PRESSURE;
    Some(Stated::adverse(kind, is_hot, hot, "ThermalStateNominal"))
}

fn on_battery<'a>(facts: &NodeFacts<'a>) -> Option<Stated<'a>> {
    let is_on_battery = match facts.power.source {
        PowerSource::Unknown => return None,
        PowerSource::Ac | PowerSource::Ups => false,
        PowerSource::Battery => true,
    };
    let battery = ("BatteryPower", "the machine runs on its battery");
    let kind = condition_type::ON_BATTERY;
    Some(Stated::adverse(kind, is_on_battery, battery, "ExternalPower"))
}

/// A machine without a lid has no condition for it.
fn lid_closed<'a>(facts: &NodeFacts<'a>) -> Option<Stated<'a>> {
    let closed = ("LidClosed", "the machine's lid is closed");
    let kind = condition_type::LID_CLOSED;
    Some(Stated::adverse(
        kind,
        facts.presence.lid_closed?,
        closed,
        "LidOpen",
    ))
}

fn user_present<'a>(facts: &NodeFacts<'a>) -> Option<Stated<'a>> {
    let is_present = facts.presence.idle? < PRESENT_WITHIN;
    let active = ("UserActive", "somebody used the machine in the last five minutes");
    let kind = condition_type::USER_PRESENT;
    Some(Stated::adverse(kind, is_present, active, "UserIdle"))
}

fn quiet_hours<'a>(facts: &NodeFacts<'a>) -> Stated<'a> {
    let quiet = ("QuietHours", "it is a time that --quiet-hours names");
    Stated::adverse(condition_type::QUIET_HOURS, facts.quiet, quiet, "ServingHours")
}

fn wired_memory_leaked<'a>(facts: &NodeFacts<'a>, before: &[Condition]) -> Option<Stated<'a>> {
    let words = |stranded| {
        format!(
            "{stranded} stayed wired after the last worker had ended: only a restart of the machine frees it"
        )
    };
    of_wired_memory(condition_type::WIRED_MEMORY_LEAKED, facts, before, words)
}

fn reboot_required<'a>(facts: &NodeFacts<'a>, before: &[Condition]) -> Option<Stated<'a>> {
    let words = |_| "the machine's wired memory has leaked".to_owned();
    of_wired_memory(condition_type::REBOOT_REQUIRED, facts, before, words)
}

/// Where none ever leaked there is no such condition.
fn of_wired_memory<'a>(
    kind: &'static str,
    facts: &NodeFacts<'a>,
    before: &[Condition],
    words: impl Fn(Bytes) -> String,
) -> Option<Stated<'a>> {
    match facts.stranded {
        Some(stranded) => Some(Stated::new(
            kind,
            Truth::True,
            "MemoryStaysWired",
            words(stranded),
        )),
        None => is_true(before, condition_type::WIRED_MEMORY_LEAKED)
            .then(|| Stated::new(kind, Truth::False, "MemoryCameBack", "")),
    }
}

fn probe_fresh<'a>(facts: &NodeFacts<'a>, now: Timestamp) -> Stated<'a> {
    let (truth, reason, message) = freshness(facts.probe, now);
    Stated::new(condition_type::PROBE_FRESH, truth, reason, message)
}

pub(crate) fn freshness(probe: &ProbeState, now: Timestamp) -> (Truth, &'static str, String) {
    match (&probe.step, &probe.last) {
        (ProbeStep::Simulated, _) => (
            Truth::False,
            SIMULATED_CHIP,
            "the machine is simulated: its speed is what the data sheet says, and nothing of it was measured"
                .to_owned(),
        ),
        (ProbeStep::Waiting, None) => (
            Truth::False,
            "NotMeasured",
            "the probe runs when no replica does".to_owned(),
        ),
        (ProbeStep::Running, None) => (Truth::False, "Measuring", "the probe is running".to_owned()),
        (ProbeStep::Failed { reason, message }, None) => (Truth::False, reason, message.clone()),
        (step, Some(last)) if last.fresh_for(now).is_zero() => {
            let news = match step {
                ProbeStep::Simulated | ProbeStep::Waiting => String::new(),
                ProbeStep::Running => "; the probe is running".to_owned(),
                ProbeStep::Failed { message, .. } => format!("; measuring again failed: {message}"),
            };
            let measured = rfc3339(last.measured_at());
            (
                Truth::False,
                PROBE_EXPIRED,
                format!("measured {measured}, more than a week ago{news}"),
            )
        }
        (ProbeStep::Waiting | ProbeStep::Running | ProbeStep::Failed { .. }, Some(last)) => {
            let measured = rfc3339(last.measured_at());
            let answer = &last.report.plausibility;
            match answer.verdict {
                PlausibilityVerdict::Plausible | PlausibilityVerdict::NotJudged => {
                    (Truth::True, "Measured", format!("measured {measured}"))
                }
                // The figures are fresh, and used: a node that is slow is slow. But a person should look.
                PlausibilityVerdict::TooLow | PlausibilityVerdict::TooHigh => (
                    Truth::True,
                    "ImplausibleBandwidth",
                    format!("measured {measured}: {}", answer.message),
                ),
            }
        }
    }
}

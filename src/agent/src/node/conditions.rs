//! Conditions of this node's FleetNode, each derived from the facts it describes. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::facts::NodeFacts;
use super::pressure::Pressure;
use super::probe::{ProbeState, ProbeStep};
use crate::replica::rfc3339;
use crate::workers::crash::reduction_percent;
use rooflet_api::conditions::{AGENT_STOPPED, PROBE_EXPIRED, SIMULATED_CHIP, Truth, condition_type};
use rooflet_api::v1alpha1::{PlausibilityVerdict, PowerSource, ThermalState};
use rooflet_base::units::Bytes;
use rooflet_roofline::chip::{self, MatrixUnits};

/// Disk pressure begins below this share of free space, in percent.
const LOW_PERCENT: u64 = 5;

/// Time after the last input for which a user counts as present.
pub(crate) const PRESENT_WITHIN: Duration = Duration::from_secs(5 * 60);

/// Type, status, reason and message of one condition.
pub(crate) struct NodeCondition<'a> {
    pub(crate) kind: &'static str,
    pub(crate) truth: Truth,
    pub(crate) reason: &'a str,
    pub(crate) message: String,
}

impl<'a> NodeCondition<'a> {
    fn new(kind: &'static str, truth: Truth, reason: &'a str, message: impl Into<String>) -> Self {
        Self {
            kind,
            truth,
            reason,
            message: message.into(),
        }
    }

    /// Creates a condition whose true status argues against serving. While it is false, its message
    /// is empty.
    fn adverse(kind: &'static str, is: bool, (reason, message): (&'a str, &str), otherwise: &'a str) -> Self {
        match is {
            true => Self::new(kind, Truth::True, reason, message),
            false => Self::new(kind, Truth::False, otherwise, ""),
        }
    }
}

/// Returns the conditions that the machine supports, in display order. `before` are its current
/// conditions.
///
/// Conditions that argue against serving are absent until they are true for the first time, so that
/// the description of a node stays short.
pub(crate) fn conditions<'a>(
    facts: &NodeFacts<'a>,
    before: &[Condition],
    now: Timestamp,
) -> impl Iterator<Item = NodeCondition<'a>> {
    let adverse = [
        Some(memory_pressure(facts)),
        Some(disk_pressure(facts)),
        thermal_pressure(facts),
        on_battery(facts),
        lid_closed(facts),
        user_present(facts),
        Some(quiet_hours(facts)),
        Some(wired_memory_leaked(facts)),
        Some(reboot_required(facts)),
        low_power_mode(facts),
        Some(memory_reduced(facts)),
        matrix_units_unused(facts),
        Some(anonymous_access(facts)),
        Some(duplicate_agent(facts)),
    ];
    let has_occurred = |condition: &NodeCondition<'_>| {
        condition.truth != Truth::False || before.iter().any(|known| known.type_ == condition.kind)
    };
    let adverse: Vec<_> = adverse.into_iter().flatten().filter(has_occurred).collect();
    [ready(facts)]
        .into_iter()
        .chain(adverse)
        .chain([probe_fresh(facts, now)])
}

fn ready<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let stated =
        |truth, reason, message: &str| NodeCondition::new(condition_type::READY, truth, reason, message);
    match (facts.stopping, &facts.reports.models_problem) {
        (true, _) => stated(Truth::False, AGENT_STOPPED, "agent is stopped"),
        (false, Some(problem)) => stated(Truth::False, problem.reason, &problem.message),
        (false, None) => stated(Truth::True, "AgentReady", "agent is running and ready to serve"),
    }
}

fn memory_pressure<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let (truth, reason, message) = pressure_condition(facts.reports.pressure);
    NodeCondition::new(condition_type::MEMORY_PRESSURE, truth, reason, message)
}

fn pressure_condition(pressure: Pressure) -> (Truth, &'static str, &'static str) {
    match pressure {
        Pressure::None => (Truth::False, "MemoryAvailable", ""),
        Pressure::Warning => (
            Truth::True,
            "MemoryWarning",
            "the system reports low memory: no replica starts until the warning ends",
        ),
        Pressure::Recovering => (
            Truth::True,
            "MemoryRecovering",
            "memory was low recently; waiting until it stays sufficient",
        ),
        Pressure::Low => (
            Truth::True,
            "MemoryLow",
            "available memory is low: the agent stops replicas without objectives, lowest priority first",
        ),
        Pressure::Critical => (
            Truth::True,
            "MemoryCritical",
            "available memory is critically low: the agent stops replicas, those without objectives first, then by lowest priority",
        ),
    }
}

fn disk_pressure<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let stated = |truth, reason, message: String| {
        NodeCondition::new(condition_type::DISK_PRESSURE, truth, reason, message)
    };
    match facts.disk {
        None => stated(
            Truth::Unknown,
            "Unreadable",
            "failed to read the disk usage".to_owned(),
        ),
        Some(disk) if is_low(disk.free, disk.total) => stated(
            Truth::True,
            "DiskLow",
            format!("less than {LOW_PERCENT} % is free on the disk that holds the agent's files"),
        ),
        Some(_) => stated(Truth::False, "DiskAvailable", String::new()),
    }
}

fn is_low(free: Bytes, total: Bytes) -> bool {
    free.0 < total.0 / 100 * LOW_PERCENT
}

fn thermal_pressure<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let is_hot = match facts.power.thermal_state {
        ThermalState::Unknown => return None,
        ThermalState::Nominal | ThermalState::Fair => false,
        ThermalState::Serious | ThermalState::Critical => true,
    };
    let hot = (
        "ThermalStateSerious",
        "the machine is so hot that the system slows it down",
    );
    let kind = condition_type::THERMAL_PRESSURE;
    Some(NodeCondition::adverse(kind, is_hot, hot, "ThermalStateNominal"))
}

fn on_battery<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let is_on_battery = match facts.power.source {
        PowerSource::Unknown => return None,
        PowerSource::Ac | PowerSource::Ups => false,
        PowerSource::Battery => true,
    };
    let battery = ("BatteryPower", "the machine runs on battery power");
    let kind = condition_type::ON_BATTERY;
    Some(NodeCondition::adverse(
        kind,
        is_on_battery,
        battery,
        "ExternalPower",
    ))
}

/// Returns `None` unless the machine reports the mode.
fn low_power_mode<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let saves = (
        "LowPowerMode",
        "the machine is in low power mode: it computes slower than its measurement in normal mode",
    );
    let kind = condition_type::LOW_POWER_MODE;
    Some(NodeCondition::adverse(
        kind,
        facts.power.low_power_mode?,
        saves,
        "NormalPowerMode",
    ))
}

fn memory_reduced<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let kind = condition_type::MEMORY_REDUCED;
    match facts.reports.watchdog_panics {
        0 => NodeCondition::new(kind, Truth::False, "NoWatchdogPanic", ""),
        panics => NodeCondition::new(
            kind,
            Truth::True,
            "WatchdogPanic",
            format!(
                "the kernel's watchdog restarted this machine while models ran, {panics} times within a week: allocatable memory is \
                 reduced by {} %. Serve smaller models, or run fewer other programs",
                reduction_percent(panics)
            ),
        ),
    }
}

/// Returns `None` unless workers compute on a GPU with matrix units.
fn matrix_units_unused<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let is_built = facts.matrix_unit_kernels?;
    let chip = chip::of_machine(&facts.identity.chip, facts.memory.total).ok()?;
    let units = MatrixUnits::of(&chip, &facts.identity.operating_system, is_built)?;
    let kind = condition_type::MATRIX_UNITS_UNUSED;
    let unused = |reason, remedy| NodeCondition::new(kind, Truth::True, reason, format!("{units}; {remedy}"));
    Some(match (units, units.remedy()) {
        (MatrixUnits::SystemTooOld, Some(remedy)) => unused("SystemTooOld", remedy),
        (MatrixUnits::NotBuilt, Some(remedy)) => unused("KernelsNotBuilt", remedy),
        (MatrixUnits::Used | MatrixUnits::SystemTooOld | MatrixUnits::NotBuilt, _) => {
            NodeCondition::new(kind, Truth::False, "MatrixUnitsUsed", "")
        }
    })
}

fn anonymous_access<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let anonymous = (
        "AllowAnonymous",
        "the agent was started with --allow-anonymous: every client that reaches it can send requests",
    );
    let kind = condition_type::ANONYMOUS_ACCESS;
    NodeCondition::adverse(kind, facts.is_anonymous, anonymous, "AccessRestricted")
}

fn duplicate_agent<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let kind = condition_type::DUPLICATE_AGENT;
    match &facts.other_agent {
        Some(other) => NodeCondition::new(
            kind,
            Truth::True,
            "OtherAgent",
            format!(
                "another agent {other} uses the name and the credentials of this node: stop it, and remove its \
                 state directory"
            ),
        ),
        None => NodeCondition::new(kind, Truth::False, "OneAgent", ""),
    }
}

/// Returns `None` for a machine without a lid.
fn lid_closed<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let closed = (
        "LidClosed",
        "the machine's lid is closed, which puts it to sleep without an external display and power",
    );
    let kind = condition_type::LID_CLOSED;
    Some(NodeCondition::adverse(
        kind,
        facts.presence.lid_closed?,
        closed,
        "LidOpen",
    ))
}

fn user_present<'a>(facts: &NodeFacts<'a>) -> Option<NodeCondition<'a>> {
    let is_present = facts.presence.idle? < PRESENT_WITHIN;
    let active = ("UserActive", "a user was active in the last five minutes");
    let kind = condition_type::USER_PRESENT;
    Some(NodeCondition::adverse(kind, is_present, active, "UserIdle"))
}

fn quiet_hours<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let quiet = ("QuietHours", "the current time is within --quiet-hours");
    NodeCondition::adverse(condition_type::QUIET_HOURS, facts.quiet, quiet, "ServingHours")
}

fn wired_memory_leaked<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let message = |leaked| {
        format!("{leaked} stayed wired after the last worker exited: restart the machine to free it")
    };
    wired_memory_condition(condition_type::WIRED_MEMORY_LEAKED, facts, message)
}

fn reboot_required<'a>(facts: &NodeFacts<'a>) -> NodeCondition<'a> {
    let message = |_| "wired memory has leaked: restart the machine to free it".to_owned();
    wired_memory_condition(condition_type::REBOOT_REQUIRED, facts, message)
}

fn wired_memory_condition<'a>(
    kind: &'static str,
    facts: &NodeFacts<'a>,
    message: impl Fn(Bytes) -> String,
) -> NodeCondition<'a> {
    match facts.leaked {
        Some(leaked) => NodeCondition::new(kind, Truth::True, "MemoryStaysWired", message(leaked)),
        None => NodeCondition::new(kind, Truth::False, "MemoryCameBack", ""),
    }
}

fn probe_fresh<'a>(facts: &NodeFacts<'a>, now: Timestamp) -> NodeCondition<'a> {
    let (truth, reason, message) = probe_freshness(facts.probe, now);
    NodeCondition::new(condition_type::PROBE_FRESH, truth, reason, message)
}

pub(crate) fn probe_freshness(probe: &ProbeState, now: Timestamp) -> (Truth, &'static str, String) {
    match (&probe.step, &probe.last) {
        (ProbeStep::Simulated, _) => (
            Truth::False,
            SIMULATED_CHIP,
            "the machine is simulated: its speed comes from the data sheet, not from a measurement"
                .to_owned(),
        ),
        (ProbeStep::Waiting, None) => (
            Truth::False,
            "NotMeasured",
            "the probe runs when no worker runs".to_owned(),
        ),
        (ProbeStep::Running, None) => (Truth::False, "Measuring", "the probe is running".to_owned()),
        (ProbeStep::Failed { reason, message }, None) => (Truth::False, reason, message.clone()),
        (step, Some(last)) if last.remaining_validity(now).is_zero() => {
            let suffix = match step {
                ProbeStep::Simulated | ProbeStep::Waiting => String::new(),
                ProbeStep::Running => "; the probe is running".to_owned(),
                ProbeStep::Failed { message, .. } => format!("; the last attempt failed: {message}"),
            };
            let measured = rfc3339(last.measured_at());
            (
                Truth::False,
                PROBE_EXPIRED,
                format!("measured {measured}, more than a week ago{suffix}"),
            )
        }
        (ProbeStep::Waiting | ProbeStep::Running | ProbeStep::Failed { .. }, Some(last)) => {
            let measured = rfc3339(last.measured_at());
            let answer = &last.report.plausibility;
            if let Some(why) = last.disturbance() {
                return (
                    Truth::True,
                    "MeasuredUnderLoad",
                    format!(
                        "measured {measured} while other programs used the machine ({why}), so predictions may be \
                         too low; the agent repeats the measurement when no worker runs"
                    ),
                );
            }
            match answer.verdict {
                PlausibilityVerdict::Plausible | PlausibilityVerdict::NotJudged => {
                    (Truth::True, "Measured", format!("measured {measured}"))
                }
                // The measurement is recent and used, because the machine may really be slow. The
                // message asks for a review.
                PlausibilityVerdict::TooLow | PlausibilityVerdict::TooHigh => (
                    Truth::True,
                    "ImplausibleBandwidth",
                    format!("measured {measured}: {}", answer.message),
                ),
            }
        }
    }
}

//! Checks of heat and power supply, which only Macs report. They also check recordings.

use rooflet_api::v1alpha1::{PowerSource, ThermalState};
use rooflet_host::{Host, Power};

use super::check::{Check, Status};

pub(super) fn checks(host: &Host) -> Vec<Check> {
    if host.facts().is_none() {
        return Vec::new();
    }
    let power = host.power();
    vec![
        heat(power.thermal_state),
        power_supply(&power),
        power_mode(&power),
        lid(host),
    ]
}

/// Heat at one moment, by both sources of a Mac.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeatReading {
    /// The source that the agent uses.
    state: ThermalState,
    /// `NSProcessInfo.thermalState`.
    process_info: Option<i64>,
}

impl HeatReading {
    /// Returns `None` unless the machine is a Mac.
    pub(super) fn of(host: &Host) -> Option<Self> {
        let process_info = host.facts()?.process_info();
        Some(Self {
            state: host.power().thermal_state,
            process_info: process_info.map(|info| info.thermal_state),
        })
    }
}

/// Checks the heat while the measurements load the GPU. Returns `None` without readings.
pub(super) fn heat_under_load(readings: &[HeatReading]) -> Option<Check> {
    let hottest = readings.iter().max_by_key(|reading| rank(reading.state))?;
    let listed = |value: &dyn Fn(&HeatReading) -> String| {
        let values: Vec<_> = readings.iter().map(value).collect();
        values.join(", ")
    };
    let states = listed(&|reading| word(reading.state).to_owned());
    let process_info = listed(&|reading| {
        let state = reading.process_info;
        state.map_or("none".to_owned(), |state| state.to_string())
    });
    let judged = heat(hottest.state);
    let effect = match judged.status {
        Status::Warn => format!(". {}", capitalised(SLOWED)),
        Status::Ok | Status::Fail | Status::Unknown => String::new(),
    };
    Some(Check {
        name: "heat under load".to_owned(),
        finding: match judged.status {
            Status::Unknown => judged.finding.clone(),
            Status::Ok | Status::Warn | Status::Fail => {
                format!("{states} (NSProcessInfo: {process_info}){effect}")
            }
        },
        ..judged
    })
}

/// Effect of heat from the state serious on.
const SLOWED: &str = "the system reduces performance: measurements are too low, and no new model starts";

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| {
        format!("{}{}", first.to_uppercase(), rest.as_str())
    })
}

fn word(state: ThermalState) -> &'static str {
    match state {
        ThermalState::Nominal => "nominal",
        ThermalState::Fair => "fair",
        ThermalState::Serious => "serious",
        ThermalState::Critical => "critical",
        ThermalState::Unknown => "not reported",
    }
}

fn rank(state: ThermalState) -> u8 {
    match state {
        ThermalState::Unknown => 0,
        ThermalState::Nominal => 1,
        ThermalState::Fair => 2,
        ThermalState::Serious => 3,
        ThermalState::Critical => 4,
    }
}

fn heat(state: ThermalState) -> Check {
    let name = "heat";
    match state {
        ThermalState::Nominal => Check::ok(name, "nominal"),
        ThermalState::Fair => Check::ok(name, "fair: fans run faster"),
        ThermalState::Serious | ThermalState::Critical => Check::warn(
            name,
            format!("{}: {SLOWED}", word(state)),
            "let the machine cool down, and improve its ventilation",
        ),
        ThermalState::Unknown => Check::unknown(name, "not reported"),
    }
}

fn power_supply(power: &Power) -> Check {
    let name = "power supply";
    match power.source {
        PowerSource::Ac => Check::ok(name, "AC power"),
        PowerSource::Ups => Check::ok(name, "uninterruptible power supply"),
        PowerSource::Battery => Check::warn(
            name,
            "battery: models prefer other nodes",
            "connect the power supply, or tolerate rooflet.dev/on-battery",
        ),
        PowerSource::Unknown => Check::unknown(name, "not reported"),
    }
}

fn power_mode(power: &Power) -> Check {
    let name = "low power mode";
    match power.low_power_mode {
        Some(true) => Check::warn(
            name,
            "on: the machine computes slower, and its measurement in normal mode does not apply",
            "switch it off in the system settings, under Battery or Energy",
        ),
        Some(false) => Check::ok(name, "off"),
        None => Check::unknown(name, "not reported"),
    }
}

fn lid(host: &Host) -> Check {
    let name = "lid";
    match host.presence().lid_closed {
        Some(true) => Check::warn(
            name,
            "closed, which puts the machine to sleep",
            "open the lid, or connect an external display and power",
        ),
        Some(false) => Check::ok(name, "open, or closed with an external display and power"),
        None => Check::unknown(name, "not reported"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{host, recorded};
    use rooflet_host::facts::RecordedFacts;

    fn check_of(facts: RecordedFacts, name: &str) -> Check {
        let checks = checks(&host(facts)).into_iter();
        checks.into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn closed_mac_with_display_and_power_is_fine() {
        let docked = recorded("m2-air-docked");
        for (name, finding) in [("lid", "external display"), ("power supply", "AC power")] {
            let found = check_of(docked.clone(), name);
            assert!(
                found.status == Status::Ok && found.finding.contains(finding),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_laptop_on_battery_in_low_power_mode_gets_warnings() {
        let facts = RecordedFacts::parse(
            r#"{"powerSource": "Battery Power", "processInfo": {"thermalState": 0, "lowPowerMode": true},
                "notify": {"com.apple.system.thermalpressurelevel": 2}}"#,
        );
        let facts = facts.unwrap();
        for name in ["power supply", "low power mode", "heat"] {
            let found = check_of(facts.clone(), name);
            assert!(
                found.status == Status::Warn && found.remedy.is_some(),
                "{found:?}"
            );
        }
    }

    #[test]
    fn hottest_reading_under_load_is_judged() {
        let readings = |states: &[ThermalState]| -> Vec<_> {
            let reading = |state: &ThermalState| HeatReading {
                state: *state,
                process_info: Some(0),
            };
            states.iter().map(reading).collect()
        };
        use ThermalState::{Fair, Nominal, Serious, Unknown};
        let warm = heat_under_load(&readings(&[Nominal, Fair, Fair])).unwrap();
        assert_eq!(
            (warm.status, warm.finding.as_str(), warm.name.as_str()),
            (
                Status::Ok,
                "nominal, fair, fair (NSProcessInfo: 0, 0, 0)",
                "heat under load"
            )
        );
        let hot = heat_under_load(&readings(&[Nominal, Serious, Fair])).unwrap();
        assert!(
            hot.status == Status::Warn && hot.finding.contains("serious, fair") && hot.remedy.is_some(),
            "{hot:?}"
        );
        let unknown = heat_under_load(&readings(&[Unknown])).unwrap();
        assert_eq!(
            (unknown.status, unknown.finding.as_str()),
            (Status::Unknown, "not reported")
        );
        assert!(heat_under_load(&[]).is_none());
        assert!(HeatReading::of(&Host::Native).is_some() == cfg!(target_os = "macos"));
        let recorded = HeatReading::of(&host(recorded("m4"))).unwrap();
        assert_eq!(recorded.process_info, None);
    }
}

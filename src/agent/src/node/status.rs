//! Status of this node's FleetNode, derived from facts. Pure.

use k8s_openapi::jiff::Timestamp;

use super::conditions::{NodeCondition, conditions};
use super::facts::NodeFacts;
use super::hardware::{published_speed, show_engine};
use super::probe::ProbeResult;
use crate::replica::ReplicaKey;
use crate::workers::crash::reduced;
use rooflet_api::conditions::set_condition;
use rooflet_api::v1alpha1::{Basis, DataSheet, FleetNodeStatus, NodeInfo, NodeSummary, Resources};
use rooflet_base::quantity::format_bytes;
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_roofline::chip;
use rooflet_roofline::memory::allocatable;
use rooflet_roofline::published::packed_model;

/// Returns the next status. Keeps conditions of other writers.
pub fn node_status(facts: &NodeFacts<'_>, previous: &FleetNodeStatus, now: Timestamp) -> FleetNodeStatus {
    let reports = facts.reports;
    let total = facts.memory.total;
    let usable = reduced(
        allocatable(total, facts.memory.working_set),
        reports.watchdog_panics,
    );
    let report = facts.probe.last.as_ref().map(|last| &last.report);
    let bandwidth = report.map(|report| BytesPerSecond(report.measurements.qmv.median_bytes_per_second));
    let sheet = chip::of_machine(&facts.identity.chip, total).ok();
    // Bandwidth as a quantity in whole megabytes per second.
    let bandwidth_quantity = bandwidth.map(|rate| format!("{:.0}M", rate.0 / 1e6));
    let engine = report.map(|report| &report.engine).or(reports.engine.as_ref());
    let mut next = FleetNodeStatus {
        observed_generation: facts.generation,
        chip: facts.identity.chip.clone(),
        data_sheet: sheet.as_ref().map(|chip| DataSheet {
            basis: Basis::Nominal,
            memory_bytes_per_second: chip.bandwidth.0,
            source: chip.source.clone(),
            note: chip.note.clone(),
        }),
        node_info: NodeInfo {
            machine_id: facts.machine_id.to_owned(),
            operating_system: facts.identity.operating_system.clone(),
            os_build: facts.identity.os_build.clone(),
            architecture: facts.identity.architecture.to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: engine.map_or_else(String::new, show_engine),
        },
        capacity: Resources {
            memory: format_bytes(total),
            memory_bandwidth: bandwidth_quantity.clone(),
            disk: facts.disk.map(|disk| format_bytes(disk.total)),
        },
        allocatable: Resources {
            memory: format_bytes(usable),
            memory_bandwidth: bandwidth_quantity,
            disk: reports.disk_limit.map(format_bytes),
        },
        speed: published_speed(facts.probe),
        probe: None,
        calibrations: reports.calibrations.clone(),
        calibration_reset: reports.calibration_reset.clone(),
        summary: NodeSummary {
            memory: format!("{}/{}", gibibytes(usable), gibibytes(total)),
            bandwidth: {
                let figures = measured_of_spec(bandwidth, sheet.as_ref().map(|chip| chip.bandwidth));
                let is_disturbed = facts
                    .probe
                    .last
                    .as_ref()
                    .and_then(ProbeResult::disturbance)
                    .is_some();
                format!("{figures}{}", if is_disturbed { "(busy)" } else { "" })
            },
            free_memory: gibibytes(usable - reports.reserved),
            free_bandwidth: measured_of_spec(
                bandwidth.map(|rate| BytesPerSecond(rate.0 * (1.0 - reports.reserved_share).max(0.0))),
                None,
            ),
        },
        endpoint: Some(facts.endpoint.to_owned()),
        gateway_log: facts.has_gateway_log,
        download: reports.download,
        models: reports.models.iter().map(packed_model).collect(),
        replicas: i32::try_from(reports.replicas.len()).unwrap_or(i32::MAX),
        replica_names: reports.replicas.keys().map(ReplicaKey::to_string).collect(),
        conditions: previous.conditions.clone(),
    };
    for stated in conditions(facts, &previous.conditions, now) {
        let NodeCondition {
            kind,
            truth,
            reason,
            message,
        } = stated;
        // The status has the observed generation of all conditions.
        let generation = None;
        set_condition(
            &mut next.conditions,
            kind,
            truth,
            reason,
            message,
            generation,
            now,
        );
    }
    next
}

/// Returns whether the statuses differ, and only in the replicas of the node and in what they leave
/// free.
pub(super) fn differs_in_use_only(previous: &FleetNodeStatus, next: &FleetNodeStatus) -> bool {
    let with_use = FleetNodeStatus {
        summary: NodeSummary {
            free_memory: next.summary.free_memory.clone(),
            free_bandwidth: next.summary.free_bandwidth.clone(),
            ..previous.summary.clone()
        },
        replicas: next.replicas,
        replica_names: next.replica_names.clone(),
        ..previous.clone()
    };
    previous != next && with_use == *next
}

/// Formats `MEASURED/DATASHEET` without spaces, so that a column of `kubectl get` stays one word.
fn measured_of_spec(measured: Option<BytesPerSecond>, spec: Option<BytesPerSecond>) -> String {
    match (measured.map(gigabytes_per_second), spec.map(gigabytes_per_second)) {
        (Some(measured), Some(spec)) => format!("{measured}/{spec}GB/s"),
        (Some(measured), None) => format!("{measured}GB/s"),
        (None, Some(spec)) => format!("-/{spec}GB/s"),
        (None, None) => "-".to_owned(),
    }
}

/// Formats a rate with three significant digits.
fn gigabytes_per_second(BytesPerSecond(rate): BytesPerSecond) -> String {
    let gigabytes = rate / 1e9;
    match gigabytes {
        _ if gigabytes >= 100.0 => format!("{gigabytes:.0}"),
        _ if gigabytes >= 10.0 => format!("{gigabytes:.1}"),
        _ => format!("{gigabytes:.2}"),
    }
}

/// Formats gibibytes without a space, so that a column of `kubectl get` stays one word.
fn gibibytes(Bytes(bytes): Bytes) -> String {
    format!("{:.1}Gi", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::conditions::{PRESENT_WITHIN, probe_freshness};
    use crate::node::hardware::node_hardware;
    use crate::node::pressure::Pressure;
    use crate::node::probe::ProbeState;
    use crate::node::probe::ProbeStep;
    use crate::reports::Reports;
    use rooflet_api::conditions::{PROBE_EXPIRED, Truth};
    use rooflet_api::v1alpha1::{Chip, Figure, Measurements, Plausibility, PowerSource, ThermalState};
    use rooflet_api::wire::{EngineInfo, ProbeReport, ProbedMachine};
    use rooflet_host::{Disk, FakeHost, Host, Power, Presence};
    use rooflet_roofline::predict::Hardware;

    fn report(measured_at: &str) -> ProbeReport {
        let figure = |rate| Figure {
            median_bytes_per_second: rate,
            ..Figure::default()
        };
        ProbeReport {
            engine: EngineInfo {
                name: "mlx".to_owned(),
                version: "0.32.2".to_owned(),
                device: "metal".to_owned(),
            },
            machine: ProbedMachine::default(),
            measurements: Measurements {
                read: figure(120e9),
                qmv: figure(112.4e9),
                ..Measurements::default()
            },
            plausibility: Plausibility::default(),
            measured_at: measured_at.to_owned(),
            expires_at: String::new(),
        }
    }

    fn measured(at: &str) -> ProbeState {
        ProbeState {
            step: ProbeStep::Waiting,
            last: Some(ProbeResult {
                report: Box::new(report(at)),
                duration: Duration::from_secs(6),
            }),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut NodeFacts<'_>), expect: &str) -> FleetNodeStatus {
        check_after(&FleetNodeStatus::default(), change, expect)
    }

    #[track_caller]
    fn check_after(
        previous: &FleetNodeStatus,
        change: impl FnOnce(&mut NodeFacts<'_>),
        expect: &str,
    ) -> FleetNodeStatus {
        let fake = FakeHost::new("mini-1", Bytes::gib(16));
        let host = Host::Fake(fake);
        let identity = host.identity();
        let reports = Reports {
            reserved: Bytes::gib(4),
            disk_limit: Some(Bytes::gib(97)),
            ..Reports::default()
        };
        let probe = ProbeState::default();
        let mut facts = NodeFacts {
            identity: &identity,
            machine_id: "id",
            memory: host.memory(),
            disk: host.disk("/".into()).ok(),
            power: Power::default(),
            presence: Presence::default(),
            leaked: None,
            quiet: false,
            matrix_unit_kernels: None,
            is_anonymous: false,
            other_agent: None,
            endpoint: "http://127.0.0.1:1",
            has_gateway_log: false,
            probe: &probe,
            reports: &reports,
            generation: Some(1),
            stopping: false,
        };
        change(&mut facts);
        let now = "2026-01-08T00:00:00Z".parse().unwrap();
        let status = node_status(&facts, previous, now);
        let shown: Vec<_> = status
            .conditions
            .iter()
            .map(|one| format!("{}={}/{}", one.type_, one.status, one.reason))
            .collect();
        assert_eq!(shown.join(" "), expect);
        assert_eq!(
            node_status(&facts, &status, now + Duration::from_secs(60)),
            status,
            "status is unchanged by time alone"
        );
        status
    }

    #[test]
    fn reports_capacity_and_conditions() {
        let status = check(|_| {}, "Ready=True/AgentReady ProbeFresh=False/NotMeasured");
        assert_eq!(status.summary.memory, "15.2Gi/16.0Gi");
        assert_eq!(status.summary.free_memory, "11.2Gi");
        assert_eq!(status.summary.bandwidth, "-");
        assert_eq!(status.capacity.memory, "16Gi");
        let disk = (status.capacity.disk, status.allocatable.disk);
        assert_eq!(disk, (Some("512Gi".to_owned()), Some("97Gi".to_owned())));
        assert_eq!((status.speed, status.probe), (None, None));
    }

    #[test]
    fn replicas_and_free_memory_are_use_and_conditions_are_not() {
        let status = check(|_| {}, "Ready=True/AgentReady ProbeFresh=False/NotMeasured");
        assert!(!differs_in_use_only(&status, &status));
        let mut used = status.clone();
        used.replicas = 1;
        used.replica_names = vec!["default/guide-1".to_owned()];
        used.summary.free_memory = "10.2Gi".to_owned();
        used.summary.free_bandwidth = "90GB/s".to_owned();
        assert!(differs_in_use_only(&status, &used));
        used.conditions[0].status = "False".to_owned();
        assert!(!differs_in_use_only(&status, &used));
        let mut smaller = status.clone();
        smaller.allocatable.memory = "8Gi".to_owned();
        assert!(!differs_in_use_only(&status, &smaller));
    }

    #[test]
    fn simulated_machine_is_never_reported_as_measured() {
        let status = check(
            |facts| facts.probe = Box::leak(Box::new(ProbeState::simulated())),
            "Ready=True/AgentReady ProbeFresh=False/SimulatedChip",
        );
        assert_eq!((status.speed, status.allocatable.memory_bandwidth), (None, None));
    }

    #[test]
    fn expired_measurement_makes_predictions_less_certain() {
        let mut probe = measured("2026-01-02T00:00:00Z");
        let hardware =
            |now: &str| node_hardware(&Chip::default(), Bytes::gib(16), &probe, now.parse().unwrap());
        let fresh = hardware("2026-01-08T00:00:00Z").unwrap();
        assert_eq!(hardware("2026-01-08T23:00:00Z"), Some(fresh));
        let Hardware::Measured(machine) = fresh else {
            panic!("expected measured hardware");
        };
        assert_eq!(
            hardware("2026-01-09T01:00:00Z"),
            Some(Hardware::Measured(machine.stale()))
        );
        // It stays in use until a newer one exists, and the condition reports its age.
        let failed = ProbeStep::Failed {
            reason: "ProbeFailed",
            message: "m".to_owned(),
        };
        for (step, news) in [
            (ProbeStep::Waiting, ""),
            (ProbeStep::Running, "; the probe is running"),
            (failed, "; the last attempt failed: m"),
        ] {
            probe.step = step;
            let now = "2026-01-09T01:00:00Z".parse().unwrap();
            let hardware = node_hardware(&Chip::default(), Bytes::gib(16), &probe, now);
            assert_eq!(hardware, Some(Hardware::Measured(machine.stale())));
            let message = format!("measured 2026-01-02T00:00:00Z, more than a week ago{news}");
            assert_eq!(
                probe_freshness(&probe, now),
                (Truth::False, PROBE_EXPIRED, message)
            );
        }
    }

    #[test]
    fn measurement_is_fresh_for_a_week() {
        let fresh = measured("2026-01-02T00:00:00Z");
        let status = check(
            |facts| facts.probe = Box::leak(Box::new(fresh)),
            "Ready=True/AgentReady ProbeFresh=True/Measured",
        );
        assert_eq!(status.summary.bandwidth, "112GB/s");
        assert_eq!(status.allocatable.memory_bandwidth.as_deref(), Some("112400M"));
        assert_eq!(status.node_info.engine, "mlx 0.32.2 (metal)");
        let speed = status.speed.unwrap();
        assert_eq!(
            (speed.read_bytes_per_second, speed.decode_bytes_per_second),
            (120e9, 112.4e9)
        );
        assert_eq!(status.probe, None, "deprecated field");
        let old = measured("2026-01-01T00:00:00Z");
        check(
            |facts| facts.probe = Box::leak(Box::new(old)),
            "Ready=True/AgentReady ProbeFresh=False/Expired",
        );
    }

    #[test]
    fn slow_machine_reports_more_than_zero() {
        let shown = |measured: f64, spec: f64| {
            let rate = |gigabytes: f64| (gigabytes > 0.0).then_some(BytesPerSecond(gigabytes * 1e9));
            measured_of_spec(rate(measured), rate(spec))
        };
        assert_eq!(shown(0.2626, 0.0), "0.26GB/s");
        assert_eq!(shown(94.23, 120.0), "94.2/120GB/s");
        assert_eq!(shown(0.0, 546.2), "-/546GB/s");
        assert_eq!(shown(0.0, 0.0), "-");
    }

    #[test]
    fn reports_adverse_conditions_that_the_machine_supports() {
        check(
            |facts| {
                facts.power = Power {
                    thermal_state: ThermalState::Serious,
                    source: PowerSource::Battery,
                    low_power_mode: None,
                };
                facts.presence = Presence {
                    lid_closed: Some(false),
                    idle: Some(PRESENT_WITHIN),
                };
                facts.quiet = true;
            },
            "Ready=True/AgentReady \
             ThermalPressure=True/ThermalStateSerious OnBattery=True/BatteryPower \
             QuietHours=True/QuietHours ProbeFresh=False/NotMeasured",
        );
        check(
            |facts| {
                facts.power.thermal_state = ThermalState::Fair;
                facts.power.source = PowerSource::Ac;
                facts.presence.idle = Some(PRESENT_WITHIN - Duration::from_secs(1));
            },
            "Ready=True/AgentReady \
             UserPresent=True/UserActive \
             ProbeFresh=False/NotMeasured",
        );
    }

    #[test]
    fn reports_matrix_units_that_the_engine_does_not_use() {
        let usual = "Ready=True/AgentReady";
        for (chip, system, is_built, expect) in [
            ("Apple M5", "macOS 26.2", Some(true), ""),
            (
                "Apple M5",
                "macOS 26.2",
                Some(false),
                "MatrixUnitsUnused=True/KernelsNotBuilt ",
            ),
            (
                "Apple M5",
                "macOS 26.1",
                Some(true),
                "MatrixUnitsUnused=True/SystemTooOld ",
            ),
            ("Apple M5", "macOS 26.2", None, ""),
            ("Apple M4", "macOS 26.2", Some(false), ""),
        ] {
            let status = check(
                |facts| {
                    let mut identity = facts.identity.clone();
                    identity.chip.name = chip.to_owned();
                    identity.chip.gpu_cores = Some(10);
                    identity.chip.development = false;
                    identity.operating_system = system.to_owned();
                    facts.identity = Box::leak(Box::new(identity));
                    facts.matrix_unit_kernels = is_built;
                },
                &format!("{usual} {expect}ProbeFresh=False/NotMeasured"),
            );
            let unused = status
                .conditions
                .iter()
                .find(|one| one.type_ == "MatrixUnitsUnused");
            let message = unused.map_or("", |one| one.message.as_str());
            assert_eq!(
                message.contains("cargo xtask setup"),
                expect.contains("True"),
                "{message}"
            );
        }
    }

    #[test]
    fn condition_remains_after_it_was_true() {
        let on_battery = check(
            |facts| facts.power.source = PowerSource::Battery,
            "Ready=True/AgentReady \
             OnBattery=True/BatteryPower ProbeFresh=False/NotMeasured",
        );
        check_after(
            &on_battery,
            |facts| facts.power.source = PowerSource::Ac,
            "Ready=True/AgentReady \
             OnBattery=False/ExternalPower ProbeFresh=False/NotMeasured",
        );
    }

    #[test]
    fn pressure_ends_as_a_condition() {
        let low = check(
            |facts| {
                facts.reports = Box::leak(Box::new(Reports {
                    pressure: Pressure::Low,
                    ..Reports::default()
                }));
                facts.disk = None;
            },
            "Ready=True/AgentReady MemoryPressure=True/MemoryLow DiskPressure=Unknown/Unreadable ProbeFresh=False/NotMeasured",
        );
        check_after(
            &low,
            |_| {},
            "Ready=True/AgentReady MemoryPressure=False/MemoryAvailable DiskPressure=False/DiskAvailable \
             ProbeFresh=False/NotMeasured",
        );
    }

    #[test]
    fn anonymous_access_is_a_condition() {
        let anonymous = check(
            |facts| facts.is_anonymous = true,
            "Ready=True/AgentReady \
             AnonymousAccess=True/AllowAnonymous ProbeFresh=False/NotMeasured",
        );
        check_after(
            &anonymous,
            |_| {},
            "Ready=True/AgentReady \
             AnonymousAccess=False/AccessRestricted ProbeFresh=False/NotMeasured",
        );
    }

    #[test]
    fn another_agent_of_the_node_is_a_condition_until_it_stops() {
        let usual = "Ready=True/AgentReady";
        let duplicate = check(
            |facts| facts.other_agent = Some("on another machine (machine id M2)".to_owned()),
            &format!("{usual} DuplicateAgent=True/OtherAgent ProbeFresh=False/NotMeasured"),
        );
        let message = &duplicate.conditions[1].message;
        assert!(message.contains("machine id M2"), "{message}");
        check_after(
            &duplicate,
            |_| (),
            &format!("{usual} DuplicateAgent=False/OneAgent ProbeFresh=False/NotMeasured"),
        );
    }

    #[test]
    fn wired_memory_requires_reboot_until_it_is_freed() {
        let usual = "Ready=True/AgentReady";
        let leaked = check(
            |facts| facts.leaked = Some(Bytes::gib(35)),
            &format!(
                "{usual} WiredMemoryLeaked=True/MemoryStaysWired RebootRequired=True/MemoryStaysWired ProbeFresh=False/NotMeasured"
            ),
        );
        let conditions = leaked.conditions;
        assert!(
            conditions
                .iter()
                .any(|one| one.message.starts_with("35.0 GiB stayed wired")),
            "{conditions:?}"
        );
    }

    #[test]
    fn reports_memory_disk_and_probe_problems() {
        check(
            |facts| {
                facts.reports = Box::leak(Box::new(Reports {
                    pressure: Pressure::Low,
                    ..Reports::default()
                }));
                facts.disk = Some(Disk {
                    total: Bytes::gib(100),
                    free: Bytes::gib(4),
                    obtainable: Bytes::gib(40),
                });
                let failed = ProbeStep::Failed {
                    reason: "ProbeFailed",
                    message: "m".to_owned(),
                };
                facts.probe = Box::leak(Box::new(ProbeState {
                    step: failed,
                    last: None,
                }));
                facts.stopping = true;
            },
            "Ready=False/AgentStopped MemoryPressure=True/MemoryLow DiskPressure=True/DiskLow ProbeFresh=False/ProbeFailed",
        );
    }
}

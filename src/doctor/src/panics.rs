//! Checks the reports of kernel panics.

use std::time::Duration;

use jiff::Timestamp;

use super::check::Check;
use rooflet_agent::workers::PANIC_REPORT_HOLD;
use rooflet_base::clock::since;
use rooflet_host::{Host, PanicCause, PanicReport, PanicReports};

/// Maximum age of reported panics.
const RECENT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns `None` unless the system writes reports that rooflet reads.
pub(super) fn check(host: &Host, now: Timestamp) -> Option<Check> {
    host.reports_panics()
        .then(|| judge(&host.panics(now - RECENT), host.boot_time()))
}

fn judge(reports: &PanicReports, boot: Option<Timestamp>) -> Check {
    let name = "kernel panics";
    let describe = |report| describe(report, boot);
    if let Some(err) = &reports.unreadable {
        return Check::warn(
            name,
            format!("the reports cannot be read: {err}"),
            "run rooflet as a user who may administer this Mac: models that cause a panic are then quarantined",
        );
    }
    let newest = |cause| reports.read.iter().rev().find(|report| report.cause == cause);
    if let Some(report) = newest(PanicCause::GpuDriver) {
        return Check::warn(
            name,
            format!("in the GPU drivers: {}", describe(report)),
            "update macOS; models that ran then are quarantined",
        );
    }
    if let Some(report) = newest(PanicCause::Watchdog) {
        return Check::warn(
            name,
            format!("watchdog timeout: {}", describe(report)),
            "serve smaller models: the usual reason is exhausted memory",
        );
    }
    match reports.read.last() {
        Some(report) => Check::ok(name, format!("unrelated to models: {}", describe(report))),
        None => Check::ok(name, "none within 30 days"),
    }
}

fn describe(report: &PanicReport, boot: Option<Timestamp>) -> String {
    let panic = format!("{} on {}: {}", report.at, report.os_build, report.message);
    let hold = PANIC_REPORT_HOLD;
    match (boot.and_then(|boot| report.delay_after(boot)), report.written) {
        (Some(delay), _) if delay > hold => format!(
            "{panic} (macOS wrote the report {} s after the restart, but models that ran start again {} s after the \
             agent)",
            delay.as_secs(),
            hold.as_secs()
        ),
        (Some(delay), _) => format!(
            "{panic} (macOS wrote the report {} s after the restart)",
            delay.as_secs()
        ),
        (None, Some(written)) => format!(
            "{panic} (macOS wrote the report {} s after the panic)",
            since(written, report.at).as_secs()
        ),
        (None, None) => panic,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::check::Status;

    const PANIC: &str = "2026-03-16T02:05:32Z";

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    fn report(cause: PanicCause, written: &str) -> PanicReport {
        PanicReport {
            at: at(PANIC),
            os_build: "25D2128".to_owned(),
            message: "the kernel's message".to_owned(),
            cause,
            written: Some(at(written)),
        }
    }

    #[track_caller]
    fn check(reports: Vec<PanicReport>, status: Status, finding: &str) {
        let reports = PanicReports {
            read: reports,
            unreadable: None,
        };
        let check = judge(&reports, Some(at("2026-03-16T02:06:05Z")));
        assert_eq!(
            (check.status, check.finding.contains(finding)),
            (status, true),
            "{check:?}"
        );
    }

    #[test]
    fn the_delay_of_a_report_after_the_restart_is_shown() {
        let soon = report(PanicCause::GpuDriver, "2026-03-16T02:06:50Z");
        check(
            vec![soon],
            Status::Warn,
            "the kernel's message (macOS wrote the report 45 s after the restart)",
        );
        let late = report(PanicCause::Watchdog, "2026-03-16T02:08:05Z");
        check(
            vec![late],
            Status::Warn,
            "120 s after the restart, but models that ran start again 60 s after the agent)",
        );
        // The machine was restarted again since.
        let earlier = report(PanicCause::Other, "2026-03-16T02:05:50Z");
        check(
            vec![earlier],
            Status::Ok,
            "on 25D2128: the kernel's message (macOS wrote the report 18 s after the panic)",
        );
        check(Vec::new(), Status::Ok, "none within 30 days");
    }

    #[test]
    fn unreadable_reports_name_the_remedy() {
        let reports = PanicReports {
            read: Vec::new(),
            unreadable: Some(io::ErrorKind::PermissionDenied.into()),
        };
        let check = judge(&reports, None);
        assert!(
            check.status == Status::Warn && check.remedy.unwrap().contains("administer"),
            "{:?}",
            check.finding
        );
    }
}

//! Checks the reports of kernel panics.

use std::time::Duration;

use jiff::Timestamp;

use super::check::Check;
use rooflet_host::{Host, PanicCause, PanicReport};

/// Maximum age of reported panics.
const RECENT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns `None` unless the system writes reports that rooflet reads.
pub(super) fn check(host: &Host, now: Timestamp) -> Option<Check> {
    host.reports_panics().then(|| judge(host, now))
}

fn judge(host: &Host, now: Timestamp) -> Check {
    let name = "kernel panics";
    let reports = host.panics(now - RECENT);
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

fn describe(report: &PanicReport) -> String {
    format!("{} on {}: {}", report.at, report.os_build, report.message)
}

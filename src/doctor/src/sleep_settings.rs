//! Checks of the energy settings of a Mac, as `pmset -g` prints them.

use std::collections::BTreeSet;

use super::check::Check;
use super::system_command;
use rooflet_api::v1alpha1::PowerSource;

/// Returns no checks on other machines.
pub(super) async fn checks(source: PowerSource) -> Vec<Check> {
    if !cfg!(target_os = "macos") {
        return Vec::new();
    }
    let answer = system_command::run("/usr/bin/pmset", &["-g"]).await;
    judge(answer.map(|answer| answer.text).as_deref(), source)
}

fn judge(settings: Option<&str>, source: PowerSource) -> Vec<Check> {
    let settings = settings.unwrap_or_default();
    let mut checks = vec![idle_sleep(settings, source)];
    checks.extend(power_failure(settings));
    checks
}

/// Returns the value of a setting: the number after its name.
fn value(settings: &str, name: &str) -> Option<u32> {
    let mut values = settings.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    });
    values.next()
}

/// Returns the programs that prevent sleep now: the names in brackets after the value of `sleep`. The
/// report contains no names of other programs.
fn prevented_by(settings: &str) -> Option<String> {
    let mut lines = settings.lines().map(str::trim);
    let line = lines.find(|line| line.split_whitespace().next() == Some("sleep"))?;
    let (_, names) = line.split_once("(sleep prevented by ")?;
    let names: BTreeSet<&str> = names.trim_end_matches(')').split(", ").collect();
    let others = names.iter().filter(|name| **name != "caffeinate").count();
    let own = names.contains("caffeinate").then(|| "`caffeinate`".to_owned());
    let others = match others {
        0 => None,
        1 => Some("1 other program".to_owned()),
        count => Some(format!("{count} other programs")),
    };
    let all: Vec<_> = own.into_iter().chain(others).collect();
    Some(format!("; now prevented by {}", all.join(" and ")))
}

fn idle_sleep(settings: &str, source: PowerSource) -> Check {
    let name = "sleep";
    let prevented = prevented_by(settings).unwrap_or_default();
    match (value(settings, "sleep"), source) {
        (None, _) => Check::unknown(name, "pmset did not report when the machine sleeps"),
        (Some(0), _) => Check::ok(name, format!("never{prevented}")),
        (Some(minutes), PowerSource::Battery) => Check::warn(
            name,
            format!("after {minutes} min without use: on battery, the node then leaves the fleet{prevented}"),
            "connect the power supply: a running agent or server then prevents sleep",
        ),
        (Some(minutes), PowerSource::Ac | PowerSource::Ups | PowerSource::Unknown) => Check::ok(
            name,
            format!(
                "after {minutes} min without use, and not while an agent or server runs on AC power{prevented}"
            ),
        ),
    }
}

/// Laptops do not have the setting.
fn power_failure(settings: &str) -> Option<Check> {
    let name = "power failure";
    Some(match value(settings, "autorestart")? {
        0 => Check::warn(
            name,
            "the machine stays off after a power failure",
            "run `sudo pmset -a autorestart 1`",
        ),
        _ => Check::ok(name, "the machine starts again after a power failure"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    /// A desktop (Gigabyte-Z490-Vision-G-Hackintosh-OpenCore issue 31, with the key of desktops).
    const DESKTOP: &str = "System-wide power settings:\nCurrently in use:\n standby              1\n Sleep On Power Button 1\n \
        autorestart          0\n womp                 1\n hibernatefile        /var/vm/sleepimage\n powernap             1\n \
        disksleep            10\n sleep                1 (sleep prevented by sharingd, coreaudiod)\n hibernatemode        3\n \
        ttyskeepawake        1\n displaysleep         20\n tcpkeepalive         1\n";

    #[track_caller]
    fn check(settings: Option<&str>, source: PowerSource, expect: &[(&str, Status, &str)]) {
        let checks = judge(settings, source);
        let found: Vec<_> = checks
            .iter()
            .map(|check| (check.name.as_str(), check.status))
            .collect();
        let expected: Vec<_> = expect.iter().map(|(name, status, _)| (*name, *status)).collect();
        assert_eq!(found, expected);
        for (check, (_, _, finding)) in checks.iter().zip(expect) {
            assert!(check.finding.contains(finding), "{check:?}");
        }
    }

    #[test]
    fn settings_are_read_by_their_whole_name() {
        // Neither `displaysleep` nor `disksleep` nor `Sleep On Power Button`.
        assert_eq!(value(DESKTOP, "sleep"), Some(1));
        assert_eq!(value(DESKTOP, "displaysleep"), Some(20));
        assert_eq!(value(DESKTOP, "hibernatefile"), None);
        assert_eq!(value(DESKTOP, "lidwake"), None);
    }

    /// Lines of public reports.
    #[test]
    fn programs_that_prevent_sleep_are_counted() {
        let prevented = |line: &str| prevented_by(line).unwrap_or_default();
        assert_eq!(
            prevented(
                " sleep                1 (sleep prevented by caffeinate, caffeinate, coreaudiod, powerd)"
            ),
            "; now prevented by `caffeinate` and 2 other programs"
        );
        assert_eq!(
            prevented(" sleep\t\t0 (sleep prevented by caffeinate)"),
            "; now prevented by `caffeinate`"
        );
        assert_eq!(
            prevented(" displaysleep  10 (display sleep prevented by Tally)\n sleep 1\n"),
            ""
        );
    }

    #[test]
    fn sleep_and_power_failures_are_judged() {
        check(
            Some(DESKTOP),
            PowerSource::Ac,
            &[
                ("sleep", Status::Ok, "; now prevented by 2 other programs"),
                ("power failure", Status::Warn, "stays off"),
            ],
        );
        let server = DESKTOP
            .replace("autorestart          0", "autorestart          1")
            .replace(" sleep                1", " sleep                0");
        check(
            Some(&server),
            PowerSource::Ac,
            &[
                ("sleep", Status::Ok, "never"),
                ("power failure", Status::Ok, "starts again"),
            ],
        );
        let laptop = DESKTOP.replace(" autorestart          0\n", "");
        check(
            Some(&laptop),
            PowerSource::Battery,
            &[("sleep", Status::Warn, "leaves the fleet")],
        );
        check(None, PowerSource::Ac, &[("sleep", Status::Unknown, "")]);
    }
}

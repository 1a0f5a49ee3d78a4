//! `rooflet selftest`: checks that the engine computes correctly on this device.

use std::time::Duration;

use serde::Serialize;

use super::ui::duration::positive_duration;
use super::ui::output::Output;
use super::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_host::Host;
use rooflet_mlx::device;
use rooflet_selftest::{self as selftest, Check, Group, Status};

/// Longest soak.
const MAX_SOAK: Duration = Duration::from_hours(7 * 24);

/// Arguments of `rooflet selftest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Groups of checks to run [default: kernels, models, probe, and soak with --soak].
    #[arg(long, value_name = "GROUP", value_enum, value_delimiter = ',')]
    only: Vec<Only>,
    /// Also decode with the tiny models for this time, such as `10m` (the default value), and watch
    /// results, memory and speed.
    #[arg(long, value_name = "DURATION", value_parser = soak_duration, num_args = 0..=1, default_missing_value = "10m")]
    soak: Option<Duration>,
}

/// Selectable group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Kernels of rooflet and products of MLX against references.
    Kernels,
    /// A tiny model of each family against stored logits.
    Models,
    /// Memory bandwidth, beside the data sheet.
    Probe,
    /// Repeated decoding, for the duration of --soak (default 10 minutes).
    Soak,
}

impl Only {
    fn group(self) -> Group {
        match self {
            Self::Kernels => Group::Kernels,
            Self::Models => Group::Models,
            Self::Probe => Group::Probe,
            Self::Soak => Group::Soak,
        }
    }
}

/// Soak duration of `--only soak`.
const DEFAULT_SOAK: Duration = Duration::from_mins(10);

fn soak_duration(text: &str) -> Result<Duration, String> {
    let duration = positive_duration(text)
        .ok()
        .filter(|duration| *duration <= MAX_SOAK);
    duration.ok_or_else(|| "must be a duration up to 168h, such as `30s`, `10m` or `2h`".to_owned())
}

/// Result of all checks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Version of rooflet.
    version: String,
    engine: rooflet_api::wire::EngineInfo,
    checks: Vec<Check>,
    ok: usize,
    failed: usize,
    skipped: usize,
}

pub(crate) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    let groups = groups(args)?;
    let engine = device::engine_info().map_err(|err| {
        anyhow::anyhow!(
            "starting the engine: {err}: rebuild rooflet, and keep mlx.metallib next to the binary"
        )
    })?;
    // Results appear one by one: if the device hangs, the last line names the check before.
    let is_table = args.output == Output::Table;
    if is_table {
        let version = env!("CARGO_PKG_VERSION");
        ui::output(&format!(
            "rooflet {version}, {} {} on {}\n\n",
            engine.name, engine.version, engine.device
        ));
    }
    let mut checks = Vec::new();
    let soak = args.soak.unwrap_or(DEFAULT_SOAK);
    selftest::run(&groups, soak, &Host::Native, &Clock::System, &mut |check| {
        if is_table {
            ui::output(&line(&check));
        }
        checks.push(check);
    });
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine,
        ok: count(Status::Ok),
        failed: count(Status::Fail),
        skipped: count(Status::Skipped),
        checks,
    };
    args.output.print(&report, || Ok(summary(&report)))?;
    Ok(match report.failed {
        0 => ExitStatus::Success,
        _ => ExitStatus::Failure,
    })
}

/// Returns the selected groups in the order in which they run.
fn groups(args: &Args) -> Result<Vec<Group>, Failure> {
    let usage = |problem: &str| Failure::new(ExitStatus::Usage, anyhow::anyhow!("{problem}"));
    let is_selected = |only: Only| match (&args.only[..], only) {
        ([], Only::Soak) => args.soak.is_some(),
        ([], Only::Kernels | Only::Models | Only::Probe) => true,
        (selected, only) => selected.contains(&only),
    };
    if args.soak.is_some() && !is_selected(Only::Soak) {
        return Err(usage(
            "--soak: --only leaves out the soak: add `soak` to --only, or omit --soak",
        ));
    }
    let all = [Only::Kernels, Only::Models, Only::Probe, Only::Soak];
    Ok(all
        .into_iter()
        .filter(|only| is_selected(*only))
        .map(Only::group)
        .collect())
}

/// Returns the line of one check.
fn line(check: &Check) -> String {
    let status = match check.status {
        Status::Ok => "ok",
        Status::Fail => "FAIL",
        Status::Skipped => "skipped",
    };
    let difference = match (check.difference, check.tolerance) {
        (Some(difference), Some(tolerance)) => format!("{difference:.1e} of {tolerance:.1e}"),
        _ => "-".to_owned(),
    };
    let (group, name, finding) = (group_name(check.group), &check.name, &check.finding);
    format!("{status:<8} {group:<8} {name:<38} {difference:<16} {finding}\n")
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Kernels => "kernels",
        Group::Models => "models",
        Group::Probe => "probe",
        Group::Soak => "soak",
    }
}

/// Returns the totals and what failures mean.
fn summary(report: &Report) -> String {
    let Report {
        ok, failed, skipped, ..
    } = report;
    let mut text = format!("\n{ok} ok, {failed} failed, {skipped} skipped\n");
    if *failed == 0 {
        return text;
    }
    text.push('\n');
    for group in [Group::Kernels, Group::Models, Group::Probe, Group::Soak] {
        let is_failed = |check: &&Check| check.group == group && check.status == Status::Fail;
        if report.checks.iter().any(|check| is_failed(&check)) {
            text.push_str(&format!("{}: {}\n", group_name(group), meaning(group)));
        }
    }
    text.push_str(
        "\nOpen an issue with this output and the file of `rooflet doctor --save FILE`. Do not serve models on this \
         machine until the cause is known, except for failures of the probe.\n",
    );
    text
}

/// Returns the meaning of a failure.
fn meaning(group: Group) -> &'static str {
    match group {
        Group::Kernels => {
            "a kernel computes wrong values on this device. A worker replaces rooflet's own kernels by MLX's \
             operations if they differ, but it cannot replace products"
        }
        Group::Models => {
            "models of the family generate wrong answers on this device, or cannot run. If only float16 or bfloat16 \
             fails, the cause is precision"
        }
        Group::Probe => "the measured bandwidth is wrong, so predictions and placement are wrong",
        Group::Soak => "results, memory or speed of this device do not stay constant under load",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &[&str]) -> Result<Args, String> {
        let line = [&["rooflet"], line].concat();
        Line::try_parse_from(line)
            .map(|line| line.args)
            .map_err(|err| err.to_string())
    }

    #[test]
    fn soak_runs_only_on_request() {
        let selected = |line: &[&str]| groups(&parse(line).unwrap()).unwrap();
        let default = [Group::Kernels, Group::Models, Group::Probe];
        assert_eq!(selected(&[]), default);
        assert_eq!(
            selected(&["--soak", "1m"]),
            [&default[..], &[Group::Soak]].concat()
        );
        assert_eq!(selected(&["--only", "soak,models"]), [Group::Models, Group::Soak]);
        assert_eq!(parse(&["--soak"]).unwrap().soak, Some(DEFAULT_SOAK));
        let failure = groups(&parse(&["--soak", "1m", "--only", "models"]).unwrap()).unwrap_err();
        assert_eq!(failure.status, ExitStatus::Usage);
        assert!(failure.error.to_string().contains("--only"), "{}", failure.error);
    }

    #[test]
    fn invalid_durations_are_rejected_with_the_valid_range() {
        for duration in ["0s", "10", "soon", "169h", "-1m"] {
            let message = parse(&[&format!("--soak={duration}")]).unwrap_err();
            assert!(
                message.contains("--soak") && message.contains("168h"),
                "{message}"
            );
        }
    }

    #[test]
    fn failures_name_their_meaning_and_the_next_step() {
        let check = |group, status| Check {
            group,
            name: "name".to_owned(),
            status,
            difference: Some(f32::NAN),
            tolerance: Some(0.5),
            finding: String::new(),
        };
        let report = |checks: Vec<Check>| Report {
            version: String::new(),
            engine: rooflet_api::wire::EngineInfo {
                name: "mlx".to_owned(),
                version: String::new(),
                device: "cpu".to_owned(),
            },
            ok: 0,
            failed: checks.iter().filter(|check| check.status == Status::Fail).count(),
            skipped: 0,
            checks,
        };
        let failed = summary(&report(vec![
            check(Group::Kernels, Status::Ok),
            check(Group::Models, Status::Fail),
        ]));
        assert!(
            failed.contains("models: ") && !failed.contains("kernels: "),
            "{failed}"
        );
        assert!(failed.contains("rooflet doctor --save"), "{failed}");
        assert!(line(&check(Group::Models, Status::Fail)).starts_with("FAIL     models   name"));
        assert!(!summary(&report(Vec::new())).contains("doctor"));
    }
}

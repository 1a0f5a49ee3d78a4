//! Checks of the errors that the engine's device reports.

use std::time::Duration;

use crate::check::Check;
use rooflet_api::engine_failure::EngineFailure;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::device_limits::{failed_allocation, run_long_command};

/// Duration of the long command. Prompt chunks take at most this time.
const LONG_COMMAND: Duration = Duration::from_secs(1);

/// Checks the errors of the device. Returns no checks on other devices than a Mac's GPU.
pub(super) fn checks(memory: Bytes, clock: &Clock) -> Vec<Check> {
    if Backend::current().ok() != Some(Backend::Metal) {
        return Vec::new();
    }
    let allocation = judge_allocation(failed_allocation().as_deref());
    let command = run_long_command(LONG_COMMAND, memory, clock).map_err(|err| err.to_string());
    vec![allocation, judge_command(&command)]
}

/// Judges the error of an allocation that cannot succeed. Workers report exhausted memory by it.
fn judge_allocation(error: Option<&str>) -> Check {
    let name = "exhausted memory";
    match error {
        Some(text) if EngineFailure::of(text) == EngineFailure::OutOfMemory => {
            Check::ok(name, format!("recognised by the engine's error: {text}"))
        }
        Some(text) => Check::warn(
            name,
            format!("rooflet does not recognise the engine's error: {text}"),
            "report it with `rooflet doctor --save FILE`: workers name another reason if memory is exhausted",
        ),
        None => Check::unknown(name, "an excessive allocation did not fail"),
    }
}

/// Judges a command that keeps the GPU busy while macOS needs it for the display.
fn judge_command(outcome: &Result<Duration, String>) -> Check {
    let name = "long GPU command";
    match outcome {
        Ok(time) => Check::ok(name, format!("{:.1} s without interruption", time.as_secs_f64())),
        Err(text) => match EngineFailure::of(text) {
            EngineFailure::Interrupted => Check::warn(
                name,
                format!(
                    "macOS stops commands of about {} s: {text}. Workers repeat stopped prompts in smaller parts, \
                     which is slower",
                    LONG_COMMAND.as_secs()
                ),
                "let the display sleep, or disconnect it",
            ),
            EngineFailure::OutOfMemory => Check::unknown(name, text.as_str()),
            EngineFailure::Excluded | EngineFailure::Other => Check::fail(
                name,
                text.as_str(),
                "restart the machine, and run `rooflet selftest`",
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    /// Texts of MLX 0.32.2, as the issue mlx#3267 quotes them.
    #[test]
    fn long_commands_are_judged_by_the_error_of_the_driver() {
        let failed = |code: &str| {
            Err(format!(
                "[METAL] Command buffer execution failed: {code} (0000000e:kIOGPUCommandBufferCallbackError{code})."
            ))
        };
        for (outcome, status, finding) in [
            (Ok(Duration::from_millis(1_130)), Status::Ok, "1.1 s without"),
            (
                failed("ImpactingInteractivity"),
                Status::Warn,
                "macOS stops commands of about 1 s",
            ),
            (failed("OutOfMemory"), Status::Unknown, "OutOfMemory"),
            (failed("PageFault"), Status::Fail, "PageFault"),
        ] {
            let check = judge_command(&outcome);
            assert_eq!(
                (check.status, check.finding.contains(finding)),
                (status, true),
                "{check:?}"
            );
        }
    }

    #[test]
    fn unknown_errors_of_allocations_are_reported() {
        let known = judge_allocation(Some("[malloc] Unable to allocate 17179869184 bytes."));
        assert_eq!(known.status, Status::Ok, "{known:?}");
        let unknown = judge_allocation(Some("no luck"));
        assert!(
            unknown.status == Status::Warn && unknown.finding.contains("no luck"),
            "{unknown:?}"
        );
        assert_eq!(judge_allocation(None).status, Status::Unknown);
    }
}

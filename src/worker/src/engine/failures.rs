//! Detection of a lost device. A failure usually concerns one request. But after a GPU fault, macOS
//! rejects all further work of the process, and only a new process can use the GPU.

use crate::batch::step_error::StepError;
use rooflet_api::engine_failure::EngineFailure;

/// Number of consecutive steps with failures and without any result after which the device counts
/// as lost. A single failing request causes up to three such steps, because OpenAI's clients retry
/// twice.
const MAX_FAILED_STEPS: u32 = 8;

/// Error for a device that no longer computes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's device no longer computes, restart the worker: {last}")]
pub struct DeviceLost {
    /// Text of the last failure.
    last: String,
}

/// Failures of the last steps.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Set if a row was computed in this step.
    computed: bool,
    failed: Option<String>,
    /// Number of consecutive failed steps.
    steps: u32,
}

impl Failures {
    /// Records the outcome of a row.
    pub(super) fn record(&mut self, outcome: Result<(), &StepError>) {
        match outcome {
            Ok(()) => self.computed = true,
            Err(err @ (StepError::Engine(_) | StepError::Read(_))) => self.failed = Some(err.to_string()),
            // Failures of the request itself.
            Err(StepError::Decode(_) | StepError::NotFinite | StepError::Constraint(_)) => {}
        }
    }

    /// Ends a step. Returns an error if the device is lost.
    pub(super) fn end_step(&mut self) -> Result<(), DeviceLost> {
        let failed = self.failed.take();
        if std::mem::take(&mut self.computed) {
            self.steps = 0;
        } else if failed.is_some() {
            self.steps += 1;
        }
        match failed {
            Some(err)
                if self.steps >= MAX_FAILED_STEPS || EngineFailure::of(&err) == EngineFailure::Excluded =>
            {
                Err(DeviceLost { last: err })
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineError;
    use rooflet_mlx::mlx_rs::error::{ConversionError, Exception};
    use rooflet_text::grammar::constraint::ConstraintError;

    fn unreadable(text: &str) -> StepError {
        StepError::from(ConversionError::from(Exception::custom(text)))
    }

    /// Number of steps until the device counts as lost. Each character is a step: `.` succeeds, `x`
    /// fails, `~` succeeds for one row and fails for another, `c` fails because of its request.
    fn steps_until_lost(steps: &str) -> usize {
        let mut failures = Failures::default();
        let end = steps.chars().position(|step| {
            if matches!(step, 'x' | '~') {
                failures.record(Err(&unreadable("timeout")));
            }
            if step == 'c' {
                failures.record(Err(&StepError::Constraint(ConstraintError::NoToken)));
            }
            if matches!(step, '.' | '~') {
                failures.record(Ok(()));
            }
            failures.end_step().is_err()
        });
        end.unwrap_or(steps.len())
    }

    #[test]
    fn detects_device_without_results() {
        let most = MAX_FAILED_STEPS as usize;
        assert_eq!(steps_until_lost(&"x".repeat(20)), most - 1);
        assert_eq!(steps_until_lost(&"~".repeat(20)), 20);
        assert_eq!(steps_until_lost(&"c".repeat(20)), 20);
        let seldom = "xxxxxxx.".repeat(5);
        assert_eq!(steps_until_lost(&seldom), seldom.len());
        // Failures of requests neither count nor reset the number of failed steps.
        assert_eq!(steps_until_lost("xxxxcxxxx."), 8);
    }

    #[test]
    fn detects_ignored_submissions_immediately() {
        // Error text of MLX 0.32.2 (omlx#3706).
        let text = "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) \
                    (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).";
        let mut failures = Failures::default();
        let failure = unreadable(text);
        failures.record(Err(&failure));
        let last = failure.to_string();
        assert!(last.starts_with("reading a token from the device failed: ") && last.contains(text));
        assert_eq!(failures.end_step(), Err(DeviceLost { last }));
    }

    #[test]
    fn device_without_memory_is_lost_for_that_reason() {
        let mut failures = Failures::default();
        let lost = (0..MAX_FAILED_STEPS).find_map(|_| {
            failures.record(Err(&unreadable("[malloc] Unable to allocate 17179869184 bytes.")));
            failures.end_step().err()
        });
        assert!(EngineError::from(lost.unwrap()).is_out_of_memory());
        assert!(
            !EngineError::from(DeviceLost {
                last: "timeout".to_owned()
            })
            .is_out_of_memory()
        );
    }
}

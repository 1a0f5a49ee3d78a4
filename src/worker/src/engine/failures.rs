//! When the device is to be given up. What one request runs into is that request's; but a GPU that
//! its driver has put aside fails all of them from then on, and takes work of another process only.

use crate::batch::step_error::StepError;

/// In the text of each error of a process that macOS has put aside:
/// `kIOGPUCommandBufferCallbackErrorSubmissionsIgnored`.
const PUT_ASIDE: &str = "SubmissionsIgnored";

/// So many steps in a row in which something failed and nothing was computed. A request that fails
/// by itself comes three times from OpenAI's clients, which try it twice more.
const MOST_STEPS: u32 = 8;

/// The device computes nothing any more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine's device computes nothing any more, which only another process mends: {last}")]
pub struct DeviceLost {
    /// Text of the last failure.
    last: String,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// In this step.
    computed: bool,
    failed: Option<String>,
    /// In a row.
    steps: u32,
}

impl Failures {
    /// What came of a row of a pass that was waited for.
    pub(super) fn saw(&mut self, outcome: Result<(), &StepError>) {
        match outcome {
            Ok(()) => self.computed = true,
            Err(err @ (StepError::Engine(_) | StepError::Read(_))) => self.failed = Some(err.to_string()),
            // The request's own.
            Err(StepError::Decode(_) | StepError::Constraint(_)) => {}
        }
    }

    /// Returns an error if the device is to be given up.
    pub(super) fn end_step(&mut self) -> Result<(), DeviceLost> {
        let failed = self.failed.take();
        if std::mem::take(&mut self.computed) {
            self.steps = 0;
        } else if failed.is_some() {
            self.steps += 1;
        }
        match failed {
            Some(err) if self.steps >= MOST_STEPS || err.contains(PUT_ASIDE) => Err(DeviceLost { last: err }),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_mlx::mlx_rs::error::{ConversionError, Exception};
    use rooflet_text::grammar::constraint::ConstraintError;

    fn unreadable(text: &str) -> StepError {
        StepError::from(ConversionError::from(Exception::custom(text)))
    }

    /// How many steps the device lives: `.` is one that computes, `x` one that fails, `~` one where
    /// a row fails beside others, `c` one whose request fails by itself.
    fn lives(steps: &str) -> usize {
        let mut failures = Failures::default();
        let end = steps.chars().position(|step| {
            if matches!(step, 'x' | '~') {
                failures.saw(Err(&unreadable("timeout")));
            }
            if step == 'c' {
                failures.saw(Err(&StepError::Constraint(ConstraintError::NoToken)));
            }
            if matches!(step, '.' | '~') {
                failures.saw(Ok(()));
            }
            failures.end_step().is_err()
        });
        end.unwrap_or(steps.len())
    }

    #[test]
    fn only_a_device_that_computes_nothing_is_given_up() {
        let most = MOST_STEPS as usize;
        assert_eq!(lives(&"x".repeat(20)), most - 1);
        assert_eq!(lives(&"~".repeat(20)), 20);
        assert_eq!(lives(&"c".repeat(20)), 20);
        let seldom = "xxxxxxx.".repeat(5);
        assert_eq!(lives(&seldom), seldom.len());
        // Steps of others' own failures neither count nor end the row.
        assert_eq!(lives("xxxxcxxxx."), 8);
    }

    #[test]
    fn one_that_its_driver_has_put_aside_is_given_up_at_once() {
        // As MLX 0.32.2 tells it (omlx#3706).
        let text = "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) \
                    (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).";
        let mut failures = Failures::default();
        let failure = unreadable(text);
        failures.saw(Err(&failure));
        let last = failure.to_string();
        assert!(last.starts_with("the engine's token cannot be read: ") && last.contains(text));
        assert_eq!(failures.end_step(), Err(DeviceLost { last }));
    }
}

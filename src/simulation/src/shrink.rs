//! Reduction of a failing run to the faults that the violation requires.

use crate::options::RunOptions;
use crate::outcome::Outcome;
use crate::run::simulate;
use crate::scenario::Scenario;
use crate::scenario::ScenarioError;
use crate::scenario::fault::FaultSpec;

/// Removes faults while the run still violates the same invariant: first large groups, then single
/// faults. Each remaining fault is required for the violation.
pub fn shrink(scenario: &Scenario, options: &RunOptions, failed: Outcome) -> Result<Outcome, ScenarioError> {
    let mut smallest = failed;
    let rule = smallest.violation.as_ref().map(|violation| violation.rule);
    let mut part = smallest.faults.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let mut shrunk = false;
        while at < smallest.faults.len() {
            let mut fewer: Vec<FaultSpec> = smallest.faults.clone();
            fewer.drain(at..(at + part).min(fewer.len()));
            let outcome = simulate(
                scenario,
                &RunOptions {
                    faults: Some(fewer),
                    ..options.clone()
                },
            )?;
            if outcome.violation.as_ref().map(|violation| violation.rule) == rule {
                smallest = outcome;
                shrunk = true;
            } else {
                at += part;
            }
        }
        part = match part {
            1 if shrunk => 1,
            part => part / 2,
        };
    }
    Ok(smallest)
}

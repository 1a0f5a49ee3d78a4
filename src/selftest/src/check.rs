//! Result of one check of the self test.

use serde::Serialize;

/// Group of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Kernels,
    Models,
    Probe,
    Soak,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Fail,
    /// The device does not use the checked kernels.
    Skipped,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub group: Group,
    pub name: String,
    pub status: Status,
    /// Largest difference from the reference. `NaN` (`null` in JSON) if the device computed a value
    /// that is not a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<f32>,
    /// Largest difference that rounding explains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f32>,
    /// Compared or measured values, or the error.
    pub finding: String,
}

impl Check {
    /// Creates the result of a comparison of a difference with its tolerance.
    pub(super) fn of_difference(
        group: Group,
        name: impl Into<String>,
        difference: f32,
        tolerance: f32,
        finding: impl Into<String>,
    ) -> Self {
        Self {
            // False for NaN.
            status: match difference <= tolerance {
                true => Status::Ok,
                false => Status::Fail,
            },
            difference: Some(difference),
            tolerance: Some(tolerance),
            ..Self::new(group, name, Status::Ok, finding)
        }
    }

    pub(super) fn new(
        group: Group,
        name: impl Into<String>,
        status: Status,
        finding: impl Into<String>,
    ) -> Self {
        Self {
            group,
            name: name.into(),
            status,
            difference: None,
            tolerance: None,
            finding: finding.into(),
        }
    }

    pub(super) fn failed(group: Group, name: impl Into<String>, error: impl ToString) -> Self {
        Self::new(group, name, Status::Fail, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_numbers_fail() {
        let status = |difference| Check::of_difference(Group::Models, "model", difference, 0.5, "").status;
        assert_eq!(
            [status(0.5), status(0.6), status(f32::NAN)],
            [Status::Ok, Status::Fail, Status::Fail]
        );
    }
}

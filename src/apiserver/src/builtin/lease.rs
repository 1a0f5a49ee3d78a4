//! Lease: node heartbeats and leader election.

use serde_json::Value;

use rooflet_schema::FieldError;

pub(super) fn validate(lease: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &lease["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"]
        .as_i64()
        .filter(|seconds| *seconds <= 0)
    {
        let value = Value::from(seconds);
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            &value,
            "must be greater than 0",
        ));
    }
    if let Some(count) = spec["leaseTransitions"].as_i64().filter(|count| *count < 0) {
        let value = Value::from(count);
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            &value,
            "must be greater than or equal to 0",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rejects_non_positive_duration_and_negative_transitions() {
        let lease = json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}});
        let got: Vec<String> = validate(&lease).iter().map(FieldError::summary).collect();
        assert_eq!(
            got,
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"
            ]
        );
        assert!(validate(&json!({"spec": {"leaseDurationSeconds": 15, "leaseTransitions": 0}})).is_empty());
    }
}

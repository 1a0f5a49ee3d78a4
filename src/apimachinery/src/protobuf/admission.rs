//! Fields of the messages of admission policies.

use super::messages::{Field, LABEL_SELECTOR, OBJECT_META, Shape, list, one};

pub(super) const VALIDATING_POLICY: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "paramKind", Shape::Message(PARAM_KIND)),
            one(2, "matchConstraints", Shape::Message(MATCH_RESOURCES)),
            list(
                3,
                "validations",
                Shape::Message(&[
                    one(1, "expression", Shape::Text),
                    one(2, "message", Shape::Text),
                    one(3, "reason", Shape::Text),
                    one(4, "messageExpression", Shape::Text),
                ]),
            ),
            one(4, "failurePolicy", Shape::Text),
            list(
                5,
                "auditAnnotations",
                Shape::Message(&[one(1, "key", Shape::Text), one(2, "valueExpression", Shape::Text)]),
            ),
            list(6, "matchConditions", Shape::Message(NAMED_EXPRESSION)),
            list(7, "variables", Shape::Message(NAMED_EXPRESSION)),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            one(1, "observedGeneration", Shape::Count),
            one(
                2,
                "typeChecking",
                Shape::Message(&[list(
                    1,
                    "expressionWarnings",
                    Shape::Message(&[one(2, "fieldRef", Shape::Text), one(3, "warning", Shape::Text)]),
                )]),
            ),
            list(
                3,
                "conditions",
                Shape::Message(&[
                    one(1, "type", Shape::Text),
                    one(2, "status", Shape::Text),
                    one(3, "observedGeneration", Shape::Count),
                    one(4, "lastTransitionTime", Shape::Time),
                    one(5, "reason", Shape::Text),
                    one(6, "message", Shape::Text),
                ]),
            ),
        ]),
    ),
];

pub(super) const VALIDATING_BINDING: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "policyName", Shape::Text),
            one(2, "paramRef", Shape::Message(PARAM_REF)),
            one(3, "matchResources", Shape::Message(MATCH_RESOURCES)),
            list(4, "validationActions", Shape::Text),
        ]),
    ),
];

pub(super) const MUTATING_POLICY: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "paramKind", Shape::Message(PARAM_KIND)),
            one(2, "matchConstraints", Shape::Message(MATCH_RESOURCES)),
            list(3, "variables", Shape::Message(NAMED_EXPRESSION)),
            list(
                4,
                "mutations",
                Shape::Message(&[
                    one(2, "patchType", Shape::Text),
                    one(3, "applyConfiguration", Shape::Message(EXPRESSION)),
                    one(4, "jsonPatch", Shape::Message(EXPRESSION)),
                ]),
            ),
            one(5, "failurePolicy", Shape::Text),
            list(6, "matchConditions", Shape::Message(NAMED_EXPRESSION)),
            one(7, "reinvocationPolicy", Shape::Text),
        ]),
    ),
];

pub(super) const MUTATING_BINDING: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "policyName", Shape::Text),
            one(2, "paramRef", Shape::Message(PARAM_REF)),
            one(3, "matchResources", Shape::Message(MATCH_RESOURCES)),
        ]),
    ),
];

const EXPRESSION: &[Field] = &[one(1, "expression", Shape::Text)];

const PARAM_KIND: &[Field] = &[one(1, "apiVersion", Shape::Text), one(2, "kind", Shape::Text)];

const PARAM_REF: &[Field] = &[
    one(1, "name", Shape::Text),
    one(2, "namespace", Shape::Text),
    one(3, "selector", Shape::Message(LABEL_SELECTOR)),
    one(4, "parameterNotFoundAction", Shape::Text),
];

const NAMED_EXPRESSION: &[Field] = &[one(1, "name", Shape::Text), one(2, "expression", Shape::Text)];

const MATCH_RESOURCES: &[Field] = &[
    one(1, "namespaceSelector", Shape::Message(LABEL_SELECTOR)),
    one(2, "objectSelector", Shape::Message(LABEL_SELECTOR)),
    list(3, "resourceRules", Shape::Message(NAMED_RULE)),
    list(4, "excludeResourceRules", Shape::Message(NAMED_RULE)),
    one(7, "matchPolicy", Shape::Text),
];

const NAMED_RULE: &[Field] = &[
    list(1, "resourceNames", Shape::Text),
    one(2, "ruleWithOperations", Shape::Inline(RULE_WITH_OPERATIONS)),
];

const RULE_WITH_OPERATIONS: &[Field] = &[
    list(1, "operations", Shape::Text),
    one(
        2,
        "rule",
        Shape::Inline(&[
            list(1, "apiGroups", Shape::Text),
            list(2, "apiVersions", Shape::Text),
            list(3, "resources", Shape::Text),
            one(4, "scope", Shape::Text),
        ]),
    ),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    /// The rule of a policy is nested in protobuf, but not in JSON.
    #[test]
    fn rules_survive_a_round_trip() {
        let rule = json!({"resourceNames": ["a"], "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"], "scope": "*"});
        let constraints = json!({"resourceRules": [rule], "matchPolicy": "Exact"});
        let variables = json!([{"name": "x", "expression": "1"}]);
        let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}});
        for (kind, spec) in [
            (
                "ValidatingAdmissionPolicy",
                json!({"matchConstraints": constraints, "variables": variables}),
            ),
            (
                "MutatingAdmissionPolicy",
                json!({"matchConstraints": constraints, "variables": variables, "mutations": [patch],
                    "reinvocationPolicy": "IfNeeded"}),
            ),
            (
                "MutatingAdmissionPolicyBinding",
                json!({"policyName": "p", "paramRef": {"name": "a"}, "matchResources": constraints}),
            ),
        ] {
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": "p"}, "spec": spec});
            let body = crate::protobuf::from_json(&object).expect("encoded");
            let read: Value =
                serde_json::from_slice(&crate::protobuf::to_json(&body).expect("decoded")).expect("JSON");
            assert_eq!(read, object);
        }
    }
}

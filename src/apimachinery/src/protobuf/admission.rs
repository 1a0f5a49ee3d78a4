//! Fields of the messages of admission policies.

use super::messages::{Field, LABEL_SELECTOR, OBJECT_META, Shape, list, one};

pub(super) const POLICY: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(
                1,
                "paramKind",
                Shape::Message(&[one(1, "apiVersion", Shape::Text), one(2, "kind", Shape::Text)]),
            ),
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

pub(super) const BINDING: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "policyName", Shape::Text),
            one(
                2,
                "paramRef",
                Shape::Message(&[
                    one(1, "name", Shape::Text),
                    one(2, "namespace", Shape::Text),
                    one(3, "selector", Shape::Message(LABEL_SELECTOR)),
                    one(4, "parameterNotFoundAction", Shape::Text),
                ]),
            ),
            one(3, "matchResources", Shape::Message(MATCH_RESOURCES)),
            list(4, "validationActions", Shape::Text),
        ]),
    ),
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
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule], "matchPolicy": "Exact"},
            "variables": [{"name": "x", "expression": "1"}]}});
        let body = crate::protobuf::from_json(&policy).expect("encoded");
        let read: Value =
            serde_json::from_slice(&crate::protobuf::to_json(&body).expect("decoded")).expect("JSON");
        assert_eq!(read, policy);
    }
}

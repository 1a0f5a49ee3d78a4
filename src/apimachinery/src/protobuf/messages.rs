//! Fields of the Kubernetes messages that the server reads and writes. The numbers are those of the upstream
//! `generated.proto` files.

/// Conversion of a field to JSON.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Text,
    /// Bytes; base64 in JSON.
    Bytes,
    /// Number that may be zero.
    Integer,
    /// Number that Go encodes as zero if it is unset.
    Count,
    Bool,
    /// Truth value that Go encodes as false if it is unset.
    Flag,
    Double,
    /// Time in seconds.
    Time,
    /// Time in microseconds.
    MicroTime,
    Message(&'static [Field]),
    /// Message whose members are members of the object in JSON.
    Inline(&'static [Field]),
    /// Map from text to this shape.
    Map(&'static Shape),
    /// Message that only contains a list of texts; a list in JSON.
    Texts,
    /// Message that only contains JSON as text.
    Json,
    /// Schema of a definition, which may contain schemas.
    Schema,
    /// Message with a schema, or a list of schemas.
    SchemaOrArray,
    /// Message with a truth value, or a schema.
    SchemaOrBool,
    /// Message with a schema, or a list of texts.
    SchemaOrTexts,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) is_list: bool,
}

pub(super) const fn one(number: u64, name: &'static str, shape: Shape) -> Field {
    Field {
        number,
        name,
        shape,
        is_list: false,
    }
}

pub(super) const fn list(number: u64, name: &'static str, shape: Shape) -> Field {
    Field {
        is_list: true,
        ..one(number, name, shape)
    }
}

pub(super) const OBJECT_META: &[Field] = &[
    one(1, "name", Shape::Text),
    one(2, "generateName", Shape::Text),
    one(3, "namespace", Shape::Text),
    one(5, "uid", Shape::Text),
    one(6, "resourceVersion", Shape::Text),
    one(7, "generation", Shape::Count),
    one(8, "creationTimestamp", Shape::Time),
    one(9, "deletionTimestamp", Shape::Time),
    one(10, "deletionGracePeriodSeconds", Shape::Integer),
    one(11, "labels", Shape::Map(&Shape::Text)),
    one(12, "annotations", Shape::Map(&Shape::Text)),
    list(13, "ownerReferences", Shape::Message(OWNER_REFERENCE)),
    list(14, "finalizers", Shape::Text),
    list(17, "managedFields", Shape::Message(MANAGED_FIELDS_ENTRY)),
];

const MANAGED_FIELDS_ENTRY: &[Field] = &[
    one(1, "manager", Shape::Text),
    one(2, "operation", Shape::Text),
    one(3, "apiVersion", Shape::Text),
    one(4, "time", Shape::Time),
    one(6, "fieldsType", Shape::Text),
    one(7, "fieldsV1", Shape::Json),
    one(8, "subresource", Shape::Text),
];

pub(super) const SCALE: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "spec", Shape::Message(&[one(1, "replicas", Shape::Count)])),
    one(
        3,
        "status",
        Shape::Message(&[
            one(1, "replicas", Shape::Integer),
            one(2, "selector", Shape::Text),
        ]),
    ),
];

/// Metadata of lists.
pub(super) const LIST_META: &[Field] = &[
    one(2, "resourceVersion", Shape::Text),
    one(3, "continue", Shape::Text),
    one(4, "remainingItemCount", Shape::Integer),
];

pub(super) const PARTIAL_OBJECT_METADATA: &[Field] = &[one(1, "metadata", Shape::Message(OBJECT_META))];

pub(super) const STATUS: &[Field] = &[
    one(1, "metadata", Shape::Message(LIST_META)),
    one(2, "status", Shape::Text),
    one(3, "message", Shape::Text),
    one(4, "reason", Shape::Text),
    one(
        5,
        "details",
        Shape::Message(&[
            one(1, "name", Shape::Text),
            one(2, "group", Shape::Text),
            one(3, "kind", Shape::Text),
            list(
                4,
                "causes",
                Shape::Message(&[
                    one(1, "reason", Shape::Text),
                    one(2, "message", Shape::Text),
                    one(3, "field", Shape::Text),
                ]),
            ),
            one(5, "retryAfterSeconds", Shape::Count),
            one(6, "uid", Shape::Text),
        ]),
    ),
    one(6, "code", Shape::Count),
];

const OWNER_REFERENCE: &[Field] = &[
    one(1, "kind", Shape::Text),
    one(3, "name", Shape::Text),
    one(4, "uid", Shape::Text),
    one(5, "apiVersion", Shape::Text),
    one(6, "controller", Shape::Bool),
    one(7, "blockOwnerDeletion", Shape::Bool),
];

pub(super) const NAMESPACE: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "spec", Shape::Message(&[list(1, "finalizers", Shape::Text)])),
    one(
        3,
        "status",
        Shape::Message(&[
            one(1, "phase", Shape::Text),
            list(
                2,
                "conditions",
                Shape::Message(&[
                    one(1, "type", Shape::Text),
                    one(2, "status", Shape::Text),
                    one(4, "lastTransitionTime", Shape::Time),
                    one(5, "reason", Shape::Text),
                    one(6, "message", Shape::Text),
                ]),
            ),
        ]),
    ),
];

pub(super) const CONFIG_MAP: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "data", Shape::Map(&Shape::Text)),
    one(3, "binaryData", Shape::Map(&Shape::Bytes)),
    one(4, "immutable", Shape::Bool),
];

pub(super) const SECRET: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "data", Shape::Map(&Shape::Bytes)),
    one(3, "type", Shape::Text),
    one(4, "stringData", Shape::Map(&Shape::Text)),
    one(5, "immutable", Shape::Bool),
];

const OBJECT_REFERENCE: &[Field] = &[
    one(1, "kind", Shape::Text),
    one(2, "namespace", Shape::Text),
    one(3, "name", Shape::Text),
    one(4, "uid", Shape::Text),
    one(5, "apiVersion", Shape::Text),
    one(6, "resourceVersion", Shape::Text),
    one(7, "fieldPath", Shape::Text),
];

pub(super) const SERVICE_ACCOUNT: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    list(2, "secrets", Shape::Message(OBJECT_REFERENCE)),
    list(
        3,
        "imagePullSecrets",
        Shape::Message(&[one(1, "name", Shape::Text)]),
    ),
    one(4, "automountServiceAccountToken", Shape::Bool),
];

pub(super) const TOKEN_REQUEST: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            list(1, "audiences", Shape::Text),
            one(
                3,
                "boundObjectRef",
                Shape::Message(&[
                    one(1, "kind", Shape::Text),
                    one(2, "apiVersion", Shape::Text),
                    one(3, "name", Shape::Text),
                    one(4, "uid", Shape::Text),
                ]),
            ),
            one(4, "expirationSeconds", Shape::Integer),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            one(1, "token", Shape::Text),
            one(2, "expirationTimestamp", Shape::Time),
        ]),
    ),
];

const EVENT_SOURCE: &[Field] = &[one(1, "component", Shape::Text), one(2, "host", Shape::Text)];

const EVENT_SERIES: &[Field] = &[
    one(1, "count", Shape::Count),
    one(2, "lastObservedTime", Shape::MicroTime),
];

pub(super) const CORE_EVENT: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "involvedObject", Shape::Message(OBJECT_REFERENCE)),
    one(3, "reason", Shape::Text),
    one(4, "message", Shape::Text),
    one(5, "source", Shape::Message(EVENT_SOURCE)),
    one(6, "firstTimestamp", Shape::Time),
    one(7, "lastTimestamp", Shape::Time),
    one(8, "count", Shape::Count),
    one(9, "type", Shape::Text),
    one(10, "eventTime", Shape::MicroTime),
    one(11, "series", Shape::Message(EVENT_SERIES)),
    one(12, "action", Shape::Text),
    one(13, "related", Shape::Message(OBJECT_REFERENCE)),
    one(14, "reportingComponent", Shape::Text),
    one(15, "reportingInstance", Shape::Text),
];

pub(super) const EVENT: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "eventTime", Shape::MicroTime),
    one(3, "series", Shape::Message(EVENT_SERIES)),
    one(4, "reportingController", Shape::Text),
    one(5, "reportingInstance", Shape::Text),
    one(6, "action", Shape::Text),
    one(7, "reason", Shape::Text),
    one(8, "regarding", Shape::Message(OBJECT_REFERENCE)),
    one(9, "related", Shape::Message(OBJECT_REFERENCE)),
    one(10, "note", Shape::Text),
    one(11, "type", Shape::Text),
    one(12, "deprecatedSource", Shape::Message(EVENT_SOURCE)),
    one(13, "deprecatedFirstTimestamp", Shape::Time),
    one(14, "deprecatedLastTimestamp", Shape::Time),
    one(15, "deprecatedCount", Shape::Count),
];

pub(super) const LEASE: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "holderIdentity", Shape::Text),
            one(2, "leaseDurationSeconds", Shape::Integer),
            one(3, "acquireTime", Shape::MicroTime),
            one(4, "renewTime", Shape::MicroTime),
            one(5, "leaseTransitions", Shape::Integer),
            one(6, "strategy", Shape::Text),
            one(7, "preferredHolder", Shape::Text),
        ]),
    ),
];

pub(super) const CERTIFICATE_SIGNING_REQUEST: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "request", Shape::Bytes),
            one(2, "username", Shape::Text),
            one(3, "uid", Shape::Text),
            list(4, "groups", Shape::Text),
            list(5, "usages", Shape::Text),
            one(6, "extra", Shape::Map(&Shape::Texts)),
            one(7, "signerName", Shape::Text),
            one(8, "expirationSeconds", Shape::Integer),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            list(
                1,
                "conditions",
                Shape::Message(&[
                    one(1, "type", Shape::Text),
                    one(2, "reason", Shape::Text),
                    one(3, "message", Shape::Text),
                    one(4, "lastUpdateTime", Shape::Time),
                    one(5, "lastTransitionTime", Shape::Time),
                    one(6, "status", Shape::Text),
                ]),
            ),
            one(2, "certificate", Shape::Bytes),
        ]),
    ),
];

const POLICY_RULE: &[Field] = &[
    list(1, "verbs", Shape::Text),
    list(2, "apiGroups", Shape::Text),
    list(3, "resources", Shape::Text),
    list(4, "resourceNames", Shape::Text),
    list(5, "nonResourceURLs", Shape::Text),
];

pub(super) const ROLE: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    list(2, "rules", Shape::Message(POLICY_RULE)),
];

const REQUIREMENT: &[Field] = &[
    one(1, "key", Shape::Text),
    one(2, "operator", Shape::Text),
    list(3, "values", Shape::Text),
];

pub(super) const LABEL_SELECTOR: &[Field] = &[
    one(1, "matchLabels", Shape::Map(&Shape::Text)),
    list(2, "matchExpressions", Shape::Message(REQUIREMENT)),
];

pub(super) const CLUSTER_ROLE: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    list(2, "rules", Shape::Message(POLICY_RULE)),
    one(
        3,
        "aggregationRule",
        Shape::Message(&[list(1, "clusterRoleSelectors", Shape::Message(LABEL_SELECTOR))]),
    ),
];

pub(super) const ROLE_BINDING: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    list(
        2,
        "subjects",
        Shape::Message(&[
            one(1, "kind", Shape::Text),
            one(2, "apiGroup", Shape::Text),
            one(3, "name", Shape::Text),
            one(4, "namespace", Shape::Text),
        ]),
    ),
    one(
        3,
        "roleRef",
        Shape::Message(&[
            one(1, "apiGroup", Shape::Text),
            one(2, "kind", Shape::Text),
            one(3, "name", Shape::Text),
        ]),
    ),
];

const USER_INFO: &[Field] = &[
    one(1, "username", Shape::Text),
    one(2, "uid", Shape::Text),
    list(3, "groups", Shape::Text),
    one(4, "extra", Shape::Map(&Shape::Texts)),
];

pub(super) const SELF_SUBJECT_REVIEW: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "status",
        Shape::Message(&[one(1, "userInfo", Shape::Message(USER_INFO))]),
    ),
];

pub(super) const TOKEN_REVIEW: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[one(1, "token", Shape::Text), list(2, "audiences", Shape::Text)]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            one(1, "authenticated", Shape::Flag),
            one(2, "user", Shape::Message(USER_INFO)),
            one(3, "error", Shape::Text),
            list(4, "audiences", Shape::Text),
        ]),
    ),
];

const SELECTOR: &[Field] = &[
    one(1, "rawSelector", Shape::Text),
    list(2, "requirements", Shape::Message(REQUIREMENT)),
];

const RESOURCE_ATTRIBUTES: &[Field] = &[
    one(1, "namespace", Shape::Text),
    one(2, "verb", Shape::Text),
    one(3, "group", Shape::Text),
    one(4, "version", Shape::Text),
    one(5, "resource", Shape::Text),
    one(6, "subresource", Shape::Text),
    one(7, "name", Shape::Text),
    one(8, "fieldSelector", Shape::Message(SELECTOR)),
    one(9, "labelSelector", Shape::Message(SELECTOR)),
];

const NON_RESOURCE_ATTRIBUTES: &[Field] = &[one(1, "path", Shape::Text), one(2, "verb", Shape::Text)];

const ACCESS_STATUS: &[Field] = &[
    one(1, "allowed", Shape::Bool),
    one(2, "reason", Shape::Text),
    one(3, "evaluationError", Shape::Text),
    one(4, "denied", Shape::Flag),
];

pub(super) const SELF_SUBJECT_ACCESS_REVIEW: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "resourceAttributes", Shape::Message(RESOURCE_ATTRIBUTES)),
            one(
                2,
                "nonResourceAttributes",
                Shape::Message(NON_RESOURCE_ATTRIBUTES),
            ),
        ]),
    ),
    one(3, "status", Shape::Message(ACCESS_STATUS)),
];

pub(super) const SELF_SUBJECT_RULES_REVIEW: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(2, "spec", Shape::Message(&[one(1, "namespace", Shape::Text)])),
    one(
        3,
        "status",
        Shape::Message(&[
            list(
                1,
                "resourceRules",
                Shape::Message(&[
                    list(1, "verbs", Shape::Text),
                    list(2, "apiGroups", Shape::Text),
                    list(3, "resources", Shape::Text),
                    list(4, "resourceNames", Shape::Text),
                ]),
            ),
            list(
                2,
                "nonResourceRules",
                Shape::Message(&[
                    list(1, "verbs", Shape::Text),
                    list(2, "nonResourceURLs", Shape::Text),
                ]),
            ),
            one(3, "incomplete", Shape::Bool),
            one(4, "evaluationError", Shape::Text),
        ]),
    ),
];

pub(super) const SUBJECT_ACCESS_REVIEW: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "resourceAttributes", Shape::Message(RESOURCE_ATTRIBUTES)),
            one(
                2,
                "nonResourceAttributes",
                Shape::Message(NON_RESOURCE_ATTRIBUTES),
            ),
            one(3, "user", Shape::Text),
            list(4, "groups", Shape::Text),
            one(5, "extra", Shape::Map(&Shape::Texts)),
            one(6, "uid", Shape::Text),
        ]),
    ),
    one(3, "status", Shape::Message(ACCESS_STATUS)),
];

pub(super) const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Shape::Integer),
    one(
        2,
        "preconditions",
        Shape::Message(&[one(1, "uid", Shape::Text), one(2, "resourceVersion", Shape::Text)]),
    ),
    one(3, "orphanDependents", Shape::Bool),
    one(4, "propagationPolicy", Shape::Text),
    list(5, "dryRun", Shape::Text),
];

const TYPE_META: &[Field] = &[one(1, "apiVersion", Shape::Text), one(2, "kind", Shape::Text)];

/// Envelope of every object.
pub(super) const UNKNOWN: &[Field] = &[
    one(1, "typeMeta", Shape::Message(TYPE_META)),
    one(2, "raw", Shape::Bytes),
    one(3, "contentEncoding", Shape::Text),
];

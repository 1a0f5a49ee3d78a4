//! Fields of the messages of CustomResourceDefinitions.

use super::messages::{Field, OBJECT_META, Shape, list, one};

pub(super) const CUSTOM_RESOURCE_DEFINITION: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "group", Shape::Text),
            one(3, "names", Shape::Message(NAMES)),
            one(4, "scope", Shape::Text),
            list(7, "versions", Shape::Message(VERSION)),
            one(9, "conversion", Shape::Message(CONVERSION)),
            one(10, "preserveUnknownFields", Shape::Flag),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            list(1, "conditions", Shape::Message(CONDITION)),
            one(2, "acceptedNames", Shape::Message(NAMES)),
            list(3, "storedVersions", Shape::Text),
            one(4, "observedGeneration", Shape::Count),
        ]),
    ),
];

const NAMES: &[Field] = &[
    one(1, "plural", Shape::Text),
    one(2, "singular", Shape::Text),
    list(3, "shortNames", Shape::Text),
    one(4, "kind", Shape::Text),
    one(5, "listKind", Shape::Text),
    list(6, "categories", Shape::Text),
];

const CONDITION: &[Field] = &[
    one(1, "type", Shape::Text),
    one(2, "status", Shape::Text),
    one(3, "lastTransitionTime", Shape::Time),
    one(4, "reason", Shape::Text),
    one(5, "message", Shape::Text),
    one(6, "observedGeneration", Shape::Count),
];

const VERSION: &[Field] = &[
    one(1, "name", Shape::Text),
    one(2, "served", Shape::Bool),
    one(3, "storage", Shape::Bool),
    one(
        4,
        "schema",
        Shape::Message(&[one(1, "openAPIV3Schema", Shape::Schema)]),
    ),
    one(
        5,
        "subresources",
        Shape::Message(&[
            one(1, "status", Shape::Message(&[])),
            one(
                2,
                "scale",
                Shape::Message(&[
                    one(1, "specReplicasPath", Shape::Text),
                    one(2, "statusReplicasPath", Shape::Text),
                    one(3, "labelSelectorPath", Shape::Text),
                ]),
            ),
        ]),
    ),
    list(
        6,
        "additionalPrinterColumns",
        Shape::Message(&[
            one(1, "name", Shape::Text),
            one(2, "type", Shape::Text),
            one(3, "format", Shape::Text),
            one(4, "description", Shape::Text),
            one(5, "priority", Shape::Count),
            one(6, "jsonPath", Shape::Text),
        ]),
    ),
    one(7, "deprecated", Shape::Flag),
    one(8, "deprecationWarning", Shape::Text),
    list(
        9,
        "selectableFields",
        Shape::Message(&[one(1, "jsonPath", Shape::Text)]),
    ),
];

const CONVERSION: &[Field] = &[
    one(1, "strategy", Shape::Text),
    one(
        2,
        "webhook",
        Shape::Message(&[
            one(
                2,
                "clientConfig",
                Shape::Message(&[
                    one(
                        1,
                        "service",
                        Shape::Message(&[
                            one(1, "namespace", Shape::Text),
                            one(2, "name", Shape::Text),
                            one(3, "path", Shape::Text),
                            one(4, "port", Shape::Integer),
                        ]),
                    ),
                    one(2, "caBundle", Shape::Bytes),
                    one(3, "url", Shape::Text),
                ]),
            ),
            list(3, "conversionReviewVersions", Shape::Text),
        ]),
    ),
];

/// Schema of a version.
pub(super) const JSON_SCHEMA: &[Field] = &[
    one(1, "id", Shape::Text),
    one(2, "$schema", Shape::Text),
    one(3, "$ref", Shape::Text),
    one(4, "description", Shape::Text),
    one(5, "type", Shape::Text),
    one(6, "format", Shape::Text),
    one(7, "title", Shape::Text),
    one(8, "default", Shape::Json),
    one(9, "maximum", Shape::Double),
    one(10, "exclusiveMaximum", Shape::Flag),
    one(11, "minimum", Shape::Double),
    one(12, "exclusiveMinimum", Shape::Flag),
    one(13, "maxLength", Shape::Integer),
    one(14, "minLength", Shape::Integer),
    one(15, "pattern", Shape::Text),
    one(16, "maxItems", Shape::Integer),
    one(17, "minItems", Shape::Integer),
    one(18, "uniqueItems", Shape::Flag),
    one(19, "multipleOf", Shape::Double),
    list(20, "enum", Shape::Json),
    one(21, "maxProperties", Shape::Integer),
    one(22, "minProperties", Shape::Integer),
    list(23, "required", Shape::Text),
    one(24, "items", Shape::SchemaOrArray),
    list(25, "allOf", Shape::Schema),
    list(26, "oneOf", Shape::Schema),
    list(27, "anyOf", Shape::Schema),
    one(28, "not", Shape::Schema),
    one(29, "properties", Shape::Map(&Shape::Schema)),
    one(30, "additionalProperties", Shape::SchemaOrBool),
    one(31, "patternProperties", Shape::Map(&Shape::Schema)),
    one(32, "dependencies", Shape::Map(&Shape::SchemaOrTexts)),
    one(33, "additionalItems", Shape::SchemaOrBool),
    one(34, "definitions", Shape::Map(&Shape::Schema)),
    one(
        35,
        "externalDocs",
        Shape::Message(&[one(1, "description", Shape::Text), one(2, "url", Shape::Text)]),
    ),
    one(36, "example", Shape::Json),
    one(37, "nullable", Shape::Flag),
    one(38, "x-kubernetes-preserve-unknown-fields", Shape::Bool),
    one(39, "x-kubernetes-embedded-resource", Shape::Flag),
    one(40, "x-kubernetes-int-or-string", Shape::Flag),
    list(41, "x-kubernetes-list-map-keys", Shape::Text),
    one(42, "x-kubernetes-list-type", Shape::Text),
    one(43, "x-kubernetes-map-type", Shape::Text),
    list(
        44,
        "x-kubernetes-validations",
        Shape::Message(&[
            one(1, "rule", Shape::Text),
            one(2, "message", Shape::Text),
            one(3, "messageExpression", Shape::Text),
            one(4, "reason", Shape::Text),
            one(5, "fieldPath", Shape::Text),
            one(6, "optionalOldSelf", Shape::Bool),
        ]),
    ),
];

//! Fields of the discovery documents.

use super::messages::{Field, LIST_META, OBJECT_META, Shape, list, one};

pub(super) const API_VERSIONS: &[Field] = &[
    list(1, "versions", Shape::Text),
    list(2, "serverAddressByClientCIDRs", Shape::Message(SERVER_ADDRESS)),
];

pub(super) const API_GROUP: &[Field] = &[
    one(1, "name", Shape::Text),
    list(2, "versions", Shape::Message(GROUP_VERSION)),
    one(3, "preferredVersion", Shape::Message(GROUP_VERSION)),
    list(4, "serverAddressByClientCIDRs", Shape::Message(SERVER_ADDRESS)),
];

pub(super) const API_GROUP_LIST: &[Field] = &[list(1, "groups", Shape::Message(API_GROUP))];

pub(super) const API_RESOURCE_LIST: &[Field] = &[
    one(1, "groupVersion", Shape::Text),
    list(
        2,
        "resources",
        Shape::Message(&[
            one(1, "name", Shape::Text),
            one(2, "namespaced", Shape::Bool),
            one(3, "kind", Shape::Text),
            one(4, "verbs", Shape::Texts),
            list(5, "shortNames", Shape::Text),
            one(6, "singularName", Shape::Text),
            list(7, "categories", Shape::Text),
            one(8, "group", Shape::Text),
            one(9, "version", Shape::Text),
            one(10, "storageVersionHash", Shape::Text),
        ]),
    ),
];

/// Aggregated form.
pub(super) const API_GROUP_DISCOVERY_LIST: &[Field] = &[
    one(1, "metadata", Shape::Message(LIST_META)),
    list(
        2,
        "items",
        Shape::Message(&[
            one(1, "metadata", Shape::Message(OBJECT_META)),
            list(
                2,
                "versions",
                Shape::Message(&[
                    one(1, "version", Shape::Text),
                    list(2, "resources", Shape::Message(RESOURCE)),
                    one(3, "freshness", Shape::Text),
                ]),
            ),
        ]),
    ),
];

const RESOURCE: &[Field] = &[
    one(1, "resource", Shape::Text),
    one(2, "responseKind", Shape::Message(KIND)),
    one(3, "scope", Shape::Text),
    one(4, "singularResource", Shape::Text),
    list(5, "verbs", Shape::Text),
    list(6, "shortNames", Shape::Text),
    list(7, "categories", Shape::Text),
    list(
        8,
        "subresources",
        Shape::Message(&[
            one(1, "subresource", Shape::Text),
            one(2, "responseKind", Shape::Message(KIND)),
            list(3, "acceptedTypes", Shape::Message(KIND)),
            list(4, "verbs", Shape::Text),
        ]),
    ),
];

const KIND: &[Field] = &[
    one(1, "group", Shape::Text),
    one(2, "version", Shape::Text),
    one(3, "kind", Shape::Text),
];

const GROUP_VERSION: &[Field] = &[
    one(1, "groupVersion", Shape::Text),
    one(2, "version", Shape::Text),
];

const SERVER_ADDRESS: &[Field] = &[
    one(1, "clientCIDR", Shape::Text),
    one(2, "serverAddress", Shape::Text),
];

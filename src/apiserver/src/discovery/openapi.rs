//! OpenAPI v3: an index with a hash per group version, and the documents. OpenAPI v2 is only an
//! empty document.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::endpoints::negotiate;
use crate::registry::resource::{Origin, Subresource, to_bytes};
use crate::registry::{GroupVersion, Snapshot};
use rooflet_apimachinery::schema::openapi;
use rooflet_apimachinery::schema::openapi::{ResourceInfo, SchemaSource};

/// Content type of [`V2_EMPTY`].
pub(crate) const V2_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// OpenAPI v2 document without paths: swagger "2.0", a title, a version.
///
/// kubectl requests v2 for kinds that v3 does not describe, such as `List`, and treats 404 as a
/// server error. With an empty document, kubectl applies a `kind: List`, and reports misspelt
/// kinds.
pub(crate) const V2_EMPTY: &[u8] = b"\x0a\x032.0\x12\x0e\x0a\x07rooflet\x12\x030.1\x42\x00";

/// Returns true if the client accepts v2 in the protobuf encoding of kubectl. JSON is not served.
pub(crate) fn accepts_v2(accept: &str) -> bool {
    let asked = negotiate::clauses(accept);
    asked.iter().any(|clause| {
        clause
            .media_type
            .starts_with("application/com.github.proto-openapi.spec.v2")
    })
}

/// Returns the path of a group version's document below `/openapi/v3/`.
pub(crate) fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Returns the document of a group version. It is built once per snapshot.
pub(crate) fn document(snapshot: &Snapshot, path: &str) -> Option<Bytes> {
    let (group, version) = snapshot.groups.iter().find_map(|group| {
        let version = group
            .versions
            .iter()
            .find(|version| document_path(&group.name, &version.version) == path)?;
        Some((group.name.as_str(), version))
    })?;
    Some(
        snapshot
            .responses
            .get_or_compute(&format!("openapi/{path}"), || to_bytes(&make(group, version))),
    )
}

/// Returns the hash with which clients cache a document.
pub(crate) fn hash(snapshot: &Snapshot, path: &str) -> Option<String> {
    let document = document(snapshot, path)?;
    let hash = snapshot
        .responses
        .get_or_compute(&format!("openapi-hash/{path}"), || {
            Bytes::from(hex::encode_upper(Sha256::digest(&document)))
        });
    Some(String::from_utf8_lossy(&hash).into_owned())
}

/// Returns the document of `/openapi/v3`.
pub(crate) fn index(snapshot: &Snapshot) -> Bytes {
    snapshot.responses.get_or_compute("openapi-index", || {
        let mut paths = Map::new();
        for group in &snapshot.groups {
            for version in &group.versions {
                let path = document_path(&group.name, &version.version);
                let hash = hash(snapshot, &path).unwrap_or_default();
                let url = format!("/openapi/v3/{path}?hash={hash}");
                paths.insert(path, json!({"serverRelativeURL": url}));
            }
        }
        to_bytes(&json!({"paths": paths}))
    })
}

fn make(group: &str, version: &GroupVersion) -> Value {
    let resources: Vec<ResourceInfo<'_>> = version
        .resources
        .iter()
        .map(|resource| {
            let subresources = resource.subresources();
            ResourceInfo {
                kind: &resource.kind,
                list_kind: &resource.list_kind,
                plural: &resource.plural,
                namespaced: resource.namespaced,
                verbs: resource.verbs(),
                has_status: subresources.contains(&Subresource::Status),
                has_scale: subresources.contains(&Subresource::Scale),
                schema: match &resource.origin {
                    Origin::BuiltIn(_) => SchemaSource::BuiltIn,
                    Origin::Custom(custom) => SchemaSource::Custom(&custom.spec["schema"]["openAPIV3Schema"]),
                },
            }
        })
        .collect();
    openapi::document(group, &version.version, &resources)
}

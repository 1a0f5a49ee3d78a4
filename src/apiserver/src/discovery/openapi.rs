//! OpenAPI v3: an index with a hash per document, and the documents. OpenAPI v2: one document.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::v2_protobuf;
use crate::endpoints::negotiate::{self, JSON};
use crate::registry::resource::{Resource, Subresource, to_bytes};
use crate::registry::{GroupVersion, Snapshot};
use rooflet_apimachinery::openapi;
use rooflet_apimachinery::openapi::{ResourceInfo, Root, SchemaSource};
use rooflet_schema::cel::checker::Decl;

/// Content types of OpenAPI documents in protobuf.
pub(crate) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
pub(crate) const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Returns the content type of an OpenAPI document for an `Accept` header, or `None` if the client accepts
/// neither JSON nor the protobuf type.
pub(crate) fn media_type(accept: &str, protobuf: &'static str) -> Option<&'static str> {
    let requested = negotiate::clauses(accept);
    if requested.is_empty() {
        return Some(JSON);
    }
    requested.iter().find_map(|clause| match clause.media_type {
        JSON | "application/*" | "*/*" => Some(JSON),
        // Clients send the name of an earlier version, which is not a valid media type.
        name if name.replace("@v1.0", ".v1.0") == protobuf => Some(protobuf),
        _ => None,
    })
}

/// Returns the OpenAPI v2 document. It is built once per snapshot and content type.
pub(crate) fn document_v2(snapshot: &Snapshot, content_type: &str) -> Bytes {
    snapshot
        .responses
        .get_or_compute(&format!("openapi-v2/{content_type}"), || {
            let documents = documents(snapshot)
                .into_iter()
                .map(|(_, document)| document.build());
            let document = openapi::v2::document(&documents.collect::<Vec<_>>());
            match content_type == V2_PROTOBUF {
                true => Bytes::from(v2_protobuf::encode(&document)),
                false => to_bytes(&document),
            }
        })
}

/// Source of a document below `/openapi/v3/`.
enum Document<'a> {
    Root(Root<'a>),
    Version {
        group: &'a str,
        version: &'a GroupVersion,
    },
}

impl Document<'_> {
    fn build(&self) -> Value {
        match self {
            Self::Root(root) => openapi::root_document(*root),
            Self::Version { group, version } => make(group, version),
        }
    }
}

/// Returns all documents with their paths below `/openapi/v3/`. Like kube-apiserver, groups of custom kinds
/// have documents of their versions only.
fn documents(snapshot: &Snapshot) -> Vec<(String, Document<'_>)> {
    let roots = [
        ("api", Root::CoreVersions),
        ("apis", Root::Groups),
        ("version", Root::Version),
    ];
    let roots = roots
        .into_iter()
        .map(|(path, root)| (path.to_owned(), Document::Root(root)));
    let groups = snapshot.groups.iter().flat_map(|group| {
        let is_built_in = !group.name.is_empty() && group.versions.iter().any(GroupVersion::has_built_in);
        let own = is_built_in.then(|| {
            (
                format!("apis/{}", group.name),
                Document::Root(Root::Group(&group.name)),
            )
        });
        let versions = group.versions.iter().map(move |version| {
            let path = match group.name.as_str() {
                "" => format!("api/{}", version.version),
                name => format!("apis/{name}/{}", version.version),
            };
            let group = &group.name;
            (path, Document::Version { group, version })
        });
        own.into_iter().chain(versions)
    });
    roots.chain(groups).collect()
}

/// Returns the document of a path below `/openapi/v3/`. It is built once per snapshot and content type.
pub(crate) fn document(snapshot: &Snapshot, path: &str, content_type: &str) -> Option<Bytes> {
    let (_, source) = documents(snapshot).into_iter().find(|(known, _)| known == path)?;
    let key = format!("openapi/{path}/{content_type}");
    Some(snapshot.responses.get_or_compute(&key, || {
        let document = source.build();
        match content_type == V3_PROTOBUF {
            true => Bytes::from(openapi::v3_protobuf::encode(&document)),
            false => to_bytes(&document),
        }
    }))
}

/// Returns the hash with which clients cache a document.
pub(crate) fn hash(snapshot: &Snapshot, path: &str) -> Option<String> {
    let document = document(snapshot, path, JSON)?;
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
        for (path, _) in documents(snapshot) {
            let hash = hash(snapshot, &path).unwrap_or_default();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
        to_bytes(&json!({"paths": paths}))
    })
}

fn make(group: &str, version: &GroupVersion) -> Value {
    let schemas: Vec<Option<Value>> = version
        .resources
        .iter()
        .map(|resource| schema(resource))
        .collect();
    let resources: Vec<ResourceInfo<'_>> = version
        .resources
        .iter()
        .zip(&schemas)
        .map(|(resource, schema)| info(resource, schema.as_ref()))
        .collect();
    openapi::document(group, &version.version, &resources)
}

/// Returns the declaration of the objects of a resource for CEL expressions.
pub(crate) fn declaration(resource: &Resource) -> Option<Decl> {
    let schema = schema(resource);
    openapi::declaration(
        &resource.group,
        &resource.version,
        &info(resource, schema.as_ref()),
    )
}

/// Returns the published schema of a custom resource.
fn schema(resource: &Resource) -> Option<Value> {
    Some(resource.custom()?.open_api_schema(&resource.version))
}

fn info<'a>(resource: &'a Resource, schema: Option<&'a Value>) -> ResourceInfo<'a> {
    let subresources = resource.subresources();
    ResourceInfo {
        kind: &resource.kind,
        list_kind: &resource.list_kind,
        plural: &resource.plural,
        namespaced: resource.namespaced,
        verbs: resource.verbs(),
        has_status: subresources.contains(&Subresource::Status),
        has_scale: subresources.contains(&Subresource::Scale),
        selectable_fields: resource
            .custom()
            .map_or(&[], |custom| custom.selectable_fields.as_slice()),
        schema: schema.map_or(SchemaSource::BuiltIn, SchemaSource::Custom),
    }
}

//! Discovery of the served resources, in unaggregated and aggregated form.

mod documents;
mod health;
pub(crate) mod openapi;
mod v2_protobuf;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::endpoints::negotiate::{Clause, Encoding, clauses};
use crate::registry::resource::{Resource, Subresource, api_version, to_bytes};
use crate::registry::{Group, GroupVersion, Snapshot};
use rooflet_apimachinery::verb::Verb;

/// Parameters of the content type of the aggregated form.
pub(crate) const AGGREGATED: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Returns the encoding of aggregated discovery if the client prefers this form for `/api` and `/apis`. The
/// first supported clause of the Accept header applies.
pub(crate) fn aggregated_encoding(accept: &str) -> Option<Encoding> {
    let form = |clause: &Clause<'_>| {
        let encoding = Encoding::of(clause.media_type)?;
        match ["as", "g", "v"].map(|name| clause.parameter(name)) {
            [None, None, None] => Some(None),
            [
                Some("APIGroupDiscoveryList"),
                Some("apidiscovery.k8s.io"),
                Some("v2"),
            ] => Some(Some(encoding)),
            _ => None,
        }
    };
    clauses(accept).iter().find_map(form).flatten()
}

/// Returns the unaggregated document of `/api`.
pub(crate) fn core_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// Returns the unaggregated document of `/apis`.
pub(crate) fn group_list(snapshot: &Snapshot) -> Value {
    let groups: Vec<Value> = named_groups(snapshot).map(group_entry).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn named_groups(snapshot: &Snapshot) -> impl Iterator<Item = &Group> {
    snapshot.groups.iter().filter(|group| !group.name.is_empty())
}

fn group_entry(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            json!({"groupVersion": api_version(&group.name, &version.version), "version": version.version})
        })
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

/// Returns the document of `/apis/GROUP`.
pub(crate) fn group(group: &Group) -> Value {
    let mut entry = group_entry(group);
    entry["kind"] = json!("APIGroup");
    entry["apiVersion"] = json!("v1");
    entry
}

/// Returns the document of `/api/v1` and `/apis/GROUP/VERSION`.
pub(crate) fn resource_list(group: &str, version: &GroupVersion) -> Value {
    let resources: Vec<Value> = version
        .resources
        .iter()
        .flat_map(|resource| rows(resource))
        .collect();
    let mut document = json!({
        "kind": "APIResourceList", "groupVersion": api_version(group, &version.version), "resources": resources,
    });
    // Like `/api`, the document of the core group has no version.
    if !group.is_empty() {
        document["apiVersion"] = json!("v1");
    }
    document
}

fn rows(resource: &Resource) -> Vec<Value> {
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs(),
    });
    if resource.has_storage() {
        main["storageVersionHash"] = json!(storage_hash(resource));
    }
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        main["categories"] = json!(resource.categories);
    }
    let subresources = resource.subresources().into_iter().map(|subresource| {
        let mut row = json!({
            "name": format!("{}/{}", resource.plural, subresource.as_str()), "singularName": "",
            "namespaced": resource.namespaced, "kind": resource.kind, "verbs": subresource_verbs(subresource),
        });
        if let Some((group, kind)) = foreign_kind(subresource) {
            row["kind"] = json!(kind);
            row["group"] = json!(group);
            row["version"] = json!("v1");
        }
        row
    });
    std::iter::once(main).chain(subresources).collect()
}

/// Returns group and kind of a subresource that has another kind than its resource.
fn foreign_kind(subresource: Subresource) -> Option<(&'static str, &'static str)> {
    match subresource {
        Subresource::Scale => Some(("autoscaling", "Scale")),
        Subresource::Token => Some(("authentication.k8s.io", "TokenRequest")),
        Subresource::Status | Subresource::Finalize | Subresource::Approval => None,
    }
}

fn subresource_verbs(subresource: Subresource) -> &'static [Verb] {
    match subresource {
        Subresource::Status | Subresource::Scale | Subresource::Approval => {
            &[Verb::Get, Verb::Patch, Verb::Update]
        }
        Subresource::Finalize => &[Verb::Update],
        Subresource::Token => &[Verb::Create],
    }
}

/// Returns the storage version hash, which is equal for versions with the same stored form.
fn storage_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    let version = resource.custom().map_or(resource.version.as_str(), |custom| {
        custom.storage_version.as_str()
    });
    let digest = Sha256::digest(format!("{}/{version}/{}", resource.group, resource.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// Returns the aggregated document of `/api` if `core` is true, otherwise of `/apis`.
fn aggregated(snapshot: &Snapshot, core: bool) -> Value {
    let items: Vec<Value> = snapshot
        .groups
        .iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|version| {
                    let mut resources: Vec<&Resource> = version.resources.iter().map(AsRef::as_ref).collect();
                    resources.sort_by(|a, b| a.plural.cmp(&b.plural));
                    let resources: Vec<Value> = resources.into_iter().map(aggregated_resource).collect();
                    json!({"version": version.version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = Map::new();
            if !group.name.is_empty() {
                metadata.insert("name".to_owned(), json!(group.name));
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    // Like kube-apiserver, built-in resources have no group and version: those of the document apply.
    let kind = match resource.custom() {
        Some(_) => json!({"group": resource.group, "version": resource.version, "kind": resource.kind}),
        None => json!({"group": "", "version": "", "kind": resource.kind}),
    };
    let mut entry = json!({
        "resource": resource.plural, "responseKind": kind, "singularResource": resource.singular,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" }, "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources()
        .into_iter()
        .map(|subresource| {
            let foreign = foreign_kind(subresource)
                .map(|(group, kind)| json!({"group": group, "version": "v1", "kind": kind}));
            let response = foreign.unwrap_or_else(|| kind.clone());
            json!({
                "subresource": subresource.as_str(), "responseKind": response, "verbs": subresource_verbs(subresource)
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = Value::from(subresources);
    }
    entry
}

/// Returns the aggregated document and its ETag.
pub(crate) fn aggregated_body(snapshot: &Snapshot, core: bool) -> (Bytes, String) {
    let key = if core { "discovery/api" } else { "discovery/apis" };
    let bytes = snapshot
        .responses
        .get_or_compute(key, || to_bytes(&aggregated(snapshot, core)));
    let tag = snapshot
        .responses
        .get_or_compute(&format!("{key}/etag"), || Bytes::from(etag(&bytes)));
    (bytes, String::from_utf8_lossy(&tag).into_owned())
}

/// Returns a strong ETag: the SHA-256 hash of the bytes in upper-case hexadecimal.
pub(crate) fn etag(bytes: &[u8]) -> String {
    hex::encode_upper(Sha256::digest(bytes))
}

/// Returns the document of `/`: the list of paths.
pub(crate) fn paths(snapshot: &Snapshot) -> Value {
    let mut paths: Vec<String> = ["/api", "/api/v1", "/apis"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    for group in named_groups(snapshot) {
        paths.push(format!("/apis/{}", group.name));
        paths.extend(
            group
                .versions
                .iter()
                .map(|version| format!("/apis/{}/{}", group.name, version.version)),
        );
    }
    let others = [
        "/healthz",
        "/healthz/ping",
        "/livez",
        "/livez/ping",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
    ];
    paths.extend(
        others
            .into_iter()
            .chain(["/readyz/ping", "/version"])
            .map(str::to_owned),
    );
    paths.sort();
    json!({"paths": paths})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_supported_clause_of_accept_applies() {
        let check = |accept: &str, expect: Option<Encoding>| {
            let accept = accept.replace("FORM", AGGREGATED);
            assert_eq!(aggregated_encoding(&accept), expect, "{accept}");
        };
        let beta = "g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        check("", None);
        check("application/json", None);
        check("application/json,application/json;FORM", None);
        check(
            &format!("application/json;FORM,application/json;{beta},application/json"),
            Some(Encoding::Json),
        );
        check(&format!("application/json;{beta}"), None);
        check("text/html;FORM,*/*;FORM", Some(Encoding::Json));
        check(
            "application/json;FORM;q=0.5,application/vnd.kubernetes.protobuf;FORM",
            Some(Encoding::Protobuf),
        );
    }
}

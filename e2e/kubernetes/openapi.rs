//! OpenAPI documents of a custom kind and of the paths above the resources, compared with those of
//! kube-apiserver, and `kubectl explain` with OpenAPI v2.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, Kubectl, eventually};

/// Kind with one field for each rule of the conversion to OpenAPI v2.
const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.openapi.example.com}
spec:
  group: openapi.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    selectableFields: [{jsonPath: .spec.tier}, {jsonPath: .spec.image}]
    schema:
      openAPIV3Schema:
        description: Gadget is a kind of the test.
        type: object
        required: [spec]
        properties:
          spec:
            description: Wanted state.
            type: object
            required: [image, limit]
            x-kubernetes-validations: [{rule: self.image != 'x', message: not x}]
            properties:
              image: {type: string, description: Image to run., maxLength: 20, minLength: 1, pattern: '^[a-z]+$'}
              tier: {type: string, enum: [gold, silver], default: silver}
              replicas: {type: integer, format: int32, minimum: 0, maximum: 10, default: 1}
              limit: {type: integer, nullable: true}
              either: {x-kubernetes-int-or-string: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
              untyped: {x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, maxItems: 3, x-kubernetes-list-type: set, items: {type: string}}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [port]
                items: {type: object, required: [port], properties: {port: {type: integer}, name: {type: string}}}
              labels: {type: object, additionalProperties: {type: string}}
              choice:
                type: object
                properties: {a: {type: string}, b: {type: string}}
                oneOf: [{required: [a]}, {required: [b]}]
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {replicas: {type: integer}}}
"#;
const NAME: &str = "com.example.openapi.v1.Gadget";

#[test]
fn documents_of_a_kind_equal_those_of_kube_apiserver() {
    let Some(theirs) = KubernetesCluster::start() else {
        return;
    };
    let Some(ours) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let both = [&theirs.kubectl, &ours.kubectl];
    for kubectl in both {
        kubectl.apply(DEFINITION).ok();
        kubectl.wait_for_condition("crd gadgets.openapi.example.com", "Established", "True");
    }
    for (version, path) in [
        ("v2", format!("/definitions/{NAME}")),
        ("v2", format!("/definitions/{NAME}List")),
        (
            "v3/apis/openapi.example.com/v1",
            format!("/components/schemas/{NAME}"),
        ),
    ] {
        let [theirs, ours] = both.map(|kubectl| part_of(kubectl, version, &path));
        assert_eq!(ours, theirs, "{path} of /openapi/{version}");
    }
    for (document, path) in DOCUMENTS {
        let [theirs, ours] = both.map(|kubectl| {
            let part = |pointer: &str| part_of(kubectl, &format!("v3/{document}"), pointer);
            let schemas = part("/components/schemas");
            let operation = part("/paths")[path].clone();
            let kind = operation["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
                .as_str()
                .expect("a kind")
                .to_owned();
            json!({"operation": operation, "kind": reference_in(&schemas, &kind), "access": part("/components/securitySchemes")})
        });
        assert_eq!(ours, theirs, "{path} of {document}");
    }
    let [theirs_index, mut ours_index] = both.map(|kubectl| paths_of(&part_of(kubectl, "v3", "/paths")));
    // The cluster has no definitions of rooflet.
    ours_index.retain(|path| !path.starts_with("apis/rooflet.dev/"));
    let is_served = |path: &&String| {
        let mut parts = path.split('/');
        let group = [parts.next(), parts.next()];
        let same_group = |own: &String| {
            let mut parts = own.split('/');
            [parts.next(), parts.next()] == group
        };
        ours_index.iter().any(same_group)
    };
    let expected: BTreeSet<String> = theirs_index.iter().filter(is_served).cloned().collect();
    assert_eq!(ours_index, expected, "paths of /openapi/v3");
    let [theirs_v2, ours_v2] = both.map(|kubectl| part_of(kubectl, "v2", "/paths"));
    for (_, path) in DOCUMENTS {
        // The order of media types differs.
        let [theirs, ours] = [&theirs_v2, &ours_v2].map(|paths| without_defaults(&paths[path]));
        assert_eq!(ours, theirs, "{path} of /openapi/v2");
    }
    for words in [
        "gadgets",
        "gadgets.spec",
        "gadgets.spec.ports",
        "gadgets --recursive",
    ] {
        let explain = format!("explain {words} --output=plaintext-openapiv2");
        let [theirs, ours] = both.map(|kubectl| kubectl.run(&explain).ok());
        assert_eq!(ours, theirs, "kubectl {explain}");
        assert!(!ours.is_empty());
    }
    // The schemas of built-in kinds also require `metadata`.
    let explained = ours
        .kubectl
        .run("explain configmaps.metadata.ownerReferences --output=plaintext-openapiv2");
    let explained = explained.ok();
    assert!(explained.contains("blockOwnerDeletion\t<boolean>"), "{explained}");
}

/// Documents of OpenAPI v3 with a path that is not that of a resource.
const DOCUMENTS: [(&str, &str); 7] = [
    ("api", "/api/"),
    ("apis", "/apis/"),
    ("version", "/version/"),
    (
        "apis/rbac.authorization.k8s.io",
        "/apis/rbac.authorization.k8s.io/",
    ),
    ("apis/coordination.k8s.io", "/apis/coordination.k8s.io/"),
    ("api/v1", "/api/v1/"),
    ("apis/coordination.k8s.io/v1", "/apis/coordination.k8s.io/v1/"),
];

fn paths_of(index: &Value) -> BTreeSet<String> {
    index
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .cloned()
        .collect()
}

/// Returns the schema that `reference` names, without the defaults and the merge strategies of lists, which
/// the embedded server does not publish for these kinds.
fn reference_in(schemas: &Value, reference: &str) -> Value {
    let name = reference.rsplit('/').next().unwrap_or_default();
    without_defaults(&schemas[name])
}

fn without_defaults(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter(|(name, _)| !["default", "x-kubernetes-list-type"].contains(&name.as_str()));
            let member = |(name, field): (&String, &Value)| (name.clone(), without_defaults(field));
            let mut shown: Map<String, Value> = kept.map(member).collect();
            // A reference without default needs no list.
            if let Some(Value::Array(parts)) = shown.get("allOf").cloned()
                && shown.len() == 1
                && let [Value::Object(only)] = parts.as_slice()
            {
                shown = only.clone();
            }
            Value::Object(shown)
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(without_defaults).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// Returns a part of an OpenAPI document, which the servers publish shortly after the definition.
fn part_of(kubectl: &Kubectl, version: &str, path: &str) -> Value {
    eventually(path, || {
        let document = kubectl.run(&format!("get --raw /openapi/{version}"));
        let document: Value = serde_json::from_str(&document.stdout).map_err(|err| err.to_string())?;
        document
            .pointer(path)
            .cloned()
            .ok_or_else(|| format!("{path} is missing"))
    })
}

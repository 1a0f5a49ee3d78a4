//! OpenAPI documents of a custom kind, compared with those of kube-apiserver, and `kubectl explain` with
//! OpenAPI v2.

use serde_json::Value;

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

//! Kinds with a protobuf form.

use super::admission::{MUTATING_BINDING, MUTATING_POLICY, VALIDATING_BINDING, VALIDATING_POLICY};
use super::definition::CUSTOM_RESOURCE_DEFINITION;
use super::discovery::{
    API_GROUP, API_GROUP_DISCOVERY_LIST, API_GROUP_LIST, API_RESOURCE_LIST, API_VERSIONS,
};
use super::messages::{
    CERTIFICATE_SIGNING_REQUEST, CLUSTER_ROLE, CONFIG_MAP, CORE_EVENT, DELETE_OPTIONS, EVENT, Field, LEASE,
    NAMESPACE, PARTIAL_OBJECT_METADATA, ROLE, ROLE_BINDING, SCALE, SECRET, SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_REVIEW, SELF_SUBJECT_RULES_REVIEW, SERVICE_ACCOUNT, STATUS, SUBJECT_ACCESS_REVIEW,
    TOKEN_REQUEST, TOKEN_REVIEW,
};

/// Returns the fields of a kind, or `None` if the kind has no protobuf form.
pub(super) fn fields_of(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    Some(match (api_version, kind) {
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "Secret") => SECRET,
        ("v1", "Event") => CORE_EVENT,
        ("events.k8s.io/v1", "Event") => EVENT,
        ("v1", "ServiceAccount") => SERVICE_ACCOUNT,
        ("authentication.k8s.io/v1", "TokenRequest") => TOKEN_REQUEST,
        ("coordination.k8s.io/v1", "Lease") => LEASE,
        ("certificates.k8s.io/v1", "CertificateSigningRequest") => CERTIFICATE_SIGNING_REQUEST,
        ("rbac.authorization.k8s.io/v1", "Role") => ROLE,
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => CLUSTER_ROLE,
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => ROLE_BINDING,
        ("authentication.k8s.io/v1", "SelfSubjectReview") => SELF_SUBJECT_REVIEW,
        ("authentication.k8s.io/v1", "TokenReview") => TOKEN_REVIEW,
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => SELF_SUBJECT_ACCESS_REVIEW,
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => SELF_SUBJECT_RULES_REVIEW,
        ("authorization.k8s.io/v1", "SubjectAccessReview" | "LocalSubjectAccessReview") => {
            SUBJECT_ACCESS_REVIEW
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => VALIDATING_POLICY,
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => VALIDATING_BINDING,
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy") => MUTATING_POLICY,
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding") => MUTATING_BINDING,
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => CUSTOM_RESOURCE_DEFINITION,
        ("autoscaling/v1", "Scale") => SCALE,
        ("v1", "Status") => STATUS,
        ("meta.k8s.io/v1" | "meta.k8s.io/v1beta1", "PartialObjectMetadata") => PARTIAL_OBJECT_METADATA,
        ("v1", "APIGroup") => API_GROUP,
        ("v1", "APIGroupList") => API_GROUP_LIST,
        ("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList") => API_GROUP_DISCOVERY_LIST,
        // The documents of the core group have no version.
        ("", "APIVersions") => API_VERSIONS,
        ("" | "v1", "APIResourceList") => API_RESOURCE_LIST,
        // Clients send the version of the deleted object or of the options.
        (_, "DeleteOptions") => DELETE_OPTIONS,
        _ => return None,
    })
}

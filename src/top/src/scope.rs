//! Namespaces of a view.

use k8s_openapi::NamespaceResourceScope;
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource};

/// Namespace of the events of cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";

/// Objects that a view shows: of one namespace, or of all. Macs belong to no namespace.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) namespace: Option<String>,
}

impl Scope {
    /// Returns the API of a namespaced kind.
    pub(crate) fn api<K>(&self, client: &Client) -> Api<DeserializeGuard<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }

    /// Returns the namespaces whose events are shown. `None` stands for all.
    pub(crate) fn event_namespaces(&self) -> Vec<Option<&str>> {
        match self.namespace.as_deref() {
            None => vec![None],
            Some(CLUSTER_NAMESPACE) => vec![Some(CLUSTER_NAMESPACE)],
            Some(namespace) => vec![Some(namespace), Some(CLUSTER_NAMESPACE)],
        }
    }
}

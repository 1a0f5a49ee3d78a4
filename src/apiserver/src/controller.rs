//! Controllers that run in kube-controller-manager in a Kubernetes cluster.

pub(crate) mod certificates;
pub(crate) mod definitions;
pub(crate) mod expiry;
pub(crate) mod gc;
pub(crate) mod namespace_defaults;
pub(crate) mod namespaces;
pub(crate) mod policies;
pub(crate) mod roles;
pub(crate) mod storage;
mod watch_loop;

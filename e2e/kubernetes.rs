//! The chart and the control plane on a real kube-apiserver, with kube-controller-manager and Helm.
//!
//! The tests start the commands of the rendered Deployments as processes, because there is no
//! kubelet. `cargo xtask test-kubernetes` provides the binaries.

mod agent_tls;
mod apply;
mod chart;
mod clients;
mod cluster;
mod comparison;
mod control_plane;
mod helm;
mod kube_rs;
mod node_tokens;
mod openapi;
mod releases;
mod roles;
mod story;
mod upstream;

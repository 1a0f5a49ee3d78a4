//! Condition `AnonymousAccess` of ModelDeployments: a gateway serves other machines without API keys.
//!
//! Such a gateway writes its address to an annotation of its Lease. Without such a gateway, deployments that
//! never had the condition do not get it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::autoscaler::Gateways;
use super::executor::Executor;
use super::intent::{Intent, PlannedWrite, Snapshot, Version};
use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::meta::ANONYMOUS_ACCESS_ANNOTATION;
use rooflet_api::v1alpha1::ModelDeployment;

/// Maximum number of addresses in the message.
const MAX_ADDRESSES: usize = 3;

/// Reconciler of the condition; see the module documentation.
pub(crate) struct AnonymousAccess {
    world: World,
    gateways: Gateways,
}

impl AnonymousAccess {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            gateways: Gateways::default(),
        }
    }
}

impl Reconciler for AnonymousAccess {
    const NAME: &'static str = "anonymous-access";
    const RESYNC: Duration = Duration::from_secs(30);
    const MIN_PERIOD: Duration = Duration::from_secs(5);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let leases = self.world.leases.list();
        let live = self
            .gateways
            .live(leases.iter().map(AsRef::as_ref), self.world.clock.instant());
        let deployments = self.world.deployments.list();
        let writes = writes(&deployments, &addresses(&live), self.world.clock.now());
        let snapshot = Snapshot {
            deployments,
            ..Snapshot::default()
        };
        pass.record_failures(Executor::new(&self.world, &snapshot).run(writes).await);
        pass
    }
}

/// Returns the addresses of gateways without API keys.
fn addresses<'a>(leases: &[&'a Lease]) -> BTreeSet<&'a str> {
    let reported = leases
        .iter()
        .filter_map(|lease| lease.annotations().get(ANONYMOUS_ACCESS_ANNOTATION));
    reported.map(String::as_str).collect()
}

/// Returns the changed statuses of the deployments.
fn writes(
    deployments: &[Arc<ModelDeployment>],
    addresses: &BTreeSet<&str>,
    now: Timestamp,
) -> Vec<PlannedWrite> {
    let (truth, reason, message) = match addresses.is_empty() {
        true => (
            Truth::False,
            "AccessRestricted",
            "gateways require API keys, or serve only their own machine".to_owned(),
        ),
        false => {
            let named: Vec<_> = addresses.iter().copied().take(MAX_ADDRESSES).collect();
            let more = match addresses.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (
                Truth::True,
                "AllowAnonymous",
                format!(
                    "every client that reaches the gateway at {}{more} can send requests (--allow-anonymous)",
                    named.join(", ")
                ),
            )
        }
    };
    let write = |deployment: &Arc<ModelDeployment>| {
        let mut status = deployment.status.clone().unwrap_or_default();
        let mut known = status.conditions.iter();
        let is_known = known.any(|condition| condition.type_ == condition_type::ANONYMOUS_ACCESS);
        if deployment.metadata.deletion_timestamp.is_some() || (addresses.is_empty() && !is_known) {
            return None;
        }
        let is_changed = set_condition(
            &mut status.conditions,
            condition_type::ANONYMOUS_ACCESS,
            truth,
            reason,
            message.clone(),
            deployment.metadata.generation,
            now,
        );
        let (of, status) = (Version::of(deployment.as_ref()), Box::new(status));
        is_changed.then(|| Intent::DeploymentStatus { of, status }.into())
    };
    deployments.iter().filter_map(write).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(conditions: serde_json::Value) -> Arc<ModelDeployment> {
        let object = json!({
            "apiVersion": "rooflet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "guide", "namespace": "default", "generation": 3},
            "spec": {"model": {"source": "local://guide"}, "serving": {}},
            "status": {"conditions": conditions},
        });
        Arc::new(serde_json::from_value(object).expect("a deployment"))
    }

    /// Returns the written conditions as `type=status/reason`, and the last message.
    fn written(deployment: &Arc<ModelDeployment>, addresses: &[&str]) -> Option<(String, String)> {
        let addresses = addresses.iter().copied().collect();
        let writes = writes(
            std::slice::from_ref(deployment),
            &addresses,
            Timestamp::UNIX_EPOCH,
        );
        let Intent::DeploymentStatus { status, .. } = &writes.first()?.intent else {
            panic!("{writes:?}");
        };
        let shown = status
            .conditions
            .iter()
            .map(|condition| format!("{}={}/{}", condition.type_, condition.status, condition.reason));
        let last = status.conditions.last().expect("a condition");
        Some((shown.collect::<Vec<_>>().join(" "), last.message.clone()))
    }

    #[test]
    fn condition_follows_the_gateways_and_is_absent_without_them() {
        let at = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "1970-01-01T00:00:00Z", "observedGeneration": 3,
            })
        };
        let ready = at("Ready", "True", "AllReplicasReady", "");
        let fresh = deployment(json!([ready]));
        assert_eq!(written(&fresh, &[]), None);
        let (conditions, message) = written(&fresh, &["192.0.2.7:7480", "192.0.2.8:7480"]).expect("a write");
        assert_eq!(
            conditions,
            "Ready=True/AllReplicasReady AnonymousAccess=True/AllowAnonymous"
        );
        assert_eq!(
            message,
            "every client that reaches the gateway at 192.0.2.7:7480, 192.0.2.8:7480 can send requests \
             (--allow-anonymous)"
        );
        let many = [
            "192.0.2.1:1",
            "192.0.2.2:1",
            "192.0.2.3:1",
            "192.0.2.4:1",
            "192.0.2.5:1",
        ];
        let (_, message) = written(&fresh, &many).expect("a write");
        assert!(message.contains("192.0.2.3:1 and 2 more can"), "{message}");

        let message =
            "every client that reaches the gateway at 192.0.2.7:7480 can send requests (--allow-anonymous)";
        let open = deployment(json!([at("AnonymousAccess", "True", "AllowAnonymous", message)]));
        assert_eq!(written(&open, &["192.0.2.7:7480"]), None);
        let (conditions, _) = written(&open, &[]).expect("a write");
        assert_eq!(conditions, "AnonymousAccess=False/AccessRestricted");
    }

    #[test]
    fn addresses_are_those_of_leases_with_the_annotation() {
        let lease = |annotations: serde_json::Value| -> Lease {
            let object = json!({"metadata": {"name": "rooflet-gateway-a", "annotations": annotations}});
            serde_json::from_value(object).expect("a Lease")
        };
        let with = lease(json!({"rooflet.dev/anonymous-access": "192.0.2.7:7480"}));
        let without = lease(json!({"rooflet.dev/demand": "{}"}));
        assert_eq!(addresses(&[&with, &without, &with]), ["192.0.2.7:7480"].into());
    }
}

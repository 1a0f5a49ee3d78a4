//! Reports the queued requests of autoscaled models to the controller.
//!
//! Each gateway writes the numbers to an annotation of its own Lease: immediately when the first
//! request of a model is queued, else every few seconds. Another annotation contains the address of a gateway
//! that serves other machines without API keys. Without such access and without an autoscaled model, the
//! gateway writes no Lease.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::dispatch::Dispatcher;
use crate::routing::table::RoutingTable;
use rooflet_api::meta::{
    ANONYMOUS_ACCESS_ANNOTATION, DEMAND_ANNOTATION, GATEWAY_LEASE_PREFIX, LEASE_NAMESPACE,
};
use rooflet_api::wire::Demand;
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_client::{ApiError, Attempts, FIELD_MANAGER};

/// Maximum delay before changed numbers are written.
const PERIOD: Duration = Duration::from_secs(5);
/// Number of periods after which unchanged numbers are written again, so that the Lease stays
/// valid.
const RENEW_PERIODS: u32 = 3;
/// Minimum time between two writes.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writer of the gateway's demand to its Lease; see the module documentation.
pub(super) struct DemandReporter {
    leases: Api<Lease>,
    name: String,
    dispatcher: Dispatcher,
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    /// Address at which other machines send requests without a key.
    anonymous: Option<SocketAddr>,
    clock: Clock,
}

/// Returns the name of the gateway's Lease. Stable across builds, so that an upgraded gateway keeps
/// its Lease.
fn lease_name(identity: &str) -> String {
    let digest = Sha256::digest(identity);
    format!("{GATEWAY_LEASE_PREFIX}{}", hex::encode(&digest[..8]))
}

impl DemandReporter {
    /// Creates a reporter. `identity` must be unique among running gateways, and should survive a
    /// restart.
    pub(super) fn new(
        client: Client,
        identity: &str,
        dispatcher: Dispatcher,
        table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
        clock: Clock,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, LEASE_NAMESPACE),
            name: lease_name(identity),
            dispatcher,
            table_rx,
            anonymous: None,
            clock,
        }
    }

    /// Reports that other machines send requests to `anonymous` without a key.
    pub(super) fn with_anonymous_address(self, anonymous: Option<SocketAddr>) -> Self {
        Self { anonymous, ..self }
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let mut demand_rx = self.dispatcher.demand();
        let mut written: Option<Demand> = None;
        // Demand of failed writes. The request that would scale a model from zero may have been
        // cancelled since.
        let mut unsent = Demand::default();
        let mut age = 0;
        let mut attempts = Attempts::new("reporting demand");
        loop {
            demand_rx.mark_unchanged();
            if let Some(demand) = self.collect(std::mem::take(&mut unsent)) {
                age += 1;
                if written.as_ref() != Some(&demand) || age >= RENEW_PERIODS {
                    let writing = tokio::time::timeout(WRITE_TIMEOUT, self.write(&demand)).await;
                    let late = |_| Err(ApiError::Unreachable("the request timed out".to_owned()));
                    match writing.unwrap_or_else(late) {
                        Ok(()) => {
                            attempts.succeeded();
                            (written, age) = (Some(demand), 0);
                        }
                        Err(err) => {
                            attempts.failed(&err);
                            unsent = demand;
                        }
                    }
                }
            }
            let pause = async {
                tokio::time::sleep(MIN_PAUSE).await;
                drop(tokio::time::timeout(PERIOD - MIN_PAUSE, demand_rx.changed()).await);
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = pause => {}
            }
        }
        if written.is_some() {
            let params = DeleteParams::default();
            let deleted = self.leases.delete(&self.name, &params);
            // A Lease that remains expires.
            drop(tokio::time::timeout(MIN_PAUSE, deleted).await);
        }
    }

    /// Returns the peak of queued requests per model since the last call, at least the value in
    /// `unsent`.
    ///
    /// Returns `None` if no model is autoscaled, and the gateway does not serve without keys.
    fn collect(&self, mut unsent: Demand) -> Option<Demand> {
        let table = self.table_rx.latest()?;
        let mut peaks = self.dispatcher.take_peaks();
        let mut waiting: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let mut any = self.anonymous.is_some();
        for model in table.all().filter(|model| model.autoscaled) {
            any = true;
            let (namespace, name) = model.key();
            let before = unsent.waiting.get_mut(&namespace).and_then(|of| of.remove(&name));
            let since = peaks.remove(&(namespace.clone(), name.clone()));
            if let Some(peak) = before.max(since) {
                waiting.entry(namespace).or_default().insert(name, peak);
            }
        }
        any.then_some(Demand { waiting })
    }

    async fn write(&self, demand: &Demand) -> Result<(), ApiError> {
        let text = serde_json::to_string(demand).expect("a demand has only string keys");
        let spec = LeaseSpec {
            holder_identity: Some(self.name.clone()),
            renew_time: Some(MicroTime(self.clock.now())),
            ..LeaseSpec::default()
        };
        let anonymous = self.anonymous.map(|address| address.to_string());
        let anonymous = anonymous.map(|address| (ANONYMOUS_ACCESS_ANNOTATION.to_owned(), address));
        let annotations = [(DEMAND_ANNOTATION.to_owned(), text)]
            .into_iter()
            .chain(anonymous);
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                annotations: Some(annotations.collect()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
        };
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let mut patch = serde_json::to_value(&lease).expect("a Lease has only string keys");
        if self.anonymous.is_none() {
            // Removes the annotation of an earlier process.
            patch["metadata"]["annotations"][ANONYMOUS_ACCESS_ANNOTATION] = Value::Null;
        }
        let patched = self
            .leases
            .patch(&self.name, &params, &Patch::Merge(&patch))
            .await
            .map_err(ApiError::from);
        match patched {
            Err(ApiError::NotFound(_)) => {
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                self.leases.create(&params, &lease).await?;
                Ok(())
            }
            Err(err) => Err(err),
            Ok(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;

    use super::*;
    use crate::metrics::GatewayMetrics;
    use crate::routing::table::Model;
    use rooflet_base::metrics::Registry;

    /// Result of the first write; later writes succeed.
    #[derive(Clone, Copy)]
    enum First {
        Fails,
        Hangs,
    }

    /// Returns a client of a fake API server, and the demand annotations written to it.
    fn server(first: First) -> (Client, Arc<Mutex<Vec<String>>>) {
        let written = Arc::new(Mutex::new(Vec::new()));
        let known = written.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let written = written.clone();
            async move {
                let is_write = request.method() == Method::PATCH;
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut response = Response::new(Body::from(body.to_vec()));
                if !is_write {
                    return Ok(response);
                }
                let lease: Value = serde_json::from_slice(&body).expect("JSON");
                let demand = &lease["metadata"]["annotations"][DEMAND_ANNOTATION];
                let turn = {
                    let mut written = written.lock().expect("whole");
                    written.push(demand.as_str().expect("text").to_owned());
                    written.len()
                };
                match first {
                    First::Fails if turn == 1 => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
                    First::Hangs if turn == 1 => std::future::pending().await,
                    First::Fails | First::Hangs => {}
                }
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        (Client::new(service, "default"), known)
    }

    #[test]
    fn lease_name_is_stable_across_builds() {
        // `printf studio_127.0.0.1:7480 | sha256sum`
        assert_eq!(
            lease_name("studio_127.0.0.1:7480"),
            "rooflet-gateway-d0cbcf1f7c8e5b73"
        );
    }

    /// The failed write may hold the only demand for a model at zero.
    #[tokio::test(start_paused = true)]
    async fn writes_demand_of_failed_write_again() {
        for first in [First::Fails, First::Hangs] {
            let (client, written) = server(first);
            let model = Model {
                namespace: "default".to_owned(),
                name: "guide".to_owned(),
                autoscaled: true,
                ..Model::default()
            };
            let table = RoutingTable::of_models([model.clone()]);
            let (_table_tx, table_rx) = watch::channel(Some(Arc::new(table)));
            let metrics = GatewayMetrics::register(&Registry::new()).expect("a fresh registry");
            let dispatcher = Dispatcher::new(table_rx.clone(), Clock::System, metrics);
            dispatcher.note_demand(&model);
            let reporter = DemandReporter::new(client, "me", dispatcher, table_rx, Clock::System);
            let running = reporter.run(CancellationToken::new());
            drop(tokio::time::timeout(3 * WRITE_TIMEOUT, running).await);
            let written = written.lock().expect("whole").clone();
            let wanted = r#"{"waiting":{"default":{"guide":1}}}"#;
            assert_eq!(written.first().map(String::as_str), Some(wanted));
            assert_eq!(written.get(1).map(String::as_str), Some(wanted), "{written:?}");
        }
    }
}

//! Tells the controller what waits in this gateway, for the models whose number of replicas follows it: in an
//! annotation of a Lease, written at once when something begins to wait for a model, else every few seconds at most,
//! and not at all while there is no such model. Several gateways have a Lease each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::affinity::stable_hash;
use super::dispatch::Dispatcher;
use super::table::RoutingTable;
use crate::api::meta::{DEMAND_ANNOTATION, GATEWAY_LEASE_PREFIX, LEASE_NAMESPACE};
use crate::client::{ApiError, FIELD_MANAGER};
use crate::clock::Clock;
use crate::error::Chain;
use crate::latest::Latest;
use crate::wire::Demand;

/// Figures that changed are written after this time.
const PERIOD: Duration = Duration::from_secs(5);
/// Figures that did not change are renewed after this many periods, so that they go on counting.
const RENEW_PERIODS: u32 = 3;
/// The least time between two writes.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct DemandReporter {
    leases: Api<Lease>,
    name: String,
    dispatcher: Dispatcher,
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    clock: Clock,
}

impl DemandReporter {
    /// `identity` must differ between gateways that run at the same time, and should stay the same over a restart.
    pub(super) fn new(
        client: Client,
        identity: &str,
        dispatcher: Dispatcher,
        table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
        clock: Clock,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, LEASE_NAMESPACE),
            name: format!("{GATEWAY_LEASE_PREFIX}{:016x}", stable_hash(identity)),
            dispatcher,
            table_rx,
            clock,
        }
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let mut demand_rx = self.dispatcher.demand();
        let mut written: Option<Demand> = None;
        let mut age = 0;
        let mut failing = false;
        loop {
            demand_rx.mark_unchanged();
            if let Some(demand) = self.collect() {
                age += 1;
                if written.as_ref() != Some(&demand) || age >= RENEW_PERIODS {
                    match self.write(&demand).await {
                        Ok(()) => (written, age, failing) = (Some(demand), 0, false),
                        Err(err) if failing => {
                            debug!(error = %Chain(&err), "demand still cannot be reported")
                        }
                        Err(err) => {
                            failing = true;
                            warn!(error = %Chain(&err), "demand cannot be reported; trying again");
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
            // What stays behind stops counting by itself.
            drop(tokio::time::timeout(MIN_PAUSE, deleted).await);
        }
    }

    /// The most that waited for each model since the last time. `None` where no model follows it.
    fn collect(&self) -> Option<Demand> {
        let table = self.table_rx.latest()?;
        let mut peaks = self.dispatcher.take_peaks();
        let mut waiting: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let mut any = false;
        for model in table.all().filter(|model| model.autoscaled) {
            any = true;
            let (namespace, name) = model.key();
            if let Some(peak) = peaks.remove(&(namespace.clone(), name.clone())) {
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
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                annotations: Some([(DEMAND_ANNOTATION.to_owned(), text)].into()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
        };
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = self
            .leases
            .patch(&self.name, &params, &Patch::Merge(&lease))
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

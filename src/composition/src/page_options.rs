//! Options of the web page's server.

use std::sync::Arc;

use camino::Utf8PathBuf;
use serde_json::json;

use rooflet_api::v1alpha1::ApiKey;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_controller::intent::Snapshot;
use rooflet_controller::{Preview, PreviewOptions, ProposedChange, preview};
use rooflet_proxy::Upstream;
use rooflet_roofline::chip;
use rooflet_web::{FleetObjects, Planner, PrometheusConfig, PrometheusUrl};

/// Other servers from which the web page reads.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PageOptions {
    /// URL of the gateway for the web page, such as `http://gateway:80`. Default: the gateway at
    /// --gateway-listen.
    #[arg(long, value_name = "URL")]
    pub(crate) gateway_url: Option<Upstream>,
    /// URL of a Prometheus that scrapes the fleet. The web page then shows histories of more than 24 hours.
    #[arg(long, value_name = "URL", env = "ROOFLET_PROMETHEUS_URL")]
    prometheus_url: Option<PrometheusUrl>,
    /// File with the bearer token for --prometheus-url. The server reads the file for each query.
    #[arg(
        long,
        value_name = "FILE",
        env = "ROOFLET_PROMETHEUS_TOKEN_FILE",
        requires = "prometheus_url"
    )]
    prometheus_token_file: Option<Utf8PathBuf>,
}

impl PageOptions {
    /// Returns the Prometheus, if one is configured.
    pub(crate) fn prometheus(&self) -> Option<PrometheusConfig> {
        Some(PrometheusConfig {
            url: self.prometheus_url.clone()?,
            token_file: self.prometheus_token_file.clone(),
        })
    }
}

/// Returns the planner of previews. `reserve_node_failures` is the value of the controller.
pub(crate) fn planner(reserve_node_failures: usize, clock: Clock) -> Planner {
    Planner::new(move |objects, change, must_stop| {
        let change = serde_json::from_slice::<ProposedChange>(change);
        let change = change.map_err(|err| format!("the body of the request is invalid: {err}"))?;
        let (snapshot, keys) = snapshot(objects).map_err(|err| err.to_string())?;
        let options = PreviewOptions {
            reserve_node_failures,
            now: clock.now(),
            force: false,
            keys,
            must_stop,
        };
        let planned = preview(snapshot, &change, &options);
        let planned: Preview = planned.map_err(|err| Chain(&err).to_string())?;
        serde_json::to_value(planned).map_err(|err| err.to_string())
    })
}

fn snapshot(objects: FleetObjects) -> serde_json::Result<(Snapshot, Option<Vec<Arc<ApiKey>>>)> {
    let keys = objects.keys.map(serde_json::from_value).transpose()?;
    let snapshot = Snapshot {
        nodes: serde_json::from_value(objects.nodes)?,
        deployments: serde_json::from_value(objects.deployments)?,
        revisions: serde_json::from_value(objects.revisions)?,
        replicas: serde_json::from_value(objects.replicas)?,
        ..Snapshot::default()
    };
    Ok((snapshot, keys))
}

/// Returns the Macs that are sold, for the form of a plan.
pub(crate) fn catalogue() -> serde_json::Value {
    let macs = chip::catalogue().iter().map(|variant| {
        let memory = variant
            .memory
            .iter()
            .map(|memory| format!("{}Gi", memory.0 >> 30));
        json!({
            "chip": variant.name,
            "gpuCores": variant.gpu_cores,
            "bandwidthBytesPerSecond": variant.bandwidth.0,
            "memory": memory.collect::<Vec<_>>(),
        })
    });
    json!({ "macs": macs.collect::<Vec<_>>() })
}

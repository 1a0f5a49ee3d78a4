//! Measurements: again and again everything since the process began, so that a collector that was away has lost nothing.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::settings::MetricSettings;
use super::{Collector, LAST_EXPORT, StartError, encode};
use crate::meter::Meter;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;

pub(super) fn export(
    settings: MetricSettings,
    clock: Clock,
    stop: CancellationToken,
    tasks: &Tasks,
) -> Result<Meter, StartError> {
    let meter = Meter::default();
    let exporter = Exporter {
        collector: Collector::new("metrics", settings.destination)?,
        interval: settings.interval,
        begin_nanos: clock.now().as_nanosecond(),
        clock,
        meter: meter.clone(),
    };
    tasks.spawn_detached(exporter.run(stop));
    Ok(meter)
}

struct Exporter {
    collector: Collector,
    interval: Duration,
    /// Unix time at which the meter began.
    begin_nanos: i128,
    clock: Clock,
    meter: Meter,
}

impl Exporter {
    async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.interval) => self.send().await,
                () = stop.cancelled() => break,
            }
        }
        if tokio::time::timeout(LAST_EXPORT, self.send()).await.is_err() {
            warn!("the last measurements were not taken in time");
        }
    }

    async fn send(&self) {
        let measured = self.meter.measured();
        if measured.is_empty() {
            return;
        }
        let interval = self.begin_nanos..self.clock.now().as_nanosecond();
        let body = encode::metrics(&self.collector.destination.resource, &measured, &interval);
        match self.collector.post(&body).await {
            Ok(()) => debug!("measurements were exported"),
            Err(err) => warn!(error = %Chain(&err), "measurements were not taken; they go with the next"),
        }
    }
}

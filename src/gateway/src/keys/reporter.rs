//! Reports the use of keys to their status, through which gateways share limits.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tracing::debug;

use super::Keys;
use super::ring::KeyReport;
use rooflet_api::v1alpha1::ApiKey;
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, Attempts, FIELD_MANAGER};

/// Time between two reports of a key.
pub(super) const PERIOD: Duration = Duration::from_secs(10);
/// Timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Writes at a time.
const CONCURRENT_WRITES: usize = 8;

/// Starts the task that reports until `tasks` stop, and then once more.
pub(super) fn start(tasks: &Tasks, client: Client, keys: Keys) {
    tasks.spawn("key reports", move |stop| {
        Box::pin(async move {
            let mut attempts = Attempts::new("reporting the use of API keys");
            loop {
                let is_last = tokio::select! {
                    () = stop.cancelled() => true,
                    () = tokio::time::sleep(PERIOD) => false,
                };
                report(&client, &keys, &mut attempts).await;
                if is_last {
                    return Ok::<_, std::convert::Infallible>(());
                }
            }
        })
    });
}

async fn report(client: &Client, keys: &Keys, attempts: &mut Attempts) {
    let reports = keys.ring().reports(keys.clock.now());
    let writes = reports.into_iter().map(|report| async {
        let writing = tokio::time::timeout(WRITE_TIMEOUT, write(client, &report)).await;
        let late = |_| Err(ApiError::Unreachable("the request timed out".to_owned()));
        (writing.unwrap_or_else(late), report)
    });
    let mut writes = std::pin::pin!(futures::stream::iter(writes).buffer_unordered(CONCURRENT_WRITES));
    while let Some((result, report)) = writes.next().await {
        match result {
            Ok(()) => {
                attempts.succeeded();
                keys.ring().reported(report);
            }
            // The key was deleted, or another gateway wrote meanwhile: the watch brings the change.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {
                debug!(
                    namespace = report.namespace,
                    key = report.name,
                    "use not reported; trying again"
                );
                keys.ring().not_reported(&report.uid);
            }
            Err(err) => {
                attempts.failed(&err);
                keys.ring().not_reported(&report.uid);
            }
        }
    }
}

async fn write(client: &Client, report: &KeyReport) -> Result<(), ApiError> {
    let api: Api<ApiKey> = Api::namespaced(client.clone(), &report.namespace);
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    api.patch_status(&report.name, &params, &Patch::Merge(report.patch()))
        .await
        .map(drop)
        .map_err(ApiError::from)
}

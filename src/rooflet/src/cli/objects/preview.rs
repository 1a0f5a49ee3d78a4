//! Dry runs: the consequences of a change, without the change.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::Failure;
use rooflet_base::clock::Clock;
use rooflet_client::ApiError;
use rooflet_controller::intent::Snapshot;
use rooflet_controller::{Change, ChangedObject, Preview, PreviewOptions, ProposedChange, preview};

/// Flags of verbs with a dry run.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct DryRun {
    /// Change nothing, and print the replicas that would move, start, stop or wait.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Number of simultaneous node failures for which capacity stays free. Must equal the controller's value,
    /// otherwise the preview differs. Only with --dry-run.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "dry_run", value_parser = clap::value_parser!(u8).range(0..=3))]
    reserve_node_failures: u8,
}

impl DryRun {
    /// Returns the consequences of a merge patch. `force` also deletes the replicas of the node.
    pub(crate) async fn preview(
        self,
        client: &Client,
        object: ChangedObject,
        patch: Value,
        force: bool,
    ) -> Result<Preview, Failure> {
        let snapshot = Snapshot {
            nodes: list(client).await?,
            deployments: list(client).await?,
            revisions: list(client).await?,
            replicas: list(client).await?,
            ..Snapshot::default()
        };
        let change = Change::Patch(patch);
        let change = ProposedChange { object, change };
        let options = PreviewOptions {
            reserve_node_failures: self.reserve_node_failures.into(),
            now: Clock::System.now(),
            force,
            keys: None,
            must_stop: &|| false,
        };
        let planned = preview(snapshot, &change, &options);
        Ok(planned.map_err(anyhow::Error::from)?)
    }
}

/// Returns the consequences, one per line.
pub(crate) fn lines(preview: &Preview) -> String {
    let replicas = preview.replicas.iter().map(|replica| &replica.message);
    let mut lines: String = replicas
        .chain(&preview.waiting)
        .chain(&preview.notes)
        .map(|line| format!("{line} (dry run)\n"))
        .collect();
    if let Some(reason) = &preview.incomplete_reason {
        lines.push_str(&format!("further consequences are not computed: {reason}\n"));
    }
    lines
}

async fn list<K>(client: &Client) -> Result<Vec<Arc<K>>, Failure>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let listed = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    let listed = listed.map_err(ApiError::from)?;
    Ok(listed.items.into_iter().map(Arc::new).collect())
}

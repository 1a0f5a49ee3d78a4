//! ConfigMap with the figures of the node's last probe. The status of the node has only the speed that
//! follows from them, so that `kubectl describe` stays short.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tracing::warn;

use super::hardware::probe_of;
use super::probe::ProbeResult;
use rooflet_api::meta::{LEASE_NAMESPACE, PROBE_KEY, probe_config_map};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::error::Chain;
use rooflet_client::{ApiError, FIELD_MANAGER};

/// Writer of the ConfigMap. Clones share everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeRecord {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// UID of the node and text of the last write.
    written: Option<(String, String)>,
    /// Last error, which is logged once.
    failed: Option<String>,
}

impl ProbeRecord {
    /// Writes the figures unless this agent has already written them. A failure is logged, and the next
    /// report of the node tries again: the status does not depend on the ConfigMap.
    pub(super) async fn publish(&self, client: &Client, node: &FleetNode, last: Option<&ProbeResult>) {
        let (Some(last), Some(uid)) = (last, node.uid()) else {
            return;
        };
        let text = serde_json::to_string_pretty(&probe_of(last)).expect("numbers and strings serialise");
        let next = (uid, text);
        if self.lock().written.as_ref() == Some(&next) {
            return;
        }
        match write(client, node, &next.1).await {
            Ok(()) => {
                let mut state = self.lock();
                state.written = Some(next);
                state.failed = None;
            }
            Err(err) => {
                let problem = Chain(&err).to_string();
                let is_new = self.lock().failed.replace(problem.clone()) != Some(problem.clone());
                if is_new {
                    warn!(
                        error = problem,
                        config_map = format!("{LEASE_NAMESPACE}/{}", probe_config_map(&node.name_any())),
                        "failed to write the figures of the probe; the agent tries again"
                    );
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the ConfigMap, or creates it.
async fn write(client: &Client, node: &FleetNode, text: &str) -> Result<(), ApiError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let name = probe_config_map(&node.name_any());
    let owners = node.owner_ref(&()).map(|owner| vec![owner]);
    let data = BTreeMap::from([(PROBE_KEY.to_owned(), text.to_owned())]);
    let field_manager = Some(FIELD_MANAGER.to_owned());
    // A registered node has another UID after a rebuild of the control plane.
    let patch = json!({ "metadata": { "ownerReferences": owners }, "data": data });
    let params = PatchParams {
        field_manager: field_manager.clone(),
        ..PatchParams::default()
    };
    match maps
        .patch(&name, &params, &Patch::Merge(&patch))
        .await
        .map_err(ApiError::from)
    {
        Err(ApiError::NotFound(_)) => {}
        patched => return patched.map(drop),
    }
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(LEASE_NAMESPACE.to_owned()),
            owner_references: owners,
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    let params = PostParams {
        field_manager,
        ..PostParams::default()
    };
    maps.create(&params, &map).await?;
    Ok(())
}

//! Functions by which the controller in this process provides its history.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

type History = dyn Fn(&str) -> Option<Value> + Send + Sync;

/// Functions that return the history of the deployment or node with a UID, or `None` before its first
/// value.
#[derive(Clone)]
pub struct HistorySource {
    deployments: Arc<History>,
    nodes: Arc<History>,
}

impl HistorySource {
    pub fn new(
        deployments: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
        nodes: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        Self {
            deployments: Arc::new(deployments),
            nodes: Arc::new(nodes),
        }
    }

    pub(crate) fn of(&self, uid: &str) -> Option<Value> {
        (self.deployments)(uid)
    }

    pub(crate) fn of_node(&self, uid: &str) -> Option<Value> {
        (self.nodes)(uid)
    }
}

impl fmt::Debug for HistorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HistorySource")
    }
}

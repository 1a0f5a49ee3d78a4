//! Function by which the controller in this process provides its history.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

type History = dyn Fn(&str) -> Option<Value> + Send + Sync;

/// Function that returns the history of the deployment with a UID, or `None` before its first value.
#[derive(Clone)]
pub struct HistorySource(Arc<History>);

impl HistorySource {
    pub fn new(source: impl Fn(&str) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    pub(crate) fn of(&self, uid: &str) -> Option<Value> {
        (self.0)(uid)
    }
}

impl fmt::Debug for HistorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HistorySource")
    }
}

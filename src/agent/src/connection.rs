//! State of the connection to the API server, for the agent's `/health`.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_client::ApiError;

/// Outcome of the last request of a periodic task. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionState {
    /// Message of the last failure; `None` before the first outcome.
    last: Arc<Mutex<Option<Result<(), String>>>>,
}

impl ConnectionState {
    pub(crate) fn succeeded(&self) {
        *lock(&self.last) = Some(Ok(()));
    }

    pub(crate) fn failed(&self, err: &ApiError) {
        *lock(&self.last) = Some(Err(Chain(err).to_string()));
    }

    pub(crate) fn to_json(&self) -> Value {
        match &*lock(&self.last) {
            None => json!({"status": "connecting"}),
            Some(Ok(())) => json!({"status": "ok"}),
            Some(Err(message)) => json!({"status": "failed", "message": message}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_has_the_last_outcome() {
        let state = ConnectionState::default();
        assert_eq!(state.to_json()["status"], "connecting");
        state.failed(&ApiError::Refused {
            server: "API server https://192.0.2.1:7443".to_owned(),
        });
        let failed = state.to_json();
        let message = failed["message"].as_str().unwrap();
        assert_eq!(failed["status"], "failed");
        assert!(
            message.contains("https://192.0.2.1:7443 refused the connection; check"),
            "{message}"
        );
        state.succeeded();
        assert_eq!(state.to_json(), json!({"status": "ok"}));
    }
}

//! Connection test of the hub.

use std::time::Duration;

use reqwest::header::DATE;

use super::{HubAccess, client, header_text};

/// Timeout of the connection and the response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Error: the hub did not respond.
#[derive(Debug, thiserror::Error)]
#[error("no response from the hub")]
pub struct UnreachableHub(#[source] reqwest::Error);

impl HubAccess {
    /// Requests the start page of the hub, without credentials. Returns the date of the response.
    /// Every status counts as a response.
    pub async fn reach(&self) -> Result<Option<String>, UnreachableHub> {
        let client = client(&self.endpoint).timeout(TIMEOUT).build();
        let request = client.map_err(UnreachableHub)?.head(self.endpoint.clone());
        let response = request.send().await;
        let response = response.map_err(|err| UnreachableHub(err.without_url()))?;
        Ok(header_text(response.headers(), DATE.as_str()).map(str::to_owned))
    }
}

//! Detection of sleep of the machine, and a client that renews its connections afterwards. The
//! errors of this client contain the address of the server.
//!
//! During sleep the server and the network drop connections, and the client receives no notice. A
//! request or watch on such a connection never receives a response. Timeouts do not help: the clock
//! that measures them stops during sleep.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Config};
use tower::service_fn;
use tracing::debug;

use super::error::{AtServer, explain_unauthorized};
use rooflet_base::clock::{Clock, Moment};
use rooflet_base::mutex::lock;

/// Shortest sleep after which connections are renewed. Smaller differences between the clocks are
/// corrections of the wall clock.
const SHORTEST_SLEEP: Duration = Duration::from_secs(10);

/// Detector of sleep. It compares the advance of both clocks between two calls.
#[derive(Debug)]
pub(crate) struct SleepDetector {
    clock: Clock,
    last: Moment,
}

impl SleepDetector {
    pub(crate) fn new(clock: Clock) -> Self {
        let last = Moment::now(&clock);
        Self { clock, last }
    }

    /// Returns how long the machine slept since the last call, if long enough to drop connections.
    pub(crate) fn slept(&mut self) -> Option<Duration> {
        let now = Moment::now(&self.clock);
        let slept = now.slept_since(std::mem::replace(&mut self.last, now));
        (slept > SHORTEST_SLEEP).then_some(slept)
    }
}

/// Creates a client that opens new connections for all requests after a sleep. Requests that began
/// before the sleep keep their connections.
pub(crate) fn renewing_client(config: Config, clock: Clock) -> kube::Result<Client> {
    let namespace = config.default_namespace.clone();
    let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = Client::try_from(config.clone())?;
    let state = Arc::new(Mutex::new((SleepDetector::new(clock), client)));
    let current = move || -> kube::Result<Client> {
        let mut state = lock(&state);
        let (detector, client) = &mut *state;
        if let Some(slept) = detector.slept() {
            debug!(
                slept_seconds = slept.as_secs(),
                "opening new connections to the API server"
            );
            *client = Client::try_from(config.clone())?;
        }
        Ok(client.clone())
    };
    let service = service_fn(move |request: Request<Body>| {
        let (client, url) = (current(), url.clone());
        async move {
            let sent = async {
                match client?.send(request).await? {
                    response if response.status() == StatusCode::UNAUTHORIZED => {
                        explained(response, &url).await
                    }
                    response => Ok(response),
                }
            };
            sent.await.map_err(|err| AtServer { url, err })
        }
    });
    Ok(Client::new(service, namespace))
}

/// Adds the server and the remedy to the message of a response with status 401.
async fn explained(response: Response<Body>, url: &str) -> kube::Result<Response<Body>> {
    let (mut head, body) = response.into_parts();
    let bytes = body.collect_bytes().await?;
    let message = serde_json::from_slice(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).trim().to_owned(),
        |status: Status| status.message,
    );
    let status =
        Status::failure(&explain_unauthorized(&message, url), "Unauthorized").with_code(head.status.as_u16());
    let bytes = serde_json::to_vec(&status).map_err(kube::Error::SerdeError)?;
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use rooflet_base::clock::ManualClock;

    use crate::ApiError;

    #[tokio::test]
    async fn unauthorized_responses_name_server_and_remedy() {
        let explained = async |body: &str| {
            let response = Response::builder()
                .status(StatusCode::UNAUTHORIZED)
                .header(CONTENT_LENGTH, body.len())
                .body(Body::from(body.as_bytes().to_vec()))
                .expect("a response");
            let response = explained(response, "https://10.0.0.1:7443")
                .await
                .expect("a body");
            assert_eq!(response.headers().get(CONTENT_LENGTH), None);
            let body = response.into_body().collect_bytes().await.expect("bytes");
            let status: Status = serde_json::from_slice(&body).expect("a Status");
            ApiError::from(kube::Error::Api(status.boxed())).to_string()
        };
        let unknown = r#"{"kind": "Status", "code": 401, "message": "Unauthorized"}"#;
        assert_eq!(
            explained(unknown).await,
            "API server https://10.0.0.1:7443 rejected the credentials: they are unknown to the server or have \
             expired; join again or replace the kubeconfig"
        );
        let revoked = r#"{"kind": "Status", "code": 401, "message": "the certificate is revoked"}"#;
        assert_eq!(
            explained(revoked).await,
            "API server https://10.0.0.1:7443 rejected the credentials: the certificate is revoked"
        );
        let of_proxy = explained("log in first\n").await;
        assert!(
            of_proxy.ends_with("rejected the credentials: log in first"),
            "{of_proxy}"
        );
    }

    #[test]
    fn reports_each_sleep_once_and_ignores_clock_corrections() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let mut detector = SleepDetector::new(Clock::Manual(manual.clone()));
        manual.advance(Duration::from_secs(600));
        assert_eq!(detector.slept(), None, "awake");
        manual.sleep(SHORTEST_SLEEP);
        assert_eq!(detector.slept(), None, "corrected wall clock");
        manual.sleep(Duration::from_secs(3600));
        manual.advance(Duration::from_secs(4));
        assert_eq!(detector.slept(), Some(Duration::from_secs(3600)));
        assert_eq!(detector.slept(), None, "reported once");
    }
}

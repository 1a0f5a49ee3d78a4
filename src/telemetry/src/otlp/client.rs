//! HTTP client of the exporters.

use std::fmt;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

use super::settings::Destination;
use rooflet_base::loopback;

/// HTTP client that sends requests on the runtime that created the client, because the SDK calls
/// its exporters from separate threads.
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl Client {
    pub(super) fn new(destination: &Destination) -> Result<Self, reqwest::Error> {
        let http = loopback::client_of(&destination.endpoint).timeout(destination.timeout);
        Ok(Self {
            http: http.build()?,
            runtime: Handle::current(),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let exchange = async move {
            let mut response = http.execute(request.try_into()?).await?;
            let headers = std::mem::take(response.headers_mut());
            let mut answer = Response::builder().status(response.status());
            if let Some(known) = answer.headers_mut() {
                *known = headers;
            }
            Ok::<_, HttpError>(answer.body(response.bytes().await?)?)
        };
        self.runtime.spawn(exchange).await?
    }
}

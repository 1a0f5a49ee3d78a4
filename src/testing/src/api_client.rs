use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, Method};
use reqwest::Client;
use serde_json::Value;

/// Upper bound of every wait.
const DEADLINE: Duration = Duration::from_secs(20);

/// HTTP client of an API server that a test has started, with the credentials of one user. Panics if the
/// connection fails or a response takes longer than 20 s.
#[derive(Debug, Clone)]
pub struct ApiClient {
    /// Base URL of the server.
    pub url: String,
    /// Bearer token of the requests. Empty for a user with a client certificate.
    pub token: String,
    client: Client,
}

impl ApiClient {
    /// Returns a client of a server without TLS.
    pub fn new(url: String, token: String) -> Self {
        let client = Client::new();
        Self { url, token, client }
    }

    /// Returns a client that trusts the authority in the file `ca.pem` of `directory`.
    pub fn with_authority(url: String, token: String, directory: &Path) -> Self {
        let client = client_of(directory, None);
        Self { url, token, client }
    }

    /// Returns a client of the same server with another token, or with a key and certificate in PEM. It
    /// trusts the authority in the file `ca.pem` of `directory`.
    pub fn as_user(&self, token: &str, identity: Option<&str>, directory: &Path) -> Self {
        Self {
            url: self.url.clone(),
            token: token.to_owned(),
            client: client_of(directory, identity),
        }
    }

    /// Sends a request with the token and additional headers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> ApiResponse {
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .body(body);
        let mut request = request.bearer_auth(&self.token);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = tokio::time::timeout(DEADLINE, request.send())
            .await
            .expect("in time")
            .expect("a response");
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.expect("a body");
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        ApiResponse { code, body, headers }
    }

    /// Reads `path`.
    pub async fn get(&self, path: &str) -> ApiResponse {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    /// Reads `path` in the media type `accept`.
    pub async fn get_as(&self, path: &str, accept: &str) -> ApiResponse {
        self.send(Method::GET, path, &[("accept", accept)], Vec::new())
            .await
    }

    /// Creates an object.
    pub async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.send_json(Method::POST, path, "application/json", body).await
    }

    /// Replaces an object.
    pub async fn put(&self, path: &str, body: &Value) -> ApiResponse {
        self.send_json(Method::PUT, path, "application/json", body).await
    }

    /// Sends a JSON merge patch.
    pub async fn merge(&self, path: &str, body: &Value) -> ApiResponse {
        self.send_json(Method::PATCH, path, "application/merge-patch+json", body)
            .await
    }

    /// Deletes an object.
    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.send(Method::DELETE, path, &[], Vec::new()).await
    }

    /// Starts a watch whose frames are read as they arrive.
    pub async fn watch(&self, path: &str) -> Frames {
        self.watch_as(path, "application/json").await
    }

    /// Starts a watch in the media type `accept`.
    pub async fn watch_as(&self, path: &str, accept: &str) -> Frames {
        let request = self
            .client
            .get(format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        let response = request.header("accept", accept).send().await.expect("a response");
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Frames {
            response,
            buffer: Vec::new(),
        }
    }

    async fn send_json(&self, method: Method, path: &str, media_type: &str, body: &Value) -> ApiResponse {
        let headers = &[("content-type", media_type)];
        self.send(method, path, headers, body.to_string().into_bytes())
            .await
    }
}

/// Returns a client that trusts the authority in `directory`, with an optional identity in PEM.
fn client_of(directory: &Path, identity: Option<&str>) -> Client {
    let ca = std::fs::read(directory.join("ca.pem")).expect("an authority");
    let ca = reqwest::Certificate::from_pem(&ca).expect("a certificate");
    let mut builder = Client::builder().tls_certs_only([ca]);
    if let Some(pem) = identity {
        builder =
            builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).expect("a key and a certificate"));
    }
    builder.build().expect("a client")
}

/// Response of an API server.
#[derive(Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub code: u16,
    /// Body as JSON, or as a string if it is not JSON.
    pub body: Value,
    /// Headers of the response.
    pub headers: HeaderMap,
}

impl ApiResponse {
    /// Returns the message of a `Status`, or an empty text for other bodies.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Returns the values of the `Warning` headers.
    pub fn warnings(&self) -> Vec<&str> {
        self.headers
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect()
    }

    /// Returns the media type, or an empty text without one.
    pub fn content_type(&self) -> String {
        let found = self.headers.get("content-type");
        found
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns the resource version of the object or list.
    pub fn version(&self) -> String {
        self.body["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Frames of a watch.
#[derive(Debug)]
pub struct Frames {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Frames {
    /// Returns the next frame, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a frame is JSON"));
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk())
                .await
                .expect("a frame in time");
            match chunk.expect("no transport error") {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return None,
            }
        }
    }

    /// Returns the next frame as `TYPE name`, or `END`.
    pub async fn brief(&mut self) -> String {
        match self.next().await {
            Some(frame) => format!(
                "{} {}",
                frame["type"].as_str().unwrap_or_default(),
                frame["object"]["metadata"]["name"].as_str().unwrap_or("-")
            ),
            None => "END".to_owned(),
        }
    }
}

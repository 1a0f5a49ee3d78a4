//! HTTP client of the tests.

use std::time::Duration;

use serde_json::Value;

/// Complete HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl HttpResponse {
    /// Parses the body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|err| panic!("not JSON ({err}): {}", self.text))
    }

    /// Returns the `data:` payloads of a stream of server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the concatenated text of a streamed chat answer.
    pub(crate) fn streamed_text(&self) -> String {
        let events = self.events();
        let parse = |event: &String| serde_json::from_str::<Value>(event).ok();
        events
            .iter()
            .filter_map(parse)
            .filter_map(|event| {
                event["choices"][0]["delta"]["content"]
                    .as_str()
                    .map(str::to_owned)
            })
            .collect()
    }
}

/// Client for a base URL.
pub(crate) struct Http {
    base: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    /// Header of every request.
    header: Option<(&'static str, String)>,
}

impl Http {
    pub(crate) fn new(base: impl Into<String>) -> Self {
        Self::with_timeout(base, super::TIMEOUT)
    }

    /// Creates a client with another timeout than [`TIMEOUT`](super::TIMEOUT).
    pub(crate) fn with_timeout(base: impl Into<String>, timeout: Duration) -> Self {
        Self::build(base.into(), timeout, Vec::new())
    }

    /// Creates a client of an HTTPS server whose certificate is from an authority in `pem`.
    pub(crate) fn with_authority(base: impl Into<String>, pem: &[u8]) -> Self {
        let authorities = reqwest::Certificate::from_pem_bundle(pem).expect("certificates");
        Self::build(base.into(), super::TIMEOUT, authorities)
    }

    fn build(base: String, timeout: Duration, authorities: Vec<reqwest::Certificate>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        // The installation fails if another client has installed the provider already.
        drop(rustls::crypto::ring::default_provider().install_default());
        // Connections are not reused: the runtime does not run between calls, and does not process
        // the closing of a connection by the server.
        let builder = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .timeout(timeout);
        let builder = authorities
            .into_iter()
            .fold(builder, reqwest::ClientBuilder::add_root_certificate);
        let client = builder.build().expect("a client");
        Self {
            base,
            runtime,
            client,
            header: None,
        }
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Creates a second client for the same URL, for another thread.
    pub(crate) fn duplicate(&self) -> Self {
        Self::new(self.base.clone())
    }

    /// Creates a second client for the same URL, which sends a header with every request.
    pub(crate) fn with_header(&self, name: &'static str, value: &str) -> Self {
        Self {
            header: Some((name, value.to_owned())),
            ..self.duplicate()
        }
    }

    pub(crate) fn get(&self, path: &str) -> Result<HttpResponse, String> {
        self.send(self.client.get(format!("{}{path}", self.base)))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<HttpResponse, String> {
        self.send(self.client.post(format!("{}{path}", self.base)).json(body))
    }

    pub(crate) fn post_text(&self, path: &str, body: &str) -> Result<HttpResponse, String> {
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header("Content-Type", "application/json");
        self.send(request.body(body.to_owned()))
    }

    /// Sends a request with any method, headers and body.
    pub(crate) fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<HttpResponse, String> {
        let method = method.parse().map_err(|err| format!("{method}: {err}"))?;
        let request = self.client.request(method, format!("{}{path}", self.base));
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        self.send(match body {
            Some(body) => request.body(body),
            None => request,
        })
    }

    /// Returns the greedy chat answer of `model` to `question`.
    #[track_caller]
    pub(crate) fn chat(&self, model: &str, question: &str) -> String {
        let answer = self.try_chat(model, question).expect("a response");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    }

    pub(crate) fn try_chat(&self, model: &str, question: &str) -> Result<HttpResponse, String> {
        let messages = serde_json::json!([{"role": "user", "content": question}]);
        let body =
            serde_json::json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 64});
        self.post("/v1/chat/completions", &body)
    }

    /// Sends a POST request and calls `on_head` with the status and the headers before it reads the
    /// body, which may break off.
    pub(crate) fn post_with_head(
        &self,
        path: &str,
        body: &Value,
        on_head: impl FnOnce(u16, &reqwest::header::HeaderMap),
    ) -> Result<HttpResponse, String> {
        self.runtime.block_on(async {
            let request = self.client.post(format!("{}{path}", self.base)).json(body);
            let request = match &self.header {
                Some((name, value)) => request.header(*name, value),
                None => request,
            };
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            on_head(status, &headers);
            let text = response.text().await.map_err(|err| format!("{err:?}"))?;
            Ok(HttpResponse {
                status,
                headers,
                text,
            })
        })
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<HttpResponse, String> {
        let request = match &self.header {
            Some((name, value)) => request.header(*name, value),
            None => request,
        };
        self.runtime.block_on(async {
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.map_err(|err| format!("{err:?}"))?;
            Ok(HttpResponse {
                status,
                headers,
                text,
            })
        })
    }
}

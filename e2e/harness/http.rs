//! A plain HTTP client for the tests.

use std::time::Duration;

use serde_json::Value;

/// An HTTP answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|err| panic!("not JSON ({err}): {}", self.text))
    }

    /// The `data:` payloads of a stream of server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    /// The text of a streamed chat answer, put together.
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

/// A client for one base URL.
pub(crate) struct Http {
    base: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl Http {
    pub(crate) fn new(base: impl Into<String>) -> Self {
        Self::patient(base, super::PATIENCE)
    }

    /// For answers that may take longer than a test waits.
    pub(crate) fn patient(base: impl Into<String>, patience: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        // A second installation is refused, which is fine.
        drop(rustls::crypto::ring::default_provider().install_default());
        // No connection is kept: the runtime stands still between calls and would not see a server
        // close one.
        let client = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .timeout(patience)
            .build()
            .expect("a client");
        Self {
            base: base.into(),
            runtime,
            client,
        }
    }

    /// A second client of the same, for another thread.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.base.clone())
    }

    pub(crate) fn get(&self, path: &str) -> Result<Answer, String> {
        self.send(self.client.get(format!("{}{path}", self.base)))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send(self.client.post(format!("{}{path}", self.base)).json(body))
    }

    pub(crate) fn post_text(&self, path: &str, body: &str) -> Result<Answer, String> {
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header("Content-Type", "application/json");
        self.send(request.body(body.to_owned()))
    }

    /// One greedy chat answer of `model` to `question`.
    #[track_caller]
    pub(crate) fn chat(&self, model: &str, question: &str) -> String {
        let answer = self.try_chat(model, question).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    }

    pub(crate) fn try_chat(&self, model: &str, question: &str) -> Result<Answer, String> {
        let messages = serde_json::json!([{"role": "user", "content": question}]);
        let body =
            serde_json::json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 64});
        self.post("/v1/chat/completions", &body)
    }

    /// The same, and what is heard before the answer's body, told as soon as it is: also of an
    /// answer that breaks off.
    pub(crate) fn post_hearing(
        &self,
        path: &str,
        body: &Value,
        hear: impl FnOnce(u16, &reqwest::header::HeaderMap),
    ) -> Result<Answer, String> {
        self.runtime.block_on(async {
            let request = self.client.post(format!("{}{path}", self.base)).json(body);
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            hear(status, &headers);
            let text = response.text().await.map_err(|err| format!("{err:?}"))?;
            Ok(Answer {
                status,
                headers,
                text,
            })
        })
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer, String> {
        self.runtime.block_on(async {
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.map_err(|err| format!("{err:?}"))?;
            Ok(Answer {
                status,
                headers,
                text,
            })
        })
    }
}

//! Tokens that a request of an API key is charged.

use super::*;
use crate::tests::routing::{broken_stream, streams};
use rooflet_pki::ApiKeySecret;

const START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\
                     \"output_tokens\":0}}}\n\n";
const DELTA: &str =
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n";
const END: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":7,\
                   \"output_tokens\":2}}\n\n";

/// Client of a gateway with a key.
struct KeyClient<'f> {
    fixture: &'f Fixture,
    secret: ApiKeySecret,
}

impl<'f> KeyClient<'f> {
    fn new(fixture: &'f Fixture) -> Self {
        let secret = ApiKeySecret::generate().expect("random numbers");
        let spec = ApiKeySpec {
            secret_hash: secret.hash(),
            ..ApiKeySpec::default()
        };
        let mut key = ApiKey::new("team-a", spec);
        key.metadata.namespace = Some("default".to_owned());
        key.metadata.uid = Some("1".to_owned());
        fixture.gateway.keys().add(key);
        Self { fixture, secret }
    }

    async fn post(&self, path: &'static str) -> Response {
        let body = json!({"model": "guide", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
        let request = Request::builder()
            .method("POST")
            .header("x-api-key", self.secret.reveal())
            .body(Body::from(body.to_string()))
            .expect("valid");
        let path = http::uri::PathAndQuery::from_static(path);
        Proxy::new()
            .forward(request, &self.fixture.url, &path)
            .await
            .expect("the gateway responds")
    }

    /// Returns the tokens of the key after the end of its only request.
    async fn charged(&self) -> u64 {
        let ended = async {
            loop {
                if let Some(tokens) = self.fixture.gateway.keys().tokens_after_one_request() {
                    return tokens;
                }
                tokio::task::yield_now().await;
            }
        };
        within(ended).await
    }
}

async fn read(body: &mut axum::body::BodyDataStream, count: usize) {
    let mut bytes = 0;
    while bytes < count {
        bytes += body.next().await.expect("a chunk").expect("no error").len();
    }
}

#[tokio::test]
async fn interrupted_stream_of_anthropics_api_charges_its_events() {
    for is_cancelled in [true, false] {
        let (fixture, senders) = streams("guide", 1).await;
        let client = KeyClient::new(&fixture);
        let worker = async {
            for chunk in [START, DELTA, DELTA, DELTA] {
                senders[0].send(Ok(Bytes::from(chunk))).await.expect("read");
            }
        };
        let (response, ()) = within(async { tokio::join!(client.post("/v1/messages"), worker) }).await;
        let mut body = response.into_body().into_data_stream();
        within(read(&mut body, START.len() + 3 * DELTA.len())).await;
        if is_cancelled {
            drop(body);
        } else {
            senders[0].send(broken_stream()).await.expect("read");
            assert!(within(body.next()).await.expect("an error").is_err());
        }
        assert_eq!(client.charged().await, 7 + 4, "{is_cancelled}");
    }
}

#[tokio::test]
async fn complete_stream_of_anthropics_api_charges_the_reported_tokens() {
    let (fixture, senders) = streams("guide", 1).await;
    let client = KeyClient::new(&fixture);
    let worker = async {
        for chunk in [START, DELTA, DELTA, END] {
            senders[0].send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(senders);
    };
    let response = async { text(client.post("/v1/messages").await).await };
    within(async { tokio::join!(response, worker) }).await;
    assert_eq!(client.charged().await, 7 + 2);
}

#[tokio::test]
async fn request_cancelled_before_its_response_charges_the_prompt() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let _held = agent_log.hold("g1");
    fixture.set_fleet(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let client = KeyClient::new(&fixture);
    let arrives = async {
        while agent_log.received().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let cancelled = async {
        tokio::select! {
            _ = client.post("/v1/chat/completions") => panic!("the replica is held"),
            () = arrives => {}
        }
    };
    within(cancelled).await;
    assert!(client.charged().await > 0);

    // A request that no replica received costs nothing.
    let fixture = Fixture::new().await;
    fixture.set_fleet(&["guide message=Loading"], &["g1 on=a"], &[("a", &url)]);
    let client = KeyClient::new(&fixture);
    let cancelled = async {
        tokio::select! {
            _ = client.post("/v1/chat/completions") => panic!("no replica is ready"),
            () = fixture.wait_for_queued(1) => {}
        }
    };
    within(cancelled).await;
    assert_eq!(client.charged().await, 0);

    // The agent has no worker for the request, which waits for the next attempt.
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let statuses = BTreeMap::from([("g1".to_owned(), 503)]);
    *agent_log.statuses.lock().expect("ok") = statuses;
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    fixture.set_fleet(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let client = KeyClient::new(&fixture);
    let failed = async {
        let dispatcher = fixture.gateway.dispatcher();
        while agent_log.received().is_empty() || dispatcher.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let cancelled = async {
        tokio::select! {
            _ = client.post("/v1/chat/completions") => panic!("no replica is able"),
            () = failed => {}
        }
    };
    within(cancelled).await;
    assert_eq!(client.charged().await, 0);
}

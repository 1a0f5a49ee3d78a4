//! Choice of replicas, retries, hedging, ejection and stored responses.

use super::*;

/// Sends a request, and returns the replica that served it.
async fn answered_by(fixture: &Fixture, headers: &[(&'static str, &'static str)], body: Value) -> String {
    let mut request = Request::builder().method("POST");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_string())).expect("valid");
    let path = "/v1/chat/completions".parse().expect("a path");
    let response = within(Proxy::new().forward(request, &fixture.url, &path))
        .await
        .expect("the gateway responds");
    assert_eq!(response.status(), StatusCode::OK);
    let replica = response.headers()["x-rooflet-replica"]
        .to_str()
        .expect("ASCII")
        .to_owned();
    drop(text(response).await);
    replica
}

async fn three(deployment: &str) -> Fixture {
    let fixture = Fixture::new().await;
    let url = agent(&fixture.tasks, Arc::new(Agent::default())).await;
    let replicas = [
        "g1 on=a ready of=v1",
        "g2 on=a ready of=v1",
        "g3 on=a ready of=v2",
    ];
    fixture.set_fleet(&[deployment], &replicas, &[("a", &url)]);
    fixture
}

#[tokio::test]
async fn all_gateways_route_a_session_and_a_prefix_to_the_same_replica() {
    let fixture = three("guide").await;
    let other = three("guide").await;
    let prompt = |text: &str| json!({"model": "guide", "prompt": text.repeat(5000)});
    for session in ["ann", "bob", "cat", "dan"] {
        let headers = [("x-session-id", session)];
        let first = answered_by(&fixture, &headers, json!({"model": "guide"})).await;
        for gateway in [&fixture, &other] {
            let again = answered_by(gateway, &headers, json!({"model": "guide"})).await;
            assert_eq!(again, first, "{session}");
        }
    }
    for text in ["a", "b", "c", "d"] {
        let first = answered_by(&fixture, &[], prompt(text)).await;
        for gateway in [&fixture, &other] {
            assert_eq!(answered_by(gateway, &[], prompt(text)).await, first, "{text}");
        }
    }
}

#[tokio::test]
async fn canary_gets_its_traffic_weight() {
    let fixture = three("guide traffic=v1:80,v2:20").await;
    let mut canary = 0;
    for _ in 0..20 {
        let replica = answered_by(&fixture, &[], json!({"model": "guide"})).await;
        canary += usize::from(replica == "default/g3");
    }
    assert_eq!(canary, 4);
    let fixture = three("guide traffic=v1:0,v2:100").await;
    for _ in 0..5 {
        assert_eq!(
            answered_by(&fixture, &[], json!({"model": "guide"})).await,
            "default/g3"
        );
    }
}

/// Creates a fixture with `count` streamed responses that the test writes, in order of the
/// requests.
pub(super) async fn streams(deployment: &str, count: usize) -> (Fixture, Vec<Chunks>) {
    let fixture = Fixture::new().await;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(1)).unzip();
    let receivers = Arc::new(Mutex::new(std::collections::VecDeque::from(receivers)));
    let router = Router::new().fallback(any(move || async move {
        let chunk_rx = receivers
            .lock()
            .expect("ok")
            .pop_front()
            .expect("as many requests as streams");
        let body = Body::from_stream(ReceiverStream::new(chunk_rx));
        ([("content-type", "text/event-stream")], body).into_response()
    }));
    let url = serve_router(&fixture.tasks, router).await.to_string();
    fixture.set_fleet(&[deployment], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    (fixture, senders)
}

const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

pub(super) fn broken_stream() -> std::result::Result<Bytes, std::io::Error> {
    Err(std::io::Error::other("the worker exited"))
}

#[tokio::test]
async fn retries_stream_that_breaks_before_first_token() {
    let (fixture, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let worker_script = async {
        first.send(Ok(Bytes::from(ROLE))).await.expect("read");
        first.send(broken_stream()).await.expect("read");
        for chunk in [ROLE, TOKEN] {
            second.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(second);
    };
    let (response, ()) = within(async { tokio::join!(pending_response, worker_script) }).await;
    assert_eq!(text(response).await, format!("{ROLE}{TOKEN}"));
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    assert!(metrics.contains("rooflet_gateway_retries_total 1"), "{metrics}");

    let (fixture, senders) = streams("guide", 1).await;
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let worker_script = async {
        for chunk in [ROLE, TOKEN] {
            senders[0].send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        senders[0].send(broken_stream()).await.expect("read");
    };
    let (response, ()) = within(async { tokio::join!(pending_response, worker_script) }).await;
    assert!(
        within(response.into_body().collect()).await.is_err(),
        "no retry after the first token"
    );
}

/// The client gets the head after about a second. Until the first token, the gateway may still
/// retry.
#[tokio::test]
async fn sends_stream_head_early_and_still_retries() {
    let (fixture, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let sending = first.send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(pending_response, sending) }).await;
    sent.expect("read");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key("x-rooflet-replica"));
    let mut body = response.into_body().into_data_stream();
    let comment = within(body.next()).await.expect("a frame").expect("no error");
    assert_eq!(comment, ": keepalive\n\n");
    first.send(broken_stream()).await.expect("read");
    let worker_script = async {
        for chunk in [ROLE, TOKEN] {
            second.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(second);
    };
    let reading = async {
        let mut message = String::new();
        while let Some(chunk) = body.next().await {
            message.push_str(std::str::from_utf8(&chunk.expect("no error")).expect("UTF-8"));
        }
        message
    };
    let ((), message) = within(async { tokio::join!(worker_script, reading) }).await;
    assert_eq!(message, format!("{ROLE}{TOKEN}"));
}

#[tokio::test]
async fn reports_error_event_if_all_replicas_fail_after_the_head() {
    let (fixture, senders) = streams("guide waits=1s", 3).await;
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let sending = senders[0].send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(pending_response, sending) }).await;
    sent.expect("read");
    let workers_exit = async {
        for sender in &senders {
            sender.send(broken_stream()).await.expect("read");
        }
    };
    let (message, ()) = within(async { tokio::join!(text(response), workers_exit) }).await;
    assert!(
        message.starts_with(": keepalive\n\ndata: {\"error\":{"),
        "{message}"
    );
    assert!(message.ends_with("}\n\ndata: [DONE]\n\n"), "{message}");
}

#[tokio::test]
async fn retries_stream_that_reports_failure_before_first_token() {
    const FAILED: &str = "data: {\"error\":{\"message\":\"no memory\"}}\n\n";
    let (fixture, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let worker_script = async {
        for chunk in [ROLE, FAILED] {
            first.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(first);
        second.send(Ok(Bytes::from(TOKEN))).await.expect("read");
        drop(second);
    };
    let (response, ()) = within(async { tokio::join!(pending_response, worker_script) }).await;
    assert_eq!(text(response).await, TOKEN);
}

async fn counted(fixture: &Fixture, code: &str) -> bool {
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    metrics.contains(&format!("rooflet_gateway_requests_total{{code=\"{code}\"}} 1\n"))
}

#[tokio::test]
async fn counts_failed_stream_as_5xx_despite_its_head() {
    const FAILED: &str = "data: {\"error\":{\"message\":\"no memory\"}}\n\n";
    for chunks in [vec![TOKEN, FAILED], vec![FAILED]] {
        let (fixture, senders) = streams("guide", 2).await;
        let pending_response = async {
            let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
            assert_eq!(response.status(), StatusCode::OK);
            text(response).await
        };
        let worker_script = async {
            for sender in senders {
                for chunk in &chunks {
                    // The second replica gets a request only if the first sent no token.
                    drop(sender.send(Ok(Bytes::from(*chunk))).await);
                }
                if chunks.len() > 1 {
                    return;
                }
            }
        };
        let (message, ()) = within(async { tokio::join!(pending_response, worker_script) }).await;
        assert!(message.ends_with(FAILED), "{message}");
        assert!(counted(&fixture, "5xx").await, "{chunks:?}");
        assert!(!counted(&fixture, "2xx").await, "{chunks:?}");
    }
}

/// The client already has the head, so the error follows as an event of the stream.
#[tokio::test]
async fn sends_rejection_after_the_head_as_error_event() {
    let fixture = Fixture::new().await;
    let (first_tx, first_rx) = mpsc::channel(1);
    let first_rx = Arc::new(Mutex::new(Some(first_rx)));
    let router = Router::new().fallback(any(move || async move {
        let first = first_rx.lock().expect("ok").take();
        match first {
            Some(first) => {
                let body = Body::from_stream(ReceiverStream::new(first));
                ([("content-type", "text/event-stream")], body).into_response()
            }
            None => {
                let refusal = rooflet_inference_api::openai::ApiError::invalid_value("n", "too many");
                refusal.into_response()
            }
        }
    }));
    let url = serve_router(&fixture.tasks, router).await.to_string();
    fixture.set_fleet(&["guide"], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let sending = first_tx.send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(pending_response, sending) }).await;
    sent.expect("read");
    let workers_exit = first_tx.send(broken_stream());
    let (message, sent) = within(async { tokio::join!(text(response), workers_exit) }).await;
    sent.expect("read");
    // The error of the connection may overtake the first event.
    let is_rejection = |event: &str| event.starts_with("data: {\"error\":{\"code\":\"invalid_value\"");
    assert!(message.split("\n\n").any(is_rejection), "{message}");
    assert!(message.ends_with("\n\ndata: [DONE]\n\n"), "{message}");
    assert_eq!(fixture.gateway.dispatcher().in_flight(), 0);
    assert!(counted(&fixture, "4xx").await);
}

/// The request itself may cause the failures, so it must not reach every replica.
#[tokio::test]
async fn stops_retrying_a_request_that_fails_on_several_replicas() {
    // 500: the engine failed. 502: the worker exited during the request.
    for status in [500, 502] {
        check_retry_limit(status).await;
    }
}

async fn check_retry_limit(status: u16) {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready", "g3 on=a ready", "g4 on=a ready"];
    for replica in ["g1", "g2", "g3", "g4"] {
        let mut statuses = agent_log.statuses.lock().expect("ok");
        statuses.insert(replica.to_owned(), status);
    }
    fixture.set_fleet(&["guide waits=2s"], &replicas, &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), status);
    assert_eq!(agent_log.received().len(), 3);
}

#[tokio::test]
async fn does_not_send_repeatedly_failing_request_to_fallback() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let ready = [
        "g1 on=a ready",
        "g2 on=a ready",
        "g3 on=a ready",
        "s1 serves=spare on=a ready",
    ];
    for replica in ["g1", "g2", "g3"] {
        agent_log
            .statuses
            .lock()
            .expect("ok")
            .insert(replica.to_owned(), 500);
    }
    fixture.set_fleet(&["guide falls-back-to=spare", "spare"], &ready, &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let mut received = agent_log.received();
    received.sort();
    assert_eq!(received, ["default/g1", "default/g2", "default/g3"]);
}

#[tokio::test]
async fn changes_of_other_models_do_not_shorten_the_backoff() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    agent_log
        .statuses
        .lock()
        .expect("ok")
        .insert("g1".to_owned(), 503);
    let change = |turn: u32| {
        let other = format!("o{turn} serves=other on=a ready");
        let replicas = ["g1 on=a ready", &other];
        fixture.set_fleet(&["guide waits=250ms", "other"], &replicas, &[("a", &url)]);
    };
    change(0);
    let pending_response = fixture.chat(json!({"model": "guide"}));
    let changing = async {
        for turn in 1.. {
            change(turn);
            tokio::task::yield_now().await;
        }
    };
    let response = tokio::select! {
        response = pending_response => response,
        () = changing => unreachable!("the fleet changes forever"),
    };
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    // Immediately, after 100 ms, and at the deadline.
    let tries = agent_log.received().len();
    assert!(tries <= 3, "{tries} tries");
}

#[tokio::test]
async fn hedges_late_stream_and_cancels_the_slower_attempt() {
    let (fixture, senders) = streams("guide hedges=10ms", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
    let worker_script = async {
        second.send(Ok(Bytes::from(TOKEN))).await.expect("read");
        drop(second);
        first.closed().await;
    };
    let (response, ()) = within(async { tokio::join!(pending_response, worker_script) }).await;
    assert_eq!(text(response).await, TOKEN);
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    assert!(metrics.contains("rooflet_gateway_hedges_total 1"), "{metrics}");
}

#[tokio::test]
async fn slow_client_applies_backpressure_to_the_replica() {
    const CHUNKS: usize = 1024;
    let fixture = Fixture::new().await;
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = sent.clone();
    let router = Router::new().fallback(any(move || async move {
        let counter = counter.clone();
        let chunks = futures::stream::repeat_with(move || {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 64 << 10]))
        });
        Body::from_stream(chunks.take(CHUNKS))
    }));
    let url = serve_router(&fixture.tasks, router).await.to_string();
    fixture.set_fleet(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
    // The client does not read, so the replica stops sending once sockets and buffers are full.
    let mut before = usize::MAX;
    within(async {
        loop {
            let now = sent.load(std::sync::atomic::Ordering::Relaxed);
            if now == before && now > 0 {
                break;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    assert!(before < CHUNKS / 2, "{before} chunks of 64 KiB are buffered");
    let mut body = response.into_body().into_data_stream();
    let mut bytes = 0;
    while let Some(chunk) = within(body.next()).await {
        bytes += chunk.expect("no error").len();
    }
    assert_eq!(bytes, CHUNKS * (64 << 10));
}

#[tokio::test]
async fn ejects_failing_replica() {
    for status in [503, 500] {
        check_ejected(status).await;
    }
}

async fn check_ejected(status: u16) {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    agent_log
        .statuses
        .lock()
        .expect("ok")
        .insert("sad".to_owned(), status);
    fixture.set_fleet(&["guide"], &["sad on=a ready", "good on=a ready"], &[("a", &url)]);
    for _ in 0..20 {
        assert_eq!(
            answered_by(&fixture, &[], json!({"model": "guide"})).await,
            "default/good"
        );
    }
    let failing = agent_log
        .received()
        .iter()
        .filter(|name| *name == "default/sad")
        .count();
    assert!(
        (1..=4).contains(&failing),
        "{failing} requests to the failing replica"
    );
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    assert!(
        metrics.contains("rooflet_gateway_left_out_replicas 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn retries_request_that_hangs_on_silent_node() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let _never = agent_log.hold("g1");
    let replicas = ["g1 on=lost ready", "g2 on=a"].map(replica);
    let nodes = |lost| [node("lost", &url, lost), node("a", &url, "True")];
    let table = RoutingTable::new(&[deployment("guide")], &replicas, &nodes("True"));
    fixture.table_tx.send_replace(Some(Arc::new(table)));
    let pending_response = fixture.chat(json!({"model": "guide"}));
    let losing = async {
        while agent_log.received().is_empty() {
            tokio::task::yield_now().await;
        }
        let replicas = ["g1 on=lost ready", "g2 on=a ready"].map(replica);
        let table = RoutingTable::new(&[deployment("guide")], &replicas, &nodes("Unknown"));
        fixture.table_tx.send_replace(Some(Arc::new(table)));
    };
    let (response, ()) = within(async { tokio::join!(pending_response, losing) }).await;
    assert_eq!(text(response).await, "from g2");
}

#[tokio::test]
async fn request_is_retryable_if_another_replica_or_a_fallback_can_serve_it() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let other = "other-1 serves=other on=a ready";
    for (deployment, replicas, expect) in [
        ("guide", &["guide-1 on=a ready", other][..], false),
        ("guide", &["guide-1 on=a ready", "guide-2 on=a", other], false),
        ("guide", &["guide-1 on=a ready", "guide-2 on=a ready"], true),
        ("guide falls-back-to=other", &["guide-1 on=a ready", other], true),
    ] {
        fixture.set_fleet(&[deployment, "other"], replicas, &[("a", &url)]);
        let request = Request::post("/v1/completions")
            .header(RETRYABLE_HEADER, "set by the client")
            .body(Body::from(json!({"model": "guide"}).to_string()))
            .expect("valid");
        let path = request.uri().path_and_query().cloned().expect("a path");
        let response = within(Proxy::new().forward(request, &fixture.url, &path)).await;
        assert_eq!(response.expect("a response").status(), StatusCode::OK);
        let sent = agent_log.retryable.lock().expect("ok").pop();
        assert_eq!(sent, Some(expect), "{deployment} {replicas:?}");
    }
}

#[tokio::test]
async fn routes_stored_response_to_the_replica_that_owns_it() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready", "o1 serves=other on=a ready"];
    fixture.set_fleet(&["guide", "other"], &replicas, &[("a", &url)]);
    let create = async |body: Value| fixture.send("POST", "/v1/responses", body.to_string()).await;
    drop(text(create(json!({"model": "guide", "input": "hi"})).await).await);
    let (first, replica_id) = {
        let received = agent_log.received.lock().expect("ok");
        (
            received[0].0.clone(),
            received[0].2["replica_id"]
                .as_str()
                .expect("a replica id")
                .to_owned(),
        )
    };
    let id = format!("resp_{replica_id}00112233445566778899aabbccddeeff");
    for _ in 0..4 {
        let more = json!({"model": "guide", "input": "more", "previous_response_id": id});
        assert_eq!(create(more).await.status(), 200);
    }
    let named = |id: &str| json!([{"role": "user", "content": "hi"}, {"type": "item_reference", "id": id}]);
    let item = format!("msg_{replica_id}00112233445566778899aabbccddeeff");
    for _ in 0..4 {
        let more = json!({"model": "guide", "input": named(&item)});
        assert_eq!(create(more).await.status(), 200);
    }
    let lost = create(json!({"model": "guide", "input": named("msg_0000000000000000aa")})).await;
    assert_eq!(lost.status(), 400);
    assert_eq!(json_of(lost).await["error"]["param"], "input");
    for method in ["GET", "DELETE"] {
        let response = fixture
            .send(method, &format!("/v1/responses/{id}"), Body::empty())
            .await;
        assert_eq!(response.status(), 200, "{method}");
        assert!(!response.headers().contains_key(RUNNING_HEADER), "{method}");
    }
    assert_eq!(agent_log.received(), vec![first; 11]);
    // Replica of another model, unknown replica, and malformed ids.
    for (model, id) in [
        ("other", id.as_str()),
        ("guide", "resp_0000000000000000aa"),
        ("guide", "resp_1"),
        ("guide", "+é"),
    ] {
        let refused = create(json!({"model": model, "input": "more", "previous_response_id": id})).await;
        assert_eq!(refused.status(), 400, "{id}");
        let error = &json_of(refused).await["error"];
        assert_eq!(
            (error["code"].as_str(), error["param"].as_str()),
            (Some("previous_response_not_found"), Some("previous_response_id"))
        );
    }
    let unknown = fixture.send("GET", "/v1/responses/resp_1", Body::empty()).await;
    assert_eq!(unknown.status(), 404);
    assert_eq!(json_of(unknown).await["error"]["code"], "response_not_found");
}

/// Traffic weights apply only to new conversations.
#[tokio::test]
async fn routes_stored_response_to_owner_with_traffic_weight_0() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let create = async |body: Value| {
        let response = fixture.send("POST", "/v1/responses", body.to_string()).await;
        assert_eq!(response.status(), 200, "{body}");
        text(response).await
    };
    let storing_replica = "g1 on=a ready of=v1";
    fixture.set_fleet(&["guide"], &[storing_replica], &[("a", &url)]);
    create(json!({"model": "guide", "input": "hi"})).await;
    let id = {
        let received = agent_log.received.lock().expect("ok");
        let replica_id = received[0].2["replica_id"].as_str().expect("a replica id");
        format!("resp_{replica_id}00112233445566778899aabbccddeeff")
    };
    let both = [storing_replica, "g2 on=a ready of=v2"];
    fixture.set_fleet(&["guide traffic=v1:0,v2:100"], &both, &[("a", &url)]);
    let more = json!({"model": "guide", "input": "more", "previous_response_id": id});
    assert_eq!(create(more).await, "from g1");
}

/// A non-streamed response has no first token to wait for.
#[tokio::test]
async fn does_not_hedge_non_streamed_requests() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready"];
    fixture.set_fleet(&["guide hedges=0s"], &replicas, &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::OK);
    drop(text(response).await);
    assert_eq!(agent_log.received().len(), 1);
}

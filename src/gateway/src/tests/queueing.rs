//! Request queue: order, limits, deadlines, fallbacks and errors.

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    tokio::time::timeout(DEADLINE, async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{what}"));
}

/// Creates a fixture with one replica `g1` that responds once per added permit.
async fn held(deployment: &str, replica: &str) -> (Fixture, Arc<Agent>, Arc<Semaphore>) {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let permits = agent_log.hold("g1");
    fixture.set_fleet(&[deployment], &[replica], &[("a", &url)]);
    (fixture, agent_log, permits)
}

fn chat_body(more: Value) -> Value {
    let mut body = json!({"model": "guide"});
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    body
}

impl Fixture {
    /// Sends a request in the background; `done` receives `name` and the response.
    fn chat_later(
        &self,
        name: &'static str,
        body: Value,
        done: &mpsc::UnboundedSender<(&'static str, Response)>,
    ) {
        let (url, done) = (self.url.clone(), done.clone());
        self.tasks.spawn_detached(async move {
            let request = Request::builder()
                .method("POST")
                .body(Body::from(body.to_string()))
                .expect("valid");
            let path = "/v1/chat/completions".parse().expect("a path");
            let response = Proxy::new().forward(request, &url, &path).await;
            drop(done.send((name, response.expect("the gateway responds"))));
        });
    }

    pub(super) async fn wait_for_queued(&self, count: usize) {
        let dispatcher = self.gateway.dispatcher();
        eventually("requests are queued", || dispatcher.queued() == count).await;
    }
}

#[tokio::test]
async fn queues_requests_and_serves_by_priority() {
    let (fixture, agent_log, permits) = held("guide", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    fixture.chat_later("first", chat_body(json!({})), &done_tx);
    eventually("the request reaches the replica", || {
        agent_log.received().len() == 1
    })
    .await;
    for (index, (name, priority)) in [("late", 5), ("plain", 0), ("urgent", -1)]
        .into_iter()
        .enumerate()
    {
        fixture.chat_later(
            name,
            chat_body(json!({"priority": priority, "user": name})),
            &done_tx,
        );
        fixture.wait_for_queued(index + 1).await;
    }
    assert_eq!(
        agent_log.received().len(),
        1,
        "the gateway queues the other requests"
    );
    let mut order = Vec::new();
    for _ in 0..4 {
        permits.add_permits(1);
        let (name, response) = within(done_rx.recv()).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        order.push((name, response.headers().contains_key("x-rooflet-queue-ms")));
        drop(text(response).await);
    }
    let names: Vec<_> = order.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["first", "urgent", "plain", "late"]);
    assert_eq!(fixture.gateway.dispatcher().in_flight(), 0);
}

#[tokio::test]
async fn backlog_of_one_client_does_not_delay_another() {
    let (fixture, agent_log, permits) = held("guide", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    for index in 0..6 {
        let big = json!({"user": "greedy", "prompt": "x".repeat(20_000)});
        fixture.chat_later("greedy", chat_body(big), &done_tx);
        eventually("the gateway assigns or queues the request", || {
            agent_log.received().len() + fixture.gateway.dispatcher().queued() == index + 1
        })
        .await;
    }
    fixture.chat_later("modest", chat_body(json!({"user": "modest"})), &done_tx);
    fixture.wait_for_queued(6).await;
    let mut order = Vec::new();
    for _ in 0..7 {
        permits.add_permits(1);
        let (name, response) = within(done_rx.recv()).await.expect("a response");
        drop(text(response).await);
        order.push(name);
    }
    let position = order.iter().position(|name| *name == "modest");
    assert!(position <= Some(2), "{order:?}");
}

#[tokio::test]
async fn full_queue_and_missed_deadline_return_429() {
    let (fixture, agent_log, permits) = held("guide queue=1 waits=200ms", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    fixture.chat_later("first", chat_body(json!({})), &done_tx);
    eventually("the request reaches the replica", || {
        agent_log.received().len() == 1
    })
    .await;
    fixture.chat_later("waits", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    let full = fixture.chat(chat_body(json!({}))).await;
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(full.headers().contains_key("retry-after"));
    let error = json_of(full).await["error"].clone();
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].to_string().contains("queue is full"), "{error}");
    let (name, late) = within(done_rx.recv()).await.expect("the deadline passes");
    assert_eq!((name, late.status()), ("waits", StatusCode::TOO_MANY_REQUESTS));
    assert!(late.headers().contains_key("retry-after"));
    assert_eq!(fixture.gateway.dispatcher().queued(), 0);
    permits.add_permits(1);
    let (name, first) = within(done_rx.recv()).await.expect("a response");
    assert_eq!((name, first.status()), ("first", StatusCode::OK));
    assert_eq!(
        agent_log.received().len(),
        1,
        "rejected requests reach no replica"
    );
    let metrics = fixture.gateway.render_metrics(None).1;
    for reason in ["QueueFull", "Expired"] {
        let labels = format!("model=\"guide\",namespace=\"default\",reason=\"{reason}\"");
        let line = format!("rooflet_gateway_model_errors_total{{{labels}}} 1\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    // The name of an unknown model is the client's choice, so it is no label.
    fixture.chat(json!({ "model": "nothing" })).await;
    assert!(!fixture.gateway.render_metrics(None).1.contains("nothing"));
}

#[tokio::test]
async fn disconnected_client_leaves_the_queue() {
    let (fixture, agent_log, permits) = held("guide queue=1", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    fixture.chat_later("first", chat_body(json!({})), &done_tx);
    eventually("the request reaches the replica", || {
        agent_log.received().len() == 1
    })
    .await;
    let body = chat_body(json!({}));
    let cancelled = fixture.chat(body);
    tokio::select! {
        _ = cancelled => panic!("the replica is full"),
        () = fixture.wait_for_queued(1) => {}
    }
    fixture.wait_for_queued(0).await;
    fixture.chat_later("second", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    permits.add_permits(2);
    for _ in 0..2 {
        let (_, response) = within(done_rx.recv()).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        drop(text(response).await);
    }
}

#[tokio::test]
async fn queues_requests_while_the_only_replica_is_replaced() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let nodes: [(&str, &str); 1] = [("a", &url)];
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    fixture.set_fleet(&["guide message=Loading"], &["g2 on=a"], &nodes);
    fixture.chat_later("held", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    fixture.set_fleet(&["guide"], &["g2 on=a ready"], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(
        response.headers().contains_key("x-rooflet-queue-ms"),
        "{response:?}"
    );
    assert_eq!(response.headers()["x-rooflet-replica"], "default/g2");

    // The agent detects the end of a worker before the gateway does.
    agent_log
        .statuses
        .lock()
        .expect("ok")
        .insert("g2".to_owned(), 503);
    fixture.chat_later("again", chat_body(json!({})), &done_tx);
    eventually("the replica rejects the request", || {
        agent_log.received().len() == 2
    })
    .await;
    fixture.set_fleet(&["guide message=Loading"], &["g3 on=a"], &nodes);
    fixture.wait_for_queued(1).await;
    fixture.set_fleet(&["guide"], &["g3 on=a ready"], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);

    // Requests are rejected if the model has no desired replicas.
    fixture.set_fleet(&["guide message=Loading"], &["g3 on=a"], &nodes);
    fixture.chat_later("hopeless", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    fixture.set_fleet(&["guide wanted=0 message=spec.replicas-is-0"], &[], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("a response");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let error = json_of(response).await["error"].to_string();
    assert!(error.contains("no ready replica"), "{error}");
}

#[tokio::test]
async fn fallback_model_serves_if_the_model_cannot() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let permits = agent_log.hold("g1");
    let small = "small-1 serves=small on=a ready";
    let cases = [
        ("guide falls-back-to=small", "g1 on=a", "not ready"),
        (
            "guide falls-back-to=small queue=0",
            "g1 on=a ready rows=1",
            "full",
        ),
        (
            "guide falls-back-to=small waits=50ms",
            "g1 on=a ready rows=1",
            "too late",
        ),
        ("guide falls-back-to=small", "g1 on=dead ready", "unreachable"),
    ];
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    for (deployment, replica, case) in cases {
        let nodes: [(&str, &str); 2] = [("a", &url), ("dead", "http://127.0.0.1:1")];
        fixture.set_fleet(&[deployment, "small"], &[replica, small], &nodes);
        let busy = matches!(case, "full" | "too late");
        if busy {
            fixture.chat_later("first", chat_body(json!({})), &done_tx);
            eventually("the request reaches the replica", || {
                fixture.gateway.dispatcher().in_flight() == 1
            })
            .await;
        }
        let response = fixture.chat(chat_body(json!({}))).await;
        assert_eq!(response.status(), StatusCode::OK, "{case}");
        assert_eq!(response.headers()["x-rooflet-fallback"], "small", "{case}");
        assert_eq!(text(response).await, "from small-1", "{case}");
        let received = agent_log
            .received
            .lock()
            .expect("ok")
            .last()
            .cloned()
            .expect("asked");
        assert_eq!(
            received.2["model"], "small",
            "the worker gets its own served name"
        );
        if busy {
            permits.add_permits(1);
            drop(within(done_rx.recv()).await);
            eventually("the request ends", || {
                fixture.gateway.dispatcher().in_flight() == 0
            })
            .await;
        }
    }
    // If no fallback serves, the error names the requested model.
    fixture.set_fleet(
        &["guide falls-back-to=small message=Loading", "small"],
        &["g1 on=a"],
        &[("a", &url)],
    );
    let response = fixture.chat(chat_body(json!({}))).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let error = json_of(response).await["error"].to_string();
    assert!(error.contains("`guide`"), "{error}");
}

#[tokio::test]
async fn rejects_requests_for_unschedulable_model() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let stuck = "guide message=0/1-nodes-are-available:-1-insufficient-memory has=Degraded=True waits=1h";
    // The first request arrives before the scheduling decision.
    fixture.set_fleet(&["guide waits=1h"], &[], &[("a", &url)]);
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    fixture.chat_later("queued", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    fixture.set_fleet(&[stuck], &["g1 unplaced"], &[("a", &url)]);
    let (_, rejected) = within(done_rx.recv()).await.expect("a response");
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    let message = json_of(rejected).await["error"]["message"].to_string();
    assert!(message.contains("1 insufficient memory"), "{message}");
    // The next request is rejected immediately.
    let again = fixture.chat(chat_body(json!({}))).await;
    assert_eq!(again.status(), StatusCode::SERVICE_UNAVAILABLE);
    // With a node for the replica, requests are queued.
    fixture.set_fleet(&[stuck], &["g1 on=a"], &[("a", &url)]);
    fixture.chat_later("waits", chat_body(json!({})), &done_tx);
    fixture.wait_for_queued(1).await;
    fixture.set_fleet(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let (_, answer) = within(done_rx.recv()).await.expect("a response");
    assert_eq!(answer.status(), StatusCode::OK);
}

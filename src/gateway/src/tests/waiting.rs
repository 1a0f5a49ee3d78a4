//! Requests that find no room: how long they wait, in which order, and what they are told.

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

/// A scene with one replica that answers when it is let.
async fn held(deployment: &str, replica: &str) -> (Scene, Arc<Agent>, Arc<Semaphore>) {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let permits = seen.hold("g1");
    scene.know(&[deployment], &[replica], &[("a", &url)]);
    (scene, seen, permits)
}

fn question(more: Value) -> Value {
    let mut body = json!({"model": "guide"});
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    body
}

impl Scene {
    /// Asks in the background; what comes back is told with the name.
    fn ask_later(
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
            drop(done.send((name, response.expect("the gateway answers"))));
        });
    }

    async fn waiting(&self, count: usize) {
        let dispatcher = self.gateway.dispatcher();
        eventually("they wait", || dispatcher.waiting() == count).await;
    }
}

#[tokio::test]
async fn what_finds_no_room_waits_for_it_and_the_urgent_go_first() {
    let (scene, seen, permits) = held("guide", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    scene.ask_later("first", question(json!({})), &done_tx);
    eventually("it is sent", || seen.asked().len() == 1).await;
    for (index, (name, priority)) in [("late", 5), ("plain", 0), ("urgent", -1)]
        .into_iter()
        .enumerate()
    {
        scene.ask_later(
            name,
            question(json!({"priority": priority, "user": name})),
            &done_tx,
        );
        scene.waiting(index + 1).await;
    }
    assert_eq!(seen.asked().len(), 1, "the others wait in the gateway");
    let mut order = Vec::new();
    for _ in 0..4 {
        permits.add_permits(1);
        let (name, response) = within(done_rx.recv()).await.expect("one answers");
        assert_eq!(response.status(), StatusCode::OK);
        order.push((name, response.headers().contains_key("x-rooflet-queue-ms")));
        drop(text(response).await);
    }
    let names: Vec<_> = order.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["first", "urgent", "plain", "late"]);
    assert_eq!(scene.gateway.dispatcher().under_way(), 0);
}

#[tokio::test]
async fn a_client_with_many_requests_does_not_keep_another_waiting() {
    let (scene, seen, permits) = held("guide", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    for waiting in 0..6 {
        let big = json!({"user": "greedy", "prompt": "x".repeat(20_000)});
        scene.ask_later("greedy", question(big), &done_tx);
        eventually("it is taken", || {
            seen.asked().len() + scene.gateway.dispatcher().waiting() == waiting + 1
        })
        .await;
    }
    scene.ask_later("modest", question(json!({"user": "modest"})), &done_tx);
    scene.waiting(6).await;
    let mut order = Vec::new();
    for _ in 0..7 {
        permits.add_permits(1);
        let (name, response) = within(done_rx.recv()).await.expect("one answers");
        drop(text(response).await);
        order.push(name);
    }
    let place = order.iter().position(|name| *name == "modest");
    assert!(place <= Some(2), "{order:?}");
}

#[tokio::test]
async fn a_full_queue_and_a_deadline_are_told_with_429() {
    let (scene, seen, permits) = held("guide queue=1 waits=200ms", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    scene.ask_later("first", question(json!({})), &done_tx);
    eventually("it is sent", || seen.asked().len() == 1).await;
    scene.ask_later("waits", question(json!({})), &done_tx);
    scene.waiting(1).await;
    let full = scene.ask(question(json!({}))).await;
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(full.headers().contains_key("retry-after"));
    let error = json_of(full).await["error"].clone();
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].to_string().contains("queue is full"), "{error}");
    let (name, late) = within(done_rx.recv()).await.expect("it gives up");
    assert_eq!((name, late.status()), ("waits", StatusCode::TOO_MANY_REQUESTS));
    assert!(late.headers().contains_key("retry-after"));
    assert_eq!(scene.gateway.dispatcher().waiting(), 0);
    permits.add_permits(1);
    let (name, first) = within(done_rx.recv()).await.expect("it answers");
    assert_eq!((name, first.status()), ("first", StatusCode::OK));
    assert_eq!(seen.asked().len(), 1, "the refused were never sent");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_makes_room_in_it() {
    let (scene, seen, permits) = held("guide queue=1", "g1 on=a ready rows=1").await;
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    scene.ask_later("first", question(json!({})), &done_tx);
    eventually("it is sent", || seen.asked().len() == 1).await;
    let body = question(json!({}));
    let leaves = scene.ask(body);
    tokio::select! {
        _ = leaves => panic!("there is no room"),
        () = scene.waiting(1) => {}
    }
    scene.waiting(0).await;
    scene.ask_later("second", question(json!({})), &done_tx);
    scene.waiting(1).await;
    permits.add_permits(2);
    for _ in 0..2 {
        let (_, response) = within(done_rx.recv()).await.expect("it answers");
        assert_eq!(response.status(), StatusCode::OK);
        drop(text(response).await);
    }
}

#[tokio::test]
async fn requests_are_held_while_the_only_replica_is_replaced() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let nodes: [(&str, &str); 1] = [("a", &url)];
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    scene.know(&["guide says=Loading"], &["g2 on=a"], &nodes);
    scene.ask_later("held", question(json!({})), &done_tx);
    scene.waiting(1).await;
    scene.know(&["guide"], &["g2 on=a ready"], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(
        response.headers().contains_key("x-rooflet-queue-ms"),
        "{response:?}"
    );
    assert_eq!(response.headers()["x-rooflet-replica"], "default/g2");

    // The agent knows that a worker ends before the gateway does.
    seen.statuses.lock().expect("ok").insert("g2".to_owned(), 503);
    scene.ask_later("again", question(json!({})), &done_tx);
    eventually("it is refused", || seen.asked().len() == 2).await;
    scene.know(&["guide says=Loading"], &["g3 on=a"], &nodes);
    scene.waiting(1).await;
    scene.know(&["guide"], &["g3 on=a ready"], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::OK);

    // What will not come is not waited for.
    scene.know(&["guide says=Loading"], &["g3 on=a"], &nodes);
    scene.ask_later("hopeless", question(json!({})), &done_tx);
    scene.waiting(1).await;
    scene.know(&["guide wanted=0 says=spec.replicas-is-0"], &[], &nodes);
    let (_, response) = within(done_rx.recv()).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let error = json_of(response).await["error"].to_string();
    assert!(error.contains("no ready replica"), "{error}");
}

#[tokio::test]
async fn another_model_answers_where_one_is_named() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let permits = seen.hold("g1");
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
        scene.know(&[deployment, "small"], &[replica, small], &nodes);
        let busy = matches!(case, "full" | "too late");
        if busy {
            scene.ask_later("first", question(json!({})), &done_tx);
            eventually("it is sent", || scene.gateway.dispatcher().under_way() == 1).await;
        }
        let response = scene.ask(question(json!({}))).await;
        assert_eq!(response.status(), StatusCode::OK, "{case}");
        assert_eq!(response.headers()["x-rooflet-fallback"], "small", "{case}");
        assert_eq!(text(response).await, "from small-1", "{case}");
        let asked = seen.asked.lock().expect("ok").last().cloned().expect("asked");
        assert_eq!(asked.2["model"], "small", "it knows its own name");
        if busy {
            permits.add_permits(1);
            drop(within(done_rx.recv()).await);
            eventually("it ends", || scene.gateway.dispatcher().under_way() == 0).await;
        }
    }
    // Neither answers: what is told is about the model that was asked for.
    scene.know(
        &["guide falls-back-to=small says=Loading", "small"],
        &["g1 on=a"],
        &[("a", &url)],
    );
    let response = scene.ask(question(json!({}))).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let error = json_of(response).await["error"].to_string();
    assert!(error.contains("`guide`"), "{error}");
}

#[tokio::test]
async fn a_model_that_no_node_takes_is_told_so_instead_of_waiting() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let stuck = "guide says=0/1-nodes-are-available:-1-insufficient-memory has=Degraded=True waits=1h";
    // The first one comes before the scheduler has looked.
    scene.know(&["guide waits=1h"], &[], &[("a", &url)]);
    let (done_tx, mut done_rx) = mpsc::unbounded_channel();
    scene.ask_later("told", question(json!({})), &done_tx);
    scene.waiting(1).await;
    scene.know(&[stuck], &["g1 unplaced"], &[("a", &url)]);
    let (_, told) = within(done_rx.recv()).await.expect("an answer");
    assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
    let message = json_of(told).await["error"]["message"].to_string();
    assert!(message.contains("1 insufficient memory"), "{message}");
    // The next one is told at once: nothing has changed.
    let again = scene.ask(question(json!({}))).await;
    assert_eq!(again.status(), StatusCode::SERVICE_UNAVAILABLE);
    // With a node for it, it is worth waiting.
    scene.know(&[stuck], &["g1 on=a"], &[("a", &url)]);
    scene.ask_later("waits", question(json!({})), &done_tx);
    scene.waiting(1).await;
    scene.know(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let (_, answer) = within(done_rx.recv()).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
}

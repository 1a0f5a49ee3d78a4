//! Where requests go when there is a choice, and when a replica turns out to be the wrong one.

use super::*;

/// The replica that answered.
async fn answered_by(scene: &Scene, headers: &[(&'static str, &'static str)], body: Value) -> String {
    let mut request = Request::builder().method("POST");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_string())).expect("valid");
    let path = "/v1/chat/completions".parse().expect("a path");
    let response = within(Proxy::new().forward(request, &scene.url, &path))
        .await
        .expect("the gateway answers");
    assert_eq!(response.status(), StatusCode::OK);
    let replica = response.headers()["x-rooflet-replica"]
        .to_str()
        .expect("ASCII")
        .to_owned();
    drop(text(response).await);
    replica
}

async fn three(deployment: &str) -> Scene {
    let scene = Scene::new().await;
    let url = agent(&scene.tasks, Arc::new(Agent::default())).await;
    let replicas = [
        "g1 on=a ready of=v1",
        "g2 on=a ready of=v1",
        "g3 on=a ready of=v2",
    ];
    scene.know(&[deployment], &replicas, &[("a", &url)]);
    scene
}

#[tokio::test]
async fn a_session_and_a_beginning_find_their_replica_again() {
    let scene = three("guide").await;
    let other = three("guide").await;
    let prompt = |text: &str| json!({"model": "guide", "prompt": text.repeat(5000)});
    for session in ["ann", "bob", "cat", "dan"] {
        let headers = [("x-session-id", session)];
        let first = answered_by(&scene, &headers, json!({"model": "guide"})).await;
        for gateway in [&scene, &other] {
            let again = answered_by(gateway, &headers, json!({"model": "guide"})).await;
            assert_eq!(again, first, "{session}");
        }
    }
    for text in ["a", "b", "c", "d"] {
        let first = answered_by(&scene, &[], prompt(text)).await;
        for gateway in [&scene, &other] {
            assert_eq!(answered_by(gateway, &[], prompt(text)).await, first, "{text}");
        }
    }
}

#[tokio::test]
async fn a_canary_gets_its_share() {
    let scene = three("guide traffic=v1:80,v2:20").await;
    let mut canary = 0;
    for _ in 0..20 {
        let replica = answered_by(&scene, &[], json!({"model": "guide"})).await;
        canary += usize::from(replica == "default/g3");
    }
    assert_eq!(canary, 4);
    let scene = three("guide traffic=v1:0,v2:100").await;
    for _ in 0..5 {
        assert_eq!(
            answered_by(&scene, &[], json!({"model": "guide"})).await,
            "default/g3"
        );
    }
}

/// Replicas whose answers are streams that the test writes, the first asked first.
async fn streams(deployment: &str, count: usize) -> (Scene, Vec<Chunks>) {
    let scene = Scene::new().await;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(1)).unzip();
    let receivers = Arc::new(Mutex::new(std::collections::VecDeque::from(receivers)));
    let router = Router::new().fallback(any(move || async move {
        let chunk_rx = receivers
            .lock()
            .expect("ok")
            .pop_front()
            .expect("not asked as often");
        let body = Body::from_stream(ReceiverStream::new(chunk_rx));
        ([("content-type", "text/event-stream")], body).into_response()
    }));
    let url = serve_router(&scene.tasks, router).await.to_string();
    scene.know(&[deployment], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    (scene, senders)
}

const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

fn died() -> std::result::Result<Bytes, std::io::Error> {
    Err(std::io::Error::other("the worker died"))
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_first_token_is_begun_elsewhere() {
    let (scene, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let playing = async {
        first.send(Ok(Bytes::from(ROLE))).await.expect("read");
        first.send(died()).await.expect("read");
        for chunk in [ROLE, TOKEN] {
            second.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(second);
    };
    let (response, ()) = within(async { tokio::join!(asking, playing) }).await;
    assert_eq!(text(response).await, format!("{ROLE}{TOKEN}"));
    let metrics = text(scene.send("GET", "/metrics", Body::empty()).await).await;
    assert!(metrics.contains("rooflet_gateway_retries_total 1"), "{metrics}");

    let (scene, senders) = streams("guide", 1).await;
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let playing = async {
        for chunk in [ROLE, TOKEN] {
            senders[0].send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        senders[0].send(died()).await.expect("read");
    };
    let (response, ()) = within(async { tokio::join!(asking, playing) }).await;
    assert!(
        within(response.into_body().collect()).await.is_err(),
        "never after it"
    );
}

/// The head comes after a second at most; and as long as there is no token another replica may still take over.
#[tokio::test]
async fn a_stream_begins_before_its_first_token_and_may_still_move() {
    let (scene, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let sending = first.send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(asking, sending) }).await;
    sent.expect("read");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key("x-rooflet-replica"));
    let mut body = response.into_body().into_data_stream();
    let comment = within(body.next()).await.expect("a frame").expect("no error");
    assert_eq!(comment, ": keepalive\n\n");
    first.send(died()).await.expect("read");
    let playing = async {
        for chunk in [ROLE, TOKEN] {
            second.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(second);
    };
    let reading = async {
        let mut said = String::new();
        while let Some(chunk) = body.next().await {
            said.push_str(std::str::from_utf8(&chunk.expect("no error")).expect("UTF-8"));
        }
        said
    };
    let ((), said) = within(async { tokio::join!(playing, reading) }).await;
    assert_eq!(said, format!("{ROLE}{TOKEN}"));
}

#[tokio::test]
async fn a_stream_that_began_and_that_nobody_can_go_on_with_says_so() {
    let (scene, senders) = streams("guide waits=1s", 3).await;
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let sending = senders[0].send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(asking, sending) }).await;
    sent.expect("read");
    let dying = async {
        for sender in &senders {
            sender.send(died()).await.expect("read");
        }
    };
    let (said, ()) = within(async { tokio::join!(text(response), dying) }).await;
    assert!(said.starts_with(": keepalive\n\ndata: {\"error\":{"), "{said}");
    assert!(said.ends_with("}\n\ndata: [DONE]\n\n"), "{said}");
}

#[tokio::test]
async fn what_fails_before_its_first_token_is_answered_elsewhere() {
    const FAILED: &str = "data: {\"error\":{\"message\":\"no memory\"}}\n\n";
    let (scene, senders) = streams("guide", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let playing = async {
        for chunk in [ROLE, FAILED] {
            first.send(Ok(Bytes::from(chunk))).await.expect("read");
        }
        drop(first);
        second.send(Ok(Bytes::from(TOKEN))).await.expect("read");
        drop(second);
    };
    let (response, ()) = within(async { tokio::join!(asking, playing) }).await;
    assert_eq!(text(response).await, TOKEN);
}

async fn counted(scene: &Scene, code: &str) -> bool {
    let metrics = text(scene.send("GET", "/metrics", Body::empty()).await).await;
    metrics.contains(&format!("rooflet_gateway_requests_total{{code=\"{code}\"}} 1\n"))
}

#[tokio::test]
async fn a_stream_that_fails_counts_as_failed_whatever_its_head_says() {
    const FAILED: &str = "data: {\"error\":{\"message\":\"no memory\"}}\n\n";
    for chunks in [vec![TOKEN, FAILED], vec![FAILED]] {
        let (scene, senders) = streams("guide", 2).await;
        let asking = async {
            let response = scene.ask(json!({"model": "guide", "stream": true})).await;
            assert_eq!(response.status(), StatusCode::OK);
            text(response).await
        };
        let playing = async {
            for sender in senders {
                for chunk in &chunks {
                    // The second is asked only where the first had no token.
                    drop(sender.send(Ok(Bytes::from(*chunk))).await);
                }
                if chunks.len() > 1 {
                    return;
                }
            }
        };
        let (said, ()) = within(async { tokio::join!(asking, playing) }).await;
        assert!(said.ends_with(FAILED), "{said}");
        assert!(counted(&scene, "5xx").await, "{chunks:?}");
        assert!(!counted(&scene, "2xx").await, "{chunks:?}");
    }
}

/// The head is out by then: the refusal is told as the stream's own error.
#[tokio::test]
async fn a_refusal_after_the_head_is_an_event_of_the_stream() {
    let scene = Scene::new().await;
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
    let url = serve_router(&scene.tasks, router).await.to_string();
    scene.know(&["guide"], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let sending = first_tx.send(Ok(Bytes::from(ROLE)));
    let (response, sent) = within(async { tokio::join!(asking, sending) }).await;
    sent.expect("read");
    let dying = first_tx.send(died());
    let (said, sent) = within(async { tokio::join!(text(response), dying) }).await;
    sent.expect("read");
    assert!(
        said.contains("\n\ndata: {\"error\":{\"code\":\"invalid_value\""),
        "{said}"
    );
    assert!(said.ends_with("\n\ndata: [DONE]\n\n"), "{said}");
    assert_eq!(scene.gateway.dispatcher().under_way(), 0);
    assert!(counted(&scene, "4xx").await);
}

/// It may be the request: it is not sent to one replica after the other until none is left.
#[tokio::test]
async fn a_request_that_fails_everywhere_is_given_up() {
    // The engine's failure, and what an agent says of a worker that ended with the request.
    for status in [500, 502] {
        is_given_up(status).await;
    }
}

async fn is_given_up(status: u16) {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready", "g3 on=a ready", "g4 on=a ready"];
    for replica in ["g1", "g2", "g3", "g4"] {
        let mut statuses = seen.statuses.lock().expect("ok");
        statuses.insert(replica.to_owned(), status);
    }
    scene.know(&["guide waits=2s"], &replicas, &[("a", &url)]);
    let response = scene.ask(json!({"model": "guide"})).await;
    assert_eq!(response.status(), status);
    assert_eq!(seen.asked().len(), 3);
}

#[tokio::test]
async fn a_request_that_fails_everywhere_is_not_given_to_a_fallback_either() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let ready = [
        "g1 on=a ready",
        "g2 on=a ready",
        "g3 on=a ready",
        "s1 serves=spare on=a ready",
    ];
    for replica in ["g1", "g2", "g3"] {
        seen.statuses.lock().expect("ok").insert(replica.to_owned(), 500);
    }
    scene.know(&["guide falls-back-to=spare", "spare"], &ready, &[("a", &url)]);
    let response = scene.ask(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let mut asked = seen.asked();
    asked.sort();
    assert_eq!(asked, ["default/g1", "default/g2", "default/g3"]);
}

#[tokio::test]
async fn a_busy_fleet_does_not_shorten_the_pause_before_another_try() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    seen.statuses.lock().expect("ok").insert("g1".to_owned(), 503);
    let change = |turn: u32| {
        let other = format!("o{turn} serves=other on=a ready");
        let replicas = ["g1 on=a ready", &other];
        scene.know(&["guide waits=250ms", "other"], &replicas, &[("a", &url)]);
    };
    change(0);
    let asking = scene.ask(json!({"model": "guide"}));
    let changing = async {
        for turn in 1.. {
            change(turn);
            tokio::task::yield_now().await;
        }
    };
    let response = tokio::select! {
        response = asking => response,
        () = changing => unreachable!("the fleet changes on"),
    };
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    // At once, after 100 ms, and when its patience is over.
    let tries = seen.asked().len();
    assert!(tries <= 3, "{tries} tries");
}

#[tokio::test]
async fn a_second_replica_is_asked_when_the_first_takes_long_and_the_slower_is_stopped() {
    let (scene, senders) = streams("guide hedges=10ms", 2).await;
    let [first, second] = <[Chunks; 2]>::try_from(senders).expect("two");
    let asking = scene.ask(json!({"model": "guide", "stream": true}));
    let playing = async {
        second.send(Ok(Bytes::from(TOKEN))).await.expect("read");
        drop(second);
        first.closed().await;
    };
    let (response, ()) = within(async { tokio::join!(asking, playing) }).await;
    assert_eq!(text(response).await, TOKEN);
    let metrics = text(scene.send("GET", "/metrics", Body::empty()).await).await;
    assert!(metrics.contains("rooflet_gateway_hedges_total 1"), "{metrics}");
}

#[tokio::test]
async fn a_slow_reader_slows_the_replica_and_nothing_piles_up() {
    const CHUNKS: usize = 1024;
    let scene = Scene::new().await;
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
    let url = serve_router(&scene.tasks, router).await.to_string();
    scene.know(&["guide"], &["g1 on=a ready"], &[("a", &url)]);
    let response = scene.ask(json!({"model": "guide", "stream": true})).await;
    // Nobody reads: what was sent stops growing once sockets and buffers are full.
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
    assert!(before < CHUNKS / 2, "{before} chunks of 64 KiB are somewhere");
    let mut body = response.into_body().into_data_stream();
    let mut bytes = 0;
    while let Some(chunk) = within(body.next()).await {
        bytes += chunk.expect("no error").len();
    }
    assert_eq!(bytes, CHUNKS * (64 << 10));
}

#[tokio::test]
async fn a_failing_replica_is_left_out_and_the_healthy_not_kept_waiting() {
    for status in [503, 500] {
        is_left_out(status).await;
    }
}

async fn is_left_out(status: u16) {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    seen.statuses.lock().expect("ok").insert("sad".to_owned(), status);
    scene.know(&["guide"], &["sad on=a ready", "good on=a ready"], &[("a", &url)]);
    for _ in 0..20 {
        assert_eq!(
            answered_by(&scene, &[], json!({"model": "guide"})).await,
            "default/good"
        );
    }
    let sad = seen.asked().iter().filter(|name| *name == "default/sad").count();
    assert!((1..=4).contains(&sad), "asked {sad} times");
    let metrics = text(scene.send("GET", "/metrics", Body::empty()).await).await;
    assert!(
        metrics.contains("rooflet_gateway_left_out_replicas 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn what_hangs_at_a_silent_node_is_sent_elsewhere() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let _never = seen.hold("g1");
    let replicas = ["g1 on=lost ready", "g2 on=a"].map(replica);
    let nodes = |lost| [node("lost", &url, lost), node("a", &url, "True")];
    let table = RoutingTable::new(&[deployment("guide")], &replicas, &nodes("True"));
    scene.table_tx.send_replace(Some(Arc::new(table)));
    let asking = scene.ask(json!({"model": "guide"}));
    let losing = async {
        while seen.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        let replicas = ["g1 on=lost ready", "g2 on=a ready"].map(replica);
        let table = RoutingTable::new(&[deployment("guide")], &replicas, &nodes("Unknown"));
        scene.table_tx.send_replace(Some(Arc::new(table)));
    };
    let (response, ()) = within(async { tokio::join!(asking, losing) }).await;
    assert_eq!(text(response).await, "from g2");
}

#[tokio::test]
async fn a_response_is_told_and_gone_on_with_by_the_replica_that_keeps_it() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready", "o1 serves=other on=a ready"];
    scene.know(&["guide", "other"], &replicas, &[("a", &url)]);
    let create = async |body: Value| scene.send("POST", "/v1/responses", body.to_string()).await;
    drop(text(create(json!({"model": "guide", "input": "hi"})).await).await);
    let (first, keeper) = {
        let asked = seen.asked.lock().expect("ok");
        (
            asked[0].0.clone(),
            asked[0].2["keeper"].as_str().expect("a keeper").to_owned(),
        )
    };
    let id = format!("resp_{keeper}00112233445566778899aabbccddeeff");
    for _ in 0..4 {
        let more = json!({"model": "guide", "input": "more", "previous_response_id": id});
        assert_eq!(create(more).await.status(), 200);
    }
    let named = |id: &str| json!([{"role": "user", "content": "hi"}, {"type": "item_reference", "id": id}]);
    let item = format!("msg_{keeper}00112233445566778899aabbccddeeff");
    for _ in 0..4 {
        let more = json!({"model": "guide", "input": named(&item)});
        assert_eq!(create(more).await.status(), 200);
    }
    let lost = create(json!({"model": "guide", "input": named("msg_0000000000000000aa")})).await;
    assert_eq!(lost.status(), 400);
    assert_eq!(json_of(lost).await["error"]["param"], "input");
    for method in ["GET", "DELETE"] {
        let told = scene
            .send(method, &format!("/v1/responses/{id}"), Body::empty())
            .await;
        assert_eq!(told.status(), 200, "{method}");
    }
    assert_eq!(seen.asked(), vec![first; 11]);
    // Another model's replica, none that is known, and no id of ours.
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
    let unknown = scene.send("GET", "/v1/responses/resp_1", Body::empty()).await;
    assert_eq!(unknown.status(), 404);
    assert_eq!(json_of(unknown).await["error"]["code"], "response_not_found");
}

/// Whatever share of new requests its revision has.
#[tokio::test]
async fn a_response_is_gone_on_with_by_a_keeper_without_traffic() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let create = async |body: Value| {
        let response = scene.send("POST", "/v1/responses", body.to_string()).await;
        assert_eq!(response.status(), 200, "{body}");
        text(response).await
    };
    let keeper = "g1 on=a ready of=v1";
    scene.know(&["guide"], &[keeper], &[("a", &url)]);
    create(json!({"model": "guide", "input": "hi"})).await;
    let id = {
        let asked = seen.asked.lock().expect("ok");
        let keeper = asked[0].2["keeper"].as_str().expect("a keeper");
        format!("resp_{keeper}00112233445566778899aabbccddeeff")
    };
    let both = [keeper, "g2 on=a ready of=v2"];
    scene.know(&["guide traffic=v1:0,v2:100"], &both, &[("a", &url)]);
    let more = json!({"model": "guide", "input": "more", "previous_response_id": id});
    assert_eq!(create(more).await, "from g1");
}

/// It has no first token to be late with.
#[tokio::test]
async fn what_comes_whole_is_asked_of_one_replica() {
    let scene = Scene::new().await;
    let seen = Arc::new(Agent::default());
    let url = agent(&scene.tasks, seen.clone()).await;
    let replicas = ["g1 on=a ready", "g2 on=a ready"];
    scene.know(&["guide hedges=0s"], &replicas, &[("a", &url)]);
    let response = scene.ask(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::OK);
    drop(text(response).await);
    assert_eq!(seen.asked().len(), 1);
}

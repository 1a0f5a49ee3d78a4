//! Ollama's API: names of models, lists, errors and streams.

use super::*;

const LINE: &str = "{\"model\":\"guide\",\"message\":{\"content\":\"a\"},\"done\":false}\n";

async fn fixture() -> (Fixture, Arc<Agent>) {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    fixture.set_fleet(
        &["guide", "starting", "other/tagged serves=tagged:latest"],
        &[
            "guide-1 on=a ready",
            "other/tagged-1 serves=tagged:latest on=a ready",
        ],
        &[("a", &url)],
    );
    (fixture, agent_log)
}

#[tokio::test]
async fn default_tag_is_optional_on_these_paths() {
    let (fixture, agent_log) = fixture().await;
    for model in ["guide", "guide:latest", "default/guide:latest", "tagged:latest"] {
        let body = json!({"model": model}).to_string();
        let response = fixture.send("POST", "/api/chat", body).await;
        assert_eq!(response.status(), StatusCode::OK, "{model}");
    }
    let received = agent_log.received.lock().expect("ok").clone();
    let models: Vec<_> = received
        .iter()
        .map(|(_, _, body)| body["model"].clone())
        .collect();
    assert_eq!(models, ["guide", "guide", "guide", "tagged:latest"]);
    assert_eq!(received[0].1, "/replicas/default/guide-1/proxy/api/chat");
    let openai = fixture.chat(json!({"model": "guide:latest"})).await;
    assert_eq!(openai.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn lists_all_models_and_running_ones() {
    let (fixture, _) = fixture().await;
    let names = async |path| {
        let list = json_of(fixture.send("GET", path, Body::empty()).await).await;
        let models = list["models"].as_array().expect("a list").iter();
        models.map(|model| model["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        names("/api/tags").await,
        ["guide:latest", "starting:latest", "tagged:latest"]
    );
    assert_eq!(names("/api/ps").await, ["guide:latest", "tagged:latest"]);
    let root = fixture.send("GET", "/", Body::empty()).await;
    assert_eq!(text(root).await, "Ollama is running");
}

#[tokio::test]
async fn residency_comes_from_the_workers() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let replicas = [
        "brief-1 serves=brief on=a ready keeps=5m",
        "unloaded-1 serves=brief on=a ready keeps=5m",
        "unloaded-2 serves=gone on=a ready keeps=5m",
        "always-1 serves=always on=a ready",
        "unloaded-3 serves=always on=a ready keeps=5m",
    ];
    fixture.set_fleet(&["brief", "gone", "always"], &replicas, &[("a", &url)]);
    let list = json_of(fixture.send("GET", "/api/ps", Body::empty()).await).await;
    let models = list["models"].as_array().expect("a list").iter();
    let ends: Vec<_> = models
        .map(|model| (model["name"].as_str(), model["expires_at"].as_str()))
        .collect();
    assert_eq!(
        ends,
        [
            (Some("always:latest"), Some("9999-12-31T23:59:59Z")),
            (Some("brief:latest"), Some("2026-03-01T10:00:00Z")),
        ]
    );
    let received = agent_log.received.lock().expect("ok").clone();
    let mut paths: Vec<_> = received.iter().map(|(_, path, _)| path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        ["brief-1", "unloaded-1", "unloaded-2"].map(|name| format!("/replicas/default/{name}/proxy/api/ps"))
    );
}

#[tokio::test]
async fn errors_have_ollamas_body() {
    let (fixture, _) = fixture().await;
    for (method, path, body, status, words) in [
        (
            "POST",
            "/api/chat",
            r#"{"model":"nope:latest"}"#,
            404,
            "`nope:latest`",
        ),
        ("POST", "/api/generate", "{}", 400, "'model'"),
        ("POST", "/api/pull", "{}", 400, "ModelDeployment"),
        ("GET", "/api/chat", "", 405, "/api/chat"),
        ("GET", "/api/nothing", "", 404, "/api/nothing"),
    ] {
        let response = fixture.send(method, path, body).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        let error = json_of(response).await["error"].clone();
        assert!(error.as_str().expect("text").contains(words), "{path}: {error}");
    }
}

/// Serves replicas of which the first returns `first`, and all others a line of text.
async fn streams(first: &'static str) -> String {
    let fixture = Fixture::new().await;
    let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let router = Router::new().fallback(any(move || async move {
        let body = match asked.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => first,
            true => LINE,
        };
        ([("content-type", "application/x-ndjson")], body)
    }));
    let url = serve_router(&fixture.tasks, router).await.to_string();
    fixture.set_fleet(&["guide"], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    text(fixture.send("POST", "/api/chat", r#"{"model":"guide"}"#).await).await
}

#[tokio::test]
async fn retries_stream_that_fails_before_its_first_line() {
    assert_eq!(streams("  {\"error\":\"out of memory\"}\n").await, LINE);
    assert_eq!(streams(LINE).await, LINE);
}

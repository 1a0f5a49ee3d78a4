use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::*;
use rooflet_base::metrics::Registry;
use rooflet_testing::TempDir;

#[test]
fn backoff_continues_after_write_errors_and_wrong_files() {
    let length = |got| PullError::Length {
        file: "f".to_owned(),
        got,
        wanted: 5,
    };
    let full = PullError::Write {
        path: "f".into(),
        err: std::io::ErrorKind::StorageFull.into(),
    };
    assert!(continues(&length(4)) && !continues(&length(6)) && !continues(&full));
}

const HEADER: &[u8] = br#"{"x": {"dtype": "BF16", "shape": [10], "data_offsets": [0, 20]}}"#;

/// Answers like a hub with one model.
async fn answer(request: Request) -> Response {
    let mut weights = (HEADER.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(HEADER);
    weights.extend_from_slice(&[0; 20]);
    let path = request.uri().path();
    if path.starts_with("/api/") {
        let listing = serde_json::json!({ "sha": "c0ffee", "siblings": [
            { "rfilename": "config.json", "size": 2 },
            { "rfilename": "model.safetensors", "size": weights.len() },
        ]});
        return listing.to_string().into_response();
    }
    let file = match path.strip_prefix("/o/n/resolve/c0ffee/") {
        Some("config.json") => b"{}".to_vec(),
        Some("model.safetensors") => weights,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let range = request.headers().get(header::RANGE);
    let range = range.and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let Some((begin, end)) = range else {
        return file.into_response();
    };
    let begin: usize = begin.parse().unwrap();
    let end = end
        .parse()
        .map_or(file.len(), |end: usize| (end + 1).min(file.len()));
    let content_range = format!("bytes {begin}-{}/{}", end - 1, file.len());
    let headers = [(header::CONTENT_RANGE, content_range)];
    (StatusCode::PARTIAL_CONTENT, headers, file[begin..end].to_vec()).into_response()
}

/// Admission would otherwise reject the replica for missing disk space.
#[tokio::test]
async fn waiting_download_counts_bytes_of_an_earlier_agent_process() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hub = HubAccess {
        endpoint: format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap(),
        credentials: None,
    };
    let (directory, tasks, changes) = (TempDir::new(), Tasks::new(), Changes::new());
    tasks.spawn_detached(async move {
        let serving = axum::serve(listener, Router::new().fallback(answer));
        serving.await.unwrap();
    });
    let state = Arc::new(StateDir::open(&directory.path().join("state")).unwrap());
    let metrics = AgentMetrics::register(&Registry::new()).unwrap();
    let mut pulls = Pulls::new(hub, &state, &tasks, Clock::System, changes.clone(), metrics);
    let partial = state.downloads().join("o/n/.c0ffee.partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join("model.safetensors.partial"), [0; 50]).unwrap();
    let turn = pulls.turn.clone().try_acquire_owned().unwrap();
    let model = "hf://o/n".parse().unwrap();
    let mut changed_rx = changes.subscribe();
    let found = |pulls: &mut Pulls| match pulls.look_up(&model) {
        HubLookup::Pending => None,
        HubLookup::Found {
            done, is_under_way, ..
        } => Some((done, is_under_way)),
        HubLookup::Failed(problem) => panic!("{problem:?}"),
    };
    while found(&mut pulls).is_none() {
        changed_rx.changed().await.unwrap();
    }
    assert_eq!(found(&mut pulls), Some((Bytes(50), false)));
    pulls.start(&model);
    assert_eq!(found(&mut pulls), Some((Bytes(50), true)));
    drop(turn);
    tasks.cancel();
}

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::super::{ASKING_HUB, ComputeType, Models};
use super::*;
use rooflet_api::v1alpha1::ModelSource;
use rooflet_artifact::ModelDirectory;
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

const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

/// Returns a safetensors file with the tensors that the configuration requires.
fn weights() -> Vec<u8> {
    let layer = |index: usize| {
        [
            ("input_layernorm", vec![64]),
            ("post_attention_layernorm", vec![64]),
            ("self_attn.q_proj", vec![64, 64]),
            ("self_attn.k_proj", vec![32, 64]),
            ("self_attn.v_proj", vec![32, 64]),
            ("self_attn.o_proj", vec![64, 64]),
            ("self_attn.q_norm", vec![16]),
            ("self_attn.k_norm", vec![16]),
            ("mlp.gate_proj", vec![128, 64]),
            ("mlp.up_proj", vec![128, 64]),
            ("mlp.down_proj", vec![64, 128]),
        ]
        .map(|(name, shape)| (format!("layers.{index}.{name}"), shape))
    };
    let whole = [("embed_tokens", vec![100, 64]), ("norm", vec![64])];
    let whole = whole.map(|(name, shape)| (name.to_owned(), shape));
    let mut end = 0;
    let header: serde_json::Map<_, _> = (0..2)
        .flat_map(layer)
        .chain(whole)
        .map(|(name, shape)| {
            let begin = end;
            end += 2 * shape.iter().product::<usize>();
            let tensor = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
            (format!("model.{name}.weight"), tensor)
        })
        .collect();
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.resize(file.len() + end, 0);
    file
}

/// Answers like a hub with one model.
async fn answer(request: Request) -> Response {
    let weights = weights();
    let path = request.uri().path();
    if path.starts_with("/api/") {
        let listing = serde_json::json!({ "sha": "c0ffee", "siblings": [
            { "rfilename": "config.json", "size": CONFIG.len() },
            { "rfilename": "model.safetensors", "size": weights.len() },
        ]});
        return listing.to_string().into_response();
    }
    let file = match path.strip_prefix("/o/n/resolve/c0ffee/") {
        Some("config.json") => CONFIG.as_bytes().to_vec(),
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

/// Downloads from a hub with one model, into a directory.
struct Fixture {
    directory: TempDir,
    tasks: Tasks,
    changes: Changes,
    state: Arc<StateDir>,
    pulls: Option<Pulls>,
}

impl Fixture {
    async fn new() -> Self {
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
        let pulls = Pulls::new(hub, &state, &tasks, Clock::System, changes.clone(), metrics);
        Self {
            directory,
            tasks,
            changes,
            state,
            pulls: Some(pulls),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

/// Otherwise, the partial download would count as unused and could be deleted.
#[tokio::test]
async fn path_follows_a_link_whose_target_is_mounted_later() {
    let mut fixture = Fixture::new().await;
    let volume = fixture
        .directory
        .path()
        .canonicalize_utf8()
        .unwrap()
        .join("volume");
    std::os::unix::fs::symlink(&volume, fixture.state.downloads()).unwrap();
    let directory = ModelDirectory::new(None);
    let pulls = fixture.pulls.take().unwrap();
    let mut models = Models::new(directory, ComputeType::Stored).with_pulls(pulls);
    let source: ModelSource = "hf://o/n".parse().unwrap();
    let mut changed_rx = fixture.changes.subscribe();
    let before = loop {
        match models.inspect(&source) {
            Ok(found) => break found.path,
            Err(problem) => assert_eq!(problem.reason, ASKING_HUB, "{}", problem.message),
        }
        changed_rx.changed().await.unwrap();
    };
    assert_eq!(before, fixture.state.downloads().join("o/n/c0ffee"));
    std::fs::create_dir(&volume).unwrap();
    let found = models.inspect(&source).unwrap();
    assert_eq!(found.path, volume.join("o/n/c0ffee"));
}

/// Admission would otherwise reject the replica for missing disk space.
#[tokio::test]
async fn waiting_download_counts_bytes_of_an_earlier_agent_process() {
    let mut fixture = Fixture::new().await;
    let mut pulls = fixture.pulls.take().unwrap();
    let partial = fixture.state.downloads().join("o/n/.c0ffee.partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join("model.safetensors.partial"), [0; 50]).unwrap();
    let turn = pulls.turn.clone().try_acquire_owned().unwrap();
    let model = "hf://o/n".parse().unwrap();
    let mut changed_rx = fixture.changes.subscribe();
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
}

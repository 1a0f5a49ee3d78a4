use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::IntoResponse;

use super::*;
use crate::hub::fetch_snapshot;
use rooflet_model::checkpoint::TOOL_USE_FILE;
use rooflet_testing::TempDir;

const CONFIG: &[u8] = br#"{"model_type": "qwen3"}"#;

/// Hub with one model and injected faults.
#[derive(Clone, Default)]
struct Server {
    weights: Arc<Vec<u8>>,
    faults: Arc<Mutex<Faults>>,
    requests: Arc<Mutex<Vec<String>>>,
}

#[derive(Default)]
struct Faults {
    /// Offsets at which the next responses with weights end, or have a wrong byte.
    cut: Vec<usize>,
    corrupt: Vec<usize>,
    ignores_ranges: bool,
    /// Number of requests that are rejected as temporarily unavailable.
    busy: usize,
}

async fn answer(State(server): State<Server>, request: Request) -> axum::response::Response {
    let path = request.uri().path().to_owned();
    if path.starts_with("/api/") {
        let sha256 = hex::encode(Sha256::digest(server.weights.as_slice()));
        let listing = serde_json::json!({ "sha": "c0ffee", "siblings": [
            { "rfilename": "config.json", "size": CONFIG.len() },
            { "rfilename": TOOL_USE_FILE, "size": CONFIG.len() },
            { "rfilename": "model.safetensors", "lfs": { "sha256": sha256, "size": server.weights.len(), "pointerSize": 1 } },
        ]});
        return listing.to_string().into_response();
    }
    let file = match path.strip_prefix("/owner/name/resolve/c0ffee/") {
        Some("config.json" | TOOL_USE_FILE) => CONFIG,
        Some("model.safetensors") => server.weights.as_slice(),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let text = request
        .headers()
        .get(header::RANGE)
        .map(|range| range.to_str().unwrap().to_owned());
    let mut faults = server.faults.lock().unwrap();
    let is_known = |range: &&String| !(faults.ignores_ranges && range.ends_with('-'));
    let range = text.as_ref().filter(is_known).map(|range| {
        let (begin, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let end = end.parse().map_or(file.len(), |end: usize| end + 1);
        (begin.parse::<usize>().unwrap(), end.min(file.len()))
    });
    let (begin, end) = range.unwrap_or((0, file.len()));
    let mut bytes = file[begin..end].to_vec();
    // Headers are read by ranges with an end, downloads without.
    let is_download = text.as_ref().is_none_or(|range| range.ends_with('-')) && file != CONFIG;
    if is_download {
        server.requests.lock().unwrap().push(text.unwrap_or_default());
        if faults.busy > 0 {
            faults.busy -= 1;
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        if let Some(at) = faults.corrupt.pop() {
            bytes[at - begin] ^= 1;
        }
        if let Some(at) = faults.cut.pop() {
            let whole = bytes.len();
            bytes.truncate(at - begin);
            let sent = stream::iter([io::Result::Ok(bytes)]);
            // Send the data before the connection breaks.
            let cut = stream::once(async {
                tokio::task::yield_now().await;
                Err(io::Error::other("cut"))
            });
            let mut response = Body::from_stream(sent.chain(cut)).into_response();
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, whole.into());
            *response.status_mut() = if range.is_some() {
                StatusCode::PARTIAL_CONTENT
            } else {
                StatusCode::OK
            };
            return response;
        }
    }
    match range {
        Some(_) => {
            let content_range = format!("bytes {begin}-{}/{}", end - 1, file.len());
            (
                StatusCode::PARTIAL_CONTENT,
                [(header::CONTENT_RANGE, content_range)],
                bytes,
            )
                .into_response()
        }
        None => bytes.into_response(),
    }
}

async fn hub() -> (tokio::net::TcpListener, HubAccess) {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let hub = HubAccess {
        endpoint: endpoint.parse().unwrap(),
        credentials: None,
    };
    (listener, hub)
}

struct Fixture {
    server: Server,
    downloads: Downloads,
    _directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let header = br#"{"x": {"dtype": "BF16", "shape": [1000], "data_offsets": [0, 2000]}}"#;
        let mut weights = (header.len() as u64).to_le_bytes().to_vec();
        weights.extend_from_slice(header);
        weights.extend((0..2000_u32).map(|n| n as u8));
        let directory = TempDir::new();
        let root = directory.path().to_owned();
        Self {
            server: Server {
                weights: Arc::new(weights),
                ..Server::default()
            },
            downloads: Downloads::new(root),
            _directory: directory,
        }
    }

    fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.server.faults.lock().unwrap());
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.server.requests.lock().unwrap())
    }

    /// Runs one attempt, and returns its result and the number of bytes.
    async fn pull(&self) -> (Result<Utf8PathBuf, PullError>, u64) {
        let (listener, hub) = hub().await;
        let serving = axum::serve(
            listener,
            Router::new().fallback(answer).with_state(self.server.clone()),
        );
        let progress = Progress::default();
        let pulling = async {
            let found = fetch_snapshot(&"hf://owner/name".parse().unwrap(), &hub)
                .await
                .unwrap();
            pull(&found, &hub, &self.downloads, &progress, |_| {}).await
        };
        let outcome = tokio::select! {
            outcome = pulling => outcome,
            _ = serving.into_future() => unreachable!("the server does not stop"),
        };
        (outcome, progress.bytes().0)
    }

    async fn reason(&self) -> &'static str {
        let (outcome, _) = self.pull().await;
        assert_eq!(self.downloads.list(), [], "an incomplete model is not listed");
        outcome.map(drop).unwrap_err().reason()
    }

    async fn is_whole(&self) {
        let (outcome, bytes) = self.pull().await;
        let path = outcome.unwrap();
        let mut names: Vec<String> = path
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["additional_chat_templates", "config.json", "model.safetensors"]
        );
        for (name, whole) in [
            (TOOL_USE_FILE, CONFIG),
            ("config.json", CONFIG),
            ("model.safetensors", &self.server.weights),
        ] {
            assert_eq!(std::fs::read(path.join(name)).unwrap(), whole, "{name}");
        }
        assert_eq!(bytes, (2 * CONFIG.len() + self.server.weights.len()) as u64);
        let pinned = "hf://owner/name@c0ffee".parse().unwrap();
        assert_eq!(self.downloads.list(), [(pinned, path)]);
    }
}

#[tokio::test]
async fn continues_interrupted_download() {
    let fixture = Fixture::new();
    fixture.faults(|faults| faults.cut = vec![900, 300]);
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    fixture.is_whole().await;
    assert_eq!(fixture.requests(), ["", "bytes=300-", "bytes=900-"]);
}

/// Admission would otherwise reject the replica of a resumed download for missing disk space.
#[tokio::test]
async fn stored_files_count_if_the_download_continues_them() {
    let directory = TempDir::new();
    for (name, bytes) in [
        ("whole", 20),
        ("other", 20),
        ("part.partial", 15),
        ("long.partial", 30),
    ] {
        std::fs::write(directory.path().join(name), vec![0; bytes]).unwrap();
    }
    for (name, bytes, expect) in [
        ("whole", 20, 20),
        ("other", 21, 0),
        ("part", 20, 15),
        ("long", 20, 0),
        ("missing", 20, 0),
    ] {
        let file = HubFile {
            name: name.to_owned(),
            bytes,
            sha256: None,
        };
        assert_eq!(
            stored_bytes(directory.path(), &file).await,
            Bytes(expect),
            "{name}"
        );
    }
}

/// A full disk reports its error with the operation after the failed write.
#[tokio::test]
async fn unwritten_data_is_not_counted() {
    let fixture = Fixture::new();
    let (listener, hub) = hub().await;
    let router = Router::new().fallback(answer).with_state(fixture.server.clone());
    let serving = axum::serve(listener, router);
    let attempt = async {
        let snapshot = fetch_snapshot(&"hf://owner/name".parse().unwrap(), &hub)
            .await
            .unwrap();
        let directory = TempDir::new();
        let path = directory.path().join("read-only");
        std::fs::write(&path, "").unwrap();
        let (counted, progress) = (AtomicU64::new(0), Progress::default());
        let one = Transfer {
            client: client(&hub.endpoint).build().unwrap(),
            snapshot: &snapshot,
            hub: &hub,
            dir: directory.path(),
            progress: &progress,
            on_data: &|bytes| {
                counted.fetch_add(bytes as u64, Ordering::Relaxed);
            },
        };
        let mut part = Part {
            file: File::open(&path).await.unwrap(),
            bytes: 0,
            digest: Sha256::new(),
        };
        let outcome = one.fetch(&snapshot.files[1], &mut part, &path).await;
        assert_eq!(outcome.unwrap_err().reason(), "WriteFailed");
        (counted.into_inner(), progress.bytes())
    };
    let counted = tokio::select! {
        counted = attempt => counted,
        _ = serving.into_future() => unreachable!("the server does not stop"),
    };
    assert_eq!(counted, (0, Bytes::ZERO));
}

#[tokio::test]
async fn keeps_data_if_server_is_unavailable() {
    let fixture = Fixture::new();
    fixture.faults(|faults| faults.cut = vec![300]);
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    fixture.faults(|faults| faults.busy = 1);
    assert_eq!(fixture.reason().await, "HubError");
    fixture.is_whole().await;
    assert_eq!(fixture.requests(), ["", "bytes=300-", "bytes=300-"]);
}

#[tokio::test]
async fn discards_file_with_wrong_digest() {
    let fixture = Fixture::new();
    fixture.faults(|faults| faults.corrupt = vec![500]);
    assert_eq!(fixture.reason().await, "DigestMismatch");
    fixture.is_whole().await;
    assert_eq!(fixture.requests(), ["", ""]);
    // The wrong byte may be from an earlier attempt.
    let fixture = Fixture::new();
    fixture.faults(|faults| {
        faults.corrupt = vec![500];
        faults.cut = vec![700];
    });
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    assert_eq!(fixture.reason().await, "DigestMismatch");
    fixture.is_whole().await;
}

#[tokio::test]
async fn restarts_file_if_server_ignores_ranges() {
    let fixture = Fixture::new();
    fixture.faults(|faults| faults.cut = vec![300]);
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    fixture.faults(|faults| faults.ignores_ranges = true);
    fixture.is_whole().await;
    assert_eq!(fixture.requests(), ["", "bytes=300-"]);
}

#[tokio::test]
async fn discards_partial_file_that_is_too_long() {
    let fixture = Fixture::new();
    fixture.faults(|faults| faults.cut = vec![300]);
    assert_eq!(fixture.reason().await, "DownloadInterrupted");
    let found = fixture
        .downloads
        .partial(&"hf://owner/name@c0ffee".parse().unwrap());
    std::fs::write(found.join("model.safetensors.partial"), vec![0; 9000]).unwrap();
    fixture.is_whole().await;
    assert_eq!(fixture.requests(), ["", ""]);
}

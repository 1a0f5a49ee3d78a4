use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::json;

use super::access::{Credentials, HUB, InvalidHub};
use super::*;
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;

/// Web server with a few files, which records requests.
#[derive(Clone, Default)]
struct Server {
    files: Arc<BTreeMap<String, Vec<u8>>>,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    /// Response to every request.
    error: Option<(StatusCode, &'static str)>,
    ignores_ranges: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RecordedRequest {
    path: String,
    token: Option<String>,
    /// First and last byte.
    range: Option<(usize, usize)>,
}

async fn answer(State(server): State<Server>, request: Request) -> axum::response::Response {
    let text = |name| {
        let value = request.headers().get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let range = text(header::RANGE).map(|range| {
        let (begin, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (begin.parse().unwrap(), end.parse().unwrap())
    });
    let path = request.uri().path().to_owned();
    server.requests.lock().unwrap().push(RecordedRequest {
        path: path.clone(),
        token: text(header::AUTHORIZATION),
        range,
    });
    if let Some((status, code)) = server.error {
        return (status, [(ERROR_CODE, code)]).into_response();
    }
    let Some(file) = server.files.get(&path) else {
        return (StatusCode::NOT_FOUND, [(ERROR_CODE, "EntryNotFound")]).into_response();
    };
    match range.filter(|_| !server.ignores_ranges) {
        Some((begin, end)) => {
            let end = end.min(file.len() - 1);
            let content_range = format!("bytes {begin}-{end}/{}", file.len());
            let body = Body::from(file[begin..=end].to_vec());
            (
                StatusCode::PARTIAL_CONTENT,
                [(header::CONTENT_RANGE, content_range)],
                body,
            )
                .into_response()
        }
        None => ([(COMMIT, "c0ffee")], Body::from(file.clone())).into_response(),
    }
}

impl Server {
    fn of(files: &[(&str, &[u8])]) -> Self {
        let files = files
            .iter()
            .map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
        Self {
            files: Arc::new(files.collect()),
            ..Self::default()
        }
    }

    fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Serves while `model` is read. `HOST` in its text is replaced by the server's address.
    async fn read(&self, model: &str, token: Option<&str>) -> Result<ModelFacts, String> {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = format!("http://{}", listener.local_addr().unwrap());
        let hub = HubAccess {
            endpoint: host.parse().unwrap(),
            credentials: token.map(|token| Credentials::Token(token.to_owned())),
        };
        let model: RemoteModel = model.replace("HOST", &host).parse().unwrap();
        let serving = axum::serve(listener, Router::new().fallback(answer).with_state(self.clone()));
        tokio::select! {
            facts = facts(&model, &hub) => facts.map_err(|err| Chain(&err).to_string().replace(&host, "HOST")),
            _ = serving.into_future() => unreachable!("the server does not stop"),
        }
    }
}

const CONFIG: &[u8] = br#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
    "max_position_embeddings": 512, "tie_word_embeddings": true}"#;

/// Creates a weight file with one tensor of `rows` × 64 half-precision values. Returns the length
/// of its header, too.
fn weights(tensor: &str, rows: usize) -> (Vec<u8>, usize) {
    let bytes = rows * 128;
    let header =
        json!({tensor: {"dtype": "BF16", "shape": [rows, 64], "data_offsets": [0, bytes]}}).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + bytes, 7);
    (file, header.len())
}

const BASE: &str = "/owner/name/resolve";

#[tokio::test]
async fn reads_headers_but_no_tensor_data() {
    let (first, first_header) = weights("model.embed_tokens.weight", 100);
    let (second, second_header) = weights("model.layers.0.self_attn.q_proj.weight", 64);
    let index = json!({"metadata": {"total_size": 20_992}, "weight_map": {
        "model.embed_tokens.weight": "model-1.safetensors",
        "model.layers.0.self_attn.q_proj.weight": "model-2.safetensors"
    }});
    let server = Server::of(&[
        (&format!("{BASE}/v1.0/config.json"), CONFIG),
        (
            &format!("{BASE}/c0ffee/{INDEX_FILE}"),
            index.to_string().as_bytes(),
        ),
        (&format!("{BASE}/c0ffee/model-1.safetensors"), &first),
        (&format!("{BASE}/c0ffee/model-2.safetensors"), &second),
    ]);
    let facts = server.read("hf://owner/name@v1.0", Some("secret")).await.unwrap();
    assert_eq!(facts.weights.resident(), Bytes(128 * 164));
    assert_eq!(facts.parameters, 64 * 164);

    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|one| one.token.as_deref() == Some("Bearer secret"))
    );
    for (file, header) in [
        ("model-1.safetensors", first_header),
        ("model-2.safetensors", second_header),
    ] {
        let ranges: Vec<_> = requests
            .iter()
            .filter(|one| one.path.ends_with(file))
            .map(|one| one.range)
            .collect();
        assert_eq!(ranges, [Some((0, 7)), Some((8, 7 + header))]);
    }
    assert_eq!(requests.len(), 6, "{requests:?}");
}

#[tokio::test]
async fn stale_index_does_not_hide_single_weight_file() {
    let (file, _) = weights("model.embed_tokens.weight", 100);
    let index = br#"{"weight_map": {"model.embed_tokens.weight": "model-1.safetensors"}}"#;
    let server = Server::of(&[
        ("/models/tiny/config.json", CONFIG),
        (&format!("/models/tiny/{INDEX_FILE}"), index),
        ("/models/tiny/model.safetensors", &file),
    ]);
    let facts = server.read("HOST/models/tiny", None).await.unwrap();
    assert_eq!(facts.weights.resident(), Bytes(12_800));
    assert_eq!(facts.parameters, 6400);
}

#[tokio::test]
async fn sends_no_token_to_other_web_servers() {
    let (file, _) = weights("model.embed_tokens.weight", 100);
    let server = Server::of(&[
        ("/models/tiny/config.json", CONFIG),
        ("/models/tiny/model.safetensors", &file),
    ]);
    let facts = server.read("HOST/models/tiny/", Some("secret")).await.unwrap();
    assert_eq!(facts.weights.resident(), Bytes(12_800));
    assert!(server.requests().iter().all(|one| one.token.is_none()));
}

#[tokio::test]
async fn facts_derive_from_configuration_without_weights() {
    let server = Server::of(&[(&format!("{BASE}/main/config.json"), CONFIG)]);
    let facts = server.read("hf://owner/name", None).await.unwrap();
    assert_eq!(facts.source, rooflet_model::facts::WeightsSource::Config);
}

#[tokio::test]
async fn errors_contain_a_remedy() {
    for (status, code, expect) in [
        (
            StatusCode::UNAUTHORIZED,
            "",
            "hf://owner/name does not exist, or it is private: check its name, or set HF_TOKEN to a token that may read it",
        ),
        (
            StatusCode::NOT_FOUND,
            "RepoNotFound",
            "hf://owner/name does not exist, or it is private: check its name, or set HF_TOKEN to a token that may read it",
        ),
        (
            StatusCode::FORBIDDEN,
            "GatedRepo",
            "hf://owner/name is gated: accept its conditions on HOST/owner/name, then set HF_TOKEN to a token of that account",
        ),
        (
            StatusCode::NOT_FOUND,
            "RevisionNotFound",
            "hf://owner/name: there is no revision `main`",
        ),
        (
            StatusCode::NOT_FOUND,
            "EntryNotFound",
            "hf://owner/name has no config.json",
        ),
        (
            StatusCode::TOO_MANY_REQUESTS,
            "",
            "HOST/owner/name/resolve/main/config.json: the server responded with 429 Too Many Requests",
        ),
    ] {
        let server = Server {
            error: Some((status, code)),
            ..Server::default()
        };
        assert_eq!(server.read("hf://owner/name", None).await.unwrap_err(), expect);
    }
}

#[tokio::test]
async fn errors_describe_invalid_responses() {
    let (file, _) = weights("model.embed_tokens.weight", 100);
    let path = "/m/model.safetensors";
    let server = Server {
        ignores_ranges: true,
        ..Server::of(&[("/m/config.json", CONFIG), (path, &file)])
    };
    let message = server.read("HOST/m", None).await.unwrap_err();
    assert!(
        message.starts_with("HOST/m/model.safetensors: the server does not support range requests"),
        "{message}"
    );

    let cut = Server::of(&[("/m/config.json", CONFIG), (path, &file[..300])]);
    let message = cut.read("HOST/m", None).await.unwrap_err();
    assert!(
        message.contains("model.safetensors: not a safetensors file, or truncated"),
        "{message}"
    );

    let huge = vec![b' '; MAX_CONFIG_BYTES as usize + 1];
    let huge = Server::of(&[("/m/config.json", &huge)]);
    let message = huge.read("HOST/m", None).await.unwrap_err();
    assert!(
        message.starts_with("HOST/m/config.json is larger than"),
        "{message}"
    );
}

#[tokio::test]
async fn error_names_unreachable_host() {
    drop(rustls::crypto::ring::default_provider().install_default());
    // Port that was free before.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let hub = HubAccess {
        endpoint: endpoint.parse().unwrap(),
        credentials: None,
    };
    for (model, expected) in [
        (
            "hf://owner/name".to_owned(),
            "127.0.0.1 cannot be reached: check the network connection, or set HF_ENDPOINT to a mirror",
        ),
        // Another server has no mirror.
        (
            format!("{endpoint}/m"),
            "127.0.0.1 cannot be reached: check the network connection, and the host in the URL",
        ),
    ] {
        let err = facts(&model.parse().unwrap(), &hub).await.unwrap_err();
        assert_eq!(err.to_string(), expected);
    }
}

#[test]
fn parses_remote_models() {
    let check = |text: &str, expect: &str| {
        let got = match text.parse::<RemoteModel>() {
            Ok(model) => format!("{model} = {}", model.name()),
            Err(err) => err.to_string(),
        };
        assert_eq!(got, expect, "{text}");
    };
    let form = "a model on the hub is hf://OWNER/NAME or hf://OWNER/NAME@REVISION";
    check("hf://a/b-4bit", "hf://a/b-4bit = b-4bit");
    check("hf://a/b@refs/pr/1", "hf://a/b@refs/pr/1 = b");
    check("https://host/x/y/", "https://host/x/y/ = y");
    check("https://host", "https://host/ = host");
    check("hf://a", &format!("`hf://a`: {form}"));
    check("hf://a/b/c", &format!("`hf://a/b/c`: {form}"));
    check("hf://a/..", &format!("`hf://a/..`: {form}"));
    check("hf://a/b@", "`hf://a/b@`: a branch, tag or commit must follow @");
    check("https://", "`https://`: not a URL: empty host");
}

#[test]
fn debug_output_hides_token() {
    let hub = HubAccess {
        endpoint: HUB.parse().unwrap(),
        credentials: Some(Credentials::Token("secret".to_owned())),
    };
    assert!(!format!("{hub:?}").contains("secret"));
}

#[test]
fn sends_but_never_prints_password_of_endpoint() {
    let hub = HubAccess::new("https://me:p%40ss@mirror:8443/hub", None).unwrap();
    assert_eq!(hub.endpoint.as_str(), "https://mirror:8443/hub");
    assert!(!format!("{hub:?}").contains("ss@"), "{hub:?}");
    drop(rustls::crypto::ring::default_provider().install_default());
    let url = below(&hub.endpoint, ["a b", "c"]);
    let request = hub.get(&Client::new(), &url).build().unwrap();
    assert_eq!(request.url().as_str(), "https://mirror:8443/hub/a%20b/c");
    // me:p@ss
    assert_eq!(request.headers()["authorization"], "Basic bWU6cEBzcw==");
    let both = HubAccess::new("https://me:pass@mirror", Some("token".to_owned()));
    assert_eq!(both.unwrap_err(), InvalidHub::TwoCredentials);
}

#[tokio::test]
async fn total_size_of_headers_is_limited() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let (file, _) = weights("model.embed_tokens.weight", 1);
    let server = Server::of(&[("/config.json", CONFIG), ("/model.safetensors", &file)]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = RemoteModel::Directory(
        format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap(),
    );
    let hub = HubAccess::unreachable();
    let mut remote = Remote::new(&model, &hub).unwrap();
    // Size of headers of other files.
    remote.header_bytes = AtomicU64::new(MAX_HEADERS_BYTES - 10);
    let serving = axum::serve(listener, Router::new().fallback(answer).with_state(server));
    let read = tokio::select! {
        read = remote.checkpoint() => read,
        _ = serving.into_future() => unreachable!("the server does not stop"),
    };
    assert!(
        matches!(read, Err(ReadRemoteError::TooManyHeaders { .. })),
        "{read:?}"
    );
}

#[tokio::test]
async fn hub_is_reached_without_credentials_whatever_it_answers() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server {
        error: Some((StatusCode::FORBIDDEN, "Blocked")),
        ..Server::default()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hub = HubAccess {
        endpoint: format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap(),
        credentials: Some(Credentials::Token("secret".to_owned())),
    };
    let serving = axum::serve(
        listener,
        Router::new().fallback(answer).with_state(server.clone()),
    );
    let date = tokio::select! {
        date = hub.reach() => date.unwrap(),
        _ = serving.into_future() => unreachable!("the server does not stop"),
    };
    assert!(date.is_some_and(|date| date.ends_with(" GMT")));
    assert_eq!(server.requests()[0].token, None);
    let err = HubAccess::unreachable().reach().await.unwrap_err();
    assert!(
        !Chain(&err).to_string().contains("127.0.0.1:9/"),
        "no address: {}",
        Chain(&err)
    );
}

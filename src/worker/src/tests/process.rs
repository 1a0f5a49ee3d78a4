//! Lifecycle of the worker: status, start errors and listeners.

use super::*;
use rooflet_testing::TempDir;

#[test]
fn reports_health_models_status_and_metrics() {
    with_worker(config(), |worker| {
        Box::pin(async {
            assert_eq!(worker.send("GET", "/health", "").await.status, 200);
            assert_eq!(worker.send("GET", "/ready", "").await.status, 200);
            let models = worker.send("GET", "/v1/models", "").await.json();
            assert_eq!(models["data"][0]["id"], "tiny");
            assert_eq!(models["data"][0]["max_model_len"], 512);
            assert_eq!(
                worker.send("GET", "/v1/models/tiny", "").await.json(),
                models["data"][0]
            );
            worker.chat(json!({"max_tokens": 3})).await;
            let status = worker.status().await;
            let model = status.model.unwrap();
            assert_eq!(
                (status.phase, model.architecture.as_str()),
                (WorkerPhase::Ready, "qwen3")
            );
            assert_eq!(status.engine.version, "0.32.2");
            assert!(
                status.memory.active_bytes >= model.weights_bytes,
                "{:?}",
                status.memory
            );
            assert_eq!((status.requests.completed, status.measured.samples), (1, 1));
            let metrics = worker.send("GET", "/metrics", "").await;
            assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4");
            assert!(
                metrics
                    .body
                    .contains("rooflet_worker_completion_tokens_total 3\n"),
                "{}",
                metrics.body
            );
            assert!(
                metrics
                    .body
                    .contains("rooflet_worker_time_to_first_token_seconds_count 1\n")
            );
        })
    });
}

#[test]
fn accepts_chunked_request_bodies() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let body = json!({"model": "tiny", "prompt": "a", "max_tokens": 1}).to_string();
            let (first, second) = body.split_at(10);
            let mut connection = TcpStream::connect(&worker.address).await.unwrap();
            let request = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: w\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                 {:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
                first.len(),
                second.len()
            );
            connection.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(read_answer(connection).await.status, 200);
        })
    });
}

pub(super) fn start_error(config: WorkerConfig) -> WorkerError {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(Worker::start(config)) {
        Ok(_) => panic!("a worker started"),
        Err(err) => err,
    }
}

#[test]
fn start_errors_have_reason_and_exit_status() {
    let dir = TempDir::new();
    let path = dir.path().to_owned();
    let err = start_error(WorkerConfig {
        model: path.join("none"),
        ..config()
    });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ModelNotFound", ExitStatus::Config)
    );

    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(config().model.join(file), path.join(file)).unwrap();
    }
    let message = start_error(WorkerConfig {
        model: path.clone(),
        ..config()
    })
    .termination_message();
    assert_eq!(message.reason, "IncompleteModel");
    assert!(
        message.message.ends_with("it has no tokenizer.json"),
        "{}",
        message.message
    );

    std::fs::write(path.join("model.safetensors"), b"\x08\0\0\0\0\0\0\0{broken}").unwrap();
    let message = start_error(WorkerConfig {
        model: path,
        ..config()
    })
    .termination_message();
    assert_eq!(message.reason, "CorruptWeights");
    assert!(
        message
            .message
            .contains("model.safetensors: not a safetensors file"),
        "{}",
        message.message
    );

    let err = start_error(WorkerConfig {
        context_tokens: Some(513),
        ..config()
    });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ContextTooLong", ExitStatus::Config)
    );
}

#[test]
fn listen_error_contains_address() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Tcp(occupied.local_addr().unwrap());
    let err = start_error(WorkerConfig { listen, ..config() });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ListenFailed", ExitStatus::Unavailable)
    );
    assert!(
        Chain(&err)
            .to_string()
            .contains(&occupied.local_addr().unwrap().to_string())
    );
}

#[test]
fn unix_socket_is_private_and_removed_on_exit() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let path = dir.path().join("w.sock");
    // A killed worker leaves its socket file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Listen::Unix(path.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let worker = Worker::start(WorkerConfig {
            listen: listen.clone(),
            ..config()
        })
        .await
        .unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = Worker::start(WorkerConfig { listen, ..config() }).await;
        assert!(
            matches!(second, Err(WorkerError::Listen { .. })),
            "a live worker keeps its socket"
        );
        let stop = CancellationToken::new();
        let scenario = async {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream
                .write_all(b"GET /health HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(worker.serve(stop.clone()), scenario);
        outcome.unwrap();
    });
    assert!(!path.exists());
}

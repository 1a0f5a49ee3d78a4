//! Worker without a model. It answers in the time that the roofline predicts, and every answer
//! states that it is simulated. Busy workers of a machine share its chip. The reported speed is
//! measured from its own answers. Prompts are counted as four bytes per token, because there is no
//! tokenizer.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes as Chunk};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use camino::Utf8PathBuf;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use super::answers::{CompletedRequest, RecentAnswers};
use super::chip::Chip;
use super::mac::Conditions;
use rooflet_agent::models::ServableModel;
use rooflet_api::wire::{EngineInfo, EngineMemory, ModelInfo, RequestCounts, WorkerPhase, WorkerStatus};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_http_server as connection;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::published::{Load, speed_under_load};

const BYTES_PER_TOKEN: usize = 4;
/// Default answer length.
const ANSWER_TOKENS: usize = 128;
/// Maximum number of waiting requests.
const QUEUE: usize = 64;
const WARM_UP: Duration = Duration::from_millis(500);

/// Configuration of a simulated worker.
#[derive(Debug, Clone)]
pub struct SimulatedWorker {
    pub socket: Utf8PathBuf,
    pub name: String,
    pub context_tokens: usize,
    pub max_concurrency: usize,
    pub grace: Duration,
    /// File with the current slowdown.
    pub conditions: Utf8PathBuf,
    pub model: ServableModel,
    /// Factor by which the model is slower than predicted.
    pub slower: f64,
    pub hardware: Hardware,
    pub disk_bytes_per_second: f64,
}

struct App {
    worker: SimulatedWorker,
    clock: Clock,
    ready: AtomicBool,
    streams: Arc<Semaphore>,
    running: AtomicUsize,
    waiting: AtomicUsize,
    completed: AtomicUsize,
    chip: Mutex<Chip>,
    recent: Mutex<RecentAnswers>,
}

impl App {
    /// Counts the start or end of a request.
    fn count(&self, begins: bool) {
        let mut chip = lock(&self.chip);
        let running = match begins {
            true => self.running.fetch_add(1, Ordering::Relaxed) + 1,
            false => self.running.fetch_sub(1, Ordering::Relaxed) - 1,
        };
        if let Err(err) = chip.set_busy(running > 0) {
            warn!(error = %Chain(&err), "failed to mark the simulated chip as busy");
        }
    }

    fn sharers(&self) -> usize {
        let chip = lock(&self.chip);
        chip.sharers()
    }
}

/// Serves on its socket until `tasks` stop. Then finishes in-flight requests within the grace
/// period.
pub async fn serve(worker: SimulatedWorker, tasks: &Tasks) -> io::Result<()> {
    let listener = UnixListener::bind(&worker.socket)?;
    std::fs::set_permissions(&worker.socket, std::fs::Permissions::from_mode(0o600))?;
    let load = worker.model.served.cost.weights.resident().0 as f64 / worker.disk_bytes_per_second;
    let grace = worker.grace;
    let chip = Chip::join(
        worker.conditions.with_extension("busy"),
        &std::process::id().to_string(),
    )?;
    let app = Arc::new(App {
        chip: Mutex::new(chip),
        recent: Mutex::default(),
        streams: Arc::new(Semaphore::new(worker.max_concurrency)),
        worker,
        clock: Clock::System,
        ready: AtomicBool::new(false),
        running: AtomicUsize::new(0),
        waiting: AtomicUsize::new(0),
        completed: AtomicUsize::new(0),
    });
    let loading = app.clone();
    tasks.spawn_detached(async move {
        let conditions = Conditions::read(&loading.worker.conditions).await;
        tokio::time::sleep(Duration::from_secs_f64(load * conditions.disk) + WARM_UP).await;
        loading.ready.store(true, Ordering::Relaxed);
        info!(model = %loading.worker.name, "worker ready");
    });
    let router = Router::new()
        .route("/status", get(status))
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .with_state(app);
    let stop = tasks.stop_token();
    let over = async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        () = connection::serve_unix(listener, router, stop.clone()) => {}
        () = over => {}
    }
    Ok(())
}

async fn status(State(app): State<Arc<App>>) -> Json<WorkerStatus> {
    let ready = app.ready.load(Ordering::Relaxed);
    let weights = app.worker.model.served.cost.weights.resident().0;
    let count = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
    Json(WorkerStatus {
        phase: if ready {
            WorkerPhase::Ready
        } else {
            WorkerPhase::Loading
        },
        engine: EngineInfo {
            name: "simulated".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: "metal".to_owned(),
        },
        model: Some(ModelInfo {
            architecture: app.worker.model.architecture.to_owned(),
            parameters: 0,
            weights_bytes: weights,
            kv_bytes_per_token: 0,
            context_tokens: app.worker.context_tokens as u64,
        }),
        memory: EngineMemory {
            active_bytes: if ready { weights } else { 0 },
            peak_bytes: if ready { weights } else { 0 },
            cache_bytes: 0,
        },
        requests: RequestCounts {
            running: count(&app.running),
            queued: count(&app.waiting),
            completed: count(&app.completed),
            failed: 0,
        },
        measured: lock(&app.recent).measured(),
        stalled: false,
    })
}

async fn health() -> StatusCode {
    StatusCode::OK
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let model = json!({"id": app.worker.name, "object": "model", "created": 0, "owned_by": "simulated"});
    Json(json!({"object": "list", "data": [model]}))
}

async fn chat(State(app): State<Arc<App>>, body: Chunk) -> Response {
    answer(app, body, true).await
}

async fn text(State(app): State<Arc<App>>, body: Chunk) -> Response {
    answer(app, body, false).await
}

/// Request that occupies a stream of the worker.
struct Answer {
    app: Arc<App>,
    chat: bool,
    prompt_tokens: usize,
    tokens: usize,
    created: i64,
    arrived: Instant,
    first_token_at: Option<Instant>,
    /// Time at which the next token is due.
    due: Instant,
    /// Sum of concurrent requests over all tokens.
    streams: usize,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.app.count(false);
        self.app.completed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn answer(app: Arc<App>, body: Chunk, chat: bool) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return ApiError::invalid_value("body", "The body is not JSON.").into_response();
    };
    if !app.ready.load(Ordering::Relaxed) {
        return ApiError::unavailable(ErrorCode::ModelLoading, "The model is still loading.").into_response();
    }
    let number = |name: &str| {
        request[name]
            .as_u64()
            .and_then(|tokens| usize::try_from(tokens).ok())
    };
    let tokens = number("max_completion_tokens")
        .or(number("max_tokens"))
        .unwrap_or(ANSWER_TOKENS);
    let prompt_tokens = body.len().div_ceil(BYTES_PER_TOKEN);
    if prompt_tokens + tokens > app.worker.context_tokens {
        let message = format!(
            "The prompt has about {prompt_tokens} tokens. With {tokens} tokens for the answer, this exceeds the maximum of {}.",
            app.worker.context_tokens
        );
        return ApiError::invalid_value("max_tokens", message).into_response();
    }
    let arrived = app.clock.instant();
    if app.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE {
        app.waiting.fetch_sub(1, Ordering::Relaxed);
        return (
            StatusCode::TOO_MANY_REQUESTS,
            [("retry-after", "1")],
            "the queue is full",
        )
            .into_response();
    }
    let permit = app.streams.clone().acquire_owned().await;
    app.waiting.fetch_sub(1, Ordering::Relaxed);
    let Ok(permit) = permit else {
        return ApiError::unavailable(ErrorCode::ModelUnavailable, "The worker stops.").into_response();
    };
    app.count(true);
    let mut answer = Answer {
        chat,
        prompt_tokens,
        tokens,
        created: app.clock.now().as_second(),
        arrived,
        first_token_at: None,
        due: app.clock.instant(),
        streams: 0,
        _permit: permit,
        app,
    };
    answer.first_token().await;
    if request["stream"].as_bool() != Some(true) {
        for _ in 1..tokens {
            answer.next_token().await;
        }
        answer.end();
        return Json(answer.whole()).into_response();
    }
    let include_usage = request["stream_options"]["include_usage"].as_bool() == Some(true);
    let chunks = futures::stream::unfold((answer, 0), move |(mut answer, sent)| async move {
        let line = match sent {
            sent if sent < answer.tokens => {
                if sent > 0 {
                    answer.next_token().await;
                }
                if sent + 1 == answer.tokens {
                    answer.end();
                }
                answer.chunk(sent)
            }
            sent if sent == answer.tokens && include_usage => answer.usage_chunk(),
            sent if sent <= answer.tokens + 1 => "[DONE]".to_owned(),
            _ => return None,
        };
        let last = line == "[DONE]";
        let next = if last { usize::MAX } else { sent + 1 };
        Some((
            Ok::<_, Infallible>(Chunk::from(format!("data: {line}\n\n"))),
            (answer, next),
        ))
    });
    let body = Body::from_stream(chunks.take_while(|_| std::future::ready(true)));
    ([("content-type", "text/event-stream")], body).into_response()
}

impl Answer {
    /// Returns the current time to first token, and the time between tokens, in seconds.
    async fn speed(&self) -> (f64, f64) {
        let worker = &self.app.worker;
        let load = Load {
            streams: self.app.running.load(Ordering::Relaxed) as f64,
            prompt_tokens: self.prompt_tokens as f64,
            context_tokens: self.context_tokens(),
        };
        let speed = speed_under_load(load, worker.hardware, &worker.model.served);
        let conditions = Conditions::read(&worker.conditions).await;
        let slower = conditions.chip * worker.slower * self.app.sharers() as f64;
        (speed.first_token.p50 * slower, slower / speed.decode.p50)
    }

    /// Returns the context length in the middle of the answer.
    fn context_tokens(&self) -> f64 {
        (self.prompt_tokens + self.tokens / 2) as f64
    }

    async fn first_token(&mut self) {
        let (seconds, _) = self.speed().await;
        self.wait(seconds).await;
        self.first_token_at = Some(self.app.clock.instant());
        self.streams += self.app.running.load(Ordering::Relaxed);
    }

    async fn next_token(&mut self) {
        let (_, seconds) = self.speed().await;
        self.wait(seconds).await;
        self.streams += self.app.running.load(Ordering::Relaxed);
    }

    /// Waits until `seconds` after the previous due time. A late wake-up shortens the next wait.
    async fn wait(&mut self, seconds: f64) {
        self.due += Duration::try_from_secs_f64(seconds).unwrap_or_default();
        tokio::time::sleep_until(self.due.into()).await;
    }

    /// Records a completed answer.
    fn end(&self) {
        let Some(first) = self.first_token_at else {
            return;
        };
        let answering = (self.app.clock.instant() - first).as_secs_f64();
        let completed_request = CompletedRequest {
            first_token: (first - self.arrived).as_secs_f64(),
            tokens_per_second: (self.tokens > 1 && answering > 0.0)
                .then(|| (self.tokens - 1) as f64 / answering),
            streams: self.streams as f64 / self.tokens.max(1) as f64,
            prompt_tokens: self.prompt_tokens as f64,
            context_tokens: self.context_tokens(),
        };
        let mut recent = lock(&self.app.recent);
        recent.add(completed_request);
    }

    fn envelope(&self, object: &str) -> Value {
        json!({
            "id": "simulated",
            "object": object,
            "created": self.created,
            "model": self.app.worker.name,
            "system_fingerprint": "simulated",
        })
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        })
    }

    fn whole(&self) -> Value {
        let text = "simulated ".repeat(self.tokens);
        let (object, choice) = match self.chat {
            true => (
                "chat.completion",
                json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}),
            ),
            false => (
                "text_completion",
                json!({"index": 0, "text": text, "finish_reason": "length"}),
            ),
        };
        let mut body = self.envelope(object);
        body["choices"] = json!([choice]);
        body["usage"] = self.usage();
        body
    }

    fn chunk(&self, index: usize) -> String {
        let last = index + 1 == self.tokens;
        let finish = if last { json!("length") } else { Value::Null };
        let (object, choice) = match self.chat {
            true => (
                "chat.completion.chunk",
                json!({"index": 0, "delta": {"role": "assistant", "content": "simulated "}, "finish_reason": finish}),
            ),
            false => (
                "text_completion",
                json!({"index": 0, "text": "simulated ", "finish_reason": finish}),
            ),
        };
        let mut body = self.envelope(object);
        body["choices"] = json!([choice]);
        body.to_string()
    }

    fn usage_chunk(&self) -> String {
        let object = if self.chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let mut body = self.envelope(object);
        body["choices"] = json!([]);
        body["usage"] = self.usage();
        body.to_string()
    }
}

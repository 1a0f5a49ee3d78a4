//! Benchmark target: a server at a URL, or a model directory for which a worker is started.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

use super::client::{Client, Server};
use super::prompt::{self, Length};
use crate::cli::bench::client::ChatRequest;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_benchmark::{Cell, Matrix, Sample};

/// Timeout of loading a model.
const START: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);

/// Word counts of the two trial prompts, and tokens of their answers.
const TRIAL_WORDS: [u32; 2] = [20, 220];
const TRIAL_TOKENS: u32 = 8;

/// Default maximum context of a worker, if the model supports it.
const USUAL_CONTEXT_TOKENS: u64 = 32_768;
/// Upper limit of a chat template's tokens.
const TEMPLATE_TOKENS: u64 = 512;

/// Connected server.
#[derive(Debug)]
pub(super) struct Target {
    /// URL or directory as the user passed it.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) trial: Trial,
    /// Worker of a model directory. It stops when this value is dropped.
    worker: Option<Worker>,
}

/// Returns true if a target is the URL of a running server.
pub(super) fn is_url(target: &str) -> bool {
    target.starts_with("http://") || target.starts_with("https://")
}

/// Results of the trial requests before the first measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) length: Length,
    /// Tokens per second.
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

impl Target {
    /// Connects to `server`, or starts a worker for the directory `name`. Sends trial prompts of
    /// this `seed`.
    pub(super) async fn open(
        name: &str,
        server: Option<Server>,
        model: Option<&str>,
        load: Load,
        seed: u64,
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let (client, worker) = if let Some(server) = server {
            (server.connect(model, clock.clone()).await?, None)
        } else {
            let mut worker = Worker::start(Utf8Path::new(name), load, None)?;
            let client = worker.wait_until_ready(clock).await?;
            (client, Some(worker))
        };
        let trial = Trial::run(&client, seed)
            .await
            .with_context(|| format!("sending trial requests to {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            client,
            trial,
            worker,
        })
    }

    /// Restarts the worker if the cell needs other prefix cache settings. Cells that need prompts
    /// cached only on disk get a worker whose memory cache holds one prompt per concurrent request.
    pub(super) async fn prepare(&mut self, cell: &Cell, clock: &Clock) -> anyhow::Result<()> {
        let Some(worker) = self.worker.take() else {
            return Ok(());
        };
        let files = if cell.state.needs_files() {
            let tokens = u64::from(cell.context_tokens) * u64::from(cell.concurrency);
            let bytes = self.client.kv_bytes_per_token().await? * tokens;
            // Extra space for answers and partly filled blocks.
            Some(Files::new(bytes + bytes / 2)?)
        } else if worker.files.is_some() {
            None
        } else {
            self.worker = Some(worker);
            return Ok(());
        };
        let worker = worker.replaced(files)?;
        self.begin(worker, clock).await
    }

    /// Restarts the worker with the same prefix files, after it has written pending prefixes.
    pub(super) async fn restart(&mut self, clock: &Clock) -> anyhow::Result<()> {
        let Some(mut worker) = self.worker.take() else {
            return Ok(());
        };
        worker.end().await?;
        let files = worker.files.take();
        let worker = worker.replaced(files)?;
        self.begin(worker, clock).await
    }

    async fn begin(&mut self, mut worker: Worker, clock: &Clock) -> anyhow::Result<()> {
        self.client = worker.wait_until_ready(clock).await?;
        self.worker = Some(worker);
        // The first request may load or compile something.
        ask(&self.client, TRIAL_WORDS[0], 0).await?;
        Ok(())
    }
}

/// Prefix cache directory of a worker with a small memory cache. The directory is removed on drop.
#[derive(Debug)]
struct Files {
    dir: Utf8PathBuf,
    memory_bytes: u64,
}

impl Files {
    fn new(memory_bytes: u64) -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("rooflet-bench-{}", Uuid::new_v4()));
        let dir = Utf8PathBuf::try_from(dir).context("the directory for temporary files")?;
        Ok(Self { dir, memory_bytes })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The directory does not exist if the worker stored nothing.
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

impl Trial {
    /// Sends the trial prompts. Their seeds start at `first`, so that no prompt is cached.
    async fn run(client: &Client, first: u64) -> anyhow::Result<Self> {
        // The first request may load or compile something.
        ask(client, TRIAL_WORDS[0], first).await?;
        let few = ask(client, TRIAL_WORDS[0], first + 1).await?;
        let many = ask(client, TRIAL_WORDS[1], first + 2).await?;
        let (Some(few_tokens), Some(many_tokens)) = (few.prompt_tokens, many.prompt_tokens) else {
            bail!("the server does not report the token count of a prompt (`usage` is missing)");
        };
        let first = many.time_to_first_token_seconds.unwrap_or(many.total_seconds);
        Ok(Self {
            length: Length::of_trials((TRIAL_WORDS[0], few_tokens), (TRIAL_WORDS[1], many_tokens)),
            prefill: many_tokens as f64 / first.max(1e-6),
            decode: many
                .decode_tokens_per_second()
                .unwrap_or(many.completion_tokens as f64 / many.total_seconds.max(1e-6)),
        })
    }
}

async fn ask(client: &Client, words: u32, seed: u64) -> anyhow::Result<Sample> {
    let prompt = prompt::text(words, seed);
    let ask = ChatRequest {
        prompt: &prompt,
        tokens: TRIAL_TOKENS,
        streaming: true,
    };
    client.ask(ask).await
}

/// Maximum load of the benchmark.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Concurrent requests.
    concurrency: u32,
    /// Tokens of one request including its answer.
    tokens: u64,
}

impl Load {
    pub(super) fn of(matrix: &Matrix) -> Self {
        let longest = matrix.contexts.iter().copied().max().unwrap_or(0);
        Self {
            concurrency: matrix.concurrency.iter().copied().max().unwrap_or(1),
            // The token count of a prompt is accurate within about 5 %.
            tokens: u64::from(longest) * 21 / 20 + u64::from(matrix.tokens) + TEMPLATE_TOKENS,
        }
    }

    /// Returns the context length that a worker needs, limited by the model, or `None` if the
    /// default is sufficient.
    fn context_tokens(self, model: &Utf8Path) -> Option<u64> {
        // The worker reports errors of the model.
        let model = ModelDir::inspect(model).ok()?;
        let most = model.shape.config.max_context_tokens;
        (self.tokens > USUAL_CONTEXT_TOKENS).then_some(self.tokens.min(most))
    }
}

/// Worker on a free local port.
#[derive(Debug)]
struct Worker {
    child: Child,
    port: u16,
    model: Utf8PathBuf,
    load: Load,
    files: Option<Files>,
}

impl Worker {
    fn start(model: &Utf8Path, load: Load, files: Option<Files>) -> anyhow::Result<Self> {
        if !model.is_dir() {
            bail!("`{model}` is neither an http:// or https:// URL nor a model directory");
        }
        if !cfg!(feature = "mlx") {
            bail!("`{model}`: this build has no engine; pass the URL of a server");
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let program = std::env::current_exe().context("determining the path of this program")?;
        let mut command = Command::new(program);
        command
            .args([
                "worker",
                "--model",
                model.as_str(),
                "--name",
                NAME,
                "--stop-with-stdin",
            ])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--max-concurrency", &load.concurrency.to_string()]);
        if let Some(tokens) = load.context_tokens(model) {
            command.args(["--context-tokens", &tokens.to_string()]);
        }
        if let Some(Files { dir, memory_bytes }) = &files {
            command
                .args(["--prefix-cache-dir", dir.as_str()])
                .args(["--prefix-cache-memory", &memory_bytes.to_string()]);
        }
        let child = command
            .env("ROOFLET_LOG", "warn")
            // The worker stops when this pipe closes, so it never outlives this process.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting a worker")?;
        Ok(Self {
            child,
            port,
            model: model.to_owned(),
            load,
            files,
        })
    }

    /// Replaces the worker by a new one of the same model.
    fn replaced(self, files: Option<Files>) -> anyhow::Result<Self> {
        let (model, load) = (self.model.clone(), self.load);
        drop(self);
        Self::start(&model, load, files)
    }

    /// Stops the worker with SIGTERM and waits for its exit.
    async fn end(&mut self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGTERM).context("stopping a worker")?;
        while self.child.try_wait()?.is_none() {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn wait_until_ready(&mut self, clock: &Clock) -> anyhow::Result<Client> {
        let base = format!("http://127.0.0.1:{}", self.port);
        let client = Server::at(&base, None)?
            .connect(Some(NAME), clock.clone())
            .await?;
        let begin = clock.instant();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker of `{}` exited with {status}", self.model);
            }
            if client.is_ready().await {
                return Ok(client);
            }
            if clock.instant() - begin > START {
                bail!(
                    "the worker of `{}` was not ready after {} s",
                    self.model,
                    START.as_secs()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// `model` of requests to a worker that the benchmark started.
const NAME: &str = "bench";

impl Drop for Worker {
    fn drop(&mut self) {
        // The worker may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::routing::post;

    use super::*;

    const ANSWER: &str = concat!(
        r#"data: {"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}"#,
        "\n\ndata: [DONE]\n\n"
    );

    /// Both targets get the same prompts, otherwise their prompt lengths would differ afterwards.
    #[tokio::test]
    async fn both_servers_get_the_same_trial_prompts() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let clock = Clock::System;
        let matrix = Matrix::cache_study();
        let mut asked = Vec::new();
        for seed in [1, 1, 2] {
            let bodies = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&bodies);
            let answer = async move |body: String| {
                seen.lock().unwrap().push(body);
                ANSWER
            };
            let router = Router::new().route("/v1/chat/completions", post(answer));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let name = format!("http://{}", listener.local_addr().unwrap());
            let server = Server::at(&name, None).unwrap();
            tokio::select! {
                opened = Target::open(&name, Some(server), Some("tiny"), Load::of(&matrix), seed, &clock) => {
                    opened.unwrap();
                }
                _ = axum::serve(listener, router).into_future() => unreachable!("the server never ends"),
            }
            asked.push(bodies.lock().unwrap().clone());
        }
        assert_eq!(asked[0].len(), 3);
        assert_eq!(asked[0], asked[1]);
        assert_ne!(asked[0], asked[2]);
    }
}

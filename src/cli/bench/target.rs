//! What is measured: a server at a URL, or a model directory, for which a worker is started.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use camino::{Utf8Path, Utf8PathBuf};

use super::client::Client;
use super::prompt::{self, Length};
use crate::benchmark::Sample;
use crate::cli::bench::client::Ask;
use crate::clock::Clock;

/// How long a model may take to load.
const START: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Words of the two prompts that lengths are found with, and tokens of their answers.
const TRIAL_WORDS: [u32; 2] = [20, 220];
const TRIAL_TOKENS: u32 = 8;

/// A server that answers.
#[derive(Debug)]
pub(super) struct Target {
    /// As the user wrote it.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) trial: Trial,
    /// Of a model directory; ends with this.
    _worker: Option<Worker>,
}

/// What was learnt before the first measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) length: Length,
    /// Tokens per second.
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

impl Target {
    /// Starts what is to be started, and tries it.
    pub(super) async fn open(
        name: &str,
        model: Option<&str>,
        concurrency: u32,
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let (client, worker) = if name.starts_with("http://") || name.starts_with("https://") {
            (Client::connect(name, model, clock.clone()).await?, None)
        } else {
            let mut worker = Worker::start(Utf8Path::new(name), concurrency)?;
            let client = worker.wait_until_ready(clock).await?;
            (client, Some(worker))
        };
        let trial = Trial::run(&client)
            .await
            .with_context(|| format!("trying {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            client,
            trial,
            _worker: worker,
        })
    }
}

impl Trial {
    async fn run(client: &Client) -> anyhow::Result<Self> {
        // The first request of a server's life may load or compile something.
        ask(client, TRIAL_WORDS[0], 0).await?;
        let few = ask(client, TRIAL_WORDS[0], 1).await?;
        let many = ask(client, TRIAL_WORDS[1], 2).await?;
        let (Some(few_tokens), Some(many_tokens)) = (few.prompt_tokens, many.prompt_tokens) else {
            bail!("the server does not tell how many tokens a prompt has (`usage` is missing)");
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
    let ask = Ask {
        prompt: &prompt,
        tokens: TRIAL_TOKENS,
        streaming: true,
    };
    client.ask(ask).await
}

/// A worker on a free port of this machine.
#[derive(Debug)]
struct Worker {
    child: Child,
    port: u16,
    model: Utf8PathBuf,
}

impl Worker {
    fn start(model: &Utf8Path, concurrency: u32) -> anyhow::Result<Self> {
        if !model.is_dir() {
            bail!("`{model}` is neither an http:// or https:// URL nor a model's directory");
        }
        if !cfg!(feature = "mlx") {
            bail!("`{model}`: this build has no engine; name the URL of a server");
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let program = std::env::current_exe().context("finding this program's own file")?;
        let child = Command::new(program)
            .args(["worker", "--model", model.as_str(), "--name", NAME])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--max-concurrency", &concurrency.to_string()])
            .env("ROOFLET_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("starting a worker")?;
        Ok(Self {
            child,
            port,
            model: model.to_owned(),
        })
    }

    async fn wait_until_ready(&mut self, clock: &Clock) -> anyhow::Result<Client> {
        let base = format!("http://127.0.0.1:{}", self.port);
        let begin = clock.instant();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker of `{}` ended with {status}", self.model);
            }
            let ready = reqwest::get(format!("{base}/ready")).await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return Client::connect(&base, Some(NAME), clock.clone()).await;
            }
            if clock.instant() - begin > START {
                bail!(
                    "the worker of `{}` was not ready after {} s",
                    self.model,
                    START.as_secs()
                );
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The `model` of requests to a worker of ours.
const NAME: &str = "bench";

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

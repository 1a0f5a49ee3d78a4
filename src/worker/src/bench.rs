//! Engine without an HTTP server, for benchmarks: the baseline for requests through gateway, agent
//! and worker.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use tokio::sync::oneshot;

use super::engine::{Engine, EngineConfig, EngineError, SubmitError};
use super::metrics::WorkerMetrics;
use super::prompt::{Chat, Prompter};
use super::{WorkerError, context_tokens};
use crate::batch::event::Event;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::metrics::Registry;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::json::Members;
use rooflet_inference_api::openai::message;
use rooflet_inference_api::openai::request::PromptEnd;
use rooflet_inference_api::openai::request::{Options, SamplingOptions};

/// Engine that runs one model in this process.
#[derive(Debug)]
pub struct BareEngine {
    engine: Engine,
    ended: Option<oneshot::Receiver<Result<(), EngineError>>>,
    prompter: Arc<Prompter>,
    clock: Clock,
}

/// Error that prevents a measurement.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BenchError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("model path {0:?} is not valid UTF-8")]
    Path(PathBuf),
    #[error("{}", Chain(.0))]
    Start(Box<WorkerError>),
    #[error("{0:?}")]
    Prompt(Box<ApiError>),
    #[error("{0:?}")]
    Submit(SubmitError),
    /// Error message of the engine.
    #[error("{0}")]
    Request(String),
    #[error("engine terminated")]
    Terminated,
}

/// Answer of a greedy request, with its timing.
#[derive(Debug)]
pub struct Answer {
    pub text: String,
    /// Number of generated tokens, including an end-of-text token.
    pub completion_tokens: usize,
    /// Time from the request to the first text.
    pub time_to_first_token: Duration,
    /// Time from the request to the end of the answer.
    pub total: Duration,
    /// Number of tokens after the first, divided by the seconds from the first token to the end of
    /// the answer. The engine measures the time. `None` if the answer has one token.
    pub decode_tokens_per_second: Option<f64>,
}

impl BareEngine {
    /// Starts the engine with the model in the directory `model` and at most `max_concurrency`
    /// running requests. The first request waits until the model is loaded.
    ///
    /// # Errors
    /// Returns an error if the model cannot be served.
    pub fn load(model: PathBuf, max_concurrency: usize) -> Result<Self, BenchError> {
        let model = Utf8PathBuf::from_path_buf(model).map_err(Failure::Path)?;
        Ok(Self::start(&model, max_concurrency).map_err(|err| Failure::Start(Box::new(err)))?)
    }

    fn start(model: &Utf8PathBuf, max_concurrency: usize) -> Result<Self, WorkerError> {
        let clock = Clock::System;
        let model = ModelDir::inspect(model).map_err(|err| WorkerError::Model { err })?;
        let context_tokens = context_tokens(None, model.shape.config.max_context_tokens)?;
        let context_tokens = usize::try_from(context_tokens).unwrap_or(usize::MAX);
        let prompter = Prompter::load(&model.path, &model.shape.config, context_tokens)
            .map_err(|err| WorkerError::Prompt { err })?;
        let prompter = Arc::new(prompter);
        let metrics =
            WorkerMetrics::register(&Registry::new(), "bench").map_err(|err| WorkerError::Metrics { err })?;
        let (engine, ended) = Engine::spawn(EngineConfig {
            model,
            memory_limit: None,
            kv: None,
            prefix_cache_memory: None,
            prefix_files: None,
            prompter: Arc::clone(&prompter),
            max_concurrency,
            max_queued: max_concurrency,
            prompt_lookup_tokens: None,
            keep_alive: None,
            clock: clock.clone(),
            metrics,
        })
        .map_err(|err| WorkerError::Engine { err })?;
        Ok(Self {
            engine,
            ended: Some(ended),
            prompter,
            clock,
        })
    }

    /// Sends `question` as a chat request and waits for the complete answer of at most `max_tokens`
    /// tokens. Includes chat template, tokenizer, engine and detokenizer.
    ///
    /// # Errors
    /// Returns an error if the engine rejects or fails the request.
    pub fn chat(&self, question: &str, max_tokens: usize) -> Result<Answer, BenchError> {
        let options = Options {
            max_tokens: Some(max_tokens),
            sampling: SamplingOptions {
                temperature: Some(0.0),
                ..SamplingOptions::default()
            },
            ..Options::default()
        };
        let begin = self.clock.instant();
        let now = self.clock.now().to_zoned(jiff::tz::TimeZone::UTC);
        let chat = Chat {
            template: None,
            messages: &[message::user(question)],
            variables: &Members::default(),
            tools: None,
            ending: PromptEnd::Answer,
        };
        let chat = self
            .prompter
            .chat(chat, &options, &now)
            .map_err(|err| Failure::Prompt(Box::new(err)))?;
        let mut completion = self.engine.submit(chat.request).map_err(Failure::Submit)?;
        let (mut text, mut first) = (String::new(), None);
        let done = loop {
            match completion.events.blocking_recv() {
                Some(Event::Piece(more)) => {
                    first.get_or_insert_with(|| self.clock.instant());
                    text.push_str(&more.text);
                }
                Some(Event::Embedding(_)) => {}
                Some(Event::Done(done)) => break done,
                Some(Event::Failed(message)) => return Err(Failure::Request(message).into()),
                None => return Err(Failure::Terminated.into()),
            }
        };
        let end = self.clock.instant();
        Ok(Answer {
            text,
            completion_tokens: done.completion_tokens,
            time_to_first_token: first.unwrap_or(end) - begin,
            total: end - begin,
            decode_tokens_per_second: self.engine.state().last_decode_tokens_per_second(),
        })
    }
}

/// Waits for the engine thread: some device libraries abort the process if a thread uses them at
/// exit.
impl Drop for BareEngine {
    fn drop(&mut self) {
        self.engine.stop();
        if let Some(ended) = self.ended.take() {
            // The outcome of the engine does not matter here.
            drop(ended.blocking_recv());
        }
    }
}

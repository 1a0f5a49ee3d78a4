//! The engine without HTTP, for benchmarks: what a request through gateway, agent and worker is
//! compared with.

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

/// A loaded model in this process.
#[derive(Debug)]
pub struct BareEngine {
    engine: Engine,
    ended: Option<oneshot::Receiver<Result<(), EngineError>>>,
    prompter: Arc<Prompter>,
    clock: Clock,
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BenchError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0:?} is not UTF-8")]
    Path(PathBuf),
    #[error("{}", Chain(.0))]
    Start(Box<WorkerError>),
    #[error("{0:?}")]
    Prompt(Box<ApiError>),
    #[error("{0:?}")]
    Submit(SubmitError),
    /// Text of the engine.
    #[error("{0}")]
    Request(String),
    #[error("the engine ended")]
    Ended,
}

/// One greedy answer.
#[derive(Debug)]
pub struct Answer {
    /// What was answered.
    pub text: String,
    /// Tokens that were chosen, one that ended the answer included.
    pub completion_tokens: usize,
    /// From the question to the first text.
    pub first_text: Duration,
    /// From the question to the end of the answer.
    pub total: Duration,
    /// Tokens after the first, divided by the seconds from the first to the end of the answer, by
    /// the engine's own clock. None where there was one token.
    pub decode_tokens_per_second: Option<f64>,
}

impl BareEngine {
    /// Starts the engine on the model in the directory `model`, for `max_concurrency` questions at
    /// a time; the first one waits until it is loaded.
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
        let room = usize::try_from(context_tokens).unwrap_or(usize::MAX);
        let prompter = Prompter::load(&model.path, &model.shape.config, room)
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

    /// Asks `question` and waits for the whole answer, of at most `max_tokens` tokens: chat
    /// template, tokenizer, engine, detokenizer.
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
                None => return Err(Failure::Ended.into()),
            }
        };
        let end = self.clock.instant();
        Ok(Answer {
            text,
            completion_tokens: done.completion_tokens,
            first_text: first.unwrap_or(end) - begin,
            total: end - begin,
            decode_tokens_per_second: self.engine.state().last_decode_tokens_per_second(),
        })
    }
}

/// Some devices' libraries end the process with an error if a thread still uses them then.
impl Drop for BareEngine {
    fn drop(&mut self) {
        self.engine.stop();
        if let Some(ended) = self.ended.take() {
            // However it ended, it is over.
            drop(ended.blocking_recv());
        }
    }
}

//! One request while the engine computes it: its cache, how far it is, and its text on the way out.

use std::time::Instant;

use mlx_rs::{Array, transforms};
use tokio::sync::mpsc;

use super::models::{Decoder, KvCache};
use super::prompt::ValidRequest;
use super::sampler::sample;
use crate::openai::response::FinishReason;
use crate::text::detokenizer::Detokenizer;
use crate::text::stop::StopMatcher;
use crate::text::tokenizer::{DecodeError, Tokenizer};

/// What a request's owner hears, in order; [`Event::Done`] or [`Event::Failed`] is the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// More text, never empty.
    Text(String),
    Done(Done),
    /// The engine could not go on with this request.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) reason: FinishReason,
    /// Every token that was chosen, the one that ended the text included.
    pub(crate) completion_tokens: usize,
}

/// A request and where its events go.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: ValidRequest,
    /// Holds all events the request can have, so the engine never waits for a reader. Closed = cancelled.
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) submitted: Instant,
}

impl Job {
    /// Room for every event of a request: one per token, what is flushed at the end, and the end.
    pub(crate) fn event_capacity(request: &ValidRequest) -> usize {
        request.max_tokens + 2
    }
}

/// A step failed; the message is for the request's owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("the engine failed on this request: {0}")]
    Engine(mlx_rs::error::Exception),
    #[error("the engine's token cannot be read: {0}")]
    Read(mlx_rs::error::ConversionError),
    #[error("the tokenizer failed on this request: {0}")]
    Decode(DecodeError),
}

impl From<mlx_rs::error::Exception> for StepError {
    fn from(err: mlx_rs::error::Exception) -> Self {
        Self::Engine(err)
    }
}

impl From<DecodeError> for StepError {
    fn from(err: DecodeError) -> Self {
        Self::Decode(err)
    }
}

/// Times of one request, for metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) submitted: Instant,
    pub(crate) first_token: Option<Instant>,
}

#[derive(Debug)]
enum Stage {
    /// This many tokens of the prompt are in the cache.
    Prefill { done: usize },
    /// Tokens chosen on the device and not read yet, the older first.
    Decode { pending: Array, next: Option<Array> },
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Sequence {
    request: ValidRequest,
    events: mpsc::Sender<Event>,
    timing: Timing,
    cache: KvCache,
    stage: Stage,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Tokens chosen, read or not.
    launched: usize,
    /// Tokens read.
    produced: usize,
    /// Sequences that were decoded in the steps that read them, added up.
    shared: usize,
}

impl Sequence {
    pub(crate) fn new(job: Job, model: &Decoder, tokenizer: &Tokenizer) -> Self {
        Self {
            events: job.events,
            timing: Timing {
                submitted: job.submitted,
                first_token: None,
            },
            cache: model.new_cache(),
            stage: Stage::Prefill { done: 0 },
            detokenizer: Detokenizer::new(tokenizer),
            stops: StopMatcher::new(job.request.stop.clone()),
            launched: 0,
            produced: 0,
            shared: 0,
            request: job.request,
        }
    }

    /// Nobody listens any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// How many sequences were decoded together with this one, itself included, on average.
    pub(crate) fn streams(&self) -> f64 {
        self.shared as f64 / self.produced.max(1) as f64
    }

    pub(crate) fn is_prefilling(&self) -> bool {
        matches!(self.stage, Stage::Prefill { .. })
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.request.prompt.len()
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.produced
    }

    /// Puts the next part of the prompt into the cache; with the last part, chooses the first token.
    pub(crate) fn prefill(&mut self, model: &Decoder, chunk_tokens: usize) -> Result<(), StepError> {
        let Stage::Prefill { done } = self.stage else {
            return Ok(());
        };
        let prompt = &self.request.prompt;
        let end = prompt.len().min(done + chunk_tokens);
        let tokens = token_row(&prompt[done..end]);
        if end < prompt.len() {
            model.prefill(&tokens, &mut self.cache)?;
            self.stage = Stage::Prefill { done: end };
        } else {
            let pending = self.choose(model, &tokens)?;
            self.stage = Stage::Decode { pending, next: None };
        }
        Ok(())
    }

    /// Starts computing the token after the pending one, so that the device works while that one is read.
    pub(crate) fn launch(&mut self, model: &Decoder) -> Result<(), StepError> {
        if self.launched == self.request.max_tokens {
            return Ok(());
        }
        let Stage::Decode { pending, next: None } = &self.stage else {
            return Ok(());
        };
        let row = pending.reshape(&[1, 1])?;
        let chosen = self.choose(model, &row)?;
        if let Stage::Decode { next, .. } = &mut self.stage {
            *next = Some(chosen);
        }
        Ok(())
    }

    fn choose(&mut self, model: &Decoder, tokens: &Array) -> Result<Array, StepError> {
        let logits = model.forward(tokens, &mut self.cache)?;
        let chosen = sample(&logits, &self.request.sampling, self.launched as u64)?;
        transforms::async_eval([&chosen])?;
        self.launched += 1;
        Ok(chosen)
    }

    /// Reads the pending token, one of `streams` in this step, and sends its text. `Some` when the request is done; saying so is the caller's.
    pub(crate) fn read(
        &mut self,
        tokenizer: &Tokenizer,
        streams: usize,
        now: impl Fn() -> Instant,
    ) -> Result<Option<Done>, StepError> {
        let Stage::Decode { pending, next } = &mut self.stage else {
            return Ok(None);
        };
        let token: u32 = pending.try_item_exact().map_err(StepError::Read)?;
        if let Some(next) = next.take() {
            *pending = next;
        }
        self.produced += 1;
        self.shared += streams;
        self.timing.first_token.get_or_insert_with(now);
        if tokenizer.is_eos(token) {
            return self.finish(tokenizer, FinishReason::Stop).map(Some);
        }
        let text = self.detokenizer.push(tokenizer, token)?;
        let shown = self.stops.push(&text);
        self.send_text(shown);
        if self.stops.stopped() {
            return self.finish(tokenizer, FinishReason::Stop).map(Some);
        }
        if self.produced == self.request.max_tokens {
            return self.finish(tokenizer, FinishReason::Length).map(Some);
        }
        Ok(None)
    }

    fn finish(&mut self, tokenizer: &Tokenizer, mut reason: FinishReason) -> Result<Done, StepError> {
        if !self.stops.stopped() {
            let rest = self.detokenizer.flush(tokenizer)?;
            let mut shown = self.stops.push(&rest);
            if self.stops.stopped() {
                reason = FinishReason::Stop;
            } else {
                shown.push_str(&self.stops.flush());
            }
            self.send_text(shown);
        }
        Ok(Done {
            reason,
            completion_tokens: self.produced,
        })
    }

    fn send_text(&self, text: String) {
        if !text.is_empty() {
            self.send(Event::Text(text));
        }
    }

    pub(crate) fn send(&self, event: Event) {
        // The channel has room for all events, so this fails only when nobody listens: `is_cancelled` tells.
        drop(self.events.try_send(event));
    }
}

/// Token ids as the model takes them, `[1, n]`.
pub(crate) fn token_row(tokens: &[u32]) -> Array {
    let length = i32::try_from(tokens.len()).expect("a chunk is far shorter than i32::MAX");
    Array::from_slice(tokens, &[1, length])
}

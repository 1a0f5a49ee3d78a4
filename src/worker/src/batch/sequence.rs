//! Sequence: one request while the engine computes it, with its prompt, decoding state, timing and
//! KV cache.

mod decoding;
mod prompt;
mod timing;

use std::ops::Range;
use std::time::Instant;

use rooflet_mlx::mlx_rs::{Array, transforms};

use self::decoding::Decoding;
use self::prompt::Prompt;
pub(crate) use self::timing::{Timing, TokenTime};
use crate::batch::event::{Done, Durations, Event};
use crate::batch::job::Queued;
use crate::batch::lookup::Verified;
use crate::batch::prompt_output;
use crate::batch::step_error::StepError;
use crate::cache::Prefix;
use crate::engine::schedule::{Remaining, RequestId, Running};
use crate::prompt::ValidRequest;
use crate::sampling::logprobs::TokenLogprobs;
use crate::sampling::sampler::Draw;
use rooflet_decoder::{Decoder, KvCache};
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_telemetry::trace::OpenSpan;
use rooflet_text::tokenizer::Tokenizer;

/// Request while the engine computes it.
#[derive(Debug)]
pub(crate) struct Sequence {
    queued: Queued,
    cache: KvCache,
    pub prompt: Prompt,
    pub decoding: Decoding,
    pub timing: Timing,
}

impl Sequence {
    pub(crate) fn new(mut queued: Queued, model: &Decoder, tokenizer: &Tokenizer) -> Self {
        queued.overtaken = 0;
        let request = &mut queued.job.request;
        Self {
            cache: model.new_cache(),
            // Must precede the removal of the prompt from the request.
            decoding: Decoding::new(request, tokenizer),
            prompt: Prompt::take_from(request),
            timing: Timing::new(queued.job.submitted, queued.loading),
            queued,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.queued.id
    }

    /// Returns the request without its prompt, which [`Self::prompt`] holds.
    pub(crate) fn request(&self) -> &ValidRequest {
        &self.queued.job.request
    }

    pub(crate) fn span(&self) -> Option<&OpenSpan> {
        self.queued.job.span.as_deref()
    }

    pub(crate) fn cache_salt(&self) -> &str {
        &self.request().cache_salt
    }

    /// Returns true if the client has disconnected.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.queued.job.events.is_closed()
    }

    pub(crate) fn as_running(&self) -> Running {
        let Queued {
            id, bytes, overtaken, ..
        } = self.queued;
        Running {
            id,
            priority: self.request().priority,
            overtaken,
            bytes,
            prompt_left: self.prompt_left(),
        }
    }

    pub(crate) fn count_overtaken(&mut self) {
        self.queued.overtaken += 1;
    }

    pub(crate) fn is_decoding(&self) -> bool {
        self.prompt_left() == 0
    }

    /// Returns the number of prompt tokens to compute: 0 while cached blocks are read from files,
    /// otherwise at least 1 until the first token is sampled. An empty prompt also counts 1, and
    /// fails in that step.
    fn prompt_left(&self) -> usize {
        match self.decoding.sampled() {
            _ if self.prompt.is_loading() => 0,
            0 => (self.prompt.len() - self.prompt.prefilled()).max(1),
            _ => 0,
        }
    }

    /// Estimates the remaining work if a typical answer has `typical` tokens.
    pub(crate) fn remaining(&self, typical: usize) -> Remaining {
        let max_tokens = self.request().max_tokens;
        Remaining::new(self.prompt_left(), self.completion_tokens(), max_tokens, typical)
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.decoding.answer().len()
    }

    /// Tokens of the prompt and tokens of the answer that were read.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        [self.prompt.tokens(), self.decoding.answer()].concat()
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    pub(crate) fn into_cache(self) -> KvCache {
        self.cache
    }

    /// Starts with a cached prefix, before any token of the prompt is computed.
    pub(crate) fn begin_with(&mut self, prefix: Prefix) {
        let Prefix {
            cache,
            tokens,
            in_blocks,
        } = prefix;
        self.cache = cache;
        self.prompt.start_after(tokens, in_blocks);
    }

    /// Restarts the prompt in its own passes, after a pass over it and others failed.
    pub(crate) fn restart_isolated(&mut self, model: &Decoder) {
        self.cache = model.new_cache();
        self.prompt.restart_isolated(&self.queued.job.request);
    }

    /// Counts the next tokens of the prompt as computed, and returns their range.
    pub(crate) fn advance_prompt(&mut self, tokens: usize) -> Range<usize> {
        self.queued.overtaken = 0;
        self.prompt.advance(tokens)
    }

    /// Returns true if the request asks for an answer.
    pub(crate) fn answers(&self) -> bool {
        self.request().max_tokens > 0
    }

    /// Collects the results of a part of the prompt from its hidden states.
    pub(crate) fn collect_output(
        &mut self,
        model: &Decoder,
        hidden: &Array,
        part: Range<usize>,
    ) -> Result<(), StepError> {
        let Some(mut output) = self.prompt.output.take() else {
            return Ok(());
        };
        let tokens = self.prompt.tokens();
        let next = &tokens[part.start + 1..tokens.len().min(part.end + 1)];
        let collected = transforms::eval(self.cache.arrays())
            .map_err(StepError::from)
            .and_then(|()| output.add_chunk(model, hidden, next));
        self.prompt.output = Some(output);
        collected
    }

    /// Sends the results of the prompt, which must be prefilled. Returns `Some` if the request asks
    /// for no answer.
    pub(crate) fn end_prompt(&mut self) -> Result<Option<Done>, StepError> {
        let output = self.prompt.output.take();
        // After a failed pass the prompt is computed again, but its results are sent only once.
        if !std::mem::replace(&mut self.prompt.is_reported, true) {
            for event in prompt_output::events(self.request(), self.prompt.tokens(), output)? {
                self.send(event);
            }
        }
        Ok((!self.answers()).then_some(Done {
            reason: FinishReason::Length,
            stopped_by: None,
            completion_tokens: 0,
            cached_tokens: self.prompt.cached_tokens(),
            durations: Durations::default(),
        }))
    }

    /// Prepares the sampling of the first token out of `vocabulary` tokens.
    pub(crate) fn begin_answer(&mut self, vocabulary: i32) -> Result<(), StepError> {
        let (request, prompt) = (&self.queued.job.request, self.prompt.tokens());
        self.decoding.begin(request, prompt, vocabulary)
    }

    /// Enables up to `tokens` draft tokens, unless the sampling of a token depends on the previous
    /// ones (constraints, penalties).
    pub(crate) fn enable_lookup(&mut self, tokens: usize) {
        let (request, prompt) = (&self.queued.job.request, self.prompt.tokens());
        self.decoding.enable_lookup(request, prompt, tokens);
    }

    /// Returns the draft tokens for the next pass; empty if there are none.
    pub(crate) fn draft_tokens(&self) -> &[u32] {
        self.decoding.draft_tokens(self.request())
    }

    /// Removes rejected draft tokens from the cache.
    pub(crate) fn drafts_verified(&mut self, verified: Verified) {
        let rejected = verified.drafted - verified.accepted;
        let rejected = i32::try_from(rejected).expect("drafts are far shorter than i32::MAX");
        self.cache.truncate(self.cache.offset() - rejected);
        self.decoding.drafts_verified(verified);
    }

    /// Returns true if another token is to be sampled.
    pub(crate) fn needs_token(&self) -> bool {
        self.decoding.sampled() < self.request().max_tokens
    }

    /// Returns the last token, if it was read and another one is to be sampled.
    pub(crate) fn last_token(&self) -> Option<u32> {
        self.decoding.last_token().filter(|_| self.needs_token())
    }

    /// Computes the logits mask of the next token. All previous tokens must have been read.
    pub(crate) fn update_mask(&mut self) -> Result<(), StepError> {
        self.decoding.update_mask(&self.queued.job.request)
    }

    /// Parameters for sampling the next token.
    pub(crate) fn draw(&self) -> Draw<'_> {
        self.decoding.draw(self.request())
    }

    /// Adds a token that a pass of `rows` rows sampled, and sends its text. Returns `Some` if the
    /// request is done; the caller reports that.
    pub(crate) fn push_token(
        &mut self,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        rows: usize,
        tokenizer: &Tokenizer,
        now: impl Fn() -> Instant,
    ) -> Result<Option<Done>, StepError> {
        self.decoding.token_read(token, rows);
        self.timing.token_read(now());
        let duration = &mut self.timing.token.detokenizing;
        let job = &self.queued.job;
        let done = self
            .decoding
            .detokenize(job, token, logprobs, tokenizer, duration, now)?;
        Ok(done.map(|done| Done {
            cached_tokens: self.prompt.cached_tokens(),
            ..done
        }))
    }

    pub(crate) fn send(&self, event: Event) {
        self.queued.job.send(event);
    }
}

/// Returns the token IDs as an array of shape `[1, n]`.
pub(crate) fn token_row(tokens: &[u32]) -> Array {
    let length = i32::try_from(tokens.len()).expect("chunks are far shorter than i32::MAX");
    Array::from_slice(tokens, &[1, length])
}

//! Decoding state of one request: the parameters for sampling the next token, the sampled tokens,
//! and their text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::event::{Done, Durations, Event, Piece};
use crate::batch::job::Job;
use crate::batch::lookup::{PromptLookup, Verified};
use crate::batch::step_error::StepError;
use crate::batch::thinking::ThinkingBudget;
use crate::batch::transcript::Transcript;
use crate::prompt::ValidRequest;
use crate::sampling::adjustment::{Adjustment, Penalties};
use crate::sampling::logprobs::TokenLogprobs;
use crate::sampling::sampler::Draw;
use rooflet_inference_api::openai::response::{FinishReason, StopReason};
use rooflet_text::grammar::constraint::Constraint;
use rooflet_text::grammar::mask::Mask;
use rooflet_text::tokenizer::Tokenizer;

/// Decoding state of one request.
#[derive(Debug)]
pub(crate) struct Decoding {
    adjustment: Option<Adjustment>,
    constraint: Option<Constraint>,
    thinking: Option<ThinkingBudget>,
    /// Logits mask of the next token.
    mask: Option<Arc<Mask>>,
    /// Tokens that end the answer. They are masked until the answer has its minimum length.
    end_tokens: Vec<u32>,
    /// Mask of all other tokens, if the answer has a minimum length.
    non_end_mask: Option<Mask>,
    transcript: Transcript,
    /// Source of draft tokens.
    lookup: Option<PromptLookup>,
    /// Number of sampled tokens, read or pending.
    sampled: usize,
    /// Tokens that were read.
    answer: Vec<u32>,
    /// Number of tokens whose ids were sent.
    reported_ids: usize,
    /// Total number of rows of the passes that sampled the tokens after the first one.
    pass_rows: usize,
}

impl Decoding {
    pub(super) fn new(request: &mut ValidRequest, tokenizer: &Tokenizer) -> Self {
        Self {
            adjustment: None,
            constraint: request.constraint.take(),
            thinking: request.thinking.take(),
            mask: None,
            end_tokens: [tokenizer.eos_token_ids(), &request.stopping.token_ids].concat(),
            non_end_mask: None,
            transcript: Transcript::new(
                request.detokenizer(tokenizer),
                &request.stopping,
                request.echoed_chars(),
            ),
            lookup: None,
            sampled: 0,
            answer: Vec::new(),
            reported_ids: 0,
            pass_rows: 0,
        }
    }

    /// Tokens that were read.
    pub(crate) fn answer(&self) -> &[u32] {
        &self.answer
    }

    /// Returns the number of sampled tokens, read or pending.
    pub(super) fn sampled(&self) -> usize {
        self.sampled
    }

    /// Returns the average number of sequences that were decoded together, including this one.
    pub(crate) fn streams(&self) -> f64 {
        match self.answer.len() {
            0 | 1 => 1.0,
            more => self.pass_rows as f64 / (more - 1) as f64,
        }
    }

    /// Enables up to `tokens` draft tokens, unless the sampling of a token depends on the previous
    /// ones (constraints, penalties).
    pub(super) fn enable_lookup(&mut self, request: &ValidRequest, prompt: &[u32], tokens: usize) {
        let free = !self.is_constrained() && request.sampling.penalties == Penalties::default();
        self.lookup = free.then(|| PromptLookup::new(prompt, tokens));
    }

    /// Returns the draft tokens for the next pass; empty if there are none.
    pub(super) fn draft_tokens(&self, request: &ValidRequest) -> &[u32] {
        let Some(lookup) = self
            .lookup
            .as_ref()
            .filter(|_| self.minimum_length_mask(request).is_none())
        else {
            return &[];
        };
        // One token is sampled even if all draft tokens are rejected.
        lookup.draft_tokens((request.max_tokens - self.sampled).saturating_sub(1))
    }

    /// Returns the maximum number of draft tokens of a pass.
    pub(crate) fn max_draft_tokens(&self) -> usize {
        self.lookup.as_ref().map_or(0, PromptLookup::max_tokens)
    }

    pub(super) fn drafts_verified(&mut self, Verified { drafted, accepted }: Verified) {
        if let Some(lookup) = &mut self.lookup {
            lookup.verified(drafted, accepted);
        }
    }

    /// Returns true if each token must be read before the next one can be sampled.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some() || self.thinking.is_some()
    }

    /// Returns the last token, if all sampled tokens were read.
    pub(super) fn last_token(&self) -> Option<u32> {
        let all_read = self.sampled == self.answer.len();
        self.answer.last().copied().filter(|_| all_read)
    }

    /// Prepares the sampling of the first token out of `vocabulary` tokens.
    pub(super) fn begin(
        &mut self,
        request: &ValidRequest,
        prompt: &[u32],
        vocabulary: i32,
    ) -> Result<(), StepError> {
        self.adjustment = Adjustment::new(&request.sampling.penalties, prompt, vocabulary);
        if request.stopping.min_tokens > 0 {
            self.non_end_mask = Some(Mask::without(
                vocabulary.unsigned_abs() as usize,
                &self.end_tokens,
            ));
        }
        self.update_mask(request)
    }

    /// Computes the logits mask of the next token. All previous tokens must have been read.
    pub(super) fn update_mask(&mut self, request: &ValidRequest) -> Result<(), StepError> {
        self.mask = None;
        if let Some(constraint) = &mut self.constraint {
            let mask = constraint.mask()?;
            // If the format ends here, the answer ends even below its minimum length.
            let longer = self
                .minimum_length_mask(request)
                .and_then(|non_end| mask.and(non_end));
            self.mask = Some(longer.map_or(mask, Arc::new));
        }
        if let Some(close) = self.thinking.as_ref().and_then(ThinkingBudget::mask) {
            self.mask = match &self.mask {
                None => Some(Arc::clone(close)),
                // The mask of a format may exclude the token that ends the reasoning.
                Some(mask) => Some(mask.and(close).map_or_else(|| Arc::clone(mask), Arc::new)),
            };
        }
        Ok(())
    }

    /// Returns the mask of the tokens that do not end the answer, while the answer is below its
    /// minimum length.
    fn minimum_length_mask(&self, request: &ValidRequest) -> Option<&Mask> {
        let too_short = self.sampled < request.stopping.min_tokens;
        self.non_end_mask.as_ref().filter(|_| too_short)
    }

    /// Parameters for sampling the next token.
    pub(super) fn draw<'a>(&'a self, request: &'a ValidRequest) -> Draw<'a> {
        Draw {
            sampling: &request.sampling,
            adjustment: self.adjustment.as_ref(),
            mask: self.mask.as_deref().or_else(|| self.minimum_length_mask(request)),
            logprobs: request.logprobs,
            step: self.sampled as u64,
        }
    }

    /// Counts a sampled token.
    pub(crate) fn token_sampled(&mut self) {
        self.sampled += 1;
    }

    /// Sets the penalties of the next token, which depend on the sampled token.
    pub(crate) fn adjust(&mut self, adjustment: Adjustment) {
        self.adjustment = Some(adjustment);
    }

    /// Adds a token that a pass of `rows` rows sampled.
    pub(super) fn token_read(&mut self, token: u32, rows: usize) {
        if !self.answer.is_empty() {
            self.pass_rows += rows;
        }
        self.answer.push(token);
        // A pass over draft tokens samples several tokens.
        self.sampled = self.sampled.max(self.answer.len());
        if let Some(lookup) = &mut self.lookup {
            lookup.push(token);
        }
    }

    /// Converts the token that was read last to text and sends it. Returns `Some` if the request is
    /// done; the caller adds the number of cached prompt tokens.
    pub(super) fn detokenize(
        &mut self,
        job: &Job,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        tokenizer: &Tokenizer,
        duration: &mut Duration,
        now: impl Fn() -> Instant,
    ) -> Result<Option<Done>, StepError> {
        let stopping = &job.request.stopping;
        let named = stopping.token_ids.contains(&token);
        // The end of a format ends the answer, even if the request ignores end-of-sequence tokens.
        let ignores_eos = stopping.ignore_eos && self.constraint.is_none();
        if named || (tokenizer.is_eos(token) && !ignores_eos) {
            self.transcript.end(token, logprobs);
            let done = self.finish(job, tokenizer, FinishReason::Stop)?;
            return Ok(Some(Done {
                stopped_by: done.stopped_by.or(named.then_some(StopReason::Token(token))),
                ..done
            }));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        if let Some(thinking) = &mut self.thinking {
            thinking.push(token, &tokenizer.standalone_bytes(token));
        }
        let begin = now();
        let piece = self.transcript.push(tokenizer, token, logprobs)?;
        *duration = now() - begin;
        self.send_piece(job, piece, false);
        let is_complete = self.constraint.as_ref().is_some_and(Constraint::is_complete);
        let reason = if self.transcript.stopped_by().is_some() || is_complete {
            FinishReason::Stop
        } else if self.answer.len() == job.request.max_tokens {
            FinishReason::Length
        } else {
            return Ok(None);
        };
        self.finish(job, tokenizer, reason).map(Some)
    }

    fn finish(
        &mut self,
        job: &Job,
        tokenizer: &Tokenizer,
        mut reason: FinishReason,
    ) -> Result<Done, StepError> {
        let rest = self.transcript.finish(tokenizer)?;
        self.send_piece(job, rest, true);
        let stopped_by = self.transcript.stopped_by().map(str::to_owned);
        if stopped_by.is_some() {
            reason = FinishReason::Stop;
        }
        Ok(Done {
            reason,
            stopped_by: stopped_by.map(StopReason::Text),
            completion_tokens: self.answer.len(),
            cached_tokens: 0,
            durations: Durations::default(),
        })
    }

    /// Sends a piece that is not empty. The last piece is also sent if token ids are left.
    fn send_piece(&mut self, job: &Job, mut piece: Piece, is_last: bool) {
        let ids = &self.answer[self.reported_ids..];
        let has_ids = is_last && job.request.returns_token_ids && !ids.is_empty();
        if piece.is_empty() && !has_ids {
            return;
        }
        if job.request.returns_token_ids {
            piece.token_ids = ids.to_vec();
            self.reported_ids = self.answer.len();
        }
        job.send(Event::Piece(piece));
    }
}

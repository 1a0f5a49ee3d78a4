//! One request while the engine computes it: its cache, how far it is, and its text on the way out.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rooflet_mlx::mlx_rs::{Array, transforms};

use crate::batch::event::{Done, Event, Piece};
use crate::batch::job::Queued;
use crate::batch::lookup::{Checked, PromptLookup};
use crate::batch::prompt_output::{self, Reading};
use crate::batch::step_error::StepError;
use crate::batch::thinking::ThinkingBudget;
use crate::batch::transcript::Transcript;
use crate::cache::{BlockKey, Prefix};
use crate::engine::schedule::{Remaining, RequestId, Running};
use crate::models::{Decoder, KvCache};
use crate::prompt::ValidRequest;
use crate::sampling::adjustment::{Adjustment, Penalties};
use crate::sampling::logprobs::TokenLogprobs;
use crate::sampling::sampler::Draw;
use rooflet_inference_api::openai::response::{FinishReason, StopReason};
use rooflet_telemetry::trace::OpenSpan;
use rooflet_text::grammar::constraint::Constraint;
use rooflet_text::grammar::mask::Mask;
use rooflet_text::tokenizer::Tokenizer;

/// Times of one request, for metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub submitted: Instant,
    /// When it left the queue.
    pub joined: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
}

/// What the last token took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenTime {
    /// Since the one before; `None` for the first.
    pub since_last: Option<Duration>,
    /// To be made text.
    pub detokenizing: Duration,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Sequence {
    queued: Queued,
    timing: Timing,
    token_time: TokenTime,
    cache: KvCache,
    /// Tokens of the prompt that are in the cache.
    prefilled: usize,
    /// Those of them that were there already.
    cached: usize,
    /// Those of these that other requests find, too.
    in_blocks: usize,
    /// Tokens of the prompt after which what was computed is kept, in ascending order.
    stops: Vec<usize>,
    /// What is gathered of the prompt beside.
    reading: Option<Reading>,
    shares_prefixes: bool,
    loading: Loading,
    /// A pass over its prompt and others failed.
    is_shunned: bool,
    /// Its owner was told what there is to tell of the prompt.
    is_prompt_told: bool,
    adjustment: Option<Adjustment>,
    constraint: Option<Constraint>,
    thinking: Option<ThinkingBudget>,
    /// The tokens that the next one must be of.
    mask: Option<Arc<Mask>>,
    /// Tokens that must not be chosen before the answer has its least length.
    ends: Vec<u32>,
    /// All others, where it has one.
    unending: Option<Mask>,
    transcript: Transcript,
    /// Guesses what comes next.
    lookup: Option<PromptLookup>,
    /// Tokens chosen, read or not.
    chosen: usize,
    /// Tokens read.
    answer: Vec<u32>,
    /// Rows of the passes that chose all but the first of these, added up.
    shared: usize,
}

/// Whether parts of the prompt's cache come from files.
#[derive(Debug)]
enum Loading {
    NotYet,
    /// They are on their way; until then nothing can be computed for it.
    Now(BTreeSet<BlockKey>),
    Over,
}

impl Sequence {
    pub(crate) fn new(mut queued: Queued, model: &Decoder, tokenizer: &Tokenizer) -> Self {
        let reading = Reading::new(&queued.job.request);
        Self {
            timing: Timing {
                submitted: queued.job.submitted,
                joined: None,
                first_token: None,
                last_token: None,
            },
            token_time: TokenTime::default(),
            cache: model.new_cache(),
            prefilled: 0,
            cached: 0,
            in_blocks: 0,
            stops: Vec::new(),
            shares_prefixes: reading.is_none(),
            reading,
            loading: Loading::NotYet,
            is_shunned: false,
            is_prompt_told: false,
            adjustment: None,
            constraint: queued.job.request.constraint.take(),
            thinking: queued.job.request.thinking.take(),
            mask: None,
            ends: [tokenizer.eos_token_ids(), &queued.job.request.stopping.token_ids].concat(),
            unending: None,
            transcript: Transcript::new(
                queued.job.request.detokenizer(tokenizer),
                &queued.job.request.stopping,
                queued.job.request.echoed_chars(),
            ),
            lookup: None,
            chosen: 0,
            answer: Vec::new(),
            shared: 0,
            queued: Queued {
                overtaken: 0,
                ..queued
            },
        }
    }

    /// Guesses up to so many tokens ahead, where each can be chosen without regard to those before it.
    pub(crate) fn guess_ahead(&mut self, tokens: usize) {
        let request = self.request();
        let free = !self.is_constrained() && request.sampling.penalties == Penalties::default();
        self.lookup = free.then(|| PromptLookup::new(&request.prompt, tokens));
    }

    /// How its text may go on; empty where there is no telling.
    pub(crate) fn guess(&self) -> &[u32] {
        let Some(lookup) = self.lookup.as_ref().filter(|_| self.unending().is_none()) else {
            return &[];
        };
        // Beside the token that is chosen whatever the guess is worth.
        lookup.guess((self.request().max_tokens - self.chosen).saturating_sub(1))
    }

    /// Tokens that a pass may put into the cache beside the next one.
    pub(crate) fn guessed_at_most(&self) -> usize {
        self.lookup.as_ref().map_or(0, PromptLookup::most)
    }

    /// The model has seen a guess: the cache forgets what of it was wrong.
    pub(crate) fn checked(&mut self, Checked { guessed, right }: Checked) {
        let wrong = i32::try_from(guessed - right).expect("guesses are short");
        self.cache.truncate(self.cache.offset() - wrong);
        if let Some(lookup) = &mut self.lookup {
            lookup.judged(guessed, right);
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.queued.id
    }

    /// Nobody listens any more.
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

    pub(crate) fn is_decoding(&self) -> bool {
        self.prompt_left() == 0
    }

    /// Until the first token has been chosen there is something to do for the prompt, even for an empty one, which
    /// fails then.
    fn prompt_left(&self) -> usize {
        match self.chosen {
            _ if self.is_loading() => 0,
            0 => (self.prompt_tokens() - self.prefilled).max(1),
            _ => 0,
        }
    }

    /// Where a typical answer has `typical` tokens.
    pub(crate) fn remaining(&self, typical: usize) -> Remaining {
        let max_tokens = self.request().max_tokens;
        Remaining::new(self.prompt_left(), self.answer.len(), max_tokens, typical)
    }

    pub(crate) fn was_overtaken(&mut self) {
        self.queued.overtaken += 1;
    }

    /// How many sequences were decoded together with this one, itself included, on average.
    pub(crate) fn streams(&self) -> f64 {
        match self.answer.len() {
            0 | 1 => 1.0,
            more => self.shared as f64 / (more - 1) as f64,
        }
    }

    pub(crate) fn joined(&mut self, at: Instant) {
        self.timing.joined = Some(at);
    }

    pub(crate) fn span(&self) -> Option<&OpenSpan> {
        self.queued.job.span.as_deref()
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// Of the token that was taken last.
    pub(crate) fn token_time(&self) -> TokenTime {
        self.token_time
    }

    pub(crate) fn request(&self) -> &ValidRequest {
        &self.queued.job.request
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.request().prompt.len()
    }

    pub(crate) fn prompt(&self) -> &[u32] {
        &self.request().prompt
    }

    pub(crate) fn cache_salt(&self) -> &str {
        &self.request().cache_salt
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.answer.len()
    }

    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// Tokens of the prompt that are in the cache.
    pub(crate) fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Tokens of the prompt that other requests find: all that was computed is kept.
    pub(crate) fn shared_tokens(&self) -> usize {
        if self.prefilled == self.cached {
            self.in_blocks
        } else {
            self.prefilled
        }
    }

    /// It waits for parts of its cache.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.loading, Loading::Now(_))
    }

    /// Whether files have not been asked for its prompt yet.
    pub(crate) fn may_load(&self) -> bool {
        matches!(self.loading, Loading::NotYet)
    }

    pub(crate) fn wait_for(&mut self, blocks: BTreeSet<BlockKey>) {
        self.loading = Loading::Now(blocks);
    }

    /// What it waits for.
    pub(crate) fn awaited(&self) -> Option<&BTreeSet<BlockKey>> {
        match &self.loading {
            Loading::Now(blocks) => Some(blocks),
            Loading::NotYet | Loading::Over => None,
        }
    }

    /// What it waited for is there, or never will be.
    pub(crate) fn stop_waiting(&mut self) {
        self.loading = Loading::Over;
    }

    /// Prompt and answer as far as it has been read.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        [self.prompt(), &self.answer].concat()
    }

    /// Begins with what is known of the prompt, before anything of it is computed.
    pub(crate) fn begin_with(&mut self, prefix: Prefix) {
        let Prefix {
            cache,
            tokens,
            in_blocks,
        } = prefix;
        self.cache = cache;
        self.prefilled = tokens;
        self.cached = tokens;
        self.in_blocks = in_blocks;
    }

    pub(crate) fn stop_at(&mut self, stops: Vec<usize>) {
        self.stops = stops;
    }

    /// Of the next `tokens` of the prompt, those up to its next stop.
    pub(crate) fn until_stop(&self, tokens: usize) -> usize {
        let ahead = self.stops.iter().find(|stop| **stop > self.prefilled);
        ahead.map_or(tokens, |stop| tokens.min(stop - self.prefilled))
    }

    /// What has been computed is to be kept now.
    pub(crate) fn is_at_stop(&self) -> bool {
        self.stops.contains(&self.prefilled)
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(crate) fn into_cache(self) -> KvCache {
        self.cache
    }

    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Whether another token is to be chosen after those that are.
    pub(crate) fn goes_on(&self) -> bool {
        self.chosen < self.request().max_tokens
    }

    /// Whether each token must be read before the next one can be chosen.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some() || self.thinking.is_some()
    }

    /// The last token, where it is read and the next one is to be chosen.
    pub(crate) fn last_token(&self) -> Option<u32> {
        let all_read = self.chosen == self.answer.len() && self.goes_on();
        self.answer.last().copied().filter(|_| all_read)
    }

    /// Looks up which tokens the next one must be of; all before it have been read.
    pub(crate) fn narrow(&mut self) -> Result<(), StepError> {
        self.mask = None;
        if let Some(constraint) = &mut self.constraint {
            let mask = constraint.mask()?;
            // What must end here ends, however short it is.
            let longer = self.unending().and_then(|unending| mask.and(unending));
            self.mask = Some(longer.map_or(mask, Arc::new));
        }
        if let Some(close) = self.thinking.as_ref().and_then(ThinkingBudget::mask) {
            self.mask = match &self.mask {
                None => Some(Arc::clone(close)),
                // Where a format has no end of thinking, there is none.
                Some(mask) => Some(mask.and(close).map_or_else(|| Arc::clone(mask), Arc::new)),
            };
        }
        Ok(())
    }

    /// The tokens that do not end the answer, as long as it must not end.
    fn unending(&self) -> Option<&Mask> {
        let too_short = self.chosen < self.request().stopping.min_tokens;
        self.unending.as_ref().filter(|_| too_short)
    }

    /// How the next token is chosen.
    pub(crate) fn draw(&self) -> Draw<'_> {
        Draw {
            sampling: &self.request().sampling,
            adjustment: self.adjustment.as_ref(),
            mask: self.mask.as_deref().or_else(|| self.unending()),
            logprobs: self.request().logprobs,
            step: self.chosen as u64,
        }
    }

    /// A token has been chosen.
    pub(crate) fn chose(&mut self) {
        self.chosen += 1;
    }

    /// The token that has been chosen changes what the next one is chosen by.
    pub(crate) fn adjust(&mut self, adjustment: Adjustment) {
        self.adjustment = Some(adjustment);
    }

    /// Whether it may begin with what another request has computed, and others with what is computed of it: not where
    /// something is asked for of each token of the prompt, since of such prompts few come again.
    pub(crate) fn shares_prefixes(&self) -> bool {
        self.shares_prefixes
    }

    /// Whether a pass over its prompt and others failed.
    pub(crate) fn is_shunned(&self) -> bool {
        self.is_shunned
    }

    /// Whether its prompt is read in passes of its own.
    pub(crate) fn reads_alone(&self) -> bool {
        self.gathers() || self.is_shunned || self.prompt().is_empty()
    }

    /// A pass over its prompt and others failed: it is read once more, by itself.
    pub(crate) fn begin_alone(&mut self, model: &Decoder) {
        self.is_shunned = true;
        self.cache = model.new_cache();
        (self.prefilled, self.cached, self.in_blocks) = (0, 0, 0);
    }

    /// Counts the next tokens of the prompt as computed, and says which they are.
    pub(crate) fn read_on(&mut self, tokens: usize) -> Range<usize> {
        self.queued.overtaken = 0;
        let begin = self.prefilled;
        self.prefilled = self.prompt_tokens().min(begin + tokens);
        begin..self.prefilled
    }

    pub(crate) fn prompt_is_read(&self) -> bool {
        self.prefilled == self.prompt_tokens()
    }

    /// Whether anything is asked for behind the prompt.
    pub(crate) fn answers(&self) -> bool {
        self.request().max_tokens > 0
    }

    /// Whether something is asked for of each token of the prompt.
    pub(crate) fn gathers(&self) -> bool {
        self.reading.is_some()
    }

    /// Gathers what is asked for of a part of the prompt from its hidden states.
    pub(crate) fn gather(
        &mut self,
        model: &Decoder,
        hidden: &Array,
        part: Range<usize>,
    ) -> Result<(), StepError> {
        let Some(reading) = &mut self.reading else {
            return Ok(());
        };
        transforms::eval(self.cache.arrays())?;
        let prompt = &self.queued.job.request.prompt;
        let next = &prompt[part.start + 1..prompt.len().min(part.end + 1)];
        reading.take(model, hidden, next)
    }

    /// The prompt is read: tells what was gathered of it, and, where there is nothing to answer, what there was.
    pub(crate) fn end_prompt(&mut self) -> Result<Option<Done>, StepError> {
        let reading = self.reading.take();
        // A prompt that is read again, since a pass failed behind it, has been told.
        if !std::mem::replace(&mut self.is_prompt_told, true)
            && let Some(event) = prompt_output::told(self.request(), reading)?
        {
            self.send(event);
        }
        Ok((!self.answers()).then_some(Done {
            reason: FinishReason::Length,
            stopped_by: None,
            completion_tokens: 0,
            cached_tokens: self.cached,
        }))
    }

    /// What the first token is chosen by, of so many.
    pub(crate) fn begin_answer(&mut self, vocabulary: i32) -> Result<(), StepError> {
        let request = &self.queued.job.request;
        self.adjustment = Adjustment::new(&request.sampling.penalties, &request.prompt, vocabulary);
        if request.stopping.min_tokens > 0 {
            self.unending = Some(Mask::without(vocabulary.unsigned_abs() as usize, &self.ends));
        }
        self.narrow()
    }

    /// Takes a token that a pass of `rows` rows chose, and sends its text. `Some` when the request is done; saying so
    /// is the caller's.
    pub(crate) fn take(
        &mut self,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        rows: usize,
        tokenizer: &Tokenizer,
        now: impl Fn() -> Instant,
    ) -> Result<Option<Done>, StepError> {
        if !self.answer.is_empty() {
            self.shared += rows;
        }
        self.answer.push(token);
        // After a guess, a pass chooses several.
        self.chosen = self.chosen.max(self.answer.len());
        if let Some(lookup) = &mut self.lookup {
            lookup.push(token);
        }
        if let Some(thinking) = &mut self.thinking {
            thinking.take(token);
        }
        let at = now();
        self.timing.first_token.get_or_insert(at);
        let before = self.timing.last_token.replace(at);
        self.token_time = TokenTime {
            since_last: before.map(|before| at - before),
            detokenizing: Duration::ZERO,
        };
        let named = self.request().stopping.token_ids.contains(&token);
        if named || (tokenizer.is_eos(token) && !self.ignores_eos()) {
            self.transcript.end(token, logprobs);
            let done = self.finish(tokenizer, FinishReason::Stop)?;
            return Ok(Some(Done {
                stopped_by: done.stopped_by.or(named.then_some(StopReason::Token(token))),
                ..done
            }));
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.take(token)?;
        }
        let begin = now();
        let piece = self.transcript.push(tokenizer, token, logprobs)?;
        self.token_time.detokenizing = now() - begin;
        self.send_piece(piece);
        if self.transcript.stopped_by().is_some() {
            return self.finish(tokenizer, FinishReason::Stop).map(Some);
        }
        if self.constraint.as_ref().is_some_and(Constraint::is_complete) {
            return self.finish(tokenizer, FinishReason::Stop).map(Some);
        }
        if self.answer.len() == self.request().max_tokens {
            return self.finish(tokenizer, FinishReason::Length).map(Some);
        }
        Ok(None)
    }

    fn finish(&mut self, tokenizer: &Tokenizer, mut reason: FinishReason) -> Result<Done, StepError> {
        let rest = self.transcript.finish(tokenizer)?;
        self.send_piece(rest);
        let stopped_by = self.transcript.stopped_by().map(str::to_owned);
        if stopped_by.is_some() {
            reason = FinishReason::Stop;
        }
        Ok(Done {
            reason,
            stopped_by: stopped_by.map(StopReason::Text),
            completion_tokens: self.answer.len(),
            cached_tokens: self.cached,
        })
    }

    /// An answer that is held to a format ends where that does.
    fn ignores_eos(&self) -> bool {
        self.request().stopping.ignore_eos && self.constraint.is_none()
    }

    fn send_piece(&self, piece: Piece) {
        if !piece.is_empty() {
            self.send(Event::Piece(piece));
        }
    }

    pub(crate) fn send(&self, event: Event) {
        // The channel has room for all events, so this fails only when nobody listens: `is_cancelled` tells.
        drop(self.queued.job.events.try_send(event));
    }
}

/// Token ids as the model takes them, `[1, n]`.
pub(crate) fn token_row(tokens: &[u32]) -> Array {
    let length = i32::try_from(tokens.len()).expect("a chunk is far shorter than i32::MAX");
    Array::from_slice(tokens, &[1, length])
}

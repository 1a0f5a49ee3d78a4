//! The prompt of a request: its tokens, how many of them are in the cache, and where the cached
//! ones come from.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::batch::prompt_output::PromptOutput;
use crate::cache::BlockKey;
use crate::prompt::ValidRequest;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Prompt {
    tokens: Vec<u32>,
    /// Tokens that are in the cache.
    prefilled: usize,
    /// Prefilled tokens that came from the prefix cache.
    cached: usize,
    /// Cached tokens that other requests find, too.
    in_blocks: usize,
    /// Numbers of tokens after which the computed part is kept, in ascending order.
    stops: Vec<usize>,
    loading: Loading,
    /// Results that the request asks for besides its answer.
    pub(super) output: Option<PromptOutput>,
    shares_prefixes: bool,
    /// A pass over this prompt and others failed.
    is_isolated: bool,
    /// The client has the results of the prompt.
    pub(super) is_reported: bool,
}

/// State of loading parts of the prompt's cache from files.
#[derive(Debug)]
enum Loading {
    Pending,
    /// Blocks that are read. Until then, the engine computes nothing for the request.
    Active(BTreeSet<BlockKey>),
    Over,
}

impl Prompt {
    /// Takes the tokens out of the request.
    pub(super) fn take_from(request: &mut ValidRequest) -> Self {
        let output = PromptOutput::new(request);
        Self {
            tokens: std::mem::take(&mut request.prompt),
            prefilled: 0,
            cached: 0,
            in_blocks: 0,
            stops: Vec::new(),
            loading: Loading::Pending,
            shares_prefixes: output.is_none(),
            output,
            is_isolated: false,
            is_reported: false,
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Number of tokens that are in the cache.
    pub(crate) fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Number of tokens that came from the prefix cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// Number of tokens that other requests find: everything that was computed is kept.
    pub(crate) fn shared_tokens(&self) -> usize {
        if self.prefilled == self.cached {
            self.in_blocks
        } else {
            self.prefilled
        }
    }

    pub(crate) fn is_prefilled(&self) -> bool {
        self.prefilled == self.tokens.len()
    }

    /// Returns true while parts of the cache are read from files.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.loading, Loading::Active(_))
    }

    /// Returns true until the prompt was looked up in the files.
    pub(crate) fn may_load(&self) -> bool {
        matches!(self.loading, Loading::Pending)
    }

    pub(crate) fn wait_for(&mut self, blocks: BTreeSet<BlockKey>) {
        self.loading = Loading::Active(blocks);
    }

    /// Blocks that are read for this prompt.
    pub(crate) fn awaited(&self) -> Option<&BTreeSet<BlockKey>> {
        match &self.loading {
            Loading::Active(blocks) => Some(blocks),
            Loading::Pending | Loading::Over => None,
        }
    }

    /// The awaited blocks are in memory, or reading them failed.
    pub(crate) fn stop_waiting(&mut self) {
        self.loading = Loading::Over;
    }

    /// Starts after a prefix of `tokens` tokens, of which other requests find `in_blocks`.
    pub(super) fn start_after(&mut self, tokens: usize, in_blocks: usize) {
        (self.prefilled, self.cached, self.in_blocks) = (tokens, tokens, in_blocks);
    }

    /// Starts again from nothing, in passes of its own.
    pub(super) fn restart_isolated(&mut self) {
        self.is_isolated = true;
        self.start_after(0, 0);
    }

    /// Counts the next tokens as computed, and returns their range.
    pub(super) fn advance(&mut self, tokens: usize) -> Range<usize> {
        let begin = self.prefilled;
        self.prefilled = self.tokens.len().min(begin + tokens);
        begin..self.prefilled
    }

    pub(crate) fn stop_at(&mut self, stops: Vec<usize>) {
        self.stops = stops;
    }

    /// Limits the next `tokens` tokens to those before the next stop.
    pub(crate) fn until_stop(&self, tokens: usize) -> usize {
        let ahead = self.stops.iter().find(|stop| **stop > self.prefilled);
        ahead.map_or(tokens, |stop| tokens.min(stop - self.prefilled))
    }

    /// Returns true if the computed part is to be kept now.
    pub(crate) fn is_at_stop(&self) -> bool {
        self.stops.contains(&self.prefilled)
    }

    /// Returns true if the request may start with a prefix of another request, and other requests
    /// with its own. False if the request asks for results of each token of the prompt, because
    /// such prompts rarely repeat.
    pub(crate) fn shares_prefixes(&self) -> bool {
        self.shares_prefixes
    }

    /// Returns true after a pass over this prompt and others failed.
    pub(crate) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// Returns true if the prompt is computed in passes of its own.
    pub(crate) fn prefills_alone(&self) -> bool {
        self.has_output() || self.is_isolated || self.tokens.is_empty()
    }

    /// Returns true if the request asks for results of each token of the prompt.
    pub(crate) fn has_output(&self) -> bool {
        self.output.is_some()
    }
}

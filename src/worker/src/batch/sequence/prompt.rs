//! Prompt of a request: its tokens, the number of tokens in the KV cache, and their origin.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::batch::prompt_output::PromptOutput;
use crate::cache::BlockKey;
use crate::prompt::ValidRequest;

/// Prompt of a request while the engine computes it.
#[derive(Debug)]
pub(crate) struct Prompt {
    tokens: Vec<u32>,
    /// Number of tokens in the KV cache.
    prefilled: usize,
    /// Number of tokens in the KV cache that came from the prefix cache.
    cached: usize,
    /// Number of cached tokens that other requests can use as well.
    in_blocks: usize,
    /// Snapshot points: numbers of tokens after which the KV cache is stored, in ascending order.
    snapshot_points: Vec<usize>,
    loading: Loading,
    /// Results that the request asks for besides its answer.
    pub(super) output: Option<PromptOutput>,
    shares_prefixes: bool,
    /// Set after a pass over this prompt and others failed.
    is_isolated: bool,
    /// Set when the results of the prompt were sent to the client.
    pub(super) is_reported: bool,
}

/// State of loading parts of the KV cache from files.
#[derive(Debug)]
enum Loading {
    Pending,
    /// Blocks that are being read. The engine computes nothing for the request until they are in
    /// memory.
    Active(BTreeSet<BlockKey>),
    Over,
}

impl Prompt {
    /// Moves the tokens out of the request.
    pub(super) fn take_from(request: &mut ValidRequest) -> Self {
        let output = PromptOutput::new(request);
        Self {
            tokens: std::mem::take(&mut request.prompt),
            prefilled: 0,
            cached: 0,
            in_blocks: 0,
            snapshot_points: Vec::new(),
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

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of tokens in the KV cache.
    pub(crate) fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Returns the number of tokens that came from the prefix cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// Returns the number of tokens that other requests can use. Computed tokens are always stored.
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

    /// Returns true while blocks are read from files.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.loading, Loading::Active(_))
    }

    /// Returns true until the prompt was looked up in the files of the prefix cache.
    pub(crate) fn may_load(&self) -> bool {
        matches!(self.loading, Loading::Pending)
    }

    pub(crate) fn wait_for(&mut self, blocks: BTreeSet<BlockKey>) {
        self.loading = Loading::Active(blocks);
    }

    /// Blocks that are being read for this prompt.
    pub(crate) fn awaited(&self) -> Option<&BTreeSet<BlockKey>> {
        match &self.loading {
            Loading::Active(blocks) => Some(blocks),
            Loading::Pending | Loading::Over => None,
        }
    }

    /// Records that the awaited blocks are in memory, or that reading them failed.
    pub(crate) fn stop_waiting(&mut self) {
        self.loading = Loading::Over;
    }

    /// Starts after a prefix of `tokens` tokens, of which other requests can use `in_blocks`.
    pub(super) fn start_after(&mut self, tokens: usize, in_blocks: usize) {
        (self.prefilled, self.cached, self.in_blocks) = (tokens, tokens, in_blocks);
    }

    /// Restarts the prompt of `request` from the first token, in its own passes. Discards the results of earlier
    /// passes.
    pub(super) fn restart_isolated(&mut self, request: &ValidRequest) {
        self.is_isolated = true;
        self.output = match self.is_reported {
            true => None,
            false => PromptOutput::new(request),
        };
        self.start_after(0, 0);
    }

    /// Counts the next tokens as computed, and returns their range.
    pub(super) fn advance(&mut self, tokens: usize) -> Range<usize> {
        let begin = self.prefilled;
        self.prefilled = self.tokens.len().min(begin + tokens);
        begin..self.prefilled
    }

    pub(crate) fn set_snapshot_points(&mut self, snapshot_points: Vec<usize>) {
        self.snapshot_points = snapshot_points;
    }

    /// Limits the next `tokens` tokens to those before the next snapshot point.
    pub(crate) fn until_snapshot_point(&self, tokens: usize) -> usize {
        let ahead = self.snapshot_points.iter().find(|point| **point > self.prefilled);
        ahead.map_or(tokens, |point| tokens.min(point - self.prefilled))
    }

    /// Returns true if the KV cache is to be stored at the current position.
    pub(crate) fn is_at_snapshot_point(&self) -> bool {
        self.snapshot_points.contains(&self.prefilled)
    }

    /// Returns true if the request may use prefixes of other requests, and other requests its own.
    /// False if the request asks for results of each prompt token, because such prompts rarely
    /// repeat.
    pub(crate) fn shares_prefixes(&self) -> bool {
        self.shares_prefixes
    }

    /// Returns true after a pass over this prompt and others failed.
    pub(crate) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// Returns true if the prompt is computed in its own passes.
    pub(crate) fn prefills_alone(&self) -> bool {
        self.has_output() || self.is_isolated || self.tokens.is_empty()
    }

    /// Returns true if the request asks for results of each prompt token.
    pub(crate) fn has_output(&self) -> bool {
        self.output.is_some()
    }
}

//! The batch: sequences that share a decode step. One forward pass computes the next token of each
//! row.
//!
//! A pass is submitted before the tokens of the previous pass are read, so that the device computes
//! while the engine thread processes them. Rows with a logits mask are part of the pass. Their
//! masks depend on the previous tokens, so the engine samples these rows after it has read those
//! tokens. A row that decodes alone may have draft tokens: one pass then samples a token after each
//! of them, and the tokens after the first rejected one are dropped. Each token equals the one that
//! would be sampled without draft tokens and without other rows.

pub(crate) mod event;
pub(crate) mod job;
mod lookup;
pub(crate) mod prefill;
mod prompt_output;
pub(crate) mod sequence;
pub(crate) mod step_error;
pub(crate) mod thinking;
pub(crate) mod transcript;

use std::sync::Arc;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::concatenate;
use rooflet_mlx::mlx_rs::ops::indexing::take_axis;
use rooflet_mlx::mlx_rs::{Array, transforms};

use crate::batch::lookup::Verified;
use crate::batch::sequence::{Sequence, token_row};
use crate::batch::step_error::StepError;
use crate::engine::schedule::RequestId;
use crate::sampling::choice::Choice;
use crate::sampling::logprobs::{Logprobs, TokenLogprobs};
use crate::sampling::sampler::Draw;
use rooflet_decoder::{Decoder, KvCache};

/// Tokens that a forward pass sampled and that were not read yet.
#[derive(Debug)]
struct PendingStep {
    /// One token for each row, and one for each draft token.
    tokens: Array,
    /// One value per token: true if the logits of the token are finite.
    finite: Array,
    logprobs: Option<Logprobs>,
    rows: Vec<RequestId>,
    /// Number of rows of the pass, including rows that are sampled separately.
    pass_rows: usize,
    /// Draft tokens, if the pass has a single row.
    draft: Vec<u32>,
}

/// Rows of a submitted pass that are sampled after their previous tokens are read.
#[derive(Debug)]
struct UnsampledRows {
    /// `[rows, vocabulary]`.
    logits: Array,
    rows: Vec<RequestId>,
    pass_rows: usize,
}

/// Token that was read from the device, or the error of its row.
#[derive(Debug)]
pub(crate) struct StepToken {
    pub id: RequestId,
    pub token: std::result::Result<u32, StepError>,
    /// Log probabilities, if the request asks for them.
    pub logprobs: Option<TokenLogprobs>,
    /// Number of rows of the pass that sampled the token.
    pub rows: usize,
    /// Set on the first token of a pass over draft tokens.
    pub verified: Option<Verified>,
}

/// Sequences that share decode steps.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pending: Vec<PendingStep>,
    /// Logits between [`Batch::launch`] and [`Batch::launch_after_read`].
    unsampled: Vec<UnsampledRows>,
}

impl Batch {
    /// Returns true if no token is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Waits until the device has computed all submitted passes. Failures are reported when the
    /// tokens are read.
    pub(crate) fn synchronize(&self) {
        for step in &self.pending {
            drop(step.tokens.eval());
        }
    }

    /// Adds sequences with their first tokens. The caches of the other sequences stay in place.
    pub(crate) fn join(&mut self, rows: Vec<RequestId>, first: Choice) {
        self.pending.push(PendingStep {
            pass_rows: rows.len(),
            tokens: first.tokens,
            finite: first.finite,
            logprobs: first.logprobs,
            rows,
            draft: Vec::new(),
        });
    }

    /// Submits a pass over all rows that need another token, and returns the pending tokens of the
    /// previous pass, to be read while the device computes. The pass leaves out rows that have
    /// ended or have their last token.
    pub(crate) fn launch(&mut self, model: &Decoder, sequences: &mut [Sequence]) -> PendingTokens {
        let (drafted, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|step| !step.draft.is_empty());
        let failed = self.submit(model, &pending, sequences);
        PendingTokens {
            pending: drafted.into_iter().chain(pending).collect(),
            failed,
        }
    }

    /// Submits the work that depends on the tokens just read: sampling of rows with a logits mask,
    /// and a pass over a row with draft tokens. Returns the rows that failed.
    pub(crate) fn launch_after_read(
        &mut self,
        model: &Decoder,
        sequences: &mut [Sequence],
    ) -> Vec<StepToken> {
        let mut failures = Vec::new();
        let alone = decodes_single_row(sequences);
        for row in sequences.iter_mut() {
            let is_submitted = |unsampled: &UnsampledRows| unsampled.rows.contains(&row.id());
            let Some(token) = row
                .last_token()
                .filter(|_| !self.unsampled.iter().any(is_submitted))
            else {
                continue;
            };
            let draft = if alone {
                row.draft_tokens().to_vec()
            } else {
                Vec::new()
            };
            let submitted = if draft.is_empty() {
                pass(model, &token_list(&[token]), &mut [row])
            } else {
                verify(model, token, draft, row)
            };
            match submitted {
                Ok(submitted) => self.add(submitted),
                Err(err) => failures.push(failed(row.id(), err.into())),
            }
        }
        for unsampled in std::mem::take(&mut self.unsampled) {
            failures.extend(self.sample_constrained(unsampled, sequences));
        }
        failures
    }

    /// Samples the next tokens of the rows that are still active. Returns the rows that failed.
    fn sample_constrained(&mut self, unsampled: UnsampledRows, sequences: &mut [Sequence]) -> Vec<StepToken> {
        let mut failures = Vec::new();
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        for row in sequences {
            let Some(place) = unsampled.rows.iter().position(|id| *id == row.id()) else {
                continue;
            };
            match row.update_mask() {
                Ok(()) => {
                    places.push(place);
                    rows.push(row);
                }
                Err(err) => failures.push(failed(row.id(), err)),
            }
        }
        if rows.is_empty() {
            return failures;
        }
        let mut choose = |places: &[usize], rows: &mut [&mut Sequence]| {
            let logits = rows_at(&unsampled.logits, places)?;
            let draws: Vec<Draw<'_>> = rows.iter().map(|row| row.draw()).collect();
            let choice = Choice::submit(&logits, &draws)?;
            self.pending.push(pending_step(choice, rows, unsampled.pass_rows));
            Ok(())
        };
        match choose(&places, &mut rows) {
            Ok(()) => {}
            Err(err) if rows.len() == 1 => failures.push(failed(rows[0].id(), StepError::Engine(err))),
            // As in `submit`, each row is retried once.
            Err(err) => {
                tracing::warn!(error = %err, rows = rows.len(), "sampling failed, retrying each row separately");
                for (place, row) in places.into_iter().zip(rows) {
                    let id = row.id();
                    if let Err(err) = choose(&[place], &mut [row]) {
                        failures.push(failed(id, StepError::Engine(err)));
                    }
                }
            }
        }
        failures
    }

    /// Submits a pass. Returns the rows that failed.
    fn submit(
        &mut self,
        model: &Decoder,
        pending: &[PendingStep],
        sequences: &mut [Sequence],
    ) -> Vec<StepToken> {
        let place = |id| {
            let mut places = pending.iter().flat_map(|step| &step.rows);
            places.position(|row| *row == id)
        };
        let alone = decodes_single_row(sequences);
        let mut continuing: Vec<(usize, &mut Sequence)> = sequences
            .iter_mut()
            .filter(|sequence| sequence.needs_token())
            // A row with draft tokens waits until its token is read; see `launch_after_read`.
            .filter(|sequence| !alone || sequence.draft_tokens().is_empty())
            .filter_map(|sequence| Some((place(sequence.id())?, sequence)))
            .collect();
        if continuing.is_empty() {
            return Vec::new();
        }
        continuing.sort_unstable_by_key(|(place, sequence)| (sequence.decoding.is_constrained(), *place));
        let (places, mut rows): (Vec<usize>, Vec<&mut Sequence>) = continuing.into_iter().unzip();
        match tokens_at(pending, &places).and_then(|tokens| pass(model, &tokens, &mut rows)) {
            Ok(submitted) => {
                self.add(submitted);
                Vec::new()
            }
            Err(err) if rows.len() == 1 => vec![failed(rows[0].id(), err.into())],
            // A failing row must not end the others: each row is retried once, in its own pass.
            Err(err) => {
                tracing::warn!(error = %err, rows = rows.len(), "decode step failed, retrying each row separately");
                let mut failures = Vec::new();
                for (place, row) in places.iter().zip(rows) {
                    let alone = tokens_at(pending, &[*place]);
                    let id = row.id();
                    match alone.and_then(|token| pass(model, &token, &mut [row])) {
                        Ok(submitted) => self.add(submitted),
                        Err(err) => failures.push(failed(id, err.into())),
                    }
                }
                failures
            }
        }
    }

    fn add(&mut self, submitted: Submitted) {
        self.pending.extend(submitted.step);
        self.unsampled.extend(submitted.unsampled);
    }
}

/// Pending tokens, to be read.
#[derive(Debug)]
#[must_use]
pub(crate) struct PendingTokens {
    pending: Vec<PendingStep>,
    failed: Vec<StepToken>,
}

impl PendingTokens {
    /// Waits for the tokens and returns them. Rows that failed come first.
    pub(crate) fn read(self) -> Vec<StepToken> {
        let mut tokens_read = self.failed;
        for step in self.pending {
            tokens_read.extend(read(step));
        }
        tokens_read
    }
}

/// Returns true if at most one row decodes. With several rows, draft tokens cost more than they
/// gain.
fn decodes_single_row(sequences: &[Sequence]) -> bool {
    sequences.iter().filter(|row| row.is_decoding()).count() <= 1
}

fn failed(id: RequestId, err: StepError) -> StepToken {
    StepToken {
        id,
        token: Err(err),
        logprobs: None,
        rows: 1,
        verified: None,
    }
}

/// Returns the tokens at these places of all pending steps, on the device.
fn tokens_at(pending: &[PendingStep], places: &[usize]) -> Result<Array> {
    let all: Vec<&Array> = pending.iter().map(|step| &step.tokens).collect();
    let tokens = match all[..] {
        [one] => one.clone(),
        _ => concatenate(&all, 0)?,
    };
    let count = pending.iter().map(|step| step.rows.len()).sum();
    if places.iter().copied().eq(0..count) {
        return Ok(tokens);
    }
    take_axis(tokens, crate::sampling::sampler::indices(places), 0)
}

/// Selects rows of `logits`.
fn rows_at(logits: &Array, places: &[usize]) -> Result<Array> {
    let count = logits.dim(0).unsigned_abs() as usize;
    if places.iter().copied().eq(0..count) {
        return Ok(logits.clone());
    }
    take_axis(logits, crate::sampling::sampler::indices(places), 0)
}

/// Returns the tokens as an array of shape `[rows]`.
fn token_list(tokens: &[u32]) -> Array {
    Array::from_slice(
        tokens,
        &[i32::try_from(tokens.len()).expect("rows are far fewer than i32::MAX")],
    )
}

/// Result of a submitted pass.
struct Submitted {
    step: Option<PendingStep>,
    unsampled: Option<UnsampledRows>,
}

/// Submits one token of each row; rows with a logits mask must come last. After an error, the
/// caches are truncated to their previous lengths.
fn pass(model: &Decoder, tokens: &Array, rows: &mut [&mut Sequence]) -> Result<Submitted> {
    let before: Vec<i32> = rows.iter().map(|row| row.cache().offset()).collect();
    let mut caches: Vec<&mut KvCache> = rows.iter_mut().map(|row| row.cache_mut()).collect();
    let logits = model.decode(tokens, &mut caches);
    let all: Vec<usize> = (0..rows.len()).collect();
    let free = rows.partition_point(|row| !row.decoding.is_constrained());
    let submit = |logits: Array| {
        let draws: Vec<Draw<'_>> = rows[..free].iter().map(|row| row.draw()).collect();
        let choice = match draws.is_empty() {
            true => None,
            false => Some(Choice::submit(&rows_at(&logits, &all[..free])?, &draws)?),
        };
        let unsampled = match free == rows.len() {
            true => None,
            false => Some(rows_at(&logits, &all[free..])?),
        };
        transforms::async_eval(&unsampled)?;
        Ok((choice, unsampled))
    };
    match logits.and_then(submit) {
        Ok((choice, unsampled)) => Ok(Submitted {
            unsampled: unsampled.map(|logits| UnsampledRows {
                logits,
                rows: rows[free..].iter().map(|row| row.id()).collect(),
                pass_rows: rows.len(),
            }),
            step: choice.map(|choice| pending_step(choice, &mut rows[..free], all.len())),
        }),
        Err(err) => {
            for (row, tokens) in rows.iter_mut().zip(before) {
                row.cache_mut().truncate(tokens);
            }
            Err(err)
        }
    }
}

/// Records that the next tokens of the rows are pending.
fn pending_step(choice: Choice, rows: &mut [&mut Sequence], pass_rows: usize) -> PendingStep {
    let ids = rows.iter().map(|row| row.id()).collect();
    for row in rows.iter_mut() {
        row.decoding.token_sampled();
    }
    for (row, adjustment) in choice.adjustments {
        rows[row].decoding.adjust(adjustment);
    }
    PendingStep {
        tokens: choice.tokens,
        finite: choice.finite,
        logprobs: choice.logprobs,
        rows: ids,
        pass_rows,
        draft: Vec::new(),
    }
}

/// Submits the last token of a row and its draft tokens, and samples a token after each of them.
/// After an error, the cache is truncated to its previous length.
fn verify(model: &Decoder, token: u32, draft: Vec<u32>, row: &mut Sequence) -> Result<Submitted> {
    let before = row.cache().offset();
    let tokens = token_row(&[&[token], &draft[..]].concat());
    let logits = model.forward_each(&tokens, row.cache_mut());
    let submit = |logits: Array| {
        let next = row.draw();
        let each = |ahead: usize| Draw {
            step: next.step + ahead as u64,
            ..next
        };
        Choice::submit(&logits, &(0..=draft.len()).map(each).collect::<Vec<_>>())
    };
    match logits.and_then(submit) {
        Ok(choice) => {
            row.decoding.token_sampled();
            Ok(Submitted {
                step: Some(PendingStep {
                    tokens: choice.tokens,
                    finite: choice.finite,
                    logprobs: choice.logprobs,
                    rows: vec![row.id()],
                    pass_rows: 1,
                    draft,
                }),
                unsampled: None,
            })
        }
        Err(err) => {
            row.cache_mut().truncate(before);
            Err(err)
        }
    }
}

fn read(step: PendingStep) -> Vec<StepToken> {
    let count = step.rows.len();
    let step_token = |id, token| StepToken {
        id,
        token,
        logprobs: None,
        rows: step.pass_rows,
        verified: None,
    };
    let tokens = step.tokens.to_vec_exact::<u32>();
    let finite = step.finite.to_vec_exact::<bool>();
    let logprobs = step.logprobs.as_ref().map_or(Ok(Vec::new()), Logprobs::read);
    match tokens.and_then(|tokens| Ok((tokens, finite?, logprobs?))) {
        Ok((tokens, finite, logprobs)) => {
            let equal = step.draft.iter().zip(&tokens);
            let accepted = equal.take_while(|(draft, token)| draft == token).count();
            // Tokens after a rejected draft token are dropped. Without draft tokens there is one
            // token per row.
            let used = tokens.into_iter().zip(finite).take(count + accepted);
            let rows = step
                .rows
                .iter()
                .copied()
                .chain(std::iter::repeat_n(step.rows[0], accepted));
            let mut all: Vec<StepToken> = rows
                .zip(used)
                .map(|(id, (token, is_finite))| {
                    step_token(id, is_finite.then_some(token).ok_or(StepError::NotFinite))
                })
                .collect();
            for (row, logprobs) in logprobs {
                if let Some(step_token) = all.get_mut(row) {
                    step_token.logprobs = Some(logprobs);
                }
            }
            if let (false, Some(first)) = (step.draft.is_empty(), all.first_mut()) {
                let drafted = step.draft.len();
                first.verified = Some(Verified { drafted, accepted });
            }
            all
        }
        Err(err) => {
            let err = Arc::new(err);
            let error = |id| step_token(id, Err(StepError::Read(Arc::clone(&err))));
            step.rows.into_iter().map(error).collect()
        }
    }
}

#[cfg(test)]
mod tests;

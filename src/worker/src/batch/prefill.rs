//! Prefill: one pass over the next prompt tokens of several sequences reads the weights once for
//! all of them. Each sequence attends only to its own tokens. After the last prompt token, the
//! first token of the answer is sampled.

use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp as _;
use rooflet_mlx::mlx_rs::transforms;

use crate::batch::event::Done;
use crate::batch::sequence::{Sequence, token_row};
use crate::batch::step_error::StepError;
use crate::engine::schedule::RequestId;
use crate::sampling::choice::Choice;
use crate::sampling::sampler::Draw;
use rooflet_decoder::{Decoder, KvCache};

/// Result of a pass over a part of a prompt.
#[derive(Debug)]
pub(crate) enum Prefilled {
    /// The prompt has more tokens.
    Partial,
    /// The first token is pending.
    FirstToken,
    /// The request asks for no answer.
    Done(Done),
    /// The pass over this prompt and others failed. The prompt is prefilled again in its own pass.
    Retry,
}

/// Results of passes over parts of prompts.
#[derive(Debug, Default)]
pub(crate) struct Prefill {
    pub outcomes: Vec<(RequestId, Result<Prefilled, StepError>)>,
    /// First tokens, submitted, with their requests.
    pub first_tokens: Vec<(Vec<RequestId>, Choice)>,
    /// True if the GPU's driver stopped a pass.
    pub interrupted: bool,
}

impl Prefill {
    /// Computes the given number of next tokens of each prompt. If `is_awaited`, waits for the last tokens of a prompt
    /// as well, so that their failure is a failure of the pass. Otherwise, reading the first token reports it.
    pub(crate) fn new(model: &Decoder, rows: Vec<(&mut Sequence, usize)>, is_awaited: bool) -> Self {
        let (alone, mut together): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(row, _)| row.prompt.prefills_alone());
        let mut prefill = Self::default();
        for mut row in alone {
            prefill.add(model, std::slice::from_mut(&mut row), is_awaited);
        }
        if !together.is_empty() {
            prefill.add(model, &mut together, is_awaited);
        }
        prefill
    }

    fn add(&mut self, model: &Decoder, rows: &mut [(&mut Sequence, usize)], is_awaited: bool) {
        match pass(model, rows, is_awaited) {
            Ok(Pass {
                outcomes,
                first_tokens,
            }) => {
                let ids = rows.iter().map(|(row, _)| row.id());
                self.outcomes.extend(ids.zip(outcomes));
                self.first_tokens.extend(first_tokens);
            }
            Err(err) => self.failed(model, rows, err),
        }
    }

    /// Handles a failed pass over these prompts.
    pub(super) fn failed(&mut self, model: &Decoder, rows: &mut [(&mut Sequence, usize)], err: StepError) {
        self.interrupted |= err.is_interruption();
        if let [(row, _)] = rows
            && !is_retried(&err, row)
        {
            self.outcomes.push((row.id(), Err(err)));
            return;
        }
        // A failing prompt must not end the others.
        tracing::warn!(error = %err, rows = rows.len(), "prefill failed, retrying each prompt separately");
        for (row, _) in rows {
            row.restart_isolated(model);
            self.outcomes.push((row.id(), Ok(Prefilled::Retry)));
        }
    }
}

/// Returns true if a prompt that failed alone is retried. This happens once.
fn is_retried(err: &StepError, row: &Sequence) -> bool {
    err.is_interruption() && !row.prompt.is_isolated()
}

/// Result of one pass.
struct Pass {
    /// Outcome of each row.
    outcomes: Vec<Result<Prefilled, StepError>>,
    first_tokens: Option<(Vec<RequestId>, Choice)>,
}

/// Submits the sampling of first tokens, and waits for all other results. If `is_awaited`, also waits for the
/// computation before the sampling.
fn pass(model: &Decoder, rows: &mut [(&mut Sequence, usize)], is_awaited: bool) -> Result<Pass, StepError> {
    let parts: Vec<_> = rows
        .iter_mut()
        .map(|(row, tokens)| row.advance_prompt(*tokens))
        .collect();
    let has_output = rows.iter().any(|(row, _)| row.prompt.has_output());
    let read = rows.iter().zip(&parts);
    let tokens: Vec<u32> = read
        .flat_map(|((row, _), part)| &row.prompt.tokens()[part.clone()])
        .copied()
        .collect();
    let mut caches: Vec<(&mut KvCache, i32)> = rows
        .iter_mut()
        .zip(&parts)
        .map(|((row, _), part)| (row.cache_mut(), count(part.len())))
        .collect();
    let tokens = token_row(&tokens);
    let last = if has_output {
        let hidden = model.hidden_parts(&tokens, &mut caches)?;
        // A prompt with output is prefilled alone.
        rows[0].0.collect_output(model, &hidden, parts[0].clone())?;
        hidden.try_index((.., -1.., ..))?
    } else {
        model.hidden_ends(&tokens, &mut caches)?
    };
    let (answering, waiting): (Vec<_>, Vec<_>) =
        (0..rows.len()).partition(|at| rows[*at].0.prompt.is_prefilled() && rows[*at].0.answers());
    if is_awaited {
        let caches = rows.iter().flat_map(|(row, _)| row.cache().arrays());
        transforms::eval(caches.chain([&last]))?;
    } else {
        transforms::eval(waiting.iter().flat_map(|at| rows[*at].0.cache().arrays()))?;
    }
    let mut outcomes: Vec<Result<Prefilled, StepError>> = Vec::with_capacity(rows.len());
    for (row, _) in &mut *rows {
        let done = if row.prompt.is_prefilled() {
            row.end_prompt()
        } else {
            Ok(None)
        };
        outcomes.push(done.map(|done| done.map_or(Prefilled::Partial, Prefilled::Done)));
    }
    if answering.is_empty() {
        return Ok(Pass {
            outcomes,
            first_tokens: None,
        });
    }
    let places: Vec<i32> = answering.iter().map(|at| count(*at)).collect();
    let logits = model.logits_after(&last, &places)?;
    for at in &answering {
        let began = rows[*at].0.begin_answer(logits.dim(-1));
        if outcomes[*at].is_ok() {
            outcomes[*at] = began.map(|()| Prefilled::FirstToken);
        }
    }
    // A row with an error ends before its token is read.
    let draws: Vec<Draw<'_>> = answering.iter().map(|at| rows[*at].0.draw()).collect();
    let mut choice = Choice::submit(&logits, &draws)?;
    for at in &answering {
        rows[*at].0.decoding.token_sampled();
    }
    for (at, adjustment) in choice.adjustments.drain(..) {
        rows[answering[at]].0.decoding.adjust(adjustment);
    }
    let ids = answering.iter().map(|at| rows[*at].0.id()).collect();
    Ok(Pass {
        outcomes,
        first_tokens: Some((ids, choice)),
    })
}

fn count(tokens: usize) -> i32 {
    i32::try_from(tokens).expect("passes are far shorter than i32::MAX")
}

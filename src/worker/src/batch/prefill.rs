//! Prefill: one pass over the next tokens of several takes the weights from memory once for all of
//! them. Each sequence attends to its own tokens only; after the last of them its first token is
//! chosen.

use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp as _;
use rooflet_mlx::mlx_rs::transforms;

use crate::batch::event::Done;
use crate::batch::sequence::{Sequence, token_row};
use crate::batch::step_error::StepError;
use crate::engine::schedule::RequestId;
use crate::models::{Decoder, KvCache};
use crate::sampling::choice::Choice;
use crate::sampling::sampler::Draw;

/// What a part of a prompt led to.
#[derive(Debug)]
pub(crate) enum Prefilled {
    /// There is more of it.
    Partly,
    /// Its first token is on its way.
    Chose,
    /// No answer is asked for.
    Done(Done),
    /// It failed beside others, and is read again by itself.
    Again,
}

/// What some parts of prompts led to.
#[derive(Debug, Default)]
pub(crate) struct Prefill {
    pub outcomes: Vec<(RequestId, Result<Prefilled, StepError>)>,
    /// First tokens, submitted, and whose they are.
    pub chosen: Vec<(Vec<RequestId>, Choice)>,
}

impl Prefill {
    /// Reads so many tokens on in each of these prompts.
    pub(crate) fn new(model: &Decoder, rows: Vec<(&mut Sequence, usize)>) -> Self {
        let (alone, mut together): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(row, _)| row.prompt.prefills_alone());
        let mut prefill = Self::default();
        for mut row in alone {
            prefill.add(model, std::slice::from_mut(&mut row));
        }
        if !together.is_empty() {
            prefill.add(model, &mut together);
        }
        prefill
    }

    fn add(&mut self, model: &Decoder, rows: &mut [(&mut Sequence, usize)]) {
        match pass(model, rows) {
            Ok(Pass { outcomes, chosen }) => {
                let ids = rows.iter().map(|(row, _)| row.id());
                self.outcomes.extend(ids.zip(outcomes));
                self.chosen.extend(chosen);
            }
            Err(err) if rows.len() == 1 => self.outcomes.push((rows[0].0.id(), Err(err))),
            // One row's failure must not be the others'.
            Err(err) => {
                tracing::warn!(error = %err, rows = rows.len(), "a pass failed: its prompts are read one by one");
                for (row, _) in rows {
                    row.restart_isolated(model);
                    self.outcomes.push((row.id(), Ok(Prefilled::Again)));
                }
            }
        }
    }
}

/// What one pass led to.
struct Pass {
    /// Of each row.
    outcomes: Vec<Result<Prefilled, StepError>>,
    chosen: Option<(Vec<RequestId>, Choice)>,
}

/// Submits what leads to first tokens, and waits for all else.
fn pass(model: &Decoder, rows: &mut [(&mut Sequence, usize)]) -> Result<Pass, StepError> {
    let parts: Vec<_> = rows
        .iter_mut()
        .map(|(row, tokens)| row.advance_prompt(*tokens))
        .collect();
    let gathers = rows.iter().any(|(row, _)| row.prompt.has_output());
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
    let last = if gathers {
        let hidden = model.hidden_parts(&tokens, &mut caches)?;
        // They read alone.
        rows[0].0.collect_output(model, &hidden, parts[0].clone())?;
        hidden.try_index((.., -1.., ..))?
    } else {
        model.hidden_ends(&tokens, &mut caches)?
    };
    let (going, waited): (Vec<_>, Vec<_>) =
        (0..rows.len()).partition(|at| rows[*at].0.prompt.is_prefilled() && rows[*at].0.answers());
    transforms::eval(waited.iter().flat_map(|at| rows[*at].0.cache().arrays()))?;
    let mut outcomes: Vec<Result<Prefilled, StepError>> = Vec::with_capacity(rows.len());
    for (row, _) in &mut *rows {
        let done = if row.prompt.is_prefilled() {
            row.end_prompt()
        } else {
            Ok(None)
        };
        outcomes.push(done.map(|done| done.map_or(Prefilled::Partly, Prefilled::Done)));
    }
    if going.is_empty() {
        return Ok(Pass {
            outcomes,
            chosen: None,
        });
    }
    let places: Vec<i32> = going.iter().map(|at| count(*at)).collect();
    let logits = model.logits_after(&last, &places)?;
    for at in &going {
        let began = rows[*at].0.begin_answer(logits.dim(-1));
        if outcomes[*at].is_ok() {
            outcomes[*at] = began.map(|()| Prefilled::Chose);
        }
    }
    // Whoever failed by itself is over before its token is read.
    let draws: Vec<Draw<'_>> = going.iter().map(|at| rows[*at].0.draw()).collect();
    let mut choice = Choice::submit(&logits, &draws)?;
    for at in &going {
        rows[*at].0.decoding.token_chosen();
    }
    for (at, adjustment) in choice.adjustments.drain(..) {
        rows[going[at]].0.decoding.adjust(adjustment);
    }
    let ids = going.iter().map(|at| rows[*at].0.id()).collect();
    Ok(Pass {
        outcomes,
        chosen: Some((ids, choice)),
    })
}

fn count(tokens: usize) -> i32 {
    i32::try_from(tokens).expect("a pass is far shorter than i32::MAX")
}

//! Logit bias and penalties, applied before sampling.
//!
//! Token counts are on the device, so that they can include a token that the host has not read yet.
//! All rows with a bias or penalty are computed together, and each row independently of the others.
//! Other rows are not part of the computation.
//!
//! Formulas, in this order:
//! - Bias: `logit + bias`.
//! - Repetition penalty for tokens of prompt or answer: `logit / penalty` if the logit is positive,
//!   `logit × penalty` otherwise (Keskar et al. 2019, CTRL, section 4.1, as in transformers).
//! - Frequency and presence penalty for tokens of the answer:
//!   `logit - frequency × count - presence × (count > 0)` (OpenAI's API reference).

use std::collections::BTreeMap;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::take_axis;
use rooflet_mlx::mlx_rs::ops::{self, concatenate, select, split_equal};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use crate::sampling::sampler::{column, indices};

/// Logit bias and penalties of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Penalties {
    /// Logit bias by token ID.
    pub bias: BTreeMap<u32, f32>,
    /// Presence penalty; 0: off.
    pub presence: f32,
    /// Frequency penalty; 0: off.
    pub frequency: f32,
    /// Repetition penalty; 1: off.
    pub repetition: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            bias: BTreeMap::new(),
            presence: 0.0,
            frequency: 0.0,
            repetition: 1.0,
        }
    }
}

/// Bias, penalties and token history of one row.
#[derive(Debug, Clone)]
pub(crate) struct Adjustment {
    presence: f32,
    frequency: f32,
    repetition: f32,
    /// Logit bias, `[1, vocabulary]`.
    bias: Option<Array>,
    history: Option<History>,
}

/// Token history of one row; both arrays are `[1, vocabulary]`.
#[derive(Debug, Clone)]
struct History {
    /// Number of occurrences of each token in the answer.
    counts: Array,
    /// 1 for each token of the prompt, 0 for other tokens.
    prompt: Array,
}

impl Adjustment {
    /// Returns the state before the first token. `None`: the request has neither bias nor
    /// penalties.
    pub(crate) fn new(penalties: &Penalties, prompt: &[u32], vocabulary: i32) -> Option<Self> {
        if *penalties == Penalties::default() {
            return None;
        }
        let Penalties {
            bias,
            presence,
            frequency,
            repetition,
        } = penalties;
        let has_penalties = *presence != 0.0 || *frequency != 0.0 || *repetition != 1.0;
        let history = || History {
            counts: dense(vocabulary, std::iter::empty()),
            // Only the repetition penalty needs the prompt.
            prompt: match *repetition {
                1.0 => dense(vocabulary, std::iter::empty()),
                _ => dense(vocabulary, prompt.iter().map(|token| (*token, 1.0))),
            },
        };
        Some(Self {
            presence: *presence,
            frequency: *frequency,
            repetition: *repetition,
            bias: (!bias.is_empty())
                .then(|| dense(vocabulary, bias.iter().map(|(token, bias)| (*token, *bias)))),
            history: has_penalties.then(history),
        })
    }
}

/// Returns `[1, vocabulary]` with the given values and zeros elsewhere. All tokens must be in the
/// vocabulary.
fn dense(vocabulary: i32, values: impl Iterator<Item = (u32, f32)>) -> Array {
    let mut all = vec![0.0; vocabulary.unsigned_abs() as usize];
    for (token, value) in values {
        all[token as usize] = value;
    }
    Array::from_slice(&all, &[1, vocabulary])
}

/// Logits of all rows after bias and penalties.
#[derive(Debug)]
pub(crate) struct Adjusted<'a> {
    /// Adjusted logits, `[rows, vocabulary]`.
    pub logits: Array,
    /// Rows with an adjustment.
    rows: Vec<(usize, &'a Adjustment)>,
    /// Token counts of the adjusted rows, `[adjusted rows, vocabulary]`. `None`: no row has
    /// penalties.
    counts: Option<Array>,
}

impl<'a> Adjusted<'a> {
    /// Adjusts `logits`, `[rows, vocabulary]`. `adjustments` has one entry per row. Lazy.
    pub(crate) fn new(
        logits: &Array,
        adjustments: impl Iterator<Item = Option<&'a Adjustment>>,
    ) -> Result<Self> {
        let (mut rows, mut plain) = (Vec::new(), Vec::new());
        for (row, adjustment) in adjustments.enumerate() {
            match adjustment {
                Some(adjustment) => rows.push((row, adjustment)),
                None => plain.push(row),
            }
        }
        if rows.is_empty() {
            return Ok(Self {
                logits: logits.clone(),
                rows,
                counts: None,
            });
        }
        let row_states: Vec<&Adjustment> = rows.iter().map(|(_, adjustment)| *adjustment).collect();
        if plain.is_empty() {
            let (logits, counts) = apply(logits, &row_states)?;
            return Ok(Self { logits, rows, counts });
        }
        let places: Vec<usize> = rows.iter().map(|(row, _)| *row).collect();
        let (changed, counts) = apply(&take_axis(logits, indices(&places), 0)?, &row_states)?;
        // Restores the order of the rows.
        let mut order = vec![0; rows.len() + plain.len()];
        for (place, row) in places.iter().chain(&plain).enumerate() {
            order[*row] = place;
        }
        let both = concatenate(&[changed, take_axis(logits, indices(&plain), 0)?], 0)?;
        Ok(Self {
            logits: take_axis(both, indices(&order), 0)?,
            rows,
            counts,
        })
    }

    /// Returns the states of all rows with penalties after `tokens`, `[rows]`, were sampled. Lazy.
    pub(crate) fn after(self, tokens: &Array) -> Result<Vec<(usize, Adjustment)>> {
        let Some(counts) = self.counts else {
            return Ok(Vec::new());
        };
        let places: Vec<usize> = self.rows.iter().map(|(row, _)| *row).collect();
        let sampled = take_axis(tokens, indices(&places), 0)?.expand_dims(-1)?;
        let vocabulary = ops::arange::<_, u32>(0, counts.dim(-1), None)?;
        let counts = counts.add(vocabulary.eq(sampled)?.as_dtype(Dtype::Float32)?)?;
        let row_counts = split_equal(&counts, counts.dim(0), 0)?;
        let states = self
            .rows
            .into_iter()
            .zip(row_counts)
            .filter_map(|((row, before), counts)| {
                let history = History {
                    counts,
                    ..before.history.clone()?
                };
                let after = Adjustment {
                    history: Some(history),
                    ..before.clone()
                };
                Some((row, after))
            });
        Ok(states.collect())
    }
}

/// Returns adjusted logits and token counts. For a row without a particular adjustment, the neutral
/// value of that adjustment leaves the logits unchanged to the bit.
fn apply(logits: &Array, rows: &[&Adjustment]) -> Result<(Array, Option<Array>)> {
    let zeros = ops::zeros_dtype(&[1, logits.dim(-1)], Dtype::Float32)?;
    let stack = |field: fn(&Adjustment) -> Option<&Array>| -> Result<Option<Array>> {
        if rows.iter().all(|row| field(row).is_none()) {
            return Ok(None);
        }
        let arrays: Vec<&Array> = rows.iter().map(|row| field(row).unwrap_or(&zeros)).collect();
        concatenate(&arrays, 0).map(Some)
    };
    let per_row =
        |value: fn(&Adjustment) -> f32| column(&rows.iter().map(|row| value(row)).collect::<Vec<f32>>());
    let any = |value: fn(&Adjustment) -> bool| rows.iter().any(|row| value(row));

    let mut logits = logits.clone();
    if let Some(bias) = stack(|row| row.bias.as_ref())? {
        logits = logits.add(bias)?;
    }
    let Some(counts) = stack(|row| Some(&row.history.as_ref()?.counts))? else {
        return Ok((logits, None));
    };
    let zero = Array::from_f32(0.0);
    if any(|row| row.repetition != 1.0)
        && let Some(prompt) = stack(|row| Some(&row.history.as_ref()?.prompt))?
    {
        let penalty = per_row(|row| row.repetition);
        let penalised = select(
            logits.gt(&zero)?,
            logits.divide(&penalty)?,
            logits.multiply(&penalty)?,
        )?;
        logits = select(counts.add(prompt)?.gt(&zero)?, penalised, logits)?;
    }
    if any(|row| row.frequency != 0.0) {
        logits = logits.subtract(counts.multiply(per_row(|row| row.frequency))?)?;
    }
    if any(|row| row.presence != 0.0) {
        let present = counts.gt(&zero)?.as_dtype(Dtype::Float32)?;
        logits = logits.subtract(present.multiply(per_row(|row| row.presence))?)?;
    }
    Ok((logits, Some(counts)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampling::choice::Choice;
    use crate::sampling::sampler::{Draw, Sampling};
    use rooflet_mlx as mlx;

    const VOCABULARY: usize = 12;

    fn any_penalties() -> impl Strategy<Value = Penalties> {
        let penalty = || prop_oneof![Just(0.0_f32), -2.0_f32..2.0];
        (
            proptest::collection::btree_map(0..VOCABULARY as u32, -4.0_f32..4.0, 0..3),
            penalty(),
            penalty(),
            prop_oneof![Just(1.0_f32), 0.5_f32..2.0],
        )
            .prop_map(|(bias, presence, frequency, repetition)| Penalties {
                bias,
                presence,
                frequency,
                repetition,
            })
    }

    /// Computes the formulas of the module documentation, one token at a time.
    fn expected(logits: &[f32], penalties: &Penalties, prompt: &[u32], answer: &[u32]) -> Vec<f32> {
        let adjusted = logits.iter().enumerate().map(|(token, logit)| {
            let token = token as u32;
            let mut logit = logit + penalties.bias.get(&token).unwrap_or(&0.0);
            let count = answer.iter().filter(|other| **other == token).count();
            if count > 0 || prompt.contains(&token) {
                logit = if logit > 0.0 {
                    logit / penalties.repetition
                } else {
                    logit * penalties.repetition
                };
            }
            logit - penalties.frequency * count as f32 - if count > 0 { penalties.presence } else { 0.0 }
        });
        adjusted.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Runs several greedy steps, some rows without adjustments, before reading any result.
        #[test]
        fn greedy_tokens_match_formulas(
            rows in proptest::collection::vec(
                (any_penalties(), proptest::collection::vec(0..VOCABULARY as u32, 1..4)), 1..5,
            ),
            steps in proptest::collection::vec(
                proptest::collection::vec(-3.0_f32..3.0, VOCABULARY * 5), 1..6,
            ),
        ) {
            let _mlx = mlx::exclusive();
            let count = rows.len();
            let samplings: Vec<Sampling> = rows
                .iter()
                .map(|(penalties, _)| Sampling {
                    temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, penalties: penalties.clone(), seed: 0,
                })
                .collect();
            let mut states: Vec<Option<Adjustment>> = rows
                .iter()
                .map(|(penalties, prompt)| Adjustment::new(penalties, prompt, VOCABULARY as i32))
                .collect();
            let mut sampled = Vec::new();
            for logits in &steps {
                let logits = Array::from_slice(&logits[..count * VOCABULARY], &[count as i32, VOCABULARY as i32]);
                let draws: Vec<Draw<'_>> = samplings
                    .iter()
                    .zip(&states)
                    .map(|(sampling, state)| Draw { sampling, adjustment: state.as_ref(), mask: None, logprobs: None, step: 0 })
                    .collect();
                let choice = Choice::submit(&logits, &draws).unwrap();
                for (row, state) in choice.adjustments {
                    states[row] = Some(state);
                }
                sampled.push(choice.tokens);
            }
            let mut answers = vec![Vec::new(); count];
            for (tokens, logits) in sampled.iter().zip(&steps) {
                for (row, token) in tokens.to_vec_exact::<u32>().unwrap().into_iter().enumerate() {
                    let (penalties, prompt) = &rows[row];
                    let logits = &logits[row * VOCABULARY..][..VOCABULARY];
                    let expected = expected(logits, penalties, prompt, &answers[row]);
                    let maximum = expected.iter().copied().fold(f32::MIN, f32::max);
                    prop_assert!(expected[token as usize] >= maximum - 1e-5, "{token} of {expected:?}");
                    answers[row].push(token);
                }
            }
        }
    }
}

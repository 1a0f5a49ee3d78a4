//! What a request changes about its logits before a token is chosen: a bias for some tokens,
//! penalties for those that have been. The counts live on the device, where they take a token that
//! has not been read yet. Rows are computed together and independently; one without a bias or
//! penalty is not computed here at all.
//!
//! The formulas: `logit + bias`; a token of prompt or answer has its logit divided by the
//! repetition penalty, or multiplied where it is below zero (Keskar et al. 2019, CTRL, section 4.1,
//! as transformers has it); then `- frequency × count - presence × (count > 0)` over the answer's
//! tokens (OpenAI's API reference).

use std::collections::BTreeMap;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::take_axis;
use rooflet_mlx::mlx_rs::ops::{self, concatenate, select, split_equal};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use crate::sampling::sampler::{column, indices};

/// What a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Penalties {
    /// By token.
    pub bias: BTreeMap<u32, f32>,
    /// 0 = none.
    pub presence: f32,
    /// 0 = none.
    pub frequency: f32,
    /// 1 = none.
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

/// One row's state.
#[derive(Debug, Clone)]
pub(crate) struct Adjustment {
    presence: f32,
    frequency: f32,
    repetition: f32,
    /// `[1, vocabulary]`.
    bias: Option<Array>,
    history: Option<History>,
}

/// Both `[1, vocabulary]`.
#[derive(Debug, Clone)]
struct History {
    /// How often each token has been chosen.
    counts: Array,
    /// 1 where a token is in the prompt.
    prompt: Array,
}

impl Adjustment {
    /// Before the first token; `None` where the request changes nothing.
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
        let counted = *presence != 0.0 || *frequency != 0.0 || *repetition != 1.0;
        let history = || History {
            counts: dense(vocabulary, std::iter::empty()),
            // Only repetition asks for it.
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
            history: counted.then(history),
        })
    }
}

/// `[1, vocabulary]`, zero where nothing is said. Every token is in the vocabulary.
fn dense(vocabulary: i32, values: impl Iterator<Item = (u32, f32)>) -> Array {
    let mut all = vec![0.0; vocabulary.unsigned_abs() as usize];
    for (token, value) in values {
        all[token as usize] = value;
    }
    Array::from_slice(&all, &[1, vocabulary])
}

/// Logits as a pass's rows have changed them.
#[derive(Debug)]
pub(crate) struct Adjusted<'a> {
    /// `[rows, vocabulary]`.
    pub logits: Array,
    /// Rows that changed theirs.
    rows: Vec<(usize, &'a Adjustment)>,
    /// Their counts, `[rows that changed theirs, vocabulary]`, where any of them counts.
    counts: Option<Array>,
}

impl<'a> Adjusted<'a> {
    /// `logits` are `[rows, vocabulary]`; `adjustments` has an entry for each row. Lazy.
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
        let of: Vec<&Adjustment> = rows.iter().map(|(_, adjustment)| *adjustment).collect();
        if plain.is_empty() {
            let (logits, counts) = apply(logits, &of)?;
            return Ok(Self { logits, rows, counts });
        }
        let places: Vec<usize> = rows.iter().map(|(row, _)| *row).collect();
        let (changed, counts) = apply(&take_axis(logits, indices(&places), 0)?, &of)?;
        // Back to the order of the rows.
        let mut back = vec![0; rows.len() + plain.len()];
        for (place, row) in places.iter().chain(&plain).enumerate() {
            back[*row] = place;
        }
        let both = concatenate(&[changed, take_axis(logits, indices(&plain), 0)?], 0)?;
        Ok(Self {
            logits: take_axis(both, indices(&back), 0)?,
            rows,
            counts,
        })
    }

    /// The rows' state when `tokens`, `[rows]`, have been chosen, of those whose state changes.
    /// Lazy.
    pub(crate) fn after(self, tokens: &Array) -> Result<Vec<(usize, Adjustment)>> {
        let Some(counts) = self.counts else {
            return Ok(Vec::new());
        };
        let places: Vec<usize> = self.rows.iter().map(|(row, _)| *row).collect();
        let chosen = take_axis(tokens, indices(&places), 0)?.expand_dims(-1)?;
        let vocabulary = ops::arange::<_, u32>(0, counts.dim(-1), None)?;
        let counts = counts.add(vocabulary.eq(chosen)?.as_dtype(Dtype::Float32)?)?;
        let each = split_equal(&counts, counts.dim(0), 0)?;
        let counted = self
            .rows
            .into_iter()
            .zip(each)
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
        Ok(counted.collect())
    }
}

/// Changed logits, and the rows' counts. A row that lacks one of the changes goes through it with
/// values that leave every bit as it is.
fn apply(logits: &Array, rows: &[&Adjustment]) -> Result<(Array, Option<Array>)> {
    let nothing = ops::zeros_dtype(&[1, logits.dim(-1)], Dtype::Float32)?;
    let stacked = |of: fn(&Adjustment) -> Option<&Array>| -> Result<Option<Array>> {
        if rows.iter().all(|row| of(row).is_none()) {
            return Ok(None);
        }
        let each: Vec<&Array> = rows.iter().map(|row| of(row).unwrap_or(&nothing)).collect();
        concatenate(&each, 0).map(Some)
    };
    let each =
        |value: fn(&Adjustment) -> f32| column(&rows.iter().map(|row| value(row)).collect::<Vec<f32>>());
    let any = |value: fn(&Adjustment) -> bool| rows.iter().any(|row| value(row));

    let mut logits = logits.clone();
    if let Some(bias) = stacked(|row| row.bias.as_ref())? {
        logits = logits.add(bias)?;
    }
    let Some(counts) = stacked(|row| Some(&row.history.as_ref()?.counts))? else {
        return Ok((logits, None));
    };
    let zero = Array::from_f32(0.0);
    if any(|row| row.repetition != 1.0)
        && let Some(prompt) = stacked(|row| Some(&row.history.as_ref()?.prompt))?
    {
        let penalty = each(|row| row.repetition);
        let penalised = select(
            logits.gt(&zero)?,
            logits.divide(&penalty)?,
            logits.multiply(&penalty)?,
        )?;
        logits = select(counts.add(prompt)?.gt(&zero)?, penalised, logits)?;
    }
    if any(|row| row.frequency != 0.0) {
        logits = logits.subtract(counts.multiply(each(|row| row.frequency))?)?;
    }
    if any(|row| row.presence != 0.0) {
        let present = counts.gt(&zero)?.as_dtype(Dtype::Float32)?;
        logits = logits.subtract(present.multiply(each(|row| row.presence))?)?;
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

    /// The formulas of the module's text, one token at a time.
    fn expected(logits: &[f32], penalties: &Penalties, prompt: &[u32], said: &[u32]) -> Vec<f32> {
        let adjusted = logits.iter().enumerate().map(|(token, logit)| {
            let token = token as u32;
            let mut logit = logit + penalties.bias.get(&token).unwrap_or(&0.0);
            let count = said.iter().filter(|other| **other == token).count();
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

        /// Greedy rows, some of which change nothing, over several steps that are not read between.
        #[test]
        fn rows_say_what_the_formulas_say(
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
            let mut chosen = Vec::new();
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
                chosen.push(choice.tokens);
            }
            let mut said = vec![Vec::new(); count];
            for (tokens, logits) in chosen.iter().zip(&steps) {
                for (row, token) in tokens.to_vec_exact::<u32>().unwrap().into_iter().enumerate() {
                    let (penalties, prompt) = &rows[row];
                    let logits = &logits[row * VOCABULARY..][..VOCABULARY];
                    let expected = expected(logits, penalties, prompt, &said[row]);
                    let most = expected.iter().copied().fold(f32::MIN, f32::max);
                    prop_assert!(expected[token as usize] >= most - 1e-5, "{token} of {expected:?}");
                    said[row].push(token);
                }
            }
        }
    }
}

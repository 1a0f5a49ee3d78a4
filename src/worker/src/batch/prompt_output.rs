//! Results of a prompt other than its KV cache: the log probabilities of its tokens, or the mean of
//! its hidden states. Both require that every token is computed.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use crate::batch::event::{Event, Piece, PromptScore, Score};
use crate::batch::step_error::StepError;
use crate::prompt::{Echo, PromptUse, ValidRequest};
use crate::sampling::logprobs::{Logprobs, TokenLogprobs};
use rooflet_decoder::Decoder;

/// Number of positions whose logits are in memory at the same time. The logits of a whole chunk
/// could need as much memory as the weights.
const SCORED_POSITIONS: usize = 16;

/// Results of a prompt, collected chunk by chunk.
#[derive(Debug)]
pub(crate) enum PromptOutput {
    /// Log probabilities of all tokens except the first, which has no predecessor.
    Scores {
        top: usize,
        logprobs: Vec<TokenLogprobs>,
        /// Rank of each of these tokens in the vocabulary, from 1. `None` if not requested.
        ranks: Option<Vec<u32>>,
    },
    /// Sum of the hidden states, `[hidden]` in float32; `None` before the first chunk.
    Sum(Option<Array>),
}

impl PromptOutput {
    /// Returns `None` if the request needs only the answer.
    pub(crate) fn new(request: &ValidRequest) -> Option<Self> {
        let echoed = match &request.prompt_use {
            PromptUse::Embed => return Some(Self::Sum(None)),
            PromptUse::Echo(_) => request.logprobs,
            PromptUse::Answer => None,
        };
        let top = echoed.max(request.prompt_logprobs)?;
        Some(Self::Scores {
            top,
            logprobs: Vec::with_capacity(request.prompt.len()),
            ranks: request.prompt_logprobs.map(|_| Vec::new()),
        })
    }

    /// Adds a chunk: its last hidden states, `[1, tokens, hidden]`, and the token after each of
    /// them, as far as the prompt has one. Waits for the results.
    pub(crate) fn add_chunk(
        &mut self,
        model: &Decoder,
        hidden: &Array,
        next: &[u32],
    ) -> std::result::Result<(), StepError> {
        match self {
            Self::Scores { top, logprobs, ranks } => {
                for (part, tokens) in next.chunks(SCORED_POSITIONS).enumerate() {
                    let logits = logits_of(model, hidden, part * SCORED_POSITIONS, tokens.len())?;
                    let targets = Array::from_slice(tokens, &[place(tokens.len())]);
                    let scored = Logprobs::new(&logits, &targets, &vec![Some(*top); tokens.len()])?;
                    let read = scored.map_or(Ok(Vec::new()), |scored| scored.read());
                    logprobs.extend(read?.into_iter().map(|(_, logprobs)| logprobs));
                    if let Some(ranks) = ranks {
                        ranks.extend(ranks_of(&logits, &targets)?);
                    }
                }
            }
            Self::Sum(sum) => {
                let chunk = model
                    .normed(hidden)?
                    .as_dtype(Dtype::Float32)?
                    .sum_axes(&[0, 1], false)?;
                let total = match sum.take() {
                    Some(before) => before.add(chunk)?,
                    None => chunk,
                };
                total.eval()?;
                *sum = Some(total);
            }
        }
        Ok(())
    }
}

fn place(at: usize) -> i32 {
    i32::try_from(at).expect("chunks are far shorter than i32::MAX")
}

/// Computes the logits after `count` hidden states from `from`, as `[count, vocabulary]`.
fn logits_of(model: &Decoder, hidden: &Array, from: usize, count: usize) -> Result<Array> {
    let range = place(from)..place(from + count);
    model.logits(&hidden.try_index((0, range, ..))?.expand_dims(1)?)
}

/// Returns the ranks of `targets` in each row of the logits: the number of tokens that are at least
/// as probable, as in vLLM.
fn ranks_of(logits: &Array, targets: &Array) -> std::result::Result<Vec<u32>, StepError> {
    let own = logits.take_along_axis(targets.expand_dims(-1)?, -1)?;
    let ranks = logits.ge(&own)?.as_dtype(Dtype::Uint32)?.sum_axes(&[-1], false)?;
    Ok(ranks.as_dtype(Dtype::Uint32)?.to_vec_exact()?)
}

/// Returns the events with the results of a prompt that the request asks for.
pub(crate) fn events(
    request: &ValidRequest,
    prompt: &[u32],
    output: Option<PromptOutput>,
) -> std::result::Result<Vec<Event>, StepError> {
    let (logprobs, ranks) = match output {
        Some(PromptOutput::Sum(Some(sum))) => {
            let sum: Vec<f32> = sum.to_vec_exact()?;
            if sum.iter().any(|value| !value.is_finite()) {
                return Err(StepError::NotFinite);
            }
            return Ok(vec![Event::Embedding(normalized(sum))]);
        }
        Some(PromptOutput::Scores { logprobs, ranks, .. }) => (logprobs, ranks),
        Some(PromptOutput::Sum(None)) | None => (Vec::new(), None),
    };
    if logprobs.iter().any(|logprobs| logprobs.logprob.is_nan()) {
        return Err(StepError::NotFinite);
    }
    let mut events = Vec::new();
    if let Some((top, ranks)) = request.prompt_logprobs.zip(ranks) {
        events.push(Event::Piece(Piece {
            prompt_scores: Some(prompt_scores(prompt, &logprobs, &ranks, top)),
            ..Piece::default()
        }));
    }
    if let PromptUse::Echo(echo) = &request.prompt_use {
        let logprobs = request.logprobs.map(|top| with_top(logprobs, top));
        events.push(Event::Piece(echoed(echo, prompt, logprobs)));
    }
    Ok(events)
}

/// Limits the number of most probable tokens.
fn with_top(mut logprobs: Vec<TokenLogprobs>, top: usize) -> Vec<TokenLogprobs> {
    for token in &mut logprobs {
        token.top.truncate(top);
    }
    logprobs
}

fn prompt_scores(prompt: &[u32], logprobs: &[TokenLogprobs], ranks: &[u32], top: usize) -> Vec<PromptScore> {
    let scored = logprobs.iter().zip(ranks).map(Some);
    let score = |(token, scored): (&u32, Option<(&TokenLogprobs, &u32)>)| PromptScore {
        token: *token,
        logprob: scored.map(|(logprobs, rank)| (logprobs.logprob, *rank)),
        top: scored.map_or_else(Vec::new, |(logprobs, _)| {
            logprobs.top.iter().take(top).copied().collect()
        }),
    };
    prompt
        .iter()
        .zip(std::iter::once(None).chain(scored))
        .map(score)
        .collect()
}

fn echoed(echo: &Echo, prompt: &[u32], logprobs: Option<Vec<TokenLogprobs>>) -> Piece {
    let score = |((token, offset), logprobs): ((&u32, &usize), Option<TokenLogprobs>)| {
        let (logprob, top) = match logprobs {
            Some(TokenLogprobs { logprob, top }) => (Some(logprob), top),
            None => (None, Vec::new()),
        };
        Score {
            token: *token,
            offset: *offset,
            logprob,
            top,
        }
    };
    let scores = logprobs.map(|logprobs| {
        let of_each = std::iter::once(None).chain(logprobs.into_iter().map(Some));
        prompt.iter().zip(&echo.offsets).zip(of_each).map(score).collect()
    });
    Piece {
        text: echo.text.clone(),
        tokens: 0,
        scores: scores.unwrap_or_default(),
        ..Piece::default()
    }
}

/// Scales the sum to length 1. The mean has the same direction as the sum. A zero vector stays
/// zero.
fn normalized(sum: Vec<f32>) -> Vec<f32> {
    let length = sum
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    sum.into_iter()
        .map(|value| (f64::from(value) * scale) as f32)
        .collect()
}

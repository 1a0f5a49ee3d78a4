//! Results of a prompt other than its KV cache: the log probabilities of its tokens, or the mean of
//! its hidden states. Both require that every token is computed.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use crate::batch::event::{Event, Piece, Score};
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
    },
    /// Sum of the hidden states, `[hidden]` in float32; `None` before the first chunk.
    Sum(Option<Array>),
}

impl PromptOutput {
    /// Returns `None` if the request needs only the answer.
    pub(crate) fn new(request: &ValidRequest) -> Option<Self> {
        match (&request.prompt_use, request.logprobs) {
            (PromptUse::Answer, _) | (PromptUse::Echo(_), None) => None,
            (PromptUse::Echo(_), Some(top)) => Some(Self::Scores {
                top,
                logprobs: Vec::with_capacity(request.prompt.len()),
            }),
            (PromptUse::Embed, _) => Some(Self::Sum(None)),
        }
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
            Self::Scores { top, logprobs } => {
                for (part, tokens) in next.chunks(SCORED_POSITIONS).enumerate() {
                    let scored = scored(model, hidden, part * SCORED_POSITIONS, tokens, *top)?;
                    let read = scored.map_or(Ok(Vec::new()), |scored| scored.read());
                    logprobs.extend(read?.into_iter().map(|(_, logprobs)| logprobs));
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

/// Computes the log probabilities of `tokens`, the first of which follows the hidden state at
/// `from`.
fn scored(
    model: &Decoder,
    hidden: &Array,
    from: usize,
    tokens: &[u32],
    top: usize,
) -> Result<Option<Logprobs>> {
    let place = |at: usize| i32::try_from(at).expect("chunks are far shorter than i32::MAX");
    let range = place(from)..place(from + tokens.len());
    let each = hidden.try_index((0, range, ..))?.expand_dims(1)?;
    let targets = Array::from_slice(tokens, &[place(tokens.len())]);
    Logprobs::new(&model.logits(&each)?, &targets, &vec![Some(top); tokens.len()])
}

/// Returns the event with the results of a prompt, if the request asks for any.
pub(crate) fn event(
    request: &ValidRequest,
    prompt: &[u32],
    output: Option<PromptOutput>,
) -> std::result::Result<Option<Event>, StepError> {
    match (&request.prompt_use, output) {
        (PromptUse::Echo(_), Some(PromptOutput::Scores { logprobs, .. }))
            if logprobs.iter().any(|logprobs| logprobs.logprob.is_nan()) =>
        {
            Err(StepError::NotFinite)
        }
        (PromptUse::Echo(echo), output) => {
            let logprobs = match output {
                Some(PromptOutput::Scores { logprobs, .. }) => Some(logprobs),
                Some(PromptOutput::Sum(_)) | None => None,
            };
            Ok(Some(Event::Piece(echoed(echo, prompt, logprobs))))
        }
        (PromptUse::Embed, Some(PromptOutput::Sum(Some(sum)))) => {
            let sum: Vec<f32> = sum.to_vec_exact()?;
            if sum.iter().any(|value| !value.is_finite()) {
                return Err(StepError::NotFinite);
            }
            Ok(Some(Event::Embedding(normalized(sum))))
        }
        (PromptUse::Answer | PromptUse::Embed, _) => Ok(None),
    }
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

//! Results of a prompt besides keys and values: the log probabilities of its tokens, or the mean of
//! its hidden states. Either needs every token to be computed.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use crate::batch::event::{Event, Piece, Score};
use crate::batch::step_error::StepError;
use crate::models::Decoder;
use crate::prompt::{Echo, PromptUse, ValidRequest};
use crate::sampling::logprobs::{Logprobs, TokenLogprobs};

/// Positions whose logits are in memory at the same time: a chunk's would be as large as the model.
const SCORED_AT_ONCE: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum PromptOutput {
    /// Of all tokens but the first, which follows nothing.
    Scores {
        top: usize,
        logprobs: Vec<TokenLogprobs>,
    },
    /// Of the hidden states, `[hidden]` in float32; `None` before the first chunk.
    Sum(Option<Array>),
}

impl PromptOutput {
    /// `None` where the prompt is read for the answer's sake only.
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

    /// Takes a chunk's last hidden states, `[1, tokens, hidden]`, and the tokens that follow each,
    /// as far as the prompt goes. Waits for what it needs of them.
    pub(crate) fn take(
        &mut self,
        model: &Decoder,
        hidden: &Array,
        next: &[u32],
    ) -> std::result::Result<(), StepError> {
        match self {
            Self::Scores { top, logprobs } => {
                for (part, tokens) in next.chunks(SCORED_AT_ONCE).enumerate() {
                    let scored = scored(model, hidden, part * SCORED_AT_ONCE, tokens, *top)?;
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

/// Logprobs of `tokens`, the first of which follows the hidden state at `from`.
fn scored(
    model: &Decoder,
    hidden: &Array,
    from: usize,
    tokens: &[u32],
    top: usize,
) -> Result<Option<Logprobs>> {
    let place = |at: usize| i32::try_from(at).expect("a chunk is far shorter than i32::MAX");
    let range = place(from)..place(from + tokens.len());
    let each = hidden.try_index((0, range, ..))?.expand_dims(1)?;
    let targets = Array::from_slice(tokens, &[place(tokens.len())]);
    Logprobs::new(&model.logits(&each)?, &targets, &vec![Some(top); tokens.len()])
}

/// Returns the event that carries the results of a prompt, if the request asks for any.
pub(crate) fn event(
    request: &ValidRequest,
    prompt: &[u32],
    output: Option<PromptOutput>,
) -> std::result::Result<Option<Event>, StepError> {
    match (&request.prompt_use, output) {
        (PromptUse::Echo(echo), output) => {
            let logprobs = match output {
                Some(PromptOutput::Scores { logprobs, .. }) => Some(logprobs),
                Some(PromptOutput::Sum(_)) | None => None,
            };
            Ok(Some(Event::Piece(echoed(echo, prompt, logprobs))))
        }
        (PromptUse::Embed, Some(PromptOutput::Sum(Some(sum)))) => {
            let sum: Vec<f32> = sum.to_vec_exact()?;
            Ok(Some(Event::Embedding(of_length_one(sum))))
        }
        (PromptUse::Answer | PromptUse::Embed, _) => Ok(None),
    }
}

fn echoed(echo: &Echo, prompt: &[u32], logprobs: Option<Vec<TokenLogprobs>>) -> Piece {
    let score = |((token, offset), logprobs): ((&u32, &usize), Option<TokenLogprobs>)| {
        let (logprob, top) = match logprobs {
            Some(TokenLogprobs { chosen, top }) => (Some(chosen), top),
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

/// The mean has the same direction as the sum. Zeros stay zeros.
fn of_length_one(sum: Vec<f32>) -> Vec<f32> {
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

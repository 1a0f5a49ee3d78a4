//! Chunks of chat completions and completions: `data: {json}` events, then `data: [DONE]`.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;

use super::{Frames, data_frame};
use crate::api::answers::StreamedAnswer;
use crate::api::scores::{self, TokenNames};
use crate::batch::event::{Done, Piece, Score};
use crate::prompt::Prompter;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response::logprobs::{ChatLogprobs, TextLogprobs};
use rooflet_inference_api::openai::response::{
    ChatChunk, ChatChunkChoice, Delta, Envelope, FinishReason, StopReason, TextChoice, TextChunk, Usage,
};
use rooflet_text::answer::AnswerParser;

/// Last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// API of the chunks.
#[derive(Debug)]
pub(crate) enum ChunkKind {
    /// Chat completions, with the parser for each choice.
    Chat(Box<AnswerParser>),
    Text,
}

/// Token usage in chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChunkUsage {
    Never,
    /// Usage in a separate last chunk, null in all other chunks.
    AtEnd,
    /// Current usage in every chunk.
    Continuous(Usage),
}

/// Tokens in chunks: logprobs and token ids.
#[derive(Debug, Default)]
pub(crate) struct ChunkTokens {
    /// Prompter with the tokenizer for token texts. `None`: the request has no logprobs.
    pub logprobs_prompter: Option<Arc<Prompter>>,
    /// True if logprobs name tokens by their ids.
    pub named_by_id: bool,
    /// Tokens of each prompt. `None`: the request does not ask for token ids.
    pub prompt_ids: Option<Vec<Vec<u32>>>,
    pub choices_per_prompt: usize,
}

impl ChunkTokens {
    fn names(&self) -> Option<TokenNames<'_>> {
        let prompter = self.logprobs_prompter.as_ref()?;
        Some(TokenNames {
            tokenizer: prompter.tokenizer(),
            by_id: self.named_by_id,
        })
    }
}

/// State of one choice.
#[derive(Debug, Clone, Default)]
struct Unsent {
    /// Scores that are not sent yet; only in chats.
    scores: Vec<Score>,
    /// Token ids that are not sent yet.
    ids: Vec<u32>,
    /// True if a chunk with the tokens of the prompt was sent.
    has_prompt: bool,
}

/// Frames of chat completions and completions.
pub(crate) struct ChunkFrames {
    /// Answers of chat choices. `None` for completions.
    answers: Option<Vec<StreamedAnswer>>,
    envelope: Envelope,
    usage: ChunkUsage,
    tokens: ChunkTokens,
    /// State of each choice.
    unsent: Vec<Unsent>,
}

impl ChunkFrames {
    pub(crate) fn new(
        kind: ChunkKind,
        choices: usize,
        envelope: Envelope,
        usage: ChunkUsage,
        tokens: ChunkTokens,
    ) -> Self {
        let answers = match kind {
            ChunkKind::Chat(parser) => Some(
                (0..choices)
                    .map(|_| StreamedAnswer::new(AnswerParser::clone(&parser)))
                    .collect(),
            ),
            ChunkKind::Text => None,
        };
        Self {
            answers,
            envelope,
            usage,
            tokens,
            unsent: vec![Unsent::default(); choices],
        }
    }

    /// Returns the logprobs of the tokens since the choice's last chunk. If the parser holds text
    /// back, they include tokens whose text is not sent yet.
    fn chat_logprobs(&mut self, index: usize) -> Option<ChatLogprobs> {
        let names = self.tokens.names()?;
        let logprobs = scores::chat_logprobs(names, self.unsent[index].scores.drain(..).as_slice().iter());
        (!logprobs.content.is_empty()).then_some(logprobs)
    }

    fn text_logprobs(&self, scores: &[Score]) -> Option<TextLogprobs> {
        Some(scores::text_logprobs(self.tokens.names()?, scores.iter()))
    }

    /// Returns the tokens of the choice's prompt for its first chunk, if the request asks for them.
    fn prompt_ids(&mut self, index: usize) -> Option<Vec<u32>> {
        let prompts = self.tokens.prompt_ids.as_ref()?;
        let is_first = !std::mem::replace(&mut self.unsent[index].has_prompt, true);
        let prompt = prompts.get(index / self.tokens.choices_per_prompt.max(1));
        prompt.filter(|_| is_first).cloned()
    }

    /// Returns the tokens since the choice's last chunk, if the request asks for them.
    fn token_ids(&mut self, index: usize) -> Option<Vec<u32>> {
        self.tokens.prompt_ids.as_ref()?;
        Some(std::mem::take(&mut self.unsent[index].ids))
    }

    /// Returns the `usage` member of all chunks except the last one.
    fn usage_so_far(&self) -> Option<Option<Usage>> {
        match self.usage {
            ChunkUsage::Never => None,
            ChunkUsage::AtEnd => Some(None),
            ChunkUsage::Continuous(usage) => Some(Some(usage)),
        }
    }

    /// Appends one chunk per delta.
    fn deltas(&mut self, index: usize, deltas: Vec<Delta>, out: &mut VecDeque<Bytes>) {
        for delta in deltas {
            out.push_back(self.chat_frame(index, delta, None, None));
        }
    }

    fn chat_frame(
        &mut self,
        index: usize,
        delta: Delta,
        finish_reason: Option<FinishReason>,
        stop_reason: Option<StopReason>,
    ) -> Bytes {
        let choice = ChatChunkChoice {
            index,
            delta,
            logprobs: self.chat_logprobs(index),
            finish_reason,
            stop_reason,
            token_ids: self.token_ids(index),
        };
        let prompt_token_ids = self.prompt_ids(index);
        data_frame(&ChatChunk {
            envelope: &self.envelope,
            choices: vec![choice],
            prompt_token_ids,
            usage: self.usage_so_far(),
        })
    }

    fn text_frame(&mut self, choice: TextChoice) -> Bytes {
        let choice = TextChoice {
            token_ids: self.token_ids(choice.index),
            prompt_token_ids: self.prompt_ids(choice.index),
            ..choice
        };
        data_frame(&TextChunk {
            envelope: &self.envelope,
            choices: vec![choice],
            usage: self.usage_so_far(),
        })
    }
}

impl Frames for ChunkFrames {
    fn begin(&mut self, out: &mut VecDeque<Bytes>) {
        if self.answers.is_none() {
            return;
        }
        for index in 0..self.unsent.len() {
            let delta = Delta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..Delta::default()
            };
            self.deltas(index, vec![delta], out);
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut VecDeque<Bytes>) {
        if let ChunkUsage::Continuous(usage) = &mut self.usage {
            *usage = usage.with_more(piece.tokens);
        }
        self.unsent[index].ids.extend(&piece.token_ids);
        match &mut self.answers {
            Some(answers) => {
                let deltas = answers[index].push(&piece);
                self.unsent[index].scores.extend(piece.scores);
                self.deltas(index, deltas, out);
            }
            // The last chunk has these token ids.
            None if piece.is_empty() => {}
            None => {
                let choice = TextChoice {
                    index,
                    logprobs: self.text_logprobs(&piece.scores),
                    text: piece.text,
                    ..TextChoice::default()
                };
                out.push_back(self.text_frame(choice));
            }
        }
    }

    fn end(&mut self, index: usize, done: Done, total: Usage, out: &mut VecDeque<Bytes>) {
        // The end-of-text token is not part of any piece.
        if let ChunkUsage::Continuous(usage) = &mut self.usage
            && usage.completion_tokens < total.completion_tokens
        {
            *usage = total;
        }
        match &mut self.answers {
            Some(answers) => {
                let deltas = answers[index].finish();
                let reason = answers[index].finish_reason(done.reason);
                self.deltas(index, deltas, out);
                let end = self.chat_frame(index, Delta::default(), Some(reason), done.stopped_by);
                out.push_back(end);
            }
            None => {
                let choice = TextChoice {
                    index,
                    finish_reason: Some(done.reason),
                    stop_reason: done.stopped_by,
                    ..TextChoice::default()
                };
                out.push_back(self.text_frame(choice));
            }
        }
    }

    fn close(&mut self, usage: Usage, out: &mut VecDeque<Bytes>) {
        if !matches!(self.usage, ChunkUsage::Never) {
            let answers = self.answers.iter().flatten();
            let reasoning_tokens = answers.map(StreamedAnswer::reasoning_tokens).sum();
            let usage = Some(Some(usage.with_reasoning_tokens(reasoning_tokens)));
            let envelope = &self.envelope;
            out.push_back(match self.answers {
                Some(_) => data_frame(&ChatChunk {
                    envelope,
                    choices: Vec::new(),
                    prompt_token_ids: None,
                    usage,
                }),
                None => data_frame(&TextChunk {
                    envelope,
                    choices: Vec::new(),
                    usage,
                }),
            });
        }
        out.push_back(Bytes::from_static(DONE));
    }

    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>) {
        out.push_back(data_frame(&err.body()));
        // Some clients read until this event even after an error. vLLM also sends it.
        out.push_back(Bytes::from_static(DONE));
    }
}

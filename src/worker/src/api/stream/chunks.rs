//! Chunks of chat completions and completions: `data: {json}` events, then `data: [DONE]`.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;

use super::{Frames, data_frame};
use crate::api::answers::StreamedAnswer;
use crate::api::scores;
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

/// Frames of chat completions and completions.
pub(crate) struct ChunkFrames {
    /// Answers of chat choices. `None` for completions.
    answers: Option<Vec<StreamedAnswer>>,
    envelope: Envelope,
    usage: ChunkUsage,
    /// Prompter with the tokenizer for token texts. `None`: the request has no logprobs.
    logprobs_prompter: Option<Arc<Prompter>>,
    /// Scores of each chat choice that are not sent yet.
    scores: Vec<Vec<Score>>,
}

impl ChunkFrames {
    pub(crate) fn new(
        kind: ChunkKind,
        choices: usize,
        envelope: Envelope,
        usage: ChunkUsage,
        logprobs_prompter: Option<Arc<Prompter>>,
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
            logprobs_prompter,
            scores: vec![Vec::new(); choices],
        }
    }

    /// Returns the logprobs of the tokens since the choice's last chunk. If the parser holds text
    /// back, they include tokens whose text is not sent yet.
    fn chat_logprobs(&mut self, index: usize) -> Option<ChatLogprobs> {
        let prompter = self.logprobs_prompter.as_ref()?;
        let logprobs = scores::chat_logprobs(
            prompter.tokenizer(),
            self.scores[index].drain(..).as_slice().iter(),
        );
        (!logprobs.content.is_empty()).then_some(logprobs)
    }

    fn text_logprobs(&self, scores: &[Score]) -> Option<TextLogprobs> {
        let prompter = self.logprobs_prompter.as_ref()?;
        Some(scores::text_logprobs(prompter.tokenizer(), scores.iter()))
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
        };
        data_frame(&ChatChunk {
            envelope: &self.envelope,
            choices: vec![choice],
            usage: self.usage_so_far(),
        })
    }

    fn text_frame(&self, choice: TextChoice) -> Bytes {
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
        for index in 0..self.scores.len() {
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
        match &mut self.answers {
            Some(answers) => {
                let deltas = answers[index].push(&piece);
                self.scores[index].extend(piece.scores);
                self.deltas(index, deltas, out);
            }
            None => out.push_back(self.text_frame(TextChoice {
                index,
                logprobs: self.text_logprobs(&piece.scores),
                text: piece.text,
                finish_reason: None,
                stop_reason: None,
            })),
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
            None => out.push_back(self.text_frame(TextChoice {
                index,
                text: String::new(),
                logprobs: None,
                finish_reason: Some(done.reason),
                stop_reason: done.stopped_by,
            })),
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

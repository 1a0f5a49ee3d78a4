//! Chat completions and completions in chunks: `data: {json}` for each, `data: [DONE]` at the end.

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

/// The mark at the end.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Whose chunks.
#[derive(Debug)]
pub(crate) enum Chunks {
    /// Each answer is taken apart.
    Chat(Box<AnswerParser>),
    Text,
}

/// What chunks tell of the tokens that were used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChunkUsage {
    Never,
    /// In a chunk of its own; null in the others.
    AtEnd,
    /// So much so far, in each.
    SoFar(Usage),
}

/// See the module's text.
pub(crate) struct ChunkFrames {
    /// Of a chat, one for each choice.
    answers: Option<Vec<StreamedAnswer>>,
    envelope: Envelope,
    usage: ChunkUsage,
    /// Spells tokens, where logprobs are asked for.
    logprobs_by: Option<Arc<Prompter>>,
    /// Scores of each choice of a chat that no chunk has had yet.
    scores: Vec<Vec<Score>>,
}

impl ChunkFrames {
    pub(crate) fn new(
        chunks: Chunks,
        choices: usize,
        envelope: Envelope,
        usage: ChunkUsage,
        logprobs_by: Option<Arc<Prompter>>,
    ) -> Self {
        let answers = match chunks {
            Chunks::Chat(parser) => Some(
                (0..choices)
                    .map(|_| StreamedAnswer::new(AnswerParser::clone(&parser)))
                    .collect(),
            ),
            Chunks::Text => None,
        };
        Self {
            answers,
            envelope,
            usage,
            logprobs_by,
            scores: vec![Vec::new(); choices],
        }
    }

    /// Of the tokens since the choice's last chunk; they may be more than its text, where some of
    /// that is held back.
    fn chat_logprobs(&mut self, index: usize) -> Option<ChatLogprobs> {
        let prompter = self.logprobs_by.as_ref()?;
        let logprobs = scores::of_chat(
            prompter.tokenizer(),
            self.scores[index].drain(..).as_slice().iter(),
        );
        (!logprobs.content.is_empty()).then_some(logprobs)
    }

    fn text_logprobs(&self, scores: &[Score]) -> Option<TextLogprobs> {
        let prompter = self.logprobs_by.as_ref()?;
        Some(scores::of_text(prompter.tokenizer(), scores.iter()))
    }

    /// What a chunk says of it that is not the last.
    fn usage_so_far(&self) -> Option<Option<Usage>> {
        match self.usage {
            ChunkUsage::Never => None,
            ChunkUsage::AtEnd => Some(None),
            ChunkUsage::SoFar(usage) => Some(Some(usage)),
        }
    }

    /// A chunk for each.
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
        if let ChunkUsage::SoFar(usage) = &mut self.usage {
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

    fn end(&mut self, index: usize, done: Done, ended: Usage, out: &mut VecDeque<Bytes>) {
        // The token that ends a text is none of its pieces.
        if let ChunkUsage::SoFar(usage) = &mut self.usage
            && usage.completion_tokens < ended.completion_tokens
        {
            *usage = ended;
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
        // Clients that read on to the mark would wait for it (vLLM sends it here, too).
        out.push_back(Bytes::from_static(DONE));
    }
}

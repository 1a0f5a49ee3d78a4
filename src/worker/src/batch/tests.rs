use std::time::Duration;

use camino::Utf8PathBuf;
use tokio::sync::mpsc;

use super::*;
use crate::batch::event::Event;
use crate::batch::job::Job;
use crate::batch::job::Queued;
use crate::batch::prefill::{Prefill, Prefilled};
use crate::batch::thinking::ThinkingBudget;
use crate::engine::queue_slot::QueueSlot;
use crate::prompt::{Echo, PromptUse};
use crate::prompt::{Prompter, ValidRequest};
use crate::sampling::adjustment::Penalties;
use crate::sampling::sampler::Sampling;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_inference_api::openai::request::Stopping;
use rooflet_mlx as mlx;
use rooflet_mlx::load::Weights;
use rooflet_mlx::mlx_rs::error::Exception;
use rooflet_model::config::FloatType;
use rooflet_text::reasoning::ReasoningMarkers;

/// Model with its tokenizer.
struct Subject {
    model: Decoder,
    prompter: Prompter,
    vocabulary: usize,
}

impl Subject {
    fn load(model: &str) -> Self {
        let path = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(model);
        let dir = ModelDir::inspect(&path).unwrap();
        let mut weights = Weights::open(&dir.weight_files, FloatType::F32).unwrap();
        Self {
            model: Decoder::load(&dir.shape, &mut weights).unwrap(),
            prompter: Prompter::load(&path, &dir.shape.config, 200).unwrap(),
            vocabulary: dir.shape.config.dimensions.vocabulary as usize,
        }
    }

    /// Returns a prefilled sequence and its first token.
    fn start(&self, id: u64, sampling: Sampling) -> (Sequence, Choice) {
        self.start_with(id, request(id, sampling))
    }

    fn start_with(&self, id: u64, request: ValidRequest) -> (Sequence, Choice) {
        let mut sequence = self.sequence_for(id, request, mpsc::channel(1).0);
        let mut read = |tokens| Prefill::new(&self.model, vec![(&mut sequence, tokens)], false);
        assert!(read(4).first_tokens.is_empty());
        let (_, first) = read(1000).first_tokens.pop().expect("the last chunk");
        (sequence, first)
    }

    fn sequence(&self, id: u64, sampling: Sampling) -> Sequence {
        self.sequence_for(id, request(id, sampling), mpsc::channel(1).0)
    }

    fn sequence_for(&self, id: u64, request: ValidRequest, events: mpsc::Sender<Event>) -> Sequence {
        let queued = Queued {
            id: RequestId(id),
            job: Job {
                request,
                slot: QueueSlot::shared(None).0,
                events,
                submitted: Clock::System.instant(),
                span: None,
            },
            bytes: 0,
            overtaken: 0,
            loading: Duration::ZERO,
        };
        Sequence::new(queued, &self.model, self.prompter.tokenizer())
    }
}

fn request(id: u64, sampling: Sampling) -> ValidRequest {
    ValidRequest {
        prompt: (0..5 + 9 * id as u32).map(|at| 3 + at * 11 % 200).collect(),
        prompt_use: PromptUse::Answer,
        max_tokens: 20 + id as usize,
        stopping: Stopping::default(),
        continues_prompt: false,
        shown_tokens: [].into(),
        constraint: None,
        thinking: None,
        sampling,
        logprobs: None,
        prompt_logprobs: None,
        returns_token_ids: false,
        priority: 0,
        is_first_choice: true,
        cache_salt: String::new(),
    }
}

fn sampling(id: u64) -> Sampling {
    Sampling {
        temperature: [0.0, 0.8, 1.3][id as usize % 3],
        top_p: [1.0, 0.9][id as usize % 2],
        top_k: [0, 0, 0, 12][id as usize % 4],
        min_p: [0.0, 0.0, 0.05][id as usize % 3],
        penalties: Penalties::default(),
        seed: id,
    }
}

/// Runs decode steps. Appends the tokens of each row and returns the largest number of rows of a
/// pass.
fn run(
    subject: &Subject,
    batch: &mut Batch,
    sequences: &mut [Sequence],
    tokens: &mut [Vec<u32>],
    steps: usize,
) -> usize {
    let mut most = 0;
    for _ in 0..steps {
        for step_token in batch.launch(&subject.model, sequences).read() {
            most = most.max(step_token.rows);
            tokens[step_token.id.0 as usize].push(step_token.token.unwrap());
        }
    }
    most
}

#[test]
fn tokens_do_not_depend_on_other_rows() {
    let _mlx = mlx::exclusive();
    for model in ["examples/models/guide", "e2e/fixtures/models/llama-4bit"] {
        let subject = Subject::load(model);
        let alone: Vec<Vec<u32>> = (0..7)
            .map(|id| {
                let (sequence, token) = subject.start(id, sampling(id));
                let mut batch = Batch::default();
                batch.join(vec![RequestId(id)], token);
                let mut tokens = vec![Vec::new(); 7];
                run(&subject, &mut batch, &mut [sequence], &mut tokens, 40);
                assert!(batch.is_empty(), "every token is read");
                assert_eq!(tokens[id as usize].len(), 20 + id as usize, "exactly max_tokens");
                tokens.swap_remove(id as usize)
            })
            .collect();

        let mut batch = Batch::default();
        let (mut sequences, mut tokens) = (Vec::new(), vec![Vec::new(); 7]);
        let mut most = 0;
        // The order differs from the order of the ids.
        for id in [3, 0, 6, 1, 5, 2, 4] {
            let (sequence, token) = subject.start(id, sampling(id));
            batch.join(vec![RequestId(id)], token);
            sequences.push(sequence);
            most = most.max(run(&subject, &mut batch, &mut sequences, &mut tokens, 2));
        }
        // One row leaves with a pending token.
        sequences.retain(|sequence| sequence.id() != RequestId(4));
        most = most.max(run(&subject, &mut batch, &mut sequences, &mut tokens, 40));
        assert!(batch.is_empty());
        assert_eq!(most, 7, "one pass covers all rows");
        for id in 0..7 {
            let got = &tokens[id];
            assert!(
                alone[id].starts_with(got),
                "{model}: {got:?}, alone {:?}",
                alone[id]
            );
            assert!(id == 4 || got.len() == alone[id].len());
        }
    }
}

/// Only the sampling of a constrained row waits for the previous token.
#[test]
fn constrained_rows_share_the_pass() {
    const CLOSE: u32 = 2;
    const MARKERS: ReasoningMarkers = ReasoningMarkers {
        open: "<think>",
        close: "</think>",
    };
    let _mlx = mlx::exclusive();
    for model in ["examples/models/guide", "e2e/fixtures/models/llama-4bit"] {
        let subject = Subject::load(model);
        let start = |id| {
            let budget =
                (id % 2 == 1).then(|| ThinkingBudget::new(5, MARKERS, &[CLOSE], subject.vocabulary, true));
            let request = ValidRequest {
                thinking: budget,
                ..request(id, sampling(id))
            };
            subject.start_with(id, request)
        };
        let decode = |ids: &[u64]| {
            let (mut batch, mut sequences) = (Batch::default(), Vec::new());
            for id in ids {
                let (sequence, first) = start(*id);
                batch.join(vec![RequestId(*id)], first);
                sequences.push(sequence);
            }
            let (mut tokens, mut passes) = (vec![Vec::new(); 4], Vec::new());
            for _ in 0..40 {
                for StepToken { id, token, rows, .. } in batch.launch(&subject.model, &mut sequences).read() {
                    // The row may have ended while this token was pending.
                    let Some(row) = sequences.iter_mut().find(|row| row.id() == id) else {
                        continue;
                    };
                    let token = token.unwrap();
                    tokens[id.0 as usize].push(token);
                    passes.push(rows);
                    let now = || Clock::System.instant();
                    let done = row.push_token(token, None, rows, subject.prompter.tokenizer(), now);
                    if done.unwrap().is_some() {
                        sequences.retain(|row| row.id() != id);
                    }
                }
                assert!(batch.launch_after_read(&subject.model, &mut sequences).is_empty());
            }
            assert!(batch.is_empty());
            (tokens, passes)
        };
        let (together, passes) = decode(&[0, 1, 2, 3]);
        assert!(
            passes.iter().filter(|rows| **rows == 4).count() >= 4 * 5,
            "{passes:?}"
        );
        for id in 0..4 {
            let (alone, _) = decode(&[id]);
            assert_eq!(together[id as usize], alone[id as usize], "{model}: {id}");
            assert!(id % 2 == 0 || alone[id as usize].contains(&CLOSE));
        }
    }
}

/// A cache of another model's shape cannot be extended.
#[test]
fn failing_row_does_not_end_other_rows() {
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let (other, _) = Subject::load("e2e/fixtures/models/qwen3").start(0, sampling(0));
    let mut other = Some(other);
    let mut batch = Batch::default();
    let (mut sequences, mut first) = (Vec::new(), Vec::new());
    for id in 0..3 {
        let (sequence, token) = subject.start(id, sampling(id));
        first.push(token.tokens.item_exact::<u32>());
        batch.join(vec![RequestId(id)], token);
        sequences.push(sequence);
    }
    std::mem::swap(
        sequences[1].cache_mut(),
        other.take().expect("the other sequence").cache_mut(),
    );
    let (mut failed, mut read) = (Vec::new(), vec![Vec::new(); 3]);
    for _ in 0..40 {
        for step_token in batch.launch(&subject.model, &mut sequences).read() {
            match step_token.token {
                Ok(token) => read[step_token.id.0 as usize].push(token),
                Err(err) => failed.push((step_token.id, err.to_string())),
            }
        }
        sequences.retain(|sequence| !failed.iter().any(|(id, _)| *id == sequence.id()));
    }
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, RequestId(1));
    for id in [0, 2] {
        let (sequence, token) = subject.start(id, sampling(id));
        let mut batch = Batch::default();
        batch.join(vec![RequestId(id)], token);
        let mut alone = vec![Vec::new(); 3];
        run(&subject, &mut batch, &mut [sequence], &mut alone, 40);
        assert_eq!(read[id as usize], alone[id as usize]);
    }
}

#[test]
fn prompts_prefilled_together_have_the_same_first_tokens() {
    let _mlx = mlx::exclusive();
    for model in ["examples/models/guide", "e2e/fixtures/models/llama-4bit"] {
        let subject = Subject::load(model);
        let alone: Vec<u32> = (0..7)
            .map(|id| subject.start(id, sampling(id)).1.tokens.item_exact())
            .collect();
        let mut sequences: Vec<Sequence> = (0..7).map(|id| subject.sequence(id, sampling(id))).collect();
        // The longer prompts need a second pass.
        let rows = sequences.iter_mut().map(|sequence| (sequence, 30));
        let Prefill {
            outcomes,
            mut first_tokens,
            ..
        } = Prefill::new(&subject.model, rows.collect(), false);
        let partly = outcomes
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Ok(Prefilled::Partial)));
        assert_eq!(partly.map(|(id, _)| id.0).collect::<Vec<_>>(), [3, 4, 5, 6]);
        let rest = sequences.iter_mut().skip(3).map(|sequence| (sequence, 30));
        first_tokens.extend(Prefill::new(&subject.model, rest.collect(), true).first_tokens);
        let tokens = first_tokens.into_iter().flat_map(|(ids, choice)| {
            let tokens: Vec<u32> = choice.tokens.to_vec_exact().unwrap();
            ids.into_iter().map(|id| id.0).zip(tokens)
        });
        let tokens: Vec<(u64, u32)> = tokens.collect();
        assert_eq!(tokens, (0..7).zip(alone).collect::<Vec<_>>(), "{model}");
    }
}

/// A cache of another model's shape cannot be extended.
#[test]
fn failing_prompt_does_not_end_other_prompts() {
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let mut sequences: Vec<Sequence> = (0..3).map(|id| subject.sequence(id, sampling(id))).collect();
    let (mut other, _) = Subject::load("e2e/fixtures/models/qwen3").start(0, sampling(0));
    std::mem::swap(sequences[1].cache_mut(), other.cache_mut());
    let mut read = |tokens| {
        let rows = sequences.iter_mut().map(|sequence| (sequence, tokens));
        Prefill::new(&subject.model, rows.collect(), true)
    };
    let together = read(1000);
    let again = |(_, outcome): &(RequestId, _)| matches!(outcome, Ok(Prefilled::Retry));
    assert!(
        together.first_tokens.is_empty() && together.outcomes.iter().all(again),
        "{together:?}"
    );
    // Each prompt is computed by itself, from the beginning.
    let alone = read(1000);
    let tokens = alone
        .first_tokens
        .iter()
        .map(|(ids, choice)| (ids[0], choice.tokens.item_exact()));
    let expected = (0..3).map(|id| {
        (
            RequestId(id),
            subject.start(id, sampling(id)).1.tokens.item_exact::<u32>(),
        )
    });
    assert_eq!(tokens.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// The pass fails afterwards, and the prompt is prefilled again.
#[test]
fn echo_is_sent_once() {
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let (events_tx, mut events) = mpsc::channel(9);
    let echo = PromptUse::Echo(Echo {
        text: "abcde".to_owned(),
        offsets: (0..5).collect(),
    });
    let request = ValidRequest {
        prompt_use: echo,
        ..request(0, sampling(0))
    };
    let mut sequence = subject.sequence_for(0, request, events_tx);
    for _ in 0..2 {
        assert!(sequence.end_prompt().unwrap().is_none());
        sequence.restart_isolated(&subject.model);
    }
    assert!(matches!(events.try_recv(), Ok(Event::Piece(piece)) if piece.text == "abcde"));
    assert!(events.try_recv().is_err());
}

const STOPPED: &str = "[METAL] Command buffer execution failed: Caused GPU Timeout Error \
    (00000002:kIOGPUCommandBufferCallbackErrorTimeout).";

/// Returns the outcomes of a failed pass over these sequences, and whether the failure reduces
/// later chunks.
fn fail(
    subject: &Subject,
    sequences: &mut [Sequence],
    why: &str,
) -> (Vec<std::result::Result<Prefilled, String>>, bool) {
    let mut prefill = Prefill::default();
    let mut rows: Vec<_> = sequences.iter_mut().map(|sequence| (sequence, 4)).collect();
    let err = StepError::from(Exception::custom(why));
    prefill.failed(&subject.model, &mut rows, err);
    let outcomes = prefill.outcomes.into_iter();
    let outcomes = outcomes.map(|(_, outcome)| outcome.map_err(|err| err.to_string()));
    (outcomes.collect(), prefill.interrupted)
}

#[test]
fn prompt_whose_command_was_stopped_is_repeated_once() {
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let answer = |sequence: &mut Sequence, first: Choice| {
        let mut batch = Batch::default();
        batch.join(vec![sequence.id()], first);
        let mut tokens = vec![Vec::new(); 2];
        run(
            &subject,
            &mut batch,
            std::slice::from_mut(sequence),
            &mut tokens,
            5,
        );
        tokens.swap_remove(1)
    };
    let (mut undisturbed, first) = subject.start(1, sampling(0));
    let expect = answer(&mut undisturbed, first);
    let mut sequence = subject.sequence(1, sampling(0));
    // The first chunk is computed, the second one is stopped.
    Prefill::new(&subject.model, vec![(&mut sequence, 4)], false);
    let stopped = fail(&subject, std::slice::from_mut(&mut sequence), STOPPED);
    assert!(matches!(stopped, (outcomes, true) if matches!(outcomes[..], [Ok(Prefilled::Retry)])));
    assert!(sequence.prompt.prefilled() == 0 && sequence.prompt.is_isolated());
    // The second attempt computes the same answer in smaller chunks.
    Prefill::new(&subject.model, vec![(&mut sequence, 1)], false);
    let mut last = Prefill::new(&subject.model, vec![(&mut sequence, 1000)], false);
    let (_, first) = last.first_tokens.pop().expect("the last chunk");
    let repeated = answer(&mut sequence, first);
    assert!(
        repeated.len() == 5 && repeated == expect,
        "{repeated:?} {expect:?}"
    );
    // A second stop ends the request.
    let (outcomes, reduced) = fail(&subject, std::slice::from_mut(&mut sequence), STOPPED);
    assert!(
        reduced && matches!(&outcomes[..], [Err(err)] if err.contains("GPU Timeout")),
        "{outcomes:?}"
    );
}

#[test]
fn repeated_prompt_has_the_results_of_one_attempt() {
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let results = |request: &dyn Fn() -> ValidRequest, is_stopped: bool| {
        let (events_tx, mut events) = mpsc::channel(9);
        let mut sequence = subject.sequence_for(1, request(), events_tx);
        Prefill::new(&subject.model, vec![(&mut sequence, 4)], false);
        if is_stopped {
            fail(&subject, std::slice::from_mut(&mut sequence), STOPPED);
            Prefill::new(&subject.model, vec![(&mut sequence, 4)], false);
        }
        Prefill::new(&subject.model, vec![(&mut sequence, 1000)], false);
        events.try_recv().unwrap()
    };
    let embedded = || ValidRequest {
        prompt_use: PromptUse::Embed,
        max_tokens: 0,
        ..request(1, sampling(0))
    };
    let scored = || ValidRequest {
        prompt_logprobs: Some(1),
        ..request(1, sampling(0))
    };
    let requests: [&dyn Fn() -> ValidRequest; 2] = [&embedded, &scored];
    for request in requests {
        assert_eq!(results(request, true), results(request, false));
    }
}

#[test]
fn other_failures_of_one_prompt_are_not_repeated() {
    const FAILED: &str = "[METAL] Command buffer execution failed: Insufficient Memory \
        (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)";
    let _mlx = mlx::exclusive();
    let subject = Subject::load("examples/models/guide");
    let mut sequences = [0, 1].map(|id| subject.sequence(id, sampling(0)));
    let (outcomes, reduced) = fail(&subject, &mut sequences[..1], FAILED);
    assert!(!reduced && matches!(outcomes[..], [Err(_)]), "{outcomes:?}");
    // Of several prompts, only one may be the cause.
    let (outcomes, reduced) = fail(&subject, &mut sequences, FAILED);
    assert!(
        !reduced && matches!(outcomes[..], [Ok(Prefilled::Retry), Ok(Prefilled::Retry)]),
        "{outcomes:?}"
    );
}

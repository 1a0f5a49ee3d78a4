//! Benchmark matrix: every combination of prompt length, prefix cache state, concurrency and
//! streaming.

use std::fmt;

use serde::Serialize;

/// State of the server's prefix cache for a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PromptState {
    /// Not cached: the prompt was never sent before.
    Cold,
    /// Cached on disk only: the prompt was answered before, and other prompts since then.
    Warm,
    /// Cached on disk only, after a restart of the server.
    Restart,
    /// Cached in memory: the prompt was answered immediately before.
    Hot,
}

impl PromptState {
    /// Returns true if the state requires a server that the benchmark starts itself, with a prefix
    /// cache on disk.
    pub fn needs_files(self) -> bool {
        match self {
            Self::Warm | Self::Restart => true,
            Self::Cold | Self::Hot => false,
        }
    }
}

impl fmt::Display for PromptState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Restart => "restart",
            Self::Hot => "hot",
        })
    }
}

/// Whole benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Matrix {
    /// Prompt lengths in tokens.
    pub contexts: Vec<u32>,
    pub states: Vec<PromptState>,
    /// Numbers of concurrent requests.
    pub concurrency: Vec<u32>,
    /// Streamed answers (true), complete answers (false), or both.
    pub streaming: Vec<bool>,
    pub runs: u32,
    /// Tokens requested for each answer.
    pub tokens: u32,
}

/// Combination of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    pub context_tokens: u32,
    pub state: PromptState,
    pub concurrency: u32,
    pub streaming: bool,
}

impl Matrix {
    /// Returns the matrix of a published study of prefix caches: prompts of 1k to 32k tokens, cold,
    /// warm and hot, three runs.
    pub fn cache_study() -> Self {
        Self {
            contexts: [1, 2, 4, 8, 16, 32].map(|k| k * 1024).to_vec(),
            states: vec![PromptState::Cold, PromptState::Warm, PromptState::Hot],
            concurrency: vec![1],
            streaming: vec![true],
            runs: 3,
            tokens: 64,
        }
    }

    /// Returns all combinations. Short prompts come first, so that the first results appear early.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &context_tokens in &self.contexts {
            for &state in &self.states {
                for &concurrency in &self.concurrency {
                    for &streaming in &self.streaming {
                        cells.push(Cell {
                            context_tokens,
                            state,
                            concurrency,
                            streaming,
                        });
                    }
                }
            }
        }
        cells
    }
}

impl Cell {
    /// Estimates the duration of the cell's requests to one target, in seconds. `prefill` and
    /// `decode` are the tokens per second of the trial. Concurrent requests are assumed to share
    /// the machine without any gain from batching.
    pub fn seconds(&self, matrix: &Matrix, prefill: f64, decode: f64) -> f64 {
        let prefill_time = f64::from(self.context_tokens) / prefill;
        let decode_time = f64::from(matrix.tokens) / decode;
        let runs = f64::from(matrix.runs);
        let of_one = match self.state {
            PromptState::Cold => runs * (prefill_time + decode_time),
            // Each prompt is prefilled once before the runs.
            PromptState::Hot | PromptState::Restart => prefill_time + runs * decode_time,
            // A second prompt is prefilled as well.
            PromptState::Warm => 2.0 * prefill_time + runs * decode_time,
        };
        f64::from(self.concurrency) * of_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_contain_every_combination_once() {
        let mut matrix = Matrix::cache_study();
        matrix.concurrency = vec![1, 4];
        matrix.streaming = vec![true, false];
        let cells = matrix.cells();
        assert_eq!(cells.len(), 6 * 3 * 2 * 2);
        for (at, cell) in cells.iter().enumerate() {
            assert!(!cells[..at].contains(cell), "{cell:?}");
        }
    }

    #[test]
    fn cold_run_prefills_its_prompt_every_time() {
        let matrix = Matrix {
            tokens: 10,
            ..Matrix::cache_study()
        };
        let seconds = |state| {
            let cell = Cell {
                context_tokens: 1000,
                state,
                concurrency: 2,
                streaming: true,
            };
            cell.seconds(&matrix, 100.0, 5.0)
        };
        // 10 s of prefill, 2 s of decoding; 3 runs of 2 requests.
        assert_eq!(seconds(PromptState::Cold), 72.0);
        assert_eq!(seconds(PromptState::Hot), 32.0);
        assert_eq!(seconds(PromptState::Warm), 52.0);
    }
}

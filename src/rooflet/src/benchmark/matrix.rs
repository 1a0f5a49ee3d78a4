//! What is measured: every combination of prompt length, state of the prefix cache, concurrency and kind of answer.

use std::fmt;

use serde::Serialize;

/// What the server has of a prompt when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PromptState {
    /// Nothing: no such prompt was sent before.
    Cold,
    /// Its keys and values in files only: it was answered before, and others since then.
    Warm,
    /// The same, and the server was started anew.
    Restart,
    /// Its keys and values in memory: the same prompt was answered just before.
    Hot,
}

impl PromptState {
    /// Whether the server must be one that is started here, with a directory for its prefixes.
    pub(crate) fn needs_files(self) -> bool {
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

/// The whole benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Matrix {
    /// Prompts, in tokens.
    pub(crate) contexts: Vec<u32>,
    pub(crate) states: Vec<PromptState>,
    /// Requests sent at the same time.
    pub(crate) concurrency: Vec<u32>,
    /// Whether answers are streamed.
    pub(crate) streaming: Vec<bool>,
    pub(crate) runs: u32,
    /// Tokens asked for in each answer.
    pub(crate) tokens: u32,
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cell {
    pub(crate) context_tokens: u32,
    pub(crate) state: PromptState,
    pub(crate) concurrency: u32,
    pub(crate) streaming: bool,
}

impl Matrix {
    /// The shape of a published study of prefix caches: prompts of 1k to 32k tokens, cold, warm and hot, three runs.
    pub(crate) fn cache_study() -> Self {
        Self {
            contexts: [1, 2, 4, 8, 16, 32].map(|k| k * 1024).to_vec(),
            states: vec![PromptState::Cold, PromptState::Warm, PromptState::Hot],
            concurrency: vec![1],
            streaming: vec![true],
            runs: 3,
            tokens: 64,
        }
    }

    /// The shortest prompts first, so that something is seen early.
    pub(crate) fn cells(&self) -> Vec<Cell> {
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
    /// Seconds that its requests take one target: `prefill` and `decode` in tokens per second, as seen in a trial. Requests that
    /// are sent together are taken to share the machine, not to help one another: what comes of batching is the surprise.
    pub(crate) fn seconds(&self, matrix: &Matrix, prefill: f64, decode: f64) -> f64 {
        let read = f64::from(self.context_tokens) / prefill;
        let said = f64::from(matrix.tokens) / decode;
        let runs = f64::from(matrix.runs);
        let of_one = match self.state {
            PromptState::Cold => runs * (read + said),
            // Each prompt is read once before.
            PromptState::Hot | PromptState::Restart => read + runs * said,
            // And another one, too.
            PromptState::Warm => 2.0 * read + runs * said,
        };
        f64::from(self.concurrency) * of_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once() {
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
    fn a_cold_run_reads_its_prompt_every_time() {
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
        // 10 s to read, 2 s to answer; 3 runs of 2 requests.
        assert_eq!(seconds(PromptState::Cold), 72.0);
        assert_eq!(seconds(PromptState::Hot), 32.0);
        assert_eq!(seconds(PromptState::Warm), 52.0);
    }
}

//! Results per cell: figures of every target, and the ratio of the second target to the first.

use std::collections::BTreeMap;

use serde::Serialize;

use super::matrix::{Cell, Matrix};
use super::sample::{Conditions, Sample, Taint};
use super::statistics::{Estimate, Ratio, estimate, ratio};
use rooflet_base::quantile::{median, nearest};

/// Result of one target in one run of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    pub samples: Vec<Sample>,
    /// Errors of failed requests.
    pub failures: Vec<String>,
    /// Time from the first request to the end of the last answer.
    pub seconds: f64,
    pub conditions: Conditions,
}

/// Measured quantity of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Metric {
    TimeToFirstTokenSeconds,
    DecodeTokensPerSecond,
    TotalSeconds,
    /// Tokens per second of all requests of a run together.
    ThroughputTokensPerSecond,
}

/// Quantiles of one metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    pub median: Estimate,
    pub p95: Estimate,
    pub p99: Estimate,
    pub samples: usize,
    /// Number of rounds that the samples come from.
    pub rounds: usize,
}

/// Result of one target in all runs of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetFigures {
    /// Median of the token counts that the server reports.
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    /// Metrics, without impossible answers.
    pub metrics: BTreeMap<Metric, Quantiles>,
    /// Number of answers per taint.
    pub taints: BTreeMap<Taint, usize>,
    pub failures: Vec<String>,
    pub samples: Vec<Sample>,
}

/// Result of one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellReport {
    #[serde(flatten)]
    pub cell: Cell,
    /// Results in the order of the targets.
    pub targets: Vec<TargetFigures>,
    /// Ratio of the second target to the first. Empty with one target.
    pub ratios: BTreeMap<Metric, Ratio>,
}

impl Metric {
    pub const ALL: [Self; 4] = [
        Self::TimeToFirstTokenSeconds,
        Self::DecodeTokensPerSecond,
        Self::TotalSeconds,
        Self::ThroughputTokensPerSecond,
    ];

    pub fn more_is_better(self) -> bool {
        match self {
            Self::TimeToFirstTokenSeconds | Self::TotalSeconds => false,
            Self::DecodeTokensPerSecond | Self::ThroughputTokensPerSecond => true,
        }
    }

    fn values(self, round: &Round, samples: &[&Sample]) -> Vec<f64> {
        let of_each = |value: fn(&Sample) -> Option<f64>| samples.iter().filter_map(|s| value(s)).collect();
        match self {
            Self::TimeToFirstTokenSeconds => of_each(|sample| sample.time_to_first_token_seconds),
            Self::DecodeTokensPerSecond => of_each(Sample::decode_tokens_per_second),
            Self::TotalSeconds => of_each(|sample| Some(sample.total_seconds)),
            Self::ThroughputTokensPerSecond => {
                let tokens: u64 = samples.iter().map(|sample| sample.completion_tokens).sum();
                // Part of the round's time belongs to answers that are excluded.
                let whole = samples.len() == round.samples.len() && round.failures.is_empty();
                if whole && tokens > 0 && round.seconds > 0.0 {
                    vec![tokens as f64 / round.seconds]
                } else {
                    Vec::new()
                }
            }
        }
    }
}

impl CellReport {
    /// Creates the report from the rounds of each target, in the same order for all targets.
    pub fn new(matrix: &Matrix, cell: Cell, rounds: &[Vec<Round>]) -> Self {
        let targets: Vec<TargetFigures> = rounds
            .iter()
            .map(|rounds| TargetFigures::new(matrix, &cell, rounds))
            .collect();
        let mut ratios = BTreeMap::new();
        if let [first, second] = rounds {
            for metric in Metric::ALL {
                let middle = |round: &Round| median(metric.values(round, &possible(matrix, &cell, round)));
                let pairs: Vec<(f64, f64)> = first
                    .iter()
                    .zip(second)
                    .filter_map(|(first, second)| middle(first).zip(middle(second)))
                    .collect();
                ratios.extend(ratio(&pairs).map(|ratio| (metric, ratio)));
            }
        }
        Self {
            cell,
            targets,
            ratios,
        }
    }

    pub fn has_failures(&self) -> bool {
        self.targets.iter().any(|target| !target.failures.is_empty())
    }

    pub fn has_impossible(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.taints.contains_key(&Taint::Impossible))
    }
}

/// Answers of a round that do not exceed the physical limit.
fn possible<'a>(matrix: &Matrix, cell: &Cell, round: &'a Round) -> Vec<&'a Sample> {
    let is_possible = |sample: &&Sample| {
        !sample
            .taints(cell, matrix.tokens, &round.conditions)
            .contains(&Taint::Impossible)
    };
    round.samples.iter().filter(is_possible).collect()
}

impl TargetFigures {
    fn new(matrix: &Matrix, cell: &Cell, rounds: &[Round]) -> Self {
        let mut metrics = BTreeMap::new();
        for metric in Metric::ALL {
            let values: Vec<Vec<f64>> = rounds
                .iter()
                .map(|round| metric.values(round, &possible(matrix, cell, round)))
                .filter(|values| !values.is_empty())
                .collect();
            let at = |fraction| estimate(&values, fraction);
            if let (Some(median), Some(p95), Some(p99)) = (at(0.5), at(0.95), at(0.99)) {
                metrics.insert(
                    metric,
                    Quantiles {
                        median,
                        p95,
                        p99,
                        samples: values.iter().map(Vec::len).sum(),
                        rounds: values.len(),
                    },
                );
            }
        }
        let mut taints = BTreeMap::new();
        for round in rounds {
            for sample in &round.samples {
                for taint in sample.taints(cell, matrix.tokens, &round.conditions) {
                    *taints.entry(taint).or_default() += 1;
                }
            }
        }
        let samples: Vec<Sample> = rounds.iter().flat_map(|round| round.samples.clone()).collect();
        let middle = |count: fn(&Sample) -> Option<u64>| {
            let mut counts: Vec<u64> = samples.iter().filter_map(count).collect();
            counts.sort_unstable();
            nearest(&counts, 0.5)
        };
        Self {
            prompt_tokens: middle(|sample| sample.prompt_tokens),
            cached_tokens: middle(|sample| sample.cached_tokens),
            metrics,
            taints,
            failures: rounds.iter().flat_map(|round| round.failures.clone()).collect(),
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PromptState;

    fn sample(first: f64, total: f64) -> Sample {
        Sample {
            prompt_tokens: Some(100),
            cached_tokens: Some(0),
            completion_tokens: 11,
            counted_pieces: false,
            reasoning_tokens: 0,
            reads: 11,
            first_tokens: 1,
            time_to_first_token_seconds: Some(first),
            total_seconds: total,
        }
    }

    fn round(samples: Vec<Sample>, ceiling: Option<f64>) -> Round {
        Round {
            samples,
            failures: Vec::new(),
            seconds: 2.0,
            conditions: Conditions {
                ceiling,
                ..Conditions::default()
            },
        }
    }

    fn report(rounds: &[Vec<Round>]) -> CellReport {
        let matrix = Matrix {
            tokens: 11,
            ..Matrix::cache_study()
        };
        let cell = Cell {
            context_tokens: 100,
            state: PromptState::Cold,
            concurrency: 2,
            streaming: true,
        };
        CellReport::new(&matrix, cell, rounds)
    }

    #[test]
    fn two_targets_are_compared_round_by_round() {
        let of = |first| vec![round(vec![sample(first, 2.0), sample(first, 2.0)], None); 3];
        let report = report(&[of(0.5), of(1.0)]);
        let figures = |at: usize, metric| report.targets[at].metrics[&metric].median.value;
        assert_eq!(figures(1, Metric::TimeToFirstTokenSeconds), 1.0);
        assert_eq!(figures(0, Metric::ThroughputTokensPerSecond), 11.0);
        let first = report.ratios[&Metric::TimeToFirstTokenSeconds];
        assert_eq!((first.of.value, first.p, first.rounds), (2.0, 0.25, 3));
    }

    #[test]
    fn impossible_answers_are_excluded() {
        // 10 tokens in 1 s and in 10 ms.
        let rounds = vec![round(vec![sample(1.0, 2.0), sample(1.0, 1.01)], Some(100.0))];
        let report = report(&[rounds]);
        let figures = &report.targets[0];
        assert!(report.has_impossible());
        assert_eq!(figures.metrics[&Metric::DecodeTokensPerSecond].samples, 1);
        assert_eq!(figures.metrics[&Metric::DecodeTokensPerSecond].p99.value, 10.0);
        assert!(!figures.metrics.contains_key(&Metric::ThroughputTokensPerSecond));
        assert_eq!(figures.taints[&Taint::Impossible], 1);
    }
}

//! Replay of calibration on measured machines. A node is a bin with one release. Some of its rows
//! are the runs that its agent measured, and another row is predicted with and without them. The
//! predictor was fitted without the chip.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::rows::Measurement;
use super::validate::{HeldOut, Validation};
use rooflet_base::quantile::{quantile, sorted};
use rooflet_roofline::predict::calibration::shrinkage::{ModelId, Sample, Shrinkage};
use rooflet_roofline::predict::calibration::{ArchitectureClass, DECODE};
use rooflet_roofline::predict::spread::Spreads;

/// Numbers of runs before a prediction.
const RUNS: [usize; 4] = [1, 2, 3, 5];
/// Number of random sets of runs per predicted row. It is equal for all rows, so that every row has
/// the same weight, even if a node has few models.
const DRAWS: usize = 12;
/// Minimum ratio of two contexts that count as different.
const OTHER_CONTEXT: f64 = 1.5;
/// Standard deviations between the median and the tenth percentile.
const DEVIATIONS_TO_P10: f64 = 1.2816;
/// Maximum error of one prediction in the comparison of shrinkages, as a logarithm. A few rows
/// contradict their own description.
const MAX_LOSS: f64 = 0.5;

/// Compared deviations.
const SHARES: [(f64, f64); 6] = [
    (0.1, 0.3),
    (0.2, 0.3),
    (0.3, 0.3),
    (0.2, 0.5),
    (0.4, 0.3),
    (0.5, 0.3),
];
const SLOPES: [f64; 3] = [0.03, 0.06, 0.1];
const RUN_DEVIATIONS: [f64; 2] = [0.03, 0.05];

/// Row of a node.
#[derive(Debug, Clone, PartialEq)]
struct Replayed {
    /// Name of the model without its weight format.
    model: String,
    sample: Sample,
    /// Deviation of the uncorrected prediction.
    prior: f64,
}

/// Relation of the runs to the predicted row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    SameModel,
    OtherModels,
}

impl Relation {
    const ALL: [Self; 2] = [Self::SameModel, Self::OtherModels];

    fn as_str(self) -> &'static str {
        match self {
            Self::SameModel => "same model, other contexts",
            Self::OtherModels => "other models",
        }
    }
}

/// Absolute errors of one prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Errors {
    without: f64,
    with: f64,
}

/// Predictions of one node by relation and number of runs.
type Outcome = BTreeMap<(Relation, usize), Vec<Errors>>;

/// Returns the table of the replay as Markdown.
pub(super) fn write(rows: &[Measurement], validation: &Validation) -> String {
    let nodes = nodes(rows, validation);
    let grid = grid();
    // Outcomes by shrinkage, then by node.
    let outcomes: Vec<Vec<Outcome>> = grid
        .iter()
        .map(|shrinkage| nodes.iter().map(|node| replay(node, shrinkage)).collect())
        .collect();
    let mut merged = Outcome::new();
    for node in 0..nodes.len() {
        let chosen = best(&outcomes, Some(node));
        for (key, errors) in &outcomes[chosen][node] {
            merged.entry(*key).or_default().extend(errors);
        }
    }
    let on_all = grid[best(&outcomes, None)];
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = table(&mut page, &nodes, &merged, on_all);
    page
}

fn table(
    page: &mut String,
    nodes: &[Vec<Replayed>],
    merged: &Outcome,
    on_all: Shrinkage,
) -> std::fmt::Result {
    let rows: usize = nodes.iter().map(Vec::len).sum();
    writeln!(
        page,
        "Replay of {rows} rows of {} nodes (bins with one release). The predictor was fitted without the\n\
         chip, and the deviations were chosen on the other nodes. Each row is predicted after {DRAWS} random\n\
         sets of runs.\n",
        nodes.len()
    )?;
    writeln!(
        page,
        "| runs of | runs | predictions | median \\|error\\| without | with | p90 without | with |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for ((relation, runs), errors) in merged {
        let percent = |of: fn(&Errors) -> f64, share: f64| {
            let errors = sorted(errors.iter().map(of).map(f64::exp_m1));
            100.0 * quantile(&errors, share).unwrap_or_default()
        };
        writeln!(
            page,
            "| {} | {runs} | {} | {:.1} % | {:.1} % | {:.1} % | {:.1} % |",
            relation.as_str(),
            errors.len(),
            percent(|errors| errors.without, 0.5),
            percent(|errors| errors.with, 0.5),
            percent(|errors| errors.without, 0.9),
            percent(|errors| errors.with, 0.9),
        )?;
    }
    let of = |shrinkage: Shrinkage| {
        format!(
            "node {}, class {}, slope {}, run {}",
            shrinkage.node_share, shrinkage.class_share, shrinkage.slope, shrinkage.run
        )
    };
    writeln!(
        page,
        "\nBest deviations on all nodes: {}.\nUsed: {}.",
        of(on_all),
        of(DECODE)
    )
}

/// Returns the compared deviations.
fn grid() -> Vec<Shrinkage> {
    let mut grid = Vec::new();
    for (node_share, class_share) in SHARES {
        for slope in SLOPES {
            for run in RUN_DEVIATIONS {
                grid.push(Shrinkage {
                    node_share,
                    class_share,
                    slope,
                    run,
                });
            }
        }
    }
    grid
}

/// Returns the index of the deviations with the smallest mean error on all nodes except `held_out`.
/// Every node has the same weight, because rows of one node are dependent.
fn best(outcomes: &[Vec<Outcome>], held_out: Option<usize>) -> usize {
    let loss = |nodes: &Vec<Outcome>| -> f64 {
        let kept = nodes
            .iter()
            .enumerate()
            .filter(|(node, _)| Some(*node) != held_out);
        kept.flat_map(|(_, outcome)| outcome.values())
            .map(|errors| mean_loss(errors))
            .sum()
    };
    let losses: Vec<f64> = outcomes.iter().map(loss).collect();
    let smallest = losses
        .iter()
        .enumerate()
        .min_by(|one, other| one.1.total_cmp(other.1));
    smallest.map_or(0, |(index, _)| index)
}

fn mean_loss(errors: &[Errors]) -> f64 {
    let sum: f64 = errors.iter().map(|errors| errors.with.min(MAX_LOSS)).sum();
    sum / errors.len().max(1) as f64
}

/// Returns the nodes with more than one row of one stream.
fn nodes(rows: &[Measurement], validation: &Validation) -> Vec<Vec<Replayed>> {
    let mut numbers: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut nodes: BTreeMap<_, Vec<Replayed>> = BTreeMap::new();
    let spreads: Spreads = validation.spreads();
    for prediction in &validation.predictions {
        let row = &rows[prediction.row];
        let is_replayed = prediction.held_out == HeldOut::Chip && row.case.workload.batch == 1;
        let Some(error) = prediction.decode_excess().filter(|_| is_replayed) else {
            continue;
        };
        let count = numbers.len() as u64;
        let number = *numbers.entry((&row.model, &row.format)).or_insert(count);
        let sides = spreads.stratum(prediction.stratum).of(prediction.familiarity);
        let key = (&row.chip().name, row.chip().gpu_cores, row.case.build.release());
        nodes.entry(key).or_default().push(Replayed {
            model: row.model.clone(),
            sample: Sample {
                model: ModelId {
                    class: ArchitectureClass::of(&row.case.model.dimensions),
                    number,
                },
                tokens: f64::from(row.case.workload.context_tokens),
                error,
                weight: 1.0,
            },
            prior: f64::midpoint(sides.slow, sides.fast) / DEVIATIONS_TO_P10,
        });
    }
    nodes.into_values().filter(|rows| rows.len() > 1).collect()
}

fn replay(node: &[Replayed], shrinkage: &Shrinkage) -> Outcome {
    let mut outcome = Outcome::new();
    // The same seed for all deviations: the sets of runs do not differ.
    let mut random = Random::default();
    for (index, target) in node.iter().enumerate() {
        for relation in Relation::ALL {
            let mut sources = sources(node, index, relation);
            let available = sources.len();
            for runs in RUNS.into_iter().filter(|runs| *runs <= available) {
                for _ in 0..DRAWS {
                    let samples: Vec<Sample> = random
                        .draw(&mut sources, runs)
                        .iter()
                        .map(|rows| rows[random.below(rows.len())].sample)
                        .collect();
                    let Sample {
                        model, tokens, error, ..
                    } = target.sample;
                    let estimate = shrinkage.estimate(&samples, model, tokens, target.prior);
                    outcome.entry((relation, runs)).or_default().push(Errors {
                        without: error.abs(),
                        with: (error - estimate.mean).abs(),
                    });
                }
            }
        }
    }
    outcome
}

/// Returns the possible runs: one list of alternatives per context or model.
fn sources(node: &[Replayed], target: usize, relation: Relation) -> Vec<Vec<&Replayed>> {
    let (others, target) = (node.iter().enumerate(), &node[target]);
    let rows = others.map(|(_, row)| row);
    match relation {
        Relation::SameModel => {
            let (model, tokens) = (target.sample.model, target.sample.tokens);
            rows.filter(|row| row.sample.model == model)
                .filter(|row| {
                    let (one, other) = (row.sample.tokens.max(1.0), tokens.max(1.0));
                    one.max(other) >= OTHER_CONTEXT * one.min(other)
                })
                .map(|row| vec![row])
                .collect()
        }
        Relation::OtherModels => {
            let mut models: BTreeMap<ModelId, Vec<&Replayed>> = BTreeMap::new();
            for row in rows.filter(|row| row.model != target.model) {
                models.entry(row.sample.model).or_default().push(row);
            }
            models.into_values().collect()
        }
    }
}

/// Fixed sequence of pseudo-random numbers (xorshift64).
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count.max(1) as u64) as usize
    }

    /// Returns `count` different items.
    fn draw<'a, T>(&mut self, items: &'a mut [T], count: usize) -> &'a [T] {
        for place in 0..count {
            let other = place + self.below(items.len() - place);
            items.swap(place, other);
        }
        &items[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u64, class: ArchitectureClass, tokens: f64, error: f64) -> Replayed {
        Replayed {
            model: number.to_string(),
            sample: Sample {
                model: ModelId { class, number },
                tokens,
                error,
                weight: 1.0,
            },
            prior: 0.1,
        }
    }

    #[test]
    fn runs_are_of_other_contexts_or_other_models() {
        let class = ArchitectureClass::Dense;
        let node = [
            row(1, class, 100.0, 0.1),
            row(1, class, 110.0, 0.1),
            row(1, class, 5000.0, 0.1),
            row(2, class, 100.0, 0.1),
            row(3, class, 100.0, 0.1),
            row(3, class, 5000.0, 0.1),
        ];
        let contexts = sources(&node, 0, Relation::SameModel);
        assert_eq!(contexts, [[&node[2]]]);
        let models = sources(&node, 0, Relation::OtherModels);
        assert_eq!(models, [vec![&node[3]], vec![&node[4], &node[5]]]);
        let outcome = replay(&node, &DECODE);
        let numbers: Vec<_> = outcome.keys().copied().collect();
        let expected = [
            (Relation::SameModel, 1),
            (Relation::SameModel, 2),
            (Relation::OtherModels, 1),
            (Relation::OtherModels, 2),
        ];
        assert_eq!(numbers, expected);
    }

    /// The generated table of the documentation shows an improvement for every number of runs.
    #[test]
    fn calibration_improves_every_row_of_the_replay() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/roofline.md")).unwrap();
        let rows: Vec<Vec<&str>> = page
            .lines()
            .map(|line| line.split('|').map(str::trim).collect())
            .filter(|cells: &Vec<&str>| {
                Relation::ALL
                    .iter()
                    .any(|relation| cells.get(1) == Some(&relation.as_str()))
            })
            .collect();
        assert_eq!(rows.len(), Relation::ALL.len() * RUNS.len());
        for row in rows {
            let percent = |cell: usize| -> f64 { row[cell].trim_end_matches(" %").parse().unwrap() };
            assert!(percent(5) < percent(4), "median: {row:?}");
            assert!(percent(7) < percent(6), "p90: {row:?}");
            if row[1] == Relation::SameModel.as_str() {
                assert!(percent(5) < 3.0, "{row:?}");
            }
        }
    }

    /// A node with a common error gains from the node level, a node without one does not.
    #[test]
    fn deviations_are_chosen_on_the_other_nodes() {
        let class = ArchitectureClass::Dense;
        let common: Vec<_> = (1..8).map(|number| row(number, class, 100.0, 0.2)).collect();
        let opposed: Vec<_> = (1..8)
            .map(|number| row(number, class, 100.0, if number % 2 == 0 { 0.1 } else { -0.1 }))
            .collect();
        let strong = Shrinkage {
            node_share: 0.8,
            class_share: 0.1,
            ..DECODE
        };
        let weak = Shrinkage {
            node_share: 0.01,
            class_share: 0.01,
            ..DECODE
        };
        let outcomes: Vec<Vec<Outcome>> = [strong, weak]
            .iter()
            .map(|shrinkage| [&common, &opposed].map(|node| replay(node, shrinkage)).into())
            .collect();
        assert_eq!(best(&outcomes, Some(1)), 0);
        assert_eq!(best(&outcomes, Some(0)), 1);
    }
}

//! Benchmarks of servers: the measured combinations, the validity of samples, and the statistics of
//! the results. The module `cli/bench` sends the requests.

mod matrix;
mod report;
mod sample;
mod statistics;

pub(crate) use matrix::{Cell, Matrix, PromptState};
pub(crate) use report::{CellReport, Metric, Round, TargetFigures};
pub(crate) use sample::{Conditions, Sample};
pub(crate) use statistics::LEAST_ROUNDS;

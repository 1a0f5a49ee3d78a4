//! Benchmarks of servers: what to ask in which order, what an answer's times are worth, and what follows from many of
//! them. Asking is done in `cli/bench`.

mod matrix;
mod report;
mod sample;
mod statistics;

pub(crate) use matrix::{Cell, Matrix, PromptState};
pub(crate) use report::{CellReport, Metric, Round, TargetFigures};
pub(crate) use sample::{Conditions, Sample};
pub(crate) use statistics::LEAST_ROUNDS;

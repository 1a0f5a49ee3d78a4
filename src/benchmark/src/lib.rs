//! Evaluation of server benchmarks: the measured combinations, the validity of samples, and the
//! statistics of the results. Pure: `rooflet bench` sends the requests.

mod matrix;
mod report;
mod sample;
mod statistics;

pub use matrix::{Cell, Matrix, PromptState};
pub use report::{CellReport, Metric, Quantiles, Round, TargetFigures};
pub use sample::{Conditions, Sample};
pub use statistics::{Estimate, LEAST_ROUNDS};

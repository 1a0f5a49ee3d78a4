//! Performance model: chip table, memory and speed of a model on a machine, and admission.
//!
//! The crate is pure: values in, values out. It reads no files and no clock. A nominal figure is
//! never labelled as measured.

pub mod admission;
pub mod cases;
pub mod chip;
pub mod disk;
pub mod kv_quantisation;
pub mod loading;
pub mod memory;
pub mod predict;
pub mod probing;
pub mod published;
pub mod sizing;

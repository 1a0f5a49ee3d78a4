//! Facts about a model: configuration, dimensions, checkpoint and weights.
//!
//! The input is the text of `config.json` and the headers of safetensors files. The crate is pure:
//! it reads no file and no clock, and it computes no time.

pub mod checkpoint;
pub mod config;
pub mod cost;
pub mod dimensions;
pub mod engine;
pub mod facts;
pub mod families;
mod family;
pub mod fields;
pub mod kv_cache;
pub mod library;
pub mod shapes;
pub mod weights;

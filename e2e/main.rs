//! Black-box tests over the real binary: real processes, real MLX, real kubectl where it is installed.
//!
//! Every test has its own data directory and free ports; nothing is shared. On failure the directory is kept and named.

mod admission;
mod analysis;
mod apiserver;
mod away;
mod bad_input;
mod chaos;
mod clients;
mod deployment;
mod doctor;
mod drain;
mod examples;
mod faults;
mod gateway;
mod harness;
mod join;
mod kv_cache;
mod manifest_dir;
mod measure;
mod openai;
mod output;
mod plan;
mod preemption;
mod pull;
mod rebalance;
mod rollout;
// The worker's tests have more use for it.
#[allow(dead_code)]
#[path = "../src/worker/src/tests/script.rs"]
mod script;
mod silence;
mod simulate;
mod skew;
mod soak;
mod story;
mod traces;
mod tutorial;
mod unplanned;
mod up;

//! End-to-end tests of the binary, with real processes, MLX, and kubectl if it is installed.
//!
//! Every test has its own data directory and ports. If a test fails, its directory is kept and its
//! path printed.

mod admission;
mod analysis;
mod apiserver;
mod bad_input;
mod chaos;
mod clients;
mod control_plane_outage;
mod deployment;
mod doctor;
mod drain;
mod examples;
mod faults;
mod gateway;
mod harness;
mod join;
mod kubernetes;
mod kv_cache;
mod lifecycle;
mod manifest_dir;
mod measure;
mod node_loss;
mod openai;
mod output;
mod plan;
mod preemption;
mod pull;
mod rebalance;
mod rollout;
#[allow(dead_code, reason = "the tests of the worker use the other items")]
#[path = "../src/worker/src/tests/script.rs"]
mod script;
mod selftest;
mod silent_node;
mod simulate;
mod soak;
mod traces;
mod tutorial;
mod up;
mod version_skew;

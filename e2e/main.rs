//! End-to-end tests of the binary, with real processes, MLX, and kubectl if it is installed.
//!
//! Every test has its own data directory and ports. If a test fails, its directory is kept and its
//! path printed.

mod access;
mod admission;
mod analysis;
mod apiserver;
mod bad_input;
mod chaos;
mod clients;
mod commands;
mod deployment;
mod faults;
mod gateway;
mod harness;
mod kubernetes;
mod kv_cache;
mod lifecycle;
mod nodes;
mod openai;
mod pull;
mod rollout;
#[allow(dead_code, reason = "the tests of the worker use the other items")]
#[path = "../src/worker/src/tests/script.rs"]
mod script;
mod soak;
mod traces;
mod tutorial;
mod up;

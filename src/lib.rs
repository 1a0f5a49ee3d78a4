//! rooflet: a Kubernetes-style node agent for Mac fleets that admits and places models by measured memory bandwidth.
//!
//! See ARCHITECTURE.md for the map. Modules are private, so that dead code is reported; [`run`] is the only way in.

// Base: no domain, no network.
mod clock;
mod environment;
mod error;
mod file;
mod latest;
mod loopback;
#[cfg_attr(
    not(all(feature = "mlx", feature = "otlp")),
    expect(dead_code, reason = "a worker measures, and who exports it reads")
)]
mod meter;
mod metrics;
mod mutex;
mod percent;
mod quantile;
mod quantity;
mod task;
mod telemetry;
#[cfg_attr(
    not(feature = "mlx"),
    expect(dead_code, reason = "a worker tells most of what spans have")
)]
mod trace;
mod units;
mod yaml;

// Vocabulary: data only.
mod anthropic;
mod api;
mod openai;
mod wire;

// Core: pure decisions.
mod roofline;
#[cfg(feature = "mlx")]
mod text;

// Core: pure and synchronous.
mod benchmark;
mod capacity;
mod jsonpath;
mod patch;
mod scheduler;
mod schema;
mod selector;
mod table;

// Adapters: one outside thing each.
mod artifact;
mod client;
mod connection;
mod host;
#[cfg(feature = "mlx")]
mod mlx;
mod model_dir;
#[cfg(feature = "otlp")]
mod otlp;
mod pki;
mod process;
mod proxy;
mod store;

// Services: siblings never import each other.
mod agent;
mod apiserver;
mod controller;
mod gateway;
#[cfg(feature = "mlx")]
mod worker;

// Services' plans on a virtual clock.
mod simulation;

// Composition and the command line.
mod cli;
mod node;

// Checks on the tree itself.
mod layers;

pub use cli::run;

/// What `cargo bench` measures and no command reaches: placing alone, masks alone, an engine alone.
#[doc(hidden)]
pub mod bench {
    pub use crate::scheduler::bench::{PlacementCount, PlacementTrial};
    #[cfg(feature = "mlx")]
    pub use crate::text::grammar::bench::{MaskTrial, MaskVocabulary};
    #[cfg(feature = "mlx")]
    pub use crate::worker::bench::BareEngine;
}

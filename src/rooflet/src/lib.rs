//! The `rooflet` binary: the command line.
//!
//! Modules are private, so that dead code is reported; [`run`] is the only way in. ARCHITECTURE.md has
//! the map.

mod cli;
#[cfg(test)]
mod control_plane_tests;

pub use cli::run;

/// Functions for `cargo bench` that no command reaches: placement, the cores of controller and
/// gateway, logits masks and the engine alone.
#[doc(hidden)]
pub mod bench {
    pub use rooflet_controller::bench::ControlTrial;
    pub use rooflet_gateway::bench::RoutingTrial;
    pub use rooflet_scheduler::bench::{PlacementCount, PlacementTrial, PolicyResult, compare_policies};
    #[cfg(feature = "mlx")]
    pub use rooflet_text::grammar::bench::{MaskBench, MaskVocabulary};
    #[cfg(feature = "mlx")]
    pub use rooflet_worker::bench::BareEngine;
}

//! Computation of a model's logits with MLX: one decoder, whose blocks are configured by
//! `config.json` (norms, projections, rotary scaling, windows, quantised or float matrices).
//!
//! Invariants:
//! - The order of operations is that of mlx-lm, so that logits are bit-identical on the same MLX library.
//! - The row of a sequence does not depend on the other sequences of a decode step.
//! - A kernel of rooflet is used only after its results were compared with those of MLX's
//!   operations.

mod attend;
mod attention;
mod block;
mod cache;
mod decoder;
mod experts;
pub mod feed_forward;
pub mod gated_delta;
pub mod kernels;
mod linear;
mod mask;
mod norm;
pub mod replay;
mod rope;

pub use cache::{KvBlock, KvCache};
pub use decoder::Decoder;

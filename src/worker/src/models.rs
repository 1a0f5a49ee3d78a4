//! Models: one decoder whose blocks are configured by `config.json` (norms, projections, rotary
//! scaling, windows, quantised or float matrices). The order of operations is that of mlx-lm, so
//! that logits are bit-identical on the same MLX library.

mod attend;
mod attention;
mod block;
pub(crate) mod cache;
pub(crate) mod decoder;
mod experts;
pub(crate) mod feed_forward;
pub(crate) mod gated_delta;
pub(crate) mod kernels;
mod linear;
mod mask;
mod norm;
mod rope;

pub(crate) use cache::{KvBlock, KvCache};
pub(crate) use decoder::Decoder;

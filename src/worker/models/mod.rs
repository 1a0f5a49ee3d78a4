//! The models: one decoder block with switches (biases, query and key norms, rotary scaling, quantised or float
//! matrices) that covers Llama, Qwen2 and Qwen3. The order of operations is mlx-lm's, so that logits are equal to the
//! bit on the same MLX library.

pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod decoder;
pub(crate) mod linear;
pub(crate) mod rope;

pub(crate) use cache::{KvBlock, KvCache};
pub(crate) use decoder::Decoder;

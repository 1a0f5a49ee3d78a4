//! Conversion of blocks between MLX arrays and bytes: one copy and no computation, so that it does
//! not wait for queued work of the device. Only the engine's thread copies out of MLX, because it
//! owns the arrays. Any thread may copy into MLX.

use std::collections::VecDeque;
use std::ops::Range;

use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::{Array, Dtype};
use safetensors::Dtype as RawDtype;

use super::block_file::{RawBlock, RawTensor};
use rooflet_decoder::KvBlock;
use rooflet_mlx as mlx;

/// Element types of caches.
const DTYPES: [(Dtype, RawDtype); 4] = [
    (Dtype::Float32, RawDtype::F32),
    (Dtype::Float16, RawDtype::F16),
    (Dtype::Bfloat16, RawDtype::BF16),
    (Dtype::Uint32, RawDtype::U32),
];

/// Incremental copy of a block out of MLX.
#[derive(Debug)]
pub(super) struct BlockCopy {
    /// Byte ranges that are still to be copied.
    runs: Runs,
    block: RawBlock,
}

/// Byte ranges of arrays, in the order of the block's data.
#[derive(Debug, Default)]
struct Runs {
    queue: VecDeque<(Array, Range<usize>)>,
    /// Total size of the ranges.
    bytes: usize,
}

impl BlockCopy {
    pub(super) fn new(block: &KvBlock) -> Result<Self> {
        let mut runs = Runs::default();
        let layers = block.layers().iter();
        let layers = layers
            .map(|(keys, values)| {
                Ok([
                    runs.add_tokens(keys, block.tokens())?,
                    runs.add_tokens(values, block.tokens())?,
                ])
            })
            .collect::<Result<Vec<_>>>()?;
        let states = block.snapshot().map(|states| {
            let pair = |(one, other): &(Array, Array)| Ok([runs.add(one)?, runs.add(other)?]);
            states.iter().map(pair).collect::<Result<Vec<_>>>()
        });
        let snapshot = states.transpose()?;
        Ok(Self {
            block: RawBlock {
                data: Vec::with_capacity(runs.bytes),
                layers,
                snapshot,
            },
            runs,
        })
    }

    /// Copies up to `bytes` more bytes; waits until they are computed. Returns true if the copy is
    /// complete.
    pub(super) fn copy(&mut self, bytes: usize) -> Result<bool> {
        let mut left = bytes;
        while left > 0
            && let Some((array, run)) = self.runs.queue.front_mut()
        {
            let count = left.min(run.len());
            let next = run.start..run.start + count;
            self.block.data.extend_from_slice(&mlx::bytes_of(array)?[next]);
            run.start += count;
            left -= count;
            if run.start == run.end {
                self.runs.queue.pop_front();
            }
        }
        Ok(self.runs.queue.is_empty())
    }

    /// Returns the copied block.
    pub(super) fn into_block(self) -> RawBlock {
        self.block
    }
}

impl Runs {
    fn add(&mut self, array: &Array) -> Result<RawTensor> {
        let bytes = 0..array.nbytes();
        self.queue.push_back((array.clone(), bytes));
        self.tensor(array, array.shape(), array.nbytes())
    }

    /// Adds these tokens of each head of `[1, heads, tokens, size]`.
    fn add_tokens(&mut self, array: &Array, tokens: Range<i32>) -> Result<RawTensor> {
        let &[1, heads, all, size] = array.shape() else {
            return Err(Exception::custom(
                "keys and values must have the shape [1, heads, tokens, size]",
            ));
        };
        if tokens == (0..all) {
            return self.add(array);
        }
        let index = |number: i32| number.unsigned_abs() as usize;
        let token = array.nbytes() / index((heads * all).max(1));
        for head in 0..index(heads) {
            let first = (head * index(all) + index(tokens.start)) * token;
            let bytes = first..first + tokens.len() * token;
            self.queue.push_back((array.clone(), bytes));
        }
        let shape = [1, heads, tokens.end - tokens.start, size];
        self.tensor(array, &shape, index(heads) * tokens.len() * token)
    }

    /// Describes the next `bytes` bytes of the data as a tensor.
    fn tensor(&mut self, array: &Array, shape: &[i32], bytes: usize) -> Result<RawTensor> {
        let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == array.dtype());
        let (_, dtype) = dtype.ok_or_else(|| Exception::custom("unsupported element type of a KV cache"))?;
        let start = self.bytes;
        self.bytes += bytes;
        Ok(RawTensor {
            dtype: *dtype,
            shape: shape.iter().map(|size| size.unsigned_abs() as usize).collect(),
            place: start..self.bytes,
        })
    }
}

/// Block in MLX's memory that was read from a file.
#[derive(Debug)]
pub(super) struct BlockArrays {
    layers: Vec<(Array, Array)>,
    snapshot: Option<Vec<(Array, Array)>>,
}

impl From<BlockArrays> for KvBlock {
    fn from(BlockArrays { layers, snapshot }: BlockArrays) -> Self {
        Self::alone(layers, snapshot)
    }
}

pub(super) fn arrays(block: &RawBlock) -> Result<BlockArrays> {
    let array = |tensor: &RawTensor| -> Result<Array> {
        let dtype = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype);
        let (dtype, _) =
            dtype.ok_or_else(|| Exception::custom("unsupported element type in a block file"))?;
        let shape = tensor
            .shape
            .iter()
            .map(|size| i32::try_from(*size).map_err(|err| Exception::custom(err.to_string())))
            .collect::<Result<Vec<i32>>>()?;
        mlx::from_bytes(&block.data[tensor.place.clone()], &shape, *dtype)
    };
    let pairs = |pairs: &Vec<[RawTensor; 2]>| {
        let pair = |[one, other]: &[RawTensor; 2]| Ok((array(one)?, array(other)?));
        pairs.iter().map(pair).collect::<Result<Vec<_>>>()
    };
    Ok(BlockArrays {
        layers: pairs(&block.layers)?,
        snapshot: block.snapshot.as_ref().map(pairs).transpose()?,
    })
}

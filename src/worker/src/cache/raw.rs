//! Blocks into bytes and back; a copy each, no computation, so that nothing waits for what the
//! device has been given to do. Out of MLX on the engine's thread, which knows what has been
//! computed; into MLX on any.

use std::collections::VecDeque;
use std::ops::Range;

use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::{Array, Dtype};
use safetensors::Dtype as RawDtype;

use super::block_file::{RawBlock, RawTensor};
use crate::models::KvBlock;
use rooflet_mlx as mlx;

/// What caches consist of.
const DTYPES: [(Dtype, RawDtype); 4] = [
    (Dtype::Float32, RawDtype::F32),
    (Dtype::Float16, RawDtype::F16),
    (Dtype::Bfloat16, RawDtype::BF16),
    (Dtype::Uint32, RawDtype::U32),
];

/// A block on its way out of MLX, as much at a time as there is time for.
#[derive(Debug)]
pub(super) struct Copying {
    /// What is still to be copied.
    runs: Runs,
    block: RawBlock,
}

/// Bytes of arrays, in the order of their places in the block.
#[derive(Debug, Default)]
struct Runs {
    queue: VecDeque<(Array, Range<usize>)>,
    /// Of all that were added.
    bytes: usize,
}

impl Copying {
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

    /// Copies up to so many bytes more; waits until they have been computed. True: that was all.
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

    /// What has been copied.
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

    /// Of `[1, heads, all tokens, size]`, these tokens of each head.
    fn add_tokens(&mut self, array: &Array, tokens: Range<i32>) -> Result<RawTensor> {
        let &[1, heads, all, size] = array.shape() else {
            return Err(Exception::custom("keys and values of another shape"));
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

    /// The tensor that `bytes` more of this array are.
    fn tensor(&mut self, array: &Array, shape: &[i32], bytes: usize) -> Result<RawTensor> {
        let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == array.dtype());
        let (_, dtype) = dtype.ok_or_else(|| Exception::custom("a cache of another element type"))?;
        let start = self.bytes;
        self.bytes += bytes;
        Ok(RawTensor {
            dtype: *dtype,
            shape: shape.iter().map(|size| size.unsigned_abs() as usize).collect(),
            place: start..self.bytes,
        })
    }
}

/// A block that was read, in MLX's memory.
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
        let (dtype, _) = dtype.ok_or_else(|| Exception::custom("a file of another element type"))?;
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

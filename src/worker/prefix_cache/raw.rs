//! Blocks into bytes and back. On the engine's thread, like everything that touches MLX; a copy each, no computation, so
//! that nothing waits for what the device has been given to do.

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};
use safetensors::Dtype as RawDtype;

use super::block_file::{RawBlock, RawTensor};
use crate::mlx;
use crate::worker::models::KvBlock;

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
    /// In the order of their places.
    arrays: Vec<Array>,
    block: RawBlock,
}

impl Copying {
    pub(super) fn new(block: &KvBlock) -> Result<Self> {
        let (mut arrays, mut end) = (Vec::new(), 0);
        let mut tensor = |array: &Array| -> Result<RawTensor> {
            let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == array.dtype());
            let (_, dtype) = dtype.ok_or_else(|| Exception::custom("a cache of another element type"))?;
            let start = end;
            end += array.nbytes();
            arrays.push(array.clone());
            let shape = array.shape().iter().map(|size| size.unsigned_abs() as usize);
            Ok(RawTensor {
                dtype: *dtype,
                shape: shape.collect(),
                place: start..end,
            })
        };
        let mut pairs = |pairs: &[(Array, Array)]| {
            let pair = |(one, other): &(Array, Array)| Ok([tensor(one)?, tensor(other)?]);
            pairs.iter().map(pair).collect::<Result<Vec<_>>>()
        };
        let layers = pairs(&block.layers)?;
        let snapshot = block.snapshot.as_deref().map(pairs).transpose()?;
        Ok(Self {
            arrays,
            block: RawBlock {
                data: Vec::with_capacity(end),
                layers,
                snapshot,
            },
        })
    }

    /// Copies up to so many bytes more; waits until they have been computed. True: that was all.
    pub(super) fn copy(&mut self, bytes: usize) -> Result<bool> {
        let mut left = bytes;
        let mut start = 0;
        for array in &self.arrays {
            let end = start + array.nbytes();
            let done = self.block.data.len();
            if done < end && left > 0 {
                let from = done - start;
                let to = (from + left).min(array.nbytes());
                self.block
                    .data
                    .extend_from_slice(&mlx::bytes_of(array)?[from..to]);
                left -= to - from;
            }
            start = end;
        }
        Ok(self.block.data.len() == start)
    }

    /// What has been copied.
    pub(super) fn into_block(self) -> RawBlock {
        self.block
    }
}

pub(super) fn from_bytes(block: &RawBlock) -> Result<KvBlock> {
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
    Ok(KvBlock {
        layers: pairs(&block.layers)?,
        snapshot: block.snapshot.as_ref().map(pairs).transpose()?,
    })
}

//! Blocks into bytes and back. On the engine's thread, like everything that touches MLX; a copy each, no computation.

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

/// Waits until the block has been computed.
pub(super) fn to_bytes(block: &KvBlock) -> Result<RawBlock> {
    let mut data = Vec::with_capacity(usize::try_from(block.bytes()).unwrap_or(0));
    let mut tensor = |array: &Array| -> Result<RawTensor> {
        let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == array.dtype());
        let (_, dtype) = dtype.ok_or_else(|| Exception::custom("a cache of another element type"))?;
        let start = data.len();
        let bytes = array.contiguous()?.view_dtype(Dtype::Uint8)?;
        let bytes = bytes.try_as_slice::<u8>();
        data.extend_from_slice(bytes.map_err(|err| Exception::custom(err.to_string()))?);
        let shape = array.shape().iter().map(|size| size.unsigned_abs() as usize);
        Ok(RawTensor {
            dtype: *dtype,
            shape: shape.collect(),
            place: start..data.len(),
        })
    };
    let mut pairs = |pairs: &[(Array, Array)]| {
        let pair = |(one, other): &(Array, Array)| Ok([tensor(one)?, tensor(other)?]);
        pairs.iter().map(pair).collect::<Result<Vec<_>>>()
    };
    let layers = pairs(&block.layers)?;
    let snapshot = block.snapshot.as_deref().map(pairs).transpose()?;
    Ok(RawBlock {
        data,
        layers,
        snapshot,
    })
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

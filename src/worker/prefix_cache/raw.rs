//! Blocks into bytes and back. On the engine's thread, like everything that touches MLX; a copy each, no computation.

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};

use super::block_file::RawBlock;
use crate::mlx::load::dtype;
use crate::roofline::model::FloatType;
use crate::worker::models::KvBlock;

/// Waits until the block has been computed.
pub(super) fn to_bytes(block: &KvBlock) -> Result<RawBlock> {
    let mut data = Vec::with_capacity(usize::try_from(block.bytes()).unwrap_or(0));
    let (mut tensors, mut element) = (Vec::new(), None);
    for array in block.arrays() {
        element = element.or_else(|| float(array.dtype()));
        let start = data.len();
        let bytes = array.contiguous()?.view_dtype(Dtype::Uint8)?;
        let bytes = bytes.try_as_slice::<u8>();
        data.extend_from_slice(bytes.map_err(|err| Exception::custom(err.to_string()))?);
        let shape = array.shape().iter().map(|size| size.unsigned_abs() as usize);
        tensors.push((shape.collect(), start..data.len()));
    }
    Ok(RawBlock {
        element: element.ok_or_else(|| Exception::custom("a block of no floats"))?,
        data,
        tensors,
    })
}

pub(super) fn from_bytes(block: &RawBlock) -> Result<KvBlock> {
    let dtype = dtype(block.element);
    let array = |(shape, place): &(Vec<usize>, std::ops::Range<usize>)| {
        let mut shape = shape
            .iter()
            .map(|size| i32::try_from(*size).map_err(|err| Exception::custom(err.to_string())))
            .collect::<Result<Vec<i32>>>()?;
        if let Some(last) = shape.last_mut() {
            *last *= block.element.bytes() as i32;
        }
        Array::from_slice(&block.data[place.clone()], &shape).view_dtype(dtype)
    };
    let arrays = block.tensors.iter().map(array).collect::<Result<Vec<Array>>>()?;
    let mut layers = Vec::with_capacity(arrays.len() / 2);
    let mut arrays = arrays.into_iter();
    while let (Some(keys), Some(values)) = (arrays.next(), arrays.next()) {
        layers.push((keys, values));
    }
    Ok(KvBlock::new(layers))
}

fn float(of: Dtype) -> Option<FloatType> {
    [FloatType::F32, FloatType::F16, FloatType::BF16]
        .into_iter()
        .find(|float| dtype(*float) == of)
}

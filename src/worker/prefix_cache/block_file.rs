//! The format of a block's file: safetensors, whose metadata says what the block is. Pure: bytes in, bytes out.
//!
//! Nothing in a file is believed: a name is the hash of what leads to the block and of its own tokens, which are both in
//! the file; the checksum is over the tensors; the model is named by a hash of its files and of what computes with them.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;

use super::key::BlockKey;
use crate::roofline::model::FloatType;

/// Of the files' layout, the order of tensors and the meaning of keys.
const FORMAT: &str = "rooflet-prefix-block/1";

/// A block's header is a few kilobytes per layer; no real one comes near.
pub(super) const MAX_HEADER_BYTES: usize = 16 << 20;

/// Which block it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockName {
    /// Of the model, and of what computes with it.
    pub(super) model: String,
    pub(super) parent: BlockKey,
    /// Tokens before its own.
    pub(super) depth: usize,
    pub(super) tokens: Vec<u32>,
}

impl BlockName {
    pub(super) fn key(&self) -> BlockKey {
        self.parent.child(&self.tokens)
    }
}

/// Keys and values of a block's tokens outside of MLX.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawBlock {
    pub(crate) element: FloatType,
    pub(crate) data: Vec<u8>,
    /// Shape and place in `data`: keys and values of each layer in turn.
    pub(crate) tensors: Vec<(Vec<usize>, Range<usize>)>,
}

/// Why a file is not a block that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BlockFileError {
    #[error("not a safetensors file, or cut short: {0}")]
    NotSafetensors(String),
    #[error("`{0}` is missing in its metadata or malformed")]
    Metadata(&'static str),
    #[error("its format is `{0}`, this version reads `{FORMAT}`")]
    OtherFormat(String),
    #[error("it holds another block than its name says")]
    OtherBlock,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its tensors are not those of a block")]
    Tensors,
}

/// The file of a block.
pub(super) fn encode(name: &BlockName, block: &RawBlock) -> Result<Vec<u8>, BlockFileError> {
    let tokens: Vec<String> = name.tokens.iter().map(u32::to_string).collect();
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("model".to_owned(), name.model.clone()),
        ("parent".to_owned(), name.parent.to_string()),
        ("depth".to_owned(), name.depth.to_string()),
        ("tokens".to_owned(), tokens.join(" ")),
        ("crc32".to_owned(), crc32(block).to_string()),
    ]);
    let broken = |err: safetensors::SafeTensorError| BlockFileError::NotSafetensors(err.to_string());
    let view = |(index, (shape, place)): (usize, &(Vec<usize>, Range<usize>))| {
        let data = block.data.get(place.clone()).ok_or(BlockFileError::Tensors)?;
        let view = TensorView::new(dtype(block.element), shape.clone(), data).map_err(broken)?;
        Ok((tensor_name(index), view))
    };
    let views = block.tensors.iter().enumerate().map(view);
    let views: Vec<_> = views.collect::<Result<_, BlockFileError>>()?;
    safetensors::serialize(views, Some(metadata)).map_err(broken)
}

/// Which block a file holds, from its JSON header.
pub(super) fn decode_name(header: &[u8]) -> Result<BlockName, BlockFileError> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: HashMap<String, String>,
    }
    let header: Header =
        serde_json::from_slice(header).map_err(|err| BlockFileError::NotSafetensors(err.to_string()))?;
    Ok(parse(&header.metadata)?.0)
}

/// What a file holds that must be the block `key` of `model`.
pub(super) fn decode(file: Vec<u8>, model: &str, key: BlockKey) -> Result<RawBlock, BlockFileError> {
    let broken = |err: safetensors::SafeTensorError| BlockFileError::NotSafetensors(err.to_string());
    // Checks the bounds of every tensor, too.
    let (header, metadata) = SafeTensors::read_metadata(&file).map_err(broken)?;
    let none = HashMap::new();
    let (name, checksum) = parse(metadata.metadata().as_ref().unwrap_or(&none))?;
    if name.model != model || name.key() != key {
        return Err(BlockFileError::OtherBlock);
    }
    let data_start = size_of::<u64>() + header;
    let mut element = None;
    let mut tensors = Vec::new();
    while let Some(info) = metadata.info(&tensor_name(tensors.len())) {
        let float = [FloatType::F32, FloatType::F16, FloatType::BF16]
            .into_iter()
            .find(|float| dtype(*float) == info.dtype)
            .ok_or(BlockFileError::Tensors)?;
        let &[1, _, tokens, _] = &info.shape[..] else {
            return Err(BlockFileError::Tensors);
        };
        if *element.get_or_insert(float) != float || tokens != name.tokens.len() {
            return Err(BlockFileError::Tensors);
        }
        let (start, end) = info.data_offsets;
        tensors.push((info.shape.clone(), data_start + start..data_start + end));
    }
    let block = RawBlock {
        element: element.ok_or(BlockFileError::Tensors)?,
        data: file,
        tensors,
    };
    if crc32(&block) != checksum {
        return Err(BlockFileError::Checksum);
    }
    Ok(block)
}

fn dtype(element: FloatType) -> Dtype {
    match element {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::BF16 => Dtype::BF16,
    }
}

fn tensor_name(index: usize) -> String {
    let part = if index.is_multiple_of(2) { "keys" } else { "values" };
    format!("layers.{}.{part}", index / 2)
}

fn crc32(block: &RawBlock) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for (_, place) in &block.tensors {
        hash.update(&block.data[place.clone()]);
    }
    hash.finalize()
}

fn parse(metadata: &HashMap<String, String>) -> Result<(BlockName, u32), BlockFileError> {
    let text = |name: &'static str| {
        let value = metadata.get(name);
        value.map(String::as_str).ok_or(BlockFileError::Metadata(name))
    };
    let number = |name: &'static str| text(name)?.parse().map_err(|_| BlockFileError::Metadata(name));
    if text("format")? != FORMAT {
        return Err(BlockFileError::OtherFormat(text("format")?.to_owned()));
    }
    let tokens = text("tokens")?
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>();
    let name = BlockName {
        model: text("model")?.to_owned(),
        parent: text("parent")?
            .parse()
            .map_err(|_| BlockFileError::Metadata("parent"))?,
        depth: number("depth")? as usize,
        tokens: tokens.map_err(|_| BlockFileError::Metadata("tokens"))?,
    };
    Ok((name, number("crc32")?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name() -> BlockName {
        BlockName {
            model: "m".to_owned(),
            parent: BlockKey::root("m", "parent"),
            depth: 512,
            tokens: vec![7, 8, 900],
        }
    }

    /// Two layers of two heads, three tokens, four elements.
    fn block(element: FloatType) -> RawBlock {
        let bytes = 2 * 3 * 4 * element.bytes() as usize;
        RawBlock {
            element,
            data: (0..4 * bytes).map(|index| (index * 37 % 251) as u8).collect(),
            tensors: (0..4)
                .map(|index| (vec![1, 2, 3, 4], index * bytes..(index + 1) * bytes))
                .collect(),
        }
    }

    fn tensors(block: &RawBlock) -> Vec<(&[usize], &[u8])> {
        let tensors = block.tensors.iter();
        tensors
            .map(|(shape, place)| (&shape[..], &block.data[place.clone()]))
            .collect()
    }

    #[test]
    fn a_block_comes_back_as_it_went() {
        for element in [FloatType::F32, FloatType::F16, FloatType::BF16] {
            let file = encode(&name(), &block(element)).unwrap();
            let header = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
            assert_eq!(decode_name(&file[8..8 + header]).unwrap(), name());
            let back = decode(file, "m", name().key()).unwrap();
            assert_eq!(back.element, element);
            assert_eq!(tensors(&back), tensors(&block(element)));
        }
    }

    #[test]
    fn another_block_is_refused() {
        let file = encode(&name(), &block(FloatType::F16)).unwrap();
        let refused = |model, key| decode(file.clone(), model, key).unwrap_err();
        assert_eq!(refused("other", name().key()), BlockFileError::OtherBlock);
        assert_eq!(refused("m", BlockKey::root("m", "x")), BlockFileError::OtherBlock);
        let mut newer = file.clone();
        let format = FORMAT.as_bytes();
        let at = newer
            .windows(format.len())
            .position(|part| part == format)
            .unwrap();
        newer[at + format.len() - 1] = b'9';
        let err = decode(newer, "m", name().key()).unwrap_err();
        assert_eq!(
            err,
            BlockFileError::OtherFormat("rooflet-prefix-block/9".to_owned())
        );
    }

    proptest! {
        /// Whatever is flipped or cut off, the block is refused or whole.
        #[test]
        fn damage_is_seen(at in 0..100_000_usize, bit in 0..8_u32, cut in 0..2000_usize) {
            let whole = block(FloatType::F32);
            let mut file = encode(&name(), &whole).unwrap();
            let at = at % file.len();
            file[at] ^= 1 << bit;
            if let Ok(read) = decode(file.clone(), "m", name().key()) {
                prop_assert_eq!(tensors(&read), tensors(&whole));
            }
            file[at] ^= 1 << bit;
            file.truncate(file.len() - 1 - cut.min(file.len() - 1));
            prop_assert!(decode(file, "m", name().key()).is_err());
        }
    }
}

//! Format of block files: safetensors with the block's identity in the metadata. The module is
//! pure: bytes in, bytes out.
//!
//! All contents are verified. The file name is the hash of the parent's key and the block's tokens,
//! which are both in the file. The checksum covers the tensors. The model is identified by a hash
//! of its files and of the engine.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;

use super::key::BlockKey;

/// Version of the layout of files, the order of tensors and the hash of keys.
const FORMAT: &str = "rooflet-prefix-block/2";

/// Maximum size of a header. Headers of blocks have a few kilobytes per layer.
pub(super) const MAX_HEADER_BYTES: usize = 16 << 20;

/// Identity of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockName {
    /// Fingerprint of the model and of the engine.
    pub(super) model: String,
    pub(super) parent: BlockKey,
    /// Number of tokens before the block.
    pub(super) depth: usize,
    pub(super) tokens: Vec<u32>,
}

impl BlockName {
    pub(super) fn key(&self) -> BlockKey {
        self.parent.child(&self.tokens)
    }
}

/// Block outside of MLX: pairs of tensors, as in [`KvBlock`](rooflet_decoder::KvBlock).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawBlock {
    pub data: Vec<u8>,
    pub layers: Vec<[RawTensor; 2]>,
    pub snapshot: Option<Vec<[RawTensor; 2]>>,
}

/// Tensor as a range of the block's data.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub place: Range<usize>,
}

impl RawBlock {
    fn tensors(&self) -> impl Iterator<Item = (String, &RawTensor)> {
        let layers = named("layers", &self.layers);
        layers.chain(named("snapshot", self.snapshot.as_deref().unwrap_or_default()))
    }
}

/// Metadata of a file, without its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) name: BlockName,
    /// Set if the block has a snapshot.
    pub(super) snapshot: bool,
    crc32: u32,
}

/// Reason why a file is not a usable block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BlockFileError {
    #[error("invalid or truncated safetensors file: {0}")]
    NotSafetensors(String),
    #[error("metadata key `{0}` is missing or malformed")]
    Metadata(&'static str),
    #[error("unsupported format `{0}`, expected `{FORMAT}`")]
    OtherFormat(String),
    #[error("the content does not match the file name")]
    OtherBlock,
    #[error("checksum mismatch")]
    Checksum,
    #[error("the tensors do not form a block")]
    Tensors,
}

/// Encodes a block as a file.
pub(super) fn encode(name: &BlockName, block: &RawBlock) -> Result<Vec<u8>, BlockFileError> {
    let tokens: Vec<String> = name.tokens.iter().map(u32::to_string).collect();
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("model".to_owned(), name.model.clone()),
        ("parent".to_owned(), name.parent.to_string()),
        ("depth".to_owned(), name.depth.to_string()),
        ("tokens".to_owned(), tokens.join(" ")),
        ("snapshot".to_owned(), block.snapshot.is_some().to_string()),
        ("crc32".to_owned(), crc32(block).to_string()),
    ]);
    let broken = |err: safetensors::SafeTensorError| BlockFileError::NotSafetensors(err.to_string());
    let view = |(name, tensor): (String, &RawTensor)| {
        let data = block.data.get(tensor.place.clone());
        let data = data.ok_or(BlockFileError::Tensors)?;
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), data).map_err(broken)?;
        Ok((name, view))
    };
    let views: Vec<_> = block.tensors().map(view).collect::<Result<_, BlockFileError>>()?;
    safetensors::serialize(views, Some(metadata)).map_err(broken)
}

/// Decodes the metadata of a file from its JSON header.
pub(super) fn decode_label(header: &[u8]) -> Result<Label, BlockFileError> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: HashMap<String, String>,
    }
    let header: Header =
        serde_json::from_slice(header).map_err(|err| BlockFileError::NotSafetensors(err.to_string()))?;
    parse(&header.metadata)
}

/// Decodes and verifies a file that must hold the block `key` of `model`.
pub(super) fn decode(file: Vec<u8>, model: &str, key: BlockKey) -> Result<RawBlock, BlockFileError> {
    let broken = |err: safetensors::SafeTensorError| BlockFileError::NotSafetensors(err.to_string());
    // Also checks the bounds of every tensor.
    let (header, metadata) = SafeTensors::read_metadata(&file).map_err(broken)?;
    let none = HashMap::new();
    let label = parse(metadata.metadata().as_ref().unwrap_or(&none))?;
    if label.name.model != model || label.name.key() != key {
        return Err(BlockFileError::OtherBlock);
    }
    let data_start = size_of::<u64>() + header;
    let tensor = |name: &str| {
        metadata.info(name).map(|info| {
            let (start, end) = info.data_offsets;
            RawTensor {
                dtype: info.dtype,
                shape: info.shape.clone(),
                place: data_start + start..data_start + end,
            }
        })
    };
    let pairs = |part: &str| {
        let pair = |index: usize| {
            Some([
                tensor(&tensor_name(part, index, 0))?,
                tensor(&tensor_name(part, index, 1))?,
            ])
        };
        (0..).map_while(pair).collect::<Vec<_>>()
    };
    let (layers, snapshot) = (pairs("layers"), pairs("snapshot"));
    let of_these_tokens = |tensor: &RawTensor| matches!(tensor.shape[..], [1, _, tokens, _] if tokens == label.name.tokens.len());
    let count = 2 * (layers.len() + snapshot.len());
    if !layers.iter().flatten().all(of_these_tokens)
        || count != metadata.tensors().len()
        || snapshot.is_empty() == label.snapshot
    {
        return Err(BlockFileError::Tensors);
    }
    let block = RawBlock {
        data: file,
        layers,
        snapshot: label.snapshot.then_some(snapshot),
    };
    if crc32(&block) != label.crc32 {
        return Err(BlockFileError::Checksum);
    }
    Ok(block)
}

fn named<'a>(part: &'a str, pairs: &'a [[RawTensor; 2]]) -> impl Iterator<Item = (String, &'a RawTensor)> {
    let pairs = pairs.iter().enumerate();
    pairs.flat_map(move |(index, pair)| {
        let tensors = pair.iter().enumerate();
        tensors.map(move |(half, tensor)| (tensor_name(part, index, half), tensor))
    })
}

fn tensor_name(part: &str, pair: usize, half: usize) -> String {
    format!("{part}.{pair}.{half}")
}

fn crc32(block: &RawBlock) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for (_, tensor) in block.tensors() {
        hash.update(&block.data[tensor.place.clone()]);
    }
    hash.finalize()
}

fn parse(metadata: &HashMap<String, String>) -> Result<Label, BlockFileError> {
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
    Ok(Label {
        name,
        snapshot: text("snapshot")?
            .parse()
            .map_err(|_| BlockFileError::Metadata("snapshot"))?,
        crc32: number("crc32")?,
    })
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

    /// Two layers with two heads, three tokens and four elements, and a float32 state.
    fn block(dtype: Dtype) -> RawBlock {
        let mut data = Vec::new();
        let mut tensor = |dtype: Dtype, shape: &[usize]| {
            let start = data.len();
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            data.extend((start..start + bytes).map(|index| (index * 37 % 251) as u8));
            RawTensor {
                dtype,
                shape: shape.to_vec(),
                place: start..start + bytes,
            }
        };
        let mut pair = |dtype, shape: &[usize]| [tensor(dtype, shape), tensor(dtype, shape)];
        let layers = (0..2).map(|_| pair(dtype, &[1, 2, 3, 4])).collect();
        let snapshot = Some(vec![pair(Dtype::F32, &[1, 7])]);
        RawBlock {
            data,
            layers,
            snapshot,
        }
    }

    fn tensors(block: &RawBlock) -> Vec<(Dtype, &[usize], &[u8])> {
        let tensors = block.tensors();
        tensors
            .map(|(_, tensor)| (tensor.dtype, &tensor.shape[..], &block.data[tensor.place.clone()]))
            .collect()
    }

    #[test]
    fn decodes_what_was_encoded() {
        let whole = block(Dtype::BF16);
        let without = RawBlock {
            snapshot: None,
            ..whole.clone()
        };
        let bare = RawBlock {
            layers: Vec::new(),
            ..without.clone()
        };
        for block in [whole, block(Dtype::F32), block(Dtype::U32), without, bare] {
            let file = encode(&name(), &block).unwrap();
            let header = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
            let label = decode_label(&file[8..8 + header]).unwrap();
            assert_eq!((&label.name, label.snapshot), (&name(), block.snapshot.is_some()));
            let back = decode(file, "m", name().key()).unwrap();
            assert_eq!(tensors(&back), tensors(&block));
            assert_eq!(
                (back.layers.len(), back.snapshot.is_some()),
                (block.layers.len(), label.snapshot)
            );
        }
    }

    #[test]
    fn rejects_other_blocks_models_and_formats() {
        let file = encode(&name(), &block(Dtype::F16)).unwrap();
        let rejected = |model, key| decode(file.clone(), model, key).unwrap_err();
        assert_eq!(rejected("other", name().key()), BlockFileError::OtherBlock);
        assert_eq!(
            rejected("m", BlockKey::root("m", "x")),
            BlockFileError::OtherBlock
        );
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
        /// A file with a flipped bit or a missing end is rejected, or its tensors are intact.
        #[test]
        fn detects_damage(at in 0..100_000_usize, bit in 0..8_u32, cut in 0..2000_usize) {
            let whole = block(Dtype::F32);
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

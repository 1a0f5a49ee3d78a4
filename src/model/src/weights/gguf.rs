//! Size of one model under llama.cpp's quantisation, beyond the name of the format. The rules are
//! those of its `llama-quant.cpp`: tensors that a mix keeps in more bits, and substitutes for
//! matrices whose rows do not fit a format's blocks. The tests compare the results with published
//! files.

use super::formats::{EIGHT_BITS, FormatFacts, HEAD_BITS, Mix};
use super::{FormatBits, WeightFormat};
use crate::dimensions::{FeedForward, ModelDimensions};

/// Number of weights in a super-block of the K formats and their successors.
const SUPER_BLOCK: u32 = 256;
/// Returns whether rows of `columns` weights fill super-blocks.
fn in_super_blocks(columns: u32) -> bool {
    columns.is_multiple_of(SUPER_BLOCK)
}

/// Returns whether most matrices of the model are packed in super-blocks.
pub(super) fn packs_super_blocks(dimensions: &ModelDimensions, format: WeightFormat) -> bool {
    FormatFacts::of(format).mix.is_some() && in_super_blocks(dimensions.hidden)
}

/// Returns whether the average bits of a file do not follow from its format name.
pub(super) fn is_mix(format: WeightFormat) -> bool {
    FormatFacts::of(format).mix.is_some()
}

/// Returns the bits per weight of `format` in a model of these dimensions.
pub(super) fn bits(dimensions: &ModelDimensions, format: WeightFormat) -> FormatBits {
    let mut bits = format.bits();
    let wide_fits = in_super_blocks(dimensions.hidden);
    if bits.head == HEAD_BITS && !wide_fits {
        bits.head = EIGHT_BITS;
    }
    if let Some(Mix { packed, substitute }) = FormatFacts::of(format).mix {
        let wide = if wide_fits {
            0.0
        } else {
            substitute.wide - packed.wide
        };
        let more = |down: Down| wide * (1.0 - down.all) + (substitute.down - packed.down) * down.unfit;
        bits.body += more(Down::of_body(dimensions));
        bits.experts += more(Down::of_experts(dimensions));
    }
    if format == WeightFormat::Mxfp4 && dimensions.expert_layers() == 0 {
        // A model without experts has only matrices in the named format.
        let fewest = bits.experts;
        (bits.body, bits.head) = (fewest, fewest);
    }
    if format == WeightFormat::Q4KXl && dimensions.expert_layers() > 0 {
        // Logs of published files list attention, linear layers, shared experts, head and embedding
        // table as Q8_0.
        bits.body = EIGHT_BITS;
        bits.head = EIGHT_BITS;
    }
    bits
}

/// Share of down projections in a set of weights: all of them, and those whose rows do not fill
/// super-blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Down {
    all: f64,
    unfit: f64,
}

impl Down {
    fn of_body(dimensions: &ModelDimensions) -> Self {
        let body = dimensions.core_parameters() - dimensions.head_parameters();
        Self::share(dimensions, body, |block| match *block {
            FeedForward::Dense { intermediate, .. } => (intermediate, 1),
            FeedForward::Experts {
                shared_intermediate, ..
            } => (shared_intermediate, 1),
        })
    }

    fn of_experts(dimensions: &ModelDimensions) -> Self {
        Self::share(dimensions, dimensions.expert_parameters(), |block| match *block {
            FeedForward::Dense { .. } => (0, 0),
            FeedForward::Experts {
                intermediate,
                experts,
                ..
            } => (intermediate, experts),
        })
    }

    /// Computes the shares. `rows` returns the row length and the number of a layer's down
    /// projections.
    fn share(dimensions: &ModelDimensions, weights: u64, rows: impl Fn(&FeedForward) -> (u32, u32)) -> Self {
        let mut down = Self::default();
        for layer in &dimensions.layers {
            let (columns, count) = rows(&layer.feed_forward);
            let part =
                f64::from(dimensions.hidden) * f64::from(columns) * f64::from(count) / weights.max(1) as f64;
            down.all += part;
            if !in_super_blocks(columns) {
                down.unfit += part;
            }
        }
        down
    }
}

#[cfg(test)]
mod tests {
    use super::super::Weights;
    use super::*;
    use crate::shapes::ShapeFile;

    /// File sizes in 10⁹ bytes, as llama.cpp prints them (`file size`), without vision towers.
    #[test]
    fn estimates_size_of_files_whose_rows_do_not_fill_super_blocks() {
        let shapes = ShapeFile::parse(include_str!("../shapes.json")).unwrap();
        for (model, format, gigabytes) in [
            // 32 tensors of Q5_0, 28 of Q8_0 and 192 of Q4_K, 15.63 GiB. The experts have a width
            // of 704.
            ("gemma4-26b-a4b", "q4_k_m", 16.78),
            // 311 tensors of Q8_0; the repository lists 22.2 GB.
            ("qwen3.6-35b-a3b", "q4_k_xl", 22.2),
            // 4.33 GiB: the head is Q6_K.
            ("llama3-8b", "q4_0", 4.65),
        ] {
            let dimensions = shapes.dimensions(model).unwrap();
            let format: WeightFormat = format.parse().unwrap();
            let size = Weights::estimate(&dimensions, format).resident().0 as f64 / 1e9;
            assert!(
                (size / gigabytes - 1.0).abs() < 0.01,
                "{model} {format}: {size} GB"
            );
        }
    }

    #[test]
    fn only_rows_that_do_not_fill_super_blocks_change_the_bits() {
        let shapes = ShapeFile::parse(include_str!("../shapes.json")).unwrap();
        let bits = |model: &str, format: WeightFormat| bits(&shapes.dimensions(model).unwrap(), format);
        for format in [WeightFormat::Q2K, WeightFormat::Q4KM, WeightFormat::Q6K] {
            let (plain, odd) = (bits("llama3-8b", format), bits("qwen2.5-0.5b", format));
            assert_eq!(plain.body, format.bits().body);
            assert!(odd.body > plain.body + 0.5 && odd.head == EIGHT_BITS, "{format}");
            // Only the down projections of the experts do not fit.
            let experts = bits("gemma4-26b-a4b", format).experts - format.bits().experts;
            assert!(experts > 0.3 && experts < odd.body - plain.body, "{format}");
        }
        assert_eq!(bits("qwen2.5-0.5b", WeightFormat::Q4_0).body, 4.5);
    }
}

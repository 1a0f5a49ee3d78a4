//! What llama.cpp's quantisation makes of one model, beyond the name of a format. The rules are
//! those of its `llama-quant.cpp`: which tensors a mix keeps in more bits, and what is taken where
//! a matrix does not fit a format's blocks. Published files agree (tests below).

use super::{FormatBits, WeightFormat};
use crate::dimensions::{FeedForward, ModelDimensions};

/// Weights of one row that the K formats and their heirs pack together.
const SUPER_BLOCK: u32 = 256;
/// Q6_K, which the output head gets in every format below 8 bits.
pub(super) const HEAD_BITS: f64 = 6.5625;
/// Q8_0, which stands in for Q6_K.
const EIGHT_BITS: f64 = 8.5;

/// Bits of the matrices of a mix: of those that read the layer's width (queries, keys, gate, up),
/// and of the down projections, half of which the `_M` mixes keep in more.
#[derive(Debug, Clone, Copy)]
struct MixBits {
    wide: f64,
    down: f64,
}

/// Whether rows of so many weights can be packed in super-blocks.
fn in_super_blocks(columns: u32) -> bool {
    columns.is_multiple_of(SUPER_BLOCK)
}

/// Whether most matrices of a model of these dimensions are packed so.
pub(super) fn packs_super_blocks(dimensions: &ModelDimensions, format: WeightFormat) -> bool {
    mix(format).is_some() && in_super_blocks(dimensions.hidden)
}

/// The mix as it is meant, and with what stands in where rows do not fill super-blocks: Q4_K
/// becomes Q5_0, Q5_K Q5_1, Q6_K Q8_0, and what has fewer bits IQ4_NL. `None` for formats without
/// super-blocks.
fn mix(format: WeightFormat) -> Option<(MixBits, MixBits)> {
    let of = |wide: f64, down: f64| MixBits { wide, down };
    match format {
        WeightFormat::Q2K => Some((of(2.625, 3.4375), of(4.5, 4.5))),
        WeightFormat::Q3KS => Some((of(3.4375, 3.4375), of(4.5, 4.5))),
        WeightFormat::Q3KM => Some((of(3.4375, 4.5), of(4.5, 5.5))),
        WeightFormat::Q3KL => Some((of(3.4375, 5.5), of(4.5, 6.0))),
        WeightFormat::Q4KS => Some((of(4.5, 4.625), of(5.5, 5.5625))),
        WeightFormat::Q4KM | WeightFormat::Q4KXl => Some((of(4.5, 5.53), of(5.5, 7.0))),
        WeightFormat::Q5KS => Some((of(5.5, 5.5), of(6.0, 6.0))),
        WeightFormat::Q5KM => Some((of(5.5, 6.03), of(6.0, 7.25))),
        WeightFormat::Q6K => Some((of(6.5625, 6.5625), of(EIGHT_BITS, EIGHT_BITS))),
        WeightFormat::Iq4Xs => Some((of(4.25, 4.25), of(4.5, 4.5))),
        WeightFormat::Affine { .. }
        | WeightFormat::Float16
        | WeightFormat::BFloat16
        | WeightFormat::Float32
        | WeightFormat::Mxfp4
        | WeightFormat::Mxfp8
        | WeightFormat::Nvfp4
        | WeightFormat::Q4_0
        | WeightFormat::Q4_1
        | WeightFormat::Q5_0
        | WeightFormat::Q5_1
        | WeightFormat::Q8_0
        | WeightFormat::Iq4Nl => None,
        // What stands in is not known of them; the mixes of few bits fall back on IQ4_NL.
        WeightFormat::Gguf { hundredths, .. } => {
            let bits = f64::from(hundredths) / 100.0;
            Some((of(bits, bits), of(bits.max(4.5), bits.max(4.5))))
        }
    }
}

/// Whether a file's name leaves open how many bits its weights have on average.
pub(super) fn is_mix(format: WeightFormat) -> bool {
    mix(format).is_some()
}

/// Bits per weight of `format` in a model of these dimensions.
pub(super) fn bits(dimensions: &ModelDimensions, format: WeightFormat) -> FormatBits {
    let mut bits = format.bits();
    let wide_fits = in_super_blocks(dimensions.hidden);
    if bits.head == HEAD_BITS && !wide_fits {
        bits.head = EIGHT_BITS;
    }
    if let Some((meant, instead)) = mix(format) {
        let wide = if wide_fits { 0.0 } else { instead.wide - meant.wide };
        let more = |down: Down| wide * (1.0 - down.all) + (instead.down - meant.down) * down.unfit;
        bits.body += more(Down::of_body(dimensions));
        bits.experts += more(Down::of_experts(dimensions));
    }
    if format == WeightFormat::Mxfp4 && dimensions.expert_layers() == 0 {
        // Without experts there is nothing else that it could be the format of.
        let fewest = bits.experts;
        (bits.body, bits.head) = (fewest, fewest);
    }
    if format == WeightFormat::Q4KXl && dimensions.expert_layers() > 0 {
        // Logs of published files list attention, linear layers, shared experts, head and table as
        // Q8_0.
        bits.body = EIGHT_BITS;
        bits.head = EIGHT_BITS;
    }
    bits
}

/// Of some weights, the share in down projections, and in those whose rows do not fill
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

    /// `rows` tells how long the rows of a layer's down projections are, and how many projections
    /// it has.
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

    /// Sizes as llama.cpp prints them for published files (`file size`), in 10⁹ bytes; of the
    /// vision-less parts.
    #[test]
    fn what_does_not_fit_super_blocks_weighs_what_files_say() {
        let shapes = ShapeFile::parse(include_str!("../shapes.json")).unwrap();
        for (model, format, gigabytes) in [
            // 32 tensors of Q5_0 and 28 of Q8_0 beside 192 of Q4_K, 15.63 GiB: the experts are 704
            // wide.
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
    fn only_rows_that_do_not_fit_change_a_mix() {
        let shapes = ShapeFile::parse(include_str!("../shapes.json")).unwrap();
        let bits = |model: &str, format: WeightFormat| bits(&shapes.dimensions(model).unwrap(), format);
        for format in [WeightFormat::Q2K, WeightFormat::Q4KM, WeightFormat::Q6K] {
            let (plain, odd) = (bits("llama3-8b", format), bits("qwen2.5-0.5b", format));
            assert_eq!(plain.body, format.bits().body);
            assert!(odd.body > plain.body + 0.5 && odd.head == EIGHT_BITS, "{format}");
            // Only the down projections of its experts are odd.
            let experts = bits("gemma4-26b-a4b", format).experts - format.bits().experts;
            assert!(experts > 0.3 && experts < odd.body - plain.body, "{format}");
        }
        assert_eq!(bits("qwen2.5-0.5b", WeightFormat::Q4_0).body, 4.5);
    }
}

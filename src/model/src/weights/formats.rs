//! Table of the named weight formats: name, bits, and use of the bits by an engine.

use super::{FormatBits, WeightFormat};

/// Bits of Q6_K, the format of the output head in every format below 8 bits.
pub(super) const HEAD_BITS: f64 = 6.5625;
/// Bits of Q8_0, the substitute of Q6_K.
pub(super) const EIGHT_BITS: f64 = 8.5;

/// Row of [`FORMATS`].
pub(super) struct NamedRow {
    pub(super) format: WeightFormat,
    pub(super) name: &'static str,
    facts: FormatFacts,
}

/// Facts about a weight format.
#[derive(Debug, Clone, Copy)]
pub(super) struct FormatFacts {
    /// True if the format belongs to llama.cpp.
    pub(super) is_gguf: bool,
    /// Bits per weight if the rows of all matrices fit the blocks of the format.
    pub(super) bits: FormatBits,
    /// Share of bytes in 16-bit floats that an engine computes with: scales and biases, or all
    /// weights. Engines compute directly with GGUF blocks.
    pub(super) half_share: f64,
    /// Bits of the matrices of a format with super-blocks.
    pub(super) mix: Option<Mix>,
}

/// Bits of a mix: with super-blocks, and with the substitutes for rows that do not fill them. Q5_0
/// replaces Q4_K, Q5_1 replaces Q5_K, Q8_0 replaces Q6_K, and IQ4_NL replaces all formats with
/// fewer bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mix {
    pub(super) packed: MixBits,
    pub(super) substitute: MixBits,
}

/// Bits of a mix's matrices: matrices that read the layer's width (queries, keys, gate, up), and
/// down projections. The `_M` mixes keep half of the down projections in more bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct MixBits {
    pub(super) wide: f64,
    pub(super) down: f64,
}

/// Formats with one name each.
///
/// Microscaling formats have 4.25, 8.25 and 4.5 bits. Bits of GGUF formats are those of the block
/// layouts in the format's specification. Bits of K mixes are averages over published files, with
/// the head in Q6_K. `XL` mixes differ from file to file.
pub(super) static FORMATS: [NamedRow; 24] = {
    use WeightFormat as F;
    [
        row(F::Float16, "f16", FormatFacts::new(16.0).halves()),
        row(F::BFloat16, "bf16", FormatFacts::new(16.0).halves()),
        row(F::Float32, "f32", FormatFacts::new(32.0)),
        // Published for models with experts (gpt-oss), which keep all other matrices in 8 bits.
        row(F::Mxfp4, "mxfp4", FormatFacts::new(EIGHT_BITS).experts(4.25)),
        // The same experts, with 4 bits in groups of 64 for all other matrices.
        row(F::Mxfp4Q4, "mxfp4-q4", FormatFacts::new(4.5).experts(4.25)),
        row(F::Mxfp8, "mxfp8", FormatFacts::new(8.25)),
        row(F::Nvfp4, "nvfp4", FormatFacts::new(4.5)),
        row(F::Q2K, "q2_k", gguf(3.30).mix((2.625, 3.4375), (4.5, 4.5))),
        row(F::Q3KS, "q3_k_s", gguf(3.44).mix((3.4375, 3.4375), (4.5, 4.5))),
        row(F::Q3KM, "q3_k_m", gguf(3.86).mix((3.4375, 4.5), (4.5, 5.5))),
        row(F::Q3KL, "q3_k_l", gguf(4.23).mix((3.4375, 5.5), (4.5, 6.0))),
        row(F::Q4_0, "q4_0", gguf(4.5)),
        row(F::Q4_1, "q4_1", gguf(5.0)),
        row(F::Q4KS, "q4_k_s", gguf(4.54).mix((4.5, 4.625), (5.5, 5.5625))),
        row(F::Q4KM, "q4_k_m", gguf(4.85).mix((4.5, 5.53), (5.5, 7.0))),
        // Models with experts keep all other matrices in 8 bits; see `gguf`.
        row(
            F::Q4KXl,
            "q4_k_xl",
            gguf(5.2).experts(4.85).mix((4.5, 5.53), (5.5, 7.0)),
        ),
        row(F::Q5_0, "q5_0", gguf(5.5)),
        row(F::Q5_1, "q5_1", gguf(6.0)),
        row(F::Q5KS, "q5_k_s", gguf(5.50).mix((5.5, 5.5), (6.0, 6.0))),
        row(F::Q5KM, "q5_k_m", gguf(5.69).mix((5.5, 6.03), (6.0, 7.25))),
        row(
            F::Q6K,
            "q6_k",
            gguf(HEAD_BITS).mix((HEAD_BITS, HEAD_BITS), (EIGHT_BITS, EIGHT_BITS)),
        ),
        row(F::Q8_0, "q8_0", gguf(EIGHT_BITS).head(EIGHT_BITS)),
        row(F::Iq4Xs, "iq4_xs", gguf(4.25).mix((4.25, 4.25), (4.5, 4.5))),
        row(F::Iq4Nl, "iq4_nl", gguf(4.5)),
    ]
};

const fn row(format: WeightFormat, name: &'static str, facts: FormatFacts) -> NamedRow {
    NamedRow { format, name, facts }
}

/// Returns the facts of a GGUF format without super-blocks, with the output head in Q6_K.
const fn gguf(bits: f64) -> FormatFacts {
    FormatFacts {
        is_gguf: true,
        ..FormatFacts::new(bits).head(HEAD_BITS)
    }
}

impl FormatFacts {
    /// Returns the facts of an MLX format with the same bits in all matrices.
    const fn new(bits: f64) -> Self {
        Self {
            is_gguf: false,
            bits: FormatBits {
                body: bits,
                experts: bits,
                head: bits,
            },
            half_share: 0.0,
            mix: None,
        }
    }

    const fn experts(mut self, bits: f64) -> Self {
        self.bits.experts = bits;
        self
    }

    const fn head(mut self, bits: f64) -> Self {
        self.bits.head = bits;
        self
    }

    const fn halves(mut self) -> Self {
        self.half_share = 1.0;
        self
    }

    const fn mix(mut self, packed: (f64, f64), substitute: (f64, f64)) -> Self {
        self.mix = Some(Mix {
            packed: MixBits::new(packed),
            substitute: MixBits::new(substitute),
        });
        self
    }

    /// Returns the facts of a format. Groups of an affine format share a scale and a bias of 16
    /// bits: `b + 32/g`.
    pub(super) fn of(format: WeightFormat) -> Self {
        if let WeightFormat::Affine { bits, group } = format {
            let scales = 32.0 / f64::from(group);
            let bits = f64::from(bits);
            return Self {
                half_share: scales / (bits + scales),
                ..Self::new(bits + scales)
            };
        }
        if let WeightFormat::Gguf { hundredths, .. } = format {
            let bits = f64::from(hundredths) / 100.0;
            // The substitutes of low-bit mixes are IQ4_NL; those of other mixes are unknown.
            let substitute = bits.max(4.5);
            return gguf(bits)
                .head(bits.max(HEAD_BITS))
                .mix((bits, bits), (substitute, substitute));
        }
        FORMATS
            .iter()
            .find(|row| row.format == format)
            .expect("every format without parameters has a row")
            .facts
    }
}

impl MixBits {
    const fn new((wide, down): (f64, f64)) -> Self {
        Self { wide, down }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_table_parse_and_are_listed() {
        for row in &FORMATS {
            assert_eq!(row.name.parse(), Ok(row.format));
            assert_eq!(row.format.to_string(), row.name);
            assert!(WeightFormat::NAMES.contains(row.name), "{}", row.name);
        }
    }
}

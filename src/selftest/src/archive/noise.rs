//! Normally distributed numbers from a seed: those of numpy's `default_rng(seed).standard_normal`,
//! with which `e2e/fixtures/logits.py` creates the weights of the tiny models.
//!
//! numpy hashes the seed to the state of a permuted congruential generator (PCG64: XSL-RR, 128 bits
//! of state) and maps its numbers by the ziggurat method (Marsaglia and Tsang, 256 layers).

use std::sync::LazyLock;

/// Number of layers of the ziggurat.
const LAYERS: usize = 256;
/// Start of the tail.
const TAIL: f64 = 3.654_152_885_361_009;
/// Area of a layer.
const AREA: f64 = 0.004_928_673_233_974_655;
/// Number of bits of a generated number that determine its place in a layer.
const PLACE_BITS: u32 = 52;

/// Infinite sequence of numbers.
#[derive(Debug)]
pub(super) struct Noise {
    state: u128,
    increment: u128,
}

impl Noise {
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    pub(super) fn new(seed: &[u32]) -> Self {
        let [a, b, c, d] = hashed(seed).map(u128::from);
        let mut noise = Self {
            state: 0,
            increment: (c << 64 | d) << 1 | 1,
        };
        noise.step();
        noise.state = noise.state.wrapping_add(a << 64 | b);
        noise.step();
        noise
    }

    fn step(&mut self) {
        let next = self.state.wrapping_mul(Self::MULTIPLIER);
        self.state = next.wrapping_add(self.increment);
    }

    fn bits(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Returns a number from 0 to 1.
    fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let layers = &*ZIGGURAT;
        loop {
            let bits = self.bits();
            let layer = (bits & 0xff) as usize;
            let sign = if bits >> 8 & 1 == 1 { -1.0 } else { 1.0 };
            let place = bits >> 9 & ((1 << PLACE_BITS) - 1);
            let value = place as f64 * layers.widths[layer];
            if place < layers.inner[layer] {
                return sign * value;
            }
            if layer == 0 {
                let sign = if place >> 8 & 1 == 1 { -1.0 } else { 1.0 };
                return sign * self.tail();
            }
            let (below, above) = (layers.heights[layer], layers.heights[layer - 1]);
            if (above - below) * self.uniform() + below < density(value) {
                return sign * value;
            }
        }
    }

    /// Returns a number beyond [`TAIL`].
    fn tail(&mut self) -> f64 {
        loop {
            let beyond = -(-self.uniform()).ln_1p() / TAIL;
            let bound = -(-self.uniform()).ln_1p();
            if bound + bound > beyond * beyond {
                return TAIL + beyond;
            }
        }
    }
}

impl Iterator for Noise {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        Some(self.normal())
    }
}

/// Layers of the ziggurat.
struct Ziggurat {
    /// Places below are inside the density.
    inner: [u64; LAYERS],
    /// Width of a layer, divided by the number of places.
    widths: [f64; LAYERS],
    heights: [f64; LAYERS],
}

static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(|| {
    let places = (1_u64 << PLACE_BITS) as f64;
    let base = AREA / density(TAIL);
    let mut ziggurat = Ziggurat {
        inner: [0; LAYERS],
        widths: [base / places; LAYERS],
        heights: [1.0; LAYERS],
    };
    let last = LAYERS - 1;
    ziggurat.inner[0] = (TAIL / base * places) as u64;
    ziggurat.widths[last] = TAIL / places;
    ziggurat.heights[last] = density(TAIL);
    let mut outer = TAIL;
    for layer in (1..last).rev() {
        let edge = (-2.0 * (AREA / outer + density(outer)).ln()).sqrt();
        ziggurat.inner[layer + 1] = (edge / outer * places) as u64;
        ziggurat.widths[layer] = edge / places;
        ziggurat.heights[layer] = density(edge);
        outer = edge;
    }
    ziggurat
});

/// Returns the density of the normal distribution without its constant factor.
fn density(value: f64) -> f64 {
    (-0.5 * value * value).exp()
}

/// Hashes a seed to the initial state and the increment of the generator.
fn hashed(seed: &[u32]) -> [u64; 4] {
    let mut hash = Hash {
        constant: 0x43b0_d7e5,
        multiplier: 0x931e_8875,
    };
    let mut pool: [u32; 4] = std::array::from_fn(|at| hash.of(seed.get(at).copied().unwrap_or(0)));
    for from in 0..pool.len() {
        for to in 0..pool.len() {
            if from != to {
                pool[to] = mix(pool[to], hash.of(pool[from]));
            }
        }
    }
    for more in seed.iter().skip(pool.len()) {
        for word in &mut pool {
            *word = mix(*word, hash.of(*more));
        }
    }
    let mut hash = Hash {
        constant: 0x8b51_f9dd,
        multiplier: 0x58f3_8ded,
    };
    let words: [u32; 8] = std::array::from_fn(|at| hash.of(pool[at % pool.len()]));
    std::array::from_fn(|at| u64::from(words[2 * at + 1]) << 32 | u64::from(words[2 * at]))
}

/// Hash whose constant changes with every word.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn of(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let word = word.wrapping_mul(self.constant);
        word ^ word >> 16
    }
}

fn mix(a: u32, b: u32) -> u32 {
    let mixed = a
        .wrapping_mul(0xca01_f9dd)
        .wrapping_sub(b.wrapping_mul(0x4973_f715));
    mixed ^ mixed >> 16
}

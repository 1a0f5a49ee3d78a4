//! Smallest changes that would make a model fit.

use std::cmp::Reverse;
use std::fmt;

use super::{FitQuery, Machine, Service};
use crate::chip;
use crate::chip::ChipVariant;
use crate::predict::Hardware;
use rooflet_base::units::Bytes;

/// Shortest context that is suggested, in tokens.
const MIN_CONTEXT_TOKENS: u32 = 256;

/// Bits of KV caches and weights that are suggested, largest first.
const KV_BITS: [u32; 2] = [8, 4];
const WEIGHT_BITS: [u32; 5] = [8, 6, 5, 4, 3];
/// Bits per weight for scale and bias in an affine format with groups of 64.
const SCALE_BITS: f64 = 0.5;

/// Single change that makes the model fit, with everything else unchanged.
#[derive(Debug, Clone, PartialEq)]
pub enum Suggestion {
    ContextTokens(u32),
    Concurrency(u32),
    KvBits(u32),
    /// Weights quantised to this number of bits, and their size.
    WeightBits(u32, Bytes),
    /// Smallest machine of the catalogue.
    Machine(&'static ChipVariant, Bytes),
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextTokens(tokens) => write!(f, "a context of {tokens} tokens: --context {tokens}"),
            Self::Concurrency(1) => f.write_str("one stream at a time: --concurrency 1"),
            Self::Concurrency(streams) => write!(f, "{streams} streams at a time: --concurrency {streams}"),
            Self::KvBits(bits) => write!(f, "a KV cache of {bits} bits: --kv-bits {bits}"),
            Self::WeightBits(bits, weights) => {
                write!(
                    f,
                    "a version of the model quantised to {bits} bits, about {weights} of weights"
                )
            }
            Self::Machine(chip, memory) => {
                write!(
                    f,
                    "a machine with {memory}, such as {} with {} GPU cores",
                    chip.name, chip.gpu_cores
                )
            }
        }
    }
}

impl FitQuery<'_> {
    pub(super) fn suggestions(
        &self,
        machine: &Machine,
        max_context_tokens: Option<u32>,
        max_concurrency: Option<u32>,
    ) -> Vec<Suggestion> {
        let service = self.service;
        let mut found = Vec::new();
        found.extend(
            max_context_tokens
                .filter(|tokens| (MIN_CONTEXT_TOKENS..service.context_tokens).contains(tokens))
                .map(Suggestion::ContextTokens),
        );
        found.extend(
            max_concurrency
                .filter(|streams| *streams < service.concurrency)
                .map(Suggestion::Concurrency),
        );
        let fewer = KV_BITS.into_iter().filter(|bits| *bits < service.kv_bits);
        let with_bits = |kv_bits| Self {
            service: Service { kv_bits, ..service },
            ..*self
        };
        found.extend(
            fewer
                .into_iter()
                .find(|bits| {
                    let query = with_bits(*bits);
                    query.fits(machine) && query.service.kv_problem(self.facts).is_none()
                })
                .map(Suggestion::KvBits),
        );
        found.extend(self.smaller_weights(machine));
        found.extend(self.larger_machine(machine));
        found
    }

    /// Returns the format with most bits whose weights are small enough.
    fn smaller_weights(&self, machine: &Machine) -> Option<Suggestion> {
        if self.beyond_context().is_some() {
            return None;
        }
        let need = self.need();
        let room = machine.limit - (need.total() - need.weights);
        WEIGHT_BITS.into_iter().find_map(|bits| {
            let weights = Bytes((self.facts.parameters as f64 * (f64::from(bits) + SCALE_BITS) / 8.0) as u64);
            (weights < need.weights && weights <= room).then_some(Suggestion::WeightBits(bits, weights))
        })
    }

    /// Returns the machine with the least memory that fits: with the same chip if it is sold with
    /// enough memory, otherwise the smallest of the newest generation.
    fn larger_machine(&self, machine: &Machine) -> Option<Suggestion> {
        let fits = |chip: &'static ChipVariant, memory: Bytes| self.fits(&Machine::of_chip(chip, memory));
        let smallest = |chip: &'static ChipVariant| {
            let mut sizes: Vec<Bytes> = chip.memory.clone();
            sizes.sort_unstable();
            sizes
                .into_iter()
                .find(|memory| fits(chip, *memory))
                .map(|memory| (chip, memory))
        };
        let own = match machine.hardware {
            Some(Hardware::Chip(chip)) => smallest(chip),
            Some(Hardware::Measured(_)) | None => None,
        };
        let any = || {
            chip::catalogue()
                .iter()
                .filter_map(smallest)
                .min_by_key(|(chip, memory)| (*memory, chip.tier, Reverse(chip.generation), chip.gpu_cores))
        };
        own.or_else(any)
            .map(|(chip, memory)| Suggestion::Machine(chip, memory))
    }
}

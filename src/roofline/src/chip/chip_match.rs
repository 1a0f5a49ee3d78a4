//! Match of a described machine to a bin. Bins without a data sheet are derived from related bins:
//! chips newer than the catalogue, chips of phones, unlisted numbers of cores.

use std::cmp::Ordering;
use std::sync::Mutex;

use super::naming::{PHONES, chip_names, cores_in};
use super::{ChipTier, ChipVariant, UnknownChip, catalogue, find, parse_name};
use rooflet_base::mutex::lock;
use rooflet_base::units::{Bytes, BytesPerSecond};

/// Rounding of bandwidths in tables: 68 or 68.25, 800 or 819.
const BANDWIDTH_ROUNDING: f64 = 0.03;
/// Maximum distance to the newest generation of the catalogue. Names beyond it are not Apple chips.
const GENERATIONS_AHEAD: u32 = 4;
/// Additional half-widths of a prediction's interval, as logarithms, for a chip that is derived
/// from related bins: for all figures, or for the cores alone if the bandwidth is stated. The
/// values are assumptions: bandwidths grew by a fifth to a half from generation to generation.
const UNKNOWN_CHIP: f64 = 0.30;
const UNKNOWN_CORES: f64 = 0.10;
/// Half-width if bins of one name differ in bandwidth and the row does not distinguish them: 410 or
/// 546 GB/s.
const AMBIGUOUS_BIN: f64 = 0.15;

/// Description of a machine in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Description<'a> {
    pub(crate) name: &'a str,
    pub(crate) gpu_cores: Option<u32>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) bandwidth: Option<BytesPerSecond>,
}

/// Matching bin with assumptions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChipMatch {
    pub(crate) chip: &'static ChipVariant,
    pub(crate) assumed: Option<Assumed>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assumed {
    pub(crate) remark: String,
    /// Additional half-width of the prediction, as a logarithm.
    pub(crate) uncertainty: f64,
}

impl ChipMatch {
    /// Finds the described bin, or derives one from related bins. Fails if the name is not that of
    /// an Apple chip.
    pub(crate) fn of(description: Description) -> Result<Self, UnknownChip> {
        let names = chip_names(description.name);
        let machine = description.name.to_ascii_lowercase();
        let mut description = description;
        let mut found = find(description.name, description.gpu_cores, description.memory);
        // The name of a machine may contain the chip and its cores. A virtual machine does not have
        // that chip.
        if let (Err(UnknownChip::Name { .. }), [name]) = (&found, names.as_slice())
            && !machine.contains("virtual")
        {
            description.gpu_cores = description.gpu_cores.or(cores_in(description.name));
            description.name = name;
            found = find(name, description.gpu_cores, description.memory);
        }
        // A phone may have more GPU cores than a Mac with the same chip.
        let is_phone =
            machine.contains("iphone") && PHONES.iter().any(|(phone, ..)| *phone == description.name);
        if is_phone && let Some(derived) = description.derived_bin() {
            return Ok(derived);
        }
        match found {
            Ok(chip) => Ok(Self { chip, assumed: None }),
            Err(UnknownChip::Ambiguous { name, near }) => {
                let fitting = bins(&name)
                    .filter(|bin| description.gpu_cores.is_none_or(|cores| cores == bin.gpu_cores));
                Ok(description.one_of(fitting.collect(), &near))
            }
            Err(UnknownChip::GpuCores { name, near, .. }) => Ok(description.with_other_cores(&name, &near)),
            Err(unknown @ UnknownChip::Name { .. }) => description.derived_bin().ok_or(unknown),
        }
    }

    fn assumed(chip: &'static ChipVariant, uncertainty: f64, remark: String) -> Self {
        Self {
            chip,
            assumed: Some(Assumed { remark, uncertainty }),
        }
    }
}

impl Description<'_> {
    /// Returns the bin of the stated bandwidth, or the largest bin.
    fn one_of(&self, bins: Vec<&'static ChipVariant>, near: &str) -> ChipMatch {
        let is_near = |chip: &ChipVariant| {
            self.bandwidth
                .is_some_and(|stated| (chip.bandwidth.0 / stated.0 - 1.0).abs() < BANDWIDTH_ROUNDING)
        };
        let largest = |chips: &mut dyn Iterator<Item = &'static ChipVariant>| {
            chips.max_by(|a, b| {
                (a.gpu_cores, a.bandwidth.0)
                    .partial_cmp(&(b.gpu_cores, b.bandwidth.0))
                    .unwrap_or(Ordering::Equal)
            })
        };
        if let Some(chip) = largest(&mut bins.iter().copied().filter(|chip| is_near(chip))) {
            return ChipMatch { chip, assumed: None };
        }
        let chip = largest(&mut bins.iter().copied()).unwrap_or(&catalogue()[0]);
        let remark = format!("there are {near}; {chip} is assumed");
        ChipMatch::assumed(chip, AMBIGUOUS_BIN, remark)
    }

    /// Returns a bin like the one with the nearest number of cores. If the number is far from all
    /// bins, it is ignored.
    fn with_other_cores(&self, name: &str, near: &str) -> ChipMatch {
        let cores = self.gpu_cores.unwrap_or_default();
        let plausible = |bin: &&ChipVariant| {
            let twice = cores.saturating_mul(2);
            (bin.gpu_cores..=bin.gpu_cores * 3).contains(&twice)
        };
        let Some(relative) = bins(name)
            .filter(plausible)
            .min_by_key(|bin| bin.gpu_cores.abs_diff(cores))
        else {
            let bin = self.one_of(bins(name).collect(), near);
            let remark = format!(
                "{name} does not exist with {cores} GPU cores; {} is assumed",
                bin.chip
            );
            return ChipMatch::assumed(bin.chip, AMBIGUOUS_BIN, remark);
        };
        let chip = intern(ChipVariant {
            gpu_cores: cores,
            bandwidth: self.bandwidth.unwrap_or(relative.bandwidth),
            ..relative.clone()
        });
        let remark = format!("no {name} with {cores} GPU cores is known; {chip} is assumed, like {relative}");
        ChipMatch::assumed(chip, UNKNOWN_CORES, remark)
    }

    /// Derives a bin from the nearest generation. An Ultra may be derived from twice a Max.
    fn derived_bin(&self) -> Option<ChipMatch> {
        let phone = PHONES.iter().find(|(phone, ..)| *phone == self.name);
        let like = match phone {
            Some((_, generation, gpu_cores, bandwidth, memory)) => ChipVariant {
                generation: *generation,
                tier: ChipTier::Base,
                gpu_cores: *gpu_cores,
                bandwidth: BytesPerSecond(bandwidth * 1e9),
                memory: vec![Bytes::gib(*memory)],
                neural_accelerators: bins_of(ChipTier::Base)
                    .any(|bin| bin.generation == *generation && bin.neural_accelerators),
                name: self.name.to_owned(),
                source: String::new(),
                note: String::new(),
            },
            None => self.bin_of_nearest_generation()?,
        };
        let chip = intern(ChipVariant {
            name: self.name.to_owned(),
            gpu_cores: self.gpu_cores.unwrap_or(like.gpu_cores),
            bandwidth: self.bandwidth.unwrap_or(like.bandwidth),
            ..like
        });
        let uncertainty = match (self.bandwidth, self.gpu_cores) {
            (Some(_), Some(_)) => UNKNOWN_CORES,
            (_, _) => UNKNOWN_CHIP,
        };
        let remark = format!("{} is in no catalogue; {chip} is assumed", self.name);
        Some(ChipMatch::assumed(chip, uncertainty, remark))
    }

    fn bin_of_nearest_generation(&self) -> Option<ChipVariant> {
        let (generation, tier) = parse_name(self.name)?;
        let newest = catalogue().iter().map(|chip| chip.generation).max()?;
        if !(1..=newest + GENERATIONS_AHEAD).contains(&generation) {
            return None;
        }
        let nearest = |tier: ChipTier| {
            bins_of(tier).min_by_key(|bin| (bin.generation.abs_diff(generation), u32::MAX - bin.gpu_cores))
        };
        let like = nearest(tier)?;
        let half = nearest(ChipTier::Max).filter(|half| {
            tier == ChipTier::Ultra
                && half.generation.abs_diff(generation) < like.generation.abs_diff(generation)
        });
        let like = match half {
            Some(half) => ChipVariant {
                tier,
                gpu_cores: 2 * half.gpu_cores,
                bandwidth: BytesPerSecond(2.0 * half.bandwidth.0),
                ..half.clone()
            },
            None => like.clone(),
        };
        Some(ChipVariant { generation, ..like })
    }
}

fn bins(name: &str) -> impl Iterator<Item = &'static ChipVariant> {
    catalogue().iter().filter(move |chip| chip.name == name)
}

fn bins_of(tier: ChipTier) -> impl Iterator<Item = &'static ChipVariant> {
    catalogue().iter().filter(move |chip| chip.tier == tier)
}

/// Returns a reference to an equal bin that lives as long as the program, like the catalogue.
fn intern(chip: ChipVariant) -> &'static ChipVariant {
    static INTERNED: Mutex<Vec<&'static ChipVariant>> = Mutex::new(Vec::new());
    let mut interned = lock(&INTERNED);
    if let Some(known) = interned.iter().find(|known| ***known == chip) {
        return known;
    }
    let kept: &'static ChipVariant = Box::leak(Box::new(chip));
    interned.push(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_match(name: &str, gpu_cores: Option<u32>, bandwidth: Option<f64>) -> ChipMatch {
        ChipMatch::of(Description {
            name,
            gpu_cores,
            memory: None,
            bandwidth: bandwidth.map(|gigabytes| BytesPerSecond(gigabytes * 1e9)),
        })
        .unwrap()
    }

    #[test]
    fn finds_bins_of_the_catalogue_without_assumptions() {
        for (name, cores, bandwidth, expect) in [
            ("M4 Max 40-core", None, None, (40, 546.0)),
            ("Apple M4 Max (32-core GPU)", None, None, (32, 410.0)),
            ("MacBook Pro 16 M3 Max", Some(40), None, (40, 400.0)),
            ("Mac Studio M2 Ultra", Some(76), None, (76, 800.0)),
            ("M4 Max", None, Some(546.0), (40, 546.0)),
            ("M4 Max", None, Some(400.0), (32, 410.0)),
            ("M6", Some(12), Some(170.0), (12, 170.0)),
            ("MacBook Neo (A18 Pro)", None, None, (5, 60.0)),
        ] {
            let found = find_match(name, cores, bandwidth);
            assert_eq!(found.assumed, None, "{name}");
            assert_eq!(
                (found.chip.gpu_cores, found.chip.bandwidth.0 / 1e9),
                expect,
                "{name}"
            );
        }
    }

    #[test]
    fn derives_unknown_bins_from_related_bins() {
        for (name, cores, bandwidth, expect) in [
            ("M4 Max", None, None, (40, 546.0)),
            ("M4 Max", Some(38), None, (38, 546.0)),
            ("M4 Pro", Some(16), Some(273.0), (16, 273.0)),
            ("M4 Pro", Some(140), None, (20, 273.0)),
            ("M4 Pro", Some(u32::MAX), None, (20, 273.0)),
            ("M4 Ultra", None, None, (80, 1092.0)),
            ("M4 Ultra", Some(64), Some(900.0), (64, 900.0)),
            ("iPhone 16 Pro (A18 Pro)", None, None, (6, 60.0)),
            ("M7", Some(12), Some(200.0), (12, 200.0)),
        ] {
            let found = find_match(name, cores, bandwidth);
            assert_eq!(
                (found.chip.gpu_cores, found.chip.bandwidth.0 / 1e9),
                expect,
                "{name}"
            );
            let exact = (name, cores) == ("M4 Pro", Some(16));
            assert_eq!(found.assumed.is_none(), exact, "{name}");
        }
        let newer = find_match("M8 Ultra", None, None);
        assert!(newer.chip.generation == 8 && newer.chip.neural_accelerators);
        assert_eq!(newer.assumed.unwrap().uncertainty, UNKNOWN_CHIP);
        assert!(
            std::ptr::eq(newer.chip, find_match("M8 Ultra", None, None).chip),
            "one instance per bin"
        );
    }

    #[test]
    fn rejects_names_that_are_not_apple_chips() {
        for name in [
            "RTX 4090",
            "A100",
            "Tesla M40",
            "Apple M1 (Virtual)",
            "Xeon",
            "",
            "M0",
            "M3/M4",
        ] {
            let description = Description {
                name,
                ..Description::default()
            };
            assert!(ChipMatch::of(description).is_err(), "{name}");
        }
    }
}

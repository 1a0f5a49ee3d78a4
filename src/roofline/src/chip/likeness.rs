//! Bins that are in no data sheet here, made from what is known of their relatives: a chip newer
//! than the catalogue, a phone's, a core count that nobody listed.

use std::cmp::Ordering;
use std::sync::Mutex;

use super::naming::{PHONES, chip_names, cores_in};
use super::{ChipTier, ChipVariant, UnknownChip, catalogue, find, parse_name};
use rooflet_base::mutex::lock;
use rooflet_base::units::{Bytes, BytesPerSecond};

/// Tables round a bandwidth by so much: 68 or 68.25, 800 or 819.
const BANDWIDTH_ROUNDING: f64 = 0.03;
/// Generations past the newest that are still taken for chips of Apple's rather than for something
/// else's name.
const GENERATIONS_AHEAD: u32 = 4;
/// Half-widths, as logarithms, that a prediction's interval gets for what is taken from relatives:
/// all of a chip, or its cores alone where the bandwidth is stated. Assumed; from generation to
/// generation bandwidths grew by a fifth to a half.
const UNKNOWN_CHIP: f64 = 0.30;
const UNKNOWN_CORES: f64 = 0.10;
/// Of bins of one name with bandwidths of their own, where nothing tells which: 410 or 546 GB/s.
const UNTOLD_BIN: f64 = 0.15;

/// What a row says of its machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Description<'a> {
    pub(crate) name: &'a str,
    pub(crate) gpu_cores: Option<u32>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) bandwidth: Option<BytesPerSecond>,
}

/// A bin, and what was assumed to find it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Likeness {
    pub(crate) chip: &'static ChipVariant,
    pub(crate) assumed: Option<Assumed>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assumed {
    pub(crate) remark: String,
    /// Half-width beside the prediction's own, as a logarithm.
    pub(crate) doubt: f64,
}

impl Likeness {
    /// The bin described, or one made like it. Fails where the name is that of no chip of Apple's.
    pub(crate) fn of(wanted: Description) -> Result<Self, UnknownChip> {
        let names = chip_names(wanted.name);
        let mut wanted = wanted;
        let mut found = find(wanted.name, wanted.gpu_cores, wanted.memory);
        // A chip in a machine's name, with its cores. A virtual machine's is not that chip.
        if let (Err(UnknownChip::Name { .. }), [name]) = (&found, names.as_slice())
            && !wanted.name.to_ascii_lowercase().contains("virtual")
        {
            wanted.gpu_cores = wanted.gpu_cores.or(cores_in(wanted.name));
            wanted.name = name;
            found = find(name, wanted.gpu_cores, wanted.memory);
        }
        match found {
            Ok(chip) => Ok(Self { chip, assumed: None }),
            Err(UnknownChip::Ambiguous { name, near }) => {
                let fitting =
                    bins(&name).filter(|bin| wanted.gpu_cores.is_none_or(|cores| cores == bin.gpu_cores));
                Ok(wanted.one_of(fitting.collect(), &near))
            }
            Err(UnknownChip::GpuCores { name, near, .. }) => Ok(wanted.of_other_cores(&name, &near)),
            Err(unknown @ UnknownChip::Name { .. }) => wanted.of_relatives().ok_or(unknown),
        }
    }

    fn assumed(chip: &'static ChipVariant, doubt: f64, remark: String) -> Self {
        Self {
            chip,
            assumed: Some(Assumed { remark, doubt }),
        }
    }
}

impl Description<'_> {
    /// The bin of the stated bandwidth, or the largest.
    fn one_of(&self, bins: Vec<&'static ChipVariant>, near: &str) -> Likeness {
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
            return Likeness { chip, assumed: None };
        }
        let chip = largest(&mut bins.iter().copied()).unwrap_or(&catalogue()[0]);
        let remark = format!("there are {near}; {chip} is assumed");
        Likeness::assumed(chip, UNTOLD_BIN, remark)
    }

    /// Like the bin of the nearest number of cores. A number far from all is taken for that of
    /// something else.
    fn of_other_cores(&self, name: &str, near: &str) -> Likeness {
        let cores = self.gpu_cores.unwrap_or_default();
        let plausible = |bin: &&ChipVariant| cores * 2 >= bin.gpu_cores && cores * 2 <= bin.gpu_cores * 3;
        let Some(relative) = bins(name)
            .filter(plausible)
            .min_by_key(|bin| bin.gpu_cores.abs_diff(cores))
        else {
            let told = self.one_of(bins(name).collect(), near);
            let remark = format!(
                "{name} is not made with {cores} GPU cores; {} is assumed",
                told.chip
            );
            return Likeness::assumed(told.chip, UNTOLD_BIN, remark);
        };
        let chip = made(ChipVariant {
            gpu_cores: cores,
            bandwidth: self.bandwidth.unwrap_or(relative.bandwidth),
            ..relative.clone()
        });
        let remark = format!("no {name} with {cores} GPU cores is known; {chip} is assumed, like {relative}");
        Likeness::assumed(chip, UNKNOWN_CORES, remark)
    }

    /// Like its elders, or, of two dies, twice one of them.
    fn of_relatives(&self) -> Option<Likeness> {
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
            None => self.of_elders()?,
        };
        let chip = made(ChipVariant {
            name: self.name.to_owned(),
            gpu_cores: self.gpu_cores.unwrap_or(like.gpu_cores),
            bandwidth: self.bandwidth.unwrap_or(like.bandwidth),
            ..like
        });
        let doubt = match (self.bandwidth, self.gpu_cores) {
            (Some(_), Some(_)) => UNKNOWN_CORES,
            (_, _) => UNKNOWN_CHIP,
        };
        let remark = format!("{} is in no catalogue; {chip} is assumed", self.name);
        Some(Likeness::assumed(chip, doubt, remark))
    }

    fn of_elders(&self) -> Option<ChipVariant> {
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

/// Kept as long as the program runs, as the catalogue is; each once.
fn made(chip: ChipVariant) -> &'static ChipVariant {
    static MADE: Mutex<Vec<&'static ChipVariant>> = Mutex::new(Vec::new());
    let mut made = lock(&MADE);
    if let Some(known) = made.iter().find(|known| ***known == chip) {
        return known;
    }
    let kept: &'static ChipVariant = Box::leak(Box::new(chip));
    made.push(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likeness(name: &str, gpu_cores: Option<u32>, bandwidth: Option<f64>) -> Likeness {
        Likeness::of(Description {
            name,
            gpu_cores,
            memory: None,
            bandwidth: bandwidth.map(|gigabytes| BytesPerSecond(gigabytes * 1e9)),
        })
        .unwrap()
    }

    #[test]
    fn a_bin_of_the_catalogue_is_found_in_prose_and_nothing_assumed() {
        for (name, cores, bandwidth, expect) in [
            ("M4 Max 40-core", None, None, (40, 546.0)),
            ("Apple M4 Max (32-core GPU)", None, None, (32, 410.0)),
            ("MacBook Pro 16 M3 Max", Some(40), None, (40, 400.0)),
            ("Mac Studio M2 Ultra", Some(76), None, (76, 800.0)),
            ("M4 Max", None, Some(546.0), (40, 546.0)),
            ("M4 Max", None, Some(400.0), (32, 410.0)),
            ("M6", Some(12), Some(170.0), (12, 170.0)),
        ] {
            let found = likeness(name, cores, bandwidth);
            assert_eq!(found.assumed, None, "{name}");
            assert_eq!(
                (found.chip.gpu_cores, found.chip.bandwidth.0 / 1e9),
                expect,
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_in_no_catalogue_is_made_like_its_relatives_and_told() {
        for (name, cores, bandwidth, expect) in [
            ("M4 Max", None, None, (40, 546.0)),
            ("M4 Max", Some(38), None, (38, 546.0)),
            ("M4 Pro", Some(16), Some(273.0), (16, 273.0)),
            ("M4 Pro", Some(140), None, (20, 273.0)),
            ("M4 Ultra", None, None, (80, 1092.0)),
            ("M4 Ultra", Some(64), Some(900.0), (64, 900.0)),
            ("iPhone 16 Pro (A18 Pro)", None, None, (6, 60.0)),
            ("M7", Some(12), Some(200.0), (12, 200.0)),
        ] {
            let found = likeness(name, cores, bandwidth);
            assert_eq!(
                (found.chip.gpu_cores, found.chip.bandwidth.0 / 1e9),
                expect,
                "{name}"
            );
            let exact = (name, cores) == ("M4 Pro", Some(16));
            assert_eq!(found.assumed.is_none(), exact, "{name}");
        }
        let newer = likeness("M8 Ultra", None, None);
        assert!(newer.chip.generation == 8 && newer.chip.neural_accelerators);
        assert_eq!(newer.assumed.unwrap().doubt, UNKNOWN_CHIP);
        assert!(
            std::ptr::eq(newer.chip, likeness("M8 Ultra", None, None).chip),
            "made once"
        );
    }

    #[test]
    fn what_is_not_apple_s_is_refused() {
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
            let wanted = Description {
                name,
                ..Description::default()
            };
            assert!(Likeness::of(wanted).is_err(), "{name}");
        }
    }
}

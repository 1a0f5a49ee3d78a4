//! Apple's chips as their data sheets describe them: `chips.csv` beside this file, one row per bin, each with its source.
//! A brand string alone does not name a bin: GPU cores and, for some, the memory size decide.

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::api::v1alpha1::Chip;
use crate::units::{Bytes, BytesPerSecond};

static CATALOGUE: LazyLock<Vec<ChipVariant>> = LazyLock::new(|| {
    csv::Reader::from_reader(include_str!("chips.csv").as_bytes())
        .deserialize::<Row>()
        .map(|row| ChipVariant::from(row.expect("chips.csv is part of this program and a test reads it")))
        .collect()
});

/// One bin of one chip. Every figure is nominal: what the maker says, not what was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChipVariant {
    /// The brand string, such as `Apple M4 Pro`.
    pub(crate) name: String,
    pub(crate) generation: u32,
    pub(crate) tier: ChipTier,
    pub(crate) gpu_cores: u32,
    pub(crate) bandwidth: BytesPerSecond,
    /// Memory sizes it is sold with.
    pub(crate) memory: Vec<Bytes>,
    /// Its GPU cores have matrix units.
    pub(crate) neural_accelerators: bool,
    pub(crate) source: String,
    /// Where sources disagree, and the like.
    pub(crate) note: String,
}

/// The size of a chip within its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChipTier {
    Base,
    Pro,
    Max,
    Ultra,
}

#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    gpu_cores: u32,
    bandwidth_gb_per_s: f64,
    memory_gib: String,
    neural_accelerators: String,
    source: String,
    note: String,
}

impl From<Row> for ChipVariant {
    fn from(row: Row) -> Self {
        let (generation, tier) = parse_name(&row.name).expect("chips.csv names chips as Apple does");
        Self {
            generation,
            tier,
            gpu_cores: row.gpu_cores,
            bandwidth: BytesPerSecond(row.bandwidth_gb_per_s * 1e9),
            memory: row
                .memory_gib
                .split(';')
                .map(|gib| Bytes::gib(gib.parse().expect("chips.csv lists memory sizes in GiB")))
                .collect(),
            neural_accelerators: row.neural_accelerators == "yes",
            name: row.name,
            source: row.source,
            note: row.note,
        }
    }
}

/// `Apple M4 Pro` → (4, Pro).
fn parse_name(name: &str) -> Option<(u32, ChipTier)> {
    let mut words = name.strip_prefix("Apple M")?.split(' ');
    let generation = words.next()?.parse().ok()?;
    let tier = match words.next() {
        None => ChipTier::Base,
        Some("Pro") => ChipTier::Pro,
        Some("Max") => ChipTier::Max,
        Some("Ultra") => ChipTier::Ultra,
        Some(_) => return None,
    };
    words.next().is_none().then_some((generation, tier))
}

impl fmt::Display for ChipVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} GPU cores, {})",
            self.name, self.gpu_cores, self.bandwidth
        )
    }
}

/// No bin of the catalogue is the one asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownChip {
    #[error("no chip is called `{name}`; known: {known}")]
    Name { name: String, known: String },
    #[error("{name} is not made with {gpu_cores} GPU cores, but with {known}")]
    GpuCores {
        name: String,
        gpu_cores: u32,
        known: String,
    },
    #[error("{name} comes with several bandwidths; say which with its GPU cores ({known}) or its memory")]
    Ambiguous { name: String, known: String },
}

/// All bins.
pub(crate) fn catalogue() -> &'static [ChipVariant] {
    &CATALOGUE
}

/// The bin with this name (`Apple ` may be left out), core count and memory size, as far as they are known.
/// Where they leave several, they must agree on the bandwidth: then the one with most cores is meant.
pub(crate) fn find(
    name: &str,
    gpu_cores: Option<u32>,
    memory: Option<Bytes>,
) -> Result<&'static ChipVariant, UnknownChip> {
    let bare = name.trim().trim_start_matches("Apple ");
    let named: Vec<_> = catalogue()
        .iter()
        .filter(|chip| chip.name["Apple ".len()..].eq_ignore_ascii_case(bare))
        .collect();
    let listed = |mut words: Vec<String>| {
        words.dedup();
        words.join(", ")
    };
    if named.is_empty() {
        return Err(UnknownChip::Name {
            name: name.to_owned(),
            known: listed(catalogue().iter().map(|chip| chip.name.clone()).collect()),
        });
    }
    let cores =
        |chips: &[&ChipVariant]| listed(chips.iter().map(|chip| chip.gpu_cores.to_string()).collect());
    let mut fitting = named.clone();
    if let Some(gpu_cores) = gpu_cores {
        fitting.retain(|chip| chip.gpu_cores == gpu_cores);
        if fitting.is_empty() {
            return Err(UnknownChip::GpuCores {
                name: named[0].name.clone(),
                gpu_cores,
                known: cores(&named),
            });
        }
    }
    if let Some(memory) = memory
        && fitting.iter().any(|chip| chip.memory.contains(&memory))
    {
        fitting.retain(|chip| chip.memory.contains(&memory));
    }
    let largest = fitting.iter().max_by_key(|chip| chip.gpu_cores).copied();
    match largest {
        Some(largest) if fitting.iter().all(|chip| chip.bandwidth == largest.bandwidth) => Ok(largest),
        _ => Err(UnknownChip::Ambiguous {
            name: named[0].name.clone(),
            known: cores(&named),
        }),
    }
}

/// Why a machine has no data sheet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoDataSheet {
    #[error("`{name}` is no bare Apple Silicon Mac: it never counts as a chip of the catalogue")]
    Development { name: String },
    #[error(transparent)]
    Unknown(#[from] UnknownChip),
}

/// The bin that a machine with `memory` has. Virtual machines and Rosetta have none, whatever they call themselves.
pub(crate) fn of_machine(chip: &Chip, memory: Bytes) -> Result<&'static ChipVariant, NoDataSheet> {
    if chip.development {
        return Err(NoDataSheet::Development {
            name: chip.name.clone(),
        });
    }
    Ok(find(&chip.name, chip.gpu_cores, Some(memory))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_chip_with_a_source() {
        assert!(catalogue().len() >= 38);
        for chip in catalogue() {
            assert!(chip.bandwidth.0 > 60e9 && !chip.source.is_empty(), "{chip}");
            assert!(!chip.memory.is_empty(), "{chip}");
        }
    }

    #[test]
    fn cores_or_memory_decide_between_bins() {
        let bandwidth = |name, cores, memory| find(name, cores, memory).map(|chip| chip.bandwidth.0 / 1e9);
        assert_eq!(bandwidth("Apple M4 Max", Some(40), None), Ok(546.0));
        assert_eq!(bandwidth("M4 Max", Some(32), None), Ok(410.0));
        assert_eq!(bandwidth("m4 max", None, Some(Bytes::gib(36))), Ok(410.0));
        assert_eq!(bandwidth("M6", None, Some(Bytes::gib(16))), Ok(153.0));
        assert_eq!(bandwidth("M4 Pro", None, None), Ok(273.0));
        assert!(matches!(
            bandwidth("M4 Max", None, None),
            Err(UnknownChip::Ambiguous { .. })
        ));
        assert!(matches!(
            bandwidth("M4 Max", Some(38), None),
            Err(UnknownChip::GpuCores { .. })
        ));
        assert!(matches!(
            bandwidth("M4 Ultra", None, None),
            Err(UnknownChip::Name { .. })
        ));
    }
}

//! Apple's chips by their data sheets: `chips.csv` has one row per bin, with its source. Bins of
//! one brand string differ in GPU cores and, for some, in memory size.

pub(super) mod chip_match;
mod matrix_units;
pub mod naming;

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

pub use matrix_units::MatrixUnits;
use rooflet_api::v1alpha1::Chip;
use rooflet_base::units::{Bytes, BytesPerSecond};

static CATALOGUE: LazyLock<Vec<ChipVariant>> = LazyLock::new(|| {
    csv::Reader::from_reader(include_str!("chips.csv").as_bytes())
        .deserialize::<Row>()
        .map(|row| ChipVariant::from(row.expect("chips.csv is built in and a test parses it")))
        .collect()
});

/// Bin of a chip. Every figure is nominal: published by the manufacturer, not measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ChipVariant {
    /// Brand string, such as `Apple M4 Pro`.
    pub name: String,
    pub generation: u32,
    pub tier: ChipTier,
    pub gpu_cores: u32,
    pub bandwidth: BytesPerSecond,
    /// Memory sizes that are sold with the bin.
    pub memory: Vec<Bytes>,
    /// True if the GPU cores have matrix units.
    pub neural_accelerators: bool,
    pub source: String,
    /// Remarks, such as disagreements of sources.
    pub note: String,
}

/// Size of a chip within its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChipTier {
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

/// Parses `Apple M4 Pro` as (4, Pro). A phone's chip in a Mac has the generation of the Mac chip
/// with the same GPU cores.
fn parse_name(name: &str) -> Option<(u32, ChipTier)> {
    let phone = naming::PHONES.iter().find(|(phone, ..)| *phone == name);
    if let Some((_, generation, ..)) = phone {
        return Some((*generation, ChipTier::Base));
    }
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

/// Error for a chip that matches no bin of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownChip {
    #[error("no chip is called `{name}`; there are {near}")]
    Name { name: String, near: String },
    #[error("{name} does not exist with {gpu_cores} GPU cores; there are {near}")]
    GpuCores {
        name: String,
        gpu_cores: u32,
        near: String,
    },
    #[error("{name} exists with different bandwidths; specify GPU cores or memory: {near}")]
    Ambiguous { name: String, near: String },
}

/// Returns all bins.
pub fn catalogue() -> &'static [ChipVariant] {
    &CATALOGUE
}

/// Finds the bin of a name, a number of GPU cores and a memory size. `Apple `, blanks and case are
/// ignored.
///
/// If several bins match and have the same bandwidth, the result is the bin with most cores.
pub fn find(
    name: &str,
    gpu_cores: Option<u32>,
    memory: Option<Bytes>,
) -> Result<&'static ChipVariant, UnknownChip> {
    let requested = normalized(name);
    let named: Vec<_> = catalogue()
        .iter()
        .filter(|chip| normalized(&chip.name) == requested)
        .collect();
    let Some(first) = named.first() else {
        return Err(UnknownChip::Name {
            name: name.to_owned(),
            near: near_names(&requested),
        });
    };
    let full_name = first.name.clone();
    let mut fitting = named.clone();
    if let Some(gpu_cores) = gpu_cores {
        fitting.retain(|chip| chip.gpu_cores == gpu_cores);
        if fitting.is_empty() {
            return Err(UnknownChip::GpuCores {
                name: full_name,
                gpu_cores,
                near: bins(&named),
            });
        }
    }
    // A size without a bin does not exclude bins: it may be hypothetical, or the share of a virtual
    // machine.
    if let Some(memory) = memory
        && fitting.iter().any(|chip| chip.memory.contains(&memory))
    {
        fitting.retain(|chip| chip.memory.contains(&memory));
    }
    let largest = fitting.iter().max_by_key(|chip| chip.gpu_cores).copied();
    match largest {
        Some(largest) if fitting.iter().all(|chip| chip.bandwidth == largest.bandwidth) => Ok(largest),
        _ => Err(UnknownChip::Ambiguous {
            name: full_name,
            near: bins(&fitting),
        }),
    }
}

/// Normalises a name: `Apple M4 Pro`, `M4 Pro` and `m4pro` are equal.
fn normalized(name: &str) -> String {
    let lower: String = name
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '-')
        .map(|c| c.to_ascii_lowercase())
        .collect();
    lower.strip_prefix("apple").unwrap_or(&lower).to_owned()
}

/// Lists chips of the same generation, or all chips if the name has none.
fn near_names(requested: &str) -> String {
    let generation = |name: &str| -> Option<u32> {
        let digits: String = name
            .strip_prefix('m')?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    };
    let names = |of: Option<u32>| {
        let chips = catalogue().iter();
        let mut names: Vec<_> = chips
            .filter(|chip| of.is_none_or(|of| chip.generation == of && chip.name.starts_with("Apple M")))
            .map(|chip| chip.name.as_str())
            .collect();
        names.dedup();
        names.join(", ")
    };
    let same = names(generation(requested).or(Some(0)));
    if same.is_empty() { names(None) } else { same }
}

/// Formats bins as `32 cores with 36 GiB: 410 GB/s; 40 cores with 48, 64 or 128 GiB: 546 GB/s`.
fn bins(chips: &[&ChipVariant]) -> String {
    let one = |chip: &&ChipVariant| {
        let gib: Vec<_> = chip
            .memory
            .iter()
            .map(|memory| (memory.0 >> 30).to_string())
            .collect();
        let sizes = match gib.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        };
        format!("{} cores with {sizes} GiB: {}", chip.gpu_cores, chip.bandwidth)
    };
    chips.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Kind of a machine, by the brand string of its chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    /// A Mac without virtualisation.
    AppleSilicon,
    /// `Apple processor`, `Apple M1 (Virtual)`.
    VirtualMachine,
    /// `VirtualApple @ 2.50GHz`: a translated Intel program.
    Rosetta,
    Other,
}

impl MachineKind {
    pub fn of_brand(brand: &str) -> Self {
        let Some(rest) = brand.strip_prefix("Apple ") else {
            return match brand.starts_with("VirtualApple") {
                true => Self::Rosetta,
                false => Self::Other,
            };
        };
        if rest.contains("Virtual") || rest == "processor" {
            return Self::VirtualMachine;
        }
        let model = rest.split(' ').next().unwrap_or_default();
        let numbered = model.len() > 1
            && model.starts_with(['M', 'A'])
            && model[1..].chars().all(|c| c.is_ascii_digit());
        match numbered {
            true => Self::AppleSilicon,
            false => Self::Other,
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            // The brand string is that of a real chip, but the system reports otherwise.
            Self::AppleSilicon => "is used from a virtual machine or through Rosetta",
            Self::VirtualMachine => "belongs to a virtual machine",
            Self::Rosetta => "is emulated by Rosetta",
            Self::Other => "is not Apple Silicon",
        }
    }
}

/// Reason why a machine has no data sheet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDataSheet {
    #[error("the chip `{name}` {}: there is no data sheet to compare with", MachineKind::of_brand(name).phrase())]
    Development { name: String },
    #[error(transparent)]
    Unknown(#[from] UnknownChip),
}

/// Returns the bin of a machine. If the data sheet has no bin with its number of GPU cores, the
/// nearest bin is returned with a note. Virtual machines and Rosetta have no bin, regardless of
/// their name.
pub fn of_machine(chip: &Chip, memory: Bytes) -> Result<Cow<'static, ChipVariant>, NoDataSheet> {
    if chip.development {
        return Err(NoDataSheet::Development {
            name: chip.name.clone(),
        });
    }
    match (find(&chip.name, chip.gpu_cores, Some(memory)), chip.gpu_cores) {
        (Err(unknown @ UnknownChip::GpuCores { .. }), Some(cores)) => {
            let nearest = nearest(&chip.name, cores).ok_or(unknown)?;
            Ok(Cow::Owned(nearest))
        }
        (found, _) => Ok(Cow::Borrowed(found?)),
    }
}

/// Returns the bin with the nearest number of GPU cores, with a note. Of two bins that are equally
/// near, the slower one.
fn nearest(name: &str, gpu_cores: u32) -> Option<ChipVariant> {
    let requested = normalized(name);
    let named = catalogue()
        .iter()
        .filter(|chip| normalized(&chip.name) == requested);
    let nearest = named.min_by_key(|chip| (chip.gpu_cores.abs_diff(gpu_cores), chip.bandwidth.0 as u64))?;
    Some(ChipVariant {
        gpu_cores,
        note: format!(
            "figures of {} GPU cores: the data sheet has no {} with {gpu_cores}",
            nearest.gpu_cores, nearest.name
        ),
        ..nearest.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_chip_with_a_source() {
        assert!(catalogue().len() >= 38);
        for chip in catalogue() {
            assert!(chip.bandwidth.0 >= 60e9 && !chip.source.is_empty(), "{chip}");
            assert!(!chip.memory.is_empty(), "{chip}");
        }
    }

    /// Figures from the data sheets, independent of the file, of bins with the same name.
    #[test]
    fn distinguishes_bins_of_the_same_name() {
        let cases = [
            ("Apple M3 Max", 30, 36, 300.0),
            ("Apple M3 Max", 40, 128, 400.0),
            ("Apple M4 Max", 32, 36, 410.0),
            ("Apple M4 Max", 40, 64, 546.0),
            ("Apple M5 Max", 32, 36, 460.0),
            ("Apple M5 Max", 40, 128, 614.0),
            ("Apple M6", 12, 16, 153.0),
            ("Apple M6", 12, 32, 170.0),
            ("Apple A18 Pro", 5, 8, 60.0),
        ];
        for (name, cores, gib, expect) in cases {
            let chip = find(name, Some(cores), Some(Bytes::gib(gib))).unwrap();
            assert_eq!(chip.bandwidth.0 / 1e9, expect, "{name} {cores} {gib}");
        }
    }

    /// Memory sizes from Apple's specification pages. Bins of the same bandwidth may have different
    /// sizes.
    #[test]
    fn memory_sizes_belong_to_the_bin() {
        for (name, cores, gib, expect) in [
            ("M4 Pro", 16, 64, true),
            ("M4 Pro", 20, 64, true),
            ("M4 Pro", 16, 32, false),
            ("M2 Max", 30, 96, false),
            ("M2 Max", 38, 96, true),
            ("M3 Ultra", 60, 512, false),
            ("M3 Ultra", 80, 512, true),
            ("M4 Max", 32, 128, false),
            ("M4 Max", 40, 128, true),
        ] {
            let chip = find(name, Some(cores), None).unwrap();
            let is_sold = chip.memory.contains(&Bytes::gib(gib));
            assert_eq!(is_sold, expect, "{name} {cores} {gib}");
        }
    }

    #[test]
    fn rows_are_distinct_bins() {
        for (index, chip) in catalogue().iter().enumerate() {
            for other in &catalogue()[index + 1..] {
                let same = chip.name == other.name
                    && chip.gpu_cores == other.gpu_cores
                    && chip.memory.iter().any(|memory| other.memory.contains(memory));
                assert!(!same, "{chip} twice");
            }
        }
    }

    #[test]
    fn errors_list_similar_bins() {
        let message =
            |name, cores, gib: Option<u64>| find(name, cores, gib.map(Bytes::gib)).unwrap_err().to_string();
        assert_eq!(
            message("M4 Ultra", None, None),
            "no chip is called `M4 Ultra`; there are Apple M4, Apple M4 Pro, Apple M4 Max"
        );
        assert_eq!(
            message("M4 Max", Some(38), None),
            "Apple M4 Max does not exist with 38 GPU cores; there are 32 cores with 36 GiB: 410 GB/s; \
             40 cores with 48, 64 or 128 GiB: 546 GB/s"
        );
        assert_eq!(
            message("M6", Some(12), Some(48)),
            "Apple M6 exists with different bandwidths; specify GPU cores or memory: \
             12 cores with 16 GiB: 153 GB/s; 12 cores with 24 or 32 GiB: 170 GB/s"
        );
        assert!(message("Xeon", None, None).contains("Apple M1 Ultra"));
    }

    #[test]
    fn virtual_machines_and_rosetta_have_no_data_sheet() {
        for real in ["Apple M1", "Apple M4 Pro", "Apple M3 Ultra", "Apple A18 Pro"] {
            assert_eq!(MachineKind::of_brand(real), MachineKind::AppleSilicon, "{real}");
        }
        for (other, nature) in [
            ("Apple processor", MachineKind::VirtualMachine),
            ("Apple M1 (Virtual)", MachineKind::VirtualMachine),
            ("VirtualApple @ 2.50GHz", MachineKind::Rosetta),
            ("Intel(R) Core(TM) i9", MachineKind::Other),
            ("Apple M", MachineKind::Other),
            ("", MachineKind::Other),
        ] {
            assert_eq!(MachineKind::of_brand(other), nature, "{other}");
        }
        let virtual_machine = Chip {
            name: "Apple M1 (Virtual)".to_owned(),
            development: true,
            ..Chip::default()
        };
        assert_eq!(
            of_machine(&virtual_machine, Bytes::gib(8))
                .unwrap_err()
                .to_string(),
            "the chip `Apple M1 (Virtual)` belongs to a virtual machine: there is no data sheet to compare with"
        );
    }

    /// The MacBook Air with the base M5 has 8 GPU cores (Apple's specification page).
    #[test]
    fn unlisted_number_of_cores_uses_the_nearest_bin() {
        let chip = |name: &str, cores| Chip {
            name: name.to_owned(),
            gpu_cores: Some(cores),
            ..Chip::default()
        };
        let air = of_machine(&chip("Apple M5", 8), Bytes::gib(16)).unwrap();
        assert_eq!((air.gpu_cores, air.bandwidth.0 / 1e9), (8, 153.6));
        assert_eq!(
            air.note,
            "figures of 10 GPU cores: the data sheet has no Apple M5 with 8"
        );
        let max = of_machine(&chip("Apple M4 Max", 36), Bytes::gib(64)).unwrap();
        assert_eq!(max.bandwidth.0 / 1e9, 410.0, "equally near to 32 and 40");
        assert!(of_machine(&chip("Apple M4 Ultra", 60), Bytes::gib(64)).is_err());
    }

    #[test]
    fn cores_or_memory_decide_between_bins() {
        let bandwidth = |name, cores, memory| find(name, cores, memory).map(|chip| chip.bandwidth.0 / 1e9);
        assert_eq!(bandwidth("Apple M4 Max", Some(40), None), Ok(546.0));
        assert_eq!(bandwidth("M4 Max", Some(32), None), Ok(410.0));
        assert_eq!(bandwidth("m4max", None, Some(Bytes::gib(36))), Ok(410.0));
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

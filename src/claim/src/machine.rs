//! Machine of a claim: candidate chips, their limits, and errors in the description.

use super::stated::Reading;
use rooflet_roofline::chip;
use rooflet_roofline::chip::naming::{PHONES, chip_names, cores_in};
use rooflet_roofline::chip::{ChipTier, ChipVariant};

/// Maximum TFLOPS of one GPU core, by generation from M1 on.
///
/// Up to M4: 128 lanes × 2 operations × clock in 32 bits, plus a seventh as a margin for the
/// highest clock of a generation; Apple's GPUs are not faster in 16 bits. From M5 on: matrix units
/// with 512 multiply-adds per cycle in 16 bits. The highest measured values from M1 to M5 are 0.24,
/// 0.27, 0.29, 0.32 and 1.54.
const PEAK_TFLOPS_PER_CORE: [f64; 6] = [0.38, 0.42, 0.42, 0.53, 2.0, 2.2];
/// TFLOPS of the fastest neural engine in 16 bits, for engines that may use it.
const NEURAL_ENGINE_TFLOPS: f64 = 20.0;
/// Relative rounding of published bandwidths: 68 for 68.25, 800 for 819.
const BANDWIDTH_ROUNDING: f64 = 0.03;

/// Bin of a chip, with its limits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bin {
    pub(super) name: String,
    pub(super) gpu_cores: u32,
    /// Memory bandwidth in bytes per second.
    pub(super) bandwidth: f64,
    /// Memory sizes in GiB.
    pub(super) memory_gib: Vec<u64>,
    /// Maximum operations per second.
    pub(super) peak: f64,
    /// Bytes of the system cache, which may hold weights between passes.
    pub(super) cache: f64,
    pub(super) catalogued: Option<&'static ChipVariant>,
}

impl Bin {
    fn of(chip: &'static ChipVariant) -> Self {
        let cache_mib = match chip.tier {
            ChipTier::Base => 16,
            ChipTier::Pro => 36,
            ChipTier::Max => 64,
            ChipTier::Ultra => 128,
        };
        Self {
            name: chip.name.clone(),
            gpu_cores: chip.gpu_cores,
            bandwidth: chip.bandwidth.0,
            memory_gib: chip.memory.iter().map(|memory| memory.0 >> 30).collect(),
            peak: peak(chip.generation, chip.gpu_cores),
            cache: f64::from(cache_mib << 20),
            catalogued: Some(chip),
        }
    }

    pub(super) fn largest_memory(&self) -> Option<f64> {
        self.memory_gib.iter().max().map(|gib| (*gib as f64) * GIB)
    }

    pub(super) fn shown(&self) -> String {
        match self.gpu_cores {
            0 => format!("{} ({})", self.name, gigabytes_per_second(self.bandwidth)),
            cores => format!(
                "{} ({cores} GPU cores, {})",
                self.name,
                gigabytes_per_second(self.bandwidth)
            ),
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

fn peak(generation: u32, gpu_cores: u32) -> f64 {
    let index = (generation.max(1) as usize - 1).min(PEAK_TFLOPS_PER_CORE.len() - 1);
    PEAK_TFLOPS_PER_CORE[index] * 1e12 * f64::from(gpu_cores)
}

pub(super) fn gigabytes_per_second(bandwidth: f64) -> String {
    let gb = bandwidth / 1e9;
    if gb >= 100.0 || gb.fract() == 0.0 {
        format!("{gb:.0} GB/s")
    } else if gb >= 1.0 {
        format!("{gb:.1} GB/s")
    } else {
        format!("{gb:.2} GB/s")
    }
}

/// Identification of the chip by the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChipIdentification {
    Named,
    /// Family, or several chips.
    Ambiguous,
    Missing,
    /// Not made by Apple, or newer than the catalogue.
    Unsupported,
    /// No chip has that name.
    Nonexistent,
}

/// Machine of a figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    pub(super) naming: ChipIdentification,
    /// Candidate bins.
    pub(super) bins: Vec<Bin>,
    /// Bytes of memory of one machine, if stated.
    pub(super) memory: Option<f64>,
    pub(super) machines: f64,
    /// Errors in the description.
    pub(super) faults: Vec<Fault>,
    /// True if the engine may use the neural engine.
    pub(super) has_neural_engine: bool,
}

/// Wrong fact about hardware.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) field: &'static str,
    pub(super) message: String,
    pub(super) right: String,
}

impl Machine {
    pub(super) fn new(
        chip: Option<&str>,
        gpu_cores: Option<u32>,
        memory: Option<Reading>,
        machines: u32,
        engine: Option<&str>,
    ) -> Self {
        let engine = engine.unwrap_or_default().to_ascii_lowercase();
        let mut machine = Self {
            naming: ChipIdentification::Missing,
            bins: chip::catalogue().iter().map(Bin::of).collect(),
            memory: memory.map(|memory| memory.value.round() * GIB),
            machines: f64::from(machines.max(1)),
            faults: Vec::new(),
            has_neural_engine: ["ane", "coreml", "core ml", "neural engine"]
                .iter()
                .any(|word| engine.contains(word)),
        };
        if let Some(chip) = chip {
            machine.identify(chip);
        }
        let written = chip.and_then(cores_in);
        machine.restrict_cores(gpu_cores.or(written));
        if let Some(memory) = memory {
            machine.restrict_memory(memory.value.round() as u64);
        }
        machine
    }

    fn identify(&mut self, text: &str) {
        let names = chip_names(text);
        match names.as_slice() {
            [] => {
                self.naming = ChipIdentification::Unsupported;
                let lower = text.to_ascii_lowercase();
                // `Apple Silicon`, `MacBook Pro`: an unspecified Mac.
                if ["apple", "mac", "imac"].iter().any(|word| lower.contains(word)) {
                    self.naming = ChipIdentification::Missing;
                } else {
                    self.bins.clear();
                }
            }
            [name] => {
                let phone = PHONES.iter().find(|(phone, ..)| phone == name);
                if let Some((name, generation, gpu_cores, bandwidth, memory)) = phone {
                    self.naming = ChipIdentification::Named;
                    // A Mac may have the chip of a phone.
                    self.bins.retain(|bin| bin.name == *name);
                    self.bins.push(Bin {
                        name: (*name).to_owned(),
                        gpu_cores: *gpu_cores,
                        bandwidth: bandwidth * 1e9,
                        memory_gib: vec![*memory],
                        peak: peak(*generation, *gpu_cores),
                        cache: f64::from(24 << 20),
                        catalogued: None,
                    });
                    return;
                }
                let all = std::mem::take(&mut self.bins);
                self.bins = all.into_iter().filter(|bin| bin.name == *name).collect();
                self.naming = ChipIdentification::Named;
                if self.bins.is_empty() {
                    self.report_unknown(name);
                }
            }
            several => {
                self.naming = ChipIdentification::Ambiguous;
                // `M3/M4` are generations, including their Pro, Max and Ultra chips.
                let generations = several
                    .iter()
                    .all(|name| !name.contains(" Pro") && !name.contains(" Max") && !name.contains(" Ultra"));
                self.bins.retain(|bin| {
                    several.iter().any(|name| {
                        bin.name == *name || generations && bin.name.starts_with(&format!("{name} "))
                    })
                });
            }
        }
    }

    fn report_unknown(&mut self, name: &str) {
        let newest = chip::catalogue()
            .iter()
            .map(|chip| chip.generation)
            .max()
            .unwrap_or(0);
        let generation: Option<u32> = name
            .trim_start_matches("Apple M")
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        if !name.starts_with("Apple M")
            || generation.is_none_or(|generation| generation == 0 || generation > newest)
        {
            self.naming = ChipIdentification::Unsupported;
            return;
        }
        self.naming = ChipIdentification::Nonexistent;
        let family: Vec<&ChipVariant> = chip::catalogue()
            .iter()
            .filter(|chip| Some(chip.generation) == generation)
            .collect();
        let mut known: Vec<&str> = family.iter().map(|chip| chip.name.as_str()).collect();
        known.dedup();
        let mut message = format!("no chip is named {name}");
        let mut right = known.join(", ");
        let max = family.iter().filter(|chip| chip.tier == ChipTier::Max);
        if name.ends_with("Ultra")
            && let Some(max) = max.max_by(|a, b| a.bandwidth.0.total_cmp(&b.bandwidth.0))
        {
            let doubled = gigabytes_per_second(2.0 * max.bandwidth.0);
            message.push_str(&format!(
                "; two joined {} would have 2 × {} = {doubled}",
                max.name,
                gigabytes_per_second(max.bandwidth.0)
            ));
            right = format!("none; {doubled} for two {}", max.name);
        }
        self.faults.push(Fault {
            field: "hardware.chip",
            message,
            right,
        });
    }

    fn restrict_cores(&mut self, gpu_cores: Option<u32>) {
        let Some(gpu_cores) =
            gpu_cores.filter(|_| self.naming != ChipIdentification::Missing && !self.bins.is_empty())
        else {
            return;
        };
        let fitting: Vec<Bin> = self
            .bins
            .iter()
            .filter(|bin| bin.gpu_cores == gpu_cores)
            .cloned()
            .collect();
        if !fitting.is_empty() {
            self.bins = fitting;
            return;
        }
        if self.naming != ChipIdentification::Named {
            return;
        }
        let mut known: Vec<String> = self.bins.iter().map(|bin| bin.gpu_cores.to_string()).collect();
        known.dedup();
        self.faults.push(Fault {
            field: "hardware.gpuCores",
            message: format!(
                "{} has {} GPU cores, not {gpu_cores}",
                self.bins[0].name,
                known.join(" or ")
            ),
            right: known.join(" or "),
        });
    }

    fn restrict_memory(&mut self, gib: u64) {
        let fitting: Vec<Bin> = self
            .bins
            .iter()
            .filter(|bin| bin.memory_gib.contains(&gib))
            .cloned()
            .collect();
        if !fitting.is_empty() {
            self.bins = fitting;
            return;
        }
        let Some(bin) = self
            .bins
            .first()
            .filter(|_| self.naming == ChipIdentification::Named)
        else {
            return;
        };
        let others = |same: &dyn Fn(&ChipVariant) -> bool| {
            let has = |chip: &&ChipVariant| chip.memory.iter().any(|memory| memory.0 >> 30 == gib);
            chip::catalogue().iter().filter(has).find(|chip| same(chip))
        };
        let sibling = others(&|chip| chip.name == bin.name);
        // The memory sizes of bins that differ only in cores are uncertain.
        if sibling.is_some_and(|sibling| sibling.bandwidth.0 == bin.bandwidth) {
            return;
        }
        let tier = bin.catalogued.map(|chip| chip.tier);
        let elsewhere = sibling.or_else(|| others(&|chip| Some(chip.tier) == tier));
        let hint = elsewhere.map_or_else(String::new, |chip| format!("; {gib} GB is {chip}"));
        // List bins of the same bandwidth together, because their memory sizes are uncertain.
        let kinds: Vec<String> = self
            .bins
            .chunk_by(|a, b| a.bandwidth == b.bandwidth)
            .map(|bins| {
                let cores: Vec<String> = bins.iter().map(|bin| bin.gpu_cores.to_string()).collect();
                let bandwidth = gigabytes_per_second(bins[0].bandwidth);
                format!(
                    "{} GB ({} GPU cores, {bandwidth})",
                    sizes(bins),
                    cores.join(" or ")
                )
            })
            .collect();
        let message = format!(
            "{} is sold with {}, not with {gib} GB{hint}",
            bin.name,
            kinds.join(" or ")
        );
        let right = format!("{} GB", sizes(&self.bins));
        self.faults.push(Fault {
            field: "hardware.memory",
            message,
            right,
        });
    }

    /// Adds a candidate with the stated bandwidth, for a machine that is unknown otherwise.
    pub(super) fn set_bandwidth(&mut self, name: &str, bandwidth: f64) {
        self.bins.push(Bin {
            name: name.to_owned(),
            gpu_cores: 0,
            bandwidth,
            memory_gib: Vec::new(),
            peak: f64::INFINITY,
            cache: f64::from(128 << 20),
            catalogued: None,
        });
    }

    /// Returns the error in a stated bandwidth of this chip, and the correct bandwidth.
    pub(super) fn bandwidth_fault(&self, stated: &Reading) -> Option<(String, f64)> {
        let near = |bin: &Bin| stated.admits(bin.bandwidth, BANDWIDTH_ROUNDING);
        if self.naming != ChipIdentification::Named || self.bins.iter().any(near) {
            return None;
        }
        let bin = self.fastest()?;
        let siblings = chip::catalogue()
            .iter()
            .filter(|chip| chip.name == bin.name && chip.bandwidth.0 != bin.bandwidth);
        let other = siblings
            .clone()
            .find(|chip| (chip.bandwidth.0 / stated.value - 1.0).abs() < BANDWIDTH_ROUNDING);
        let hint = other.map_or_else(String::new, |chip| {
            format!("; that is the bin with {} GPU cores", chip.gpu_cores)
        });
        let message = format!("{} has {}{hint}", bin.name, gigabytes_per_second(bin.bandwidth));
        Some((message, bin.bandwidth))
    }

    /// Returns the candidate with the highest limits.
    pub(super) fn fastest(&self) -> Option<&Bin> {
        self.bins.iter().max_by(|a, b| {
            a.bandwidth
                .total_cmp(&b.bandwidth)
                .then(a.peak.total_cmp(&b.peak))
        })
    }

    /// Returns the maximum operations per second of all machines.
    pub(super) fn peak(&self) -> Option<f64> {
        let most = self.bins.iter().map(|bin| bin.peak).max_by(f64::total_cmp)?;
        let engine = if self.has_neural_engine {
            NEURAL_ENGINE_TFLOPS * 1e12
        } else {
            0.0
        };
        Some((most + engine) * self.machines)
    }

    /// Returns the stated or maximum memory of all machines, in bytes.
    pub(super) fn max_memory(&self) -> Option<f64> {
        let most = self
            .bins
            .iter()
            .filter_map(Bin::largest_memory)
            .max_by(f64::total_cmp);
        self.memory.or(most).map(|memory| memory * self.machines)
    }
}

/// Returns the memory sizes of the bins: `48/64/128`.
pub(super) fn sizes(bins: &[Bin]) -> String {
    let mut sizes: Vec<u64> = bins.iter().flat_map(|bin| bin.memory_gib.clone()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("/")
}

/// Returns the bytes that the GPU may use by default. Observed shares: 67 % of 16 and 24 GB, 78 %
/// of 32 GB, 81 % of 64 GB, 84 % of 128 GB.
pub(super) fn default_working_set(memory: f64) -> f64 {
    let gib = memory / GIB;
    let share = match gib {
        gib if gib < 30.0 => 2.0 / 3.0,
        gib if gib < 50.0 => 0.78,
        gib if gib < 100.0 => 0.81,
        _ => 0.84,
    };
    share * memory
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(chip: &str, cores: Option<u32>, gib: Option<f64>) -> Machine {
        let memory = gib.map(|value| Reading {
            value,
            low: value,
            high: value,
            is_range: false,
            significant: 2,
            standard_error: None,
        });
        Machine::new(Some(chip), cores, memory, 1, None)
    }

    #[test]
    fn faults_contain_the_correct_value() {
        let fault = |machine: Machine| {
            machine
                .faults
                .first()
                .map(|fault| (fault.field, fault.message.clone()))
        };
        assert_eq!(fault(machine("M4 Pro", Some(20), Some(24.0))), None);
        assert_eq!(
            fault(machine("M4 Pro", Some(16), Some(64.0))),
            None,
            "memory does not distinguish bins of one bandwidth"
        );
        let (field, message) = fault(machine("M3 Ultra", None, Some(192.0))).unwrap();
        assert!(
            field == "hardware.memory" && message.contains("96/256/512") && message.contains("M2 Ultra"),
            "{message}"
        );
        let (_, message) = fault(machine("M4 Max", None, Some(192.0))).unwrap();
        assert!(
            message.contains("36 GB (32 GPU cores, 410 GB/s) or 48/64/128 GB (40 GPU cores, 546 GB/s)"),
            "{message}"
        );
        let (_, message) = fault(machine("M4 Max", Some(32), Some(64.0))).unwrap();
        assert!(
            message.contains("with 36 GB (32 GPU cores, 410 GB/s), not with 64 GB") && message.contains("40"),
            "{message}"
        );
        let (_, message) = fault(machine("M4 Ultra", None, None)).unwrap();
        assert!(
            message.contains("no chip is named Apple M4 Ultra") && message.contains("1092"),
            "{message}"
        );
        let (field, _) = fault(machine("M4 Max", Some(38), None)).unwrap();
        assert_eq!(field, "hardware.gpuCores");
        assert_eq!(
            machine("M9 Max", None, None).naming,
            ChipIdentification::Unsupported
        );
        assert_eq!(
            machine("RTX 4090", None, None).naming,
            ChipIdentification::Unsupported
        );
    }
}

//! Replays of the published facts in `fixtures/`; the expected values come from the machines' data
//! sheets and from the reports.

use std::fs;

use super::*;
use crate::facts::{MetalDevice, ProcessInfo, RecordedFacts, undecodable};

fn fixture(path: &str) -> String {
    let path = format!("{}/fixtures/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|err| panic!("{path}: {err}"))
}

fn recorded(name: &str) -> RecordedFacts {
    let text = fixture(&format!("facts/{name}.json"));
    RecordedFacts::parse(&text).unwrap_or_else(|err| panic!("{name}: {err:?}"))
}

/// Returns a Mac with these sysctl values.
fn answers(sysctl: &str) -> RecordedFacts {
    RecordedFacts::parse(&format!(r#"{{"sysctl": {sysctl}}}"#)).unwrap()
}

#[test]
fn every_recording_is_parsed_and_names_its_source() {
    let dir = format!("{}/fixtures/facts", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 18);
    for file in files {
        let facts = RecordedFacts::parse(&fs::read_to_string(file.path()).unwrap()).unwrap();
        assert!(!facts.source.is_empty(), "{file:?}");
        let again = RecordedFacts::parse(&serde_json::to_string(&facts).unwrap()).unwrap();
        assert_eq!(facts, again, "{file:?}");
        // Missing facts do not cause a panic.
        let (chip, memory) = (chip(&facts), memory(&facts));
        assert!(memory.available <= memory.total || memory.total == Bytes::ZERO);
        assert!(chip.cpu_cores > 0 && !chip.name.is_empty());
        assert!(operating_system(&facts).starts_with("macOS"));
        power(&facts);
        presence(&facts);
    }
}

#[test]
fn chips_are_read_with_their_core_counts() {
    for (name, brand, gpu_cores, cpu_cores, development) in [
        ("m1-8gb", "Apple M1", Some(8), 1, false),
        ("m1-16gb", "Apple M1", Some(8), 1, false),
        ("m1-max-wired-limit", "Apple M1 Max", None, 10, false),
        ("m2-pro", "Apple M2 Pro", None, 1, false),
        ("m3-ultra-96gb", "Apple M3 Ultra", Some(60), 28, false),
        ("m3-ultra-256gb", "Apple M3 Ultra", Some(80), 1, false),
        ("m4", "Apple M4", Some(10), 10, false),
        ("m4-max-36gb", "Apple M4 Max", Some(32), 14, false),
        ("m4-max-64gb", "Apple M4 Max", None, 16, false),
        ("m5", "Apple M5", Some(10), 1, false),
        ("m5-8-cores", "Apple M5", Some(8), 1, false),
        ("m5-max", "Apple M5 Max", Some(40), 1, false),
        ("a18-pro", "Apple A18 Pro", Some(5), 6, false),
        // A virtual GPU and an emulated CPU run on real ones, but are slower.
        ("virtual-machine", "Apple M1 (Virtual)", None, 1, true),
        ("rosetta-m3-max", "Apple M3 Max", None, 1, true),
    ] {
        let chip = chip(&recorded(name));
        assert_eq!(
            (
                chip.name.as_str(),
                chip.gpu_cores,
                chip.cpu_cores,
                chip.development
            ),
            (brand, gpu_cores, cpu_cores, development),
            "{name}"
        );
    }
}

#[test]
fn the_system_is_named_by_version_and_build() {
    let facts = recorded("m4");
    assert_eq!(operating_system(&facts), "macOS 26.5");
    assert_eq!(os_build(&facts), "25F71");
    assert_eq!(chip(&facts).machine_model.as_deref(), Some("Mac16,1"));
}

/// Metal's own numbers, in bytes, as the reports print them.
#[test]
fn working_set_is_the_configured_limit_or_metals_value() {
    for (name, expect) in [
        ("m1-8gb", Some(5_726_633_984)),
        ("m1-16gb", Some(11_453_251_584)),
        ("m1-max-wired-limit", Some(26_000 << 20)),
        ("m2-pro", None),
        ("m3-ultra-256gb", Some(223_338_299_392)),
        ("m4", Some(19_069_665_280)),
        ("m5-max", Some(115_448_725_504)),
        ("a18-pro", Some(5_726_633_984)),
        ("virtual-machine", Some(5_010_800_640)),
    ] {
        let memory = memory(&recorded(name));
        assert_eq!(memory.working_set, expect.map(Bytes), "{name}");
    }
}

#[test]
fn raised_limit_replaces_metals_value() {
    let mut facts = answers(r#"{"iogpu.wired_limit_mb": 28672}"#);
    facts.metal = vec![MetalDevice {
        recommended_max_working_set_size: 26_800_603_136,
        ..MetalDevice::default()
    }];
    assert_eq!(memory(&facts).working_set, Some(Bytes::gib(28)));
}

#[test]
fn the_graphics_driver_reports_the_memory_in_use() {
    for (name, expect) in [
        ("m1-max-graphics", Some(745_570_304)),
        ("m4", Some(351_141_888)),
        ("m5", Some(843_038_720)),
        ("m5-max", None),
        ("virtual-machine", None),
    ] {
        assert_eq!(gpu_memory(&recorded(name)), expect.map(Bytes), "{name}");
    }
}

#[test]
fn the_graphics_driver_reports_its_use() {
    for (name, expect) in [
        ("m1-max-graphics", Some(0.25)),
        ("m4", Some(0.21)),
        ("m5", Some(0.46)),
        ("m5-max", None),
        ("virtual-machine", None),
    ] {
        assert_eq!(gpu_use(&recorded(name)), expect, "{name}");
    }
}

/// The report prints `used = 11625.69M`.
#[test]
fn used_swap_is_the_third_number_of_the_kernels_structure() {
    let facts = recorded("pressure-48gb");
    let used = swap_used(&facts).unwrap();
    assert!(
        (used.0 as f64 / f64::from(1 << 20) - 11_625.69).abs() < 0.01,
        "{used:?}"
    );
    // The structure continues with the size of a page and a flag.
    let raw = [4_u64 << 30, 3 << 30, 1 << 30, 1 << 32 | 16384].map(u64::to_le_bytes);
    assert_eq!(recorded::list(raw.as_flattened())[2], 1 << 30);
    assert_eq!(swap_used(&recorded("m4")), None);
    let again = RecordedFacts::record(&facts);
    assert_eq!(swap_used(&again), Some(used), "recorded completely");
}

/// Output of a public report: `{ sec = 1758552252, usec = 973963 } Mon Sep 22 17:44:12 2025` in
/// Moscow.
#[test]
fn the_start_of_the_system_is_the_first_number_of_the_kernels_structure() {
    let facts = answers(r#"{"kern.boottime": [1758552252, 973963]}"#);
    assert_eq!(boot_time(&facts), "2025-09-22T14:44:12Z".parse().ok());
    assert_eq!(boot_time(&answers("{}")), None);
}

/// Shares computed from the reports by hand.
#[test]
fn kernel_warns_if_half_of_the_pageable_memory_is_compressed() {
    for (name, percent) in [
        ("idle-32gb", 95),
        ("quiet-m1-16gb", 94),
        ("light-24gb", 93),
        ("shared-m4-24gb", 83),
        ("usual-24gb", 67),
        ("busy-16gb", 46),
    ] {
        let share = vm_stat(name).uncompressed_share().unwrap();
        assert_eq!((100.0 * share).round() as i32, percent, "{name}");
    }
    assert_eq!(VmStatistics::default().uncompressed_share(), None);
}

#[test]
fn families_of_published_devices_are_kept() {
    let families = |name| recorded(name).metal[0].families.join(" ");
    assert_eq!(families("m4"), "Apple9 Metal3");
    assert_eq!(families("m5"), "Apple10 Metal4");
    assert_eq!(families("virtual-machine"), "Apple5");
    assert_eq!(recorded("m4").has_default_metal_device(), None);
}

#[test]
fn reads_memory_level_of_the_kernel() {
    let level = |value: u32| {
        let sysctl = format!(r#"{{"kern.memorystatus_vm_pressure_level": {value}}}"#);
        memory(&answers(&sysctl)).level
    };
    assert_eq!(level(1), Some(MemoryLevel::Normal));
    assert_eq!(level(4), Some(MemoryLevel::Critical));
    assert_eq!(level(3), None);
    assert_eq!(memory(&recorded("pressure-48gb")).level, Some(MemoryLevel::Low));
    assert_eq!(memory(&recorded("m4")).level, None);
}

/// A closed MacBook with a display and power serves requests.
#[test]
fn a_closed_lid_counts_only_if_it_causes_sleep() {
    let docked = recorded("m2-air-docked");
    assert_eq!(presence(&docked).lid_closed, Some(false));
    assert_eq!(power(&docked).source, PowerSource::Ac);
    let lid = |closed: &str, causes_sleep: &str| {
        let text = format!(r#"{{"registry": {{"IOPMrootDomain": {{{closed}{causes_sleep}}}}}}}"#);
        presence(&RecordedFacts::parse(&text).unwrap()).lid_closed
    };
    let (open, closed) = (
        r#""AppleClamshellState": false"#,
        r#""AppleClamshellState": true"#,
    );
    let sleeps = r#", "AppleClamshellCausesSleep": true"#;
    assert_eq!(lid(closed, sleeps), Some(true));
    assert_eq!(lid(closed, ""), Some(true));
    assert_eq!(lid(open, sleeps), Some(false));
    // A Mac without a lid.
    assert_eq!(lid("", ""), None);
}

/// `OSThermalNotification.h`; the reports of github.com/macmade/Hot issues 37 and 74 show "Fair"
/// from NSProcessInfo where the notification reports heavy.
#[test]
fn thermal_notification_takes_precedence_over_process_info() {
    let state = |notified: Option<u64>| {
        let mut facts = RecordedFacts {
            process_info: Some(ProcessInfo {
                thermal_state: 1,
                low_power_mode: true,
            }),
            ..RecordedFacts::default()
        };
        facts
            .notify
            .extend(notified.map(|level| (THERMAL_PRESSURE.to_owned(), level)));
        power(&facts)
    };
    assert_eq!(state(Some(0)).thermal_state, ThermalState::Nominal);
    assert_eq!(state(Some(2)).thermal_state, ThermalState::Serious);
    assert_eq!(state(Some(3)).thermal_state, ThermalState::Critical);
    assert_eq!(state(None).thermal_state, ThermalState::Fair);
    assert_eq!(state(None).low_power_mode, Some(true));
    assert_eq!(power(&RecordedFacts::default()), Power::default());
}

#[test]
fn power_sources_have_the_names_of_the_system() {
    for (word, expect) in [
        ("AC Power", PowerSource::Ac),
        ("Battery Power", PowerSource::Battery),
        ("UPS Power", PowerSource::Ups),
        ("Off Line", PowerSource::Unknown),
    ] {
        let facts = RecordedFacts {
            power_source: Some(word.to_owned()),
            ..RecordedFacts::default()
        };
        assert_eq!(power(&facts).source, expect, "{word}");
    }
}

/// Returns the page counts in a recorded output of `vm_stat`.
fn vm_stat(name: &str) -> VmStatistics {
    let text = fixture(&format!("vm/{name}.txt"));
    let count = |label: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim_matches('"').strip_prefix(label));
        line.map(|rest| {
            let digits = rest.trim_start_matches(['"', ':']).trim().trim_end_matches('.');
            digits.parse::<u64>().unwrap_or_else(|_| panic!("{name}: {rest}"))
        })
    };
    assert!(text.starts_with("Mach Virtual Memory Statistics: (page size of 16384 bytes)"));
    let page_count = |label| count(label).unwrap_or_else(|| panic!("{name} has no {label}"));
    VmStatistics {
        page: 16384,
        free: page_count("Pages free"),
        active: page_count("Pages active"),
        inactive: page_count("Pages inactive"),
        speculative: page_count("Pages speculative"),
        wired: page_count("Pages wired down"),
        purgeable: page_count("Pages purgeable"),
        file_backed: page_count("File-backed pages"),
        compressor: page_count("Pages occupied by compressor"),
        swapouts: count("Swapouts").unwrap_or_default(),
    }
}

/// Available memory in GiB, computed from the reports by hand (free, file-backed and purgeable
/// pages), and the memory that becomes available by compression.
#[test]
fn memory_of_published_page_counts() {
    for (name, gib, available, swaps) in [
        ("usual-24gb", 24, 4.82, false),
        ("light-24gb", 24, 6.65, true),
        ("shared-m4-24gb", 24, 5.50, true),
        ("quiet-m1-16gb", 16, 7.75, true),
        ("busy-16gb", 16, 2.24, true),
        ("busy-16gb-2", 16, 2.55, true),
        ("noswap-24gb", 24, 5.95, false),
        ("idle-32gb", 32, 10.1, false),
        ("idle-128gb", 128, 94.7, false),
    ] {
        let pages = vm_stat(name);
        let mut facts = answers(&format!(r#"{{"hw.memsize": {}}}"#, Bytes::gib(gib).0));
        facts.vm = Some(pages);
        let memory = memory(&facts);
        let in_gib = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 30);
        assert!(
            (in_gib(memory.available) - available).abs() < 0.05,
            "{name}: {} GiB available",
            in_gib(memory.available)
        );
        assert!(memory.compressible > Bytes::ZERO, "{name}");
        assert!(
            memory.obtainable() <= memory.total - Bytes((pages.wired + pages.active / 2) * pages.page),
            "{name}: {memory:?} takes memory from active programs"
        );
        assert_eq!(memory.swapouts.is_some_and(|count| count > 0), swaps, "{name}");
        assert_eq!(wired(&facts), Some(Bytes(pages.wired * pages.page)));
    }
}

/// A model of 5 GB starts on the 24 GB Mac in normal use: macOS compresses idle programs.
#[test]
fn idle_programs_do_not_keep_a_small_model_from_starting() {
    let mut facts = answers(&format!(r#"{{"hw.memsize": {}}}"#, Bytes::gib(24).0));
    facts.vm = Some(vm_stat("usual-24gb"));
    let memory = memory(&facts);
    assert!(memory.available < Bytes::gib(5));
    assert!(memory.obtainable() > Bytes::gib(5) + Bytes(memory.total.0 / 20));
}

/// The counts of `vm_stat` overlap as the derivation assumes.
#[test]
fn speculative_pages_are_among_the_file_backed_ones() {
    let text = fixture("vm/usual-24gb.txt");
    let anonymous = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous pages:"));
    let anonymous: u64 = anonymous.unwrap().trim().trim_end_matches('.').parse().unwrap();
    let pages = vm_stat("usual-24gb");
    assert_eq!(
        pages.active + pages.inactive + pages.speculative,
        pages.file_backed + anonymous
    );
}

/// Facts whose numbers have any size, as on a future system.
#[derive(Debug)]
struct RawSysctl(&'static str, Vec<u8>);

impl Facts for RawSysctl {
    fn sysctl(&self, name: &str) -> Option<Vec<u8>> {
        (name == self.0).then(|| self.1.clone())
    }

    fn registry(&self, _: &str, _: &str) -> Option<RegistryValue> {
        None
    }

    fn notify_state(&self, _: &str) -> Option<u64> {
        None
    }

    fn vm_statistics(&self) -> Option<VmStatistics> {
        None
    }

    fn metal_devices(&self) -> Vec<MetalDevice> {
        Vec::new()
    }

    fn has_default_metal_device(&self) -> Option<bool> {
        None
    }

    fn process_info(&self) -> Option<ProcessInfo> {
        None
    }

    fn power_source(&self) -> Option<String> {
        None
    }
}

#[test]
fn raw_sizes_of_sysctls_are_recorded_and_replayed() {
    let name = "iogpu.wired_limit_mb";
    for bytes in [
        26_000_u32.to_le_bytes().to_vec(),
        26_000_u64.to_le_bytes().to_vec(),
    ] {
        let recording = RecordedFacts::record(&RawSysctl(name, bytes.clone()));
        assert_eq!(recording.sysctl_bytes[name], bytes.len());
        assert_eq!(recording.sysctl(name), Some(bytes));
        assert_eq!(memory(&recording).working_set, Some(Bytes::mib(26_000)));
        assert!(undecodable(&recording).is_empty());
    }
    // The published reports state no sizes.
    assert!(recorded("m4").sysctl_bytes.is_empty());
}

#[test]
fn numbers_of_unknown_size_are_missing_and_listed() {
    let name = "iogpu.wired_limit_mb";
    let facts = RawSysctl(name, vec![1, 2]);
    assert_eq!(memory(&facts).working_set, None);
    assert_eq!(undecodable(&facts), [(name, 2)]);
    assert_eq!(RecordedFacts::record(&facts).sysctl_bytes[name], 2);
}

/// Nothing in a recording identifies the machine or its owner.
#[test]
fn recordings_hold_no_identity() {
    let mut facts = answers(r#"{"kern.bootsessionuuid": "8F0C3A", "hw.model": "Mac16,1"}"#);
    let platform = facts
        .registry
        .entry("IOPlatformExpertDevice".to_owned())
        .or_default();
    platform.insert(
        "IOPlatformUUID".to_owned(),
        RegistryValue::Text("4C1D".to_owned()),
    );
    assert_eq!(boot_id(&facts).as_deref(), Some("8F0C3A"));
    assert_eq!(machine_id(&facts).as_deref(), Some("4C1D"));
    let recording = RecordedFacts::record(&facts);
    assert_eq!(boot_id(&recording), None);
    assert_eq!(machine_id(&recording), None);
    assert_eq!(chip(&recording).machine_model.as_deref(), Some("Mac16,1"));
}

#[test]
fn local_host_name_is_the_output_of_scutil() {
    assert_eq!(
        local_host_name(b"Annas-MacBook-Air\n").as_deref(),
        Some("Annas-MacBook-Air")
    );
    assert_eq!(local_host_name(b"\n"), None);
    assert_eq!(local_host_name(b"\xff\n"), None);
}

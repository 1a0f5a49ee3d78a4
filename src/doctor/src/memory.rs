//! Checks of the memory: limit of the GPU, free memory, and what models can use.

use rooflet_agent::node::pressure;
use rooflet_base::units::Bytes;
use rooflet_host::{Host, Memory, MemoryLevel};
use rooflet_roofline::memory::allocatable;

use super::check::Check;

/// Share of the memory in percent above which a GPU limit leaves too little for the system.
const MAX_GPU_SHARE: u64 = 92;
/// The check warns if less than one of this many parts of the memory for models is available.
const LOW_MODEL_SHARE: u64 = 4;

pub(super) fn checks(host: &Host) -> Vec<Check> {
    let memory = host.memory();
    let mut checks = Vec::new();
    if host.facts().is_some() {
        checks.push(gpu_limit(&memory));
    }
    checks.extend([available_memory(&memory), model_memory(&memory)]);
    checks.extend(compression(host));
    checks
}

fn gpu_limit(memory: &Memory) -> Check {
    let name = "GPU memory";
    let Some(limit) = memory.working_set else {
        return Check::unknown(
            name,
            "the limit is not reported: rooflet uses two thirds of the memory, or three quarters on large Macs",
        );
    };
    let finding = format!("up to {limit} of {}", memory.total);
    match memory.total != Bytes::ZERO && limit.0 > memory.total.0 / 100 * MAX_GPU_SHARE {
        true => Check::warn(
            name,
            format!("{finding}: too little is left for macOS and other programs"),
            "lower the sysctl iogpu.wired_limit_mb",
        ),
        false => Check::ok(name, finding),
    }
}

fn available_memory(memory: &Memory) -> Check {
    let name = "memory";
    let is_reported = memory.total != Bytes::ZERO && memory.obtainable() != Bytes::ZERO;
    let compressible = match memory.compressible {
        Bytes::ZERO => String::new(),
        bytes => format!(", {bytes} more by compression"),
    };
    let finding = match is_reported {
        true => format!("{} of {} available{compressible}", memory.available, memory.total),
        false => "not reported".to_owned(),
    };
    let remedy = "close other programs, or serve smaller models";
    match memory.level {
        Some(MemoryLevel::Critical) => Check::fail(
            name,
            format!("{finding}; the system reports critical memory pressure"),
            remedy,
        ),
        Some(MemoryLevel::Low) => Check::warn(
            name,
            format!("{finding}; the system reports a memory warning: no model starts"),
            remedy,
        ),
        Some(MemoryLevel::Normal) | None if is_reported => Check::ok(name, finding),
        Some(MemoryLevel::Normal) | None => Check::unknown(name, finding),
    }
}

/// Checks the memory that admission would give to one model.
fn model_memory(memory: &Memory) -> Check {
    let name = "memory for models";
    if memory.total == Bytes::ZERO || memory.obtainable() == Bytes::ZERO {
        return Check::unknown(name, "not reported");
    }
    let most = allocatable(memory.total, memory.working_set);
    let now = memory.obtainable() - pressure::margin(memory.total);
    let finding = match now < most {
        true => format!("{now} now, {most} if no other program needs memory"),
        false => most.to_string(),
    };
    match now.0 < most.0 / LOW_MODEL_SHARE {
        true => Check::warn(
            name,
            finding,
            "close other programs. Models that already run use part of the memory",
        ),
        false => Check::ok(name, finding),
    }
}

/// Returns the share that the kernel compares with its threshold for memory warnings, and the used
/// swap space. `None` if the system does not count compressed pages.
fn compression(host: &Host) -> Option<Check> {
    let share = host.facts()?.vm_statistics()?.uncompressed_share()?;
    let swap = host.swap_used().map(|used| format!(", {used} of swap in use"));
    let finding = format!(
        "{:.0} % of the pageable memory is not compressed (memory warning below 50 %){}",
        100.0 * share,
        swap.unwrap_or_default()
    );
    Some(Check::ok("compression", finding))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::check::Status;
    use crate::fixture::{host, recorded};
    use rooflet_host::facts::RecordedFacts;

    fn check_of(facts: RecordedFacts, name: &str) -> Check {
        let checks = checks(&host(facts)).into_iter();
        checks.into_iter().find(|check| check.name == name).unwrap()
    }

    #[track_caller]
    fn check(machine: &str, name: &str, status: Status, finding: &str) {
        let found = check_of(recorded(machine), name);
        assert_eq!(found.status, status, "{found:?}");
        assert!(found.finding.contains(finding), "{found:?}");
    }

    #[test]
    fn memory_of_published_macs_is_judged() {
        check(
            "m1-max-wired-limit",
            "GPU memory",
            Status::Ok,
            "25.4 GiB of 32.0 GiB",
        );
        check("pressure-48gb", "memory", Status::Warn, "memory warning");
    }

    /// Counts of a Mac with 24 GB in normal use (`usual-24gb` of the fixtures).
    #[test]
    fn memory_for_models_is_what_admission_assigns() {
        let mut facts = recorded("m4");
        assert_eq!(
            check_of(facts.clone(), "memory for models").status,
            Status::Unknown
        );
        facts.vm = serde_json::from_str(
            r#"{"page": 16384, "free": 4000, "active": 402000, "inactive": 400000, "speculative": 1000,
                "wired": 180000, "purgeable": 2000, "fileBacked": 310000, "compressor": 440000}"#,
        )
        .unwrap();
        facts.sysctl.extend(
            serde_json::from_str::<BTreeMap<_, _>>(
                r#"{"vm.swapusage": [2147483648, 1073741824, 1073741824]}"#,
            )
            .unwrap(),
        );
        let check = check_of(facts.clone(), "memory for models");
        // 4.8 GiB available, 1.9 GiB by compression, less 5 % of 24 GiB.
        assert_eq!(check.status, Status::Ok, "{check:?}");
        assert!(check.finding.starts_with("5.5 GiB now, 16.9 GiB if"), "{check:?}");
        let compression = check_of(facts.clone(), "compression").finding;
        assert!(
            compression.starts_with("65 % of") && compression.contains("1.0 GiB of swap"),
            "{compression}"
        );
        let vm = facts.vm.as_mut().unwrap();
        (vm.file_backed, vm.inactive) = (150_000, 100_000);
        assert_eq!(check_of(facts, "memory for models").status, Status::Warn);
    }

    /// Plausible counts of a Mac that runs no programs.
    #[test]
    fn equal_values_are_not_repeated() {
        let mut facts = recorded("m4");
        facts.vm = serde_json::from_str(
            r#"{"page": 16384, "free": 1100000, "active": 120000, "inactive": 110000, "speculative": 10000,
                "wired": 120000, "purgeable": 2000, "fileBacked": 90000, "compressor": 0}"#,
        )
        .unwrap();
        assert_eq!(check_of(facts, "memory for models").finding, "16.9 GiB");
    }

    #[test]
    fn a_limit_that_leaves_too_little_is_found() {
        let mut facts = recorded("m1-max-wired-limit");
        let raised = serde_json::from_str(r#"{"iogpu.wired_limit_mb": 31744}"#);
        let raised: BTreeMap<_, _> = raised.unwrap();
        facts.sysctl.extend(raised);
        assert_eq!(check_of(facts, "GPU memory").status, Status::Warn);
    }
}

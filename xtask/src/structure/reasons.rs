//! `reasons.yaml`, the source of the reference of reasons, lists every reason in the code and no
//! other.
//!
//! A reason is a CamelCase string literal in a crate that sets conditions, emits events or defines
//! errors that a condition reports. [`OTHER_WORDS`] lists the other literals of that form.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::krate::{Crate, Source};

pub(super) const FILE: &str = "src/api/src/reasons.yaml";

/// Crates whose CamelCase literals are reasons.
const CRATES: &[&str] = &[
    "agent",
    "artifact",
    "controller",
    "model",
    "process",
    "scheduler",
    "worker",
];

/// Literals of these crates that are not reasons.
const OTHER_WORDS: &[&str] = &[
    // Statuses of conditions.
    "True",
    "False",
    "Unknown",
    // Kinds and their parts.
    "FleetNode",
    "List",
    "ModelDeployment",
    // Binding constraints and values of fields.
    "BinPack",
    "Concurrency",
    "Context",
    "Fastest",
    "NoExecute",
    "NoSchedule",
    "PreferNoSchedule",
    "QueueLength",
    "SloSlack",
    "Spread",
    "TimeToFirstToken",
    // Column heads.
    "Nodes",
    "Price",
    // Name of a type.
    "HubAccess",
    // Parts of errors of macOS.
    "Hang",
    "ImpactingInteractivity",
    "InnocentVictim",
    "SubmissionsIgnored",
    "Timeout",
    // Words of the audit log.
    "NoIdentity",
    "Revoked",
    "RoleNotPermitted",
    // Error codes of the hub.
    "GatedRepo",
    "RepoNotFound",
];

/// Returns the differences between `listed`, the text of [`FILE`], and the code.
pub(super) fn faults(listed: &str, crates: &[Crate]) -> Vec<String> {
    let listed = listed_reasons(listed);
    let mut of_crates = BTreeMap::new();
    let mut all = BTreeSet::new();
    for krate in crates {
        for file in krate.files.iter().filter(|file| !is_test(&file.path)) {
            let words = camel_case_literals(file);
            if CRATES.contains(&krate.name.as_str()) {
                of_crates.extend(words.iter().map(|word| (word.clone(), &file.path)));
            }
            all.extend(words);
        }
    }
    let is_reason = |word: &str| !OTHER_WORDS.contains(&word);
    let missing = of_crates
        .iter()
        .filter(|(word, _)| is_reason(word) && !listed.contains(*word))
        .map(|(word, path)| format!("{FILE}: lacks `{word}` of {}", path.display()));
    let stale = listed
        .difference(&all)
        .map(|word| format!("{FILE}: lists `{word}`, which no code has"));
    missing.chain(stale).collect()
}

/// Returns the names in the lists `reasons: […]`.
fn listed_reasons(text: &str) -> BTreeSet<String> {
    let lists = text.lines().filter_map(|line| {
        let list = line.trim().strip_prefix("- reasons: [")?;
        list.strip_suffix(']')
    });
    let names = lists.flat_map(|list| list.split(", "));
    names.map(str::to_owned).collect()
}

fn is_test(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.contains("test") || path.contains("fixture")
}

/// Returns the string literals that are one CamelCase word, without comments and the tests at the
/// end of the file.
fn camel_case_literals(file: &Source) -> BTreeSet<String> {
    let code = file.text.split("#[cfg(test)]\nmod tests {").next();
    let code = code.unwrap_or_default().lines();
    let code = code.map(|line| line.split("// ").next().unwrap_or_default());
    let words = code.flat_map(|line| line.split('"').skip(1).step_by(2));
    let words = words.filter(|word| is_camel_case(word));
    words.map(str::to_owned).collect()
}

/// Returns true if the word starts with an upper-case letter and a lower-case letter follows each
/// upper-case letter.
fn is_camel_case(word: &str) -> bool {
    let is_start = word.starts_with(|c: char| c.is_ascii_uppercase());
    let mut pairs = word.chars().zip(word.chars().skip(1).chain([' ']));
    is_start
        && pairs
            .all(|(c, next)| c.is_ascii_lowercase() || (c.is_ascii_uppercase() && next.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_unlisted_and_stale_reasons() {
        let text = "fn reason() { \"DiskFull\" } // \"Comment\"\n#[cfg(test)]\nmod tests { \"Test\" }";
        let krate = || [Crate::of_texts("agent", "", &[("disk.rs", text)])];
        assert_eq!(faults("  - reasons: [DiskFull]", &krate()), [""; 0]);
        let faults = faults("  - reasons: [DiskLow, DiskSlow]", &krate());
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].contains("lacks `DiskFull`"), "{faults:?}");
    }

    #[test]
    fn finds_camel_case_words_only() {
        let text = "\"DiskFull\" \"a b\" \"NO\" \"disk\" \"Disk-Full\" \"Error\"";
        let krate = Crate::of_texts("agent", "", &[("disk.rs", text)]);
        let words: Vec<_> = camel_case_literals(&krate.files[0]).into_iter().collect();
        assert_eq!(words, ["DiskFull", "Error"]);
    }
}

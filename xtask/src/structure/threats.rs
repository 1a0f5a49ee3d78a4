//! Table of threats in docs/security.md: every row names tests, and they exist.

use std::collections::BTreeSet;

use super::krate::{Crate, Source};

pub(super) const FILE: &str = "docs/security.md";

/// Returns the rows without a test, and the names that are not those of functions.
pub(super) fn faults(page: &str, crates: &[Crate], users: &[Source]) -> Vec<String> {
    let files = crates.iter().flat_map(|krate| &krate.files).chain(users);
    let functions: BTreeSet<&str> = files.flat_map(|file| functions(&file.text)).collect();
    let mut faults = Vec::new();
    for (threat, tests) in rows(page) {
        if tests.is_empty() {
            faults.push(format!("{FILE}: {threat}: name the test in the last column"));
        }
        let missing = tests.into_iter().filter(|test| !functions.contains(test));
        faults.extend(missing.map(|test| format!("{FILE}: {threat}: the test {test} does not exist")));
    }
    faults
}

/// Returns the threats of the table, each with the names in its last column.
fn rows(page: &str) -> Vec<(&str, Vec<&str>)> {
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Threats\n"));
    let lines = section.unwrap_or_default().lines();
    let cells = lines.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = cells.filter_map(|row| Some((row.split_once(" | ")?.0, row.rsplit_once(" | ")?.1)));
    // The first row is the head. The separator has no blanks.
    rows.skip(1)
        .map(|(threat, tests)| (threat, tests.split('`').skip(1).step_by(2).collect()))
        .collect()
}

/// Returns the names of the functions in a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split("fn ").skip(1);
    names.map(|rest| rest.split(['(', '<']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn reports_rows_without_a_test_and_missing_tests() {
        let page = "# Security\n\n## Threats\n\n| threat | mitigation | test |\n|---|---|---|\n\
                    | a thief | `a_lock` | `lock_holds`, `key_fits` |\n| rain | a roof | none |\n\n\
                    ## Known gaps\n\n| a | b | `c` |\n";
        let source = Source {
            path: PathBuf::from("e2e/locks.rs"),
            text: "#[test]\nfn lock_holds() {}\n".to_owned(),
            tokens: Vec::new(),
        };
        assert_eq!(
            faults(page, &[], &[source]),
            [
                "docs/security.md: a thief: the test key_fits does not exist",
                "docs/security.md: rain: name the test in the last column"
            ]
        );
    }
}

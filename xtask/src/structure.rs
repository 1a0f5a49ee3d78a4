//! `cargo xtask structure`: checks the shape of the source tree, which the compiler does not check.
//!
//! - Dependencies between crates follow the table of layers in ARCHITECTURE.md.
//! - Crates and folders stay small, and modules have one style.
//! - No circle of more than two files import one another. A module may import what its ancestors define: that a parent composes
//!   its children does not count.
//! - A `pub` item of a library crate is used by another crate.
//! - Pages that comments cite exist, links between pages resolve, and docs/metrics.md lists every
//!   metric.

mod circles;
mod krate;
mod layers;
mod links;
mod metrics;
mod surface;
mod tokens;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use self::krate::Crate;
use crate::console::{self, Outcome};

/// Most lines of Rust in one crate, tests included: what one person can keep in mind.
const MAX_CRATE_LINES: usize = 25_000;
/// Most Rust files in one folder.
const MAX_FOLDER_FILES: usize = 25;

pub(crate) fn run() -> Result<Outcome> {
    let root = console::root();
    let crates = Crate::all(&root.join("src"))?;
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("reading ARCHITECTURE.md")?;
    let mut faults = layers::faults(&map, &crates)?;
    for krate in &crates {
        faults.extend(sizes(krate));
        faults.extend(circles::faults(krate));
        faults.extend(cited_pages(&root, krate));
    }
    faults.extend(links::faults(&root).context("checking links")?);
    let page = fs::read_to_string(root.join("docs/metrics.md")).context("reading docs/metrics.md")?;
    faults.extend(metrics::faults(&page, &crates));
    let users = Crate::sources(&root.join("e2e"))?;
    faults.extend(surface::faults(&crates, &users));
    for fault in &faults {
        println!("{fault}");
    }
    Ok(match faults.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} faults of structure")),
    })
}

fn sizes(krate: &Crate) -> Vec<String> {
    let mut faults = Vec::new();
    let lines: usize = krate.files.iter().map(|file| file.text.lines().count()).sum();
    if lines > MAX_CRATE_LINES {
        faults.push(format!(
            "src/{}: {lines} lines; split the crate above {MAX_CRATE_LINES}",
            krate.name
        ));
    }
    let mut folders = std::collections::BTreeMap::<&Path, usize>::new();
    for file in &krate.files {
        *folders
            .entry(file.path.parent().expect("a file is in a folder"))
            .or_default() += 1;
        if file.path.ends_with("mod.rs") {
            faults.push(format!(
                "{}: modules are `name.rs` beside `name/`, not `name/mod.rs`",
                file.path.display()
            ));
        }
    }
    for (folder, count) in folders {
        if count > MAX_FOLDER_FILES {
            faults.push(format!(
                "{}: {count} files; group them by noun above {MAX_FOLDER_FILES}",
                folder.display()
            ));
        }
    }
    faults
}

/// Pages of documentation that comments name by a path from the repository's root.
fn cited_pages(root: &Path, krate: &Crate) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &krate.files {
        let is_in_path = |c: char| c.is_alphanumeric() || "_./:-".contains(c);
        for word in file.text.split(|c| !is_in_path(c)) {
            let page = word.trim_end_matches(['.', ':']);
            let is_page = page.ends_with(".md") && !page.contains("://");
            if is_page && !root.join(page).is_file() {
                faults.push(format!("{}: there is no page {page}", file.path.display()));
            }
        }
    }
    faults
}

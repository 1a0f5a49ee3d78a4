//! `cargo xtask structure`: checks the shape of the source tree, which the compiler does not check.
//!
//! - Dependencies between crates follow the table of layers in ARCHITECTURE.md.
//! - Crates and folders stay small, and modules have one style.
//! - No import cycle has more than two files. Imports of a module's own descendants do not count,
//!   so that a parent can compose its children.
//! - A `pub` item of a library crate is used by another crate.
//! - Pages that comments cite exist, links between pages resolve, and `reasons.yaml` lists every
//!   reason.
//! - The tests that the table of threats names exist.

mod cycles;
mod krate;
mod layers;
mod links;
mod reasons;
mod surface;
mod threats;
mod tokens;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use self::krate::{Crate, Source};
use crate::console::{self, Outcome};

/// Maximum number of lines of Rust in a crate, including tests.
const MAX_CRATE_LINES: usize = 25_000;
/// Maximum number of Rust files in a folder.
const MAX_FOLDER_FILES: usize = 25;

pub(crate) fn run() -> Result<Outcome> {
    let root = console::root();
    let crates = Crate::all(&root.join("src"))?;
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("reading ARCHITECTURE.md")?;
    let mut faults = layers::faults(&map, &crates)?;
    for krate in &crates {
        faults.extend(sizes(krate));
        faults.extend(cycles::faults(krate));
        faults.extend(cited_pages(&root, krate));
    }
    faults.extend(links::faults(&root).context("checking links")?);
    let listed = fs::read_to_string(root.join(reasons::FILE)).context("reading the list of reasons")?;
    faults.extend(reasons::faults(&listed, &crates));
    let users = Crate::sources(&root.join("e2e"))?;
    faults.extend(folder_faults(&users));
    faults.extend(surface::faults(&crates, &users));
    let page = fs::read_to_string(root.join(threats::FILE)).context("reading the table of threats")?;
    faults.extend(threats::faults(&page, &crates, &users));
    for fault in &faults {
        println!("{fault}");
    }
    Ok(match faults.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} violations of the structure")),
    })
}

fn sizes(krate: &Crate) -> Vec<String> {
    let mut faults = Vec::new();
    let lines: usize = krate.files.iter().map(|file| file.text.lines().count()).sum();
    if lines > MAX_CRATE_LINES {
        faults.push(format!(
            "src/{}: {lines} lines, and the maximum is {MAX_CRATE_LINES}: split the crate",
            krate.name
        ));
    }
    faults.extend(folder_faults(&krate.files));
    faults
}

/// Returns the folders with too many files, and the modules of another style.
fn folder_faults(files: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut folders = std::collections::BTreeMap::<&Path, usize>::new();
    for file in files {
        *folders
            .entry(file.path.parent().expect("the path of a file has a parent"))
            .or_default() += 1;
        if file.path.ends_with("mod.rs") {
            faults.push(format!(
                "{}: rename the module to `NAME.rs` in the parent folder",
                file.path.display()
            ));
        }
    }
    for (folder, count) in folders {
        if count > MAX_FOLDER_FILES {
            faults.push(format!(
                "{}: {count} files, and the maximum is {MAX_FOLDER_FILES}: group them in folders",
                folder.display()
            ));
        }
    }
    faults
}

/// Returns citations of pages that do not exist. A citation is a path from the repository root.
fn cited_pages(root: &Path, krate: &Crate) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &krate.files {
        let is_in_path = |c: char| c.is_alphanumeric() || "_./:-".contains(c);
        for word in file.text.split(|c| !is_in_path(c)) {
            let page = word.trim_end_matches(['.', ':']);
            let is_page = page.ends_with(".md") && !page.contains("://");
            let folders = [root.to_owned(), root.join("docs"), root.join("docs/reference")];
            // Texts of generated pages contain links relative to these pages.
            let folders = match file.path.starts_with("src/rooflet/src/cli/reference")
                || file.path.ends_with("cli/reference.rs")
            {
                true => &folders[..],
                false => &folders[..1],
            };
            if is_page && !folders.iter().any(|folder| folder.join(page).is_file()) {
                faults.push(format!("{}: page {page} does not exist", file.path.display()));
            }
        }
    }
    faults
}

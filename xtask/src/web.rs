//! `cargo xtask web`: builds the web page with Node. The built files are committed, so that cargo
//! needs no Node.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::console::{self, Outcome};

const PAGE: &str = "src/web/page";
const BUILT: &str = "dist";

/// Builds the page.
pub(crate) fn build() -> Result<Outcome> {
    if let Some(skipped) = missing() {
        return Ok(skipped);
    }
    npm(&["ci", "--no-audit", "--no-fund"])?;
    npm(&["run", "build"])?;
    Ok(Outcome::Passed)
}

/// Runs the page's tests, and checks that the committed files are those that its sources result in.
pub(crate) fn check() -> Result<Outcome> {
    if let Some(skipped) = missing() {
        return Ok(skipped);
    }
    let built = console::root().join(PAGE).join(BUILT);
    let before = files(&built)?;
    if let Some(skipped) = install()? {
        return Ok(skipped);
    }
    npm(&["test"])?;
    npm(&["run", "build"])?;
    let after = files(&built)?;
    Ok(match difference(&before, &after) {
        None => Outcome::Passed,
        Some(name) => Outcome::Failed(format!(
            "{PAGE}/{BUILT}/{name} was stale and has been built again: commit it"
        )),
    })
}

pub(crate) fn missing() -> Option<Outcome> {
    let is_missing = !console::is_installed("npm");
    is_missing.then(|| Outcome::Skipped("npm is not installed".into()))
}

/// Installs the page's packages. Returns why a check is skipped if the registry is not reachable.
pub(crate) fn install() -> Result<Option<Outcome>> {
    match npm(&["ci", "--no-audit", "--no-fund"]) {
        Err(err) if is_offline(&format!("{err:#}")) => {
            Ok(Some(Outcome::Skipped("npm does not reach its registry".into())))
        }
        installed => installed.map(|()| None),
    }
}

fn npm(args: &[&str]) -> Result<()> {
    npm_in(PAGE, args)
}

/// Runs npm in a directory of the repository.
pub(crate) fn npm_in(directory: &str, args: &[&str]) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(args).current_dir(console::root().join(directory));
    console::output(&mut npm).map(drop)
}

/// Returns true if npm failed because of the network.
pub(crate) fn is_offline(error: &str) -> bool {
    let codes = [
        "ENOTFOUND",
        "ECONNREFUSED",
        "ECONNRESET",
        "ETIMEDOUT",
        "EAI_AGAIN",
        "ENETUNREACH",
    ];
    codes.iter().any(|code| error.contains(code))
}

/// Returns the files of a directory without subdirectories, by name.
fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        files.insert(name, content);
    }
    Ok(files)
}

/// Returns the name of a file that is missing, added or different.
fn difference<'f>(
    before: &'f BTreeMap<String, Vec<u8>>,
    after: &'f BTreeMap<String, Vec<u8>>,
) -> Option<&'f str> {
    let mut names = before.keys().chain(after.keys());
    let different = names.find(|name| before.get(*name) != after.get(*name));
    different.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_missing_and_added_files_are_found() {
        let files = |list: &[(&str, &str)]| {
            let files = list
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
            files.collect::<BTreeMap<_, _>>()
        };
        let committed = files(&[("a", "1"), ("b", "2")]);
        assert_eq!(difference(&committed, &committed), None);
        for other in [
            files(&[("a", "1"), ("b", "3")]),
            files(&[("a", "1")]),
            files(&[("a", "1"), ("b", "2"), ("c", "")]),
        ] {
            assert!(difference(&committed, &other).is_some(), "{other:?}");
        }
    }
}

//! `cargo xtask browser`: walks the web page in Chromium, against the real binary with simulated Macs.

use std::{env, path::PathBuf, process::Command, time::Duration};

use anyhow::Result;

use crate::{
    console::{self, Outcome},
    libtest, setup, web,
};

/// Programs that are a Chromium, by name or path.
const CHROMIUMS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/// Time limit of each step of the installation of Chromium.
const INSTALLATION_LIMIT: Duration = Duration::from_mins(4);

/// Installs the page's packages and, in a container of Debian, Chromium. Then walks the page.
pub(crate) fn run() -> Result<Outcome> {
    if let Some(skipped) = web::missing() {
        return Ok(skipped);
    }
    if !console::is_installed(kubectl()) {
        return Ok(Outcome::Skipped(
            "kubectl is not installed: install it, or set KUBECTL to its path".into(),
        ));
    }
    let Some(chromium) = chromium()? else {
        return Ok(Outcome::Skipped(
            "no Chromium is installed: run `apt-get install chromium`, or set CHROMIUM to its path".into(),
        ));
    };
    if let Some(skipped) = web::install()? {
        return Ok(skipped);
    }
    setup::run()?;
    libtest::run(
        &["--workspace", "--test", "e2e"],
        &["access::browser::"],
        |test| {
            test.env("ROOFLET_CHROMIUM", &chromium);
        },
    )
}

fn kubectl() -> PathBuf {
    let named = env::var_os("KUBECTL").filter(|value| !value.is_empty());
    named.map_or_else(|| "kubectl".into(), PathBuf::from)
}

/// Returns the path of Chromium. Root installs Debian's package if it is missing.
fn chromium() -> Result<Option<PathBuf>> {
    if let Some(named) = env::var_os("CHROMIUM").filter(|value| !value.is_empty()) {
        return Ok(Some(named.into()));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(found) = find(env::split_paths(&path)) {
        return Ok(Some(found));
    }
    let is_debian = console::is_installed("apt-get");
    let is_root = is_debian && console::output(Command::new("id").arg("-u"))?.trim() == "0";
    if !is_root {
        return Ok(None);
    }
    let install = || apt_get(&["install", "--yes", "--no-install-recommends", "chromium"]);
    // The list of packages may be missing or old.
    if !install()? && apt_get(&["update"])? {
        install()?;
    }
    Ok(find(env::split_paths(&path)))
}

fn find(directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let directories: Vec<PathBuf> = directories.collect();
    // A directory joined with an absolute path is the absolute path.
    let mut candidates = CHROMIUMS
        .iter()
        .flat_map(|name| directories.iter().map(move |directory| directory.join(name)));
    candidates.find(|file| file.is_file())
}

/// Runs apt-get. Returns true if it succeeds in time.
fn apt_get(args: &[&str]) -> Result<bool> {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    let status = console::run_within(&mut command, INSTALLATION_LIMIT)?;
    Ok(status.is_some_and(|status| status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_chromium_of_the_path_is_found() {
        let directory = env::temp_dir().join(format!("rooflet-chromium-{}", std::process::id()));
        let [empty, full] = ["empty", "full"].map(|name| directory.join(name));
        for directory in [&empty, &full] {
            std::fs::create_dir_all(directory).expect("writable");
        }
        let found = || find([empty.clone(), full.clone()].into_iter());
        let before = found();
        std::fs::write(full.join("chromium"), "").expect("writable");
        let after = found();
        std::fs::remove_dir_all(&directory).expect("deletable");
        assert_ne!(before, Some(full.join("chromium")));
        assert_eq!(after, Some(full.join("chromium")));
    }
}

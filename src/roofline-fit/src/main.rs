//! Program of `cargo xtask fit-roofline`. It fits the constants of the performance model and writes
//! them and the report on their errors to the repository, whose root is the only argument.

use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result};
use camino::{Utf8Path, Utf8PathBuf};

const REPORT_FROM: &str = "<!-- from here written by `cargo xtask fit-roofline` -->";
const REPORT_TO: &str = "<!-- to here -->";
const REPLAY_FROM: &str = "<!-- replay of calibration, written by `cargo xtask fit-roofline` -->";
const REPLAY_TO: &str = "<!-- end of the replay -->";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            print(&format!("error: {err:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = env::args()
        .nth(1)
        .context("usage: rooflet-roofline-fit REPOSITORY")?;
    let root = Utf8PathBuf::from(root);
    let input = |name: &str| read(&root.join("src").join(name));
    let fitted = rooflet_roofline_fit::run(
        &input("roofline-fit/src/measurements.csv")?,
        &input("model/src/shapes.json")?,
        &input("roofline-fit/src/prior.json")?,
    )?;

    write(
        &root.join("src/roofline/src/predict/parameters.json"),
        &fitted.parameters,
    )?;
    let page = root.join("docs/roofline.md");
    let text = read(&page)?;
    let replaced = between(&text, (REPORT_FROM, REPORT_TO), &fitted.report)
        .and_then(|text| between(&text, (REPLAY_FROM, REPLAY_TO), &fitted.replay))
        .with_context(|| format!("{page} has no markers around its generated tables"))?;
    write(&page, &replaced)?;
    for (name, plot) in &fitted.plots {
        write(&root.join("docs/roofline").join(name), plot)?;
    }
    Ok(())
}

/// Replaces the text between two markers. Returns `None` without the markers.
fn between(text: &str, (from, to): (&str, &str), new: &str) -> Option<String> {
    let (before, rest) = text.split_once(from)?;
    let (_, after) = rest.split_once(to)?;
    Some(format!("{before}{from}\n\n{new}\n{to}{after}"))
}

fn read(path: &Utf8Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

fn write(path: &Utf8Path, text: &str) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| format!("creating {directory}"))?;
    }
    fs::write(path, text).with_context(|| format!("writing {path}"))?;
    print(path.as_str());
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "a developer's tool lists the files that it has written"
)]
fn print(line: &str) {
    println!("{line}");
}

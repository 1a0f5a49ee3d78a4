//! `rooflet fit-roofline`, for `cargo xtask fit-roofline` alone: finds the predictor's constants anew and writes them
//! and the report on their errors into the repository.

use std::fs;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};

use super::{Failure, ui};
use rooflet_roofline_fit as regression;

const REPORT_FROM: &str = "<!-- from here written by `cargo xtask fit-roofline` -->";
const REPORT_TO: &str = "<!-- to here -->";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The repository.
    root: Utf8PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let root = &args.root;
    let input = |name: &str| read(&root.join("src/roofline/regression").join(name));
    let fitted = regression::run(
        &input("measurements.csv")?,
        &input("shapes.json")?,
        &input("prior.json")?,
    )
    .map_err(|err| anyhow!(err))?;

    write(
        &root.join("src/roofline/predict/parameters.json"),
        &fitted.parameters,
    )?;
    let page = root.join("docs/roofline.md");
    let text = read(&page)?;
    let replaced = text
        .split_once(REPORT_FROM)
        .and_then(|(before, rest)| Some((before, rest.split_once(REPORT_TO)?.1)))
        .map(|(before, after)| format!("{before}{REPORT_FROM}\n\n{}\n{REPORT_TO}{after}", fitted.report))
        .with_context(|| format!("{page} lacks the marks between which its tables stand"))?;
    write(&page, &replaced)?;
    for (name, plot) in &fitted.plots {
        write(&root.join("docs/roofline").join(name), plot)?;
    }
    Ok(())
}

fn read(path: &Utf8Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

fn write(path: &Utf8Path, text: &str) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| format!("making {directory}"))?;
    }
    fs::write(path, text).with_context(|| format!("writing {path}"))?;
    ui::output(&format!("{path}\n"));
    Ok(())
}

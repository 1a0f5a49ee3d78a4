//! `rooflet reference`: writes the generated pages of docs/reference and the property lists of
//! examples/launchd.

mod command_line;
mod configuration;
#[cfg(test)]
mod documentation;
mod kinds;
mod markdown;
mod metrics;
mod reasons;

use anyhow::Context as _;
use camino::Utf8PathBuf;

use super::{Failure, service};

/// Arguments of `rooflet reference`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Root of the repository; existing files are replaced.
    #[arg(value_name = "DIR")]
    root: Utf8PathBuf,
}

/// Generated file.
struct Page {
    /// Path in the repository.
    file: String,
    text: String,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for page in pages()? {
        let path = args.root.join(page.file);
        std::fs::write(&path, page.text).with_context(|| format!("writing `{path}`"))?;
    }
    Ok(())
}

fn pages() -> anyhow::Result<Vec<Page>> {
    let pages = [
        ("command-line.md", command_line::page()),
        ("configuration.md", configuration::page()),
        ("kinds.md", kinds::page()?),
        ("metrics.md", metrics::page()?),
        ("reasons.md", reasons::page()?),
    ];
    let pages = pages.map(|(file, text)| Page {
        file: format!("docs/reference/{file}"),
        text: markdown::tidy(&text),
    });
    let property_lists = service::examples().map(|(file, text)| Page {
        file: format!("examples/launchd/{file}"),
        text,
    });
    Ok(pages.into_iter().chain(property_lists).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_repository_are_fresh() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        for page in pages().expect("the sources of all pages are valid") {
            let stored = std::fs::read_to_string(format!("{root}/{}", page.file)).unwrap_or_default();
            assert!(
                stored == page.text,
                "{} is stale: run `cargo xtask generate`",
                page.file
            );
        }
    }
}

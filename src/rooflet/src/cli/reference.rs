//! `rooflet reference`: writes the generated reference pages of docs/reference.

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

use super::Failure;

/// Arguments of `rooflet reference`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the pages; existing ones are replaced.
    #[arg(value_name = "DIR")]
    directory: Utf8PathBuf,
}

/// Generated page.
struct Page {
    file: &'static str,
    text: String,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("creating the directory `{}`", args.directory))?;
    for page in pages()? {
        let path = args.directory.join(page.file);
        std::fs::write(&path, page.text).with_context(|| format!("writing `{path}`"))?;
    }
    Ok(())
}

fn pages() -> anyhow::Result<[Page; 5]> {
    let pages = [
        ("command-line.md", command_line::page()),
        ("configuration.md", configuration::page()),
        ("kinds.md", kinds::page()?),
        ("metrics.md", metrics::page()?),
        ("reasons.md", reasons::page()?),
    ];
    Ok(pages.map(|(file, text)| Page {
        file,
        text: markdown::tidy(&text),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_repository_are_fresh() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
        for page in pages().expect("the sources of all pages are valid") {
            let stored = std::fs::read_to_string(format!("{folder}/{}", page.file)).unwrap_or_default();
            assert!(
                stored == page.text,
                "docs/reference/{} is stale: run `cargo xtask generate`",
                page.file
            );
        }
    }
}

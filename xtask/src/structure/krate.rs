//! Sources of a crate of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::tokens::{Token, tokens};

pub(super) struct Source {
    /// Path relative to the repository root.
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
}

pub(super) struct Crate {
    /// Folder below `src/`. The package is `rooflet-NAME`, except for the binary `rooflet`.
    pub(super) name: String,
    pub(super) manifest: String,
    pub(super) files: Vec<Source>,
}

impl Crate {
    /// Reads all crates below `src/`, sorted by name.
    pub(super) fn all(src: &Path) -> Result<Vec<Self>> {
        let mut crates = Vec::new();
        for entry in fs::read_dir(src).with_context(|| format!("reading {}", src.display()))? {
            let folder = entry?.path();
            let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
                continue;
            };
            let name = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            crates.push(Self {
                name,
                manifest,
                files: Self::sources(&folder)?,
            });
        }
        crates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(crates)
    }

    /// Reads all Rust files below `folder`, sorted by path.
    pub(super) fn sources(folder: &Path) -> Result<Vec<Source>> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text =
                        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                    let path = path
                        .strip_prefix(crate::console::root())
                        .unwrap_or(&path)
                        .to_owned();
                    let tokens = tokens(&text);
                    found.push(Source { path, text, tokens });
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Creates a crate of files, each with its path below `src/` and its text.
    #[cfg(test)]
    pub(super) fn of_texts(name: &str, manifest: &str, files: &[(&str, &str)]) -> Self {
        let source = |(path, text): &(&str, &str)| Source {
            path: PathBuf::from(format!("src/{name}/src/{path}")),
            text: (*text).to_owned(),
            tokens: tokens(text),
        };
        Self {
            name: name.to_owned(),
            manifest: manifest.to_owned(),
            files: files.iter().map(source).collect(),
        }
    }
}

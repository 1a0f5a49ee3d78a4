//! Models that this node downloaded: `OWNER/NAME/COMMIT/` below one directory, each whole.
//! `OWNER/NAME/refs/REVISION` says which commit a branch or tag was when it was asked for; what is
//! on its way is in `.COMMIT.partial/`, and the time of `.COMMIT.used` is when a worker of this
//! node was last started with the model.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use tracing::{info, warn};

use rooflet_api::v1alpha1::HubModel;
use rooflet_base::file::directories;
use rooflet_base::units::Bytes;

/// Ends the names of what is not whole.
pub(super) const PARTIAL: &str = ".partial";

/// See the module. Not in the model's directory, whose files say whether it is still the same.
const USED: &str = ".used";

/// Where the commits of branches and tags stand.
const REFS: &str = "refs";

/// A longer commit is none.
const MAX_COMMIT_BYTES: u64 = 128;

/// The directory of downloaded models.
#[derive(Debug, Clone)]
pub struct Downloads {
    root: Utf8PathBuf,
}

impl Downloads {
    pub fn new(root: Utf8PathBuf) -> Self {
        Self { root }
    }

    fn repository(&self, model: &HubModel) -> Utf8PathBuf {
        self.root.join(&model.owner).join(&model.name)
    }

    /// Where the model is once it is whole. `model` has its commit.
    pub fn path(&self, model: &HubModel) -> Utf8PathBuf {
        self.repository(model)
            .join(model.revision.as_deref().unwrap_or_default())
    }

    pub(super) fn partial(&self, model: &HubModel) -> Utf8PathBuf {
        hidden(&self.path(model), PARTIAL)
    }

    fn reference(&self, model: &HubModel) -> Utf8PathBuf {
        let revision = model.revision.as_deref().unwrap_or("main");
        self.repository(model)
            .join(REFS)
            .join(revision.replace('/', "%2F"))
    }

    /// The model's directory, if it is here and whole.
    pub fn find(&self, model: &HubModel) -> Option<Utf8PathBuf> {
        [model, &self.pinned(model)]
            .into_iter()
            .filter(|model| model.revision.is_some())
            .map(|model| self.path(model))
            .find(|path| path.is_dir())
    }

    /// The same by the commit that its branch or tag was found to be, if it was asked for before.
    pub fn pinned(&self, model: &HubModel) -> HubModel {
        HubModel {
            revision: self.commit(model).or_else(|| model.revision.clone()),
            ..model.clone()
        }
    }

    /// What has come of a model that is not whole.
    pub fn came(&self, model: &HubModel) -> Bytes {
        stored(&self.partial(model))
    }

    /// The commit that a branch or tag was found to be.
    fn commit(&self, model: &HubModel) -> Option<String> {
        let path = self.reference(model);
        let is_short = fs::metadata(&path).ok()?.len() <= MAX_COMMIT_BYTES;
        let text = is_short.then(|| fs::read_to_string(&path).ok())??;
        let is_commit = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        is_commit.then_some(text)
    }

    /// Remembers which commit a branch or tag is, so that a restart finds the same. A commit stands
    /// for itself.
    pub fn remember(&self, asked: &HubModel, pinned: &HubModel) -> io::Result<()> {
        let Some(commit) = pinned.revision.as_ref().filter(|_| asked != pinned) else {
            return Ok(());
        };
        let path = self.reference(asked);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, commit)
    }

    /// Notes that a model is in use.
    pub fn touch(&self, path: &Utf8Path) {
        if path.starts_with(&self.root)
            && let Err(err) = fs::write(hidden(path, USED), "")
        {
            warn!(%path, error = %err, "the time of a model's last use could not be written");
        }
    }

    /// All that are whole, in order.
    pub fn list(&self) -> Vec<(HubModel, Utf8PathBuf)> {
        let mut found = Vec::new();
        for owner in directories(&self.root) {
            for name in directories(&owner) {
                for path in directories(&name) {
                    let commit = path.file_name().unwrap_or_default();
                    if commit.starts_with('.') || commit == REFS {
                        continue;
                    }
                    let model = HubModel {
                        owner: owner.file_name().unwrap_or_default().to_owned(),
                        name: name.file_name().unwrap_or_default().to_owned(),
                        revision: Some(commit.to_owned()),
                    };
                    found.push((model, path));
                }
            }
        }
        found.sort();
        found
    }

    /// What has been downloaded of models whose directories are none of `used`: it can be had back.
    pub fn unused(&self, used: &BTreeSet<Utf8PathBuf>) -> Bytes {
        let unused = self.unused_directories(used);
        unused.iter().map(|path| stored(path)).sum()
    }

    /// Removes what has been downloaded of models whose directories are none of `used`, the one
    /// first whose last use is longest ago, until `wanted` is free again.
    pub fn remove_unused(&self, used: &BTreeSet<Utf8PathBuf>, mut wanted: Bytes) {
        let mut unused: Vec<_> = self
            .unused_directories(used)
            .into_iter()
            .map(|path| (last_used(&path), path))
            .collect();
        unused.sort();
        for (_, path) in unused {
            if wanted == Bytes::ZERO {
                return;
            }
            let bytes = stored(&path);
            match remove(&path) {
                Ok(()) => {
                    wanted = wanted - bytes;
                    info!(%path, "removed a downloaded model that no replica uses, for another one");
                }
                Err(err) => warn!(%path, error = %err, "a downloaded model could not be removed"),
            }
        }
    }

    fn unused_directories(&self, used: &BTreeSet<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
        let partial: BTreeSet<_> = used.iter().map(|path| hidden(path, PARTIAL)).collect();
        let repositories = directories(&self.root)
            .into_iter()
            .flat_map(|owner| directories(&owner));
        let all = repositories.flat_map(|name| directories(&name));
        all.filter(|path| path.file_name() != Some(REFS) && !used.contains(path) && !partial.contains(path))
            .collect()
    }
}

/// Beside a model's directory: what is not the model.
fn hidden(path: &Utf8Path, end: &str) -> Utf8PathBuf {
    path.with_file_name(format!(".{}{end}", path.file_name().unwrap_or_default()))
}

/// Under another name first, so that a half of it never passes for whole.
fn remove(path: &Utf8Path) -> io::Result<()> {
    let going = hidden(path, ".removed");
    fs::rename(path, &going)?;
    drop(fs::remove_file(hidden(path, USED)));
    fs::remove_dir_all(going)
}

fn last_used(path: &Utf8Path) -> Option<SystemTime> {
    let used = fs::metadata(hidden(path, USED)).or_else(|_| fs::metadata(path));
    used.and_then(|used| used.modified()).ok()
}

fn stored(dir: &Utf8Path) -> Bytes {
    let entries = dir.read_dir_utf8().into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok());
    sizes.map(|file| Bytes(file.len())).sum()
}

#[cfg(test)]
mod tests;

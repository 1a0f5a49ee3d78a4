//! Models that this node has downloaded: complete ones in `OWNER/NAME/COMMIT/` below one directory.
//!
//! Further files of a repository:
//!
//! - `refs/REVISION`: commit of a branch or tag at the time of the download.
//! - `.COMMIT.partial/`: incomplete download.
//! - `.COMMIT.used`: its modification time is the last start of a worker with the model.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use tracing::{info, warn};

use rooflet_api::v1alpha1::HubModel;
use rooflet_base::file::{directories, if_there};
use rooflet_base::units::Bytes;

/// Suffix of incomplete files and directories.
pub(super) const PARTIAL: &str = ".partial";

/// Suffix of the file for the last use. It is next to the model's directory, whose files form the
/// fingerprint.
const USED: &str = ".used";

/// Directory of the commits of branches and tags.
const REFS: &str = "refs";

/// Maximum length of a commit in bytes.
const MAX_COMMIT_BYTES: u64 = 128;

/// Directory of downloaded models.
#[derive(Debug, Clone)]
pub struct Downloads {
    root: Utf8PathBuf,
}

impl Downloads {
    pub fn new(root: Utf8PathBuf) -> Self {
        Self { root }
    }

    /// Returns the directory without symbolic links, so that its paths equal those of located models. The target
    /// of a link may be mounted later.
    fn root(&self) -> Utf8PathBuf {
        self.root
            .canonicalize_utf8()
            .unwrap_or_else(|_| self.root.clone())
    }

    fn repository(&self, model: &HubModel) -> Utf8PathBuf {
        self.root().join(&model.owner).join(&model.name)
    }

    /// Returns the directory of the complete model. `model` has a commit as revision.
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

    /// Returns the model's directory, if it is complete.
    pub fn find(&self, model: &HubModel) -> Option<Utf8PathBuf> {
        [model, &self.pinned(model)]
            .into_iter()
            .filter(|model| model.revision.is_some())
            .map(|model| self.path(model))
            .find(|path| path.is_dir())
    }

    /// Replaces a branch or tag by its recorded commit, if any.
    pub fn pinned(&self, model: &HubModel) -> HubModel {
        HubModel {
            revision: self.commit(model).or_else(|| model.revision.clone()),
            ..model.clone()
        }
    }

    /// Returns the size of an incomplete download.
    pub fn downloaded_bytes(&self, model: &HubModel) -> Bytes {
        stored(&self.partial(model))
    }

    /// Returns the recorded commit of a branch or tag.
    fn commit(&self, model: &HubModel) -> Option<String> {
        let path = self.reference(model);
        let is_short = fs::metadata(&path).ok()?.len() <= MAX_COMMIT_BYTES;
        let text = is_short.then(|| fs::read_to_string(&path).ok())??;
        let is_commit = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        is_commit.then_some(text)
    }

    /// Records the commit of a branch or tag, so that a restart finds the same model. Does nothing
    /// if the revision is a commit.
    pub fn record_commit(&self, requested: &HubModel, pinned: &HubModel) -> io::Result<()> {
        let Some(commit) = pinned.revision.as_ref().filter(|_| requested != pinned) else {
            return Ok(());
        };
        let path = self.reference(requested);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, commit)
    }

    /// Records that a model is in use.
    pub fn touch(&self, path: &Utf8Path) {
        if path.starts_with(self.root())
            && let Err(err) = fs::write(hidden(path, USED), "")
        {
            warn!(%path, error = %err, "failed to record the last use of a model");
        }
    }

    /// Returns the last start of a worker with a model, if any.
    pub fn last_use(&self, model: &HubModel) -> Option<SystemTime> {
        let used = fs::metadata(hidden(&self.path(model), USED));
        used.and_then(|used| used.modified()).ok()
    }

    /// Returns the time at which the download of a complete model ended.
    pub fn downloaded_at(&self, model: &HubModel) -> Option<SystemTime> {
        fs::metadata(self.find(model)?)
            .and_then(|path| path.modified())
            .ok()
    }

    /// Deletes a complete model. Returns its size, or `None` if no such model exists.
    pub fn delete(&self, model: &HubModel) -> io::Result<Option<Bytes>> {
        let Some(path) = self.find(model) else {
            return Ok(None);
        };
        let bytes = stored(&path);
        remove(&path)?;
        Ok(Some(bytes))
    }

    /// Returns all complete models, sorted.
    pub fn list(&self) -> Vec<(HubModel, Utf8PathBuf)> {
        let mut found = Vec::new();
        for owner in directories(&self.root()) {
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

    /// Returns the size of all downloads except those in the directories `used`.
    pub fn unused(&self, used: &BTreeSet<Utf8PathBuf>) -> Bytes {
        let unused = self.unused_directories(used);
        unused.iter().map(|path| stored(path)).sum()
    }

    /// Removes downloads except those in the directories `used`, the least recently used first,
    /// until `wanted` bytes are free.
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
                    info!(%path, "removed unused model to free disk space");
                }
                Err(err) => warn!(%path, error = %err, "failed to remove downloaded model"),
            }
        }
    }

    fn unused_directories(&self, used: &BTreeSet<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
        let partial: BTreeSet<_> = used.iter().map(|path| hidden(path, PARTIAL)).collect();
        let repositories = directories(&self.root())
            .into_iter()
            .flat_map(|owner| directories(&owner));
        let all = repositories.flat_map(|name| directories(&name));
        all.filter(|path| path.file_name() != Some(REFS) && !used.contains(path) && !partial.contains(path))
            .collect()
    }
}

/// Returns the path of a hidden file next to a model's directory.
fn hidden(path: &Utf8Path, end: &str) -> Utf8PathBuf {
    path.with_file_name(format!(".{}{end}", path.file_name().unwrap_or_default()))
}

/// Removes a directory. It is renamed first, so that an incomplete model never has the final name.
fn remove(path: &Utf8Path) -> io::Result<()> {
    let renamed = hidden(path, ".removed");
    // The agent may have ended during an earlier removal.
    if_there(fs::remove_dir_all(&renamed))?;
    fs::rename(path, &renamed)?;
    drop(fs::remove_file(hidden(path, USED)));
    fs::remove_dir_all(renamed)
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

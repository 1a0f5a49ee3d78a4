//! Locations of a model's files on this node: resolution of a source to a directory, and the
//! contents of the model directory.
//!
//! The crate only locates models; [`model_dir`] checks whether a directory contains a servable
//! model.

mod downloads;
pub mod hub;
pub mod model_dir;
pub mod pull;
pub mod remote;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::time::UNIX_EPOCH;

use camino::{Utf8Path, Utf8PathBuf};

pub use self::downloads::Downloads;
use rooflet_api::v1alpha1::{HubModel, ModelSource};

/// Maximum number of listed directories. Others are still found by name.
pub(crate) const MAX_LISTED_MODELS: usize = 256;

/// Maximum number of files in a model directory. The largest published models have a few hundred.
const MAX_FILES: usize = 4096;

/// Directory of `--model-dir`, if set, and downloaded models of an agent.
#[derive(Debug, Clone, Default)]
pub struct ModelDirectory {
    root: Option<Utf8PathBuf>,
    downloads: Option<Downloads>,
}

/// Error of resolving a source to a directory.
#[derive(Debug, thiserror::Error)]
pub enum ResolveModelError {
    #[error(
        "`{model}` requires the agent's --model-dir, which is not set: start the agent with --model-dir DIR"
    )]
    NoModelDir { model: String },
    #[error("{model} is not downloaded to this node")]
    NotDownloaded { model: String },
    #[error("`{path}` does not exist on this node: copy the model's files there")]
    NotFound { path: Utf8PathBuf },
    #[error(
        "`{path}` does not exist on this node, but `{existing}` does: names are case-sensitive, also on a Mac"
    )]
    OtherCase { path: Utf8PathBuf, existing: String },
    #[error(
        "`{path}` is not a directory: a model is a directory with config.json, tokenizer.json and *.safetensors"
    )]
    NotADirectory { path: Utf8PathBuf },
    #[error(
        "`{path}` links to `{target}`, outside the model directory: move or copy the files into the model directory"
    )]
    Escapes { path: Utf8PathBuf, target: Utf8PathBuf },
    #[error("`{path}` resolves to a path that is not UTF-8: rename it")]
    NotUtf8 { path: Utf8PathBuf },
    #[error("`{path}` has more than {MAX_FILES} files, which is the limit for a model")]
    TooManyFiles { path: Utf8PathBuf },
    #[error("the agent cannot read `{path}`: check its permissions")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
}

impl ResolveModelError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoModelDir { .. }
            | Self::NotDownloaded { .. }
            | Self::NotFound { .. }
            | Self::OtherCase { .. } => "ModelNotFound",
            Self::NotADirectory { .. } | Self::NotUtf8 { .. } | Self::TooManyFiles { .. } => {
                "InvalidModelFile"
            }
            Self::Escapes { .. } => "PathEscapes",
            Self::Read { .. } => "ReadFailed",
        }
    }

    fn read(path: &Utf8Path, err: io::Error) -> Self {
        let path = path.to_owned();
        if err.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Read { path, err }
        }
    }
}

/// Model directory with a fingerprint of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    pub path: Utf8PathBuf,
    /// Changes if a file is added, removed, replaced or modified.
    pub fingerprint: u64,
}

impl ModelDirectory {
    pub fn new(root: Option<Utf8PathBuf>) -> Self {
        Self {
            root,
            downloads: None,
        }
    }

    /// Adds downloaded models.
    pub fn with_downloads(self, downloads: Downloads) -> Self {
        Self {
            downloads: Some(downloads),
            ..self
        }
    }

    /// Finds the directory of a source. A local model must be in the model directory with all its
    /// files: links to other places are rejected.
    pub fn locate(&self, source: &ModelSource) -> Result<Located, ResolveModelError> {
        match source {
            ModelSource::Local(name) => {
                let Some(root) = &self.root else {
                    return Err(ResolveModelError::NoModelDir {
                        model: source.to_string(),
                    });
                };
                let path = root.join(name);
                match other_case(name, entry_names(root)) {
                    Some(existing) => Err(ResolveModelError::OtherCase { path, existing }),
                    None => locate(&path, Some(root)),
                }
            }
            ModelSource::File(path) => locate(path, None),
            ModelSource::Hub(model) => {
                let found = self
                    .downloads
                    .as_ref()
                    .and_then(|downloads| downloads.find(model));
                let path = found.ok_or_else(|| ResolveModelError::NotDownloaded {
                    model: model.to_string(),
                })?;
                locate(&path, None)
            }
        }
    }

    /// Returns the downloaded models, sorted.
    pub fn downloaded(&self) -> Vec<HubModel> {
        let downloads = self.downloads.iter().flat_map(Downloads::list);
        downloads
            .map(|(model, _)| model)
            .take(MAX_LISTED_MODELS)
            .collect()
    }

    /// Returns the names of the directories in the model directory, sorted, without hidden ones.
    pub fn names(&self) -> Result<Vec<String>, ResolveModelError> {
        let Some(root) = &self.root else {
            return Ok(Vec::new());
        };
        let failed = |err| ResolveModelError::read(root, err);
        let mut names = Vec::new();
        for entry in root.read_dir_utf8().map_err(failed)? {
            // No source has a name that is not UTF-8.
            let Ok(entry) = entry else { continue };
            if !entry.file_name().starts_with('.') && entry.path().is_dir() {
                names.push(entry.file_name().to_owned());
            }
        }
        names.sort_unstable();
        names.truncate(MAX_LISTED_MODELS);
        Ok(names)
    }
}

/// Returns the names in a directory. If it cannot be read, reports no names: locating the model then
/// fails with the reason.
fn entry_names(directory: &Utf8Path) -> impl Iterator<Item = String> + use<> {
    let entries = directory.read_dir_utf8().into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_owned())
}

/// Returns the name that differs from `name` in case only, if no name is equal. The file system of a
/// Mac usually ignores case, so that one directory would otherwise be several models.
fn other_case(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let mut found = None;
    for existing in names.filter(|existing| existing.eq_ignore_ascii_case(name)) {
        if existing == name {
            return None;
        }
        found = Some(existing);
    }
    found
}

fn locate(path: &Utf8Path, root: Option<&Utf8Path>) -> Result<Located, ResolveModelError> {
    let root = root.map(canonical).transpose()?;
    let real = canonical(path)?;
    stay_inside(path, &real, root.as_deref())?;
    if !real.is_dir() {
        return Err(ResolveModelError::NotADirectory {
            path: path.to_owned(),
        });
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&real).map_err(|err| ResolveModelError::read(path, err))? {
        let entry = entry.map_err(|err| ResolveModelError::read(path, err))?;
        let Ok(file) = Utf8PathBuf::from_path_buf(entry.path()) else {
            continue;
        };
        let metadata = entry
            .metadata()
            .map_err(|err| ResolveModelError::read(&file, err))?;
        let metadata = if metadata.is_symlink() {
            let target = canonical(&file)?;
            stay_inside(&file, &target, root.as_deref())?;
            fs::metadata(&target).map_err(|err| ResolveModelError::read(&file, err))?
        } else {
            metadata
        };
        let modified = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        files.push((file.file_name().map(str::to_owned), metadata.len(), modified));
        if files.len() > MAX_FILES {
            return Err(ResolveModelError::TooManyFiles {
                path: path.to_owned(),
            });
        }
    }
    files.sort_unstable();
    let mut hasher = DefaultHasher::new();
    (&real, files).hash(&mut hasher);
    Ok(Located {
        path: real,
        fingerprint: hasher.finish(),
    })
}

fn canonical(path: &Utf8Path) -> Result<Utf8PathBuf, ResolveModelError> {
    let real = path
        .canonicalize()
        .map_err(|err| ResolveModelError::read(path, err))?;
    Utf8PathBuf::from_path_buf(real).map_err(|_| ResolveModelError::NotUtf8 {
        path: path.to_owned(),
    })
}

fn stay_inside(path: &Utf8Path, real: &Utf8Path, root: Option<&Utf8Path>) -> Result<(), ResolveModelError> {
    match root {
        Some(root) if !real.starts_with(root) => Err(ResolveModelError::Escapes {
            path: path.to_owned(),
            target: real.to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use rooflet_testing::TempDir;

    struct Fixture {
        directory: TempDir,
        models: ModelDirectory,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = TempDir::new();
            let root = directory.path().join("models");
            fs::create_dir_all(root.join("guide")).unwrap();
            fs::write(root.join("guide/config.json"), "{}").unwrap();
            Self {
                directory,
                models: ModelDirectory::new(Some(root)),
            }
        }

        fn path(&self, name: &str) -> Utf8PathBuf {
            self.directory.path().join(name)
        }

        fn check(&self, source: &str, expect: &str) {
            let got = match self.models.locate(&source.parse().unwrap()) {
                Ok(located) => located.path.file_name().unwrap().to_owned(),
                Err(err) => err.reason().to_owned(),
            };
            assert_eq!(got, expect, "{source}");
        }
    }

    #[test]
    fn resolves_source_only_to_its_directory() {
        let fixture = Fixture::new();
        fs::create_dir(fixture.path("secret")).unwrap();
        fs::write(fixture.path("secret/key"), "k").unwrap();
        fs::write(fixture.path("models/file"), "x").unwrap();
        symlink(fixture.path("secret"), fixture.path("models/out")).unwrap();
        symlink(fixture.path("models/guide"), fixture.path("models/alias")).unwrap();
        fs::create_dir(fixture.path("models/half")).unwrap();
        symlink(
            fixture.path("secret/key"),
            fixture.path("models/half/config.json"),
        )
        .unwrap();
        fixture.check("local://guide", "guide");
        fixture.check("local://alias", "guide");
        fixture.check("local://absent", "ModelNotFound");
        fixture.check("local://file", "InvalidModelFile");
        fixture.check("local://out", "PathEscapes");
        fixture.check("local://half", "PathEscapes");
        fixture.check(&format!("file://{}", fixture.path("secret")), "secret");
        fixture.check("file:///no/such/directory", "ModelNotFound");
        assert_eq!(fixture.models.names().unwrap(), ["alias", "guide", "half", "out"]);
    }

    #[test]
    fn names_of_local_models_are_case_sensitive() {
        let fixture = Fixture::new();
        let locate = |name: &str| fixture.models.locate(&ModelSource::Local(name.to_owned()));
        let err = locate("Guide").unwrap_err();
        assert!(
            err.reason() == "ModelNotFound" && err.to_string().contains("`guide`"),
            "{err}"
        );
        assert!(locate("guide").is_ok());
        let names = || ["Guide", "guide", "other"].map(str::to_owned).into_iter();
        assert_eq!(other_case("guide", names()), None);
        assert_eq!(other_case("OTHER", names()).as_deref(), Some("other"));
        assert_eq!(other_case("absent", names()), None);
    }

    #[test]
    fn error_names_dangling_link() {
        let fixture = Fixture::new();
        symlink("/no/such/blob", fixture.path("models/guide/model.safetensors")).unwrap();
        let err = fixture
            .models
            .locate(&ModelSource::Local("guide".to_owned()))
            .unwrap_err();
        assert!(err.to_string().contains("guide/model.safetensors"), "{err}");
    }

    #[test]
    fn fingerprint_changes_with_the_files() {
        let fixture = Fixture::new();
        let source = ModelSource::Local("guide".to_owned());
        let before = fixture.models.locate(&source).unwrap();
        assert_eq!(fixture.models.locate(&source).unwrap(), before);
        fs::write(fixture.path("models/guide/model.safetensors"), "w").unwrap();
        assert_ne!(
            fixture.models.locate(&source).unwrap().fingerprint,
            before.fingerprint
        );
    }

    #[test]
    fn error_names_missing_model_dir_flag() {
        let err = ModelDirectory::default()
            .locate(&ModelSource::Local("guide".to_owned()))
            .unwrap_err();
        assert!(err.to_string().contains("--model-dir"), "{err}");
    }
}

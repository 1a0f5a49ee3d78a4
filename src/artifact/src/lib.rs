//! Where a model's files are on this node: from a source to a directory, and what lies in the model
//! directory.
//!
//! Only finds; whether a directory holds a servable model is `model_dir`'s to say.

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

/// Directories that are listed; the rest is not shown, but found by name all the same.
pub(crate) const MAX_LISTED_MODELS: usize = 256;

/// Files looked at in one model directory. The largest published models have a few hundred.
const MAX_FILES: usize = 4096;

/// The agent's `--model-dir`, if it has one, and what it downloaded.
#[derive(Debug, Clone, Default)]
pub struct ModelDirectory {
    root: Option<Utf8PathBuf>,
    downloads: Option<Downloads>,
}

/// Why a source leads to no directory.
#[derive(Debug, thiserror::Error)]
pub enum ResolveModelError {
    #[error(
        "`{model}` is looked for in the agent's --model-dir, and this agent was started without one: start it with --model-dir DIR"
    )]
    NoModelDir { model: String },
    #[error("{model} has not been downloaded to this node")]
    NotDownloaded { model: String },
    #[error("`{path}` does not exist on this node: put the model's files there")]
    NotFound { path: Utf8PathBuf },
    #[error(
        "`{path}` is not a directory: a model is a directory with config.json, tokenizer.json and *.safetensors"
    )]
    NotADirectory { path: Utf8PathBuf },
    #[error("`{path}` leads out of the model directory, to `{target}`: move or copy the files into it")]
    Escapes { path: Utf8PathBuf, target: Utf8PathBuf },
    #[error("`{path}` leads to a path that is not UTF-8: rename it")]
    NotUtf8 { path: Utf8PathBuf },
    #[error("`{path}` holds more than {MAX_FILES} files; no model has so many")]
    TooManyFiles { path: Utf8PathBuf },
    #[error("`{path}` cannot be read by the agent: check its permissions")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
}

impl ResolveModelError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoModelDir { .. } | Self::NotDownloaded { .. } | Self::NotFound { .. } => "ModelNotFound",
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

/// A model's directory as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    pub path: Utf8PathBuf,
    /// Changes when a file is added, removed, replaced or written to.
    pub fingerprint: u64,
}

impl ModelDirectory {
    pub fn new(root: Option<Utf8PathBuf>) -> Self {
        Self {
            root,
            downloads: None,
        }
    }

    /// The same with what was downloaded.
    pub fn with_downloads(self, downloads: Downloads) -> Self {
        Self {
            downloads: Some(downloads),
            ..self
        }
    }

    /// Finds the directory of a source. A directory under the model directory must lie there with
    /// all its files: a link may not lead out of it.
    pub fn locate(&self, source: &ModelSource) -> Result<Located, ResolveModelError> {
        match source {
            ModelSource::Local(name) => {
                let Some(root) = &self.root else {
                    return Err(ResolveModelError::NoModelDir {
                        model: source.to_string(),
                    });
                };
                locate(&root.join(name), Some(root))
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

    /// The models that were downloaded, in order.
    pub fn downloaded(&self) -> Vec<HubModel> {
        let downloads = self.downloads.iter().flat_map(Downloads::list);
        downloads
            .map(|(model, _)| model)
            .take(MAX_LISTED_MODELS)
            .collect()
    }

    /// Names of the directories in the model directory, sorted. Hidden ones are left out.
    pub fn names(&self) -> Result<Vec<String>, ResolveModelError> {
        let Some(root) = &self.root else {
            return Ok(Vec::new());
        };
        let failed = |err| ResolveModelError::read(root, err);
        let mut names = Vec::new();
        for entry in root.read_dir_utf8().map_err(failed)? {
            // A name that is not UTF-8 is no name of a source.
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

    struct Scene {
        directory: TempDir,
        models: ModelDirectory,
    }

    impl Scene {
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
    fn a_source_leads_to_its_directory_and_nowhere_else() {
        let scene = Scene::new();
        fs::create_dir(scene.path("secret")).unwrap();
        fs::write(scene.path("secret/key"), "k").unwrap();
        fs::write(scene.path("models/file"), "x").unwrap();
        symlink(scene.path("secret"), scene.path("models/out")).unwrap();
        symlink(scene.path("models/guide"), scene.path("models/alias")).unwrap();
        fs::create_dir(scene.path("models/half")).unwrap();
        symlink(scene.path("secret/key"), scene.path("models/half/config.json")).unwrap();
        scene.check("local://guide", "guide");
        scene.check("local://alias", "guide");
        scene.check("local://absent", "ModelNotFound");
        scene.check("local://file", "InvalidModelFile");
        scene.check("local://out", "PathEscapes");
        scene.check("local://half", "PathEscapes");
        scene.check(&format!("file://{}", scene.path("secret")), "secret");
        scene.check("file:///no/such/directory", "ModelNotFound");
        assert_eq!(scene.models.names().unwrap(), ["alias", "guide", "half", "out"]);
    }

    #[test]
    fn a_dangling_link_is_named() {
        let scene = Scene::new();
        symlink("/no/such/blob", scene.path("models/guide/model.safetensors")).unwrap();
        let err = scene
            .models
            .locate(&ModelSource::Local("guide".to_owned()))
            .unwrap_err();
        assert!(err.to_string().contains("guide/model.safetensors"), "{err}");
    }

    #[test]
    fn the_fingerprint_follows_the_files() {
        let scene = Scene::new();
        let source = ModelSource::Local("guide".to_owned());
        let before = scene.models.locate(&source).unwrap();
        assert_eq!(scene.models.locate(&source).unwrap(), before);
        fs::write(scene.path("models/guide/model.safetensors"), "w").unwrap();
        assert_ne!(
            scene.models.locate(&source).unwrap().fingerprint,
            before.fingerprint
        );
    }

    #[test]
    fn without_a_model_directory_the_flag_is_named() {
        let err = ModelDirectory::default()
            .locate(&ModelSource::Local("guide".to_owned()))
            .unwrap_err();
        assert!(err.to_string().contains("--model-dir"), "{err}");
    }
}

//! Reader of the manifest directory, triggered by file system events.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use notify::{RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{FileState, Manifest, ManifestProblem, ManifestSet, Parser, merge};
use crate::replica::Origin;
use crate::state::Record;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_base::yaml::MAX_YAML_BYTES;
use rooflet_client::Changes;

/// Interval of unconditional rescans. File system events can be lost, for example on a network disk
/// or after the directory was replaced.
const RESCAN: Duration = Duration::from_secs(10);

/// Delay between an event and the scan, so that the several writes of an editor are read once.
const SETTLE: Duration = Duration::from_millis(150);

/// Maximum number of files that are read.
const MAX_FILES: usize = 1024;

/// Error that makes a manifest directory unusable.
#[derive(Debug, thiserror::Error)]
pub enum OpenManifestsError {
    #[error(
        "manifest directory `{path}` does not exist: create it, or pass another directory with --manifest-dir"
    )]
    Missing { path: Utf8PathBuf },
    #[error(
        "reading the manifest directory `{path}`: check its permissions, or pass another directory with --manifest-dir"
    )]
    Unreadable {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
}

/// Checks at the start of the agent that the directory exists and is readable.
pub(crate) fn check_readable(path: &Utf8Path) -> Result<(), OpenManifestsError> {
    let path_of = || path.to_owned();
    match path.read_dir_utf8() {
        Ok(_) => Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            Err(OpenManifestsError::Missing { path: path_of() })
        }
        Err(err) => Err(OpenManifestsError::Unreadable { path: path_of(), err }),
    }
}

/// Starts a task that reads the directory. For a file that is invalid at the start, `records`
/// supply the last valid version.
pub(crate) fn watch<'a>(
    tasks: &Tasks,
    path: Utf8PathBuf,
    parser: Parser,
    records: impl Iterator<Item = &'a Record>,
    changes: Changes,
) -> watch::Receiver<Arc<ManifestSet>> {
    let mut directory = Directory {
        path,
        parser,
        files: remembered(records),
        set: Arc::default(),
    };
    // The watch starts before the first scan, so that no change is missed between the two.
    let (noticed_tx, mut noticed_rx) = watch::channel(());
    let watcher = directory.notify(noticed_tx);
    directory.scan();
    let (set_tx, set_rx) = watch::channel(directory.set.clone());
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        let _watcher = watcher;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = noticed_rx.changed() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(RESCAN) => {}
            }
            noticed_rx.mark_unchanged();
            let scan = tokio::task::spawn_blocking(move || {
                let changed = directory.scan();
                (directory, changed)
            });
            // The scan fails only if it panics. The agent then keeps running the last known
            // manifests.
            let Ok((back, changed)) = scan.await else { return };
            directory = back;
            if changed {
                set_tx.send_replace(directory.set.clone());
                changes.mark();
            }
        }
    });
    set_rx
}

struct Directory {
    path: Utf8PathBuf,
    parser: Parser,
    files: BTreeMap<String, FileState>,
    set: Arc<ManifestSet>,
}

impl Directory {
    /// Reads all files. Returns true if anything has changed.
    fn scan(&mut self) -> bool {
        let mut problems = Vec::new();
        match self.file_names() {
            Ok(names) => {
                self.files.retain(|file, _| names.contains(file));
                for file in names {
                    let read =
                        read(&self.path.join(&file), &file).and_then(|text| self.parser.parse(&file, &text));
                    let state = self.files.entry(file).or_default();
                    match read {
                        Ok(manifests) => {
                            *state = FileState {
                                good: manifests,
                                problems: Vec::new(),
                            }
                        }
                        Err(wrong) => state.problems = wrong,
                    }
                }
            }
            // Replicas of an unmounted disk keep running.
            Err(err) => problems.push(problem(
                self.path.as_str(),
                format!("reading the directory: {err}"),
            )),
        }
        let mut set = merge(&self.files, &self.set, &self.parser);
        set.problems.extend(problems);
        if *self.set == set {
            return false;
        }
        for new in set
            .problems
            .iter()
            .filter(|problem| !self.set.problems.contains(problem))
        {
            warn!("manifest {new}; replicas of its last valid version keep running");
        }
        info!(
            replicas = set.replicas.len(),
            problems = set.problems.len(),
            "read the manifest directory"
        );
        self.set = Arc::new(set);
        true
    }

    /// Returns the sorted names of the manifest files.
    fn file_names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in self.path.read_dir_utf8()? {
            // Names that are not UTF-8 are ignored.
            let Ok(entry) = entry else { continue };
            if is_manifest_name(entry.file_name()) && may_be_file(entry.path()) {
                names.push(entry.file_name().to_owned());
            }
        }
        names.sort_unstable();
        names.truncate(MAX_FILES);
        Ok(names)
    }

    /// Returns `None` if the system does not support file watches. Changes are then found by the
    /// periodic scan.
    fn notify(&self, noticed_tx: watch::Sender<()>) -> Option<notify::RecommendedWatcher> {
        let watching = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                noticed_tx.send_replace(());
            }
        })
        .and_then(|mut watcher| {
            watcher.watch(self.path.as_std_path(), RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        watching
            .inspect_err(|err| {
                warn!(path = %self.path, error = %Chain(err), "failed to watch manifest directory; scanning every 10 s");
            })
            .ok()
    }
}

fn read(path: &Utf8Path, file: &str) -> Result<String, Vec<ManifestProblem>> {
    let failed = |message| vec![problem(file, message)];
    let metadata = path
        .metadata()
        .map_err(|err| failed(format!("cannot be read: {err}")))?;
    if metadata.len() > MAX_YAML_BYTES as u64 {
        return Err(failed(format!(
            "has {} bytes; at most {MAX_YAML_BYTES} are read",
            metadata.len()
        )));
    }
    let bytes = std::fs::read(path).map_err(|err| failed(format!("cannot be read: {err}")))?;
    String::from_utf8(bytes).map_err(|_| failed("is not UTF-8 text".to_owned()))
}

fn problem(file: &str, message: String) -> ManifestProblem {
    ManifestProblem {
        file: file.to_owned(),
        line: None,
        field: None,
        message,
    }
}

/// Returns false for directories and other non-files. Symbolic links are followed, because Kubernetes mounts
/// ConfigMaps as links. The target of a link may be missing briefly; reading it then reports the problem.
fn may_be_file(path: &Utf8Path) -> bool {
    match path.metadata() {
        Ok(metadata) => metadata.is_file(),
        Err(_) => path.symlink_metadata().is_ok(),
    }
}

/// Returns false for hidden files and for backup files of editors (`a.yaml~`, `#a.yaml#`,
/// `.a.yaml.swp`).
fn is_manifest_name(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    !name.starts_with(['.', '#', '~']) && matches!(extension, Some("yaml" | "yml" | "json"))
}

fn remembered<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<String, FileState> {
    let mut files: BTreeMap<String, FileState> = BTreeMap::new();
    for record in records {
        match &record.origin {
            Origin::Manifest(file) => {
                let manifest = Manifest {
                    key: record.key.clone(),
                    spec: record.spec.clone(),
                    terms: record.terms.clone(),
                };
                files.entry(file.clone()).or_default().good.push(manifest);
            }
            Origin::Api => {}
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rooflet_base::latest::Latest;
    use rooflet_testing::TempDir;

    const LONG: Duration = Duration::from_secs(20);

    struct Fixture {
        directory: TempDir,
        tasks: Tasks,
        set_rx: watch::Receiver<Arc<ManifestSet>>,
    }

    fn deployment(name: &str, source: &str) -> String {
        format!(
            "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata:\n  name: {name}\nspec:\n  model:\n    source: {source}\n"
        )
    }

    impl Fixture {
        fn new(files: &[(&str, &str)]) -> Self {
            let directory = TempDir::new();
            for (name, text) in files {
                fs::write(directory.path().join(name), text).unwrap();
            }
            let tasks = Tasks::new();
            let path = directory.path().to_owned();
            let set_rx = watch(&tasks, path, Parser::new("n"), std::iter::empty(), Changes::new());
            Self {
                directory,
                tasks,
                set_rx,
            }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn shown(&self) -> String {
            let set = self.set_rx.latest();
            let replicas: Vec<_> = set
                .replicas
                .iter()
                .map(|(key, (file, manifest))| format!("{}={}<{file}", key.name, manifest.spec.source))
                .collect();
            let problems: Vec<_> = set.problems.iter().map(|problem| problem.file.clone()).collect();
            format!("{} !{}", replicas.join(" "), problems.join(","))
        }

        async fn until(&mut self, expect: &str) {
            let waiting = async {
                while self.shown() != expect {
                    self.set_rx.changed().await.unwrap();
                }
            };
            let outcome = tokio::time::timeout(LONG, waiting).await;
            assert!(outcome.is_ok(), "wanted `{expect}`, have `{}`", self.shown());
        }
    }

    #[tokio::test]
    async fn adds_changes_keeps_moves_and_removes_files() {
        let good = deployment("a", "local://m");
        let mut fixture = Fixture::new(&[
            ("a.yaml", &good),
            ("notes.txt", "x"),
            (".a.yaml.swp", "x"),
            ("b.yaml~", "x"),
        ]);
        assert_eq!(fixture.shown(), "a-n=local://m<a.yaml !");
        fixture.write("b.yml", &deployment("b", "local://m"));
        fixture.until("a-n=local://m<a.yaml b-n=local://m<b.yml !").await;
        fixture.write("a.yaml", &deployment("a", "local://m2"));
        fixture.until("a-n=local://m2<a.yaml b-n=local://m<b.yml !").await;
        fixture.write("a.yaml", "kind: [");
        fixture
            .until("a-n=local://m2<a.yaml b-n=local://m<b.yml !a.yaml")
            .await;
        fixture.write("a.yaml", "");
        fixture.write("a.yaml", &deployment("a", "local://m3"));
        fixture.until("a-n=local://m3<a.yaml b-n=local://m<b.yml !").await;
        let path = |name: &str| fixture.directory.path().join(name);
        fs::rename(path("a.yaml"), path("c.yaml")).unwrap();
        fixture.until("a-n=local://m3<c.yaml b-n=local://m<b.yml !").await;
        fs::remove_file(fixture.directory.path().join("c.yaml")).unwrap();
        fixture.until("b-n=local://m<b.yml !").await;
        fixture.tasks.cancel();
    }

    #[test]
    fn file_that_is_invalid_at_start_keeps_recorded_replicas() {
        let directory = TempDir::new();
        fs::write(directory.path().join("a.yaml"), "kind: [").unwrap();
        let good = Parser::new("n")
            .parse("a.yaml", &deployment("a", "local://m"))
            .unwrap();
        let mut scanned = Directory {
            path: directory.path().to_owned(),
            parser: Parser::new("n"),
            files: BTreeMap::from([(
                "a.yaml".to_owned(),
                FileState {
                    good,
                    problems: Vec::new(),
                },
            )]),
            set: Arc::default(),
        };
        assert!(
            scanned.scan() && !scanned.scan(),
            "the second scan finds no change"
        );
        assert_eq!((scanned.set.replicas.len(), scanned.set.problems.len()), (1, 1));
        fs::remove_file(directory.path().join("a.yaml")).unwrap();
        assert!(scanned.scan());
        assert_eq!(*scanned.set, ManifestSet::default());
    }

    #[test]
    fn link_with_a_missing_target_keeps_its_replicas() {
        let directory = TempDir::new();
        let (path, target) = (
            directory.path().join("manifests"),
            directory.path().join("target"),
        );
        fs::create_dir_all(path.join("directory.yaml")).unwrap();
        fs::write(&target, deployment("a", "local://m")).unwrap();
        std::os::unix::fs::symlink(&target, path.join("a.yaml")).unwrap();
        let mut scanned = Directory {
            path: path.clone(),
            parser: Parser::new("n"),
            files: BTreeMap::new(),
            set: Arc::default(),
        };
        let mut scan = || {
            scanned.scan();
            (scanned.set.replicas.len(), scanned.set.problems.len())
        };
        assert_eq!(scan(), (1, 0));
        fs::remove_file(&target).unwrap();
        assert_eq!(scan(), (1, 1));
        fs::write(&target, deployment("a", "local://m")).unwrap();
        assert_eq!(scan(), (1, 0));
        fs::remove_file(path.join("a.yaml")).unwrap();
        assert_eq!(scan(), (0, 0));
    }

    #[test]
    fn removed_directory_removes_no_replica() {
        let directory = TempDir::new();
        let path = directory.path().join("manifests");
        assert!(matches!(
            check_readable(&path),
            Err(OpenManifestsError::Missing { .. })
        ));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), deployment("a", "local://m")).unwrap();
        let mut scanned = Directory {
            path: path.clone(),
            parser: Parser::new("n"),
            files: BTreeMap::new(),
            set: Arc::default(),
        };
        scanned.scan();
        fs::remove_dir_all(&path).unwrap();
        assert!(scanned.scan());
        assert_eq!((scanned.set.replicas.len(), scanned.set.problems.len()), (1, 1));
    }

    #[test]
    fn ignores_backup_files_of_editors() {
        for name in ["a.yaml", "a.yml", "a.b.json"] {
            assert!(is_manifest_name(name), "{name}");
        }
        for name in [
            ".a.yaml",
            "a.yaml~",
            "#a.yaml#",
            "a.yaml.swp",
            ".#a.yaml",
            "README.md",
            "yaml",
            "4913",
            "a.yaml.tmp",
        ] {
            assert!(!is_manifest_name(name), "{name}");
        }
    }
}

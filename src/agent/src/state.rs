//! The agent's state directory. It belongs to one agent and stores enough of each replica to find
//! its worker after a crash.
//!
//! - `lock` is locked while the agent runs.
//! - `replicas/ID/` contains `record.json`, the worker's log and its termination message.
//! - `run/` contains the workers' sockets. If that path is too long for a socket, they are in
//!   `/tmp`.
//! - `kv/` contains the prefixes that workers cache on disk; see `prefix_files`.
//! - `models/` contains downloaded models; see `artifact`.

mod record;

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::warn;

pub use self::record::Record;
pub(crate) use self::record::WorkerRecord;
use crate::replica::ReplicaKey;
use rooflet_base::error::Chain;
use rooflet_base::file::{if_there, replace};
use rooflet_process::logs::Log;

/// Longest path of a socket. `sockaddr_un` holds 104 bytes on macOS and 108 on Linux, including the
/// final zero.
const MAX_SOCKET_PATH_BYTES: usize = 99;

/// Maximum size of a state file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// File in the state directory that stores the node's name.
const NODE_NAME: &str = "node-name.json";

/// Error that makes the state directory unusable.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    #[error(
        "state directory `{path}` is in use by another agent: stop that agent, or pass another directory with --state-dir"
    )]
    Locked { path: Utf8PathBuf },
    #[error("state directory `{path}` is unusable: pass another directory with --state-dir")]
    Unusable {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error(
        "`{path}` belongs to another user or is world-writable: pass another directory with --state-dir, or remove \
        `{path}` (long paths place the sockets in /tmp)"
    )]
    Foreign { path: Utf8PathBuf },
}

impl OpenStateError {
    /// Returns true if another process holds the lock; the directory itself is fine.
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Unusable { .. } | Self::Foreign { .. } => false,
        }
    }
}

/// The state directory, locked.
#[derive(Debug)]
pub struct StateDir {
    path: Utf8PathBuf,
    sockets: Utf8PathBuf,
    /// Lock that the operating system releases when the process ends.
    _lock: File,
}

impl StateDir {
    pub fn open(path: &Utf8Path) -> Result<Self, OpenStateError> {
        let unusable = |path: &Utf8Path, err| OpenStateError::Unusable {
            path: path.to_owned(),
            err,
        };
        make_private(&path.join("replicas")).map_err(|err| unusable(path, err))?;
        let path = path.canonicalize_utf8().map_err(|err| unusable(path, err))?;
        // Anyone who can write here can make the agent adopt a foreign process as a worker.
        if !is_private(&path, 0o002).map_err(|err| unusable(&path, err))? {
            return Err(OpenStateError::Foreign { path });
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(|err| unusable(&path, err))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenStateError::Locked { path }),
            Err(TryLockError::Error(err)) => return Err(unusable(&path, err)),
        }
        let sockets = socket_directory(&path);
        make_private(&sockets).map_err(|err| unusable(&sockets, err))?;
        if !is_private(&sockets, 0o077).map_err(|err| unusable(&sockets, err))? {
            return Err(OpenStateError::Foreign { path: sockets });
        }
        Ok(Self {
            path,
            sockets,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Returns the directory of the workers' sockets. The command line of each worker contains a
    /// path in this directory.
    pub(crate) fn sockets(&self) -> &Utf8Path {
        &self.sockets
    }

    /// Returns the directory of the prefixes that workers cache on disk.
    pub fn prefixes(&self) -> Utf8PathBuf {
        self.path.join("kv")
    }

    /// Returns the directory of downloaded models.
    pub fn downloads(&self) -> Utf8PathBuf {
        self.path.join("models")
    }

    pub(crate) fn replica(&self, key: &ReplicaKey) -> ReplicaDir {
        let id = identifier(key);
        ReplicaDir {
            path: self.path.join("replicas").join(&id),
            socket: self.sockets.join(id + ".sock"),
        }
    }

    /// Returns the records of earlier agent processes. An unreadable record is skipped with a
    /// warning; its worker is found by its command line.
    pub fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let Ok(entries) = self.path.join("replicas").read_dir_utf8() else {
            return records;
        };
        for entry in entries.flatten() {
            let path = entry.path().join("record.json");
            match read_json::<Record>(&path) {
                Ok(Some(record)) if self.replica(&record.key).path == entry.path() => records.push(record),
                Ok(_) => {}
                Err(err) => {
                    warn!(%path, error = %Chain(&err), "failed to read replica record; the replica starts without history");
                }
            }
        }
        records.sort_by(|a, b| a.key.cmp(&b.key));
        records
    }

    /// Saves the node's name for later agent processes. Returns the previous name if it was
    /// different.
    pub fn save_node_name(&self, name: &str) -> io::Result<Option<String>> {
        // An unreadable file is overwritten.
        let before: Option<String> = self.read(NODE_NAME).unwrap_or_default();
        if before.as_deref() != Some(name) {
            self.write(NODE_NAME, &name)?;
        }
        Ok(before.filter(|before| before != name))
    }

    /// Reads a small JSON file of the agent. Returns `None` if the file does not exist.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        read_json(&self.path.join(name))
    }

    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        write_json(&self.path.join(name), value)
    }
}

/// Files of one replica in the state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaDir {
    path: Utf8PathBuf,
    socket: Utf8PathBuf,
}

impl ReplicaDir {
    pub(crate) fn socket(&self) -> &Utf8Path {
        &self.socket
    }

    pub(crate) fn log(&self) -> Log {
        Log::new(self.path.join("worker.log"))
    }

    /// Returns the file in which a worker writes the reason of its exit.
    pub(crate) fn termination_message(&self) -> Utf8PathBuf {
        self.path.join("termination.json")
    }

    pub(crate) fn save(&self, record: &Record) -> io::Result<()> {
        make_private(&self.path)?;
        write_json(&self.path.join("record.json"), record)
    }

    /// Removes the socket and termination message of the previous worker, before the next worker
    /// starts. Creates the directory of the sockets again if it is missing: macOS deletes
    /// directories in `/tmp` that were not used for three days.
    pub(crate) fn clear(&self) -> io::Result<()> {
        if let Some(sockets) = self.socket.parent() {
            make_private(sockets)?;
            if !is_private(sockets, 0o077)? {
                let problem = format!("`{sockets}` belongs to another user, or other users can read it");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
            }
        }
        if_there(fs::remove_file(&self.socket))?;
        if_there(fs::remove_file(self.termination_message())).map(drop)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        if_there(fs::remove_file(&self.socket))?;
        if_there(fs::remove_dir_all(&self.path)).map(drop)
    }
}

/// Returns the node name in an agent's state directory, also while the agent runs. `None` if no
/// agent has run there.
pub fn node_name_in(state_dir: &Utf8Path) -> io::Result<Option<String>> {
    read_json(&state_dir.join(NODE_NAME))
}

/// Reads a small JSON file. Returns `None` if the file does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Utf8Path) -> io::Result<Option<T>> {
    let Some(metadata) = if_there(fs::metadata(path))? else {
        return Ok(None);
    };
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("the file is too large"));
    }
    Ok(Some(serde_json::from_slice(&fs::read(path)?)?))
}

fn write_json<T: Serialize>(path: &Utf8Path, value: &T) -> io::Result<()> {
    replace(path, &serde_json::to_vec_pretty(value)?)
}

/// Returns true if the current user owns the directory and its mode has none of the bits in
/// `rights`.
fn is_private(path: &Utf8Path, rights: u32) -> io::Result<bool> {
    let directory = fs::metadata(path)?;
    let is_own = directory.uid() == nix::unistd::getuid().as_raw();
    Ok(is_own && directory.permissions().mode() & rights == 0)
}

fn make_private(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns true if the sockets of workers are in the state directory. If its path is too long, they
/// are in `/tmp`.
pub fn has_own_sockets(state: &Utf8Path) -> bool {
    socket_directory(state).starts_with(state)
}

fn socket_directory(state: &Utf8Path) -> Utf8PathBuf {
    let near = state.join("run");
    // All socket names have the same length.
    let name = identifier(&ReplicaKey::new("", "")) + ".sock";
    if near.as_str().len() + 1 + name.len() <= MAX_SOCKET_PATH_BYTES {
        return near;
    }
    let user = nix::unistd::getuid();
    Utf8PathBuf::from(format!(
        "/tmp/rooflet-{user}-{}",
        digest(state.as_str().as_bytes())
    ))
}

pub(super) fn identifier(key: &ReplicaKey) -> String {
    digest(key.to_string().as_bytes())
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..8])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::replica::{Origin, ReplicaSpec, Terms};
    use rooflet_testing::TempDir;

    pub(crate) fn record(name: &str) -> Record {
        Record {
            key: ReplicaKey::new("default", name),
            uid: "u".to_owned(),
            generation: 1,
            origin: Origin::Api,
            spec: ReplicaSpec {
                source: "local://guide".to_owned(),
                serving_name: "guide".to_owned(),
                context_tokens: None,
                max_concurrency: 4,
                kv_cache: None,
                prompt_lookup_tokens: None,
                keep_alive: None,
                allow_request_chat_template: false,
            },
            terms: Terms {
                priority: 7,
                ..Terms::default()
            },
            restarts: 2,
            ended_by_itself: true,
            stopped_for_memory: false,
            failures: 1,
            backoff_until: None,
            bad_model: None,
            last_termination: None,
            worker: None,
        }
    }

    fn open(directory: &TempDir) -> Result<StateDir, OpenStateError> {
        StateDir::open(directory.path())
    }

    #[test]
    fn records_survive_and_a_broken_record_affects_no_other() {
        let directory = TempDir::new();
        let state = open(&directory).unwrap();
        for name in ["a", "b"] {
            state.replica(&record(name).key).save(&record(name)).unwrap();
        }
        drop(state);
        let state = open(&directory).unwrap();
        assert_eq!(state.records(), [record("a"), record("b")]);
        // Records of older agents have no terms.
        let older = state.replica(&record("a").key).path.join("record.json");
        let mut text: serde_json::Value = read_json(&older).unwrap().unwrap();
        text.as_object_mut().unwrap().remove("terms");
        write_json(&older, &text).unwrap();
        assert_eq!(state.records()[0].terms, Terms::default());
        let broken = state.replica(&record("a").key);
        fs::write(broken.path.join("record.json"), "{").unwrap();
        assert_eq!(state.records(), [record("b")]);
        broken.remove().unwrap();
        broken.remove().unwrap();
        assert!(!broken.path.exists());
    }

    #[test]
    fn save_node_name_returns_a_different_previous_name() {
        let directory = TempDir::new();
        let state = open(&directory).unwrap();
        let kept = || node_name_in(state.path()).unwrap();
        assert_eq!(kept(), None);
        for (name, before) in [
            ("air", None),
            ("air", None),
            ("mini", Some("air")),
            ("mini", None),
        ] {
            assert_eq!(state.save_node_name(name).unwrap().as_deref(), before);
            assert_eq!(kept().as_deref(), Some(name));
        }
    }

    #[test]
    fn second_agent_gets_a_lock_error_with_remedy() {
        let directory = TempDir::new();
        let _state = open(&directory).unwrap();
        let err = open(&directory).unwrap_err();
        assert!(
            matches!(err, OpenStateError::Locked { .. }) && err.to_string().contains("--state-dir"),
            "{err}"
        );
    }

    #[test]
    fn file_in_place_of_directory_is_named_in_the_error() {
        let directory = TempDir::new();
        let path = directory.path().join("state");
        fs::write(&path, "").unwrap();
        let err = StateDir::open(&path).unwrap_err();
        assert!(err.to_string().contains(path.as_str()), "{err}");
    }

    #[test]
    fn socket_paths_are_short_enough_for_any_state_directory() {
        let directory = TempDir::new();
        let deep = directory.path().join("d".repeat(120));
        let state = StateDir::open(&deep).unwrap();
        let socket = state.replica(&record("a").key).socket;
        assert!(socket.as_str().len() <= MAX_SOCKET_PATH_BYTES, "{socket}");
        assert!(!has_own_sockets(&deep) && has_own_sockets("/srv/rooflet".into()));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        fs::remove_dir_all(state.sockets()).unwrap();
    }

    #[test]
    fn deleted_socket_directory_is_created_before_the_next_start() {
        let directory = TempDir::new();
        let state = open(&directory).unwrap();
        let replica = state.replica(&record("a").key);
        fs::remove_dir_all(state.sockets()).unwrap();
        replica.clear().unwrap();
        drop(std::os::unix::net::UnixListener::bind(&replica.socket).unwrap());
        replica.clear().unwrap();
        assert!(!replica.socket.exists());
        // Other users must not be able to replace a socket.
        fs::set_permissions(state.sockets(), fs::Permissions::from_mode(0o777)).unwrap();
        let err = replica.clear().unwrap_err();
        assert!(err.to_string().contains(state.sockets().as_str()), "{err}");
    }

    #[test]
    fn rejects_world_writable_directory() {
        let directory = TempDir::new();
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = StateDir::open(path).unwrap_err();
        assert!(matches!(refused, OpenStateError::Foreign { .. }), "{refused}");
        fs::set_permissions(path, fs::Permissions::from_mode(0o775)).unwrap();
        StateDir::open(path).unwrap();
    }
}

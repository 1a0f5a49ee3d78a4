//! The agent's state directory: one agent's own, and enough of each replica to find its worker again after a crash.
//!
//! `lock` is held while the agent lives. `replicas/ID/` has `record.json`, the worker's log and its last words. Workers
//! listen in `run/`, or under `/tmp` where that path would be too long for a socket. What they store of prompts is in
//! `kv/`; see `prefix_files`. Models that were downloaded are in `models/`; see `artifact`.

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

/// `sockaddr_un` has room for 104 bytes on macOS and 108 on Linux, the closing zero included.
const MAX_SOCKET_PATH_BYTES: usize = 99;

/// The largest file of ours that is read back, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// In the state directory: what the node is called.
const NODE_NAME: &str = "node-name.json";

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    #[error(
        "another agent uses the state directory `{path}`: stop it, or give this one a --state-dir of its own"
    )]
    Locked { path: Utf8PathBuf },
    #[error("the state directory `{path}` cannot be used: choose another one with --state-dir")]
    Unusable {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error(
        "`{path}` belongs to another user, or every user may write there: choose another --state-dir, or remove what is \
         there (where the path is long, sockets are in /tmp)"
    )]
    Foreign { path: Utf8PathBuf },
}

impl OpenStateError {
    /// Another process is in the way; nothing is wrong with the directory.
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
    /// Released when the agent ends, however it ends.
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
        // Whoever else writes here has his programs taken for workers.
        if !is_ours(&path, 0o002).map_err(|err| unusable(&path, err))? {
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
        if !is_ours(&sockets, 0o077).map_err(|err| unusable(&sockets, err))? {
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

    /// Where workers listen; every one of them has a path below it on its command line.
    pub(crate) fn sockets(&self) -> &Utf8Path {
        &self.sockets
    }

    /// Where workers store prefixes.
    pub fn prefixes(&self) -> Utf8PathBuf {
        self.path.join("kv")
    }

    /// Models that were downloaded.
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

    /// What earlier lives left. A record that cannot be read is set aside with a warning: its worker is found by its
    /// command line.
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
                    warn!(%path, error = %Chain(&err), "a replica's record cannot be read; it starts afresh")
                }
            }
        }
        records.sort_by(|a, b| a.key.cmp(&b.key));
        records
    }

    /// Keeps what the node is called for the agent's next lives. Returns what it was called before, if that was something else.
    pub fn keep_node_name(&self, name: &str) -> io::Result<Option<String>> {
        // One that cannot be read is replaced.
        let before: Option<String> = self.read(NODE_NAME).unwrap_or_default();
        if before.as_deref() != Some(name) {
            self.write(NODE_NAME, &name)?;
        }
        Ok(before.filter(|before| before != name))
    }

    /// A small file of the agent itself.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        read_json(&self.path.join(name))
    }

    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        write_json(&self.path.join(name), value)
    }
}

/// The part of the state directory that belongs to one replica.
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

    /// Where a worker says why it ends.
    pub(crate) fn termination_message(&self) -> Utf8PathBuf {
        self.path.join("termination.json")
    }

    pub(crate) fn save(&self, record: &Record) -> io::Result<()> {
        make_private(&self.path)?;
        write_json(&self.path.join("record.json"), record)
    }

    /// Removes what a worker leaves behind, before the next one starts.
    pub(crate) fn clear(&self) -> io::Result<()> {
        if_there(fs::remove_file(&self.socket))?;
        if_there(fs::remove_file(self.termination_message())).map(drop)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        if_there(fs::remove_file(&self.socket))?;
        if_there(fs::remove_dir_all(&self.path)).map(drop)
    }
}

/// What the node of the agent with this state directory is called; `None` where no agent has run. It may run now.
pub fn node_name_in(state_dir: &Utf8Path) -> io::Result<Option<String>> {
    read_json(&state_dir.join(NODE_NAME))
}

/// Reads a small JSON file; `None` if it is not there.
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

/// Whether a directory is this user's, and gives nobody these rights.
fn is_ours(path: &Utf8Path, rights: u32) -> io::Result<bool> {
    let directory = fs::metadata(path)?;
    let is_own = directory.uid() == nix::unistd::getuid().as_raw();
    Ok(is_own && directory.permissions().mode() & rights == 0)
}

fn make_private(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn socket_directory(state: &Utf8Path) -> Utf8PathBuf {
    let near = state.join("run");
    // Every socket has a name of the same length.
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
            },
            terms: Terms {
                priority: 7,
                ..Terms::default()
            },
            restarts: 2,
            ended_by_itself: true,
            gave_way: false,
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
    fn records_survive_and_a_broken_one_harms_no_other() {
        let directory = TempDir::new();
        let state = open(&directory).unwrap();
        for name in ["a", "b"] {
            state.replica(&record(name).key).save(&record(name)).unwrap();
        }
        drop(state);
        let state = open(&directory).unwrap();
        assert_eq!(state.records(), [record("a"), record("b")]);
        // An older agent wrote no terms.
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
    fn the_nodes_name_is_kept_and_another_one_is_told() {
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
            assert_eq!(state.keep_node_name(name).unwrap().as_deref(), before);
            assert_eq!(kept().as_deref(), Some(name));
        }
    }

    #[test]
    fn a_second_agent_is_told_who_is_in_the_way() {
        let directory = TempDir::new();
        let _state = open(&directory).unwrap();
        let err = open(&directory).unwrap_err();
        assert!(
            matches!(err, OpenStateError::Locked { .. }) && err.to_string().contains("--state-dir"),
            "{err}"
        );
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let directory = TempDir::new();
        let path = directory.path().join("state");
        fs::write(&path, "").unwrap();
        let err = StateDir::open(&path).unwrap_err();
        assert!(err.to_string().contains(path.as_str()), "{err}");
    }

    #[test]
    fn sockets_are_short_enough_wherever_the_state_is() {
        let directory = TempDir::new();
        let deep = directory.path().join("d".repeat(120));
        let state = StateDir::open(&deep).unwrap();
        let socket = state.replica(&record("a").key).socket;
        assert!(socket.as_str().len() <= MAX_SOCKET_PATH_BYTES, "{socket}");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        fs::remove_dir_all(state.sockets()).unwrap();
    }

    #[test]
    fn a_directory_where_every_user_writes_is_refused() {
        let directory = TempDir::new();
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = StateDir::open(path).unwrap_err();
        assert!(matches!(refused, OpenStateError::Foreign { .. }), "{refused}");
        fs::set_permissions(path, fs::Permissions::from_mode(0o775)).unwrap();
        StateDir::open(path).unwrap();
    }
}

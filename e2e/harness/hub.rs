//! Test replacement for huggingface.co: a hub of models, and a CDN with the large files on a
//! separate port. It implements the requests that `huggingface_hub` sends when it downloads a
//! model; `e2e/clients.rs` tests it with this client.

mod response;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Access control of a model.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Access {
    #[default]
    Public,
    /// The file list is public. The files require this token.
    Gated(&'static str),
    /// All requests require this token.
    Private(&'static str),
}

/// Fault of a response that contains a given byte of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection breaks before the byte.
    Cut,
    /// The byte has another value.
    Corrupt,
    /// The server responds with 503.
    Busy,
}

/// Number of responses that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    Once,
    Always,
}

/// Request for the content of a file: to the hub for small files, to the CDN for large ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Download {
    /// Path relative to the model's directory.
    pub(crate) file: String,
    /// First requested byte, and the last one if the request contains it.
    pub(crate) range: Option<(usize, Option<usize>)>,
}

#[derive(Debug)]
struct File {
    content: Bytes,
    sha256: String,
    /// Git blob id of the content, or of the LFS pointer.
    blob_id: String,
    /// Size of the LFS pointer; `None` for small files.
    pointer_bytes: Option<usize>,
}

#[derive(Debug, Default)]
struct Repository {
    access: Access,
    /// Commit of each branch.
    heads: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, Arc<File>>>,
}

#[derive(Debug, Default)]
struct Contents {
    repositories: BTreeMap<String, Repository>,
    /// File, position of the byte, fault, and number of affected responses.
    faults: Vec<(String, usize, Fault, Times)>,
    bytes_per_second: Option<u32>,
    /// False sizes of files in the file list.
    claims: BTreeMap<String, u64>,
    requests: Vec<String>,
    downloads: Vec<Download>,
}

/// State that the hub and the CDN share.
struct Shared {
    contents: Mutex<Contents>,
    cdn: Mutex<SocketAddr>,
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("no holder of the lock panics")
    }
}

/// Running hub.
pub(crate) struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// `None` while the hub is stopped.
    runtime: Option<Runtime>,
}

impl Hub {
    /// Starts a hub without models.
    pub(crate) fn start() -> Self {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let shared = Shared {
            contents: Mutex::default(),
            cdn: Mutex::new(anywhere),
        };
        let mut hub = Self {
            address: anywhere,
            shared: Arc::new(shared),
            runtime: None,
        };
        hub.start_again();
        hub
    }

    /// Closes the ports and all connections.
    pub(crate) fn stop(&mut self) {
        drop(self.runtime.take());
    }

    /// Opens the same ports again.
    pub(crate) fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let bind = |address: SocketAddr| {
            let listener = runtime.block_on(TcpListener::bind(address));
            let listener = listener.expect("the port is free");
            let address = listener.local_addr().expect("bound");
            (listener, address)
        };
        let mut cdn_address = self.shared.cdn.lock().expect("no holder of the lock panics");
        let (hub, cdn);
        (hub, self.address) = bind(self.address);
        (cdn, *cdn_address) = bind(*cdn_address);
        drop(cdn_address);
        let serve = |listener, router: Router<Arc<Shared>>| {
            let router = router.with_state(Arc::clone(&self.shared));
            runtime.spawn(axum::serve(listener, router).into_future());
        };
        serve(hub, Router::new().fallback(response::serve_hub));
        serve(cdn, Router::new().fallback(response::serve_cdn));
        self.runtime = Some(runtime);
    }

    /// Returns the URL, for HF_ENDPOINT.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Commits the files of a directory to the branch `main` of a model. Returns the commit id.
    pub(crate) fn commit(&self, model: &str, directory: &Path) -> String {
        let mut files = BTreeMap::new();
        read(directory, "", &mut files);
        let mut hash = Sha256::new();
        for (name, file) in &files {
            hash.update(format!("{name} {}\n", file.sha256));
        }
        // Commit ids have 40 hexadecimal digits.
        let commit = hex::encode(&hash.finalize()[..20]);
        let mut contents = self.shared.contents();
        let repository = contents.repositories.entry(model.to_owned()).or_default();
        repository.heads.insert("main".to_owned(), commit.clone());
        repository.commits.insert(commit.clone(), files);
        commit
    }

    /// Sets the access control of a model.
    pub(crate) fn allow(&self, model: &str, access: Access) {
        let mut contents = self.shared.contents();
        let repository = contents.repositories.get_mut(model);
        repository.expect("the model has a commit").access = access;
    }

    /// Limits the rate of current and future responses.
    pub(crate) fn limit(&self, bytes_per_second: Option<u32>) {
        self.shared.contents().bytes_per_second = bytes_per_second;
    }

    /// Injects a fault into responses that contain byte `at` of files with this name. Each response
    /// has at most one fault; faults apply in the order in which they were added.
    pub(crate) fn fault(&self, file: &str, at: usize, fault: Fault, times: Times) {
        let fault = (file.to_owned(), at, fault, times);
        self.shared.contents().faults.push(fault);
    }

    /// Sets the size of files with this name in the file list, independently of their content, to
    /// simulate files that are larger than any disk.
    pub(crate) fn set_claimed_size(&self, file: &str, bytes: u64) {
        self.shared.contents().claims.insert(file.to_owned(), bytes);
    }

    /// Removes all faults.
    pub(crate) fn clear_faults(&self) {
        self.shared.contents().faults.clear();
    }

    /// Returns method and path of all requests to the hub. For the CDN, see [`Self::downloads`].
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.contents().requests.clone()
    }

    /// Returns all requests for the content of files.
    pub(crate) fn downloads(&self) -> Vec<Download> {
        self.shared.contents().downloads.clone()
    }
}

/// Reads all files below a directory.
fn read(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Arc<File>>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("readable");
        let name = entry.file_name();
        let name = format!("{prefix}{}", name.to_str().expect("UTF-8"));
        if entry.file_type().expect("readable").is_dir() {
            read(&entry.path(), &format!("{name}/"), files);
        } else {
            let content = std::fs::read(entry.path()).expect("readable");
            files.insert(name.clone(), Arc::new(File::new(&name, content)));
        }
    }
}

impl File {
    fn new(name: &str, content: Vec<u8>) -> Self {
        let sha256 = hex::encode(Sha256::digest(&content));
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {}\n",
            content.len()
        );
        let is_large = name.ends_with(".safetensors");
        let blob: &[u8] = if is_large { pointer.as_bytes() } else { &content };
        Self {
            blob_id: git_blob_id(blob),
            pointer_bytes: is_large.then_some(pointer.len()),
            content: content.into(),
            sha256,
        }
    }

    /// Returns the description of the file in the response for a revision or for a tree, which have
    /// different field names.
    fn described(&self, name: &str, in_tree: bool) -> Value {
        let (path, id, digest) = match in_tree {
            true => ("path", "oid", "oid"),
            false => ("rfilename", "blobId", "sha256"),
        };
        let mut described = json!({path: name, id: self.blob_id, "size": self.content.len()});
        if in_tree {
            described["type"] = "file".into();
        }
        if let Some(pointer_bytes) = self.pointer_bytes {
            described["lfs"] =
                json!({digest: self.sha256, "size": self.content.len(), "pointerSize": pointer_bytes});
        }
        described
    }
}

/// Returns the git blob id of the content.
fn git_blob_id(content: &[u8]) -> String {
    let mut git = Command::new("git")
        .args(["hash-object", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git is installed");
    let mut stdin = git.stdin.take().expect("piped");
    stdin.write_all(content).expect("git reads");
    drop(stdin);
    let output = git.wait_with_output().expect("git ends");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn hub_serves_files_and_injects_faults() {
    let scratch = super::Scratch::new();
    scratch.write("model/model.safetensors", "weights");
    let mut hub = Hub::start();
    let commit = hub.commit("a/b", &scratch.join("model"));
    let timeout = std::time::Duration::from_millis(500);
    let client = super::Http::with_timeout(hub.endpoint(), timeout);
    let weights = || client.get("/a/b/resolve/main/model.safetensors");
    assert_eq!(weights().expect("a response").text, "weights");

    hub.fault("model.safetensors", 3, Fault::Cut, Times::Once);
    hub.fault("model.safetensors", 0, Fault::Busy, Times::Once);
    hub.fault("model.safetensors", 6, Fault::Corrupt, Times::Always);
    assert!(weights().is_err());
    assert_eq!(weights().expect("a response").status, 503);
    assert_eq!(weights().expect("a response").text, "weightr");
    assert_eq!(weights().expect("a response").text, "weightr");
    hub.clear_faults();
    hub.limit(Some(1));
    assert!(weights().is_err());
    hub.limit(None);
    assert_eq!(weights().expect("a response").text, "weights");
    assert_eq!(hub.downloads().len(), 7);

    hub.stop();
    assert!(weights().is_err());
    hub.start_again();
    scratch.write("model/config.json", "{}");
    let moved = hub.commit("a/b", &scratch.join("model"));
    assert_ne!(commit, moved);
    for (revision, sha) in [("main", &moved), (&*commit, &commit)] {
        let path = format!("/api/models/a/b/revision/{revision}");
        assert_eq!(client.get(&path).expect("a response").json()["sha"], **sha);
        assert!(hub.requests().contains(&format!("GET {path}")));
    }
}

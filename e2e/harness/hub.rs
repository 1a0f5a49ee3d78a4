//! What stands in for huggingface.co: a hub of models and, on a port of its own, the CDN that has
//! their large files. It answers what `huggingface_hub` asks when it downloads a model;
//! `e2e/clients.rs` shows that this client is content.

mod answer;

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

/// Who may have the files of a model.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Access {
    #[default]
    Everybody,
    /// Everybody sees that it is there and of which files it consists; these are for who has this
    /// token.
    Gated(&'static str),
    /// Nobody without this token learns that it exists.
    Private(&'static str),
}

/// What happens to answers that hold a certain byte of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection breaks before that byte.
    Cut,
    /// The byte is another.
    Corrupt,
    /// There is none: the server is too busy.
    Busy,
}

/// How many answers a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    Once,
    Always,
}

/// One request for what a file holds: of the hub for small files, of the CDN for large ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Download {
    /// Below the model's directory.
    pub(crate) file: String,
    /// The first byte that was asked for, and the last one where it was named.
    pub(crate) range: Option<(usize, Option<usize>)>,
}

#[derive(Debug)]
struct File {
    content: Bytes,
    sha256: String,
    /// The id of what git has: of the content, or of the pointer to it.
    blob_id: String,
    /// Of the pointer that git has in place of a large file.
    pointer_bytes: Option<usize>,
}

#[derive(Debug, Default)]
struct Repository {
    access: Access,
    /// Commits of branches.
    heads: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, Arc<File>>>,
}

#[derive(Debug, Default)]
struct Contents {
    repositories: BTreeMap<String, Repository>,
    /// File, position of a byte in it, and what happens there.
    faults: Vec<(String, usize, Fault, Times)>,
    bytes_per_second: Option<u32>,
    /// What is said of the length of files.
    claims: BTreeMap<String, u64>,
    requests: Vec<String>,
    downloads: Vec<Download>,
}

/// What both servers have.
struct Shared {
    contents: Mutex<Contents>,
    cdn: Mutex<SocketAddr>,
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("nobody panics with it")
    }
}

/// See the module.
pub(crate) struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// None while it is away.
    runtime: Option<Runtime>,
}

impl Hub {
    /// Starts one without models.
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

    /// Closes its ports and whatever is open on them.
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
            let listener = listener.expect("its port is free");
            let address = listener.local_addr().expect("bound");
            (listener, address)
        };
        let mut cdn_address = self.shared.cdn.lock().expect("nobody panics with it");
        let (hub, cdn);
        (hub, self.address) = bind(self.address);
        (cdn, *cdn_address) = bind(*cdn_address);
        drop(cdn_address);
        let serve = |listener, router: Router<Arc<Shared>>| {
            let router = router.with_state(Arc::clone(&self.shared));
            runtime.spawn(axum::serve(listener, router).into_future());
        };
        serve(hub, Router::new().fallback(answer::of_hub));
        serve(cdn, Router::new().fallback(answer::of_cdn));
        self.runtime = Some(runtime);
    }

    /// Where it is; the value of HF_ENDPOINT.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds the files of a directory to a model as its newest commit, to which its branch `main`
    /// moves. Returns the commit.
    pub(crate) fn commit(&self, model: &str, directory: &Path) -> String {
        let mut files = BTreeMap::new();
        read(directory, "", &mut files);
        let mut hash = Sha256::new();
        for (name, file) in &files {
            hash.update(format!("{name} {}\n", file.sha256));
        }
        // A commit's id is of this form, whatever it is made from.
        let commit = hex::encode(&hash.finalize()[..20]);
        let mut contents = self.shared.contents();
        let repository = contents.repositories.entry(model.to_owned()).or_default();
        repository.heads.insert("main".to_owned(), commit.clone());
        repository.commits.insert(commit.clone(), files);
        commit
    }

    /// Says who may have the files of a model.
    pub(crate) fn allow(&self, model: &str, access: Access) {
        let mut contents = self.shared.contents();
        let repository = contents.repositories.get_mut(model);
        repository.expect("a model that was committed").access = access;
    }

    /// Answers to come, and those that are being sent, get no more bytes in a second than this.
    pub(crate) fn limit(&self, bytes_per_second: Option<u32>) {
        self.shared.contents().bytes_per_second = bytes_per_second;
    }

    /// Lets something happen to answers that hold byte `at` of files of this name; of several
    /// things, to each answer one, in the order in which they were wanted.
    pub(crate) fn fault(&self, file: &str, at: usize, fault: Fault, times: Times) {
        let fault = (file.to_owned(), at, fault, times);
        self.shared.contents().faults.push(fault);
    }

    /// Says of files of this name that they are so long, whatever they are: nobody has a file that
    /// is too large for a disk.
    pub(crate) fn claim(&self, file: &str, bytes: u64) {
        self.shared.contents().claims.insert(file.to_owned(), bytes);
    }

    /// No fault strikes any more.
    pub(crate) fn mend(&self) {
        self.shared.contents().faults.clear();
    }

    /// Method and path of every request of the hub so far; of the CDN there are
    /// [`Self::downloads`].
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.contents().requests.clone()
    }

    /// What was asked for so far of the content of files.
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

    /// As `GET` of a revision has it, and as `GET` of a tree does: the names differ.
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

/// What git calls a file of this content.
fn git_blob_id(content: &[u8]) -> String {
    let mut git = Command::new("git")
        .args(["hash-object", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git is there");
    let mut stdin = git.stdin.take().expect("piped");
    stdin.write_all(content).expect("git reads");
    drop(stdin);
    let output = git.wait_with_output().expect("git ends");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn it_does_what_a_test_wants_of_it() {
    let scratch = super::Scratch::new();
    scratch.write("model/model.safetensors", "weights");
    let mut hub = Hub::start();
    let commit = hub.commit("a/b", &scratch.join("model"));
    let patience = std::time::Duration::from_millis(500);
    let client = super::Http::patient(hub.endpoint(), patience);
    let weights = || client.get("/a/b/resolve/main/model.safetensors");
    assert_eq!(weights().expect("an answer").text, "weights");

    hub.fault("model.safetensors", 3, Fault::Cut, Times::Once);
    hub.fault("model.safetensors", 0, Fault::Busy, Times::Once);
    hub.fault("model.safetensors", 6, Fault::Corrupt, Times::Always);
    assert!(weights().is_err());
    assert_eq!(weights().expect("an answer").status, 503);
    assert_eq!(weights().expect("an answer").text, "weightr");
    assert_eq!(weights().expect("an answer").text, "weightr");
    hub.mend();
    hub.limit(Some(1));
    assert!(weights().is_err());
    hub.limit(None);
    assert_eq!(weights().expect("an answer").text, "weights");
    assert_eq!(hub.downloads().len(), 7);

    hub.stop();
    assert!(weights().is_err());
    hub.start_again();
    scratch.write("model/config.json", "{}");
    let moved = hub.commit("a/b", &scratch.join("model"));
    assert_ne!(commit, moved);
    for (revision, sha) in [("main", &moved), (&*commit, &commit)] {
        let path = format!("/api/models/a/b/revision/{revision}");
        assert_eq!(client.get(&path).expect("an answer").json()["sha"], **sha);
        assert!(hub.requests().contains(&format!("GET {path}")));
    }
}

//! Download of a model's files, which continues earlier attempts. A file gets its final name when
//! it is complete: its size and digest must match those that the hub reports.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::RANGE;
use reqwest::{Client, Response, StatusCode, Url};
use sha2::{Digest, Sha256};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::downloads::{Downloads, PARTIAL};
use super::hub::{HubFile, HubSnapshot};
use super::remote::{HubAccess, below, client};
use rooflet_base::units::Bytes;

/// Maximum time without data on a connection.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Number of parallel downloads. A single connection often does not use the full bandwidth.
const CONCURRENT_FILES: usize = 4;

/// Size of the pieces in which a partial file is read, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Error of a download. Downloaded data is kept, and the next attempt continues there.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("preparing to connect")]
    Client(#[source] reqwest::Error),
    #[error("{url}: the connection failed")]
    Connection {
        url: String,
        #[source]
        err: reqwest::Error,
    },
    #[error("{url}: the connection broke")]
    Interrupted {
        url: String,
        #[source]
        err: reqwest::Error,
    },
    #[error("{url}: the server responded with {status}")]
    Status { url: String, status: StatusCode },
    #[error("{file}: received {got} bytes, but the hub reports {wanted}")]
    Length { file: String, got: u64, wanted: u64 },
    #[error("{file}: the SHA-256 is {got}, but the hub reports {wanted}: the file is discarded")]
    Digest {
        file: String,
        got: String,
        wanted: String,
    },
    #[error("writing `{path}`")]
    Write {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
}

impl PullError {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Client(_) | Self::Connection { .. } => "HubUnreachable",
            Self::Status { .. } => "HubError",
            Self::Interrupted { .. } => "DownloadInterrupted",
            Self::Length { .. } => "DownloadIncomplete",
            Self::Digest { .. } => "DigestMismatch",
            Self::Write { err, .. } if err.kind() == io::ErrorKind::StorageFull => "DiskFull",
            Self::Write { .. } => "WriteFailed",
        }
    }
}

/// Number of bytes of a model on disk.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    pub fn bytes(&self) -> Bytes {
        Bytes(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, bytes: Bytes) {
        self.0.store(bytes.0, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Downloads all missing files. Calls `on_data` with the size of every piece that has been written.
pub async fn pull(
    snapshot: &HubSnapshot,
    hub: &HubAccess,
    downloads: &Downloads,
    progress: &Progress,
    on_data: impl Fn(usize) + Sync,
) -> Result<Utf8PathBuf, PullError> {
    if let Some(path) = downloads.find(&snapshot.model) {
        return Ok(path);
    }
    let dir = downloads.partial(&snapshot.model);
    fs::create_dir_all(&dir).await.map_err(|err| failed(&dir, err))?;
    let mut stored = Bytes::ZERO;
    for file in &snapshot.files {
        stored += stored_bytes(&dir, file).await;
    }
    progress.set(stored);
    let one = Transfer {
        client: client(&hub.endpoint)
            .read_timeout(SILENCE_LIMIT)
            .build()
            .map_err(PullError::Client)?,
        snapshot,
        hub,
        dir: &dir,
        progress,
        on_data: &on_data,
    };
    let files: Vec<_> = snapshot.files.iter().map(|file| one.file(file)).collect();
    stream::iter(files)
        .buffer_unordered(CONCURRENT_FILES)
        .try_collect::<()>()
        .await?;
    let path = downloads.path(&snapshot.model);
    // Sync directories, so that after a power failure a directory with the final name contains all
    // files.
    sync_dir(&dir).await?;
    fs::rename(&dir, &path).await.map_err(|err| failed(&path, err))?;
    if let Some(parent) = path.parent() {
        sync_dir(parent).await?;
    }
    Ok(path)
}

/// Returns the bytes of a file that an earlier attempt stored and this one continues.
async fn stored_bytes(dir: &Utf8Path, file: &HubFile) -> Bytes {
    let length = async |path: Utf8PathBuf| fs::metadata(path).await.map_or(0, |known| known.len());
    if length(dir.join(&file.name)).await == file.bytes {
        return Bytes(file.bytes);
    }
    let part = length(part_path(dir, file)).await;
    // A longer partial file is discarded.
    Bytes(if part <= file.bytes { part } else { 0 })
}

fn part_path(dir: &Utf8Path, file: &HubFile) -> Utf8PathBuf {
    dir.join(format!("{}{PARTIAL}", file.name))
}

async fn sync_dir(dir: &Utf8Path) -> Result<(), PullError> {
    let synced = async { File::open(dir).await?.sync_all().await };
    synced.await.map_err(|err| failed(dir, err))
}

fn failed(path: &Utf8Path, err: io::Error) -> PullError {
    PullError::Write {
        path: path.to_owned(),
        err,
    }
}

struct Transfer<'a, F> {
    client: Client,
    snapshot: &'a HubSnapshot,
    hub: &'a HubAccess,
    dir: &'a Utf8Path,
    progress: &'a Progress,
    on_data: &'a F,
}

impl<F: Fn(usize) + Sync> Transfer<'_, F> {
    async fn file(&self, file: &HubFile) -> Result<(), PullError> {
        let path = self.dir.join(&file.name);
        // A file with its final name is complete.
        if fs::metadata(&path)
            .await
            .is_ok_and(|known| known.len() == file.bytes)
        {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            let made = fs::create_dir_all(parent).await;
            made.map_err(|err| failed(parent, err))?;
        }
        let part_path = part_path(self.dir, file);
        let mut part = Part::open(&part_path, file.bytes)
            .await
            .map_err(|err| failed(&part_path, err))?;
        if part.bytes < file.bytes {
            self.fetch(file, &mut part, &part_path).await?;
        }
        let Part {
            bytes,
            digest,
            file: open,
        } = part;
        let wrong = if bytes == file.bytes {
            let got = hex::encode(digest.finalize());
            let wanted = file.sha256.as_ref().filter(|wanted| **wanted != got);
            wanted.map(|wanted| PullError::Digest {
                file: file.name.clone(),
                got,
                wanted: wanted.clone(),
            })
        } else {
            Some(PullError::Length {
                file: file.name.clone(),
                got: bytes,
                wanted: file.bytes,
            })
        };
        match wrong {
            // Keep incomplete data for the next attempt.
            Some(err @ PullError::Length { .. }) if bytes < file.bytes => Err(err),
            Some(err) => {
                self.progress.subtract(bytes);
                fs::remove_file(&part_path)
                    .await
                    .map_err(|err| failed(&part_path, err))?;
                Err(err)
            }
            None => {
                open.sync_all().await.map_err(|err| failed(&part_path, err))?;
                fs::rename(&part_path, &path)
                    .await
                    .map_err(|err| failed(&path, err))
            }
        }
    }

    /// Downloads the missing end of a file.
    async fn fetch(&self, file: &HubFile, part: &mut Part, path: &Utf8Path) -> Result<(), PullError> {
        let model = &self.snapshot.model;
        let commit = model.revision.as_deref().unwrap_or("main");
        let path_segments = [&model.owner, &model.name, "resolve", commit].into_iter();
        let url = below(&self.hub.endpoint, path_segments.chain(file.name.split('/')));
        let mut response = self.get(&url, part.bytes).await?;
        // The file on the server is shorter than the partial file: it is another file.
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            self.restart(part, path).await?;
            response = self.get(&url, 0).await?;
        }
        // On other errors, keep the partial file.
        if !response.status().is_success() {
            return Err(PullError::Status {
                url: url.to_string(),
                status: response.status(),
            });
        }
        // A server without support of ranges sends the complete file.
        if response.status() != StatusCode::PARTIAL_CONTENT && part.bytes > 0 {
            self.restart(part, path).await?;
        }
        // Size of the last piece. Its write may still fail: the next operation on the file reports the error.
        let mut unwritten = 0;
        let mut body = response.bytes_stream();
        let ended = loop {
            let chunk = match body.next().await {
                None => break Ok(()),
                Some(Err(err)) => {
                    let (url, err) = (url.to_string(), err.without_url());
                    break Err(PullError::Interrupted { url, err });
                }
                Some(Ok(chunk)) => chunk,
            };
            part.append(&chunk).await.map_err(|err| failed(path, err))?;
            self.written(std::mem::replace(&mut unwritten, chunk.len()));
            if part.bytes > file.bytes {
                break Ok(());
            }
        };
        // Keep the received data after any end.
        part.file.flush().await.map_err(|err| failed(path, err))?;
        self.written(unwritten);
        ended
    }

    fn written(&self, bytes: usize) {
        if bytes > 0 {
            self.progress.add(bytes);
            (self.on_data)(bytes);
        }
    }

    async fn restart(&self, part: &mut Part, path: &Utf8Path) -> Result<(), PullError> {
        self.progress.subtract(part.bytes);
        part.restart().await.map_err(|err| failed(path, err))
    }

    async fn get(&self, url: &Url, from: u64) -> Result<Response, PullError> {
        let mut request = self.hub.get(&self.client, url);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        request.send().await.map_err(|err| connection(url, err))
    }
}

fn connection(url: &Url, err: reqwest::Error) -> PullError {
    PullError::Connection {
        url: url.to_string(),
        // The message already contains the URL, and the redirect target may contain a signature.
        err: err.without_url(),
    }
}

/// Partial file with its digest.
struct Part {
    file: File,
    bytes: u64,
    digest: Sha256,
}

impl Part {
    /// Opens a partial file of an earlier attempt, of at most `wanted` bytes.
    async fn open(path: &Utf8Path, wanted: u64) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .await?;
        let mut part = Self {
            file,
            bytes: 0,
            digest: Sha256::new(),
        };
        if part.file.metadata().await?.len() > wanted {
            part.restart().await?;
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = part.file.read(&mut chunk).await?;
            if count == 0 {
                return Ok(part);
            }
            part.digest.update(&chunk[..count]);
            part.bytes += count as u64;
        }
    }

    async fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0).await?;
        self.file.rewind().await?;
        self.bytes = 0;
        self.digest = Sha256::new();
        Ok(())
    }

    async fn append(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.file.write_all(chunk).await?;
        self.digest.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Downloads the files of a surveyed model, and goes on where an earlier attempt ended. A file has
//! its name only once it is whole: as long as the hub says, and of the digest that the hub says.

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
use super::hub::{HubFile, Survey};
use super::remote::{HubAccess, below, client};
use rooflet_base::units::Bytes;

/// A connection on which nothing comes for so long is given up.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Files that are downloaded at the same time: one connection alone often gets less than the line
/// has.
const CONCURRENT_FILES: usize = 4;

/// Read at once of what an earlier attempt has left.
const CHUNK_BYTES: usize = 1 << 20;

/// Why a download ended before it was whole. What came stays, and the next attempt goes on there.
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
    #[error("{url}: the server answers {status}")]
    Status { url: String, status: StatusCode },
    #[error("{file}: {got} bytes came, the hub says {wanted}")]
    Length { file: String, got: u64, wanted: u64 },
    #[error("{file}: what came has the SHA-256 {got}, the hub says {wanted}: it is thrown away")]
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
    /// A CamelCase word for conditions and events.
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

/// Bytes of a model that are on the disk.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    pub fn bytes(&self) -> Bytes {
        Bytes(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn take_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Makes the model's directory whole. `came` is told of every piece that came over the network.
pub async fn pull(
    survey: &Survey,
    hub: &HubAccess,
    downloads: &Downloads,
    progress: &Progress,
    came: impl Fn(usize) + Sync,
) -> Result<Utf8PathBuf, PullError> {
    if let Some(path) = downloads.find(&survey.model) {
        return Ok(path);
    }
    let dir = downloads.partial(&survey.model);
    fs::create_dir_all(&dir).await.map_err(|err| failed(&dir, err))?;
    progress.0.store(0, Ordering::Relaxed);
    let one = Transfer {
        client: client(&hub.endpoint)
            .read_timeout(SILENCE_LIMIT)
            .build()
            .map_err(PullError::Client)?,
        survey,
        hub,
        dir: &dir,
        progress,
        came: &came,
    };
    let files: Vec<_> = survey.files.iter().map(|file| one.file(file)).collect();
    stream::iter(files)
        .buffer_unordered(CONCURRENT_FILES)
        .try_collect::<()>()
        .await?;
    let path = downloads.path(&survey.model);
    // Directories are synced too, so that after a power cut the name stands for whole files.
    sync_dir(&dir).await?;
    fs::rename(&dir, &path).await.map_err(|err| failed(&path, err))?;
    if let Some(parent) = path.parent() {
        sync_dir(parent).await?;
    }
    Ok(path)
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
    survey: &'a Survey,
    hub: &'a HubAccess,
    dir: &'a Utf8Path,
    progress: &'a Progress,
    came: &'a F,
}

impl<F: Fn(usize) + Sync> Transfer<'_, F> {
    async fn file(&self, file: &HubFile) -> Result<(), PullError> {
        let path = self.dir.join(&file.name);
        // It was whole when it got its name.
        if fs::metadata(&path)
            .await
            .is_ok_and(|known| known.len() == file.bytes)
        {
            self.progress.add(file.bytes as usize);
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            let made = fs::create_dir_all(parent).await;
            made.map_err(|err| failed(parent, err))?;
        }
        let part_path = self.dir.join(format!("{}{PARTIAL}", file.name));
        let mut part = Part::open(&part_path, file.bytes)
            .await
            .map_err(|err| failed(&part_path, err))?;
        self.progress.add(part.bytes as usize);
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
            // What came stays for the next attempt, unless it is wrong.
            Some(err @ PullError::Length { .. }) if bytes < file.bytes => Err(err),
            Some(err) => {
                self.progress.take_back(bytes);
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

    /// What is missing at the end of the file.
    async fn fetch(&self, file: &HubFile, part: &mut Part, path: &Utf8Path) -> Result<(), PullError> {
        let model = &self.survey.model;
        let commit = model.revision.as_deref().unwrap_or("main");
        let place = [&model.owner, &model.name, "resolve", commit].into_iter();
        let url = below(&self.hub.endpoint, place.chain(file.name.split('/')));
        let mut response = self.get(&url, part.bytes).await?;
        // A server that says there is nothing there has another file.
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            self.restart(part, path).await?;
            response = self.get(&url, 0).await?;
        }
        // One that is busy says nothing about what came before.
        if !response.status().is_success() {
            return Err(PullError::Status {
                url: url.to_string(),
                status: response.status(),
            });
        }
        // One that knows no ranges sends the whole file.
        if response.status() != StatusCode::PARTIAL_CONTENT && part.bytes > 0 {
            self.restart(part, path).await?;
        }
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
            self.progress.add(chunk.len());
            (self.came)(chunk.len());
            if part.bytes > file.bytes {
                break Ok(());
            }
        };
        // What came before the end is kept, whatever the end was.
        part.file.flush().await.map_err(|err| failed(path, err))?;
        ended
    }

    async fn restart(&self, part: &mut Part, path: &Utf8Path) -> Result<(), PullError> {
        self.progress.take_back(part.bytes);
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
        // The URL is said already, and where it leads may be signed.
        err: err.without_url(),
    }
}

/// A file as far as it has come.
struct Part {
    file: File,
    bytes: u64,
    digest: Sha256,
}

impl Part {
    /// What an earlier attempt has left, at most `wanted` bytes.
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

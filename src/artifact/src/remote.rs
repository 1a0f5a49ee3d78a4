//! Facts of a remote model by HTTP, without downloading it. The code reads `config.json`, the
//! index, and the header of each weight file, but no tensor data.

mod access;
mod reach;

use std::fmt;
use std::pin::pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{CONTENT_RANGE, HeaderMap, RANGE};
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};

use rooflet_api::v1alpha1::{HubModel, ParseHubModelError};
use rooflet_base::loopback;
use rooflet_model::checkpoint;
use rooflet_model::checkpoint::{
    CheckpointError, HEADER_LENGTH_BYTES, INDEX_FILE, MAX_INDEX_BYTES, MAX_WEIGHT_FILES, SINGLE_FILE,
    TensorTable,
};
use rooflet_model::facts::{FactsError, ModelFacts, Tensors, WeightIndex, WeightIndexError};
use rooflet_model::fields::{CONFIG_FILE, MAX_CONFIG_BYTES};

pub use self::access::HubAccess;

/// Timeouts of a connection and of a request.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Number of weight files read in parallel.
const CONCURRENT_FILES: usize = 8;

/// Maximum size of all headers of a model. A model of a trillion parameters has some 10 MB.
const MAX_HEADERS_BYTES: u64 = 256 << 20;

/// Header with the hub's error code.
const ERROR_CODE: &str = "x-error-code";
/// Header with the commit of a revision.
const COMMIT: &str = "x-repo-commit";

/// Location of a remote model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteModel {
    Hub(HubModel),
    /// Directory of a web server.
    Directory(Url),
}

/// Error: the text is not a remote model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {problem}")]
pub struct InvalidRemoteModel {
    text: String,
    problem: String,
}

impl RemoteModel {
    /// Returns true if the text has the form of a remote model.
    pub fn matches(text: &str) -> bool {
        ["hf://", "https://", "http://"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Hub(model) => &model.name,
            Self::Directory(url) => url
                .path_segments()
                .and_then(|mut segments| segments.rfind(|segment| !segment.is_empty()))
                .or(url.host_str())
                .unwrap_or_default(),
        }
    }
}

impl FromStr for RemoteModel {
    type Err = InvalidRemoteModel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |problem: String| InvalidRemoteModel {
            text: text.to_owned(),
            problem,
        };
        if text.starts_with("hf://") {
            return text
                .parse()
                .map(Self::Hub)
                .map_err(|err: ParseHubModelError| invalid(err.to_string()));
        }
        let url = Url::parse(text).map_err(|err| invalid(format!("not a URL: {err}")))?;
        if !matches!(url.scheme(), "https" | "http") || url.cannot_be_a_base() {
            return Err(invalid("use https://HOST/PATH for a directory".to_owned()));
        }
        Ok(Self::Directory(url))
    }
}

impl fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(model) => model.fmt(f),
            Self::Directory(url) => write!(f, "{url}"),
        }
    }
}

/// Error of reading a remote model.
#[derive(Debug, thiserror::Error)]
pub enum ReadRemoteError {
    #[error("preparing to connect")]
    Client(#[source] reqwest::Error),
    #[error("{host} cannot be reached: check the network connection{remedy}")]
    Unreachable {
        host: String,
        /// Rest of the remedy.
        remedy: &'static str,
        #[source]
        err: reqwest::Error,
    },
    #[error("{url}: no complete response within {} s", REQUEST_LIMIT.as_secs())]
    TimedOut { url: String },
    #[error(
        "{model} does not exist, or it is private: check its name, or set HF_TOKEN to a token that may read it"
    )]
    NotFoundOrPrivate { model: String },
    #[error("{model}: there is no revision `{revision}`")]
    NoRevision { model: String, revision: String },
    #[error(
        "{model} is gated: accept its conditions on {page}, then set HF_TOKEN to a token of that account"
    )]
    Gated { model: String, page: String },
    #[error("HF_TOKEN does not permit access to {url}")]
    Forbidden { url: String },
    #[error("{model} has no {file}")]
    NoFile { model: String, file: String },
    #[error("{url}: the server responded with {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url}: the server does not support range requests, which are required to read headers")]
    NoRanges { url: String },
    #[error("{url} is larger than the limit of {limit} bytes")]
    TooLarge { url: String, limit: u64 },
    #[error("{url}: not UTF-8 text")]
    NotText { url: String },
    #[error("{model} has more than {MAX_WEIGHT_FILES} weight files")]
    TooManyFiles { model: String },
    #[error(
        "the headers of {model}'s weights are larger than the limit of {MAX_HEADERS_BYTES} bytes in total"
    )]
    TooManyHeaders { model: String },
    #[error("{url}: {problem}")]
    InvalidIndex { url: String, problem: WeightIndexError },
    #[error("{url} is not a file list of a model: {problem}")]
    InvalidListing { url: String, problem: String },
    #[error("{url}: reading the response")]
    Body {
        url: String,
        #[source]
        err: reqwest::Error,
    },
    #[error("{model}")]
    Checkpoint {
        model: String,
        #[source]
        err: CheckpointError,
    },
    #[error("{model}")]
    Facts {
        model: String,
        #[source]
        err: FactsError,
    },
}

impl ReadRemoteError {
    /// Returns the reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Client(_) | Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Body { .. } => {
                "HubUnreachable"
            }
            Self::NotFoundOrPrivate { .. } => "ModelNotFound",
            Self::NoRevision { .. } => "RevisionNotFound",
            Self::Gated { .. } => "ModelGated",
            Self::Forbidden { .. } => "ModelForbidden",
            Self::NoFile { .. } => "IncompleteModel",
            Self::Status { .. } | Self::NoRanges { .. } | Self::InvalidListing { .. } => "HubError",
            Self::TooLarge { .. }
            | Self::NotText { .. }
            | Self::TooManyFiles { .. }
            | Self::TooManyHeaders { .. }
            | Self::InvalidIndex { .. } => "InvalidModelFile",
            Self::Checkpoint { err, .. } => err.reason(),
            Self::Facts { err, .. } => err.reason(),
        }
    }

    /// Returns true if the same request may succeed later without any change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Client(_) | Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Body { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotFoundOrPrivate { .. }
            | Self::NoRevision { .. }
            | Self::Gated { .. }
            | Self::Forbidden { .. }
            | Self::NoFile { .. }
            | Self::NoRanges { .. }
            | Self::InvalidListing { .. }
            | Self::TooLarge { .. }
            | Self::NotText { .. }
            | Self::TooManyFiles { .. }
            | Self::TooManyHeaders { .. }
            | Self::InvalidIndex { .. }
            | Self::Checkpoint { .. }
            | Self::Facts { .. } => false,
        }
    }
}

/// Configuration and tensor headers of a model.
#[derive(Debug)]
pub struct Checkpoint {
    pub config: String,
    pub tensors: KnownTensors,
}

/// Available information about a model's tensors.
#[derive(Debug)]
pub enum KnownTensors {
    Headers(TensorTable),
    Index(WeightIndex),
    /// Weights in another format, or none.
    Unknown,
}

impl Checkpoint {
    /// Returns the facts of the model, which the engine need not support.
    pub fn facts(&self) -> Result<ModelFacts, FactsError> {
        let tensors = match &self.tensors {
            KnownTensors::Headers(tensors) => Tensors::Headers(tensors),
            KnownTensors::Index(index) => Tensors::Index(index),
            KnownTensors::Unknown => Tensors::Unknown,
        };
        ModelFacts::new(&self.config, tensors)
    }
}

/// Reads configuration and headers, and returns the facts of the model.
pub async fn facts(model: &RemoteModel, hub: &HubAccess) -> Result<ModelFacts, ReadRemoteError> {
    let mut remote = Remote::new(model, hub)?;
    let checkpoint = remote.checkpoint().await?;
    checkpoint.facts().map_err(|err| ReadRemoteError::Facts {
        model: model.to_string(),
        err,
    })
}

struct Header {
    json: Vec<u8>,
    /// Size of the tensor data after the header.
    data_bytes: u64,
}

pub(super) struct Remote<'a> {
    model: &'a RemoteModel,
    hub: &'a HubAccess,
    client: Client,
    /// Revision of the hub. After the first response it is the commit, so that all requests see the
    /// same state.
    revision: String,
    /// Total size of all headers that were requested.
    header_bytes: AtomicU64,
}

impl<'a> Remote<'a> {
    pub(super) fn new(model: &'a RemoteModel, hub: &'a HubAccess) -> Result<Self, ReadRemoteError> {
        let (base, revision) = match model {
            RemoteModel::Hub(model) => (&hub.endpoint, model.revision.as_deref()),
            RemoteModel::Directory(url) => (url, None),
        };
        Ok(Self {
            model,
            hub,
            client: client(base)
                .timeout(REQUEST_LIMIT)
                .build()
                .map_err(ReadRemoteError::Client)?,
            revision: revision.unwrap_or("main").to_owned(),
            header_bytes: AtomicU64::new(0),
        })
    }

    /// Reads the configuration and the header of each weight file.
    pub(super) async fn checkpoint(&mut self) -> Result<Checkpoint, ReadRemoteError> {
        let config = self.text(CONFIG_FILE, MAX_CONFIG_BYTES).await?;
        let config = config.ok_or_else(|| self.no_file(CONFIG_FILE))?;
        let tensors = self.tensors().await?;
        Ok(Checkpoint { config, tensors })
    }

    async fn tensors(&mut self) -> Result<KnownTensors, ReadRemoteError> {
        let index = self.text(INDEX_FILE, MAX_INDEX_BYTES).await?;
        let index = index
            .map(|text| WeightIndex::parse(&text))
            .transpose()
            .map_err(|problem| ReadRemoteError::InvalidIndex {
                url: self.url(INDEX_FILE).to_string(),
                problem,
            })?;
        let single = || vec![SINGLE_FILE.to_owned()];
        let Some(index) = index else {
            return Ok(self
                .table(single())
                .await?
                .map_or(KnownTensors::Unknown, KnownTensors::Headers));
        };
        if index.files.len() > MAX_WEIGHT_FILES {
            return Err(ReadRemoteError::TooManyFiles {
                model: self.model.to_string(),
            });
        }
        let tensors = match self.table(index.files.iter().cloned().collect()).await? {
            Some(tensors) => Some(tensors),
            // The index is stale if a single weight file exists.
            None => self.table(single()).await?,
        };
        Ok(tensors.map_or(KnownTensors::Index(index), KnownTensors::Headers))
    }

    /// Reads the headers of these files; `None` if one of them does not exist.
    async fn table(&self, files: Vec<String>) -> Result<Option<TensorTable>, ReadRemoteError> {
        let headers = stream::iter(files.into_iter().map(|file| async move {
            let header = self.header(&file).await?;
            Ok::<_, ReadRemoteError>((file, header))
        }));
        let mut headers = pin!(headers.buffered(CONCURRENT_FILES));
        let mut tensors = TensorTable::default();
        while let Some((file, header)) = headers.try_next().await? {
            let Some(header) = header else { return Ok(None) };
            tensors
                .add_file(&file, &header.json, header.data_bytes)
                .map_err(|err| self.corrupt(err))?;
        }
        Ok(Some(tensors))
    }

    fn url(&self, file: &str) -> Url {
        match self.model {
            RemoteModel::Hub(model) => {
                let path = [&model.owner, &model.name, "resolve", &self.revision, file];
                below(&self.hub.endpoint, path)
            }
            RemoteModel::Directory(url) => below(url, [file]),
        }
    }

    /// Reads an API response of the hub about the model.
    pub(super) async fn page(&self, url: &Url, limit: u64) -> Result<String, ReadRemoteError> {
        let not_found = || ReadRemoteError::NotFoundOrPrivate {
            model: self.model.to_string(),
        };
        let response = self.get(url, None).await?.ok_or_else(not_found)?;
        read_text(response, url, limit).await
    }

    /// Reads a text file with a size limit; `None` if it does not exist.
    async fn text(&mut self, file: &str, limit: u64) -> Result<Option<String>, ReadRemoteError> {
        let url = self.url(file);
        let Some(response) = self.get(&url, None).await? else {
            return Ok(None);
        };
        if let (RemoteModel::Hub(_), Some(commit)) = (self.model, header_text(response.headers(), COMMIT)) {
            self.revision = commit.to_owned();
        }
        read_text(response, &url, limit).await.map(Some)
    }

    /// Reads the header of a weight file; `None` if the file does not exist.
    async fn header(&self, file: &str) -> Result<Option<Header>, ReadRemoteError> {
        let url = self.url(file);
        let Some(response) = self.get(&url, Some((0, HEADER_LENGTH_BYTES))).await? else {
            return Ok(None);
        };
        let file_bytes = file_bytes(&response);
        let first = read_body(response, &url, HEADER_LENGTH_BYTES).await?;
        let cut_short = |problem: String| {
            self.corrupt(CheckpointError::CorruptHeader {
                file: file.to_owned(),
                problem,
            })
        };
        let (Ok(first), Some(file_bytes)) = (<[u8; 8]>::try_from(first), file_bytes) else {
            return Err(cut_short("the response lacks the first eight bytes".to_owned()));
        };
        let length = checkpoint::header_bytes(file, first, file_bytes).map_err(|err| self.corrupt(err))?;
        if self.header_bytes.fetch_add(length, Ordering::Relaxed) + length > MAX_HEADERS_BYTES {
            return Err(ReadRemoteError::TooManyHeaders {
                model: self.model.to_string(),
            });
        }
        let range = (HEADER_LENGTH_BYTES, length);
        let response = self
            .get(&url, Some(range))
            .await?
            .ok_or_else(|| self.no_file(file))?;
        let json = read_body(response, &url, length).await?;
        if json.len() as u64 != length {
            return Err(cut_short(format!(
                "the response has {} of {length} header bytes",
                json.len()
            )));
        }
        Ok(Some(Header {
            json,
            data_bytes: file_bytes - HEADER_LENGTH_BYTES - length,
        }))
    }

    /// Sends a request; `None` if the file does not exist. `range` has the start and the number of
    /// bytes.
    async fn get(&self, url: &Url, range: Option<(u64, u64)>) -> Result<Option<Response>, ReadRemoteError> {
        let mut request = match self.model {
            RemoteModel::Hub(_) => self.hub.get(&self.client, url),
            RemoteModel::Directory(_) => self.client.get(url.clone()),
        };
        if let Some((begin, bytes)) = range {
            request = request.header(RANGE, format!("bytes={begin}-{}", begin + bytes.max(1) - 1));
        }
        let response = request.send().await.map_err(|err| self.not_sent(url, err))?;
        let status = response.status();
        if status.is_success() {
            if range.is_some() && status != StatusCode::PARTIAL_CONTENT {
                return Err(ReadRemoteError::NoRanges { url: url.to_string() });
            }
            return Ok(Some(response));
        }
        let code = header_text(response.headers(), ERROR_CODE);
        match self.error_of(url, status, code) {
            Some(err) => Err(err),
            None => Ok(None),
        }
    }

    /// Maps an error response; `None` if the file does not exist.
    fn error_of(&self, url: &Url, status: StatusCode, code: Option<&str>) -> Option<ReadRemoteError> {
        let model = self.model.to_string();
        let url = url.to_string();
        Some(match (self.model, status, code) {
            (RemoteModel::Hub(HubModel { owner, name, .. }), _, Some("GatedRepo")) => {
                ReadRemoteError::Gated {
                    model,
                    page: format!(
                        "{}/{owner}/{name}",
                        self.hub.endpoint.as_str().trim_end_matches('/')
                    ),
                }
            }
            (RemoteModel::Hub(_), _, Some("RevisionNotFound")) => ReadRemoteError::NoRevision {
                model,
                revision: self.revision.clone(),
            },
            (RemoteModel::Hub(_), _, Some("RepoNotFound"))
            | (RemoteModel::Hub(_), StatusCode::UNAUTHORIZED, _) => {
                ReadRemoteError::NotFoundOrPrivate { model }
            }
            (RemoteModel::Hub(_), StatusCode::FORBIDDEN, _) => ReadRemoteError::Forbidden { url },
            (_, StatusCode::NOT_FOUND, _) => return None,
            (_, status, _) => ReadRemoteError::Status { url, status },
        })
    }

    fn not_sent(&self, url: &Url, err: reqwest::Error) -> ReadRemoteError {
        if err.is_timeout() && !err.is_connect() {
            return ReadRemoteError::TimedOut { url: url.to_string() };
        }
        ReadRemoteError::Unreachable {
            host: url.host_str().unwrap_or_default().to_owned(),
            remedy: match self.model {
                RemoteModel::Hub(_) => ", or set HF_ENDPOINT to a mirror",
                RemoteModel::Directory(_) => ", and the host in the URL",
            },
            // The message already contains the host.
            err: err.without_url(),
        }
    }

    fn no_file(&self, file: &str) -> ReadRemoteError {
        ReadRemoteError::NoFile {
            model: self.model.to_string(),
            file: file.to_owned(),
        }
    }

    fn corrupt(&self, err: CheckpointError) -> ReadRemoteError {
        ReadRemoteError::Checkpoint {
            model: self.model.to_string(),
            err,
        }
    }
}

/// Creates a client with the common settings.
pub(super) fn client(base: &Url) -> ClientBuilder {
    loopback::client_of(base)
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(concat!("rooflet/", env!("CARGO_PKG_VERSION")))
}

pub(super) fn below<'p>(base: &Url, path: impl IntoIterator<Item = &'p str>) -> Url {
    let mut url = base.clone();
    url.path_segments_mut()
        .expect("`FromStr` and `HubAccess` reject URLs without paths")
        .pop_if_empty()
        .extend(path);
    url
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the size of the complete file, from `Content-Range: bytes 0-7/12345`.
fn file_bytes(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.parse().ok()
}

async fn read_text(response: Response, url: &Url, limit: u64) -> Result<String, ReadRemoteError> {
    let bytes = read_body(response, url, limit).await?;
    String::from_utf8(bytes).map_err(|_| ReadRemoteError::NotText { url: url.to_string() })
}

/// Reads a response of at most `limit` bytes, and fails at the first byte beyond.
async fn read_body(response: Response, url: &Url, limit: u64) -> Result<Vec<u8>, ReadRemoteError> {
    let mut body = response.bytes_stream();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|err| {
            if err.is_timeout() {
                ReadRemoteError::TimedOut { url: url.to_string() }
            } else {
                ReadRemoteError::Body {
                    url: url.to_string(),
                    err: err.without_url(),
                }
            }
        })?;
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(ReadRemoteError::TooLarge {
                url: url.to_string(),
                limit,
            });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests;

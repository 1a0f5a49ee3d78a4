//! A model that is somewhere else: its facts by HTTP, without downloading it. What is read are
//! `config.json`, the index, and of each file of weights the first eight bytes and the header they
//! announce; not one byte of a tensor.

mod access;

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
use rooflet_model::facts::{FactsError, ModelFacts, Tensors, WeightIndex};
use rooflet_model::fields::{CONFIG_FILE, MAX_CONFIG_BYTES};

pub use self::access::HubAccess;

/// To be reached, and to answer in full.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Files of weights read at the same time.
const CONCURRENT_FILES: usize = 8;

/// Of one model's files of weights together. A model of a trillion parameters has some ten million.
const MAX_HEADERS_BYTES: u64 = 256 << 20;

/// The hub's own word for what is wrong with a request.
const ERROR_CODE: &str = "x-error-code";
/// The commit that a revision stood for.
const COMMIT: &str = "x-repo-commit";

/// Where a remote model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteModel {
    Hub(HubModel),
    /// A directory of a web server.
    Directory(Url),
}

/// The text is no remote model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {problem}")]
pub struct InvalidRemoteModel {
    text: String,
    problem: String,
}

impl RemoteModel {
    /// Whether the text means a remote model at all.
    pub fn is_meant_by(text: &str) -> bool {
        ["hf://", "https://", "http://"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
    }

    /// What to call it.
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
            return Err(invalid("a directory is named by https://HOST/PATH".to_owned()));
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

/// Why a remote model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRemoteError {
    #[error("preparing to connect")]
    Client(#[source] reqwest::Error),
    #[error("{host} cannot be reached; is this machine offline{remedy}")]
    Unreachable {
        host: String,
        /// The rest of the question.
        remedy: &'static str,
        #[source]
        err: reqwest::Error,
    },
    #[error("{url}: no complete answer within {} s", REQUEST_LIMIT.as_secs())]
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
    #[error("{url} may not be read with this HF_TOKEN")]
    Forbidden { url: String },
    #[error("{model} has no {file}")]
    NoFile { model: String, file: String },
    #[error("{url}: the server answers {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url}: the server sends whole files only, and a header is read by asking for a range of bytes")]
    NoRanges { url: String },
    #[error("{url} is larger than {limit} bytes, no real one is")]
    TooLarge { url: String, limit: u64 },
    #[error("{url}: not UTF-8 text")]
    NotText { url: String },
    #[error("{model} has more than {MAX_WEIGHT_FILES} files of weights")]
    TooManyFiles { model: String },
    #[error(
        "the headers of {model}'s weights have more than {MAX_HEADERS_BYTES} bytes together, no real ones do"
    )]
    TooManyHeaders { model: String },
    #[error("{url}: {problem}")]
    InvalidIndex { url: String, problem: String },
    #[error("{url} is no list of a model's files: {problem}")]
    InvalidListing { url: String, problem: String },
    #[error("{url}: reading the answer")]
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
    /// A CamelCase word for conditions and events.
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

    /// The same request may succeed soon, with nothing changed by anybody.
    pub fn is_passing(&self) -> bool {
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

/// Configuration and headers of a model, without its weights.
#[derive(Debug)]
pub struct Checkpoint {
    pub config: String,
    pub tensors: Known,
}

/// What is known of a model's tensors.
#[derive(Debug)]
pub enum Known {
    Headers(TensorTable),
    Index(WeightIndex),
    /// Weights in another form, or none at all.
    Nothing,
}

impl Checkpoint {
    /// What follows from it, whether or not the engine can run it.
    pub fn facts(&self) -> Result<ModelFacts, FactsError> {
        let tensors = match &self.tensors {
            Known::Headers(tensors) => Tensors::Headers(tensors),
            Known::Index(index) => Tensors::Index(index),
            Known::Nothing => Tensors::Unknown,
        };
        ModelFacts::new(&self.config, tensors)
    }
}

/// What is known of the model from its configuration and headers.
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
    /// Of the file, after the header.
    data_bytes: u64,
}

pub(super) struct Remote<'a> {
    model: &'a RemoteModel,
    hub: &'a HubAccess,
    client: Client,
    /// Of the hub: what all requests after the first one ask for, so that they see one state of the
    /// model.
    revision: String,
    /// Of headers that were read, or are.
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

    /// Reads the configuration, and of each file of weights its header.
    pub(super) async fn checkpoint(&mut self) -> Result<Checkpoint, ReadRemoteError> {
        let config = self.text(CONFIG_FILE, MAX_CONFIG_BYTES).await?;
        let config = config.ok_or_else(|| self.no_file(CONFIG_FILE))?;
        let tensors = self.tensors().await?;
        Ok(Checkpoint { config, tensors })
    }

    async fn tensors(&mut self) -> Result<Known, ReadRemoteError> {
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
            return Ok(self.table(single()).await?.map_or(Known::Nothing, Known::Headers));
        };
        if index.files.len() > MAX_WEIGHT_FILES {
            return Err(ReadRemoteError::TooManyFiles {
                model: self.model.to_string(),
            });
        }
        let tensors = match self.table(index.files.iter().cloned().collect()).await? {
            Some(tensors) => Some(tensors),
            // An index that was left behind says nothing of a file that holds all.
            None => self.table(single()).await?,
        };
        Ok(tensors.map_or(Known::Index(index), Known::Headers))
    }

    /// From the headers of these files; `None` where one of them is not there.
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

    /// A page of the hub itself about the model.
    pub(super) async fn page(&self, url: &Url, limit: u64) -> Result<String, ReadRemoteError> {
        let not_found = || ReadRemoteError::NotFoundOrPrivate {
            model: self.model.to_string(),
        };
        let response = self.get(url, None).await?.ok_or_else(not_found)?;
        read_text(response, url, limit).await
    }

    /// A text file, `None` where there is none. Refuses one that is larger than any real one.
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

    /// The header of a file of weights, `None` where there is no such file.
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
            return Err(cut_short("its first eight bytes did not come".to_owned()));
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
                "of its header's {length} bytes came {}",
                json.len()
            )));
        }
        Ok(Some(Header {
            json,
            data_bytes: file_bytes - HEADER_LENGTH_BYTES - length,
        }))
    }

    /// `None`: there is no such file. `range` is where to begin and how many bytes.
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
        match self.refusal(url, status, code) {
            Some(refusal) => Err(refusal),
            None => Ok(None),
        }
    }

    /// What the answer means; `None`: there is no such file.
    fn refusal(&self, url: &Url, status: StatusCode, code: Option<&str>) -> Option<ReadRemoteError> {
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
                RemoteModel::Hub(_) => "? A mirror can be named in HF_ENDPOINT",
                RemoteModel::Directory(_) => ", or the host of the URL misspelt?",
            },
            // The URL is said already.
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

/// What all requests to a server have in common.
pub(super) fn client(base: &Url) -> ClientBuilder {
    loopback::client_of(base)
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(concat!("rooflet/", env!("CARGO_PKG_VERSION")))
}

pub(super) fn below<'p>(base: &Url, path: impl IntoIterator<Item = &'p str>) -> Url {
    let mut url = base.clone();
    url.path_segments_mut()
        .expect("URLs that cannot have paths are refused before")
        .pop_if_empty()
        .extend(path);
    url
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Of the whole file, from `Content-Range: bytes 0-7/12345`.
fn file_bytes(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.parse().ok()
}

async fn read_text(response: Response, url: &Url, limit: u64) -> Result<String, ReadRemoteError> {
    let bytes = read_body(response, url, limit).await?;
    String::from_utf8(bytes).map_err(|_| ReadRemoteError::NotText { url: url.to_string() })
}

/// Reads an answer of at most `limit` bytes, and stops at the first byte more.
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

//! API keys: who may use which models, and how much.
//!
//! [`meter`] has the limits of one key, [`ring`] all keys, and [`usage`] what gateways report to
//! each other through the status of the key. They are values; [`Keys`] connects them to requests,
//! and [`reporter`] to the API server.
//!
//! A gateway knows the use through other gateways from their last report, at most
//! [`reporter::PERIOD`] old. Until then, each gateway may admit as much as one gateway alone: with N
//! gateways, a burst may exceed a limit per minute N-fold. The excess is charged afterwards, so the
//! limit holds over longer periods.

mod authentication;
mod denial;
mod gate;
mod meter;
mod metrics;
mod reporter;
mod ring;
mod usage;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use kube::{Api, Client};
use tracing::{debug, info};

pub use gate::{AdmittedRequest, KeyGate, KeyRefusal, UsageReport};
pub(crate) use metrics::KeyMetrics;
pub(crate) use ring::KeyIdentity;

use crate::request::client_address::client_address;
use crate::request::info::{RequestInfo, Work};
use crate::routing::length::Length;
use crate::routing::table::Model;
use authentication::{PresentedKey, RejectKeyError, X_API_KEY, authenticate};
use ring::KeyRing;
use rooflet_api::v1alpha1::{ApiKey, KeyUsage};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes, watch};
use rooflet_http_server::{DenialAudit, Denied, LogLimit};
use rooflet_inference_api::ollama;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;

/// Paths that answer without a key: they show nothing of models and clients.
const OPEN_PATHS: [&str; 5] = ["/health", "/ping", "/ready", "/version", "/openapi.json"];
/// Path that answers without a key to programs of this machine only.
const METRICS_PATH: &str = "/metrics";

/// The keys of the fleet and their use in this gateway. Clones share them.
#[derive(Clone)]
pub(crate) struct Keys {
    ring: Arc<Mutex<KeyRing>>,
    /// True once `ring` contains all keys of the API server.
    are_read: Arc<AtomicBool>,
    /// True if every request needs a key. Otherwise a request may come without one, but a key of
    /// the fleet that it presents must be valid.
    are_required: bool,
    clock: Clock,
    /// `None` in a gateway without an API server.
    metrics: Option<KeyMetrics>,
    denial_log: Arc<Mutex<LogLimit>>,
    /// Receives every denied use of a key.
    audit: Option<DenialAudit>,
}

impl Keys {
    /// Creates the keys of a gateway that knows none and requires none.
    pub(crate) fn none(clock: Clock) -> Self {
        Self {
            ring: Arc::new(Mutex::new(KeyRing::new(""))),
            are_read: Arc::new(AtomicBool::new(true)),
            are_required: false,
            denial_log: Arc::new(Mutex::new(LogLimit::new(clock.instant()))),
            clock,
            metrics: None,
            audit: None,
        }
    }

    /// Records every denied use of a key.
    pub(crate) fn with_audit(self, audit: Option<DenialAudit>) -> Self {
        Self { audit, ..self }
    }

    /// Starts to watch the keys and to report their use. `identity` must be unique among running
    /// gateways, and should survive a restart.
    pub(crate) fn watch(
        tasks: &Tasks,
        client: Client,
        identity: &str,
        are_required: bool,
        clock: Clock,
        metrics: KeyMetrics,
    ) -> Self {
        let changes = Changes::new();
        let config = kube::runtime::watcher::Config::default();
        let cache: Cache<ApiKey> = watch(tasks, Api::all(client.clone()), config, &clock, &changes);
        let keys = Self {
            ring: Arc::new(Mutex::new(KeyRing::new(identity))),
            are_read: Arc::default(),
            are_required,
            denial_log: Arc::new(Mutex::new(LogLimit::new(clock.instant()))),
            clock,
            metrics: Some(metrics),
            audit: None,
        };
        let (follower, mut changed_rx, stop) = (keys.clone(), changes.subscribe(), tasks.stop_token());
        let feed = cache.feed();
        tasks.spawn_detached(async move {
            tokio::select! {
                () = stop.cancelled() => return,
                () = cache.synced() => {}
            }
            loop {
                changed_rx.mark_unchanged();
                for change in feed.take() {
                    follower.apply(
                        change.key.namespace.as_deref().unwrap_or_default(),
                        &change.key.name,
                        change.object.as_ref(),
                    );
                }
                follower.are_read.store(true, Ordering::Release);
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = changed_rx.changed() => {}
                }
            }
        });
        reporter::start(tasks, client, keys.clone());
        keys
    }

    fn apply(&self, namespace: &str, name: &str, key: Option<&Arc<ApiKey>>) {
        let (instant, now) = (self.clock.instant(), self.clock.now());
        lock(&self.ring).apply(namespace, name, key, instant, now);
    }

    /// Returns the identity of the client, or `None` for an anonymous one.
    fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<KeyIdentity>>, ApiError> {
        let presented = PresentedKey::of(headers);
        let found = {
            let ring = self.are_read.load(Ordering::Acquire).then(|| lock(&self.ring));
            authenticate(
                presented.as_ref(),
                self.are_required,
                ring.as_deref(),
                self.clock.now(),
            )
        };
        found.map_err(|err| match err {
            RejectKeyError::Missing => self.denied("MissingKey", denial::missing()),
            RejectKeyError::NotRead => ApiError::unavailable(
                ErrorCode::ModelUnavailable,
                "The gateway has not read the API keys yet. Retry shortly.",
            ),
            RejectKeyError::Key(err) => {
                let reason = match err {
                    ring::KeyError::Unknown => "UnknownKey",
                    ring::KeyError::Expired(_) => "ExpiredKey",
                };
                let presented = presented.unwrap_or(PresentedKey::Foreign);
                self.denied(reason, denial::of_key(&err, &presented))
            }
        })
    }

    /// Admits a request for a model, and counts it until the returned use is dropped.
    pub(crate) fn admit(
        &self,
        identity: &Arc<KeyIdentity>,
        model: &Model,
        info: &RequestInfo,
    ) -> Result<KeyUse, ApiError> {
        let prompt_tokens = match info.work {
            Work::Generate | Work::Embed => info.prompt_tokens,
            Work::Tokenize => 0,
        };
        let admitted =
            lock(&self.ring).admit(identity, prompt_tokens, self.clock.instant(), self.clock.now());
        admitted.map_err(|limit| {
            let reason = match limit {
                meter::Denial::Requests { .. } => "RequestsPerMinute",
                meter::Denial::Tokens { .. } => "TokensPerMinute",
                meter::Denial::Concurrency { .. } => "ConcurrentRequests",
                meter::Denial::Budget { .. } => "TokensPerDay",
            };
            self.denied(reason, denial::of_limit(limit, &identity.to_string()))
        })?;
        Ok(KeyUse {
            keys: self.clone(),
            identity: identity.clone(),
            model: model.name.clone(),
            work: info.work,
            reserved: prompt_tokens,
            used: KeyUsage {
                requests: 1,
                ..KeyUsage::default()
            },
        })
    }

    /// Returns the error of a model that the key does not permit.
    pub(crate) fn not_permitted(&self, identity: &KeyIdentity, model: &str) -> ApiError {
        let error = ApiError::model_not_permitted(&identity.to_string(), model);
        self.denied("ModelNotPermitted", error)
    }

    /// Returns the error of a model that does not exist in the namespace of the key.
    pub(crate) fn not_found(error: ApiError) -> ApiError {
        ApiError {
            denial: Some("ModelNotFound"),
            ..error
        }
    }

    /// Returns the rate-limit headers of the key.
    pub(crate) fn headers(&self, identity: &KeyIdentity, path: &str) -> HeaderMap {
        let now = self.clock.now();
        let limits = lock(&self.ring).limits(identity, self.clock.instant(), now);
        denial::headers(limits, path, now)
    }

    fn denied(&self, reason: &'static str, error: ApiError) -> ApiError {
        if let Some(metrics) = &self.metrics {
            metrics.record_denial(reason);
        }
        ApiError {
            denial: Some(reason),
            ..error
        }
    }

    fn record(&self, request: &Asked, identity: Option<&KeyIdentity>, err: &ApiError) {
        let (Some(audit), Some(reason)) = (&self.audit, err.denial) else {
            return;
        };
        let user = identity.map(|identity| format!("apikey:{identity}"));
        let denied = Denied {
            method: &request.method,
            path: &request.path,
            headers: &request.headers,
            client: request.client,
            user: user.as_deref().unwrap_or_default(),
            status: err.status,
            reason,
        };
        audit.record(&denied, self.clock.now());
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, KeyRing> {
        lock(&self.ring)
    }
}

#[cfg(test)]
impl Keys {
    /// Adds a key, as the watch does.
    pub(crate) fn add(&self, key: ApiKey) {
        let (namespace, name) = (key.metadata.namespace.clone(), key.metadata.name.clone());
        let key = Arc::new(key);
        self.apply(
            &namespace.unwrap_or_default(),
            &name.unwrap_or_default(),
            Some(&key),
        );
    }

    /// Returns the tokens of the only key after the end of its first request.
    pub(crate) fn tokens_after_one_request(&self) -> Option<u64> {
        let reports = self.ring().reports(self.clock.now());
        let status = &reports.first()?.report.status;
        (status["requestsToday"] == 1).then(|| status["tokensToday"].as_u64())?
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

/// Admitted request of a key. Ends when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct KeyUse {
    keys: Keys,
    identity: Arc<KeyIdentity>,
    model: String,
    work: Work,
    /// Estimated tokens of the prompt.
    reserved: u64,
    used: KeyUsage,
}

impl KeyUse {
    /// Records the tokens of the request. Without a reported number, the estimate counts.
    pub(crate) fn charge(&mut self, prompt_tokens: Option<u64>, length: Length) {
        let (Length::Counted(completion) | Length::Estimated(completion)) = length;
        self.used.prompt_tokens = match self.work {
            Work::Generate | Work::Embed => prompt_tokens.unwrap_or(self.reserved),
            Work::Tokenize => 0,
        };
        self.used.completion_tokens = match self.work {
            Work::Generate => completion,
            Work::Embed | Work::Tokenize => 0,
        };
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let used = self.used;
        let (instant, now) = (self.keys.clock.instant(), self.keys.clock.now());
        let (identity, model) = (&self.identity, &self.model);
        self.keys
            .ring()
            .end(identity, self.reserved, model, used, instant, now);
        if let Some(metrics) = &self.keys.metrics {
            metrics.record_use(&self.identity.namespace, &self.identity.name, &self.model, used);
        }
    }
}

/// Facts of a request, for the audit log.
struct Asked {
    method: Method,
    path: String,
    /// Without the secret of a valid key.
    headers: HeaderMap,
    client: Option<IpAddr>,
}

impl Asked {
    fn of(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            headers: request.headers().clone(),
            client: client_address(request.extensions()),
        }
    }
}

/// Returns whether a program of this machine sent the request.
fn may_read_metrics(request: &Request) -> bool {
    client_address(request.extensions()).is_some_and(|address| address.to_canonical().is_loopback())
}

/// Authenticates a request (middleware). Handlers find the [`KeyIdentity`] in its extensions. The
/// secret is removed, so that it does not reach agents and workers.
pub(crate) async fn middleware(State(keys): State<Keys>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if OPEN_PATHS.contains(&path)
        || ollama::routes::OPEN_PATHS.contains(&path)
        || path == METRICS_PATH && may_read_metrics(&request)
    {
        return next.run(request).await;
    }
    let identity = match keys.authenticate(request.headers()) {
        Ok(identity) => identity,
        Err(err) => {
            let client = client_address(request.extensions()).map(|address| address.to_string());
            let written = lock(&keys.denial_log).admit(keys.clock.instant());
            if let Some(suppressed) = written {
                info!(
                    client,
                    path,
                    status = err.status.as_u16(),
                    reason = err.message,
                    suppressed,
                    "API key rejected"
                );
            }
            keys.record(&Asked::of(&request), None, &err);
            return err.into_response();
        }
    };
    let path = path.to_owned();
    let Some(identity) = identity else {
        return next.run(request).await;
    };
    debug!(
        namespace = identity.namespace,
        key = identity.name,
        "client authenticated"
    );
    request.headers_mut().remove(AUTHORIZATION);
    request.headers_mut().remove(X_API_KEY);
    request.extensions_mut().insert(identity.clone());
    let asked = keys.audit.is_some().then(|| Asked::of(&request));
    let mut response = next.run(request).await;
    if let (Some(asked), Some(err)) = (asked, response.extensions().get::<ApiError>()) {
        keys.record(&asked, Some(&identity), err);
    }
    response.headers_mut().extend(keys.headers(&identity, &path));
    response
}

//! Request handling: reads a request, routes it to a replica, and retries or falls back on failure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::{Either, select};
use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::sync::{oneshot, watch};
use tracing::debug;

use super::access::{AccessEntry, AccessLog};
use super::dispatch::{Dispatcher, Slot};
use super::headers;
use super::keys::{KeyIdentity, Keys};
use super::metrics::GatewayMetrics;
use super::state::{ModelKey, Refusal};
use crate::request::client_address::client_address;
use crate::request::incoming::Incoming;
use crate::request::info::RequestInfo;
use crate::response::body::{BufferedBody, buffer_until_first_token};
use crate::response::early::{self, HEAD_AFTER};
use crate::response::outcome::{
    Answered, AttemptError, AttemptFailure, ModelError, is_final, is_retryable, reached_worker,
};
use crate::response::refusal;
use crate::routing::health::Fault;
use crate::routing::table::{LookupError, Model, RoutingTable, Target};
use rooflet_api::wire::replica_id_of;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::metrics::{Registry, exposition};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::body::MAX_BODY_BYTES;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::models;
use rooflet_inference_api::openai::routes::operation;
use rooflet_inference_api::openai::stored_reference::StoredReference;
use rooflet_proxy::{BodyRoom, ForwardError, PeekError, Proxy, peek_model};
use rooflet_telemetry::trace;
use rooflet_telemetry::trace::{OpenSpan, SpanKind, TraceContext, Tracer};

/// Maximum number of replicas that one round of attempts tries before it backs off.
pub const MAX_TRIES: usize = 3;
/// Backoff after the first failed round; each further one is twice as long, up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// State of the gateway that all requests share.
pub(super) struct Gateway {
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    proxy: Proxy,
    body_room: BodyRoom,
    dispatcher: Dispatcher,
    clock: Clock,
    metrics: GatewayMetrics,
    registry: Registry,
    tracer: Tracer,
    access_log: AccessLog,
    keys: Keys,
    /// Address at which other machines need no key.
    anonymous: Option<SocketAddr>,
}

impl Gateway {
    pub(super) fn new(
        table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
        body_room: BodyRoom,
        clock: Clock,
        metrics: GatewayMetrics,
        registry: Registry,
    ) -> Self {
        Self {
            dispatcher: Dispatcher::new(table_rx.clone(), clock.clone(), metrics.clone()),
            keys: Keys::none(clock.clone()),
            table_rx,
            proxy: Proxy::new(),
            body_room,
            clock,
            metrics,
            registry,
            tracer: Tracer::default(),
            access_log: AccessLog::default(),
            anonymous: None,
        }
    }

    pub(super) fn with_access_log(self, access_log: AccessLog) -> Self {
        Self { access_log, ..self }
    }

    pub(super) fn with_anonymous_address(self, anonymous: Option<SocketAddr>) -> Self {
        Self { anonymous, ..self }
    }

    pub(super) fn with_keys(self, keys: Keys) -> Self {
        Self { keys, ..self }
    }

    pub(super) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub(super) fn with_proxy(self, proxy: Proxy) -> Self {
        Self { proxy, ..self }
    }

    pub(super) fn with_tracer(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Returns the address at which other machines need no key.
    pub(super) fn anonymous_address(&self) -> Option<SocketAddr> {
        self.anonymous
    }

    pub(super) fn is_ready(&self) -> bool {
        self.table_rx.latest().is_some()
    }

    /// Returns the number of requests in progress, including queued ones.
    pub(super) fn load(&self) -> i64 {
        self.metrics.outstanding()
    }

    /// Returns the content type and the text of the metrics for a request with this header `Accept`.
    pub(super) fn render_metrics(&self, accept: Option<&str>) -> (&'static str, String) {
        self.metrics.set_body_bytes(self.body_room.kept());
        exposition(&self.registry, accept)
    }

    pub(super) fn table(&self) -> Result<Arc<RoutingTable>, ApiError> {
        self.table_rx.latest().ok_or_else(|| {
            ApiError::unavailable(
                ErrorCode::ModelUnavailable,
                "The gateway has not connected to the API server yet. Retry shortly.",
            )
        })
    }

    /// Returns the models that the client may use.
    pub(super) fn models(&self, identity: Option<&KeyIdentity>) -> Response {
        match self.table() {
            Ok(table) => {
                let models = Self::permitted(&table, identity).map(|(name, model)| card(name, model));
                Json(models::ModelList::new(models.collect())).into_response()
            }
            Err(err) => err.into_response(),
        }
    }

    /// Returns the models that the client may use, by name.
    pub(super) fn permitted<'t>(
        table: &'t RoutingTable,
        identity: Option<&KeyIdentity>,
    ) -> impl Iterator<Item = (String, &'t Model)> {
        let named = match identity {
            None => table.models(),
            Some(identity) => table.models_in(&identity.namespace),
        };
        let is_permitted = move |(_, model): &(String, &Model)| {
            identity.is_none_or(|identity| identity.permits(&model.namespace, &model.name))
        };
        named.into_iter().filter(is_permitted)
    }

    pub(super) fn model(&self, asked: &str, identity: Option<&KeyIdentity>) -> Result<Response, ApiError> {
        let table = self.table()?;
        let model = self.find(&table, asked, identity)?;
        Ok(Json(card(asked.to_owned(), model)).into_response())
    }

    /// Returns the requested model. With an API key, only models of the key's namespace exist.
    pub(super) fn find<'t>(
        &self,
        table: &'t RoutingTable,
        requested: &str,
        identity: Option<&KeyIdentity>,
    ) -> Result<&'t Model, ApiError> {
        let Some(identity) = identity else {
            let found = table.find(requested);
            return found.map_err(|unknown| refusal::unknown(requested, unknown));
        };
        let in_namespace = |name: &str| table.get(&(identity.namespace.clone(), name.to_owned()));
        let qualified = requested
            .split_once('/')
            .filter(|(namespace, _)| *namespace == identity.namespace);
        let found = in_namespace(requested).or_else(|| in_namespace(qualified?.1));
        let unknown = || Keys::not_found(refusal::unknown(requested, LookupError::NotFound));
        let model = found.ok_or_else(unknown)?;
        match identity.permits(&model.namespace, &model.name) {
            true => Ok(model),
            false => Err(self.keys.not_permitted(identity, &model.name)),
        }
    }

    /// Forwards a request to a replica of its model. Retries on other replicas and fallback models.
    pub(super) async fn forward(self: Arc<Self>, request: Request) -> Result<Response, ApiError> {
        let span = self.span(&request).map(Arc::new);
        let access = AccessEntry::new(
            self.access_log,
            request.uri().path(),
            request.headers(),
            client_address(request.extensions()),
            identity_of(request.extensions()).as_deref(),
        );
        let mut measure = self.metrics.start(&self.clock, span.clone(), access.clone());
        let uri = request.uri().clone();
        let (head_tx, head_rx) = oneshot::channel();
        let early = async {
            match head_rx.await {
                Ok(head) => {
                    tokio::time::sleep(HEAD_AFTER).await;
                    head
                }
                // No early head will follow.
                Err(_) => std::future::pending().await,
            }
        };
        let gateway = Arc::clone(&self);
        let request_span = span.clone();
        let outcome = async move { gateway.serve(request, request_span, access, head_tx).await }.boxed();
        let outcome = match select(outcome, std::pin::pin!(early)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((head, outcome)) => {
                if let Some(span) = &span {
                    span.answered(head.status);
                }
                let pending = async move {
                    let outcome = outcome.await.and_then(Answered::after_head);
                    match outcome {
                        Ok(response) => Ok(response.tracked(measure).1),
                        Err(model_error) => {
                            // The head already had a success status.
                            measure.failed(model_error.outcome());
                            Err(model_error)
                        }
                    }
                };
                let body = early::body(pending.boxed(), uri);
                return Ok(Response::from_parts(head, body));
            }
        };
        let status = match &outcome {
            Ok(Answered { parts, .. }) => parts.status,
            Err(model_error) => model_error.status(),
        };
        if let Some(span) = &span {
            span.answered(status);
        }
        let model_error = match outcome {
            Ok(response) => {
                let (parts, tracked) = response.tracked(measure);
                return Ok(Response::from_parts(parts, Body::new(tracked)));
            }
            Err(model_error) => model_error,
        };
        if status.is_success() {
            measure.failed(model_error.outcome());
        } else {
            measure.ended(status);
        }
        match model_error {
            ModelError::Response(response) => Ok(*response),
            ModelError::Rejected(err) => Err(err),
        }
    }

    /// Starts the request's span, which ends with the response body.
    fn span(&self, request: &Request) -> Option<OpenSpan> {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let span = self
            .tracer
            .server(format!("{method} {path}"), request.headers())?;
        if let Some(operation) = operation(path) {
            span.set(trace::OPERATION, operation);
            span.set(trace::PROVIDER, "rooflet");
        }
        span.set("http.request.method", method);
        span.set("url.path", path);
        Some(span)
    }

    /// Returns the response of the requested model, or of the first fallback model that succeeds.
    async fn serve(
        &self,
        request: Request,
        span: Option<Arc<OpenSpan>>,
        access: AccessEntry,
        head_tx: oneshot::Sender<http::response::Parts>,
    ) -> Result<Answered, ModelError> {
        let table = self.table()?;
        let began = self.clock.instant();
        let (parts, body) = request.into_parts();
        let parsed = peek_model(body, MAX_BODY_BYTES, &self.body_room).await;
        let parsed = parsed.map_err(|err| {
            if matches!(err, PeekError::NoRoom) {
                self.metrics.record_body_rejection();
            }
            ApiError::from(err)
        })?;
        let identity = identity_of(&parts.extensions);
        let model = self.find_at(parts.uri.path(), &table, &parsed.model, identity.as_deref())?;
        if let Some(span) = &span {
            span.set(trace::REQUEST_MODEL, model.name.as_str());
        }
        access.set_model(&model.namespace, &model.name);
        let address = client_address(&parts.extensions);
        let mut info = RequestInfo::new(parts.uri.path(), &parts.headers, &parsed.body, address);
        if let Some(identity) = &identity {
            info.client = identity.fairness_id();
            access.set_key_use(self.keys.admit(identity, model, &info))?;
        }
        let deadline = began + info.max_wait(model.routing.queue_timeout);
        // Workers use the served name without the namespace.
        let body = if parsed.model == model.name {
            parsed.body.clone()
        } else {
            parsed.for_model(&model.name)
        };
        let mut incoming = Incoming::new(parts, body, info, began, span, access, head_tx);
        if let Some(kept) = &incoming.info.kept {
            return self.try_owner(&incoming, model, kept).await;
        }
        let model_error = match self.try_model(&incoming, &model.key(), deadline).await {
            Ok(response) => return Ok(response),
            Err(model_error) => model_error,
        };
        for name in &model.routing.fallbacks {
            if incoming.has_failed_too_often() {
                break;
            }
            let key = (model.namespace.clone(), name.clone());
            let answers = table.get(&key).is_some_and(|model| !model.replicas.is_empty());
            let is_permitted = identity
                .as_ref()
                .is_none_or(|identity| identity.permits(&key.0, name));
            if !answers || !is_permitted || *name == model.name {
                continue;
            }
            incoming.body = parsed.for_model(name);
            incoming.fallback = HeaderValue::from_str(name).ok();
            if let Ok(response) = self.try_model(&incoming, &key, deadline).await {
                self.metrics.fallbacks.inc();
                return Ok(response);
            }
        }
        Err(model_error)
    }

    /// Forwards the request to the replica that owns the stored response it continues. If that
    /// replica is busy, the request queues in its worker.
    async fn try_owner(
        &self,
        incoming: &Incoming,
        model: &Model,
        kept: &StoredReference,
    ) -> Result<Answered, ModelError> {
        let not_found = || ModelError::from(kept.not_found());
        let owner = kept.replica_id().ok_or_else(not_found)?;
        let slot = self.dispatcher.assign_to_owner(model, &incoming.info, owner);
        match self.attempt(incoming, slot.ok_or_else(not_found)?, None).await {
            Ok(response) => Ok(response),
            Err(AttemptError::Response(response)) => Err(ModelError::Response(response)),
            Err(AttemptError::Failed(err)) => Err(refusal::unreachable(model, err.reason()).into()),
        }
    }

    /// Forwards `GET` and `DELETE` of a stored response to the replica that owns it.
    pub(super) async fn kept(&self, request: Request, response_id: &str) -> Result<Response, ApiError> {
        let table = self.table()?;
        let owner = replica_id_of(response_id);
        let (model, replica) = table
            .all()
            .flat_map(|model| model.replicas.iter().map(move |replica| (model, replica)))
            .find(|(_, replica)| Some(replica.id) == owner)
            .filter(|(model, _)| {
                let identity = identity_of(request.extensions());
                identity.is_none_or(|identity| identity.permits(&model.namespace, &model.name))
            })
            .ok_or_else(|| ApiError::response_not_found(response_id))?;
        let path = agent_path(&replica.target, request.uri());
        let response = self.proxy.forward(request, &replica.upstream, &path).await;
        let mut response = response.map_err(|err| refusal::unreachable(model, err.reason()))?;
        headers::take_running(response.headers_mut());
        Ok(response)
    }

    /// Tries replicas of one model in rounds with backoff.
    ///
    /// Stops when a replica responds, when retries cannot help, or at the deadline.
    async fn try_model(
        &self,
        incoming: &Incoming,
        key: &ModelKey,
        deadline: Instant,
    ) -> Result<Answered, ModelError> {
        let mut table_rx = self.table_rx.clone();
        let mut backoff = FIRST_BACKOFF;
        loop {
            let is_retry = backoff > FIRST_BACKOFF;
            table_rx.mark_unchanged();
            let table = self.table()?;
            let Some(model) = table.get(key) else {
                return Err(ApiError::model_not_found(&key.1).into());
            };
            let has_fallback = !model.routing.fallbacks.is_empty();
            let may_get_replica = model.may_become_ready || model.has_desired_replicas && is_retry;
            if model.replicas.is_empty() && (has_fallback || !may_get_replica) {
                // The scheduler may be about to bind a replica.
                let grace_period = self.dispatcher.grace_period_left(model).filter(|_| !has_fallback);
                let left = deadline.saturating_duration_since(self.clock.instant());
                if let Some(grace_period) = grace_period
                    .map(|grace_period| grace_period.min(left))
                    .filter(|grace_period| !grace_period.is_zero())
                {
                    drop(tokio::time::timeout(grace_period, table_rx.changed()).await);
                    continue;
                }
                self.dispatcher.note_demand(model);
                return Err(self.refusal(incoming, model, Refusal::NotReady, deadline).into());
            }
            let left = deadline.saturating_duration_since(self.clock.instant());
            let slot = self
                .dispatcher
                .acquire(model, &incoming.info, incoming.body.len(), left)
                .await
                .map_err(|refusal| {
                    // Use the current table: the request may have been queued for long.
                    let table = self.table().ok();
                    let known = table.as_ref().and_then(|table| table.get(key)).unwrap_or(model);
                    self.refusal(incoming, known, refusal, deadline)
                })?;
            let (wait, was_queued) = (self.clock.instant() - incoming.began, slot.was_queued);
            self.metrics.record_queue_time(wait);
            if let Some(span) = incoming.span.as_ref().filter(|_| was_queued) {
                span.interval("queue", incoming.began, incoming.began + wait, vec![]);
            }
            let queued = (was_queued || is_retry).then_some(wait);
            let error = match self.try_replicas(incoming, model, slot, queued).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let is_final = incoming.has_failed_too_often()
                || match &error {
                    // The client can retry later; a longer wait in the gateway has no advantage.
                    AttemptError::Response(response) => is_final(response.status()),
                    AttemptError::Failed(_) => false,
                };
            let now = self.clock.instant();
            if is_final || has_fallback || now >= deadline || !model.has_desired_replicas {
                return Err(match error {
                    AttemptError::Response(response) => ModelError::Response(response),
                    AttemptError::Failed(err) => refusal::unreachable(model, err.reason()).into(),
                });
            }
            let wait = backoff.min(deadline.saturating_duration_since(now));
            backoff = (backoff * 2).min(MAX_BACKOFF);
            // Wake only if the replicas of this model change, not on every change of the fleet.
            let replica_ids = |model: &Model| model.replicas.iter().map(|one| one.id).collect::<Vec<_>>();
            let before = replica_ids(model);
            let changed = table_rx.wait_for(|table| {
                let now = table.as_ref().and_then(|table| table.get(key));
                now.map(replica_ids).as_ref() != Some(&before)
            });
            drop(tokio::time::timeout(wait, changed).await);
        }
    }

    /// Tries up to [`MAX_TRIES`] different replicas.
    async fn try_replicas(
        &self,
        incoming: &Incoming,
        model: &Model,
        slot: Slot,
        queued: Option<Duration>,
    ) -> Result<Answered, AttemptError> {
        let mut tried = vec![slot.replica.id];
        let first = self.attempt_hedged(incoming, model, slot, &mut tried, queued);
        let mut error = match first.await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        while tried.len() < MAX_TRIES && !incoming.has_failed_too_often() {
            let Some(slot) = self.dispatcher.retry(model, &incoming.info, &tried, true) else {
                break;
            };
            self.metrics.retries.inc();
            tried.push(slot.replica.id);
            error = match self.attempt(incoming, slot, queued).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
        }
        Err(error)
    }

    /// Tries a replica. If hedging is configured and the first token is late, tries a second one in
    /// parallel.
    async fn attempt_hedged(
        &self,
        incoming: &Incoming,
        model: &Model,
        slot: Slot,
        tried: &mut Vec<u64>,
        queued: Option<Duration>,
    ) -> Result<Answered, AttemptError> {
        let first = std::pin::pin!(self.attempt(incoming, slot, queued));
        // A non-streamed response has no first token to wait for.
        let Some(after) = model.routing.hedge_after.filter(|_| incoming.info.is_stream) else {
            return first.await;
        };
        let delay = std::pin::pin!(tokio::time::sleep(after));
        let first = match select(first, delay).await {
            Either::Left((outcome, _)) => return outcome,
            Either::Right(((), first)) => first,
        };
        let Some(slot) = self.dispatcher.retry(model, &incoming.info, tried, false) else {
            return first.await;
        };
        self.metrics.hedges.inc();
        tried.push(slot.replica.id);
        let second = std::pin::pin!(self.attempt(incoming, slot, queued));
        // Dropping the slower attempt cancels it.
        match select(first, second).await {
            Either::Left((Ok(response), _)) | Either::Right((Ok(response), _)) => Ok(response),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// Sends the request to one replica, and reads the response up to the first token.
    async fn attempt(
        &self,
        incoming: &Incoming,
        slot: Slot,
        queued: Option<Duration>,
    ) -> Result<Answered, AttemptError> {
        let target = &slot.replica.target;
        let replica = format!("{}/{}", target.namespace, target.replica);
        incoming.access.set_attempt(&replica, queued);
        let headers = headers::of_response(&replica, queued, incoming.fallback.as_ref());
        let span = incoming.span.as_ref().map(|span| {
            let span = span.child(incoming.parts.method.as_str(), SpanKind::Client);
            span.set("rooflet.replica", replica.as_str());
            span
        });
        let context = span.as_ref().and_then(OpenSpan::context);
        let outcome = tokio::select! {
            outcome = self.exchange(incoming, &slot, context, &headers) => outcome,
            () = self.wait_until_silent(&slot) => Err(AttemptFailure::Silent),
        };
        let outcome = match outcome {
            Ok((mut parts, body)) if is_retryable(parts.status) || body.is_failure() => {
                if let Some(span) = &span {
                    span.set(trace::ERROR_TYPE, parts.status.as_str());
                }
                debug!(replica, status = %parts.status, "replica returned a retryable error");
                incoming.record_failure(body.is_failure() || reached_worker(parts.status));
                match parts.status {
                    StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS => drop(slot),
                    StatusCode::BAD_GATEWAY => slot.failed(Fault::Unreachable),
                    _ => slot.failed(Fault::Unable),
                }
                headers::replace_internal(&mut parts.headers, headers);
                let response = Response::from_parts(parts, body.into_body());
                return Err(AttemptError::Response(Box::new(response)));
            }
            outcome => outcome,
        };
        match outcome {
            Ok((mut parts, body)) => {
                if let Some(count) = headers::replace_internal(&mut parts.headers, headers) {
                    slot.running(count);
                }
                Ok(Answered {
                    parts,
                    body,
                    slot,
                    span,
                })
            }
            Err(err) => {
                debug!(replica, error = %Chain(&err), "replica request failed");
                if let Some(span) = &span {
                    span.fail(err.reason());
                }
                incoming.record_failure(err.reached_worker());
                slot.failed(Fault::Unreachable);
                Err(AttemptError::Failed(err))
            }
        }
    }

    async fn exchange(
        &self,
        incoming: &Incoming,
        slot: &Slot,
        context: Option<TraceContext>,
        headers: &HeaderMap,
    ) -> Result<(http::response::Parts, BufferedBody), AttemptFailure> {
        let response = self.send(incoming, slot, context).await?;
        incoming.send_head(&response, headers);
        Ok(buffer_until_first_token(response).await?)
    }

    /// Returns when the replica's node has stopped reporting.
    async fn wait_until_silent(&self, slot: &Slot) {
        let mut table_rx = self.table_rx.clone();
        let is_silent = |table: &Option<Arc<RoutingTable>>| {
            let table = table.as_ref();
            table.is_some_and(|table| table.is_silent(&slot.model, slot.replica.id))
        };
        if table_rx.wait_for(is_silent).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn send(
        &self,
        incoming: &Incoming,
        slot: &Slot,
        context: Option<TraceContext>,
    ) -> Result<Response, ForwardError> {
        let path = agent_path(&slot.replica.target, &incoming.parts.uri);
        let mut request = incoming.to_request();
        let asked = incoming.parts.uri.path();
        let is_retryable = self.is_retryable(incoming, slot);
        headers::set_for_agent(
            request.headers_mut(),
            asked,
            slot.replica.id,
            is_retryable,
            context,
        );
        self.proxy.forward(request, &slot.replica.upstream, &path).await
    }

    /// Returns whether another replica or a fallback can serve the request.
    fn is_retryable(&self, incoming: &Incoming, slot: &Slot) -> bool {
        let table = self.table_rx.latest();
        let model = table.as_ref().and_then(|table| table.get(&slot.model));
        let has_alternative = |model: &Model| {
            let mut others = model.replicas.iter().filter(|one| one.id != slot.replica.id);
            others.next().is_some() || !model.routing.fallbacks.is_empty()
        };
        incoming.info.kept.is_none() && model.is_some_and(has_alternative)
    }

    /// Records a rejected request, and returns its error.
    fn refusal(&self, incoming: &Incoming, model: &Model, refusal: Refusal, deadline: Instant) -> ApiError {
        self.metrics.record_refusal(refusal, &incoming.access);
        let left = deadline.saturating_duration_since(self.clock.instant());
        refusal::of(model, refusal, left)
    }
}

/// Returns the API key with which the client authenticated.
fn identity_of(extensions: &Extensions) -> Option<Arc<KeyIdentity>> {
    extensions.get::<Arc<KeyIdentity>>().cloned()
}

/// Returns the agent's proxy path for a request to the replica.
fn agent_path(target: &Target, uri: &Uri) -> PathAndQuery {
    worker_path(target, uri.path_and_query().map_or("/", PathAndQuery::as_str))
}

/// Returns the path at an agent of `path` at the worker of a replica.
pub(super) fn worker_path(target: &Target, path: &str) -> PathAndQuery {
    // Object names need no escaping in URLs, and `path` comes from a URL.
    let path = format!("/replicas/{}/{}/proxy{path}", target.namespace, target.replica);
    path.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

fn card(name: String, model: &Model) -> models::Model {
    let context = model
        .context_tokens
        .and_then(|tokens| usize::try_from(tokens).ok());
    models::Model::new(name, model.created, context)
}

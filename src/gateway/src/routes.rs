//! From a request to a replica's answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::{Either, select};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::sync::{oneshot, watch};
use tracing::debug;

use super::dispatch::{Dispatcher, Place};
use super::headers;
use super::metrics::GatewayMetrics;
use super::state::{ModelKey, Refusal};
use crate::request::ask::Ask;
use crate::request::incoming::Incoming;
use crate::response::answer::{Begun, begin};
use crate::response::early::{self, HEAD_AFTER};
use crate::response::outcome::{
    Answered, Missed, MissedReason, NoAnswer, another_may_do_better, had_the_request, is_final,
};
use crate::response::refusal;
use crate::routing::health::Fault;
use crate::routing::table::{Model, RoutingTable, Target};
use rooflet_api::wire::keeper_of;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::metrics::{Registry, render};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::body::MAX_BODY_BYTES;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::kept::Kept;
use rooflet_inference_api::openai::models;
use rooflet_inference_api::openai::routes::operation;
use rooflet_proxy::{BodyRoom, ForwardError, PeekError, Proxy, peek_model};
use rooflet_telemetry::trace;
use rooflet_telemetry::trace::{OpenSpan, SpanKind, TraceContext, Tracer};

/// Replicas one request is tried on before it waits for a better moment.
pub const MAX_TRIES: usize = 3;
/// The wait after all of them failed; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// What all requests share.
pub(super) struct Gateway {
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    proxy: Proxy,
    body_room: BodyRoom,
    dispatcher: Dispatcher,
    clock: Clock,
    metrics: GatewayMetrics,
    registry: Registry,
    tracer: Tracer,
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
            table_rx,
            proxy: Proxy::new(),
            body_room,
            clock,
            metrics,
            registry,
            tracer: Tracer::default(),
        }
    }

    pub(super) fn with_tracer(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    pub(super) fn is_ready(&self) -> bool {
        self.table_rx.latest().is_some()
    }

    pub(super) fn render_metrics(&self) -> String {
        self.metrics.show_bodies(self.body_room.kept());
        render(&self.registry)
    }

    fn table(&self) -> Result<Arc<RoutingTable>, ApiError> {
        self.table_rx.latest().ok_or_else(|| {
            ApiError::unavailable(
                ErrorCode::ModelUnavailable,
                "The gateway has not reached the API server yet. Please try again shortly.",
            )
        })
    }

    pub(super) fn models(&self) -> Response {
        match self.table() {
            Ok(table) => {
                let models = table.models().map(|(name, model)| card(name, model)).collect();
                Json(models::ModelList::new(models)).into_response()
            }
            Err(err) => err.into_response(),
        }
    }

    pub(super) fn model(&self, asked: &str) -> Result<Response, ApiError> {
        let table = self.table()?;
        let model = table
            .find(asked)
            .map_err(|unknown| refusal::unknown(asked, unknown))?;
        Ok(Json(card(asked.to_owned(), model)).into_response())
    }

    /// Sends the request to a replica of its model, and to another one if that cannot take it.
    pub(super) async fn forward(self: Arc<Self>, request: Request) -> Result<Response, ApiError> {
        let span = self.span(&request).map(Arc::new);
        let mut measure = self.metrics.begin(&self.clock, span.clone());
        let uri = request.uri().clone();
        let (head_tx, head_rx) = oneshot::channel();
        let early = async {
            match head_rx.await {
                Ok(head) => {
                    tokio::time::sleep(HEAD_AFTER).await;
                    head
                }
                // It will have none.
                Err(_) => std::future::pending().await,
            }
        };
        let gateway = Arc::clone(&self);
        let of_answer = span.clone();
        let answer = async move { gateway.answer(request, of_answer, head_tx).await }.boxed();
        let answer = match select(answer, std::pin::pin!(early)).await {
            Either::Left((answer, _)) => answer,
            Either::Right((head, answer)) => {
                if let Some(span) = &span {
                    span.answered(head.status);
                }
                let settling = async move {
                    let answer = answer.await.and_then(Answered::after_head);
                    match answer {
                        Ok(answered) => Ok(answered.tracked(measure).1),
                        Err(no_answer) => {
                            // The head told another one.
                            measure.failed(no_answer.outcome());
                            Err(no_answer)
                        }
                    }
                };
                let body = early::body(settling.boxed(), uri);
                return Ok(Response::from_parts(head, body));
            }
        };
        let status = match &answer {
            Ok(Answered { parts, .. }) => parts.status,
            Err(no_answer) => no_answer.status(),
        };
        if let Some(span) = &span {
            span.answered(status);
        }
        let no_answer = match answer {
            Ok(answered) => {
                let (parts, tracked) = answered.tracked(measure);
                return Ok(Response::from_parts(parts, Body::new(tracked)));
            }
            Err(no_answer) => no_answer,
        };
        if status.is_success() {
            measure.failed(no_answer.outcome());
        } else {
            measure.ended(status);
        }
        match no_answer {
            NoAnswer::Said(response) => Ok(*response),
            NoAnswer::Refused(err) => Err(err),
        }
    }

    /// Ends with the answer's body.
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

    /// The answer of the model that was asked for, or of the first of its fallbacks that can.
    async fn answer(
        &self,
        request: Request,
        span: Option<Arc<OpenSpan>>,
        head_tx: oneshot::Sender<http::response::Parts>,
    ) -> Result<Answered, NoAnswer> {
        let table = self.table()?;
        let began = self.clock.instant();
        let (parts, body) = request.into_parts();
        let peeked = peek_model(body, MAX_BODY_BYTES, &self.body_room).await;
        let peeked = peeked.map_err(|err| {
            if matches!(err, PeekError::NoRoom) {
                self.metrics.refused_for_room();
            }
            ApiError::from(err)
        })?;
        let model = table
            .find(&peeked.model)
            .map_err(|unknown| refusal::unknown(&peeked.model, unknown))?;
        if let Some(span) = &span {
            span.set(trace::REQUEST_MODEL, model.name.as_str());
        }
        let address = parts
            .extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|ConnectInfo(address)| address.ip());
        let ask = Ask::new(parts.uri.path(), &parts.headers, &peeked.body, address);
        let deadline = began + ask.patience(model.routing.queue_timeout);
        // A worker knows its model without the namespace.
        let body = if peeked.model == model.name {
            peeked.body.clone()
        } else {
            peeked.for_model(&model.name)
        };
        let mut incoming = Incoming::new(parts, body, ask, began, span, head_tx);
        if let Some(kept) = &incoming.ask.kept {
            return self.answer_by_keeper(&incoming, model, kept).await;
        }
        let no_answer = match self.answer_by(&incoming, &model.key(), deadline).await {
            Ok(answered) => return Ok(answered),
            Err(no_answer) => no_answer,
        };
        for name in &model.routing.fallbacks {
            if incoming.has_broken_enough() {
                break;
            }
            let key = (model.namespace.clone(), name.clone());
            let answers = table.get(&key).is_some_and(|model| !model.replicas.is_empty());
            if !answers || *name == model.name {
                continue;
            }
            incoming.body = peeked.for_model(name);
            incoming.fallback = HeaderValue::from_str(name).ok();
            if let Ok(answered) = self.answer_by(&incoming, &key, deadline).await {
                self.metrics.fallbacks.inc();
                return Ok(answered);
            }
        }
        Err(no_answer)
    }

    /// Asks the replica that keeps what the request goes on from: no other can. Where it is busy, the request waits there.
    async fn answer_by_keeper(
        &self,
        incoming: &Incoming,
        model: &Model,
        kept: &Kept,
    ) -> Result<Answered, NoAnswer> {
        let gone = || NoAnswer::from(kept.not_found());
        let keeper = kept.keeper().ok_or_else(gone)?;
        let place = self.dispatcher.keeper(model, &incoming.ask, keeper);
        match self.attempt(incoming, place.ok_or_else(gone)?, None).await {
            Ok(answered) => Ok(answered),
            Err(Missed::Said(response)) => Err(NoAnswer::Said(response)),
            Err(Missed::Failed(err)) => Err(refusal::unreachable(model, err.reason()).into()),
        }
    }

    /// `GET` and `DELETE` of a response, by the replica that keeps it.
    pub(super) async fn kept(&self, request: Request, response_id: &str) -> Result<Response, ApiError> {
        let table = self.table()?;
        let keeper = keeper_of(response_id);
        let (model, replica) = table
            .all()
            .flat_map(|model| model.replicas.iter().map(move |replica| (model, replica)))
            .find(|(_, replica)| Some(replica.id) == keeper)
            .ok_or_else(|| ApiError::response_not_found(response_id))?;
        let path = path_of(&replica.target, request.uri());
        let answer = self.proxy.forward(request, &replica.upstream, &path).await;
        answer.map_err(|err| refusal::unreachable(model, err.reason()))
    }

    /// Asks replicas of one model, round after round, until one answers, waiting can help no more, or the deadline is there.
    async fn answer_by(
        &self,
        incoming: &Incoming,
        key: &ModelKey,
        deadline: Instant,
    ) -> Result<Answered, NoAnswer> {
        let mut table_rx = self.table_rx.clone();
        let mut pause = FIRST_PAUSE;
        loop {
            let is_retry = pause > FIRST_PAUSE;
            table_rx.mark_unchanged();
            let table = self.table()?;
            let Some(model) = table.get(key) else {
                return Err(ApiError::model_not_found(&key.1).into());
            };
            let has_fallback = !model.routing.fallbacks.is_empty();
            let may_come = model.is_coming || model.is_wanted && is_retry;
            if model.replicas.is_empty() && (has_fallback || !may_come) {
                // A node may have become free a moment ago.
                let moment = self.dispatcher.unplaced_for(model).filter(|_| !has_fallback);
                let left = deadline.saturating_duration_since(self.clock.instant());
                if let Some(moment) = moment
                    .map(|moment| moment.min(left))
                    .filter(|moment| !moment.is_zero())
                {
                    drop(tokio::time::timeout(moment, table_rx.changed()).await);
                    continue;
                }
                self.dispatcher.note_demand(model);
                return Err(self.refusal(model, Refusal::NotReady, deadline).into());
            }
            let left = deadline.saturating_duration_since(self.clock.instant());
            let place = self
                .dispatcher
                .acquire(model, &incoming.ask, incoming.body.len(), left)
                .await
                .map_err(|refusal| {
                    // What is known by now: it may have waited for long.
                    let table = self.table().ok();
                    let known = table.as_ref().and_then(|table| table.get(key)).unwrap_or(model);
                    self.refusal(known, refusal, deadline)
                })?;
            let (wait, waited) = (self.clock.instant() - incoming.began, place.waited);
            self.metrics.waited(wait);
            if let Some(span) = incoming.span.as_ref().filter(|_| waited) {
                span.interval("queue", incoming.began, incoming.began + wait, vec![]);
            }
            let queued = (waited || is_retry).then_some(wait);
            let missed = match self.round(incoming, model, place, queued).await {
                Ok(answered) => return Ok(answered),
                Err(missed) => missed,
            };
            let is_final = incoming.has_broken_enough()
                || match &missed {
                    // Full, not theirs to answer, or a failure of its own: waiting in here is no better than at the client.
                    Missed::Said(response) => is_final(response.status()),
                    Missed::Failed(_) => false,
                };
            let now = self.clock.instant();
            if is_final || has_fallback || now >= deadline || !model.is_wanted {
                return Err(match missed {
                    Missed::Said(response) => NoAnswer::Said(response),
                    Missed::Failed(err) => refusal::unreachable(model, err.reason()).into(),
                });
            }
            let wait = pause.min(deadline.saturating_duration_since(now));
            pause = (pause * 2).min(MAX_PAUSE);
            // The fleet changes all the time; what may answer this request need not.
            let answering = |model: &Model| model.replicas.iter().map(|one| one.id).collect::<Vec<_>>();
            let before = answering(model);
            let changed = table_rx.wait_for(|table| {
                let now = table.as_ref().and_then(|table| table.get(key));
                now.map(answering).as_ref() != Some(&before)
            });
            drop(tokio::time::timeout(wait, changed).await);
        }
    }

    /// Asks one replica after another, each once.
    async fn round(
        &self,
        incoming: &Incoming,
        model: &Model,
        place: Place,
        queued: Option<Duration>,
    ) -> Result<Answered, Missed> {
        let mut tried = vec![place.replica.id];
        let first = self.attempt_hedged(incoming, model, place, &mut tried, queued);
        let mut missed = match first.await {
            Ok(answered) => return Ok(answered),
            Err(missed) => missed,
        };
        while tried.len() < MAX_TRIES && !incoming.has_broken_enough() {
            let Some(place) = self.dispatcher.another(model, &incoming.ask, &tried, true) else {
                break;
            };
            self.metrics.retries.inc();
            tried.push(place.replica.id);
            missed = match self.attempt(incoming, place, queued).await {
                Ok(answered) => return Ok(answered),
                Err(missed) => missed,
            };
        }
        Err(missed)
    }

    /// Asks a replica, and a second one as well if the model wants that and the first takes long.
    async fn attempt_hedged(
        &self,
        incoming: &Incoming,
        model: &Model,
        place: Place,
        tried: &mut Vec<u64>,
        queued: Option<Duration>,
    ) -> Result<Answered, Missed> {
        let first = std::pin::pin!(self.attempt(incoming, place, queued));
        // What comes whole has no first token to be late with.
        let Some(after) = model.routing.hedge_after.filter(|_| incoming.ask.is_stream) else {
            return first.await;
        };
        let pause = std::pin::pin!(tokio::time::sleep(after));
        let first = match select(first, pause).await {
            Either::Left((outcome, _)) => return outcome,
            Either::Right(((), first)) => first,
        };
        let Some(place) = self.dispatcher.another(model, &incoming.ask, tried, false) else {
            return first.await;
        };
        self.metrics.hedges.inc();
        tried.push(place.replica.id);
        let second = std::pin::pin!(self.attempt(incoming, place, queued));
        // Whoever is slower is dropped, which ends its work.
        match select(first, second).await {
            Either::Left((Ok(answered), _)) | Either::Right((Ok(answered), _)) => Ok(answered),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// Asks one replica, and reads its answer up to the first token.
    async fn attempt(
        &self,
        incoming: &Incoming,
        place: Place,
        queued: Option<Duration>,
    ) -> Result<Answered, Missed> {
        let target = &place.replica.target;
        let replica = format!("{}/{}", target.namespace, target.replica);
        let headers = headers::of_response(&replica, queued, incoming.fallback.as_ref());
        let span = incoming.span.as_ref().map(|span| {
            let span = span.child(incoming.parts.method.as_str(), SpanKind::Client);
            span.set("rooflet.replica", replica.as_str());
            span
        });
        let context = span.as_ref().and_then(OpenSpan::context);
        let outcome = tokio::select! {
            outcome = self.exchange(incoming, &place, context, &headers) => outcome,
            () = self.silence(place.replica.id) => Err(MissedReason::Silent),
        };
        let outcome = match outcome {
            Ok((parts, body)) if another_may_do_better(parts.status) || body.is_failure() => {
                if let Some(span) = &span {
                    span.set(trace::ERROR_TYPE, parts.status.as_str());
                }
                debug!(replica, status = %parts.status, "a replica cannot take a request");
                if body.is_failure() || had_the_request(parts.status) {
                    incoming.broke();
                }
                match parts.status {
                    StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS => drop(place),
                    StatusCode::BAD_GATEWAY => place.failed(Fault::Unreachable),
                    _ => place.failed(Fault::Unable),
                }
                let response = Response::from_parts(parts, body.into_body());
                return Err(Missed::Said(Box::new(response)));
            }
            outcome => outcome,
        };
        match outcome {
            Ok((mut parts, body)) => {
                // It is between the agent and us.
                if let Some(count) = headers::take_running(&mut parts.headers) {
                    place.running(count);
                }
                parts.headers.extend(headers);
                Ok(Answered {
                    parts,
                    body,
                    place,
                    span,
                })
            }
            Err(err) => {
                debug!(replica, error = %Chain(&err), "a replica did not answer");
                if let Some(span) = &span {
                    span.fail(err.reason());
                }
                if err.had_the_request() {
                    incoming.broke();
                }
                place.failed(Fault::Unreachable);
                Err(Missed::Failed(err))
            }
        }
    }

    async fn exchange(
        &self,
        incoming: &Incoming,
        place: &Place,
        context: Option<TraceContext>,
        headers: &HeaderMap,
    ) -> Result<(http::response::Parts, Begun), MissedReason> {
        let response = self.send(incoming, place, context).await?;
        incoming.begins(&response, headers);
        Ok(begin(response).await?)
    }

    /// Ends when the replica's node has not been heard of for long.
    async fn silence(&self, replica: u64) {
        let mut table_rx = self.table_rx.clone();
        let is_silent =
            |table: &Option<Arc<RoutingTable>>| table.as_ref().is_some_and(|table| table.is_silent(replica));
        if table_rx.wait_for(is_silent).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn send(
        &self,
        incoming: &Incoming,
        place: &Place,
        context: Option<TraceContext>,
    ) -> Result<Response, ForwardError> {
        let path = path_of(&place.replica.target, &incoming.parts.uri);
        let mut request = incoming.again();
        let asked = incoming.parts.uri.path();
        headers::set_for_agent(request.headers_mut(), asked, place.replica.id, context);
        self.proxy.forward(request, &place.replica.upstream, &path).await
    }

    /// What a client is told whose request cannot be taken.
    fn refusal(&self, model: &Model, refusal: Refusal, deadline: Instant) -> ApiError {
        self.metrics.refused(refusal);
        let left = deadline.saturating_duration_since(self.clock.instant());
        refusal::of(model, refusal, left)
    }
}

/// Where a replica's agent takes a request for it.
fn path_of(target: &Target, uri: &Uri) -> PathAndQuery {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // Names of objects need no escapes in a URL, and `path` came as one.
    let path = format!("/replicas/{}/{}/proxy{path}", target.namespace, target.replica);
    path.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

fn card(name: String, model: &Model) -> models::Model {
    let context = model
        .context_tokens
        .and_then(|tokens| usize::try_from(tokens).ok());
    models::Model::new(name, model.created, context)
}

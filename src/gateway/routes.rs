//! From a request to a replica's answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::uri::PathAndQuery;
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tracing::debug;

use super::balance::{Balance, Outstanding};
use super::metrics::{GatewayMetrics, Measure};
use super::table::{Model, RoutingTable, Target, Unknown};
use crate::clock::Clock;
use crate::error::Chain;
use crate::metrics::{Registry, render};
use crate::openai::ApiError;
use crate::openai::error::ErrorCode;
use crate::openai::models;
use crate::proxy::{ForwardError, MAX_REQUEST_BODY_BYTES, Proxy, Upstream, peek_model};

/// Replicas one request is tried on.
const MAX_TRIES: usize = 3;
/// Characters of a name that a client asked for which are repeated to it.
const MAX_ECHOED_CHARS: usize = 200;

/// What all requests share.
pub(super) struct Gateway {
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    proxy: Proxy,
    balance: Balance,
    clock: Clock,
    metrics: GatewayMetrics,
    registry: Registry,
}

impl Gateway {
    pub(super) fn new(
        table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
        clock: Clock,
        metrics: GatewayMetrics,
        registry: Registry,
    ) -> Self {
        Self {
            table_rx,
            proxy: Proxy::new(),
            balance: Balance::default(),
            clock,
            metrics,
            registry,
        }
    }

    #[cfg(test)]
    pub(super) fn balance(&self) -> &Balance {
        &self.balance
    }

    pub(super) fn is_ready(&self) -> bool {
        self.table_rx.borrow().is_some()
    }

    pub(super) fn render_metrics(&self) -> String {
        render(&self.registry)
    }

    fn table(&self) -> Result<Arc<RoutingTable>, ApiError> {
        self.table_rx.borrow().clone().ok_or_else(|| {
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
        let model = table.find(asked).map_err(|unknown| refuse(asked, unknown))?;
        Ok(Json(card(asked.to_owned(), model)).into_response())
    }

    /// Sends the request to a replica of its model, and to another one if that cannot take it.
    pub(super) async fn forward(&self, request: Request) -> Result<Response, ApiError> {
        let measure = self.metrics.begin(&self.clock);
        let outcome = self.answer(request).await;
        measure.status(match &outcome {
            Ok((response, _)) => response.status(),
            Err(err) => err.status,
        });
        let (response, outstanding) = outcome?;
        Ok(response.map(|body| {
            Body::new(Tracked {
                body,
                measure,
                _outstanding: outstanding,
            })
        }))
    }

    async fn answer(&self, request: Request) -> Result<(Response, Outstanding), ApiError> {
        let table = self.table()?;
        let (parts, body) = request.into_parts();
        let peeked = peek_model(body, MAX_REQUEST_BODY_BYTES).await?;
        let model = table
            .find(&peeked.model)
            .map_err(|unknown| refuse(&peeked.model, unknown))?;
        let targets = self.balance.order(model, self.clock.instant());
        if targets.is_empty() {
            return Err(not_ready(model));
        }
        // A worker knows its model without the namespace.
        let body = if peeked.model == model.name {
            peeked.body.clone()
        } else {
            peeked.for_model(&model.name)
        };
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let last = targets.len().min(MAX_TRIES) - 1;
        let mut failed = None;
        for (index, (target, upstream)) in targets.iter().take(MAX_TRIES).enumerate() {
            if index > 0 {
                self.metrics.retries.inc();
            }
            let outstanding = self.balance.begin(target);
            let request = again(&parts, body.clone());
            match self.send(request, target, upstream, path).await {
                Ok(response) if index < last && another_may_do_better(response.status()) => {
                    debug!(replica = target.replica, status = %response.status(), "trying another replica");
                }
                Ok(response) => return Ok((response, outstanding)),
                Err(err) => {
                    debug!(replica = target.replica, error = %Chain(&err), "a replica did not answer");
                    self.balance.avoid(target, self.clock.instant());
                    failed = Some(err);
                }
            }
        }
        let reason = failed.map_or("Unavailable", |err| err.reason());
        Err(ApiError::unavailable(
            ErrorCode::ModelUnavailable,
            format!(
                "No replica of the model `{}` could be reached ({reason}). Please try again shortly.",
                model.name
            ),
        ))
    }

    async fn send(
        &self,
        request: Request,
        target: &Target,
        upstream: &Upstream,
        path: &str,
    ) -> Result<Response, ForwardError> {
        // Names of objects need no escapes in a URL, and `path` came as one.
        let path = format!("/replicas/{}/{}/proxy{path}", target.namespace, target.replica);
        let path = path.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"));
        self.proxy.forward(request, upstream, &path).await
    }
}

/// The same request, to be sent once more. The body was read whole, so its length is known.
fn again(parts: &http::request::Parts, body: Bytes) -> Request {
    let mut parts = parts.clone();
    parts.headers.remove(http::header::CONTENT_LENGTH);
    Request::from_parts(parts, Body::from(body))
}

/// Answers that speak of the replica and not of the request.
fn another_may_do_better(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn card(name: String, model: &Model) -> models::Model {
    let context = model
        .context_tokens
        .and_then(|tokens| usize::try_from(tokens).ok());
    models::Model::new(name, model.created, context)
}

fn refuse(asked: &str, unknown: Unknown) -> ApiError {
    let asked: String = asked.chars().take(MAX_ECHOED_CHARS).collect();
    match unknown {
        Unknown::NotFound => ApiError::model_not_found(&asked),
        Unknown::Ambiguous(names) => ApiError::invalid_value(
            "model",
            format!(
                "The model `{asked}` is served in several namespaces. Please ask for one of: {}.",
                names.join(", ")
            ),
        ),
    }
}

fn not_ready(model: &Model) -> ApiError {
    let why = model
        .trouble
        .as_deref()
        .unwrap_or("its replicas have not reported yet");
    let code = if model.is_coming {
        ErrorCode::ModelLoading
    } else {
        ErrorCode::ModelUnavailable
    };
    ApiError::unavailable(
        code,
        format!("The model `{}` has no ready replica: {why}", model.name),
    )
}

/// An answer's body, unchanged, with what ends when it does.
struct Tracked {
    body: Body,
    measure: Measure,
    _outstanding: Outstanding,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(_)) = &frame {
            this.measure.first_byte();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! What the handlers of all endpoints share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::api::responses::store::ResponseStore;
use crate::engine::Engine;
use crate::metrics::WorkerMetrics;
use crate::prompt::Prompter;
use rooflet_api::wire::WorkerPhase;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::models::Model;
use rooflet_telemetry::trace::Tracer;

/// State of the server: the model, the engine and its limits.
#[derive(Debug)]
pub(crate) struct App {
    pub name: String,
    pub prompter: Arc<Prompter>,
    pub engine: Engine,
    /// Has [`MAX_BYTES_AT_ONCE`](crate::api::body::MAX_BYTES_AT_ONCE) permits.
    pub long_work: Arc<Semaphore>,
    pub responses: ResponseStore,
    pub clock: Clock,
    pub metrics: WorkerMetrics,
    pub registry: Registry,
    pub tracer: Tracer,
    /// Unix time in seconds.
    pub started: i64,
}

impl App {
    pub(crate) fn check_model(&self, asked: &str) -> Result<(), ApiError> {
        if asked == self.name {
            Ok(())
        } else {
            Err(ApiError::model_not_found(asked))
        }
    }

    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        match self.engine.state().phase() {
            WorkerPhase::Ready => Ok(()),
            WorkerPhase::Loading | WorkerPhase::Warming => Err(ApiError::model_loading(&self.name)),
        }
    }

    /// Returns the time in the zone of this machine, for chat templates.
    pub(crate) fn local_time(&self) -> jiff::Zoned {
        self.clock.now().to_zoned(jiff::tz::TimeZone::system())
    }

    pub(crate) fn model_card(&self) -> Model {
        let context = self.prompter.context_tokens();
        Model::new(self.name.clone(), self.started, Some(context))
    }
}

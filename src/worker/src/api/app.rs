//! State shared by the handlers of all endpoints.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::api::ollama::file_facts::FileFacts;
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

/// State of the HTTP server.
#[derive(Debug)]
pub(crate) struct App {
    pub name: String,
    pub prompter: Arc<Prompter>,
    pub engine: Engine,
    /// Semaphore with one permit per byte of
    /// [`MAX_CONCURRENT_LONG_BODY_BYTES`](crate::api::body::MAX_CONCURRENT_LONG_BODY_BYTES).
    pub long_body_permits: Arc<Semaphore>,
    pub responses: ResponseStore,
    pub clock: Clock,
    pub metrics: WorkerMetrics,
    pub registry: Registry,
    pub tracer: Tracer,
    pub files: FileFacts,
    /// Start time as Unix time in seconds.
    pub started: i64,
}

impl App {
    pub(crate) fn check_model(&self, requested: &str) -> Result<(), ApiError> {
        if requested == self.name {
            Ok(())
        } else {
            Err(ApiError::model_not_found(requested))
        }
    }

    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        match self.engine.state().phase() {
            WorkerPhase::Ready => Ok(()),
            WorkerPhase::Loading | WorkerPhase::Warming => Err(ApiError::model_loading(&self.name)),
        }
    }

    /// Returns the current time in the time zone of this machine, for chat templates.
    pub(crate) fn local_time(&self) -> jiff::Zoned {
        self.clock.now().to_zoned(jiff::tz::TimeZone::system())
    }

    pub(crate) fn model_card(&self) -> Model {
        let context = self.prompter.context_tokens();
        Model::new(self.name.clone(), self.started, Some(context))
    }
}

//! A model on this node: the parameters for serving it, or the reason why it cannot be served.
//! Pure.

use std::sync::Arc;

use camino::Utf8PathBuf;

use rooflet_api::v1alpha1::{DEFAULT_CONTEXT_TOKENS, HubModel};
use rooflet_base::units::Bytes;
use rooflet_roofline::kv_quantisation::KvQuantisationError;
use rooflet_roofline::memory::ServedModel;

/// Reason while the hub has not answered the request for a model's metadata.
pub(crate) const ASKING_HUB: &str = "AskingHub";

/// Model that can be served.
#[derive(Debug, Clone, PartialEq)]
pub struct ServableModel {
    pub path: Utf8PathBuf,
    pub fingerprint: u64,
    pub architecture: &'static str,
    pub served: Arc<ServedModel>,
    pub max_context_tokens: u32,
    /// Reason why the model's KV cache cannot be quantised.
    pub unquantisable: Option<KvQuantisationError>,
    /// Download that is still needed. `None` if the model is on the disk.
    pub pull: Option<PendingPull>,
}

/// Download that a model needs before it can be served.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingPull {
    /// Model with its pinned commit.
    pub model: HubModel,
    /// Size of all files of the model.
    pub bytes: Bytes,
    /// Bytes that are on the disk.
    pub done: Bytes,
    /// True if the download has started.
    pub is_under_way: bool,
    /// Reason why the download is suspended.
    pub problem: Option<DownloadProblem>,
}

impl PendingPull {
    pub fn missing(&self) -> Bytes {
        self.bytes - self.done
    }
}

impl ServableModel {
    /// Returns the model with a KV cache of `bits` bits. If the model does not support them,
    /// returns it unchanged, and admission rejects it.
    pub fn with_kv_bits(self, bits: Option<u32>) -> Self {
        let served = ServedModel::clone(&self.served).with_kv_bits(bits);
        match (served, &self.unquantisable) {
            (Ok(served), None) => Self {
                served: Arc::new(served),
                ..self
            },
            (Ok(_), Some(_)) | (Err(_), _) => self,
        }
    }

    /// Returns the context length to reserve, in tokens: the requested length, otherwise the
    /// model's maximum, limited by the default.
    pub fn context_tokens(&self, requested: Option<u32>) -> u32 {
        requested.unwrap_or_else(|| self.max_context_tokens.min(DEFAULT_CONTEXT_TOKENS))
    }
}

/// Reason why a model cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelProblem {
    pub reason: &'static str,
    /// Message that names the file and the remedy.
    pub message: String,
    /// True if the problem can resolve itself, so that no user has to act yet.
    pub is_transient: bool,
}

impl ModelProblem {
    /// Creates a problem that persists until a user acts.
    pub fn permanent(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_transient: false,
        }
    }
}

/// Element type of the engine's computations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    /// Element type of the model files.
    Stored,
    /// 32 bits. MLX's CPU back end uses them for every model.
    Float32,
}

impl ComputeType {
    /// Returns the type for an engine's device (`cpu`, `metal`, `cuda`). Assumes the larger type
    /// for an unknown device.
    pub fn of_device(device: Option<&str>) -> Self {
        match device {
            Some("metal" | "cuda") => Self::Stored,
            None if cfg!(target_os = "macos") => Self::Stored,
            Some(_) | None => Self::Float32,
        }
    }
}

/// Error of a hub request or download that is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadProblem {
    pub reason: &'static str,
    pub message: String,
    /// True if the error is transient.
    pub is_transient: bool,
}

//! What is known of one model on this node: whether and how it can be served, or why it cannot. Pure.

use std::sync::Arc;

use camino::Utf8PathBuf;

use rooflet_api::v1alpha1::{DEFAULT_CONTEXT_TOKENS, HubModel};
use rooflet_base::units::Bytes;
use rooflet_roofline::kv_quantisation::KvQuantisationError;
use rooflet_roofline::memory::ServedModel;

/// The hub has not said yet what a model is.
pub(crate) const ASKING_HUB: &str = "AskingHub";

/// A model that can be served.
#[derive(Debug, Clone, PartialEq)]
pub struct ServableModel {
    pub path: Utf8PathBuf,
    pub fingerprint: u64,
    pub architecture: &'static str,
    pub served: Arc<ServedModel>,
    pub max_context_tokens: u32,
    /// Why its KV cache cannot be kept in few bits.
    pub unquantisable: Option<KvQuantisationError>,
    /// What is still to be downloaded; `None`: it is here.
    pub pull: Option<PendingPull>,
}

/// A model that is not here yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingPull {
    /// With its commit.
    pub model: HubModel,
    /// Of all its files, and what of that is on the disk.
    pub bytes: Bytes,
    pub done: Bytes,
    /// Why its download does not go on for now.
    pub trouble: Option<Trouble>,
}

impl PendingPull {
    pub fn missing(&self) -> Bytes {
        self.bytes - self.done
    }
}

impl ServableModel {
    /// The same with a KV cache of so many bits, where it can be had; where not, admission refuses it.
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

    /// The context that is reserved: what is asked for, else the model's own maximum within the default's bound.
    pub fn context_tokens(&self, asked: Option<u32>) -> u32 {
        asked.unwrap_or_else(|| self.max_context_tokens.min(DEFAULT_CONTEXT_TOKENS))
    }
}

/// Why a model cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelProblem {
    pub reason: &'static str,
    /// Names the file and the fix.
    pub message: String,
    /// It may pass by itself: nobody is asked to do anything yet.
    pub is_passing: bool,
}

impl ModelProblem {
    /// One that stays until somebody does something.
    pub fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_passing: false,
        }
    }
}

/// The element type that the engine computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    /// As the files hold it.
    Stored,
    /// MLX's CPU back end computes in 32 bits, whatever the files hold.
    Float32,
}

impl ComputeType {
    /// By the engine's device (`cpu`, `metal`, `cuda`); the larger one while the device is not known.
    pub fn of_device(device: Option<&str>) -> Self {
        match device {
            Some("metal" | "cuda") => Self::Stored,
            None if cfg!(target_os = "macos") => Self::Stored,
            Some(_) | None => Self::Float32,
        }
    }
}

/// What went wrong with a model, and is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub reason: &'static str,
    pub message: String,
    /// It may pass by itself.
    pub is_passing: bool,
}

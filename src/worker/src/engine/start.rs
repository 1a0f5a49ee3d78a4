//! Start of the engine's thread: memory for KV caches, the model, and loaded kernels.

use camino::Utf8Path;
use tokio::sync::mpsc;

use super::{Command, EngineConfig, EngineError};
use crate::batch::sequence::token_row;
use crate::batch::step_error::StepError;
use crate::cache::kv_budget::KvBudget;
use crate::cache::kv_memory::KvMemory;
use crate::cache::{BlockFiles, Disk, OpenFilesError, PrefixCache, ResumePoints, fingerprint};
use rooflet_api::wire::ModelInfo;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::units::Bytes;
use rooflet_decoder::Decoder;
use rooflet_host::Host;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::device;
use rooflet_mlx::load::Weights;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, allocatable};

/// Tokens of the prompt that a GPU computes before the first request. MLX 0.32 computes up to 32 rows
/// of a product, and up to 8 queries of attention, with the kernels of decode steps. All longer prompts
/// use the same kernels, which Metal compiles for the GPU at their first use.
const GPU_PROMPT_TOKENS: usize = 64;
/// The same for a CPU, whose kernels need no preparation.
const CPU_PROMPT_TOKENS: usize = 2;

fn prompt_tokens(backend: Backend) -> usize {
    match backend {
        Backend::Cpu => CPU_PROMPT_TOKENS,
        Backend::Metal | Backend::Cuda => GPU_PROMPT_TOKENS,
    }
}

impl EngineConfig {
    /// Creates the KV memory. Limits the context length to the available memory, so that every
    /// accepted request can be computed, and limits MLX to that memory.
    pub(super) fn kv_memory(
        &self,
        backend: Backend,
        waker: mpsc::WeakSender<Command>,
    ) -> Result<KvMemory, EngineError> {
        let Self { model, prompter, .. } = self;
        let limit = self.memory_limit.unwrap_or_else(|| {
            device::own_memory(backend).unwrap_or_else(|| {
                let memory = Host::Native.memory();
                allocatable(memory.total, memory.working_set)
            })
        });
        let element = backend.compute_type(model.shape.element);
        let element_bits = 8 * element.bytes() as u32;
        let bits = self.kv.map_or(KvBits::new(element_bits), |kv| {
            kv.stored_bits(f64::from(element_bits))
        });
        let context = u32::try_from(prompter.context_tokens()).unwrap_or(u32::MAX);
        let budget = KvBudget::new(limit, &model.shape, element, bits, context)
            .map_err(|err| EngineError::InsufficientMemory { err })?;
        let longest = usize::try_from(budget.longest_request()).unwrap_or(usize::MAX);
        if longest < prompter.context_tokens() {
            tracing::warn!(
                context_tokens = prompter.context_tokens(),
                fitting_tokens = longest,
                kv_bytes = budget.bytes().0,
                "context length limited by memory"
            );
        }
        prompter.limit_context(longest);
        let most = budget.request_bytes(prompter.context_tokens()) * self.max_concurrency as u64;
        let capacity = self.prefix_cache_memory.unwrap_or(Bytes(most));
        let mut prefixes = PrefixCache::new(capacity, ResumePoints::of(&model.shape.config));
        if let Some(files) = &self.prefix_files {
            let (model, disk) = self
                .open_files(&files.dir, backend, waker)
                .map_err(|err| EngineError::PrefixFiles { err })?;
            prefixes = prefixes.with_files(model, disk, files.limit);
        }
        device::limit_memory(backend, limit - RUNTIME_OVERHEAD).map_err(EngineError::Device)?;
        Ok(KvMemory::new(budget, prefixes))
    }

    fn open_files(
        &self,
        dir: &Utf8Path,
        backend: Backend,
        waker: mpsc::WeakSender<Command>,
    ) -> Result<(String, Disk), OpenFilesError> {
        let model = &self.model;
        let element = backend.compute_type(model.shape.element);
        let engine = format!(
            "{} {} {element:?} {:?} {}",
            device::engine_version(),
            backend.as_str(),
            self.kv,
            env!("CARGO_PKG_VERSION")
        );
        let model = fingerprint(model, &engine).map_err(|err| OpenFilesError::Model { err })?;
        let files = BlockFiles::open(dir, model.clone(), self.clock.clone())?;
        let wake = move || {
            if let Some(commands) = waker.upgrade() {
                // If the queue is full, the thread is awake anyway.
                drop(commands.try_send(Command::Wake));
            }
        };
        let disk = Disk::spawn(files, wake).map_err(|err| OpenFilesError::Spawn { err })?;
        Ok((model, disk))
    }

    /// Returns facts about the model. Sizes are those in memory, which depend on the backend.
    pub(super) fn model_info(&self, backend: Backend) -> ModelInfo {
        let shape = &self.model.shape;
        let element = backend.compute_type(shape.element);
        ModelInfo {
            architecture: shape.config.architecture.to_string(),
            parameters: shape.parameters,
            weights_bytes: shape.resident_bytes(element),
            kv_bytes_per_token: shape.config.kv_bytes_per_token(element),
            context_tokens: self.prompter.context_tokens() as u64,
        }
    }

    pub(super) fn load(&self, backend: Backend) -> Result<Decoder, EngineError> {
        let ModelDir {
            shape, weight_files, ..
        } = &self.model;
        let load = || {
            let mut weights = Weights::open(weight_files, backend.compute_type(shape.element))?;
            Ok(Decoder::load(shape, &mut weights)?.with_kv(self.kv))
        };
        load().map_err(|err| EngineError::Load { err })
    }
}

/// Runs one prompt and one decode step, so that the kernels are loaded before the first request.
///
/// # Errors
/// Returns [`StepError::NotFinite`] if the logits are not finite: the weights are unusable.
pub(super) fn warm(model: &Decoder, backend: Backend) -> Result<(), StepError> {
    let mut cache = model.new_cache();
    let prompt = [0_u32; GPU_PROMPT_TOKENS];
    let prompt = &prompt[..prompt_tokens(backend)];
    for tokens in [prompt, &prompt[..1]] {
        let logits = model.forward(&token_row(tokens), &mut cache)?;
        let finite = logits.sum(false)?.is_finite()?.try_item_exact::<bool>()?;
        if !finite {
            return Err(StepError::NotFinite);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_prepares_the_kernels_of_long_prompts() {
        // Up to 32 rows, MLX uses the kernels of decode steps.
        for (backend, is_long) in [
            (Backend::Cpu, false),
            (Backend::Metal, true),
            (Backend::Cuda, true),
        ] {
            assert_eq!(prompt_tokens(backend) > 32, is_long, "{backend:?}");
        }
    }
}

//! Device of MLX and its allocator.

use mlx_rs::{Device, DeviceType, memory};

use super::backend::Backend;
use super::sys;
use rooflet_api::wire::{EngineInfo, EngineMemory};
use rooflet_base::units::Bytes;

impl Backend {
    /// Returns the backend of MLX's default device, which is the GPU if the machine has one.
    pub fn current() -> Result<Self, mlx_rs::error::Exception> {
        Ok(match Device::try_default()?.get_type()? {
            DeviceType::Cpu => Self::Cpu,
            DeviceType::Gpu if sys::cuda_is_available() => Self::Cuda,
            DeviceType::Gpu => Self::Metal,
        })
    }
}

/// Returns name, version and backend of the engine, for the agent's reports.
pub fn engine_info() -> Result<EngineInfo, mlx_rs::error::Exception> {
    Ok(EngineInfo {
        name: "mlx".to_owned(),
        version: engine_version(),
        device: Backend::current()?.as_str().to_owned(),
    })
}

/// Returns the version of the MLX library that is loaded. Does not initialise a device.
pub fn engine_version() -> String {
    sys::version().unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the limit of MLX's allocator if the device has its own memory. `None` if the device
/// shares the memory of the machine.
pub fn own_memory(backend: Backend) -> Option<Bytes> {
    match backend {
        Backend::Cpu | Backend::Metal => None,
        Backend::Cuda => memory::memory_limit().ok().map(|bytes| Bytes(bytes as u64)),
    }
}

/// Limits the memory of active arrays and of the allocator's cached buffers to `limit`. At the
/// limit, MLX frees cached buffers before it allocates; it never rejects an allocation. No effect
/// on a CPU, where MLX caches at most 32 MiB.
pub fn limit_memory(backend: Backend, limit: Bytes) -> mlx_rs::error::Result<()> {
    match backend {
        Backend::Cpu => Ok(()),
        Backend::Metal | Backend::Cuda => {
            let limit = usize::try_from(limit.0).unwrap_or(usize::MAX);
            memory::set_memory_limit(limit).map(drop)
        }
    }
}

/// Returns the memory that the allocator holds now.
pub fn memory() -> EngineMemory {
    // These calls read counters and cannot fail in practice. A missing figure must not end a
    // request.
    let bytes = |outcome: mlx_rs::error::Result<usize>| outcome.map_or(0, |bytes| bytes as u64);
    EngineMemory {
        active_bytes: bytes(memory::active_memory()),
        peak_bytes: bytes(memory::peak_memory()),
        cache_bytes: bytes(memory::cache_memory()),
    }
}

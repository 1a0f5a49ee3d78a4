//! The device that MLX computes on, and its allocator.

use mlx_rs::{Device, DeviceType, memory};

use super::backend::Backend;
use super::sys;
use rooflet_api::wire::{EngineInfo, EngineMemory};
use rooflet_base::units::Bytes;

impl Backend {
    /// The back end of MLX's default device: the GPU where there is one.
    pub fn current() -> Result<Self, mlx_rs::error::Exception> {
        Ok(match Device::try_default()?.get_type()? {
            DeviceType::Cpu => Self::Cpu,
            DeviceType::Gpu if sys::cuda_is_available() => Self::Cuda,
            DeviceType::Gpu => Self::Metal,
        })
    }
}

/// Name, version and back end, as the agent reports them.
pub fn engine_info() -> Result<EngineInfo, mlx_rs::error::Exception> {
    Ok(EngineInfo {
        name: "mlx".to_owned(),
        version: engine_version(),
        device: Backend::current()?.as_str().to_owned(),
    })
}

/// Of the library that is loaded. Touches no device.
pub fn engine_version() -> String {
    sys::version().unwrap_or_else(|| "unknown".to_owned())
}

/// The most that MLX's allocator gives, where the device has memory of its own; `None` where it is
/// the machine's.
pub fn own_memory(backend: Backend) -> Option<Bytes> {
    match backend {
        Backend::Cpu | Backend::Metal => None,
        Backend::Cuda => memory::memory_limit().ok().map(|bytes| Bytes(bytes as u64)),
    }
}

/// Keeps what is in use, and with it the buffers that the allocator keeps for others of their size,
/// below `limit`: before it takes more it gives such buffers back. What is in use is never refused.
/// MLX on a CPU keeps 32 MiB of them at most, whatever it is told.
pub fn limit_memory(backend: Backend, limit: Bytes) -> mlx_rs::error::Result<()> {
    match backend {
        Backend::Cpu => Ok(()),
        Backend::Metal | Backend::Cuda => {
            let limit = usize::try_from(limit.0).unwrap_or(usize::MAX);
            memory::set_memory_limit(limit).map(drop)
        }
    }
}

/// What the allocator holds now.
pub fn memory() -> EngineMemory {
    // These calls read counters and cannot fail in practice; a missing figure must not end a
    // request.
    let bytes = |outcome: mlx_rs::error::Result<usize>| outcome.map_or(0, |bytes| bytes as u64);
    EngineMemory {
        active_bytes: bytes(memory::active_memory()),
        peak_bytes: bytes(memory::peak_memory()),
        cache_bytes: bytes(memory::cache_memory()),
    }
}

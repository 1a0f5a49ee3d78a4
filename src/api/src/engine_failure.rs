//! Causes of engine failures, by the texts in which MLX 0.32.2 and the GPU drivers report them.

/// Cause of an engine failure, as far as its text shows the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineFailure {
    /// No memory is left, or the device has no buffer of the required size.
    OutOfMemory,
    /// The driver stopped a command that ran too long, or a command that was queued beside it. The
    /// work may succeed in shorter commands.
    Interrupted,
    /// After a GPU fault, macOS rejects all further work of the process. Only a new process can use
    /// the GPU.
    Excluded,
    Other,
}

/// Prefix of the driver's error codes in the message of a failed Metal command.
const COMMAND_ERROR: &str = "kIOGPUCommandBufferCallbackError";
/// Suffixes of the error codes of stopped commands, and of commands that were queued beside such a
/// command (`InnocentVictim`).
const INTERRUPTIONS: [&str; 4] = ["ImpactingInteractivity", "Timeout", "Hang", "InnocentVictim"];
/// Texts of MLX's allocators for Metal and CUDA: no memory, a buffer larger than `maxBufferLength`,
/// too many buffers, and `cudaErrorMemoryAllocation`. The CPU's allocator reports no errors.
const ALLOCATION_ERRORS: [&str; 4] = [
    "[malloc] Unable to allocate ",
    "[metal::malloc] Attempting to allocate ",
    "[metal::malloc] Resource limit ",
    " failed: out of memory",
];

impl EngineFailure {
    /// Returns the cause of a failure with this text.
    pub fn of(text: &str) -> Self {
        let mut codes = text.split(COMMAND_ERROR).skip(1);
        let command = codes.find_map(|code| match code {
            code if code.starts_with("OutOfMemory") => Some(Self::OutOfMemory),
            code if code.starts_with("SubmissionsIgnored") => Some(Self::Excluded),
            code if INTERRUPTIONS.iter().any(|end| code.starts_with(end)) => Some(Self::Interrupted),
            _ => None,
        });
        let is_allocation = || ALLOCATION_ERRORS.iter().any(|error| text.contains(error));
        command.unwrap_or_else(|| match is_allocation() {
            true => Self::OutOfMemory,
            false => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: EngineFailure) {
        assert_eq!(EngineFailure::of(text), expect, "{text}");
    }

    /// Texts of the issues mlx#479, mlx#3267 and omlx#3706.
    #[test]
    fn causes_of_failed_metal_commands() {
        for (why, expect) in [
            (
                "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).",
                EngineFailure::Interrupted,
            ),
            (
                "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
                EngineFailure::Interrupted,
            ),
            (
                "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
                EngineFailure::OutOfMemory,
            ),
            (
                "Ignored (for causing prior/excessive GPU errors) \
                 (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).",
                EngineFailure::Excluded,
            ),
            ("Timeout", EngineFailure::Other),
            (
                "Page Fault (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
                EngineFailure::Other,
            ),
        ] {
            check(&format!("[METAL] Command buffer execution failed: {why}"), expect);
        }
    }

    /// Texts of MLX's allocators for Metal and CUDA.
    #[test]
    fn failed_allocations_are_out_of_memory() {
        for text in [
            "[metal::malloc] Attempting to allocate 24576000000 bytes which is greater than the maximum allowed \
             buffer size of 14300000000 bytes.",
            "[metal::malloc] Resource limit (499000) exceeded.",
            "[malloc] Unable to allocate 4503599627370496 bytes.",
            "cudaMallocAsync(&data, size, stream) failed: out of memory",
            // The process's own end, if the error was thrown on another thread.
            "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer \
             execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        ] {
            check(text, EngineFailure::OutOfMemory);
        }
        check("[matmul] Last dimension of first input", EngineFailure::Other);
        check("insufficient memory for the model", EngineFailure::Other);
    }
}

// The clock that mlx-rs seeds its default random state from; only macOS has it.
#include <cstdint>
#include <ctime>

extern "C" uint64_t mach_approximate_time() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

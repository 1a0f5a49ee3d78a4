//! Checks of the engine.

#[cfg(feature = "mlx")]
mod limits;

use super::check::Check;
use rooflet_base::clock::Clock;
use rooflet_host::Host;

#[cfg(not(feature = "mlx"))]
pub(super) fn checks(_: &Host, _: &Clock, _: &mut dyn FnMut()) -> Vec<Check> {
    vec![Check::unknown(
        "engine",
        "this build has no engine: it runs control planes only",
    )]
}

/// Checks the device and its speed. Calls `during_load` several times while the device computes.
#[cfg(feature = "mlx")]
pub(super) fn checks(host: &Host, clock: &Clock, during_load: &mut dyn FnMut()) -> Vec<Check> {
    let device = match rooflet_mlx::device::engine_info() {
        Ok(info) => {
            let finding = format!("{} {} on {}", info.name, info.version, info.device);
            match info.device == "cpu" {
                true => Check::warn("engine", format!("{finding}: models run on the CPU"), None),
                false => Check::ok("engine", finding),
            }
        }
        Err(err) => {
            let problem = err.to_string();
            let remedy = match problem.contains("No Metal device") {
                true => super::machine::NO_METAL_DEVICE,
                false => "rebuild rooflet, and keep mlx.metallib next to the binary",
            };
            return vec![Check::fail("engine", problem, remedy)];
        }
    };
    let mut checks = vec![device];
    checks.extend(kernels());
    checks.extend(speed(host, clock, during_load));
    // Last, because a stopped command can exclude this process from the GPU.
    checks.extend(limits::checks(usable_memory(host), clock));
    checks
}

/// Returns the memory that measurements may use.
#[cfg(feature = "mlx")]
fn usable_memory(host: &Host) -> rooflet_base::units::Bytes {
    let memory = host.memory();
    memory
        .working_set
        .map_or(memory.available, |limit| limit.min(memory.available))
}

#[cfg(feature = "mlx")]
fn kernels() -> Vec<Check> {
    let remedy = "report it with `rooflet doctor --save FILE`: models would generate wrong answers";
    let checked = match rooflet_mlx::kernel_check::check_kernels() {
        Ok(checked) => checked,
        Err(err) => return vec![Check::fail("kernels", err.to_string(), remedy)],
    };
    let checks = checked.into_iter().map(|kernel| {
        let finding = format!(
            "error {:.1e} (at most {:.0e}), first run {}",
            kernel.error,
            kernel.tolerance,
            super::check::milliseconds(kernel.first_run)
        );
        match kernel.is_correct() {
            true => Check::ok(kernel.name, finding),
            false => Check::fail(kernel.name, finding, remedy),
        }
    });
    checks.collect()
}

/// Measures the memory bandwidth and the time of kernel launches.
#[cfg(feature = "mlx")]
fn speed(host: &Host, clock: &Clock, during_load: &mut dyn FnMut()) -> Vec<Check> {
    use rooflet_mlx::probe::{self, ProbeOptions};

    let options = ProbeOptions {
        memory: usable_memory(host),
        sustained: None,
    };
    let measurements = match probe::measure(options, clock, |_| during_load()) {
        Ok((_, measurements)) => measurements,
        Err(err) => {
            let remedy = "close other programs that use the GPU";
            return vec![Check::fail("memory bandwidth", err.to_string(), remedy)];
        }
    };
    let mut checks = vec![bandwidth(host, &measurements)];
    checks.extend(launches(&measurements));
    checks
}

/// Shows the overhead of the host: MLX without optimisation multiplies it.
#[cfg(feature = "mlx")]
fn launches(measurements: &rooflet_api::v1alpha1::Measurements) -> Option<Check> {
    let microseconds = |spread: &rooflet_api::v1alpha1::Spread| format!("{:.1} µs", 1e6 * spread.median);
    let launch = microseconds(measurements.launch_seconds.as_ref()?);
    let round_trip = microseconds(measurements.round_trip_seconds.as_ref()?);
    let finding = format!("{launch} for a launch, {round_trip} until a small result is read");
    Some(Check::ok("kernel launches", finding))
}

/// Compares the memory bandwidth with the data sheet.
#[cfg(feature = "mlx")]
fn bandwidth(host: &Host, measurements: &rooflet_api::v1alpha1::Measurements) -> Check {
    use rooflet_api::v1alpha1::PlausibilityVerdict;
    use rooflet_base::units::BytesPerSecond;
    use rooflet_roofline::chip;
    use rooflet_roofline::probing::{self, DataSheet};

    let name = "memory bandwidth";
    let read = BytesPerSecond(measurements.read.median_bytes_per_second);
    let sheet = chip::of_machine(&host.identity().chip, host.memory().total);
    let finding = format!(
        "{read} read, {} with 4-bit weights",
        BytesPerSecond(measurements.qmv.median_bytes_per_second)
    );
    let Ok(sheet) = sheet else {
        return Check::ok(name, format!("{finding}; no data sheet to compare with"));
    };
    let share = 100.0 * read.0 / sheet.bandwidth.0;
    let finding = format!("{finding}: {share:.0} % of {} by the data sheet", sheet.bandwidth);
    let plausibility = probing::plausibility(read, DataSheet::Bandwidth(sheet.bandwidth));
    match plausibility.verdict {
        PlausibilityVerdict::Plausible => Check::ok(name, finding),
        PlausibilityVerdict::TooLow | PlausibilityVerdict::TooHigh | PlausibilityVerdict::NotJudged => {
            Check::warn(
                name,
                finding,
                "close other programs, switch low power mode off, let the machine cool down, and repeat",
            )
        }
    }
}

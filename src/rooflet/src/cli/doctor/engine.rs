//! Checks of the engine.

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
            let remedy = "rebuild rooflet, and keep mlx.metallib next to the binary";
            return vec![Check::fail("engine", err.to_string(), remedy)];
        }
    };
    let mut checks = vec![device];
    checks.extend(kernels());
    checks.push(bandwidth(host, clock, during_load));
    checks
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
            "error {:.1e} (at most {:.0e}), first run {:.0} ms",
            kernel.error,
            kernel.tolerance,
            kernel.first_run.as_secs_f64() * 1e3
        );
        match kernel.is_correct() {
            true => Check::ok(kernel.name, finding),
            false => Check::fail(kernel.name, finding, remedy),
        }
    });
    checks.collect()
}

/// Measures the memory bandwidth and compares it with the data sheet.
#[cfg(feature = "mlx")]
fn bandwidth(host: &Host, clock: &Clock, during_load: &mut dyn FnMut()) -> Check {
    use rooflet_api::v1alpha1::PlausibilityVerdict;
    use rooflet_base::units::BytesPerSecond;
    use rooflet_mlx::probe::{self, ProbeOptions};
    use rooflet_roofline::chip;
    use rooflet_roofline::probing::{self, DataSheet};

    let name = "memory bandwidth";
    let memory = host.memory();
    let usable = memory
        .working_set
        .map_or(memory.available, |limit| limit.min(memory.available));
    let options = ProbeOptions {
        memory: usable,
        sustained: None,
    };
    let measurements = match probe::measure(options, clock, |_| during_load()) {
        Ok((_, measurements)) => measurements,
        Err(err) => return Check::fail(name, err.to_string(), "close other programs that use the GPU"),
    };
    let read = BytesPerSecond(measurements.read.median_bytes_per_second);
    let sheet = chip::of_machine(&host.identity().chip, memory.total);
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

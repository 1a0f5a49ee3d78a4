//! Text output of the probe: grouped figures and notes.

use crate::cli::ui::Table;
use crate::cli::ui::digits::three_digits;
use rooflet_api::v1alpha1::{Figure, Measurements, PlausibilityVerdict, PowerSource, Spread, ThermalState};
use rooflet_api::wire::ProbeReport;
use rooflet_base::units::Bytes;
use rooflet_roofline::probing;

/// Mark of an unsteady figure. A note below the table explains it.
const UNSTEADY: &str = "*";

pub(super) fn render(report: &ProbeReport) -> String {
    let mut text = heading(report);
    text.push('\n');
    text.push_str(&figures(&report.measurements));
    text.push('\n');
    for note in notes(report) {
        text.push_str(&note);
        text.push('\n');
    }
    text
}

fn heading(report: &ProbeReport) -> String {
    let (title, subtitle) = titles(report);
    let machine = &report.machine;
    format!(
        "{title}, {} ({})\n{subtitle}, valid until {}\n",
        machine.operating_system, machine.os_build, report.expires_at,
    )
}

/// Returns the title and the subtitle: machine, engine and time of the measurement.
pub(super) fn titles(report: &ProbeReport) -> (String, String) {
    let (machine, engine) = (&report.machine, &report.engine);
    let cores = machine
        .chip
        .gpu_cores
        .map(|cores| format!(", {cores} GPU cores"))
        .unwrap_or_default();
    (
        format!("{}{cores}, {}", machine.chip.name, Bytes(machine.memory_bytes)),
        format!(
            "{} {} on {}, measured {}",
            engine.name, engine.version, engine.device, report.measured_at
        ),
    )
}

struct Figures(Table);

impl Figures {
    fn new() -> Self {
        Self(Table::new(["", "MEDIAN", "P10", "P90", "SAMPLES", "BUFFERS"]))
    }

    fn bytes(&mut self, name: &str, figure: &Figure) {
        let rate = gigabytes_per_second;
        self.0.add_row([
            name.to_owned(),
            marked(rate(figure.median_bytes_per_second), figure.steady),
            rate(figure.p10_bytes_per_second),
            rate(figure.p90_bytes_per_second),
            figure.samples.to_string(),
            format!("{} x {}", figure.buffers, Bytes(figure.buffer_bytes)),
        ]);
    }

    fn spread(&mut self, name: &str, spread: &Spread, show: fn(f64) -> String) {
        self.0.add_row([
            name.to_owned(),
            marked(show(spread.median), spread.steady),
            show(spread.p10),
            show(spread.p90),
            spread.samples.to_string(),
            String::new(),
        ]);
    }
}

fn marked(text: String, steady: bool) -> String {
    if steady { text } else { text + UNSTEADY }
}

fn figures(measured: &Measurements) -> String {
    let mut table = Figures::new();
    table.bytes("memory read", &measured.read);
    if let Some(copy) = &measured.copy {
        table.bytes("memory copy", copy);
    }
    if let Some(triad) = &measured.triad {
        table.bytes("memory triad", triad);
    }
    table.bytes("decode, 4-bit", &measured.qmv);
    for quantized in &measured.quantized {
        let mut name = format!("decode, {}-bit", quantized.bits);
        if quantized.batch > 1 {
            name.push_str(&format!(", batch {}", quantized.batch));
        }
        table.bytes(&name, &quantized.figure);
    }
    for attention in &measured.attention {
        let name = format!("attention, {} queries/key", attention.queries_per_key);
        table.bytes(&name, &attention.figure);
    }
    if let Some(launch) = &measured.launch_seconds {
        table.spread("one launch", launch, microseconds);
    }
    if let Some(round_trip) = &measured.round_trip_seconds {
        table.spread("one round trip", round_trip, microseconds);
    }
    for layer in &measured.layers {
        let name = format!("small kernels, width {}", layer.hidden_size);
        table.spread(&name, &layer.seconds, microseconds);
    }
    if let Some(matmul) = &measured.matmul_flops_per_second {
        table.spread("matrix product", matmul, flops);
    }
    if let Some(matmul) = &measured.quantized_matmul_flops_per_second {
        table.spread("prefill, 4-bit", matmul, flops);
    }
    if let Some(disk) = &measured.disk_read {
        table.bytes("disk read", &disk.figure);
    }
    format!("{}\n", table.0)
}

/// Formats a rate with three digits, because slow engines have rates far below 1 GB/s.
pub(super) fn gigabytes_per_second(bytes_per_second: f64) -> String {
    format!("{} GB/s", three_digits(bytes_per_second / 1e9, 3))
}

fn microseconds(seconds: f64) -> String {
    format!("{:.1} µs", seconds * 1e6)
}

/// Formats operations per second with three digits.
pub(super) fn flops(per_second: f64) -> String {
    match per_second {
        _ if per_second >= 1e12 => format!("{} TFLOPS", three_digits(per_second / 1e12, 3)),
        _ => format!("{} GFLOPS", three_digits(per_second / 1e9, 3)),
    }
}

fn notes(report: &ProbeReport) -> Vec<String> {
    let measured = &report.measurements;
    let mut notes = Vec::new();
    let verdict = match report.plausibility.verdict {
        PlausibilityVerdict::Plausible => "plausible",
        PlausibilityVerdict::TooLow => "TOO LOW",
        PlausibilityVerdict::TooHigh => "TOO HIGH",
        PlausibilityVerdict::NotJudged => "not judged",
    };
    notes.push(format!("{verdict}: {}", report.plausibility.message));
    if let Some(sustained) = &measured.sustained {
        notes.push(format!(
            "sustained: after {:.0} s the 4-bit products run at {:.0} % of their initial speed ({} of {})",
            sustained.seconds,
            sustained.thermal_factor * 100.0,
            gigabytes_per_second(sustained.last_bytes_per_second),
            gigabytes_per_second(sustained.first_bytes_per_second),
        ));
    }
    if let Some(disk) = &measured.disk_read {
        let source = if disk.past_cache {
            "bypassing the page cache"
        } else {
            "possibly from the page cache"
        };
        notes.push(format!("disk: read {} {source}", disk.path));
    }
    if measured.sizes_reduced {
        notes.push(
            "reduced buffer sizes: the engine is slow or memory is low; a full probe uses 2 GiB per figure"
                .to_owned(),
        );
    }
    if !all_steady(measured) {
        notes.push(format!(
            "{UNSTEADY} unsteady in two attempts: (p90 - p10) / median is above 5 %; other programs were using the machine"
        ));
    }
    if let Some(why) = probing::disturbance(measured) {
        notes.push(format!(
            "other programs used the machine ({why}): predictions from these figures may be too low"
        ));
    }
    notes.extend(power(measured));
    notes
}

fn power(measured: &Measurements) -> Option<String> {
    let heat = match measured.thermal_state {
        ThermalState::Unknown => None,
        ThermalState::Nominal => Some("cool"),
        ThermalState::Fair => Some("warm"),
        ThermalState::Serious => Some("hot and throttled"),
        ThermalState::Critical => Some("very hot and strongly throttled"),
    };
    let source = match measured.power_source {
        PowerSource::Unknown => None,
        PowerSource::Ac => Some("on mains power"),
        PowerSource::Battery => Some("on battery"),
        PowerSource::Ups => Some("on an uninterruptible power supply"),
    };
    let saving = (measured.low_power_mode == Some(true)).then_some("in low power mode");
    let parts: Vec<_> = [heat, source, saving].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("the machine was {}", parts.join(", ")))
}

fn all_steady(measured: &Measurements) -> bool {
    let figures = [Some(&measured.read), Some(&measured.qmv)]
        .into_iter()
        .chain([measured.copy.as_ref(), measured.triad.as_ref()])
        .flatten()
        .chain(measured.quantized.iter().map(|quantized| &quantized.figure))
        .chain(measured.attention.iter().map(|attention| &attention.figure))
        .chain(measured.disk_read.iter().map(|disk| &disk.figure));
    let spreads = [
        &measured.launch_seconds,
        &measured.round_trip_seconds,
        &measured.matmul_flops_per_second,
        &measured.quantized_matmul_flops_per_second,
    ];
    let spreads = spreads
        .into_iter()
        .flatten()
        .chain(measured.layers.iter().map(|layer| &layer.seconds));
    figures.into_iter().all(|figure| figure.steady) && spreads.into_iter().all(|spread| spread.steady)
}

//! The bandwidth probe, with its spread and the data sheet.

use rooflet_api::v1alpha1::{Figure, PlausibilityVerdict};
use rooflet_base::clock::Clock;
use rooflet_base::units::BytesPerSecond;
use rooflet_host::Host;
use rooflet_mlx::probe::{self, ProbeOptions};
use rooflet_roofline::chip;
use rooflet_roofline::probing::{self, DataSheet};

use super::check::{Check, Group, Status};

/// Measures the bandwidth of reads and of products with 4-bit weights.
pub(super) fn run(host: &Host, clock: &Clock, report: &mut dyn FnMut(Check)) {
    let memory = host.memory();
    let usable = memory
        .working_set
        .map_or(memory.available, |limit| limit.min(memory.available));
    let options = ProbeOptions {
        memory: usable,
        sustained: None,
    };
    let measured = probe::measure(options, clock, |_| {});
    let (_, measurements) = match measured {
        Ok(measured) => measured,
        Err(err) => return report(Check::failed(Group::Probe, "memory bandwidth", err)),
    };
    let sheet = chip::of_machine(&host.identity().chip, memory.total).ok();
    let sheet = sheet.map(|sheet| sheet.bandwidth);
    report(read(&measurements.read, sheet));
    let products = finding(&measurements.qmv);
    report(measured_rate("4-bit products", &measurements.qmv, products));
}

fn read(figure: &Figure, sheet: Option<BytesPerSecond>) -> Check {
    let name = "memory bandwidth";
    let read = BytesPerSecond(figure.median_bytes_per_second);
    let Some(sheet) = sheet else {
        let finding = format!("{}; no data sheet", finding(figure));
        return measured_rate(name, figure, finding);
    };
    let share = 100.0 * read.0 / sheet.0;
    let finding = format!("{}: {share:.0} % of {sheet} by the data sheet", finding(figure));
    match probing::plausibility(read, DataSheet::Bandwidth(sheet)).verdict {
        PlausibilityVerdict::Plausible | PlausibilityVerdict::NotJudged => {
            measured_rate(name, figure, finding)
        }
        PlausibilityVerdict::TooLow => Check::failed(
            Group::Probe,
            name,
            format!(
                "{finding}: too low. Close other programs, switch low power mode off, let the machine cool down, \
                 and repeat"
            ),
        ),
        PlausibilityVerdict::TooHigh => Check::failed(
            Group::Probe,
            name,
            format!(
                "{finding}: too high. A cache served the reads, the chip is not the one of the data sheet, or the \
                 clock is inaccurate"
            ),
        ),
    }
}

fn measured_rate(name: &str, figure: &Figure, finding: String) -> Check {
    let is_rate = figure.median_bytes_per_second.is_finite() && figure.median_bytes_per_second > 0.0;
    let status = if is_rate { Status::Ok } else { Status::Fail };
    Check::new(Group::Probe, name, status, finding)
}

/// Formats the median and the spread of a figure.
fn finding(figure: &Figure) -> String {
    let rate = |rate: f64| BytesPerSecond(rate).to_string();
    let Figure {
        p10_bytes_per_second: low,
        p90_bytes_per_second: high,
        ..
    } = *figure;
    let unsteady = match figure.steady {
        true => "",
        false => ", unsteady: other programs may use the machine",
    };
    format!(
        "{} ({} to {} in 80 % of {} repetitions{unsteady})",
        rate(figure.median_bytes_per_second),
        rate(low),
        rate(high),
        figure.samples
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(median: f64) -> Figure {
        Figure {
            median_bytes_per_second: median,
            p10_bytes_per_second: median * 0.99,
            p90_bytes_per_second: median * 1.01,
            samples: 20,
            steady: true,
            ..Figure::default()
        }
    }

    #[test]
    fn rates_far_from_the_data_sheet_fail() {
        let sheet = Some(BytesPerSecond(400e9));
        let status = |rate| read(&figure(rate), sheet).status;
        assert_eq!(
            [status(350e9), status(50e9), status(900e9)],
            [Status::Ok, Status::Fail, Status::Fail]
        );
        assert_eq!(read(&figure(50e9), None).status, Status::Ok);
        assert_eq!(read(&figure(f64::NAN), None).status, Status::Fail);
    }

    #[test]
    fn finding_states_the_spread() {
        let text = finding(&figure(100e9));
        assert!(text.contains("99.0 GB/s to 101 GB/s in 80 % of 20"), "{text}");
    }
}

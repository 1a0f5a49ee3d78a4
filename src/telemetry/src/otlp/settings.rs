//! Settings of the exporters, from the standard variables. A signal's own variable overrides the
//! one for all signals.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_sdk::trace::Sampler;
use reqwest::Url;

use rooflet_base::percent;

/// Names of a signal's variables.
#[derive(Debug)]
struct Signal {
    path: &'static str,
    exporter: &'static str,
    endpoint: &'static str,
    protocol: &'static str,
    headers: &'static str,
    timeout: &'static str,
}

const TRACES: Signal = Signal {
    path: "v1/traces",
    exporter: "OTEL_TRACES_EXPORTER",
    endpoint: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    headers: "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    timeout: "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
};

const METRICS: Signal = Signal {
    path: "v1/metrics",
    exporter: "OTEL_METRICS_EXPORTER",
    endpoint: "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    headers: "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    timeout: "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
};

/// Encoding of an export request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// Collector of a signal, and the resource attributes of this process.
#[derive(Debug, PartialEq)]
pub(super) struct Destination {
    pub(super) endpoint: Url,
    pub(super) encoding: Encoding,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) resource: Vec<(String, String)>,
}

/// Settings of the span exporter.
#[derive(Debug)]
pub(super) struct TraceSettings {
    pub(super) destination: Destination,
    pub(super) sampler: Sampler,
    /// Capacity of the queue. Further spans are dropped.
    pub(super) queue_spans: usize,
    /// Maximum number of spans in a batch.
    pub(super) batch_spans: usize,
    /// Maximum delay before a batch is exported.
    pub(super) delay: Duration,
}

/// Settings of the metric exporter.
#[derive(Debug, PartialEq)]
pub(super) struct MetricSettings {
    pub(super) destination: Destination,
    pub(super) interval: Duration,
}

/// Unsupported value of a variable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: `{value}` is not {expected}")]
pub(super) struct SettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl TraceSettings {
    /// Returns `None` if traces are not exported.
    pub(super) fn read(
        service: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let Some(destination) = Destination::read(&TRACES, service, &lookup)? else {
            return Ok(None);
        };
        let text = |name: &'static str| variable(&lookup, name);
        let queue_spans = number(text("OTEL_BSP_MAX_QUEUE_SIZE"), 2048)?.max(1);
        Ok(Some(Self {
            destination,
            sampler: sampler(text("OTEL_TRACES_SAMPLER"), text("OTEL_TRACES_SAMPLER_ARG"))?,
            queue_spans,
            batch_spans: number(text("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), 512)?.clamp(1, queue_spans),
            delay: milliseconds(text("OTEL_BSP_SCHEDULE_DELAY"), 5000)?,
        }))
    }
}

impl MetricSettings {
    /// Returns `None` if metrics are not exported.
    pub(super) fn read(
        service: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let Some(destination) = Destination::read(&METRICS, service, &lookup)? else {
            return Ok(None);
        };
        let text = |name: &'static str| variable(&lookup, name);
        if let Some((variable, value)) = text("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
            && !value.eq_ignore_ascii_case("cumulative")
        {
            let expected = "cumulative, the only supported temporality";
            return Err(SettingsError {
                variable,
                value,
                expected,
            });
        }
        Ok(Some(Self {
            destination,
            interval: milliseconds(text("OTEL_METRIC_EXPORT_INTERVAL"), 60_000)?
                .max(Duration::from_millis(1)),
        }))
    }
}

impl Destination {
    fn read(
        signal: &Signal,
        service: &str,
        lookup: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let text = |name: &'static str| variable(lookup, name);
        let any = |of_one, of_all| text(of_one).or_else(|| text(of_all));
        let is_off = text("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"))
            || text(signal.exporter).is_some_and(|(_, value)| value == "none");
        let endpoint = any(signal.endpoint, ENDPOINT_OF_ALL);
        let Some((variable, value)) = endpoint.filter(|_| !is_off) else {
            return Ok(None);
        };
        let endpoint = endpoint_url(signal, variable, &value)?;
        let encoding = encoding(any(signal.protocol, "OTEL_EXPORTER_OTLP_PROTOCOL"))?;
        let mut resource = vec![
            ("service.name".to_owned(), service.to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if let Some((variable, value)) = text("OTEL_RESOURCE_ATTRIBUTES") {
            pairs(variable, &value)?
                .into_iter()
                .for_each(|(name, value)| set(&mut resource, name, value));
        }
        if let Some((_, name)) = text("OTEL_SERVICE_NAME") {
            set(&mut resource, "service.name".to_owned(), name);
        }
        let headers = any(signal.headers, "OTEL_EXPORTER_OTLP_HEADERS");
        Ok(Some(Self {
            endpoint,
            encoding,
            headers: headers.map_or(Ok(HeaderMap::new()), |(variable, value)| {
                header_map(variable, &value)
            })?,
            timeout: milliseconds(any(signal.timeout, "OTEL_EXPORTER_OTLP_TIMEOUT"), 10_000)?,
            resource,
        }))
    }
}

const ENDPOINT_OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Name and value of a variable that is set.
type Variable = (&'static str, String);

/// Returns a variable unless it is empty: the standard treats empty variables as unset.
fn variable(lookup: &impl Fn(&str) -> Option<String>, name: &'static str) -> Option<Variable> {
    Some((name, lookup(name).filter(|text| !text.trim().is_empty())?))
}

/// Appends the signal's path to the endpoint for all signals.
fn endpoint_url(signal: &Signal, variable: &'static str, value: &str) -> Result<Url, SettingsError> {
    let url = match variable {
        ENDPOINT_OF_ALL => format!("{}/{}", value.trim().trim_end_matches('/'), signal.path),
        _ => value.trim().to_owned(),
    };
    Url::parse(&url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| SettingsError {
            variable,
            value: value.to_owned(),
            expected: "a URL of http or https",
        })
}

fn encoding(variable: Option<Variable>) -> Result<Encoding, SettingsError> {
    let Some((variable, value)) = variable else {
        return Ok(Encoding::Json);
    };
    match value.as_str() {
        "http/json" => Ok(Encoding::Json),
        "http/protobuf" => Ok(Encoding::Protobuf),
        _ => Err(SettingsError {
            variable,
            value,
            expected: "http/json or http/protobuf",
        }),
    }
}

fn sampler(name: Option<Variable>, ratio: Option<Variable>) -> Result<Sampler, SettingsError> {
    let Some((variable, value)) = name else {
        return Ok(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
    };
    let root = match value.strip_prefix("parentbased_").unwrap_or(&value) {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(sampling_ratio(ratio)?),
        _ => {
            let expected = "always_on, always_off, traceidratio, or one of these after parentbased_";
            return Err(SettingsError {
                variable,
                value,
                expected,
            });
        }
    };
    Ok(match value.starts_with("parentbased_") {
        true => Sampler::ParentBased(Box::new(root)),
        false => root,
    })
}

/// Returns the share of sampled traces, from 0 to 1. Default: 1.
fn sampling_ratio(variable: Option<Variable>) -> Result<f64, SettingsError> {
    let Some((variable, value)) = variable else {
        return Ok(1.0);
    };
    let ratio = value.trim().parse().ok();
    let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or(SettingsError {
        variable,
        value,
        expected: "a number from 0 to 1",
    })
}

fn number(variable: Option<Variable>, default: usize) -> Result<usize, SettingsError> {
    let Some((variable, value)) = variable else {
        return Ok(default);
    };
    // Bounds the memory of the span queue.
    let number = value.trim().parse().ok().filter(|number| *number <= 1_000_000);
    number.ok_or(SettingsError {
        variable,
        value,
        expected: "a whole number up to 1000000",
    })
}

fn milliseconds(variable: Option<Variable>, default: usize) -> Result<Duration, SettingsError> {
    number(variable, default).map(|number| Duration::from_millis(number as u64))
}

/// Parses `name=value,name=value` with the percent-encoding of W3C Baggage.
fn pairs(variable: &'static str, value: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let invalid = || SettingsError {
        variable,
        // The value may be a secret.
        value: "…".to_owned(),
        expected: "a list such as name=value,name=value",
    };
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').ok_or_else(invalid)?;
        let unescaped = |text: &str| percent::decode(text.trim()).ok_or_else(invalid);
        Ok((unescaped(name)?, unescaped(value)?))
    };
    let texts = value.split(',').filter(|text| !text.trim().is_empty());
    texts.map(pair).collect()
}

fn header_map(variable: &'static str, value: &str) -> Result<HeaderMap, SettingsError> {
    let header = |(name, value): (String, String)| {
        let name = HeaderName::try_from(name).ok()?;
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    };
    let headers = pairs(variable, value)?.into_iter().map(header);
    headers.collect::<Option<HeaderMap>>().ok_or(SettingsError {
        variable,
        value: "…".to_owned(),
        expected: "a list of headers such as name=value,name=value",
    })
}

fn set(resource: &mut Vec<(String, String)>, name: String, value: String) {
    match resource.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None => resource.push((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    fn read(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, SettingsError> {
        TraceSettings::read("rooflet-worker", lookup(variables))
    }

    fn read_metrics(variables: &[(&str, &str)]) -> Result<Option<MetricSettings>, SettingsError> {
        MetricSettings::read("rooflet-worker", lookup(variables))
    }

    #[test]
    fn exports_nothing_without_an_endpoint_or_when_disabled() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap().is_none());
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            let settings = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), off]);
            assert!(settings.unwrap().is_none(), "{off:?}");
        }
    }

    #[test]
    fn configures_each_signal_independently() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let off = ("OTEL_METRICS_EXPORTER", "none");
        assert_eq!(read_metrics(&[endpoint, off]), Ok(None));
        assert!(read(&[endpoint, off]).unwrap().is_some());
        let off = ("OTEL_TRACES_EXPORTER", "none");
        let settings = read_metrics(&[endpoint, off]).unwrap().unwrap();
        assert_eq!(settings.destination.endpoint.as_str(), "http://c:4318/v1/metrics");
        assert_eq!(settings.interval, Duration::from_secs(60));
        let own = [
            endpoint,
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m:9/otlp"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=b"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=c"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Cumulative"),
        ];
        let settings = read_metrics(&own).unwrap().unwrap();
        assert_eq!(settings.destination.endpoint.as_str(), "http://m:9/otlp");
        assert_eq!(settings.destination.headers["a"], "b");
        assert_eq!(settings.interval, Duration::from_millis(500));
    }

    /// The examples of the OTLP exporter's specification.
    #[test]
    fn appends_the_signal_path_to_the_common_endpoint() {
        let endpoint =
            |variables: &[(&str, &str)]| read(variables).unwrap().unwrap().destination.endpoint.to_string();
        let all = (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://collector:4318/mycollector/",
        );
        assert_eq!(endpoint(&[all]), "http://collector:4318/mycollector/v1/traces");
        let traces = (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://collector.example.com/",
        );
        assert_eq!(endpoint(&[all, traces]), "http://collector.example.com/");
    }

    #[test]
    fn reads_all_supported_variables() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-tenant=7"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=ignored,deployment.environment.name=test",
            ),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ])
        .unwrap()
        .unwrap();
        assert_eq!(settings.destination.headers["api-key"], "a b");
        assert_eq!(settings.destination.headers["x-tenant"], "7");
        assert_eq!(settings.destination.timeout, Duration::from_millis(2500));
        assert_eq!(settings.destination.encoding, Encoding::Protobuf);
        assert_eq!(
            format!("{:?}", settings.sampler),
            "ParentBased(TraceIdRatioBased(0.25))"
        );
        assert_eq!((settings.queue_spans, settings.batch_spans), (10, 10));
        let value = |name: &str| {
            settings
                .destination
                .resource
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(value("service.name"), "mine");
        assert_eq!(value("deployment.environment.name"), "test");
    }

    #[test]
    fn error_names_the_variable_and_hides_secrets() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_SAMPLER", "parentbased_"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ] {
            let message = read(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/xml"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ] {
            let message = read_metrics(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}

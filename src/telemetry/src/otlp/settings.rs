//! What the standard variables say. Those of one signal go before those of all.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;

use crate::trace::Sampler;
use rooflet_base::percent;

/// What is exported, by the names that its variables have.
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

/// Where a signal goes, and from whom.
#[derive(Debug, PartialEq)]
pub(super) struct Destination {
    pub(super) endpoint: Url,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    /// Who we are.
    pub(super) resource: Vec<(String, String)>,
}

/// How spans are exported.
#[derive(Debug, PartialEq)]
pub(super) struct TraceSettings {
    pub(super) destination: Destination,
    pub(super) sampler: Sampler,
    /// Spans that may wait.
    pub(super) queue_spans: usize,
    /// Spans that go together.
    pub(super) batch_spans: usize,
    /// The longest that one waits for others to go with.
    pub(super) delay: Duration,
}

/// How measurements are exported.
#[derive(Debug, PartialEq)]
pub(super) struct MetricSettings {
    pub(super) destination: Destination,
    pub(super) interval: Duration,
}

/// A variable that cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: `{value}` is not {expected}")]
pub(super) struct SettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl TraceSettings {
    /// `None` where no traces are wanted.
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
    /// `None` where no metrics are wanted.
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
            let expected = "cumulative, which is all that is told here";
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
        if let Some((variable, value)) = any(signal.protocol, "OTEL_EXPORTER_OTLP_PROTOCOL")
            && value != "http/json"
        {
            let expected = "http/json, which is all that is spoken here";
            return Err(SettingsError {
                variable,
                value,
                expected,
            });
        }
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
            headers: headers.map_or(Ok(HeaderMap::new()), |(variable, value)| {
                header_map(variable, &value)
            })?,
            timeout: milliseconds(any(signal.timeout, "OTEL_EXPORTER_OTLP_TIMEOUT"), 10_000)?,
            resource,
        }))
    }
}

const ENDPOINT_OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A variable that is set, and its value.
type Variable = (&'static str, String);

/// An empty one is as good as none, says the standard.
fn variable(lookup: &impl Fn(&str) -> Option<String>, name: &'static str) -> Option<Variable> {
    Some((name, lookup(name).filter(|text| !text.trim().is_empty())?))
}

/// The endpoint of all signals has a path of its own for each.
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

fn sampler(name: Option<Variable>, share: Option<Variable>) -> Result<Sampler, SettingsError> {
    let Some((variable, value)) = name else {
        return Ok(Sampler {
            share: 1.0,
            asks_caller: true,
        });
    };
    let (kind, asks_caller) = match value.strip_prefix("parentbased_") {
        Some(kind) => (kind, true),
        None => (value.as_str(), false),
    };
    let share = match kind {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match share {
            None => 1.0,
            Some((variable, value)) => {
                let share = value.trim().parse().ok();
                share
                    .filter(|share| (0.0..=1.0).contains(share))
                    .ok_or(SettingsError {
                        variable,
                        value,
                        expected: "a number from 0 to 1",
                    })?
            }
        },
        _ => {
            let expected = "always_on, always_off, traceidratio, or one of them behind parentbased_";
            return Err(SettingsError {
                variable,
                value,
                expected,
            });
        }
    };
    Ok(Sampler { share, asks_caller })
}

fn number(variable: Option<Variable>, default: usize) -> Result<usize, SettingsError> {
    let Some((variable, value)) = variable else {
        return Ok(default);
    };
    // More would be memory, not patience.
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

/// `name=value,name=value`, escaped as in W3C Baggage.
fn pairs(variable: &'static str, value: &str) -> Result<Vec<(String, String)>, SettingsError> {
    let invalid = || SettingsError {
        variable,
        // It may be a secret.
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
    fn nothing_is_exported_unasked() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(
                read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), off]),
                Ok(None)
            );
        }
    }

    #[test]
    fn each_signal_is_exported_or_not_on_its_own() {
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
    fn the_endpoint_of_all_signals_has_a_path_for_each() {
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
    fn variables_are_followed() {
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
        ])
        .unwrap()
        .unwrap();
        assert_eq!(settings.destination.headers["api-key"], "a b");
        assert_eq!(settings.destination.headers["x-tenant"], "7");
        assert_eq!(settings.destination.timeout, Duration::from_millis(2500));
        assert_eq!(
            settings.sampler,
            Sampler {
                share: 0.25,
                asks_caller: true
            }
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
    fn a_variable_that_cannot_be_followed_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ] {
            let message = read(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ] {
            let message = read_metrics(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}

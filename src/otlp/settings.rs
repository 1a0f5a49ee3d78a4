//! What the standard variables say. Those of traces go before those of all signals.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;

use crate::trace::Sampler;

/// See the module's text.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) endpoint: Url,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    /// Who we are.
    pub(super) resource: Vec<(String, String)>,
    /// Spans that may wait.
    pub(super) queue_spans: usize,
    /// Spans that go together.
    pub(super) batch_spans: usize,
    /// The longest that one waits for others to go with.
    pub(super) delay: Duration,
}

/// A variable that cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: `{value}` is not {expected}")]
pub(super) struct SettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl Settings {
    /// `None` where no traces are wanted.
    pub(super) fn read(
        service: &str,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        // An empty one is as good as none, says the standard.
        let text = |name: &'static str| Some((name, lookup(name).filter(|text| !text.trim().is_empty())?));
        let any = |of_traces, of_all| text(of_traces).or_else(|| text(of_all));
        let is_off = text("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"))
            || text("OTEL_TRACES_EXPORTER").is_some_and(|(_, value)| value == "none");
        let endpoint = any(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        );
        let Some((variable, value)) = endpoint.filter(|_| !is_off) else {
            return Ok(None);
        };
        if let Some((variable, value)) = any(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ) && value != "http/json"
        {
            let expected = "http/json, which is all that is spoken here";
            return Err(SettingsError {
                variable,
                value,
                expected,
            });
        }
        let endpoint = endpoint_url(variable, &value)?;
        let headers = any("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS");
        let timeout = any("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
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
        let queue_spans = number(text("OTEL_BSP_MAX_QUEUE_SIZE"), 2048)?.max(1);
        Ok(Some(Self {
            endpoint,
            headers: headers.map_or(Ok(HeaderMap::new()), |(variable, value)| {
                header_map(variable, &value)
            })?,
            timeout: Duration::from_millis(number(timeout, 10_000)? as u64),
            sampler: sampler(text("OTEL_TRACES_SAMPLER"), text("OTEL_TRACES_SAMPLER_ARG"))?,
            resource,
            queue_spans,
            batch_spans: number(text("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), 512)?.clamp(1, queue_spans),
            delay: Duration::from_millis(number(text("OTEL_BSP_SCHEDULE_DELAY"), 5000)? as u64),
        }))
    }
}

/// A variable that is set, and its value.
type Variable = (&'static str, String);

/// The endpoint of all signals has a path of its own for each.
fn endpoint_url(variable: &'static str, value: &str) -> Result<Url, SettingsError> {
    let url = match variable {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => format!("{}/v1/traces", value.trim().trim_end_matches('/')),
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
        let unescaped = |text: &str| unescape(text.trim()).ok_or_else(invalid);
        Ok((unescaped(name)?, unescaped(value)?))
    };
    let texts = value.split(',').filter(|text| !text.trim().is_empty());
    texts.map(pair).collect()
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match first {
            b'%' => {
                let digits = rest.get(..2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = &rest[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
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

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read("rooflet-worker", lookup)
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

    /// The examples of the OTLP exporter's specification.
    #[test]
    fn the_endpoint_of_all_signals_has_a_path_for_each() {
        let endpoint = |variables: &[(&str, &str)]| read(variables).unwrap().unwrap().endpoint.to_string();
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
        assert_eq!(settings.headers["api-key"], "a b");
        assert_eq!(settings.headers["x-tenant"], "7");
        assert_eq!(settings.timeout, Duration::from_millis(2500));
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
    }
}

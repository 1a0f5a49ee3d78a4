//! Queries of Prometheus for the history of more than 24 hours. The server makes the queries: a user
//! selects an object that the user may read, never a query.

use std::time::Duration;

use camino::Utf8PathBuf;
use futures::future::try_join_all;
use jiff::Timestamp;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::WebError;
use rooflet_base::error::Chain;
use rooflet_base::loopback;

/// Longest duration of a query.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of an answer. A series has about 30 bytes per point.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Points of a series, at most.
const MAX_POINTS: u64 = 720;
/// Shortest interval of points, in seconds.
const MIN_STEP: u64 = 60;
/// Longest history, in hours: 90 days.
const MAX_HOURS: u64 = 90 * 24;

/// Base URL of a Prometheus, with or without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusUrl(Url);

/// Error: the text is not the URL of a Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a URL without user, query and fragment, such as http://127.0.0.1:9090")]
pub struct InvalidPrometheusUrl;

impl std::str::FromStr for PrometheusUrl {
    type Err = InvalidPrometheusUrl;

    fn from_str(text: &str) -> Result<Self, InvalidPrometheusUrl> {
        let mut url: Url = text.parse().map_err(|_| InvalidPrometheusUrl)?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() || !is_plain {
            return Err(InvalidPrometheusUrl);
        }
        let path = format!("{}/", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Ok(Self(url))
    }
}

/// Prometheus that scrapes the fleet.
#[derive(Debug, Clone)]
pub struct PrometheusConfig {
    pub url: PrometheusUrl,
    /// File with a bearer token. It is read for each query, because tokens are renewed.
    pub token_file: Option<Utf8PathBuf>,
}

/// Connection to Prometheus.
pub(crate) struct Prometheus {
    config: PrometheusConfig,
    client: Client,
}

/// Object with a history.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    Deployment { namespace: &'a str, name: &'a str },
    Node(&'a str),
}

impl Subject<'_> {
    /// Returns the name of each series and its query. Names of objects contain no quotes and no
    /// backslashes. `max` joins the series of several controllers, of which one leads.
    fn queries(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Deployment { namespace, name } => {
                let object = format!("namespace=\"{namespace}\",deployment=\"{name}\"");
                let replicas = |metric: &str, kind: &str| {
                    format!("avg(max by (replica) (rooflet_replica_{metric}{{{object},kind=\"{kind}\"}}))")
                };
                let throughput = |kind: &str| {
                    let metric = "rooflet_deployment_throughput_tokens_per_second";
                    format!("max({metric}{{{object},kind=\"{kind}\"}})")
                };
                let ready = format!("max(rooflet_deployment_replicas{{{object},state=\"ready\"}})");
                vec![
                    ("readyReplicas", ready),
                    (
                        "measuredTokensPerSecond",
                        replicas("tokens_per_second", "measured"),
                    ),
                    (
                        "predictedTokensPerSecond",
                        replicas("tokens_per_second", "predicted"),
                    ),
                    (
                        "measuredTimeToFirstTokenSeconds",
                        replicas("time_to_first_token_seconds", "measured"),
                    ),
                    (
                        "predictedTimeToFirstTokenSeconds",
                        replicas("time_to_first_token_seconds", "predicted"),
                    ),
                    ("throughputTokensPerSecond", throughput("predicted")),
                    ("floorTokensPerSecond", throughput("floor")),
                ]
            }
            Self::Node(node) => {
                let bandwidth = |kind: &str| {
                    let metric = "rooflet_node_bandwidth_bytes_per_second";
                    format!("max({metric}{{node=\"{node}\",kind=\"{kind}\"}})")
                };
                vec![
                    // The metric has the bandwidth of decoding, and the history of the controller that of reads.
                    ("decodeBytesPerSecond", bandwidth("measured")),
                    ("nominalBytesPerSecond", bandwidth("nominal")),
                ]
            }
        }
    }
}

/// Times of the points of a history, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    start: u64,
    step: u64,
    points: u64,
}

impl Grid {
    /// Returns the times of the last `hours` before `now`. The times are multiples of the step, so that a
    /// later query has the same times.
    fn new(hours: u64, now: Timestamp) -> Self {
        let seconds = hours * 3600;
        let step = seconds.div_ceil(MAX_POINTS).div_ceil(MIN_STEP).max(1) * MIN_STEP;
        let end = u64::try_from(now.as_second()).unwrap_or_default() / step;
        let points = (seconds / step).min(end);
        Self {
            start: (end - points) * step,
            step,
            points: points + 1,
        }
    }

    fn end(self) -> u64 {
        self.start + (self.points - 1) * self.step
    }

    /// Returns the place of a time.
    fn place(self, time: f64) -> Option<usize> {
        let place = (time - self.start as f64) / self.step as f64;
        let is_point = place.fract() == 0.0 && place >= 0.0 && place < self.points as f64;
        is_point.then_some(place as usize)
    }
}

/// Answer of Prometheus to a range query.
#[derive(Deserialize)]
struct Answer {
    data: Option<Matrix>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    values: Vec<(f64, String)>,
}

/// Parses the hours of a request.
pub(crate) fn parse_hours(text: &str) -> Result<u64, WebError> {
    let hours = text.parse().ok().filter(|hours| (1..=MAX_HOURS).contains(hours));
    hours.ok_or_else(|| WebError::InvalidRequest(format!("hours: must be an integer from 1 to {MAX_HOURS}")))
}

impl Prometheus {
    pub(crate) fn new(config: PrometheusConfig) -> Result<Self, reqwest::Error> {
        let client = loopback::client_of(&config.url.0)
            .timeout(TIMEOUT)
            // The token is for this server only.
            .redirect(reqwest::redirect::Policy::none());
        Ok(Self {
            client: client.build()?,
            config,
        })
    }

    /// Returns the history of the last `hours` in the form of the controller's history.
    pub(crate) async fn history(
        &self,
        subject: Subject<'_>,
        hours: u64,
        now: Timestamp,
    ) -> Result<Value, WebError> {
        let grid = Grid::new(hours, now);
        let series = subject.queries().into_iter().map(|(name, query)| async move {
            let values = self.range(&query, grid).await?;
            Ok::<_, WebError>((name.to_owned(), json!(values)))
        });
        let series: Map<String, Value> = try_join_all(series).await?.into_iter().collect();
        Ok(json!({"start": grid.start, "stepSeconds": grid.step, "series": series}))
    }

    async fn range(&self, query: &str, grid: Grid) -> Result<Vec<Option<f64>>, WebError> {
        let failed = |what: String| WebError::UpstreamUnreachable {
            upstream: "Prometheus",
            what,
        };
        let mut url = self
            .config
            .url
            .0
            .join("api/v1/query_range")
            .map_err(|err| failed(err.to_string()))?;
        url.query_pairs_mut()
            .append_pair("query", query)
            .append_pair("start", &grid.start.to_string())
            .append_pair("end", &grid.end().to_string())
            .append_pair("step", &grid.step.to_string());
        let mut request = self.client.get(url);
        if let Some(path) = &self.config.token_file {
            let token = tokio::fs::read_to_string(path).await;
            let token =
                token.map_err(|err| failed(format!("reading --prometheus-token-file {path}: {err}")))?;
            request = request.bearer_auth(token.trim());
        }
        let unreachable = |err: reqwest::Error| failed(Chain(&err.without_url()).to_string());
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(failed(format!("the answer exceeds {MAX_ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        let answer: Option<Answer> = serde_json::from_slice(&body).ok();
        match answer {
            Some(Answer {
                data: Some(matrix), ..
            }) if status.is_success() => Ok(values(matrix, grid)),
            Some(Answer { error: Some(why), .. }) => Err(failed(format!("status {status}: {why}"))),
            Some(_) | None => Err(failed(format!(
                "status {status}, and the answer is not that of Prometheus: check --prometheus-url and \
                 --prometheus-token-file"
            ))),
        }
    }
}

/// Returns the values at the times of the grid. Values that are not finite are unknown.
fn values(matrix: Matrix, grid: Grid) -> Vec<Option<f64>> {
    let mut values: Vec<Option<f64>> = (0..grid.points).map(|_| None).collect();
    for (time, value) in matrix.result.into_iter().flat_map(|series| series.values) {
        let value = value.parse().ok().filter(|value: &f64| value.is_finite());
        if let Some(place) = grid.place(time).and_then(|place| values.get_mut(place)) {
            *place = value;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn url_has_a_host_and_no_credentials() {
        for (text, expect) in [
            ("http://127.0.0.1:9090", "http://127.0.0.1:9090/"),
            (
                "https://example.com/prometheus",
                "https://example.com/prometheus/",
            ),
            (
                "https://example.com/prometheus/",
                "https://example.com/prometheus/",
            ),
        ] {
            let url: PrometheusUrl = text.parse().expect(text);
            assert_eq!(url.0.as_str(), expect);
        }
        for wrong in [
            "",
            "127.0.0.1:9090",
            "prometheus:9090",
            "file:///etc/passwd",
            "http://user:secret@example.com",
            "http://example.com/?query=up",
            "http://example.com/#a",
        ] {
            assert_eq!(
                wrong.parse::<PrometheusUrl>(),
                Err(InvalidPrometheusUrl),
                "{wrong}"
            );
        }
    }

    #[test]
    fn points_are_bounded_and_their_times_are_stable() {
        // 168 h are 604800 s: 840 s for each of 720 points.
        let week = Grid::new(168, at(1_000_000_000));
        assert_eq!((week.step, week.points), (840, 721));
        assert_eq!(week.start % 840, 0);
        assert!(week.end() <= 1_000_000_000 && week.end() > 1_000_000_000 - 840);
        assert_eq!(Grid::new(168, at(week.end() as i64 + 839)), week);
        assert_eq!(Grid::new(1, at(1_000_000_000)).step, 60);
        let longest = Grid::new(MAX_HOURS, at(1_000_000_000));
        assert!(longest.points <= MAX_POINTS + 1, "{longest:?}");
        // A clock that was never set.
        assert_eq!(Grid::new(24, at(0)).points, 1);
        for wrong in ["", "0", "-1", "2161", "1.5", "1h"] {
            parse_hours(wrong).unwrap_err();
        }
        assert_eq!(parse_hours("720"), Ok(720));
    }

    #[test]
    fn values_have_the_place_of_their_time() {
        let grid = Grid {
            start: 600,
            step: 60,
            points: 4,
        };
        // Form of https://prometheus.io/docs/prometheus/latest/querying/api/#range-vectors
        let text = r#"{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {},
            "values": [[600, "35.1"], [720, "NaN"], [780.0, "+Inf"], [840, "1"], [601, "2"]]}]}}"#;
        let answer: Answer = serde_json::from_str(text).expect("an answer");
        let matrix = answer.data.expect("data");
        assert_eq!(values(matrix, grid), [Some(35.1), None, None, None]);
        assert_eq!(values(Matrix { result: Vec::new() }, grid), [None; 4]);
    }
}

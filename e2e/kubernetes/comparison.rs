//! Comparison of the API server with kube-apiserver: each request of `requests.txt` is sent to both,
//! and the answers must be equal, except for requests with a reason in the file.
//!
//! A request is a block: method and path, headers, body. Three headers are for the test: `Until`
//! repeats the request until the answer has this status, `Differs` has the reason of a different
//! answer, and `Varies` the reason of an answer that differs in some runs only.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::cluster::{ADMIN_TOKEN, KubernetesCluster};
use crate::harness::{Cluster, Http, HttpResponse, eventually};

const REQUESTS: &str = include_str!("requests.txt");

/// Request of the file.
#[derive(Debug, Default)]
struct Request<'a> {
    method: &'a str,
    path: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Option<String>,
    until: Option<u16>,
    /// Reason of a different answer.
    differs: Option<&'a str>,
    /// Reason of an answer that differs in some runs.
    varies: Option<&'a str>,
}

impl<'a> Request<'a> {
    fn parse(block: &'a str) -> Self {
        let mut lines = block.lines();
        let first = lines.next().and_then(|line| line.split_once(' '));
        let (method, path) = first.expect("a method and a path");
        let mut request = Self {
            method,
            path,
            ..Self::default()
        };
        let mut body: Vec<&str> = Vec::new();
        for line in lines {
            match line
                .split_once(": ")
                .filter(|(name, _)| body.is_empty() && is_header(name))
            {
                Some(("Until", status)) => request.until = status.parse().ok(),
                Some(("Differs", reason)) => request.differs = Some(reason),
                Some(("Varies", reason)) => request.varies = Some(reason),
                Some(header) => request.headers.push(header),
                None => body.push(line),
            }
        }
        request.body = (!body.is_empty()).then(|| body.join("\n"));
        request
    }
}

fn is_header(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
}

/// Server with the token of its administrator.
struct Server {
    http: Http,
    token: String,
}

impl Server {
    fn answer(&self, request: &Request<'_>) -> HttpResponse {
        let Some(until) = request.until else {
            // kube-apiserver starts its cache of a new definition.
            let is_starting = |answer: &HttpResponse| answer.text.contains("storage is (re)initializing");
            return eventually(&format!("an answer for {}", request.path), || {
                match self.send(request).expect("a response") {
                    answer if is_starting(&answer) => Err(answer.text),
                    answer => Ok(answer),
                }
            });
        };
        eventually(&format!("{until} for {}", request.path), || {
            match self.send(request)? {
                answer if answer.status == until => Ok(answer),
                answer => Err(answer.text),
            }
        })
    }

    fn send(&self, request: &Request<'_>) -> Result<HttpResponse, String> {
        let mut headers = request.headers.clone();
        let bearer = format!("Bearer {}", self.token);
        match headers.iter().position(|(name, _)| *name == "Authorization") {
            Some(own) if headers[own].1 == "none" => drop(headers.remove(own)),
            Some(_) => {}
            None => headers.push(("Authorization", &bearer)),
        }
        self.http
            .send_with(request.method, request.path, &headers, request.body.clone())
    }
}

/// Answer without parts that differ between any two servers.
fn normal(answer: &HttpResponse) -> Value {
    let header = |name: &str| {
        let values = answer.headers.get_all(name).iter();
        let texts = values.map(|value| json!(String::from_utf8_lossy(value.as_bytes())));
        texts.collect::<Vec<_>>()
    };
    let body = serde_json::from_str(&answer.text).unwrap_or_else(|_| {
        let frames = answer.text.lines().map(serde_json::from_str);
        match frames.collect() {
            Ok(frames) => Value::Array(frames),
            Err(_) => Value::from(answer.text.as_str()),
        }
    });
    json!({
        "status": answer.status, "type": header("content-type"), "warnings": header("warning"),
        "vary": varies_by(answer), "body": plain(body),
    })
}

/// Returns the headers in `Vary`, sorted. Compression depends on the size of an answer, which may differ.
fn varies_by(answer: &HttpResponse) -> Vec<String> {
    let is_compressed = answer.headers.contains_key("content-encoding");
    let values = answer.headers.get_all("vary").iter();
    let names = values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let mut names: Vec<String> = names
        .filter(|name| !is_compressed || name != "Accept-Encoding")
        .collect();
    names.sort();
    names
}

fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let member = |(name, value): (String, Value)| {
                let value = match (name.as_str(), &value) {
                    ("resourceVersion", Value::String(text)) if text != "0" && text != "x" => json!("RV"),
                    ("storageVersionHash", _) => json!("HASH"),
                    ("continue", Value::String(text)) if !text.is_empty() => json!("TOKEN"),
                    // Sorted by time, or by the order in which controllers acted, which may differ.
                    ("managedFields" | "conditions", Value::Array(entries)) => {
                        let mut entries: Vec<Value> = entries.iter().cloned().map(plain).collect();
                        entries.sort_by_key(Value::to_string);
                        Value::Array(entries)
                    }
                    _ => plain(value),
                };
                (name, value)
            };
            Value::Object(fields.into_iter().map(member).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
        Value::String(text) => Value::from(plain_text(text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn plain_text(text: String) -> String {
    static RULES: LazyLock<[(Regex, &str); 8]> = LazyLock::new(|| {
        [
            (
                r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
                "UID",
            ),
            (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
            (r"^\d+(s|m\d*s?|ms)$", "AGE"),
            (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
            (r"current: \d+", "current: RV"),
            (r"record \(\d+\)", "record (RV)"),
            (r#"(resourceVersion[\\"]*: ?[\\"]*)\d+"#, "${1}RV"),
            (r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+", "TOKEN"),
        ]
        .map(|(pattern, replacement)| (Regex::new(pattern).expect("a pattern"), replacement))
    });
    RULES.iter().fold(text, |text, (pattern, replacement)| {
        pattern.replace_all(&text, *replacement).into_owned()
    })
}

/// Returns the token of the administrator in a kubeconfig.
fn token_in(kubeconfig: &str) -> String {
    let token = kubeconfig.split_once("token:").map(|(_, rest)| rest.trim_start());
    let token = token.and_then(|rest| rest.split_whitespace().next());
    token.expect("a token").trim_matches('"').to_owned()
}

/// Compares the entries of aggregated discovery for the resources that both servers have.
fn compare_discovery(theirs: &Server, ours: &Server) {
    for path in ["/api", "/apis"] {
        let [expected, found] = [theirs, ours].map(|server| discovered(server, path));
        let shared: Vec<&String> = found.keys().filter(|name| expected.contains_key(*name)).collect();
        assert!(shared.len() >= 5, "{path}: {shared:?}");
        for name in shared {
            assert_eq!(found[name], expected[name], "{name} in {path}");
        }
    }
}

/// Returns the resources of aggregated discovery by group, version and plural name.
fn discovered(server: &Server, path: &str) -> BTreeMap<String, Value> {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let request = Request {
        method: "GET",
        path,
        headers: vec![("Accept", accept)],
        ..Request::default()
    };
    let answer = server.answer(&request);
    let list: Value = serde_json::from_str(&answer.text).expect("JSON");
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for group in items(&list["items"]) {
        for version in items(&group["versions"]) {
            for resource in items(&version["resources"]) {
                let name = format!(
                    "{} {} {}",
                    group["metadata"]["name"], version["version"], resource["resource"]
                );
                found.insert(name, resource);
            }
        }
    }
    found
}

#[test]
fn answers_equal_those_of_kube_apiserver() {
    let Some(theirs) = KubernetesCluster::start() else {
        return;
    };
    let Some(ours) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let read = |path: &str| std::fs::read(path).expect("a certificate");
    let their_authority = theirs.scratch.join("certificates/apiserver.crt");
    let theirs = Server {
        http: Http::with_authority(
            format!("https://127.0.0.1:{}", theirs.port),
            &read(&their_authority.display().to_string()),
        ),
        token: ADMIN_TOKEN.to_owned(),
    };
    let kubeconfig = std::fs::read_to_string(ours.scratch.join("kubeconfig")).expect("readable");
    let our_authority = ours.scratch.join("data/ca.pem");
    let ours = Server {
        http: Http::with_authority(
            format!("https://{}", ours.address),
            &read(&our_authority.display().to_string()),
        ),
        token: token_in(&kubeconfig),
    };
    let blocks = REQUESTS
        .split("\n\n")
        .map(str::trim)
        .filter(|block| !block.is_empty() && !block.starts_with("## "));
    let (mut count, mut equal, mut faults) = (0, 0, String::new());
    for block in blocks {
        let request = Request::parse(block);
        let (expected, found) = (normal(&theirs.answer(&request)), normal(&ours.answer(&request)));
        count += 1;
        equal += u32::from(expected == found);
        let fault = match (expected == found, request.differs) {
            (true, None) | (false, Some(_)) => continue,
            _ if request.varies.is_some() => continue,
            (true, Some(_)) => "the answers are equal: remove `Differs`".to_owned(),
            (false, None) => format!("kube-apiserver: {expected:#}\nrooflet: {found:#}"),
        };
        writeln!(faults, "{block}\n{fault}\n").expect("writing to a String cannot fail");
    }
    compare_discovery(&theirs, &ours);
    println!("{equal} of {count} answers are equal");
    assert!(faults.is_empty(), "{faults}");
}

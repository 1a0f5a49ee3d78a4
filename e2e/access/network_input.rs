//! Input from the network that no client of the fleet sends: names with path traversal, and foreign host names.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Cluster, Http, Process, eventually};
use crate::nodes::mutual_tls::decoded;

/// Content of a file beside the data of the processes.
const CANARY: &str = "text-of-a-private-file";
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the bytes of a request, which no library normalizes. Returns the response.
fn raw(address: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
    let request = format!("{head}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    String::from_utf8_lossy(&response).into_owned()
}

/// Starts an agent that listens on loopback. Returns it and its address.
fn agent(cluster: &Cluster) -> (Process, String) {
    let agent = cluster.agent("mini-1", &[]);
    let endpoint = eventually("the node's endpoint", || {
        let found = cluster.kubectl.json("mac/mini-1")?;
        let endpoint = found["status"]["endpoint"].as_str().map(str::to_owned);
        endpoint.ok_or_else(|| found.to_string())
    });
    let address = endpoint.strip_prefix("http://").expect("plain HTTP on loopback");
    (agent, address.to_owned())
}

fn without_scheme(url: &str) -> &str {
    url.split_once("://").expect("a URL").1
}

#[test]
fn names_with_path_traversal_reach_no_file() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let (_agent, agent) = agent(&cluster);
    let names = [
        "canary",
        "canary.log",
        "mini-1/canary",
        "mini-1/canary.log",
        "data/canary",
    ];
    for name in names {
        let path = cluster.scratch.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, CANARY).expect("writable");
    }

    // In URLs, plain and encoded.
    let gateway = without_scheme(cluster.gateway.base()).to_owned();
    let web = without_scheme(&cluster.web).to_owned();
    for up in [
        "..",
        "%2e%2e",
        "..%2f..",
        "%2e%2e%2f%2e%2e",
        "..%5c..",
        "%252e%252e",
        "..%00",
    ] {
        let agents = [
            format!("/replicas/default/{up}/logs"),
            format!("/replicas/{up}/canary/logs"),
            format!("/replicas/{up}/{up}/canary"),
            format!("/replicas/default/{up}%2fcanary/logs"),
            format!("/replicas/default/{up}%2fcanary/proxy/v1/models"),
            format!("/replicas/default/guide/proxy/{up}/{up}/canary"),
            format!("/v1/models/{up}%2fcanary"),
        ];
        let gateways = [
            format!("/v1/models/{up}%2fcanary"),
            format!("/v1/models/{up}/{up}/canary"),
            format!("/v1/responses/{up}%2fcanary"),
            format!("/{up}/{up}/canary"),
        ];
        let pages = [format!("/{up}/canary"), format!("/assets/{up}/{up}/canary")];
        let paths = agents.iter().map(|path| (&agent, path));
        let paths = paths.chain(gateways.iter().map(|path| (&gateway, path)));
        for (address, path) in paths.chain(pages.iter().map(|path| (&web, path))) {
            let response = raw(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}"));
            // An agent answers 503 for a replica that it does not have: the gateway tries another one.
            let is_refused = ["HTTP/1.1 4", "HTTP/1.1 503"]
                .iter()
                .any(|status| response.starts_with(status));
            assert!(is_refused && !response.contains(CANARY), "{path}: {response}");
        }
        let path = format!("/apis/rooflet.dev/v1alpha1/fleetnodes/{up}%2fcanary");
        let why = cluster.kubectl.run(&format!("get --raw {path}")).expect_failure();
        assert!(!why.contains(CANARY), "{path}: {why}");
    }

    // In names of objects.
    for name in [
        "../canary",
        "..",
        ".",
        "a/b",
        "%2e%2e%2fcanary",
        "a%2fb",
        "/canary",
        "a\\b",
        "a\0b",
    ] {
        let kinds = [
            ("rooflet.dev/v1alpha1", "FleetNode"),
            ("rooflet.dev/v1alpha1", "ModelReplica"),
            ("rooflet.dev/v1alpha1", "ModelDeployment"),
            ("rooflet.dev/v1alpha1", "APIKey"),
            ("v1", "Secret"),
            ("v1", "Namespace"),
        ];
        for (version, kind) in kinds {
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
            let why = cluster
                .kubectl
                .run_with(&["create", "--validate=false", "-f", "-"], &object.to_string())
                .expect_failure();
            assert!(
                why.contains("metadata.name") && why.contains("nvalid"),
                "{kind} {name}: {why}"
            );
        }
    }

    // In names of the command line.
    for command in [
        "key create ../canary",
        "key delete ../canary",
        "token create --node ../canary",
        "token delete ../canary",
    ] {
        let output = cluster.rooflet(command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && (text.contains("../canary") || text.contains("--node: ")),
            "{command}: {text}"
        );
        assert!(!text.contains("panicked"), "{command}: {text}");
    }
    for name in names {
        let text = std::fs::read_to_string(cluster.scratch.join(name)).expect("an unchanged file");
        assert_eq!(text, CANARY);
    }
}

/// DNS rebinding: the name of a page of another site resolves to the address of a listener.
#[test]
fn foreign_host_is_rejected_by_every_listener() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let (_agent, agent) = agent(&cluster);
    let gateway = without_scheme(cluster.gateway.base()).to_owned();
    let web = without_scheme(&cluster.web).to_owned();
    for (address, path, status) in [
        (&agent, "/v1/models", 403),
        (&agent, "/replicas/default/guide/logs", 403),
        (&agent, "/metrics", 403),
        (&gateway, "/v1/models", 403),
        (&gateway, "/metrics", 403),
        (&web, "/session", 421),
        (&web, "/monitoring/metrics", 421),
    ] {
        for host in ["evil.example", "127.0.0.1.evil.example"] {
            let response = raw(address, &format!("GET {path} HTTP/1.1\r\nhost: {host}"));
            let expect = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&expect), "{host} {path}: {response}");
        }
        let response = raw(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}"));
        assert!(
            !response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {response}"
        );
    }

    // A browser sends no credentials of the API server by itself.
    let pem = decoded(&cluster.scratch.join("kubeconfig"), "certificate-authority-data");
    let api = Http::with_authority(format!("https://{}", cluster.address), &pem);
    for path in [
        "/api/v1/secrets",
        "/metrics",
        "/apis/rooflet.dev/v1alpha1/fleetnodes",
    ] {
        let response = api.send_with("GET", path, &[("host", "evil.example")], None);
        let response = response.expect("a response");
        assert!(matches!(response.status, 401 | 403), "{path}: {}", response.text);
    }
}

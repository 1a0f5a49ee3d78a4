//! TLS between machines: agents on an address of the network, their gateway, and revoked nodes.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::join::{GUIDE, as_node, join, join_line, output_text};
use crate::harness::{Cluster, Process, eventually, free_port, network_address, not_run};

/// Maximum time until connected processes refuse a revoked certificate (docs/nodes.md).
pub(super) const REVOCATION: Duration = Duration::from_secs(5);

/// Starts the agent of a joined node on an address of the network.
pub(crate) fn agent(cluster: &Cluster, node: &str, address: &str) -> Process {
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join(node).display()),
        format!("--model-dir={}", cluster.model_dir.display()),
        format!("--listen={address}:0"),
        "--no-probe".to_owned(),
    ];
    Process::start(args, &cluster.scratch.join(&format!("{node}.log")))
}

/// Returns a field of a kubeconfig that contains base64.
pub(crate) fn decoded(kubeconfig: &Path, field: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let (_, rest) = text.split_once(&format!("{field}:")).expect("the field");
    // A long text starts on the next line.
    let word = rest.split_whitespace().find(|word| *word != ">-");
    STANDARD.decode(word.expect("a value")).expect("base64")
}

/// Client of agents and gateways.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl Client {
    /// Creates a client with the certificate of the kubeconfig. The client accepts every server.
    pub(crate) fn new(kubeconfig: Option<&Path>) -> Self {
        let pem = kubeconfig.map(|path| {
            let fields = ["client-certificate-data", "client-key-data"];
            fields.map(|field| decoded(path, field)).concat()
        });
        Self::with_identity(pem.as_deref())
    }

    /// Creates a client with this certificate and key in PEM. The client accepts every server.
    pub(crate) fn with_identity(pem: Option<&[u8]>) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .no_proxy()
            .tls_danger_accept_invalid_certs(true);
        if let Some(pem) = pem {
            let identity = reqwest::Identity::from_pem(pem).expect("a certificate and a key");
            builder = builder.identity(identity);
        }
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            client: builder.build().expect("a client"),
        }
    }

    /// Creates a client without a certificate, which trusts only the certificate in PEM.
    pub(super) fn of_authority(pem: &[u8]) -> Self {
        let authority = reqwest::Certificate::from_pem(pem).expect("a certificate");
        let client = reqwest::Client::builder()
            .pool_max_idle_per_host(0)
            .tls_certs_only([authority])
            .no_proxy();
        Self {
            client: client.build().expect("a client"),
            ..Self::new(None)
        }
    }

    /// Returns status and text of the response.
    pub(crate) fn get(&self, url: &str) -> Result<(u16, String), String> {
        self.send(self.client.get(url))
    }

    /// Sends a request with an API key. Returns status and text of the response.
    pub(super) fn post(&self, url: &str, key: &str, body: &Value) -> Result<(u16, String), String> {
        self.send(self.client.post(url).bearer_auth(key).json(body))
    }

    fn send(&self, request: reqwest::RequestBuilder) -> Result<(u16, String), String> {
        self.runtime.block_on(async {
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let status = response.status().as_u16();
            Ok((status, response.text().await.map_err(|err| err.to_string())?))
        })
    }
}

pub(crate) fn endpoint(cluster: &Cluster, node: &str) -> String {
    eventually("the node's endpoint", || {
        let found = cluster.kubectl.json(&format!("mac/{node}"))?;
        let endpoint = found["status"]["endpoint"].as_str().map(str::to_owned);
        endpoint.ok_or_else(|| found.to_string())
    })
}

pub(super) fn ask(cluster: &Cluster) {
    eventually("an answer", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
}

#[test]
fn agents_on_the_network_accept_only_machines_of_the_fleet() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "");
    for node in ["mini-1", "mini-2"] {
        let joined = join(&cluster, &line, node);
        assert!(joined.status.success(), "{}", output_text(&joined));
    }
    let agents = ["mini-1", "mini-2"].map(|node| agent(&cluster, node, &address));
    let [first, second] = ["mini-1", "mini-2"].map(|node| endpoint(&cluster, node));
    assert!(first.starts_with(&format!("https://{address}:")), "{first}");

    // The gateway and a person with the administrator's kubeconfig reach the agents.
    cluster
        .kubectl
        .apply(&GUIDE.replace("spec:", "spec:\n  replicas: 2"))
        .ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&cluster);
    let replicas = cluster.kubectl.json("mrep").expect("replicas");
    let replica = replicas["items"][0]["metadata"]["name"].as_str().expect("a name");
    let log = cluster.rooflet(&format!("logs mrep/{replica}"));
    let text = output_text(&log);
    assert!(log.status.success() && text.contains("worker"), "{text}");

    // Plain HTTP is answered, and a client without a certificate is rejected.
    let stranger = Client::new(None);
    let (status, text) = stranger
        .get(&format!("{}/health", first.replace("https", "http")))
        .expect("an answer to plain HTTP");
    assert_eq!((status, text.contains("https://")), (400, true), "{text}");
    stranger
        .get(&format!("{first}/health"))
        .expect_err("no certificate");
    eventually("the log of the rejection", || match agents[0].log() {
        log if log.contains("TLS handshake failed") && log.contains(&format!("client={address}")) => Ok(()),
        log => Err(log),
    });

    // A node may read the status of another node, and nothing else.
    let kubeconfig = cluster.scratch.join("mini-2").join("kubeconfig");
    let node = Client::new(Some(&kubeconfig));
    let (status, text) = node
        .get(&format!("{first}/health"))
        .expect("a node may read health");
    assert_eq!(status, 200, "{text}");
    for path in ["/v1/models", "/replicas/default/x/logs"] {
        let (status, text) = node.get(&format!("{first}{path}")).expect("an answer");
        assert_eq!(
            (status, text.contains("node/mini-2 may not")),
            (403, true),
            "{path}: {text}"
        );
    }

    let audit = cluster.scratch.join("mini-1").join("audit.log");
    let events = eventually("the denied requests in the agent's audit log", || {
        let text = std::fs::read_to_string(&audit).map_err(|err| err.to_string())?;
        let parse = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        let events: Vec<Value> = text.lines().map(parse).collect();
        (events.len() >= 2).then_some(events).ok_or(text)
    });
    for (event, path) in events.iter().zip(["/v1/models", "/replicas/default/x/logs"]) {
        assert_eq!(event["user"]["username"], "node/mini-2", "{event}");
        assert_eq!(event["requestURI"], path, "{event}");
        assert_eq!(event["sourceIPs"][0], address.as_str(), "{event}");
        assert_eq!(
            event["annotations"]["authorization.k8s.io/decision"], "forbid",
            "{event}"
        );
    }

    // The certificates of a deleted node are revoked. The node must join again.
    cluster.kubectl.run("delete mac/mini-2").ok();
    eventually("the revocation at the API server", || {
        let found = as_node(&cluster, "mini-2").run("get mac mini-2");
        match found.stderr.contains("nauthorized") || found.stderr.contains("must be logged in") {
            true => Ok(()),
            false => Err(format!("{}{}", found.stdout, found.stderr)),
        }
    });
    eventually("the revocation at the other agent", || {
        match node.get(&format!("{first}/health")) {
            Err(_) | Ok((403, _)) => Ok(()),
            Ok((status, text)) => Err(format!("{status} {text}")),
        }
    });
    ask(&cluster);
    let joined = join(&cluster, &line, "mini-2");
    assert!(joined.status.success(), "{}", output_text(&joined));
    eventually("the node", || cluster.kubectl.json("mac/mini-2"));
    cluster.kubectl.wait_for_condition("mac/mini-2", "Ready", "True");
    assert_eq!(
        endpoint(&cluster, "mini-2"),
        second,
        "the agent was not restarted"
    );
    cluster.kubectl.run("scale mdep/guide --replicas=4").ok();
    eventually("a log from the node that joined again", || {
        let replicas = cluster.kubectl.json("mrep")?;
        let items = replicas["items"].as_array().ok_or("no list")?;
        let replica = items
            .iter()
            .find(|replica| replica["spec"]["nodeName"] == "mini-2");
        let name = replica.and_then(|replica| replica["metadata"]["name"].as_str());
        let log = cluster.rooflet(&format!("logs mrep/{}", name.ok_or("no replica on the node")?));
        match log.status.success() {
            true => Ok(()),
            false => Err(output_text(&log)),
        }
    });
    let again = Client::new(Some(&kubeconfig));
    let (status, text) = again.get(&format!("{first}/health")).expect("a new certificate");
    assert_eq!(status, 200, "{text}");
}

#[test]
fn joined_agent_serves_with_stored_certificate_without_control_plane() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let mut first = agent(&cluster, "mini-1", &address);
    let stored = cluster.scratch.join("mini-1").join("machine-tls.json");
    eventually("a stored certificate", || {
        let text = std::fs::read_to_string(&stored).map_err(|err| err.to_string())?;
        let held: Value = serde_json::from_str(&text).map_err(|err| err.to_string())?;
        match held["certificate"].as_str() {
            Some(certificate) if !certificate.is_empty() => Ok(()),
            _ => Err(first.log()),
        }
    });
    assert!(first.terminate().success(), "{}", first.log());
    cluster.stop();
    let port = free_port();
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join("mini-1").display()),
        format!("--listen={address}:{port}"),
        "--no-probe".to_owned(),
    ];
    let agent = Process::start(args, &cluster.scratch.join("again.log"));
    let client = Client::new(Some(&cluster.scratch.join("mini-1").join("kubeconfig")));
    eventually("an agent with its stored certificate", || {
        match client.get(&format!("https://{address}:{port}/health"))? {
            (200, _) => Ok(()),
            (status, text) => Err(format!("{status} {text} {}", agent.log())),
        }
    });
}

/// Starts a fleet whose gateway listens at `address`. Returns it and the gateway's host and port.
fn with_gateway_at(address: &str, flag: &str) -> Option<(Cluster, String)> {
    let mut gateway = String::new();
    let started = Cluster::with(&[flag], |args, log| {
        let listens = |arg: &String| match arg.strip_prefix("--gateway-listen=127.0.0.1:") {
            Some(port) => {
                gateway = format!("{address}:{port}");
                format!("--gateway-listen={gateway}")
            }
            None => arg.clone(),
        };
        let args: Vec<_> = args.iter().map(listens).collect();
        Process::start(&args, log)
    });
    started.map(|cluster| (cluster, gateway))
}

#[test]
fn anonymous_gateway_is_named_in_its_readiness_and_in_a_condition() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some((mut cluster, gateway)) = with_gateway_at(&address, "--allow-anonymous") else {
        return;
    };
    let any = Client::new(None);
    let text = eventually("a ready gateway", || {
        match any.get(&format!("https://{gateway}/ready"))? {
            (200, text) => Ok(text),
            (status, text) => Err(format!("{status} {text}")),
        }
    });
    assert!(
        text.contains("AnonymousAccess") && text.contains(&gateway),
        "{text}"
    );
    let (status, metrics) = any.get(&format!("https://{gateway}/metrics")).expect("an answer");
    let gauge = "\nrooflet_gateway_anonymous_access 1\n";
    assert!(status == 200 && metrics.contains(gauge), "{status} {metrics}");

    cluster.kubectl.apply(GUIDE).ok();
    let condition = |cluster: &Cluster, status: &str| {
        eventually("the condition", || {
            let found = cluster.kubectl.json("mdep/guide")?;
            let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            let condition = conditions.find(|condition| condition["type"] == "AnonymousAccess");
            let message = condition
                .filter(|condition| condition["status"] == status)
                .and_then(|condition| condition["message"].as_str());
            message.map(str::to_owned).ok_or_else(|| found.to_string())
        })
    };
    let message = condition(&cluster, "True");
    assert!(message.contains(&gateway), "{message}");
    cluster.stop();
    cluster.start_again_with(&["--require-keys"]);
    let message = condition(&cluster, "False");
    assert!(message.contains("require API keys"), "{message}");
}

#[test]
fn gateway_on_the_network_serves_https() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some((cluster, gateway)) = with_gateway_at(&address, "--require-keys") else {
        return;
    };
    let any = Client::new(None);
    let (status, text) = eventually("an answer to plain HTTP", || {
        any.get(&format!("http://{gateway}/health"))
    });
    assert_eq!((status, text.contains("https://")), (400, true), "{text}");

    // The certificate is that of the fleet's authority, which the kubeconfig contains.
    let authority = decoded(&cluster.scratch.join("kubeconfig"), "certificate-authority-data");
    let trusting = Client::of_authority(&authority);
    let health = trusting.get(&format!("https://{gateway}/health"));
    assert_eq!(health, Ok((200, "ok\n".to_owned())));
    let (status, text) = trusting
        .get(&format!("https://{gateway}/v1/models"))
        .expect("an answer");
    assert_eq!(status, 401, "{text}");
}

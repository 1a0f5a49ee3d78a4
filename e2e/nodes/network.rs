//! A fleet on a network of its own: server, gateway and three agents have separate addresses, and all
//! packets between them are captured.
#![expect(clippy::disallowed_methods, reason = "timeouts of tests use the real clock")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::ca_rotation::rotate;
use super::join::{join_line, output_text, shorten_certificate, valid_certificate};
use super::mutual_tls::{Client, REVOCATION, decoded};
use crate::harness::{Cluster, Network, Process, eventually, not_run, rooflet};

const HOSTS: [&str; 5] = ["server", "gateway", "mini-1", "mini-2", "mini-3"];
const GATEWAY_PORT: u16 = 7480;
const AGENT_PORT: u16 = 7500;
const PROMPT: &str = "What is rooflet?";
/// Text that the test sends without encryption, so that a capture that misses packets is noticed.
const CONTROL: &str = "sent-in-plain-text";

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 3
  model: {source: local://guide}
  serving: {name: guide, contextTokens: 256}
  # The machine of the test may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
";

/// Clients of the gateway on this machine.
struct Users {
    client: Client,
    url: String,
    key: String,
}

impl Users {
    /// Returns the answer of the model.
    fn try_ask(&self) -> Result<String, String> {
        let body = json!({
            "model": "guide",
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "max_tokens": 64,
        });
        match self.client.post(&self.url, &self.key, &body)? {
            (200, text) => {
                let answer: Value = serde_json::from_str(&text).map_err(|err| err.to_string())?;
                let answer = answer["choices"][0]["message"]["content"].as_str();
                answer.map(str::to_owned).ok_or(text)
            }
            (status, text) => Err(format!("{status} {text}")),
        }
    }

    #[track_caller]
    fn ask(&self) -> String {
        eventually("an answer", || self.try_ask())
    }
}

/// Starts a control plane without a gateway on the host `server`.
fn start_server(network: &Network) -> Option<Cluster> {
    let address = network.address("server");
    let args = ["--roles=apiserver,controller", "--web-listen=off"];
    let mut listen = String::new();
    let mut cluster = Cluster::with(&args, |args, log| {
        let moved = |arg: &String| match arg.strip_prefix("--listen=127.0.0.1:") {
            Some(port) => {
                listen = format!("{address}:{port}");
                format!("--listen={listen}")
            }
            None => arg.clone(),
        };
        // The last of two flags is used.
        let args: Vec<String> = args
            .iter()
            .filter(|arg| !arg.starts_with("--web-listen=127."))
            .map(moved)
            .collect();
        network.start("server", &args, log)
    })?;
    cluster.address = listen;
    Some(cluster)
}

/// Writes a kubeconfig of a gateway, whose certificate the administrator approves.
fn gateway_kubeconfig(cluster: &Cluster, request: &str) -> PathBuf {
    // All hosts have the name of this machine.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host name");
    let user = format!("rooflet:gateway:{}", name.trim().to_lowercase());
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "rooflet:gateways");
    params.distinguished_name.push(DnType::CommonName, user);
    let signing = params.serialize_request(&key).expect("a request");
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": request},
        "spec": {
            "request": base64(signing.pem().expect("PEM").as_bytes()),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "client auth"],
        },
    });
    let created = cluster.kubectl.run_with(&["create", "-f", "-"], &csr.to_string());
    created.ok();
    cluster
        .kubectl
        .run(&format!("certificate approve {request}"))
        .ok();
    let certificate = eventually("the certificate of the gateway", || {
        let found = cluster.kubectl.json(&format!("csr/{request}"))?;
        let certificate = found["status"]["certificate"].as_str().map(str::to_owned);
        certificate.ok_or_else(|| found.to_string())
    });
    let authority = decoded(&cluster.scratch.join("kubeconfig"), "certificate-authority-data");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {
            "server": format!("https://{}", cluster.address),
            "certificate-authority-data": base64(&authority),
        }}],
        "users": [{"name": "a", "user": {
            "client-certificate-data": certificate,
            "client-key-data": base64(key.serialize_pem().as_bytes()),
        }}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    });
    cluster.scratch.write("gateway.kubeconfig", &config.to_string())
}

/// Starts a gateway that requires keys on the host `gateway`, with a certificate of its owner.
fn start_gateway(network: &Network, cluster: &Cluster) -> (Process, Users) {
    let address = network.address("gateway");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![address.clone()]).expect("an address");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let certificate_file = cluster.scratch.write("gateway.pem", &certificate);
    let key_file = cluster.scratch.write("gateway-key.pem", &key.serialize_pem());
    let args = [
        "server".to_owned(),
        "--roles=gateway".to_owned(),
        "--require-keys".to_owned(),
        format!("--gateway-listen={address}:{GATEWAY_PORT}"),
        format!("--data-dir={}", cluster.scratch.join("gateway").display()),
        format!(
            "--kubeconfig={}",
            gateway_kubeconfig(cluster, "gateway").display()
        ),
        format!("--tls-cert={}", certificate_file.display()),
        format!("--tls-key={}", key_file.display()),
    ];
    let process = network.start("gateway", &args, &cluster.scratch.join("gateway.log"));
    let created = cluster.rooflet("key create team-a");
    assert!(created.status.success(), "{}", output_text(&created));
    let users = Users {
        client: Client::of_authority(certificate.as_bytes()),
        url: format!("https://{address}:{GATEWAY_PORT}/v1/chat/completions"),
        key: String::from_utf8_lossy(&created.stdout).trim().to_owned(),
    };
    (process, users)
}

/// Joins a host to the fleet.
fn join(network: &Network, cluster: &Cluster, line: &[String], node: &str) {
    let joined = network
        .command(node, rooflet())
        .args(line)
        .arg(format!("--node-name={node}"))
        .arg(format!("--state-dir={}", cluster.scratch.join(node).display()))
        .output()
        .expect("the binary starts");
    assert!(joined.status.success(), "{}", output_text(&joined));
}

fn start_agent(network: &Network, cluster: &Cluster, node: &str) -> Process {
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join(node).display()),
        format!("--model-dir={}", cluster.model_dir.display()),
        format!("--listen={}:{AGENT_PORT}", network.address(node)),
        "--no-probe".to_owned(),
    ];
    network.start(node, &args, &cluster.scratch.join(&format!("{node}.log")))
}

/// Deletes a FleetNode. The API server and the agent of another node must refuse the certificate of
/// the deleted one in time.
fn check_revocation(network: &Network, cluster: &Cluster, revoked: &str, other: &str) {
    let client = Client::new(Some(&cluster.scratch.join(revoked).join("kubeconfig")));
    let own = format!(
        "https://{}/apis/rooflet.dev/v1alpha1/fleetnodes/{revoked}",
        cluster.address
    );
    let health = format!("https://{}:{AGENT_PORT}/health", network.address(other));
    for url in [&own, &health] {
        let (status, text) = client.get(url).expect("an answer before the revocation");
        assert_eq!(status, 200, "{url}: {text}");
    }
    cluster
        .kubectl
        .run(&format!("delete mac/{revoked} --wait=false"))
        .ok();
    let deleted = Instant::now();
    for url in [&own, &health] {
        let refused = eventually("the revocation", || match client.get(url) {
            Ok((200, text)) => Err(text),
            Ok((404, text)) => Err(text),
            Ok((401 | 403, _)) | Err(_) => Ok(deleted.elapsed()),
            Ok((status, text)) => Err(format!("{status} {text}")),
        });
        assert!(refused < REVOCATION, "{url}: refused after {refused:?}");
    }
}

/// Rotates the authorities of the fleet. The owner of the gateway writes its kubeconfig again. Then no machine
/// needs the old authorities.
fn check_rotation(cluster: &Cluster, users: &Users, answer: &str) {
    let (started, text) = rotate(cluster, "--after=1d");
    assert!(started && text.starts_with("Rotating"), "{text}");
    eventually(
        "the gateway as a client of the old authorities",
        || match rotate(cluster, "--status") {
            (true, text) if text.contains("rooflet:gateway:") => Ok(()),
            (_, text) => Err(text),
        },
    );
    gateway_kubeconfig(cluster, "gateway-after-rotation");
    eventually("new certificates of all machines", || {
        match rotate(cluster, "--status") {
            (true, text) if text.contains("No client uses") => Ok(()),
            (_, text) => Err(text),
        }
    });
    assert_eq!(users.ask(), answer);
    let (retired, text) = rotate(cluster, "--retire");
    assert!(retired && text.starts_with("Completed"), "{text}");
    assert_eq!(users.ask(), answer);
}

/// Disconnects a node, and connects it again. Requests are answered throughout.
fn check_partition(network: &Network, cluster: &Cluster, users: &Users, node: &str) {
    let mac = format!("mac/{node}");
    network.disconnect(node);
    let is_ready = || {
        let found = cluster.kubectl.json(&mac)?;
        let conditions = found["status"]["conditions"].as_array().cloned();
        let ready = conditions
            .unwrap_or_default()
            .into_iter()
            .find(|condition| condition["type"] == "Ready");
        let ready = ready.ok_or_else(|| found.to_string())?;
        Ok::<_, String>(ready["status"] == "True")
    };
    eventually("the node being silent", || {
        users.ask();
        match is_ready()? {
            true => Err("the node is Ready".to_owned()),
            false => Ok(()),
        }
    });
    network.reconnect(node);
    cluster.kubectl.wait_for_condition(&mac, "Ready", "True");
    cluster
        .kubectl
        .wait_for_condition("mdep/guide", "Available", "True");
    users.ask();
}

/// Returns the texts of all logs.
fn logs(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let files = entries.map(|entry| entry.expect("readable").path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        (path, text)
    })
    .collect()
}

#[test]
fn packets_of_a_fleet_contain_neither_content_nor_credentials() {
    let network = match Network::new(&HOSTS) {
        Ok(network) => network,
        Err(err) => {
            return not_run(&format!(
                "Linux and the right to create network namespaces: {err}"
            ));
        }
    };
    let capture_file = tempfile::NamedTempFile::new().expect("a temporary file");
    let capture = match network.capture(capture_file.path()) {
        Ok(capture) => capture,
        Err(err) => return not_run(&format!("python3 and the right to capture packets: {err}")),
    };
    let Some(cluster) = start_server(&network) else {
        return;
    };

    // Join. The first node has a certificate that is about to expire.
    let line = join_line(&cluster, "");
    join(&network, &cluster, &line, "mini-1");
    shorten_certificate(&cluster, "mini-1");
    let short = valid_certificate(&cluster, "mini-1");
    for node in ["mini-2", "mini-3"] {
        join(&network, &cluster, &line, node);
    }
    let _agents = ["mini-1", "mini-2", "mini-3"].map(|node| start_agent(&network, &cluster, node));
    let (gateway, users) = start_gateway(&network, &cluster);

    // Deploy, and ask with a key.
    for node in ["mini-1", "mini-2", "mini-3"] {
        let mac = format!("mac/{node}");
        eventually("the node", || cluster.kubectl.json(&mac));
        cluster.kubectl.wait_for_condition(&mac, "Ready", "True");
    }
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    let answer = eventually("an answer", || {
        users.try_ask().map_err(|err| format!("{err}\n{}", gateway.log()))
    });

    // Certificates are renewed.
    eventually("a renewed certificate", || {
        match valid_certificate(&cluster, "mini-1") == short {
            true => Err("the certificate is unchanged".to_owned()),
            false => Ok(()),
        }
    });
    assert_eq!(users.ask(), answer);

    check_rotation(&cluster, &users, &answer);

    check_revocation(&network, &cluster, "mini-3", "mini-1");
    assert_eq!(users.ask(), answer);
    check_partition(&network, &cluster, &users, "mini-2");

    let plain = format!("http://{}:{GATEWAY_PORT}/{CONTROL}", network.address("gateway"));
    let (status, text) = users.client.get(&plain).expect("an answer to plain HTTP");
    assert_eq!(status, 400, "{text}");

    let captured = capture.end();
    let streams = captured.streams();
    let (control, others): (Vec<_>, Vec<_>) =
        streams.into_iter().partition(|stream| stream.contains(CONTROL));
    assert!(
        !control.is_empty() && control.iter().all(|stream| !stream.is_tls()),
        "the capture has the request without encryption: {control:?}"
    );
    // The answer to the request without encryption has the opposite direction.
    let is_control = |from, to| {
        control
            .iter()
            .any(|stream| (stream.to, stream.from) == (from, to))
    };
    let plain: Vec<_> = others
        .iter()
        .filter(|stream| !stream.is_tls() && !is_control(stream.from, stream.to))
        .collect();
    assert!(plain.is_empty(), "streams without encryption: {plain:#?}");
    for host in HOSTS {
        let address = network.address(host);
        let is_seen = |stream: &&_| -> bool { format!("{stream:?}").starts_with(&format!("{address}:")) };
        assert!(
            others.iter().any(|stream| is_seen(&stream)),
            "no packets of {host}"
        );
    }

    let token = line.last().expect("a token");
    let kubeconfig = std::fs::read_to_string(cluster.scratch.join("kubeconfig")).expect("a kubeconfig");
    let (_, bearer) = kubeconfig.split_once("token: ").expect("a bearer token");
    let bearer = bearer.lines().next().expect("a line");
    let secrets = [
        ("prompt", PROMPT),
        ("answer", answer.get(..24).expect("a long answer")),
        ("API key", users.key.as_str()),
        (
            "bootstrap token",
            token.rsplit('.').next().expect("a secret part"),
        ),
        ("bearer token", bearer),
    ];
    for (what, secret) in secrets {
        assert!(
            secret.len() >= 16,
            "{what} is a text that is found only in its place"
        );
        assert!(!captured.contains(secret), "the packets contain the {what}");
        for (path, log) in logs(cluster.scratch.path()) {
            assert!(!log.contains(secret), "{} contains the {what}", path.display());
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

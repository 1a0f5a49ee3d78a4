//! TLS between gateways and agents of a cluster: certificates that the controller issues, and their revocation.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use super::control_plane::{NAMESPACE, Pod, create_token, install, join, run_agent, start_agent};
use super::node_tokens::wait_until_refused;
use super::story::ask;
use crate::harness::{Kubectl, Process, eventually, repository, rooflet};
use crate::nodes::mutual_tls::Client;

const NODE: &str = "mini-1";

/// Returns a key and a request with this subject.
fn request(common_name: &str, organization: &str, names: &[&str]) -> (KeyPair, CertificateParams) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    (KeyPair::generate().expect("a key"), params)
}

/// Sends plain HTTP, and requests without a certificate or with that of another authority, to an agent.
pub(super) fn agents_accept_only_clients_of_the_fleet(cluster: &KubernetesCluster) {
    let node = cluster.kubectl.json(&format!("mac {NODE}")).expect("a node");
    let endpoint = node["status"]["endpoint"].as_str().expect("an endpoint");
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{node}");
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut anonymous = conditions.filter(|condition| condition["type"] == "AnonymousAccess");
    assert!(
        anonymous.all(|condition| condition["status"] == "False"),
        "{node}"
    );

    let stranger = Client::new(None);
    let plain = format!("{}/health", endpoint.replace("https", "http"));
    let (status, text) = stranger.get(&plain).expect("an answer to plain HTTP");
    assert_eq!((status, text.contains("https://")), (400, true), "{text}");
    let health = format!("{endpoint}/health");
    stranger.get(&health).expect_err("no certificate");
    let (key, params) = request("rooflet:gateway:rooflet-gateway", "rooflet:gateways", &[]);
    let certificate = params.self_signed(&key).expect("a certificate");
    let pem = [certificate.pem(), key.serialize_pem()].concat();
    let forged = Client::with_identity(Some(pem.as_bytes()));
    forged.get(&health).expect_err("another authority");

    // The administrator's certificate is approved with the administrator's own permission.
    let replicas = cluster.kubectl.json("mrep").expect("replicas");
    let replica = replicas["items"][0]["metadata"]["name"].as_str().expect("a name");
    let log = Command::new(rooflet())
        .args(["logs", &format!("mrep/{replica}")])
        .env("KUBECONFIG", &cluster.kubeconfig)
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&[log.stdout, log.stderr].concat()).into_owned();
    assert!(log.status.success() && text.contains("worker"), "{text}");
}

/// Creates a CertificateSigningRequest. Returns its name.
fn create_request(agent: &Kubectl, signer: &str, usage: &str, request_pem: &str) -> String {
    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "test-"},
        "spec": {"request": STANDARD.encode(request_pem), "signerName": signer,
            "usages": ["digital signature", usage]}});
    let created = agent.run_with(&["create", "-f", "-", "-o", "name"], &csr.to_string());
    let name = created.ok();
    name.trim().rsplit('/').next().expect("a name").to_owned()
}

/// Returns status and message of a request's last condition, when it has one.
fn decision(cluster: &KubernetesCluster, name: &str) -> (String, String) {
    eventually("a decision", || {
        let csr = cluster.kubectl.json(&format!("csr {name}"))?;
        let last = csr["status"]["conditions"]
            .as_array()
            .and_then(|all| all.last())
            .cloned();
        let last = last.ok_or_else(|| csr.to_string())?;
        let text = |field: &str| last[field].as_str().unwrap_or_default().to_owned();
        Ok((text("type"), text("message")))
    })
}

/// Requests certificates with the token of an agent.
pub(super) fn accounts_get_only_certificates_of_their_identity(cluster: &KubernetesCluster) {
    let kubeconfig = cluster.service_account_kubeconfig("rooflet-agent-mini-1");
    let agent = kubectl_with(cluster, &kubeconfig);
    let (serving, client) = ("rooflet.dev/node-serving", "rooflet.dev/fleet-client");
    let ask_for = |signer, usage, common_name: &str, organization: &str, names: &[&str]| {
        let (key, params) = request(common_name, organization, names);
        let pem = params
            .serialize_request(&key)
            .expect("a request")
            .pem()
            .expect("PEM");
        decision(cluster, &create_request(&agent, signer, usage, &pem))
    };
    let (decided, message) = ask_for(
        serving,
        "server auth",
        "system:node:mini-1",
        "system:nodes",
        &["127.0.0.1"],
    );
    assert_eq!(
        (decided.as_str(), message.as_str()),
        ("Approved", "The requestor is node/mini-1.")
    );
    for (signer, usage, common_name, organization, names, fault) in [
        (
            serving,
            "server auth",
            "system:node:mini-2",
            "system:nodes",
            &["127.0.0.1"][..],
            "ServiceAccount rooflet-agent-mini-1 may request certificates only for node/mini-1, not for node/mini-2",
        ),
        (
            client,
            "client auth",
            "rooflet:gateway:rooflet-gateway",
            "rooflet:gateways",
            &[],
            "only for node/mini-1, not for gateway/rooflet-gateway",
        ),
        (
            client,
            "client auth",
            "admin",
            "system:masters",
            &[],
            "only for node/mini-1, not for operator/admin",
        ),
        (
            client,
            "client auth",
            "system:node:mini-1",
            "system:nodes",
            &[],
            "organization of the fleet that rooflet.dev/fleet-client signs",
        ),
    ] {
        let (decided, message) = ask_for(signer, usage, common_name, organization, names);
        assert!(
            decided == "Denied" && message.contains(fault),
            "{common_name}: {decided} {message}"
        );
    }
}

fn kubectl_with(cluster: &KubernetesCluster, kubeconfig: &Path) -> Kubectl {
    Kubectl::of(&cluster.kubectl_program(), kubeconfig, cluster.scratch.path())
}

/// Returns the certificate in the state directory of the agent.
fn certificate(cluster: &KubernetesCluster) -> Result<String, String> {
    let path = cluster.scratch.join(NODE).join("machine-tls.json");
    let text = std::fs::read_to_string(path).map_err(|err| err.to_string())?;
    let held: Value = serde_json::from_str(&text).map_err(|err| err.to_string())?;
    let certificate = held["certificate"].as_str().filter(|pem| !pem.is_empty());
    certificate.map(str::to_owned).ok_or(text)
}

#[test]
fn certificates_are_replaced_after_a_return_of_the_node_and_with_new_authorities() {
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    install(&cluster, &[NODE]);
    let mut controller = Pod::start(&cluster, "controller", "controller");
    let gateway = Pod::start(&cluster, "gateway", "gateway");
    let mut agent = start_agent(&cluster, NODE);
    cluster
        .kubectl
        .run(&format!(
            "apply --server-side -f {}",
            repository("examples/guide.yaml").display()
        ))
        .ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&gateway);
    let first = certificate(&cluster).expect("a certificate");

    cluster.kubectl.run(&format!("delete fleetnode {NODE}")).ok();
    eventually("the revocation", || {
        let trust = cluster
            .kubectl
            .json("--namespace=kube-system configmap rooflet-fleet-trust")?;
        match trust["data"]["revoked-nodes.json"].as_str() {
            Some(revoked) if revoked.contains(NODE) => Ok(()),
            _ => Err(format!("{trust} {}", controller.process.log())),
        }
    });
    agent.terminate();
    // Until then, `rooflet join` keeps the credentials, because kube-apiserver accepts them.
    wait_until_refused(&kubectl_with(
        &cluster,
        &cluster.scratch.join(NODE).join("kubeconfig"),
    ));
    let created = create_token(&cluster, &["--node", NODE]);
    let joined = join(&cluster, NODE, &created.stdout);
    assert!(joined.status.success(), "{joined:?}");
    let agent = run_agent(&cluster, NODE);
    let second = replaced_certificate(&cluster, &first, &agent);
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&gateway);

    authorities_are_rotated_without_a_failed_request(&cluster, &gateway, &agent, &second);
    let second = certificate(&cluster).expect("a certificate");

    // The next leader creates authorities if the Secret is empty.
    let empty = r#"[{"op": "remove", "path": "/data"}]"#;
    let args = [
        "patch",
        "secret",
        "rooflet-fleet-authorities",
        "--type=json",
        "-p",
        empty,
    ];
    let namespace = format!("--namespace={NAMESPACE}");
    cluster
        .kubectl
        .run_with(&[&[namespace.as_str()][..], &args].concat(), "")
        .ok();
    assert!(controller.process.terminate().success());
    let _next = Pod::start(&cluster, "controller", "next-controller");
    replaced_certificate(&cluster, &second, &agent);
    ask(&gateway);
}

/// Rotates the authorities, and asks all the time.
fn authorities_are_rotated_without_a_failed_request(
    cluster: &KubernetesCluster,
    gateway: &Pod,
    agent: &Process,
    before: &str,
) {
    let rotate = |args: &[&str]| {
        let output = Command::new(rooflet())
            .args([&["server", "rotate-ca"][..], args].concat())
            .env("KUBECONFIG", &cluster.kubeconfig)
            .output()
            .expect("the binary starts");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let trusted = || {
        let trust = cluster
            .kubectl
            .json("--namespace=kube-system configmap rooflet-fleet-trust");
        let trust = trust.expect("the trust");
        let authorities = trust["data"]["node-ca.crt"].as_str().unwrap_or_default();
        authorities.matches("BEGIN CERTIFICATE").count()
    };
    assert_eq!(trusted(), 1);
    let started = rotate(&["--after=0s"]);
    assert!(started.starts_with("Rotating: new authorities"), "{started}");
    replaced_certificate(cluster, before, agent);
    assert_eq!(trusted(), 2);
    // The old authorities are trusted for 30 s at least.
    let ask_once = || {
        let answer = gateway
            .http
            .try_chat("guide", "What is rooflet?")
            .expect("a response");
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    eventually("the end of the rotation", || {
        ask_once();
        match rotate(&["--status"]) {
            status if status.starts_with("Completed") && trusted() == 1 => Ok(()),
            status => Err(status),
        }
    });
    ask_once();
}

/// Waits until the agent has another certificate than `previous`. Returns it.
fn replaced_certificate(cluster: &KubernetesCluster, previous: &str, agent: &Process) -> String {
    eventually("another certificate", || match certificate(cluster)? {
        same if same == previous => Err(agent.log()),
        other => Ok(other),
    })
}

//! Certificate of a node that expires while the control plane is away.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};

use super::join::{GUIDE, join, join_line, output_text};
use super::mutual_tls::{ask, decoded};
use crate::harness::{Cluster, Process, eventually};

/// Replaces the certificate in the kubeconfig of a node by one of the fleet that has expired.
fn expire_certificate(cluster: &Cluster, node: &str) {
    let authority =
        std::fs::read_to_string(cluster.scratch.join("data/client-ca.pem")).expect("an authority");
    let (_, key) = authority
        .split_once("-----END CERTIFICATE-----")
        .expect("certificate and key");
    let key = KeyPair::from_pem(key).expect("the key of the authority");
    let issuer = Issuer::from_ca_cert_pem(&authority, key).expect("the certificate of the authority");
    let path = cluster.scratch.join(node).join("kubeconfig");
    let key = decoded(&path, "client-key-data");
    let key = KeyPair::from_pem(&String::from_utf8(key).expect("PEM")).expect("the key of the node");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = rcgen::date_time_ymd(2024, 1, 1);
    params.not_after = rcgen::date_time_ymd(2024, 3, 31);
    let expired = params.signed_by(&key, &issuer).expect("a certificate").pem();
    let text = std::fs::read_to_string(&path).expect("a kubeconfig");
    let valid = STANDARD.encode(decoded(&path, "client-certificate-data"));
    assert!(text.contains(&valid), "{text}");
    let text = text.replace(&valid, &STANDARD.encode(expired));
    std::fs::write(&path, text).expect("written");
}

#[test]
fn expired_certificate_of_a_node_is_reported_with_the_command() {
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join("mini-1").display()),
        format!("--model-dir={}", cluster.model_dir.display()),
        "--no-probe".to_owned(),
    ];
    let agent = Process::start(args, &cluster.scratch.join("mini-1.log"));
    eventually("the node", || cluster.kubectl.json("mac/mini-1"));
    cluster.kubectl.wait_for_condition("mac/mini-1", "Ready", "True");
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&cluster);
    let workers = cluster.workers("mini-1");

    cluster.stop();
    expire_certificate(&cluster, "mini-1");
    cluster.start_again();
    eventually("the command in the log", || {
        let log = agent.log();
        let is_named = log.contains("has expired") && log.contains("rooflet token create --node mini-1");
        is_named.then_some(()).ok_or(log)
    });

    // The agent continues with its worker after an administrator has repeated the join.
    let line = join_line(&cluster, "--node=mini-1");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    cluster.kubectl.wait_for_condition("mac/mini-1", "Ready", "True");
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&cluster);
    assert_eq!(cluster.workers("mini-1"), workers);
}

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::*;
use crate::certificates::signer::{
    CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH, signing_policy,
};
use crate::certificates::{check_subject, is_expired};

/// Returns a subject with organization and common name.
pub(crate) fn subject(organization: &str, name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if !organization.is_empty() {
        subject.push(DnType::OrganizationName, organization);
    }
    if !name.is_empty() {
        subject.push(DnType::CommonName, name);
    }
    subject
}

/// Returns a request in PEM with a new key.
pub(crate) fn request_pem(subject: &DistinguishedName, names: &[SanType]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject.clone();
    params.subject_alt_names = names.to_vec();
    let key = KeyPair::generate().expect("a key");
    let request = params.serialize_request(&key).expect("a request");
    request.pem().expect("PEM")
}

fn request(organization: &str, name: &str, names: &[SanType]) -> CertificateRequest {
    let pem = request_pem(&subject(organization, name), names);
    CertificateRequest::from_pem(pem.as_bytes()).expect("a valid request")
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

const CLIENT: [&str; 2] = [DIGITAL_SIGNATURE, CLIENT_AUTH];
const SERVING: [&str; 2] = [DIGITAL_SIGNATURE, SERVER_AUTH];
const NODES: &str = "system:nodes";

/// Signer, organization and common name, alternative names, usages, and the expected error.
type Case<'a> = (Signer, (&'a str, &'a str), &'a [SanType], &'a [&'a str], &'a str);

#[test]
fn each_signer_accepts_only_its_requests() {
    use Signer::{NodeClient, NodeServing, UserClient};
    let ip = SanType::IpAddress([192, 0, 2, 7].into());
    let email = SanType::Rfc822Name("a@b.c".try_into().expect("ASCII"));
    let uri = SanType::URI("x:y".try_into().expect("ASCII"));
    let both = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    let node = ("system:nodes", "system:node:mini-1.local");
    let cases: [Case<'_>; 28] = [
        (NodeClient, node, &[], &CLIENT, ""),
        (NodeClient, node, &[], &both, ""),
        (
            NodeClient,
            ("", node.1),
            &[],
            &CLIENT,
            "subject organization is not system:nodes",
        ),
        (
            NodeClient,
            ("system:masters", node.1),
            &[],
            &CLIENT,
            "subject organization is not system:nodes",
        ),
        (
            NodeClient,
            (NODES, "mini"),
            &[],
            &CLIENT,
            "subject common name does not begin with system:node:",
        ),
        (
            NodeClient,
            (NODES, "system:node:"),
            &[],
            &CLIENT,
            "does not end with a node's name",
        ),
        (
            NodeClient,
            (NODES, "system:node:A_b"),
            &[],
            &CLIENT,
            "does not end with a node's name",
        ),
        (
            NodeClient,
            node,
            &[dns("a.b")],
            &CLIENT,
            "DNS subjectAltNames are not allowed",
        ),
        (
            NodeClient,
            node,
            std::slice::from_ref(&ip),
            &CLIENT,
            "IP subjectAltNames are not allowed",
        ),
        (
            NodeClient,
            node,
            std::slice::from_ref(&email),
            &CLIENT,
            "Email subjectAltNames are not allowed",
        ),
        (
            NodeClient,
            node,
            std::slice::from_ref(&uri),
            &CLIENT,
            "URI subjectAltNames are not allowed",
        ),
        (
            NodeClient,
            node,
            &[],
            &SERVING,
            "usages did not match [client auth digital signature key encipherment]",
        ),
        (NodeClient, node, &[], &[CLIENT_AUTH], "usages did not match"),
        (
            NodeClient,
            node,
            &[],
            &[DIGITAL_SIGNATURE, CLIENT_AUTH, SERVER_AUTH],
            "usages did not match",
        ),
        (
            NodeServing,
            node,
            &[dns("mini-1.local"), ip.clone()],
            &SERVING,
            "",
        ),
        (
            NodeServing,
            node,
            &[],
            &SERVING,
            "DNS or IP subjectAltName is required",
        ),
        (
            NodeServing,
            node,
            &[dns("a"), email.clone()],
            &SERVING,
            "Email subjectAltNames are not allowed",
        ),
        (
            NodeServing,
            node,
            &[dns("a"), uri.clone()],
            &SERVING,
            "URI subjectAltNames are not allowed",
        ),
        (
            NodeServing,
            ("team", "alice"),
            &[dns("a")],
            &SERVING,
            "subject organization is not system:nodes",
        ),
        (
            NodeServing,
            node,
            &[dns("a")],
            &CLIENT,
            "usages did not match [digital signature key encipherment server auth]",
        ),
        (UserClient, ("team", "alice"), &[], &CLIENT, ""),
        (UserClient, ("", "alice"), &[], &[CLIENT_AUTH], ""),
        (
            UserClient,
            ("team", ""),
            &[],
            &CLIENT,
            "subject common name is required",
        ),
        (
            UserClient,
            ("system:masters", "alice"),
            &[],
            &CLIENT,
            "system:masters is not allowed",
        ),
        (
            UserClient,
            (NODES, "alice"),
            &[],
            &CLIENT,
            "subject belongs to a node",
        ),
        (
            UserClient,
            ("team", "system:node:a"),
            &[],
            &CLIENT,
            "subject belongs to a node",
        ),
        (
            UserClient,
            ("team", "alice"),
            &[],
            &SERVING,
            "invalid usage for client certificate: server auth",
        ),
        (
            UserClient,
            ("team", "alice"),
            &[],
            &[DIGITAL_SIGNATURE],
            "missing required usage for client certificate: client auth",
        ),
    ];
    for (signer, (organization, name), names, usages, expect) in cases {
        let got = signer.check(&request(organization, name, names), usages);
        let got = got.err().map_or_else(String::new, |err| err.to_string());
        assert!(
            got.contains(expect) && got.is_empty() == expect.is_empty(),
            "{signer:?} {organization} {name} {usages:?}: {got}"
        );
    }
}

#[test]
fn rejects_node_subject_with_further_attributes() {
    let mut subject = subject(NODES, "system:node:a");
    subject.push(DnType::OrganizationalUnitName, "x");
    let request =
        CertificateRequest::from_pem(request_pem(&subject, &[]).as_bytes()).expect("a valid request");
    let reason = Signer::NodeClient
        .check(&request, &CLIENT)
        .expect_err("rejected")
        .to_string();
    assert!(
        reason.contains("more than one organization and one common name"),
        "{reason}"
    );
}

#[test]
fn joining_and_renewing_nodes_are_approved_automatically() {
    let check = |signer: Signer, by: (&str, &[&str]), usages: &[&str], expect: bool| {
        let names: &[SanType] = match signer {
            Signer::NodeServing => &[dns("a")],
            Signer::NodeClient | Signer::UserClient => &[],
        };
        let subject = match signer {
            Signer::UserClient => ("team", "system:bootstrap:abcdef"),
            Signer::NodeClient | Signer::NodeServing => (NODES, "system:node:a"),
        };
        let request = request(subject.0, subject.1, names);
        let (name, groups) = by;
        let got = signer.approves(&request, usages, Requestor { name, groups });
        assert_eq!(got.is_some(), expect, "{signer:?} {by:?}: {got:?}");
    };
    let joining: (&str, &[&str]) = ("system:bootstrap:abcdef", &["system:bootstrappers"]);
    let itself: (&str, &[&str]) = ("system:node:a", &[NODES]);
    check(Signer::NodeClient, joining, &CLIENT, true);
    check(Signer::NodeClient, itself, &CLIENT, true);
    check(Signer::NodeClient, joining, &SERVING, false);
    check(Signer::NodeClient, ("system:node:b", &[NODES]), &CLIENT, false);
    check(Signer::NodeClient, ("system:node:a", &["team"]), &CLIENT, false);
    check(
        Signer::NodeClient,
        ("system:admin", &["system:masters"]),
        &CLIENT,
        false,
    );
    check(Signer::NodeServing, itself, &SERVING, true);
    check(Signer::NodeServing, joining, &SERVING, false);
    check(Signer::NodeServing, ("system:node:b", &[NODES]), &SERVING, false);
    check(Signer::UserClient, joining, &CLIENT, false);
    check(Signer::UserClient, itself, &CLIENT, false);
}

#[test]
fn gateway_renews_only_its_own_certificate() {
    const GATEWAYS: &str = "rooflet:gateways";
    let own = "rooflet:gateway:a";
    let check = |subject: (&str, &str), by: (&str, &[&str]), expect: bool| {
        let request = request(subject.0, subject.1, &[]);
        let (name, groups) = by;
        let got = Signer::UserClient.approves(&request, &CLIENT, Requestor { name, groups });
        assert_eq!(got.is_some(), expect, "{subject:?} {by:?}: {got:?}");
    };
    let by_itself: (&str, &[&str]) = (own, &[GATEWAYS, "system:authenticated"]);
    check((GATEWAYS, own), by_itself, true);
    check((GATEWAYS, "rooflet:gateway:b"), by_itself, false);
    check(("rooflet:controllers", own), by_itself, false);
    check(("rooflet:controllers", "rooflet:controller:a"), by_itself, false);
    check(("team", own), by_itself, false);
    check((GATEWAYS, own), (own, &["team"]), false);
    check((GATEWAYS, own), ("a", &[GATEWAYS]), false);
    let controller: (&str, &[&str]) = ("rooflet:controller:a", &["rooflet:controllers"]);
    check(("rooflet:controllers", "rooflet:controller:a"), controller, false);
}

#[test]
fn certificate_lifetime_follows_the_request_up_to_one_year() {
    const DAY: i64 = 24 * 3600;
    for (requested, days) in [
        (None, 90),
        (Some(DAY), 1),
        (Some(366 * DAY), 365),
        (Some(i64::MAX), 365),
    ] {
        let lifetime = signing_policy(&CLIENT, requested).lifetime.as_secs();
        assert_eq!(lifetime, days * 24 * 3600, "{requested:?}");
    }
}

/// Returns a modified request of a joining node.
fn csr(change: impl FnOnce(&mut Value)) -> Value {
    let pem = request_pem(&subject(NODES, "system:node:a"), &[]);
    let mut csr = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {
        "request": BASE64.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": CLIENT, "username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers"]}});
    change(&mut csr);
    csr
}

fn completed(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T00:30:00Z"}]})
}

#[test]
fn next_step_follows_the_state_of_a_request() {
    let check = |change: fn(&mut Value), expect: &str| {
        let step = next_step(&csr(change));
        let got = match &step {
            None => "",
            Some(Step::Approve(..)) => "approve",
            Some(Step::Fail(_)) => "fail",
            Some(Step::Sign(..)) => "sign",
        };
        assert_eq!(got, expect, "{step:?}");
    };
    check(|_| {}, "approve");
    check(|csr| csr["spec"]["groups"] = json!(["team"]), "");
    check(|csr| csr["spec"]["signerName"] = json!("example.com/mine"), "");
    check(|csr| csr["status"] = completed(APPROVED), "sign");
    check(|csr| csr["status"] = completed(DENIED), "");
    check(|csr| csr["status"] = completed(FAILED), "");
    check(
        |csr| {
            csr["status"] = completed(APPROVED);
            csr["status"]["certificate"] = json!("AAAA");
        },
        "",
    );
    check(
        |csr| {
            csr["status"] = completed(APPROVED);
            csr["spec"]["usages"] = json!(["any"]);
        },
        "fail",
    );
    check(
        |csr| {
            csr["status"] = completed(APPROVED);
            csr["spec"]["signerName"] = json!("example.com/mine");
        },
        "",
    );
}

#[test]
fn no_signer_grants_system_masters() {
    let of = |organization: &str, signer: &str| {
        let pem = request_pem(&subject(organization, "alice"), &[]);
        let csr = json!({"spec": {"request": BASE64.encode(pem), "signerName": signer}});
        check_subject(&csr).map_err(|err| err.to_string())
    };
    let user = "kubernetes.io/kube-apiserver-client";
    assert_eq!(
        of("system:masters", user),
        Err(
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
                .to_owned()
        )
    );
    assert_eq!(of("team", user), Ok(()));
    assert_eq!(
        of("system:masters", "example.com/mine"),
        Ok(()),
        "signers of other programs decide themselves"
    );
}

#[test]
fn completed_requests_expire_after_an_hour_and_pending_ones_after_a_day() {
    let check = |status: Value, now: &str, expect: bool| {
        let csr = csr(|csr| csr["status"] = status);
        assert_eq!(
            is_expired(&csr, now.parse().expect("a time")),
            expect,
            "{} {now}",
            csr["status"]
        );
    };
    check(json!({}), "2026-01-01T23:59:59Z", false);
    check(json!({}), "2026-01-02T00:00:00Z", true);
    for kind in [DENIED, FAILED] {
        check(completed(kind), "2026-01-01T01:29:59Z", false);
        check(completed(kind), "2026-01-01T01:30:00Z", true);
    }
    // Signers of other programs may sign an approved request later.
    check(completed(APPROVED), "2026-01-01T01:30:00Z", false);
    check(completed(APPROVED), "2026-01-02T00:00:00Z", true);
    let mut issued = completed(APPROVED);
    issued["certificate"] = json!("AAAA");
    check(issued.clone(), "2026-01-01T01:29:59Z", false);
    check(issued.clone(), "2026-01-01T01:30:00Z", true);
    let directory = tempfile::tempdir().expect("a directory");
    let clock = rooflet_base::clock::Clock::System;
    let authority = Authority::open(directory.path(), rooflet_pki::AuthorityKind::Client, &clock);
    let issue = |now: &str| {
        let short = SigningPolicy {
            lifetime: Duration::from_secs(600),
            ..signing_policy(&CLIENT, None)
        };
        let authority = authority.as_ref().expect("an authority");
        let pem = authority.sign(
            &request(NODES, "system:node:a", &[]),
            &short,
            now.parse().expect("a time"),
        );
        BASE64.encode(pem.expect("signed"))
    };
    issued["certificate"] = json!(issue("2026-01-01T00:30:00Z"));
    check(issued.clone(), "2026-01-01T00:40:00Z", false);
    check(issued, "2026-01-01T00:40:01Z", true);
}

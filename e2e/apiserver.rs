//! API server without other roles: user certificates, and rejected requests under load.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{Cluster, Kubectl, eventually};

/// Starts the API server without other roles. Returns `None` if kubectl is not installed.
fn start(args: &[&str]) -> Option<Cluster> {
    Cluster::start(&[&["--roles=apiserver"], args].concat())
}

impl Cluster {
    /// Opens a TLS connection to the server.
    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(self.scratch.join("data/ca.pem")).expect("a certificate");
        roots.add(ca).expect("an authority");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a configuration");
        StreamOwned::new(
            tls,
            TcpStream::connect(&self.address).expect("the server listens"),
        )
    }

    /// Returns kubectl with a client certificate that is signed by the authority in `authority`.
    pub(crate) fn kubectl_as(&self, user: &str, groups: &[&str], authority: &Path) -> Kubectl {
        let pem = std::fs::read_to_string(authority).expect("readable");
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
        let key = KeyPair::try_from(&key).expect("a key");
        let issuer = Issuer::from_ca_cert_pem(&pem, key).expect("an authority");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        let certificate = self.scratch.write(&format!("{user}.crt"), &certificate.pem());
        let key = self.scratch.write(&format!("{user}.key"), &key.serialize_pem());

        let admin = std::fs::read_to_string(self.scratch.join("kubeconfig")).expect("readable");
        let own = self.scratch.write(&format!("{user}.kubeconfig"), &admin);
        let kubectl = Kubectl::find(&own, self.scratch.path()).expect("kubectl is installed");
        let (certificate, key) = (certificate.display(), key.display());
        let set = "config set-credentials";
        kubectl
            .run(&format!(
                "{set} {user} --client-certificate={certificate} --client-key={key} --embed-certs"
            ))
            .ok();
        kubectl
            .run(&format!("config set-context rooflet --user={user}"))
            .ok();
        kubectl
    }
}

fn config_map(name: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#)
}

#[test]
fn admission_policy_denies_and_warns() {
    let Some(cluster) = start(&[]) else { return };
    let kubectl = &cluster.kubectl;
    let policy = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: owners}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, DELETE]}
  variables:
  - {name: target, expression: "request.operation == 'DELETE' ? oldObject : object"}
  validations:
  - expression: "variables.target.?metadata.?labels.?owner.hasValue()"
    messageExpression: "'the ConfigMap ' + request.name + ' needs the label owner'"
    reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: owners}
spec: {policyName: owners, validationActions: [Deny]}
"#;
    kubectl.apply(policy).ok();
    let denied = kubectl.apply(&config_map("a"));
    assert!(!denied.success, "{}", denied.stdout);
    let expected = "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'owners' with binding 'owners' denied request: \
                    the ConfigMap a needs the label owner";
    assert!(denied.stderr.contains(expected), "{}", denied.stderr);
    let dry = kubectl.run("create configmap b --dry-run=server");
    assert!(!dry.success, "{}", dry.stdout);
    let explained = kubectl
        .run("explain validatingadmissionpolicy.spec.validations")
        .ok();
    assert!(explained.contains("messageExpression"), "{explained}");

    kubectl.apply(&policy.replace("[Deny]", "[Warn]")).ok();
    let warned = kubectl.run("create configmap c");
    let warning = "Warning: Validation failed for ValidatingAdmissionPolicy 'owners' with binding 'owners': the ConfigMap c \
                   needs the label owner";
    assert!(
        warned.success && warned.stderr.contains(warning),
        "{}",
        warned.stderr
    );
    let deleted = kubectl.run("delete configmap c");
    assert!(
        deleted.success && deleted.stderr.contains("'owners'"),
        "{}",
        deleted.stderr
    );
    kubectl.apply(policy).ok();
    kubectl.run("delete validatingadmissionpolicybinding owners").ok();
    kubectl.run("create configmap d").ok();
}

#[test]
fn admission_policy_checks_permissions_and_types() {
    let Some(cluster) = start(&[]) else { return };
    let kubectl = &cluster.kubectl;
    let policy = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: keepers}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}
  validations:
  - expression: "authorizer.group('').resource('secrets').namespace(request.namespace).check('delete').allowed()"
    messageExpression: "request.userInfo.username + ' cannot delete Secrets'"
  - expression: "!has(object.data) || object.data.all(key, value, key != value)"
  - expression: "object.metadata.name != 'nested' || !has(object.data.nested.key)"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: keepers}
spec: {policyName: keepers, validationActions: [Deny]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: authors}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: authors}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: authors}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}
"#;
    kubectl.apply(policy).ok();
    kubectl.run("create configmap a --from-literal=x=y").ok();
    let denied = kubectl.run("create configmap b --as=alice").expect_failure();
    assert!(
        denied.contains("denied request: alice cannot delete Secrets"),
        "{denied}"
    );
    let denied = kubectl
        .run("create configmap c --from-literal=x=x")
        .expect_failure();
    assert!(
        denied.contains("failed expression: !has(object.data) || "),
        "{denied}"
    );
    let status = eventually("a checked policy", || {
        let status = kubectl
            .run("get validatingadmissionpolicy keepers -o jsonpath={.status}")
            .ok();
        match status.contains("\"observedGeneration\":1") {
            true => Ok(status),
            false => Err(status),
        }
    });
    let field = "spec.validations[2].expression";
    assert!(
        status.contains(field) && status.matches("fieldRef").count() == 1,
        "{status}"
    );
    assert!(
        status.contains("/v1, Kind=ConfigMap: ERROR: ")
            && status.contains("type 'string' does not support field selection"),
        "{status}"
    );
    let table = kubectl.run("get validatingadmissionpolicies").ok();
    assert!(table.contains("keepers"), "{table}");
}

#[test]
fn mutating_admission_policy_changes_new_objects() {
    let Some(cluster) = start(&[]) else { return };
    let kubectl = &cluster.kubectl;
    let policy = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: owners}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{metadata: Object.metadata{annotations: {'example.com/user': request.userInfo.username}}}"
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "add", path: "/metadata/annotations/" + jsonpatch.escapeKey("example.com/kind"), value: "config"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: owners}
spec: {policyName: owners}
"#;
    kubectl.apply(policy).ok();
    kubectl.apply(&config_map("a")).ok();
    let annotations = kubectl
        .run("get configmap a -o jsonpath={.metadata.annotations}")
        .ok();
    assert!(
        annotations.contains(r#""example.com/kind":"config""#)
            && annotations.contains(r#""example.com/user":"system:admin""#),
        "{annotations}"
    );
    let listed = kubectl.run("get mutatingadmissionpolicies").ok();
    assert!(listed.contains("MUTATIONS"), "{listed}");

    let faulty = policy.replace("annotations: {", "absent: {");
    kubectl.apply(&faulty).ok();
    let denied = kubectl.apply(&config_map("b"));
    let expected = "policy 'owners' with binding 'owners' denied request: error applying patch: failed to convert patch \
                    object to typed object: .metadata.absent: field not declared in schema";
    assert!(
        !denied.success && denied.stderr.contains(expected),
        "{}",
        denied.stderr
    );
}

#[test]
fn certificate_authenticates_user_and_groups() {
    let Some(server) = start(&[]) else { return };
    let admin = &server.kubectl;
    let ours = server.scratch.join("data/client-ca.pem");

    let root = server.kubectl_as("root", &["system:masters"], &ours);
    root.run_with(&["create", "-f", "-"], &config_map("a")).ok();
    assert_eq!(root.run("get cm a -o name").ok(), "configmap/a\n");

    let alice = server.kubectl_as("alice", &["team-a"], &ours);
    let printed = alice.run("get cm").expect_failure();
    assert!(
        printed.contains(
            r#"User "alice" cannot list resource "configmaps" in API group "" in the namespace "default""#
        ),
        "{printed}"
    );
    assert!(alice.run("api-resources").ok().contains("modeldeployments"));

    // The authority of serving certificates does not authenticate users. Invalid credentials are
    // not treated as anonymous.
    let mallory = server.kubectl_as(
        "mallory",
        &["system:masters"],
        &server.scratch.join("data/ca.pem"),
    );
    let printed = mallory.run("get cm").expect_failure();
    assert!(
        printed.contains("You must be logged in to the server"),
        "{printed}"
    );
    assert_eq!(admin.run("get cm a -o name").ok(), "configmap/a\n");
    let printed = admin.run("get cm --token=wrong").expect_failure();
    assert!(
        printed.contains("You must be logged in to the server"),
        "{printed}"
    );
}

#[test]
fn kubectl_retries_after_too_many_requests() {
    let Some(server) = start(&["--max-mutating-requests-inflight=1"]) else {
        return;
    };
    let kubectl = &server.kubectl;
    let rejected_requests = || -> u64 {
        let metrics = kubectl.run("get --raw /metrics").ok();
        let line = metrics.lines().find_map(|line| {
            line.strip_prefix(
                r#"rooflet_apiserver_requests_total{code="429",resource="configmaps",verb="create"} "#,
            )
        });
        line.map_or(0, |count| count.parse().expect("a count"))
    };
    let token = std::fs::read_to_string(server.scratch.join("data/token")).expect("readable");
    let mut attempts = 0;
    // kubectl's request may arrive first. Then the slow one is rejected, and both are started again.
    eventually("an accepted slow request", || {
        attempts += 1;
        let (slow, retried) = (format!("slow-{attempts}"), format!("retried-{attempts}"));
        let rejected_before = rejected_requests();
        // An incomplete write occupies the only permit.
        let slow = config_map(&slow);
        let (first, second) = slow.split_at(10);
        let mut stream = server.connect();
        let head = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\n\
             Authorization: Bearer {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{first}",
            token.trim(),
            slow.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.flush().expect("sent");
        thread::scope(|scope| {
            let kubectl = scope.spawn(|| {
                server
                    .kubectl
                    .run_with(&["create", "-f", "-"], &config_map(&retried))
            });
            while !kubectl.is_finished() && rejected_requests() == rejected_before {}
            let was_rejected = rejected_requests() > rejected_before;
            // A server that has already answered may have closed the connection.
            let sent = stream.write_all(second.as_bytes());
            let mut answer = String::new();
            let received = stream.read_to_string(&mut answer);
            let created = kubectl.join().expect("no panic").ok();
            assert_eq!(created, format!("configmap/{retried} created\n"));
            if was_rejected && answer.starts_with("HTTP/1.1 201") {
                Ok(())
            } else {
                Err(format!("{sent:?} {received:?} {answer}"))
            }
        })
    });
}

/// Returns a CertificateSigningRequest for a user's certificate, as YAML.
fn certificate_request(name: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let pem = params
        .serialize_request(&key)
        .expect("a request")
        .pem()
        .expect("PEM");
    let request = base64::engine::general_purpose::STANDARD.encode(pem);
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\nspec:\n  \
         request: {request}\n  signerName: kubernetes.io/kube-apiserver-client\n  usages: [digital signature, client auth]\n  \
         expirationSeconds: 3600\n"
    )
}

#[test]
fn kubectl_approves_and_denies_certificates() {
    let Some(server) = start(&[]) else { return };
    let kubectl = &server.kubectl;
    for name in ["alice", "bob"] {
        kubectl
            .run_with(&["apply", "-f", "-"], &certificate_request(name))
            .ok();
    }
    assert_eq!(
        kubectl.run("certificate approve alice").ok(),
        "certificatesigningrequest.certificates.k8s.io/alice approved\n"
    );
    assert_eq!(
        kubectl.run("certificate deny bob").ok(),
        "certificatesigningrequest.certificates.k8s.io/bob denied\n"
    );
    let row = |name: &str| {
        let row = kubectl.run(&format!("get csr {name} --no-headers")).ok();
        let cells: Vec<_> = row.split_whitespace().map(str::to_owned).collect();
        cells[2..].join(" ")
    };
    eventually("a certificate", || match row("alice").as_str() {
        "kubernetes.io/kube-apiserver-client system:admin 60m Approved,Issued" => Ok(()),
        other => Err(other.to_owned()),
    });
    assert_eq!(
        row("bob"),
        "kubernetes.io/kube-apiserver-client system:admin 60m Denied"
    );
    let described = kubectl.run("describe csr alice").ok();
    for expect in [
        "Requesting User:",
        "system:admin",
        "Approved,Issued",
        "Common Name:",
        "alice",
    ] {
        assert!(described.contains(expect), "{expect} in\n{described}");
    }
    let printed = kubectl.run("certificate deny alice").expect_failure();
    assert!(printed.contains("already Approved"), "{printed}");
}

#[test]
fn kubectl_creates_built_in_kinds_and_impersonates() {
    let Some(cluster) = start(&[]) else { return };
    let kubectl = &cluster.kubectl;
    // These commands send protobuf.
    kubectl.run("create namespace team").ok();
    kubectl.run("create configmap settings --from-literal=a=b").ok();
    kubectl.run("create secret generic key --from-literal=k=v").ok();
    assert_eq!(
        kubectl.json("configmap settings").expect("stored")["data"]["a"],
        "b"
    );
    assert_eq!(kubectl.json("secret key").expect("stored")["data"]["k"], "dg==");
    assert_eq!(
        kubectl.json("namespace team").expect("stored")["status"]["phase"],
        "Active"
    );

    let refused = kubectl.run("get configmaps --as=alice").expect_failure();
    assert!(
        refused.contains("User \"alice\" cannot list resource \"configmaps\""),
        "{refused}"
    );
    kubectl
        .run("get configmaps --as=alice --as-group=system:masters")
        .ok();
}

/// Returns whether a file contains a text.
fn file_contains(path: &std::path::Path, text: &str) -> bool {
    let content = std::fs::read(path).expect("the file");
    content.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn secrets_are_encrypted_in_the_file() {
    let Some(mut server) = start(&[]) else { return };
    let store = server.scratch.join("data/store.redb");
    let key = server.scratch.join("data/secrets-key");
    server
        .kubectl
        .run("create secret generic hub --from-literal=token=swordfish")
        .ok();
    server
        .kubectl
        .run("create configmap plain --from-literal=text=daylight")
        .ok();
    // `swordfish` in base64, as in the object.
    let encoded = "c3dvcmRmaXNo";
    let read = |server: &Cluster| {
        let secret = server.kubectl.json("secret hub").expect("the Secret");
        assert_eq!(secret["data"]["token"], encoded);
    };
    read(&server);
    assert!(file_contains(&store, "daylight") && !file_contains(&store, encoded));
    let before = std::fs::read_to_string(&key).expect("the key");
    server.restart();
    read(&server);
    server.stop();
    server.start_again_with(&["--rotate-secrets-key"]);
    read(&server);
    let after = std::fs::read_to_string(&key).expect("the key");
    assert!(
        before != after && after.lines().count() == 1,
        "the key was not replaced"
    );
    server.stop();
    // Without its key, the server does not start, and the file stays.
    std::fs::write(&key, before).expect("written");
    let stored = std::fs::read(&store).expect("the file");
    let refused = server.fails_to_start();
    assert!(refused.contains("restore the key file"), "{refused}");
    assert!(std::fs::read(&store).expect("the file") == stored);
    std::fs::write(&key, after).expect("written");
    server.start_again();
    read(&server);
}

//! Joining of a node and its permissions, over real HTTP.

mod server;

use http::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use rooflet_testing::{
    CERTIFICATE_REQUESTS, CertificateRequest, create_bootstrap_token, issued_certificate, settled_request,
};
use server::TestServer;

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const NODES: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";
const REPLICAS: &str = "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const TOKEN: &str = "abcdef.0123456789abcdef";
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
const USER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";

fn has_certificate(status: &Value) -> bool {
    status["certificate"].is_string()
}

/// Joins a node and returns a client with the node's certificate.
async fn join(server: &TestServer, node: &str) -> TestServer {
    let joining = server.as_user(TOKEN, None);
    let name = format!("join-{node}");
    let request = CertificateRequest::new(
        &name,
        NODE_CLIENT,
        ("system:nodes", &format!("system:node:{node}")),
        &[],
    );
    let made = joining.post(CERTIFICATE_REQUESTS, &request.object).await;
    assert_eq!(made.code, 201, "{}", made.body);
    settled_request(server, &name, has_certificate).await;
    let own = joining.get(&format!("{CERTIFICATE_REQUESTS}/{name}")).await;
    assert_eq!(own.code, 200, "{}", own.body);
    server.as_user(
        "",
        Some(&format!("{}{}", request.key, issued_certificate(&own.body))),
    )
}

#[tokio::test]
async fn node_joins_with_bootstrap_token_and_renews_with_its_certificate() {
    let server = TestServer::start().await;
    create_bootstrap_token(&server, json!({"auth-extra-groups": "system:bootstrappers:rack"})).await;
    let node = join(&server, "mini").await;
    let made = server
        .get(&format!("{CERTIFICATE_REQUESTS}/join-mini"))
        .await
        .body;
    assert_eq!(made["spec"]["username"], "system:bootstrap:abcdef");
    assert_eq!(
        made["spec"]["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:rack",
            "system:authenticated"
        ])
    );
    let approved = &made["status"]["conditions"][0];
    assert_eq!(
        (&approved["type"], &approved["status"], &approved["reason"]),
        (&json!("Approved"), &json!("True"), &json!("AutoApproved"))
    );
    let pem = issued_certificate(&made);
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
    let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
    assert_eq!(
        parsed.subject().to_string(),
        "O=system:nodes, CN=system:node:mini"
    );
    assert!(parsed.issuer().to_string().starts_with("CN=rooflet-client-ca@"));
    let validity = parsed.validity();
    let seconds = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(seconds, 90 * 24 * 3600 + 3600, "90 days, backdated by one hour");
    let table = server
        .get_as(
            CERTIFICATE_REQUESTS,
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        )
        .await;
    let columns: Vec<_> = table.body["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| column["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(
        columns,
        [
            "Name",
            "Age",
            "SignerName",
            "Requestor",
            "RequestedDuration",
            "Condition"
        ]
    );
    assert_eq!(
        &table.body["rows"][0]["cells"].as_array().expect("cells")[2..],
        [
            NODE_CLIENT,
            "system:bootstrap:abcdef",
            "<none>",
            "Approved,Issued"
        ]
    );

    let mut again = CertificateRequest::new("again", NODE_CLIENT, ("system:nodes", "system:node:mini"), &[]);
    again.object["spec"]["expirationSeconds"] = json!(600);
    assert_eq!(node.post(CERTIFICATE_REQUESTS, &again.object).await.code, 201);
    let renewed = settled_request(&server, "again", has_certificate).await;
    assert_eq!(renewed["spec"]["username"], "system:node:mini");
    let serving = CertificateRequest::new(
        "serving",
        NODE_SERVING,
        ("system:nodes", "system:node:mini"),
        &["mini.local"],
    );
    assert_eq!(node.post(CERTIFICATE_REQUESTS, &serving.object).await.code, 201);
    let pem = issued_certificate(&settled_request(&server, "serving", has_certificate).await);
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
    let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
    assert!(parsed.issuer().to_string().starts_with("CN=rooflet-node-ca@"));
    assert!(server.directory().join("node-ca.pem").exists());
    // A node's serving certificate does not authenticate it as a client.
    let identity = format!("{}{pem}", serving.key);
    let rejected = server
        .as_user("", Some(&identity))
        .get(&format!("{NODES}/mini"))
        .await;
    assert_eq!(rejected.code, 401, "{}", rejected.body);
}

#[tokio::test]
async fn requests_for_other_nodes_stay_pending() {
    let server = TestServer::start().await;
    create_bootstrap_token(&server, json!({})).await;
    let node = join(&server, "mini").await;
    for (name, signer, names) in [
        ("client", NODE_CLIENT, &[][..]),
        ("serving", NODE_SERVING, &["a.b"]),
    ] {
        let other = CertificateRequest::new(name, signer, ("system:nodes", "system:node:studio"), names);
        assert_eq!(node.post(CERTIFICATE_REQUESTS, &other.object).await.code, 201);
    }
    // The server processes requests in order, so the earlier ones have been processed by then.
    let own = CertificateRequest::new("own", NODE_CLIENT, ("system:nodes", "system:node:mini"), &[]);
    assert_eq!(node.post(CERTIFICATE_REQUESTS, &own.object).await.code, 201);
    settled_request(&server, "own", has_certificate).await;
    for name in ["client", "serving"] {
        let pending = server.get(&format!("{CERTIFICATE_REQUESTS}/{name}")).await.body;
        assert_eq!(pending["status"], json!({}), "{name}");
    }
}

#[tokio::test]
async fn bootstrap_token_may_read_only_its_own_requests() {
    let server = TestServer::start().await;
    create_bootstrap_token(&server, json!({})).await;
    let joining = server.as_user(TOKEN, None);
    let request = CertificateRequest::new("admins", USER_CLIENT, ("team", "alice"), &[]);
    assert_eq!(server.post(CERTIFICATE_REQUESTS, &request.object).await.code, 201);
    let foreign = joining.get(&format!("{CERTIFICATE_REQUESTS}/admins")).await;
    let absent = joining.get(&format!("{CERTIFICATE_REQUESTS}/nothing")).await;
    assert_eq!((foreign.code, absent.code), (403, 403));
    assert_eq!(
        foreign.message().replace("admins", "nothing"),
        absent.message(),
        "messages reveal which requests exist"
    );
    for (method, path) in [
        (Method::GET, CERTIFICATE_REQUESTS.to_owned()),
        (Method::GET, SECRETS.to_owned()),
        (Method::GET, NODES.to_owned()),
        (Method::DELETE, format!("{CERTIFICATE_REQUESTS}/admins")),
    ] {
        let rejected = joining.send(method, &path, &[], Vec::new()).await;
        assert_eq!(rejected.code, 403, "{path}");
    }
}

fn replica(name: &str, node: Option<&str>, is_mirror: bool) -> Value {
    let mut replica = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
        "metadata": {"name": name}, "spec": {"model": {"source": "local://m"}, "serving": {"name": "m"}}});
    if let Some(node) = node {
        replica["spec"]["nodeName"] = json!(node);
    }
    if is_mirror {
        replica["metadata"]["annotations"] = json!({"rooflet.dev/config.mirror": "m.yaml"});
    }
    replica
}

fn fleet_node(name: &str) -> Value {
    json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode", "metadata": {"name": name}, "spec": {}})
}

#[tokio::test]
async fn node_may_write_only_its_own_objects() {
    let server = TestServer::start().await;
    create_bootstrap_token(&server, json!({})).await;
    let node = join(&server, "mini").await;

    assert_eq!(node.post(NODES, &fleet_node("mini")).await.code, 201);
    assert_eq!(node.post(NODES, &fleet_node("studio")).await.code, 403);
    assert_eq!(server.post(NODES, &fleet_node("studio")).await.code, 201);
    let mini = format!("{NODES}/mini");
    let label = json!({"metadata": {"labels": {"rooflet.dev/chip": "M4"}}});
    assert_eq!(node.merge(&mini, &label).await.code, 200);
    let rack = json!({"metadata": {"labels": {"rack": "7"}}});
    assert_eq!(node.merge(&mini, &rack).await.code, 403);
    assert_eq!(server.merge(&mini, &rack).await.code, 200);
    let unset = json!({"metadata": {"labels": {"rack": null}}});
    assert_eq!(node.merge(&mini, &unset).await.code, 403);
    let status = json!({"status": {"conditions": []}});
    assert_eq!(node.merge(&format!("{mini}/status"), &status).await.code, 200);
    let cordon = json!({"spec": {"unschedulable": true}});
    let rejected = node.merge(&mini, &cordon).await;
    assert_eq!(rejected.code, 403);
    assert!(
        rejected
            .message()
            .ends_with("a node may not change the spec of its FleetNode"),
        "{}",
        rejected.message()
    );
    assert_eq!(server.merge(&mini, &cordon).await.code, 200);
    assert_eq!(
        node.merge(&mini, &label).await.code,
        200,
        "a cordoned node may still write its labels"
    );
    assert_eq!(node.merge(&format!("{NODES}/studio"), &label).await.code, 403);
    assert_eq!(
        node.get(&format!("{NODES}?fieldSelector=metadata.name%3Dmini"))
            .await
            .code,
        200
    );
    assert_eq!(node.get(NODES).await.code, 403);
    assert_eq!(node.get("/api/v1/namespaces/kube-system").await.code, 200);
    assert_eq!(node.get("/api/v1/namespaces/default").await.code, 403);

    let lease = |name: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "mini"}})
    };
    assert_eq!(node.post(LEASES, &lease("fleetnode-mini")).await.code, 201);
    assert_eq!(node.post(LEASES, &lease("fleetnode-studio")).await.code, 403);
    let own = format!("{LEASES}/fleetnode-mini");
    assert_eq!(
        node.merge(&own, &json!({"spec": {"holderIdentity": "me"}}))
            .await
            .code,
        200
    );
    let theirs = format!("{LEASES}/fleetnode-studio");
    assert_eq!(node.put(&theirs, &lease("fleetnode-studio")).await.code, 403);

    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"namespace": "default"},
        "reason": "R", "type": "Normal"});
    assert_eq!(node.post(EVENTS, &event).await.code, 201);
    assert_eq!(node.get(EVENTS).await.code, 403);
}

#[tokio::test]
async fn node_may_access_only_replicas_bound_to_it() {
    let server = TestServer::start().await;
    create_bootstrap_token(&server, json!({})).await;
    let node = join(&server, "mini").await;
    for (name, at) in [
        ("here", Some("mini")),
        ("there", Some("studio")),
        ("nowhere", None),
    ] {
        let made = server.post(REPLICAS, &replica(name, at, false)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let listed = node
        .get("/apis/rooflet.dev/v1alpha1/modelreplicas?fieldSelector=spec.nodeName%3Dmini")
        .await;
    assert_eq!(listed.code, 200, "{}", listed.body);
    assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        node.get(&format!("{REPLICAS}?fieldSelector=spec.nodeName%3Dstudio"))
            .await
            .code,
        403
    );
    assert_eq!(
        node.get(REPLICAS).await.message(),
        "modelreplicas.rooflet.dev is forbidden: User \"system:node:mini\" cannot list resource \"modelreplicas\" in API \
         group \"rooflet.dev\" in the namespace \"default\": node \"mini\" may list and watch only its own replicas, with the field \
         selector spec.nodeName=mini"
    );

    let phase = json!({"status": {"phase": "Loading"}});
    let path = |name: &str, sub: &str| format!("{REPLICAS}/{name}{sub}");
    assert_eq!(node.merge(&path("here", "/status"), &phase).await.code, 200);
    let mut outcomes = Vec::new();
    for name in ["there", "nowhere", "absent"] {
        let attempts = [
            node.get(&path(name, "")).await,
            node.merge(&path(name, "/status"), &phase).await,
            node.merge(&path(name, ""), &json!({"metadata": {"labels": {"a": "b"}}}))
                .await,
            node.put(&path(name, ""), &replica(name, Some("mini"), false))
                .await,
            node.delete(&path(name, "")).await,
        ];
        let responses: Vec<_> = attempts
            .iter()
            .map(|got| (got.code, got.message().replace(name, "NAME")))
            .collect();
        assert!(
            responses.iter().all(|(code, _)| *code == 403),
            "{name}: {responses:?}"
        );
        outcomes.push(responses);
    }
    assert!(
        outcomes[0] == outcomes[1] && outcomes[1] == outcomes[2],
        "{outcomes:?}"
    );

    let away = json!({"spec": {"nodeName": "studio"}});
    assert_eq!(node.merge(&path("here", ""), &away).await.code, 403);
    assert_eq!(
        node.post(REPLICAS, &replica("own", Some("mini"), true))
            .await
            .code,
        201
    );
    assert_eq!(
        node.post(REPLICAS, &replica("claimed", Some("mini"), false))
            .await
            .code,
        403
    );
    assert_eq!(
        node.post(REPLICAS, &replica("forced", Some("studio"), true))
            .await
            .code,
        403
    );
    assert_eq!(node.delete(&path("own", "")).await.code, 200);
    assert_eq!(node.delete(&path("here", "")).await.code, 200);
}

//! Revocation of the certificate of an agent to which a gateway is connected.

#![expect(
    clippy::disallowed_methods,
    reason = "the time until a refusal is measured by the real clock"
)]

use std::time::Instant;

use serde_json::{Value, json};

use super::join::{GUIDE, join, join_line, output_text};
use super::mutual_tls::{REVOCATION, agent, ask, decoded, endpoint};
use crate::harness::{Cluster, Http, eventually, network_address, not_run};

const NODES: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";

/// The administrator at the API server, without the start time of kubectl.
struct Administrator {
    api: Http,
    authorization: String,
}

impl Administrator {
    fn of(cluster: &Cluster) -> Self {
        let kubeconfig = cluster.scratch.join("kubeconfig");
        let text = std::fs::read_to_string(&kubeconfig).expect("a kubeconfig");
        let (_, token) = text.split_once("token: ").expect("a bearer token");
        let token = token.lines().next().expect("a token");
        let authority = decoded(&kubeconfig, "certificate-authority-data");
        Self {
            api: Http::with_authority(format!("https://{}", cluster.address), &authority),
            authorization: format!("Bearer {token}"),
        }
    }

    /// Sends a request, whose status must be one of `expected`.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: Option<&Value>, expected: &[u16]) {
        let content = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let headers = [
            ("authorization", self.authorization.as_str()),
            ("content-type", content),
        ];
        let answer = self
            .api
            .send_with(method, path, &headers, body.map(Value::to_string));
        let answer = answer.expect("a response");
        assert!(
            expected.contains(&answer.status),
            "{method} {path}: {}",
            answer.text
        );
    }
}

/// Without a controller, the replica stays when its node is deleted. The administrator creates the FleetNode
/// again with its endpoint. The gateway then has a route to the agent, and only its certificate is invalid.
#[test]
fn gateway_closes_its_connection_to_an_agent_with_a_revoked_certificate() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let agent = agent(&cluster, "mini-1", &address);
    endpoint(&cluster, "mini-1");
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    cluster.stop();
    cluster.start_again_with(&["--roles=apiserver,gateway"]);
    let administrator = Administrator::of(&cluster);
    let node = cluster.kubectl.json("mac/mini-1").expect("a node");
    let metadata = json!({"name": "mini-1", "labels": node["metadata"]["labels"]});
    let created =
        json!({"apiVersion": node["apiVersion"], "kind": node["kind"], "metadata": metadata, "spec": {}});
    let status = json!({"status": node["status"]});
    let path = format!("{NODES}/mini-1");

    // The gateway has an open connection. The agent may create its FleetNode before the administrator does.
    ask(&cluster);
    administrator.send("DELETE", &path, None, &[200]);
    let revoked = Instant::now();
    administrator.send("POST", NODES, Some(&created), &[201, 409]);
    administrator.send("PATCH", &format!("{path}/status"), Some(&status), &[200]);

    let gateway = Http::with_timeout(cluster.gateway.base(), REVOCATION);
    let log = cluster.scratch.join("server.log");
    eventually("the refusals in the log of the gateway", || {
        let sent = revoked.elapsed();
        let answer = gateway.try_chat("guide", "What is rooflet?");
        let is_served = answer.as_ref().is_ok_and(|answer| answer.status == 200);
        assert!(
            !is_served || sent < REVOCATION,
            "a request that was sent {sent:?} after the revocation was served"
        );
        let text = std::fs::read_to_string(&log).map_err(|err| err.to_string())?;
        let has = |what: &str| {
            text.lines()
                .any(|line| line.contains(what) && line.contains("mini-1"))
        };
        match has("connection to an agent closed") && has("connection to an agent refused") {
            true => Ok(()),
            false => Err(format!("{answer:?}\n{text}")),
        }
    });
    let answer = gateway.try_chat("guide", "What is rooflet?");
    assert!(
        !answer.is_ok_and(|answer| answer.status == 200),
        "{}",
        agent.log()
    );

    // The machine returns with a new certificate.
    administrator.send("DELETE", &path, None, &[200]);
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    ask(&cluster);
}

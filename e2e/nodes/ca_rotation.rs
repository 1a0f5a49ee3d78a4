//! Rotation of the fleet's certificate authorities.

use super::join::{GUIDE, join, join_line, output_text};
use super::mutual_tls::{Client, agent, ask, decoded, endpoint};
use crate::harness::{Cluster, Process, eventually, network_address, not_run, under_load};

/// Runs `rooflet server rotate-ca ARGS`. Returns whether it succeeded, and its output.
pub(super) fn rotate(cluster: &Cluster, args: &str) -> (bool, String) {
    let output = cluster.rooflet(&format!("server rotate-ca {args}"));
    (output.status.success(), output_text(&output))
}

fn wait_for_end(cluster: &Cluster) {
    eventually("the end of the rotation", || match rotate(cluster, "--status") {
        (true, text) if text.starts_with("Completed") => Ok(()),
        (_, text) => Err(text),
    });
}

/// Returns the authorities in the kubeconfig of a node.
fn authorities(cluster: &Cluster, node: &str) -> Vec<String> {
    let kubeconfig = cluster.scratch.join(node).join("kubeconfig");
    let text = decoded(&kubeconfig, "certificate-authority-data");
    let text = String::from_utf8(text).expect("PEM");
    let certificates = text.split_inclusive("-----END CERTIFICATE-----\n");
    certificates.map(str::to_owned).collect()
}

#[test]
fn authorities_are_rotated_under_load_without_a_failed_request() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let old_line = join_line(&cluster, "");
    for node in ["mini-1", "mini-2", "mini-3"] {
        let joined = join(&cluster, &old_line, node);
        assert!(joined.status.success(), "{}", output_text(&joined));
    }
    // The third node sleeps during the rotation.
    let _agents = ["mini-1", "mini-2"].map(|node| agent(&cluster, node, &address));
    let first = endpoint(&cluster, "mini-1");
    cluster
        .kubectl
        .apply(&GUIDE.replace("spec:", "spec:\n  replicas: 2"))
        .ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    ask(&cluster);
    let old = authorities(&cluster, "mini-2");
    let copy = cluster.scratch.join("mini-2").join("kubeconfig");
    let copy = std::fs::read_to_string(copy).expect("a kubeconfig");
    let copy = cluster.scratch.write("old/kubeconfig", &copy);
    assert_eq!(old.len(), 1);

    under_load(&cluster, || {
        let (started, text) = rotate(&cluster, "--after=0s");
        assert!(
            started && text.contains("new authorities issue certificates"),
            "{text}"
        );
        // A join command from before the rotation is valid until the old authorities are retired.
        let joined = join(&cluster, &old_line, "mini-4");
        assert!(joined.status.success(), "{}", output_text(&joined));
        wait_for_end(&cluster);
        ask(&cluster);
    });

    // Machines and this administrator trust only the new authorities.
    for node in ["mini-1", "mini-2"] {
        let trusted = eventually("the end of the trust in the old authority", || match authorities(
            &cluster, node,
        ) {
            one if one.len() == 1 => Ok(one),
            several => Err(format!("{} authorities", several.len())),
        });
        assert_ne!(trusted, old, "{node}");
        cluster
            .kubectl
            .wait_for_condition(&format!("mac/{node}"), "Ready", "True");
    }
    let line = join_line(&cluster, "--node=mini-3");
    let token = |line: &[String]| line.last().expect("a token").clone();
    let hash = |line: &[String]| token(line).split('.').nth(1).map(str::to_owned);
    assert_ne!(hash(&line), hash(&old_line));
    let refused = join(&cluster, &old_line, "mini-5");
    assert!(
        !refused.status.success()
            && output_text(&refused).contains("its certificate authority has another hash"),
        "{}",
        output_text(&refused)
    );

    // The old certificate of a node is not accepted, neither by the API server nor by an agent.
    let client = Client::new(Some(&copy));
    let own = format!(
        "https://{}/apis/rooflet.dev/v1alpha1/fleetnodes/mini-2",
        cluster.address
    );
    let (status, text) = client.get(&own).expect("an answer");
    assert_eq!(status, 401, "{text}");
    eventually("the refusal by the agent", || {
        match client.get(&format!("{first}/health")) {
            Err(_) => Ok(()),
            Ok((status, text)) => Err(format!("{status} {text}")),
        }
    });

    let _third = check_node_that_slept(&cluster, &address, &line);

    // All machines can follow a second rotation, which the administrator ends immediately.
    let (started, text) = rotate(&cluster, "--after=1d");
    assert!(started && text.starts_with("Rotating"), "{text}");
    let (again, text) = rotate(&cluster, "");
    assert!(!again && text.contains("--retire"), "{text}");
    eventually("new certificates of all nodes", || {
        match rotate(&cluster, "--status") {
            (true, text) if text.contains("No client uses") => Ok(()),
            (_, text) => Err(text),
        }
    });
    eventually("both authorities at the nodes", || {
        let counts = ["mini-1", "mini-2", "mini-3"].map(|node| authorities(&cluster, node).len());
        match counts {
            [2, 2, 2] => Ok(()),
            counts => Err(format!("{counts:?}")),
        }
    });
    let (retired, text) = rotate(&cluster, "--retire --force");
    assert!(retired && text.starts_with("Completed"), "{text}");
    ask(&cluster);
}

/// A node that has slept through the rotation does not trust the server. Its log contains the remedy.
/// Returns the agent after it joined again.
fn check_node_that_slept(cluster: &Cluster, address: &str, line: &[String]) -> Process {
    let slept = agent(cluster, "mini-3", address);
    eventually("the remedy in the log", || match slept.log() {
        log if log.contains("is not trusted") && log.contains("rooflet token create --node") => Ok(()),
        log => Err(log),
    });
    let joined = join(cluster, line, "mini-3");
    assert!(joined.status.success(), "{}", output_text(&joined));
    eventually("the node", || cluster.kubectl.json("mac/mini-3"));
    cluster.kubectl.wait_for_condition("mac/mini-3", "Ready", "True");
    slept
}

#[test]
fn rotation_survives_restarts_of_the_server() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver,controller"]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let (started, text) = rotate(&cluster, "--after=0s");
    assert!(started, "{text}");
    cluster.restart();
    wait_for_end(&cluster);
    let data = cluster.scratch.join("data");
    for previous in [
        "ca-previous.pem",
        "client-ca-previous.pem",
        "node-ca-previous.pem",
    ] {
        assert!(!data.join(previous).exists(), "{previous}");
    }
    cluster.restart();
    cluster.kubectl.run("get namespaces").ok();
    let (retired, text) = rotate(&cluster, "--retire");
    assert!(!retired && text.contains("no rotation is in progress"), "{text}");
}

//! Rebuilt control plane with an empty store: workers keep running, and their replicas are restored.

use crate::harness::{Cluster, eventually};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: local://guide}
  serving: {contextTokens: 256, maxConcurrency: 2}
";

#[test]
fn running_replicas_are_restored_at_a_rebuilt_control_plane() {
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agent = cluster.agent("node-1", &[]);
    eventually("the node", || cluster.kubectl.json("mac/node-1"));
    cluster.kubectl.wait_for_condition("mac/node-1", "Ready", "True");
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    let workers = cluster.workers("node-1");
    let replica = |cluster: &Cluster| -> Result<(String, serde_json::Value), String> {
        let found = cluster.kubectl.json("mrep")?;
        match found["items"].as_array().map(Vec::as_slice) {
            Some([only]) => Ok((only["metadata"]["name"].to_string(), only["metadata"].clone())),
            _ => Err(found.to_string()),
        }
    };
    let (name, metadata) = replica(&cluster).expect("one replica");

    cluster.stop();
    std::fs::remove_dir_all(cluster.scratch.join("data")).expect("removed");
    cluster.start_again();
    // The agent registers its node with the credentials of the new server.
    eventually("the node at the new server", || {
        cluster.kubectl.json("mac/node-1")
    });
    cluster.kubectl.wait_for_condition("mac/node-1", "Ready", "True");
    assert_eq!(cluster.workers("node-1"), workers);

    // On a cordoned node, the deployment's own replica cannot start before the former one is restored.
    let cordon = r#"patch mac node-1 --type=merge -p {"spec":{"unschedulable":true}}"#;
    cluster.kubectl.run(cordon).ok();
    cluster.kubectl.apply(GUIDE).ok();
    eventually("the restored replica alone", || {
        let (found, restored) = replica(&cluster)?;
        let from = &restored["annotations"]["rooflet.dev/restored-from"];
        match found == name && *from == metadata["uid"] && !restored["ownerReferences"].is_null() {
            true => Ok(()),
            false => Err(restored.to_string()),
        }
    });
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    eventually("an answer", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    eventually("the former worker alone", || match cluster.workers("node-1") {
        found if found == workers => Ok(()),
        found => Err(format!("{found:?}")),
    });
}

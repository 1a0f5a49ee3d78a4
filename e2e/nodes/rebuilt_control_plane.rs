//! Rebuilt control plane. With an empty store, workers keep running, and their replicas are
//! restored. With a restored backup, agents and gateways list the objects again.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

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

/// Number of objects that are written after the backup. Heartbeats need several minutes for as many
/// versions.
const WRITTEN_AFTER_BACKUP: usize = 500;

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-Rp").args([from, to]).status();
    assert!(copied.expect("cp is installed").success());
}

/// After the restore, the versions that agent and gateway observed last are in the future.
#[test]
fn agent_and_gateway_follow_a_control_plane_that_was_restored_from_a_backup() {
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agent = cluster.agent("node-1", &[]);
    eventually("the node", || cluster.kubectl.json("mac/node-1"));
    cluster.kubectl.wait_for_condition("mac/node-1", "Ready", "True");
    let (data, backup) = (cluster.scratch.join("data"), cluster.scratch.join("backup"));
    cluster.stop();
    copy(&data, &backup);
    cluster.start_again();
    let mut written = String::new();
    for number in 0..WRITTEN_AFTER_BACKUP {
        write!(
            written,
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: written-{number}}}\n"
        )
        .expect("a String accepts all writes");
    }
    cluster.kubectl.run_with(&["create", "-f", "-"], &written).ok();
    // Agent and gateway observe the replica, and thus the versions after the written objects.
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");

    cluster.stop();
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&backup, &data);
    cluster.start_again();
    assert!(
        cluster.kubectl.json("mdep/guide").is_err(),
        "the backup is older than the deployment"
    );
    eventually("the end of the worker", || {
        match cluster.workers("node-1").len() {
            0 => Ok(()),
            count => Err(format!("{count} workers")),
        }
    });
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    eventually("an answer", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
}

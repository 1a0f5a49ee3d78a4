//! `rooflet models`: prefetch and deletion on a real agent, from a hub.

use serde_json::Value;

use crate::harness::{Cluster, Hub, eventually, repository};

/// Returns the printed output of a verb that succeeds.
#[track_caller]
fn models(cluster: &Cluster, args: &str) -> String {
    let output = cluster.rooflet(&format!("models {args}"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the listed states of the guide on the node.
fn states(cluster: &Cluster, commit: &str) -> Vec<String> {
    let listed: Value = serde_json::from_str(&models(cluster, "list -o json")).expect("JSON");
    let rows = listed.as_array().expect("a list");
    let of_guide = rows
        .iter()
        .filter(|row| row["model"] == format!("hf://rooflet/guide@{commit}"));
    of_guide.map(|row| row["state"].to_string()).collect()
}

#[test]
fn administrator_prefetches_and_deletes_a_model() {
    let hub = Hub::start();
    let commit = hub.commit("rooflet/guide", &repository("examples/models/guide"));
    let env = vec![("HF_ENDPOINT", hub.endpoint())];
    let Some(cluster) = Cluster::start_with_env(env, &[]) else {
        return;
    };
    let mut agent = cluster.agent("node-1", &[]);
    cluster.kubectl.wait_for_condition("mac/node-1", "Ready", "True");
    assert_eq!(states(&cluster, &commit), Vec::<String>::new());

    let weights = || {
        hub.downloads()
            .iter()
            .filter(|one| one.file == "model.safetensors" && one.range.is_none())
            .count()
    };
    let model = format!("hf://rooflet/guide@{commit}");
    models(&cluster, &format!("prefetch {model} --node=node-1"));
    eventually("the prefetched model", || match states(&cluster, &commit).len() {
        1 => Ok(()),
        _ => Err(models(&cluster, "list")),
    });
    assert_eq!(weights(), 1);
    // A deployment uses the model without a second download.
    let manifest = format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: guide}}\nspec:\n  \
         model: {{source: 'hf://rooflet/guide', revision: {commit}}}\n  serving: {{contextTokens: 256}}\n  placement: {{tolerations: [{{operator: \
         Exists}}]}}\n"
    );
    cluster.kubectl.apply(&manifest).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    assert_eq!(weights(), 1);

    // The model is deleted when no replica uses it, and is not downloaded again.
    models(&cluster, "delete hf://rooflet/guide --node=node-1");
    let node = cluster.kubectl.json("mac/node-1").expect("the node");
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(
        annotations["rooflet.dev/keep-models"],
        Value::Null,
        "{annotations}"
    );
    agent.terminate();
    let agent = cluster.agent("node-1", &[]);
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    assert_eq!(states(&cluster, &commit).len(), 1, "a used model is not deleted");
    cluster.kubectl.run("delete mdep guide").ok();
    eventually("the deletion of the model", || {
        match states(&cluster, &commit).len() {
            0 => Ok(()),
            _ => Err(models(&cluster, "list")),
        }
    });
    assert_eq!(weights(), 1);

    // A later deployment downloads the model again, and the old request does not delete it.
    cluster.kubectl.apply(&manifest).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    cluster.kubectl.run("delete mdep guide").ok();
    cluster
        .kubectl
        .run("wait --for=delete mrep --all --timeout=60s")
        .ok();
    drop(agent);
    let _agent = cluster.agent("node-1", &[]);
    eventually("the status of the restarted agent", || {
        let node = cluster.kubectl.json("mac/node-1")?;
        let ready = node["status"]["conditions"].to_string();
        match ready.contains("\"Ready\"") && states(&cluster, &commit).len() == 1 {
            true => Ok(()),
            false => Err(models(&cluster, "list")),
        }
    });
    assert_eq!(weights(), 2);
}

//! The figures of a probe: in a ConfigMap, and not in the status of the node.

use serde_json::Value;

use crate::harness::{Fleet, eventually};

const MAP: &str = "configmap fleetnode-node-1 -n kube-node-lease";

/// Maximum number of lines of `kubectl describe mac` for a node with one model and one replica.
const MAX_LINES: usize = 100;

#[test]
fn describe_of_a_node_is_short_and_the_figures_are_in_a_config_map() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    fleet.wait_for_ready(&kubectl, "guide");
    let node = kubectl.json("mac node-1").expect("the node");
    let speed = &node["status"]["speed"];
    let decode = speed["decodeBytesPerSecond"].as_f64();
    assert!(decode.is_some_and(|rate| rate > 0.0), "{speed:#}");
    assert!(node["status"]["probe"].is_null(), "{node:#}");

    let map = kubectl.json(MAP).expect("the ConfigMap");
    let owner = &map["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["uid"]),
        (&"FleetNode".into(), &"node-1".into(), &node["metadata"]["uid"])
    );
    let text = map["data"]["probe.json"].as_str().expect("the figures");
    let probe: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(probe["measuredAt"], speed["measuredAt"]);
    assert_eq!(probe["qmv"]["medianBytesPerSecond"].as_f64(), decode);
    assert!(
        probe["qmv"]["samples"]
            .as_u64()
            .is_some_and(|samples| samples > 0),
        "{text}"
    );
    assert!(
        probe["layers"]
            .as_array()
            .is_some_and(|layers| !layers.is_empty()),
        "{text}"
    );

    // A changed number of replicas is written with a delay.
    let described = eventually("the replica", || {
        let described = kubectl.run("describe mac node-1").ok();
        match described.contains("default/guide-") {
            true => Ok(described),
            false => Err(described),
        }
    });
    let lines = described.lines().count();
    for field in ["Samples:", "Factors:\n", "Cost:\n"] {
        assert!(!described.contains(field), "{described}");
    }
    assert!(lines <= MAX_LINES, "{lines} lines:\n{described}");

    // The agent removes the figures that an earlier version left in the status.
    let old = r#"{"status": {"probe": {"engine": "mlx 0.1.0 (cpu)"}}}"#;
    let patch = [
        "patch",
        "mac",
        "node-1",
        "--subresource=status",
        "--type=merge",
        "-p",
        old,
    ];
    let patched = kubectl.run_with(&patch, "");
    assert!(patched.success, "{}", patched.stderr);
    eventually("a status without the deprecated figures", || {
        let node = kubectl.json("mac node-1")?;
        match node["status"]["probe"].is_null() {
            true => Ok(()),
            false => Err(node["status"]["probe"].to_string()),
        }
    });

    // The ConfigMap is deleted together with its node, and written again for the new one.
    let before = node["metadata"]["uid"].clone();
    kubectl.run("delete mac node-1").ok();
    eventually("the ConfigMap of the registered node", || {
        let node = kubectl.json("mac node-1")?;
        let map = kubectl.json(MAP)?;
        let (uid, owner) = (
            &node["metadata"]["uid"],
            &map["metadata"]["ownerReferences"][0]["uid"],
        );
        match *uid != before && owner == uid {
            true => Ok(()),
            false => Err(format!("{before} {uid} {owner}")),
        }
    });
}

use std::sync::Arc;

use super::*;
use crate::fixture::{mac, now, objects, replica};
use crate::objects::Objects;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn parse<K: DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T11:55:00Z",
    })
}

/// Returns a fleet with a silent Mac, a cordoned Mac and a healthy Mac.
fn troubled() -> View {
    let message = "the agent has not renewed its Lease for more than 40 s";
    let silent = |name| {
        let mut node = mac(name, 16.0, None);
        node["status"]["conditions"] = json!([condition("Ready", "Unknown", "NodeSilent", message)]);
        parse(node)
    };
    let mut cordoned = mac("mini-3", 16.0, None);
    cordoned["spec"] = json!({"unschedulable": true});
    let mut fleet = objects();
    fleet.nodes = vec![silent("mini-1"), silent("mini-2"), parse(cordoned)];
    View::new(&fleet, Vec::new(), now())
}

#[test]
fn problems_are_first_and_equal_problems_share_a_line() {
    let view = troubled();
    let text = FleetStatus::new(&view).text();
    let expect = "\
3 problems:
  error   mac/mini-1, mac/mini-2: NodeSilent for 5m
      the agent has not renewed its Lease for more than 40 s
  warning mac/mini-3: Cordoned
      no new replica is scheduled on the node; `rooflet uncordon NAME` permits it
  warning mdep/default/guide: ReplicasNotReady for 60m
      about Ready

1 of 3 Macs ready, 1 of 2 replicas ready, 0.0/48.0Gi memory reserved, 2 requests running, 1 waiting

DEPLOYMENT     READY  STATE             MODEL          TOK/S PRED  TOK/S MEAS
default/guide    1/2  ReplicasNotReady  local://guide        55.0        51.5

MAC     STATUS          CHIP            MEMORY  BANDWIDTH  REPLICAS
mini-1  Unknown         Apple M4 Pro  0.0/16.0Gi          -         1
mini-2  Unknown         Apple M4 Pro  0.0/16.0Gi          -         1
mini-3  Ready,Cordoned  Apple M4 Pro  0.0/16.0Gi          -         1
";
    let plain = |text: &str| -> Vec<String> {
        let lines = text.lines();
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    assert_eq!(plain(&text), plain(expect), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_message_of_several_conditions_appears_once() {
    let message = "0 of 1 replicas ready: no node has room: mini-1 lacks 3 GiB";
    let mut deployment: Value = serde_json::to_value(&*objects().deployments[0]).expect("JSON");
    deployment["status"]["readyReplicas"] = json!(0);
    deployment["status"]["conditions"] = json!([
        condition("Ready", "False", "InsufficientMemory", message),
        condition("Progressing", "False", "ProgressDeadlineExceeded", message),
        condition("Degraded", "True", "InsufficientMemory", "shorter"),
        condition(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "0 of 1 replicas answer requests"
        ),
    ]);
    let mut pending = replica("guide-1-a", "mini-1", json!({"phase": "Pending"}));
    pending["status"]["conditions"] = json!([condition("Ready", "False", "InsufficientMemory", message)]);
    let fleet = Objects {
        deployments: vec![parse(deployment)],
        replicas: vec![parse(pending)],
        ..Objects::default()
    };
    let view = View::new(&fleet, Vec::new(), now());
    let text = FleetStatus::new(&view).text();
    assert_eq!(text.matches("no node has room").count(), 1, "{text}");
    assert!(
        text.starts_with("1 problem:\n  error   mdep/default/guide: InsufficientMemory"),
        "{text}"
    );
}

#[test]
fn replicas_without_a_deployment_and_unreadable_kinds_are_problems() {
    let mut orphan = replica("lone", "mini-1", json!({"phase": "Failed"}));
    orphan["metadata"]["labels"] = json!({});
    orphan["status"]["conditions"] = json!([condition("Ready", "False", "ModelInvalid", "no config.json")]);
    let fleet = Objects {
        replicas: vec![parse(orphan)],
        ..Objects::default()
    };
    let unread = crate::view::Problem::new(crate::table_kind::TableKind::Macs, "forbidden");
    let view = View::new(&fleet, vec![unread], now());
    let text = FleetStatus::new(&view).text();
    for line in [
        "error   Macs: Unreadable",
        "error   mrep/default/lone: ModelInvalid",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn healthy_fleet_has_no_problems() {
    let fleet = Objects {
        nodes: vec![parse(mac("mini-1", 4.0, Some((250, 100))))],
        ..Objects::default()
    };
    let view = View::new(&fleet, Vec::new(), now());
    let status = FleetStatus::new(&view);
    assert!(
        status.text().starts_with("No problems.\n\n1 of 1 Macs ready"),
        "{}",
        status.text()
    );
    let json = serde_json::to_value(&status).expect("JSON");
    assert_eq!(
        (&json["problems"], &json["totals"]["macs"]),
        (&json!([]), &json!(1))
    );
}

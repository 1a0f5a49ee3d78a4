use super::*;
use crate::fixture::{mac, now, objects, replica, view};
use serde_json::json;
use std::sync::Arc;

fn line(kind: TableKind, name: &str) -> String {
    let text = view().text(Some(kind));
    let line = text.lines().find(|line| line.contains(name));
    line.unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn mac_shows_reserved_memory_and_measured_bandwidth() {
    assert_eq!(
        line(TableKind::Macs, "mini-1"),
        "mini-1 Ready Apple M4 Pro 12.0/16.0Gi 150/250GB/s 1 2/1 - 120m"
    );
}

#[test]
fn nominal_bandwidth_is_not_shown_as_measured() {
    assert_eq!(
        line(TableKind::Macs, "mini-2"),
        "mini-2 Ready Apple M4 Pro 0.0/16.0Gi - 1 - - 120m"
    );
    let view = view();
    assert_eq!(view.macs[1].bandwidth, None);
    assert_eq!(view.macs[1].nominal_bandwidth, Some(273e9));
    assert_eq!(view.totals.macs_without_measured_bandwidth, 1);
    assert_eq!(
        view.totals.bandwidth.map(|usage| usage.allocatable),
        Some(250_000_000_000)
    );
}

#[test]
fn replica_shows_predicted_beside_measured_speed() {
    assert_eq!(
        line(TableKind::Replicas, "guide-1-a"),
        "default guide-1-a Ready guide mini-1 4.0Gi 55.0 51.5 Calibrated 250ms 210ms 2/1 40 30m"
    );
    assert_eq!(
        line(TableKind::Replicas, "guide-1-b"),
        "default guide-1-b Pending guide mini-2 - - - - - - - - 30m"
    );
}

#[test]
fn deployment_shows_its_state_and_the_requests_of_its_replicas() {
    assert_eq!(
        line(TableKind::Deployments, "guide"),
        "default guide 1/2 2 local://guide 55.0 51.5 250ms 210ms 2/1 ReplicasNotReady 60m"
    );
}

#[test]
fn requests_of_a_silent_node_are_not_in_flight() {
    let mut objects = objects();
    let mut lost = (*objects.replicas[0]).clone();
    let status = lost.status.as_mut().expect("a status");
    for condition in &mut status.conditions {
        (condition.status, condition.reason) = ("False".into(), "NodeNotReady".into());
    }
    objects.replicas[0] = Arc::new(lost);
    let view = View::new(&objects, Vec::new(), now());
    assert_eq!(view.totals.requests, None);
    assert_eq!(
        (view.macs[0].requests, view.deployments[0].requests),
        (None, None)
    );
    // The row of the replica shows what its agent reported last.
    assert_eq!(
        view.replicas[0].requests.map(|requests| requests.running),
        Some(2)
    );
}

#[test]
fn events_are_newest_first_and_about_rooflet_only() {
    let view = view();
    let objects: Vec<&str> = view.events.iter().map(|event| event.object.as_str()).collect();
    assert_eq!(objects, ["mac/mini-2", "mrep/guide-1-a"]);
    assert_eq!(
        line(TableKind::Events, "mini-2"),
        "60s Warning mac/mini-2 NotReady 3 message about mini-2"
    );
}

#[test]
fn statuses_of_macs_and_replicas_follow_conditions_and_deletion() {
    let parse = |value| serde_json::from_value(value).expect("a node");
    let mut cordoned = mac("a", 1.0, None);
    cordoned["spec"] = json!({"unschedulable": true});
    let mut draining = mac("b", 1.0, None);
    draining["spec"] = json!({"drain": true});
    let mut silent = mac("c", 1.0, None);
    silent["status"]["conditions"] = json!([]);
    let statuses = [cordoned, draining, silent].map(|node| MacRow::new(&parse(node), &[]).status());
    assert_eq!(statuses, ["Ready,Cordoned", "Ready,Draining", "Unknown"]);
    let mut deleted = replica("r", "a", json!({"phase": "Ready"}));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:00Z");
    let deleted = serde_json::from_value(deleted).expect("a replica");
    assert_eq!(ReplicaRow::new(&deleted, |_| false).phase, "Terminating");
}

#[test]
fn measurements_of_simulated_nodes_are_marked() {
    let mut node = mac("mini-1", 1.0, Some((100, 50)));
    node["metadata"]["labels"] = json!({"rooflet.dev/simulated": "true"});
    let objects = Objects {
        nodes: vec![Arc::new(serde_json::from_value(node).expect("a node"))],
        ..objects()
    };
    let view = View::new(&objects, Vec::new(), now());
    assert_eq!(view.macs[0].chip(), "Apple M4 Pro (simulated)");
    let simulated: Vec<bool> = view.replicas.iter().map(|replica| replica.simulated).collect();
    assert_eq!(simulated, [true, false]);
}

#[test]
fn control_characters_are_in_no_text_and_no_json() {
    let hostile = "a\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}b";
    let mut objects = objects();
    let mut node = mac(hostile, 1.0, None);
    node["status"]["chip"]["name"] = json!(hostile);
    node["status"]["conditions"][0]["message"] = json!(hostile);
    let mut replica = replica(hostile, hostile, json!({"admission": {"refusals": [hostile]}}));
    replica["spec"]["serving"]["name"] = json!(hostile);
    objects
        .nodes
        .push(Arc::new(serde_json::from_value(node).expect("a node")));
    objects
        .replicas
        .push(Arc::new(serde_json::from_value(replica).expect("a replica")));
    let mut event = objects.events[0].as_ref().clone();
    event.message = Some(hostile.to_owned());
    event.reason = Some(hostile.to_owned());
    objects.events.push(Arc::new(event));
    let view = View::new(&objects, vec![Problem::new(TableKind::Macs, hostile)], now());
    let json = serde_json::to_string(&view).expect("serializable");
    let problems: Vec<String> = view.problems().collect();
    for text in [view.text(None), json, problems.join("")] {
        let wrong = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(wrong), "{text:?}");
        assert!(text.contains("owned"));
    }
}

#[test]
fn json_has_numbers_and_null_for_unknown_figures() {
    let json = serde_json::to_value(view()).expect("serializable");
    let replica = &json["replicas"][0];
    assert_eq!(
        replica["tokensPerSecond"],
        json!({"predicted": 55.0, "predictedBasis": "Calibrated", "measured": 51.5})
    );
    assert_eq!(json["replicas"][1]["tokensPerSecond"]["measured"], json!(null));
    assert_eq!(json["macs"][0]["memoryBytes"]["free"], json!(4u64 << 30));
    assert_eq!(json["macs"][1]["bandwidthBytesPerSecond"], json!(null));
    assert_eq!(json["totals"]["readyReplicas"], json!(1));
    assert_eq!(json["time"], json!("2026-01-01T12:00:00Z"));
}

#[test]
fn text_distinguishes_unreadable_tables_from_empty_ones() {
    let problems = vec![Problem::new(TableKind::Macs, "forbidden")];
    let view = View::new(&Objects::default(), problems, now());
    assert_eq!(view.text(Some(TableKind::Macs)), "MACS: unreadable\n");
    assert_eq!(view.text(Some(TableKind::Replicas)), "REPLICAS: none\n");
}

#[test]
fn text_of_all_tables_names_empty_ones() {
    let text = View::new(&Objects::default(), Vec::new(), now()).text(None);
    assert_eq!(
        text,
        "MACS: none\n\nREPLICAS: none\n\nDEPLOYMENTS: none\n\nEVENTS: none\n"
    );
}

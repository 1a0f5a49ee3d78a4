//! A fleet for tests.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::objects::Objects;
use crate::view::View;

/// Time of the views of tests.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

fn object<K: DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": format!("about {kind}"),
        "lastTransitionTime": "2026-01-01T11:00:00Z",
    })
}

/// Returns a Mac with 16 GiB, of which `free` GiB are free. `bandwidth` is measured and free, in
/// GB/s.
pub(crate) fn mac(name: &str, free: f64, bandwidth: Option<(u32, u32)>) -> Value {
    let measured = bandwidth.map(|(measured, _)| format!("{measured}G"));
    let free_bandwidth = bandwidth.map_or_else(|| "-".to_owned(), |(_, free)| format!("{free}GB/s"));
    json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode",
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T10:00:00Z"},
        "spec": {},
        "status": {
            "chip": {"name": "Apple M4 Pro", "cpuCores": 12},
            "dataSheet": {"basis": "Nominal", "memoryBytesPerSecond": 273e9, "source": "Apple"},
            "allocatable": {"memory": "16Gi", "memoryBandwidth": measured},
            "summary": {"freeMemory": format!("{free}Gi"), "freeBandwidth": free_bandwidth},
            "replicas": 1,
            "conditions": [condition("Ready", "True", "AgentReady"), condition("ProbeFresh", "True", "Fresh")],
        },
    })
}

pub(crate) fn replica(name: &str, node: &str, status: Value) -> Value {
    json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
        "metadata": {
            "namespace": "default", "name": name, "creationTimestamp": "2026-01-01T11:30:00Z",
            "labels": {"rooflet.dev/deployment": "guide", "rooflet.dev/revision": "guide-1"},
        },
        "spec": {
            "model": {"source": "local://guide"},
            "serving": {"name": "guide", "maxConcurrency": 4},
            "nodeName": node,
        },
        "status": status,
    })
}

fn served() -> Value {
    json!({
        "phase": "Ready", "reservedMemory": "4Gi",
        "conditions": [condition("Ready", "True", "Serving")],
        "requests": {"running": 2, "waiting": 1, "completed": 40, "failed": 0},
        "admission": {"admitted": true, "speed": {
            "tokensPerSecond": {"p50": 40.0}, "basis": "Nominal",
            "timeToFirstTokenSeconds": {"p50": 0.9}, "timeToFirstTokenBasis": "Nominal",
        }},
        "measured": {
            "tokensPerSecond": "51.5", "timeToFirstTokenSeconds": "0.21", "requests": 40,
            "predicted": {
                "tokensPerSecond": {"p50": 55.0}, "timeToFirstTokenSeconds": {"p50": 0.25}, "basis": "Calibrated",
            },
        },
    })
}

fn event(name: &str, kind: &str, about: &str, reason: &str, time: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name},
        "involvedObject": {"apiVersion": "rooflet.dev/v1alpha1", "kind": kind, "name": about},
        "type": "Warning", "reason": reason, "message": format!("message about {about}"),
        "lastTimestamp": time, "count": 3,
    })
}

/// Returns two Macs, one of them without a measurement, a deployment with two replicas, and events.
pub(crate) fn objects() -> Objects {
    let deployment = json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"namespace": "default", "name": "guide", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"replicas": 2, "model": {"source": "local://guide"}},
        "status": {
            "readyReplicas": 1, "updatedReplicas": 2,
            "tokensPerSecond": "55.0/51.5", "timeToFirstToken": "250ms/210ms",
            "conditions": [condition("Ready", "False", "ReplicasNotReady")],
        },
    });
    let mut other = event("other", "Pod", "web", "Pulled", "2026-01-01T11:59:59Z");
    other["involvedObject"]["apiVersion"] = json!("v1");
    Objects {
        nodes: vec![
            object(mac("mini-1", 4.0, Some((250, 100)))),
            object(mac("mini-2", 16.0, None)),
        ],
        deployments: vec![object(deployment)],
        replicas: vec![
            object(replica("guide-1-a", "mini-1", served())),
            object(replica("guide-1-b", "mini-2", json!({"phase": "Pending"}))),
        ],
        events: [
            event(
                "e1",
                "ModelReplica",
                "guide-1-a",
                "Restarted",
                "2026-01-01T11:58:00Z",
            ),
            event("e2", "FleetNode", "mini-2", "NotReady", "2026-01-01T11:59:00Z"),
            other,
        ]
        .map(object::<Event>)
        .to_vec(),
    }
}

pub(crate) fn view() -> View {
    View::new(&objects(), Vec::new(), now())
}

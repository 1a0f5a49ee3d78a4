//! Evictions after the replacement is Ready.

use super::*;

/// Checks the steps for a deployment of one replica with `maxSurge: 1` and `maxUnavailable: 1`.
#[track_caller]
fn check_surge(nodes: &str, replicas: &str, expect: &str) {
    check_of(&deployment_of(1, 1, 1), nodes, replicas, "", "", expect);
}

#[test]
fn surge_evicts_after_the_replacement_is_ready() {
    check_surge(
        "a drain; b",
        "x on=a",
        "leaving(x: a is being drained) drained(a: 1 replica left; default/x: waits until its replacement is Ready; b has \
         room for it)",
    );
    let waiting = "drained(a: 1 replica left; default/x: waits until its replacement is Ready)";
    check_surge("a drain; b mem=2", "x on=a leaving; y on=b notready", waiting);
    check_surge(
        "a drain; b",
        "x on=a leaving; y on=b",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // A replica that is not Ready is evicted immediately.
    check_surge(
        "a drain; b",
        "x on=a notready",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // A usage taint waits for the replacement, a taint in the spec does not.
    check_surge(
        "a battery; b",
        "x on=a",
        "leaving(x: a has the taint rooflet.dev/on-battery:NoExecute)",
    );
    check_surge("a taint; b", "x on=a", "evict(x)");
    // The drain was cancelled.
    check_surge("a; b", "x on=a leaving; y on=b", "stays(x)");
}

#[test]
fn surge_limits_concurrent_replacements() {
    let three = deployment_of(3, 1, 1);
    check_of(
        &three,
        "a drain; b; c",
        "x on=a; y on=a; z on=c",
        "",
        "",
        "leaving(x: a is being drained) drained(a: 2 replicas left; default/x: waits until its replacement is Ready; b has \
         room for it)",
    );
    let next = "x on=a leaving ending; y on=a; z on=c; w on=b";
    check_of(
        &three,
        "a drain; b; c",
        next,
        "",
        "",
        "leaving(y: a is being drained) drained(a: 2 replicas left; default/x: its worker is stopping)",
    );
}

#[test]
fn evicts_before_the_replacement_if_no_surge_is_possible() {
    // The scheduler found no node for the replacement.
    check_surge(
        "a drain; b",
        "x on=a leaving; y stuck",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    check_surge(
        "a drain; b mem=1",
        "x on=a leaving; y stuck",
        "drained(a: 1 replica left; default/x: no other node accepts a replacement: 0/2 nodes are available: 2 unknown \
         chip: 1 insufficient memory (1.0 GiB free at most), 1 cordoned; b: needs 1.5 GiB (weights 1.0 GiB + KV cache 1.0 \
         KiB for 1 streams of 16 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free)",
    );
    // The replacement does not become Ready.
    check_surge(
        "a drain; b",
        "x on=a leaving=599; y on=b notready",
        "drained(a: 1 replica left; default/x: waits until its replacement is Ready)",
    );
    check_surge(
        "a drain; b",
        "x on=a leaving=600; y on=b notready",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // The strategy permits no unavailable replica.
    check_of(
        &deployment_of(1, 0, 1),
        "a drain; b",
        "x on=a leaving=600; y on=b notready",
        "",
        "",
        "drained(a: 1 replica left; default/x: its deployment has no replica to spare, see \
         spec.strategy.rollingUpdate.maxUnavailable)",
    );
}

#[test]
fn canary_is_no_replacement_of_a_single_replica() {
    let canary = |unavailable, surge, weight: i32| {
        let mut deployment = deployment_of(1, unavailable, surge);
        let share = |revision: &str, weight| TrafficShare {
            revision: revision.to_owned(),
            weight,
        };
        deployment.status = Some(ModelDeploymentStatus {
            traffic: vec![share("old", 100 - weight), share("new", weight)],
            rollout: RolloutStatus {
                revision: Some("new".to_owned()),
                ..RolloutStatus::default()
            },
            ..ModelDeploymentStatus::default()
        });
        deployment
    };
    let both = "x on=a rev=old; y on=b rev=new";
    let first = "leaving(x: a is being drained) drained(a: 1 replica left; default/x: waits until its replacement is Ready; \
                 b has room for it)";
    check_of(&canary(0, 1, 10), "a drain; b", both, "", "", first);
    // Without a surge, the replica leaves only if another node has room.
    let evicts = "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)";
    check_of(&canary(1, 0, 10), "a drain; b", both, "", "", evicts);
    let plan = plan_of(&canary(1, 0, 10), "a drain; b mem=1", both, "", "");
    assert!(plan.contains("no other node accepts a replacement"), "{plan}");
    // The replacement of the stable revision is Ready.
    let replaced = "x on=a rev=old leaving; y on=b rev=new; z on=b rev=old";
    check_of(&canary(0, 1, 10), "a drain; b", replaced, "", "", evicts);
    // The canary itself can be spared.
    let evicts = "evict(y) drained(b: 1 replica left; default/y: its worker is stopping)";
    check_of(&canary(0, 1, 10), "a; b drain", both, "", "", evicts);
    // With all requests, the canary is the replacement.
    let evicts = "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)";
    check_of(&canary(0, 1, 100), "a drain; b", both, "", "", evicts);
}

/// A move is requested by `rooflet rebalance --apply`.
#[test]
fn moving_replica_is_evicted_like_one_on_a_drained_node() {
    // The current node has room, but is not a target.
    check_surge(
        "a; b",
        "x on=a moves=b",
        "leaving(x: its move to b was requested)",
    );
    check_surge(
        "a; b",
        "x on=a moves=b; y on=b notready",
        "leaving(x: its move to b was requested)",
    );
    check_surge("a; b", "x on=a moves=b leaving; y on=b", "evict(x)");
    check_surge("a", "x on=a moves=b", "");
    // Another node is accepted as well. A replica on the target node stays.
    check_surge(
        "a; c",
        "x on=a moves=b",
        "leaving(x: its move to b was requested)",
    );
    check_surge("a; b", "x on=b moves=b", "");
    check("a; b", "x on=a moves=b; y on=a", "", "", "evict(x)");
}

#[test]
fn replicas_of_a_stopped_agent_are_replaced_after_a_short_time() {
    check("a stopped=9; b", "x on=a notready", "", "", "");
    check("a stopped=10; b", "x on=a notready", "", "", "evict(x)");
    // The agent left its workers running.
    check("a stopped=60; b", "x on=a", "", "", "");
    check("a stopped=60", "x on=a notready", "", "", "");
}

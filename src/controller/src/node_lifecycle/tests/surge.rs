//! Replacements that come before a replica goes.

use super::*;

/// A deployment of one replica with room for one more.
#[track_caller]
fn check_surge(nodes: &str, replicas: &str, expect: &str) {
    check_of(&deployment_of(1, 1, 1), nodes, replicas, "", "", expect);
}

#[test]
fn where_a_surge_is_allowed_the_replacement_answers_before_a_replica_goes() {
    check_surge(
        "a drain; b",
        "x on=a",
        "leaving(x: a is being drained) drained(a: 1 replica left; default/x: its replacement comes first, and b has \
         room for it)",
    );
    let waiting = "drained(a: 1 replica left; default/x: its replacement does not answer requests yet)";
    check_surge("a drain; b mem=2", "x on=a leaving; y on=b notready", waiting);
    check_surge(
        "a drain; b",
        "x on=a leaving; y on=b",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // It need not wait for itself.
    check_surge(
        "a drain; b",
        "x on=a notready",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // Quiet hours and the like are gentle, too; a person's taint is not.
    check_surge(
        "a battery; b",
        "x on=a",
        "leaving(x: a has the taint rooflet.dev/on-battery:NoExecute)",
    );
    check_surge("a taint; b", "x on=a", "evict(x)");
    // Somebody has changed their mind.
    check_surge("a; b", "x on=a leaving; y on=b", "stays(x)");
}

#[test]
fn as_many_are_replaced_first_as_the_surge_allows() {
    let three = deployment_of(3, 1, 1);
    check_of(
        &three,
        "a drain; b; c",
        "x on=a; y on=a; z on=c",
        "",
        "",
        "leaving(x: a is being drained) drained(a: 2 replicas left; default/x: its replacement comes first, and b has \
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
fn a_replica_goes_first_where_no_replacement_can_come_before_it() {
    // The scheduler has found no node for both.
    check_surge(
        "a drain; b",
        "x on=a leaving; y stuck",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    check_surge(
        "a drain; b mem=1",
        "x on=a leaving; y stuck",
        "drained(a: 1 replica left; default/x: no other node takes it: 0/2 nodes are available: 2 unknown \
         chip: 1 insufficient memory (1.0 GiB free at most), 1 cordoned; b: needs 1.5 GiB (weights 1.0 GiB + KV cache 1.0 \
         KiB for 1 streams of 16 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free)",
    );
    // The replacement does not become ready.
    check_surge(
        "a drain; b",
        "x on=a leaving=599; y on=b notready",
        "drained(a: 1 replica left; default/x: its replacement does not answer requests yet)",
    );
    check_surge(
        "a drain; b",
        "x on=a leaving=600; y on=b notready",
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // And nobody may be missing.
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

/// Somebody wants a replica to be elsewhere (`rooflet rebalance --apply`).
#[test]
fn a_replica_that_is_to_move_leaves_like_one_of_a_drained_node() {
    // Its own node has room, and is none to move to.
    check_surge("a; b", "x on=a moves=b", "leaving(x: it is to move to b)");
    check_surge(
        "a; b",
        "x on=a moves=b; y on=b notready",
        "leaving(x: it is to move to b)",
    );
    check_surge("a; b", "x on=a moves=b leaving; y on=b", "evict(x)");
    check_surge("a", "x on=a moves=b", "");
    // Another node does as well; and who is there already stays.
    check_surge("a; c", "x on=a moves=b", "leaving(x: it is to move to b)");
    check_surge("a; b", "x on=b moves=b", "");
    check("a; b", "x on=a moves=b; y on=a", "", "", "evict(x)");
}

#[test]
fn what_a_stopped_agent_leaves_behind_is_replaced_at_once() {
    check("a stopped=9; b", "x on=a notready", "", "", "");
    check("a stopped=10; b", "x on=a notready", "", "", "evict(x)");
    // Its workers were left running.
    check("a stopped=60; b", "x on=a", "", "", "");
    check("a stopped=60", "x on=a notready", "", "", "");
}

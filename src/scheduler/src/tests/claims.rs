//! Resources and deletions of replicas on nodes that do not report them.

use super::*;

#[test]
fn preemption_does_not_wait_for_a_node_that_is_not_ready() {
    let replicas = "p on=a of=d ending priority=1; q on=b of=e ready priority=1; x nominated=a priority=5";
    let b = "b mem=4 model=guide:3";
    let waits = describe(&format!("a mem=4 model=guide:3; {b}"), replicas, 0);
    assert!(waits.starts_with("x: 0/2 nodes are available"), "{waits}");
    check(
        &format!("a mem=4 model=guide:3 notready; {b}"),
        replicas,
        "x preempts q on b",
    );
}

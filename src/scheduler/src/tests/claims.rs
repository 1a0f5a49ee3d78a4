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

#[test]
fn admitted_chip_time_counts_without_a_listed_model() {
    let nodes = "a mem=64 chip=M4_Pro/20 model=guide:4";
    let beside = |resident: &str| {
        let placed = describe(nodes, &format!("{resident}; x rate=30"), 0);
        placed.split(':').next().map(str::to_owned)
    };
    for kind in ["model=renamed", "file"] {
        let resident = |share: &str| format!("y on=a {kind} reserved=4 ready {share}");
        assert_eq!(beside(&resident("share=80")).as_deref(), Some("x"), "{kind}");
        assert_eq!(beside(&resident("share=20")).as_deref(), Some("x->a"), "{kind}");
        assert_eq!(beside(&resident("")).as_deref(), Some("x->a"), "{kind}");
    }
    assert_eq!(
        beside("y on=a file reserved=4 failed share=80").as_deref(),
        Some("x->a")
    );
}

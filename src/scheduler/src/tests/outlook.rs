//! Share of a node that other deployments leave to a deployment.

use super::fixture::{lines, node, replica};
use crate::fleet::Fleet;
use crate::request::ReplicaKey;

/// Returns the percentage of chip time for `count` replicas of deployment `d` on node `a`.
fn left(replicas: &str, has_objectives: bool, count: u32) -> i64 {
    let nodes = [node("a chip=M4_Max/40 mem=64 model=guide:2")];
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let fleet = Fleet::new(&nodes, &replicas);
    let deployment = ReplicaKey {
        namespace: "default".to_owned(),
        name: "d".to_owned(),
    };
    let node = fleet.node("a").expect("it is there");
    (node.left_to(&deployment, has_objectives, count) * 100.0).round() as i64
}

#[test]
fn reserved_shares_of_other_deployments_are_excluded() {
    // Own replicas and failed replicas do not count.
    for none in ["", "x of=d on=a; y of=d on=a rate=20", "x of=e on=a failed"] {
        assert_eq!(left(none, false, 1), 100, "{none}");
        assert_eq!(left(none, true, 1), 100, "{none}");
    }
    let remaining = left("x of=e on=a rate=40", true, 1);
    assert!(
        (20..90).contains(&remaining),
        "{remaining} % beside 40 tokens/s of 2 GiB at 546 GB/s"
    );
    assert_eq!(left("x of=e on=a rate=40", false, 1), remaining);
    // Best-effort replicas keep 5 % next to objectives, and share equally among themselves.
    assert_eq!(left("x of=e on=a", true, 1), 95);
    assert_eq!(left("x of=e on=a", false, 1), 50);
    assert_eq!(left("x of=e on=a", false, 3), 75);
}

//! What the replicas of a node leave to those of another deployment.

use super::fixture::{lines, node, replica};
use crate::fleet::Fleet;
use crate::request::ReplicaKey;

/// Percent of the chip's time that is left to so many replicas of the deployment `d` on `a`.
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
fn what_others_were_promised_is_not_left() {
    // Its own are no others, and of one that failed nothing runs.
    for none in ["", "x of=d on=a; y of=d on=a rate=20", "x of=e on=a failed"] {
        assert_eq!(left(none, false, 1), 100, "{none}");
        assert_eq!(left(none, true, 1), 100, "{none}");
    }
    let promised = left("x of=e on=a rate=40", true, 1);
    assert!(
        (20..90).contains(&promised),
        "{promised} % beside 40 tokens/s of 2 GiB at 546 GB/s"
    );
    assert_eq!(left("x of=e on=a rate=40", false, 1), promised);
    // Best effort keeps its 5 % beside objectives, and shares alike beside its like.
    assert_eq!(left("x of=e on=a", true, 1), 95);
    assert_eq!(left("x of=e on=a", false, 1), 50);
    assert_eq!(left("x of=e on=a", false, 3), 75);
}

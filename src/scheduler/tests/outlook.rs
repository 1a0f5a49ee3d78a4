//! What a fleet would do for replicas that do not exist yet: as it is, not at its best.

use super::fixture::{lines, node, replica};
use crate::scheduler::fleet::Fleet;
use crate::scheduler::outlook::Outlook;
use crate::scheduler::request::{ReplicaKey, ReplicaRequest};

const MAX: &str = "max mem=64 chip=M4_Max/40 model=guide:4";
const AIR: &str = "air mem=12 chip=M4/10 model=guide:4";

/// Of so many replicas of `d`, when its own have left.
fn outlook(nodes: &str, bound: &str, count: usize) -> Outlook {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let bound: Vec<_> = lines(bound).map(replica).collect();
    let fleet = Fleet::new(&nodes, &bound);
    let own = bound
        .iter()
        .map(ReplicaKey::of)
        .filter(|key| key.name.starts_with('d'));
    let own: Vec<_> = own.collect();
    fleet.outlook(&ReplicaRequest::new(&replica("new of=d")), count, &own)
}

fn on(outlook: &Outlook) -> String {
    outlook.nodes.iter().cloned().collect::<Vec<_>>().join(" ")
}

#[test]
fn it_is_where_the_scheduler_would_put_them() {
    let fleet = format!("{MAX}; {AIR}");
    let rate = |outlook: &Outlook| outlook.tokens_per_second.expect("both chips are known");
    let first = outlook(&fleet, "", 1);
    assert_eq!(on(&first), "air");
    let both = outlook(&fleet, "", 2);
    assert_eq!(on(&both), "air max");
    let max = rate(&both) - rate(&first);
    assert!(max > 3.0 * rate(&first), "{both:?}");
    // One more on a chip that has one adds nothing.
    let three = outlook(&fleet, "", 3);
    assert!((rate(&three) - rate(&both)).abs() < 1e-9, "{three:?}");
    // What is cordoned or full of others takes none; what its own replicas take counts as free.
    assert_eq!(on(&outlook(&format!("{MAX}; {AIR} cordoned"), "", 1)), "max");
    assert_eq!(on(&outlook(&fleet, "o of=e on=air; p of=e on=air", 1)), "max");
    assert_eq!(on(&outlook(&fleet, "d1 of=d on=air; d2 of=d on=air", 1)), "air");
    let alone = outlook(AIR, "o of=e on=air; p of=e on=air", 1);
    assert_eq!(alone.tokens_per_second, Some(0.0));
    let (unplaced, why) = alone.unplaced.expect("there is no room");
    assert_eq!(unplaced, 1);
    assert!(why.contains("insufficient memory"), "{why}");
}

#[test]
fn a_node_of_unknown_speed_neither_counts_nor_hides_the_others() {
    let nobody_knows = "old mem=10 model=guide:4";
    assert_eq!(outlook(nobody_knows, "", 1).at_most(), None);
    let with_air = outlook(&format!("{AIR}; {nobody_knows}"), "", 2);
    let air = outlook(AIR, "", 1).tokens_per_second.expect("its chip is known");
    assert_eq!((with_air.tokens_per_second, with_air.unknown), (Some(air), 1));
    // It may be as fast, for all that is known.
    assert_eq!(with_air.at_most(), Some(2.0 * air));
}

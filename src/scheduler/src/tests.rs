mod claims;
mod events;
mod fixture;
mod outlook;
mod properties;
mod quality;
mod reserve;
mod rivals;
mod unschedulable;
mod unschedulable_queue;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fleet::Fleet;
use super::request::{ReplicaKey, ReplicaRequest};
use crate::placement::bind::{bind_all, decide_all};
use crate::placement::choice::place;
use crate::placement::rebalance::rebalance;
use fixture::{lines, node, replica, set_ready};
use rooflet_api::v1alpha1::*;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::ServedModel;
/// Decides for the unscheduled replicas in the given order. Prints `x->a`, `x: REASON` or
/// `x preempts y on a`.
fn check(nodes: &str, replicas: &str, expect: &str) {
    check_with_reserve(nodes, replicas, 0, expect);
}

fn check_with_reserve(nodes: &str, replicas: &str, node_failures: usize, expect: &str) {
    assert_eq!(describe(nodes, replicas, node_failures), expect);
}

fn describe(nodes: &str, replicas: &str, node_failures: usize) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas).with_reserve(node_failures);
    let requests: Vec<_> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none())
        .map(ReplicaRequest::new)
        .collect();
    let lines: Vec<_> = decide_all(&requests, &mut fleet, 1)
        .into_iter()
        .map(|decision| match (decision.outcome, decision.preemption) {
            (Ok(placement), _) => format!("{}->{}", decision.key.name, placement.node()),
            (Err(_), Some(preemption)) => {
                let victims: Vec<_> = preemption.victims.into_iter().map(|victim| victim.name).collect();
                let (key, victims) = (decision.key.name, victims.join("+"));
                format!("{key} preempts {victims} on {}", preemption.node)
            }
            (Err(why), None) => format!("{}: {why}", decision.key.name),
        })
        .collect();
    lines.join("\n")
}

#[test]
fn prefers_least_free_memory_without_sibling() {
    let nodes = "a mem=16 model=guide:2; b mem=32 model=guide:2; c mem=8 model=guide:2";
    check(nodes, "x", "x->c");
    check(
        nodes,
        "x of=d; y of=d; z of=d; w of=d; other of=e",
        "x->c\ny->a\nz->b\nw->c\nother->a",
    );
    check("b model=guide:2; a model=guide:2", "x", "x->a");
    // The order is: nodes without other replicas, nodes with the model in memory, smaller nodes.
    check(nodes, "old on=b; x", "x->c");
    let nodes = "a mem=16 model=guide:2,other:2; b mem=32 model=guide:2";
    check(nodes, "one on=a model=other; old on=b; x", "x->b");
}

#[test]
fn prefers_faster_disk_on_equal_nodes() {
    // 6 GiB at 1 GB/s are 6.4 s, at 6 GB/s 1.1 s.
    check(
        "a mem=8 disk=1 model=guide:6; b mem=16 disk=6 model=guide:6",
        "x",
        "x->b",
    );
    // Disks within a factor of two are equal: less free memory decides.
    check(
        "a mem=8 disk=5 model=guide:6; b mem=16 disk=6 model=guide:6",
        "x",
        "x->a",
    );
    // Without a measurement, disks have the published 4.6 GB/s.
    check(
        "a mem=8 disk=1 model=guide:6; b mem=16 model=guide:6",
        "x",
        "x->b",
    );
    // Slack has precedence.
    check(
        "a chip=M4_Pro mem=40 disk=7 model=guide:6; b chip=M4_Max/40 mem=40 disk=0.5 model=guide:6",
        "x rate=30",
        "x->b",
    );
    // A model in memory is not read again, but nodes without other replicas have precedence.
    check(
        "a mem=16 disk=1 model=guide:6; b mem=16 disk=7 model=guide:6",
        "old on=a; x",
        "x->b",
    );
    check(
        "a mem=16 disk=1 model=guide:6; b mem=16 disk=7 model=guide:6,other:6",
        "old on=a; other on=b model=other; x",
        "x->a",
    );
}

#[test]
fn artifact_of_a_replica_does_not_affect_other_replicas() {
    // Same source, different size.
    let replicas = ["x of=d download=1", "y of=e download=20"].map(replica);
    let requests = replicas.each_ref().map(ReplicaRequest::new);
    let mut fleet = Fleet::new(&[node("a mem=8")], &replicas);
    let decisions = decide_all(&requests, &mut fleet, 1);
    let placed = decisions.iter().map(|decision| decision.outcome.is_ok());
    assert_eq!(placed.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn prefers_node_with_earliest_download() {
    // 6 GiB at 50 MB/s are 129 s, at 200 MB/s 32 s.
    check("a mem=8 network=50; b mem=16 network=200", "x download=6", "x->b");
    // Networks within a factor of two are equal: less free memory decides.
    check(
        "a mem=8 network=110; b mem=16 network=125",
        "x download=6",
        "x->a",
    );
    // Without a measurement: 40 MB/s.
    check("a mem=8 network=10; b mem=16", "x download=6", "x->b");
    check("a mem=8; b mem=16 network=100", "x download=6", "x->b");
    // A downloaded model is only read from disk.
    check(
        "a mem=8 network=1000; b mem=16 disk=1 pulled=6",
        "x download=6",
        "x->b",
    );
    check("a mem=8 network=1000 pulled=6; b mem=16", "x download=6", "x->a");
    // Nodes without other replicas come first. Among the rest, a node with the model needs no
    // download.
    check(
        "a mem=16 network=10; b mem=16 network=1000",
        "old on=a download=6; x download=6",
        "x->b",
    );
    check(
        "a mem=16 network=10; b mem=16 network=1000 model=guide:2",
        "old on=a download=6; other on=b; x download=6",
        "x->a",
    );
    // Slack has precedence.
    check(
        "a chip=M4_Pro mem=40 network=1000; b chip=M4_Max/40 mem=40 network=10",
        "x rate=30 download=6",
        "x->b",
    );
}

#[test]
fn requires_disk_space_for_the_download() {
    check("a mem=8 room=5; b mem=16 room=6", "x download=6", "x->b");
    // A pending download counts; a finished one does not.
    check(
        "a mem=16 room=11",
        "old on=a download=6 anti=Ignored; y download=6 anti=Ignored",
        "y: 0/1 nodes are available: 1 unknown chip: insufficient disk (5.0 GiB free at most); a: 6.0 GiB of the model are to be downloaded, and 5.0 GiB of the 11.0 GiB that replicas may store on the node's disk are unreserved. Remedies, smallest change first: fewer other replicas on a",
    );
    check(
        "a mem=16 room=0 pulled=6",
        "old on=a download=6 anti=Ignored; y download=6 anti=Ignored",
        "y->a",
    );
    check(
        "a mem=8 room=8",
        "x download=6 store=3",
        "x: 0/1 nodes are available: 1 unknown chip: insufficient disk (8.0 GiB free at most); a: 6.0 GiB of the model are to be downloaded, spec.serving.kvCache.diskSize is 3.0 GiB, and 8.0 GiB of the 8.0 GiB that replicas may store on the node's disk are unreserved. Remedies, smallest change first: spec.serving.kvCache.diskSize: 2Gi for a",
    );
}

#[test]
fn strategies_choose_differently() {
    let nodes = "air chip=M4 mem=10 model=guide:2; max chip=M4_Max/40 mem=60 model=guide:2; pro chip=M4_Pro mem=40 model=guide:2";
    check(nodes, "x", "x->max");
    check(nodes, "x rate=20", "x->pro");
    check(nodes, "x strategy=Fastest", "x->max");
    check(nodes, "x strategy=Spread", "x->max");
    check(nodes, "old on=pro model=guide; x strategy=BinPack", "x->pro");
    check(
        nodes,
        "x of=d strategy=BinPack; y of=d strategy=BinPack; z of=d strategy=BinPack anti=Required",
        "x->air\ny->air\nz->pro",
    );
    // Existing replicas reduce the speed.
    check(
        nodes,
        "a on=max rate=50; b on=max rate=50; x strategy=Fastest",
        "x->pro",
    );
}

#[test]
fn slo_slack_prefers_the_smallest_node_with_enough_slack() {
    let nodes = "a chip=M4_Pro mem=40 model=guide:4; b chip=M4_Max/40 mem=40 model=guide:4";
    check(nodes, "x rate=10", "x->a");
    // More than half of the slower chip's time.
    check(nodes, "x rate=40", "x->b");
    check(nodes, "old on=a rate=30; x rate=10", "x->b");
    check(nodes, "old on=b rate=50; x rate=10", "x->a");
}

#[test]
fn smaller_model_gets_the_faster_node_of_one_call() {
    let nodes = "m4 chip=M4 mem=16 model=middle:6,tiny:3; pro chip=M4_Pro mem=20 model=middle:6,tiny:3";
    check(nodes, "x model=middle; y model=tiny", "x->m4\ny->pro");
    // Equal models, other strategies and bound replicas are not exchanged.
    check(nodes, "x model=tiny; y model=tiny", "x->pro\ny->m4");
    check(
        nodes,
        "x model=middle strategy=Fastest; y model=tiny",
        "x->pro\ny->m4",
    );
    check(nodes, "x on=pro model=middle; y model=tiny", "y->m4");
    // The slower node has no room for the larger model.
    check(
        "m4 chip=M4 mem=5 model=tiny:3; pro chip=M4_Pro mem=20 model=middle:6,tiny:3",
        "x model=middle; y model=tiny",
        "x->pro\ny->m4",
    );
}

#[test]
fn placements_of_one_call_leave_memory_for_the_largest() {
    let nodes = "a chip=M4_Pro mem=10 model=guide:4; b chip=M4_Pro mem=10 model=guide:4; \
                 max chip=M4_Max/40 mem=40 model=guide:4,large:36";
    check(nodes, "x rate=41; y rate=41", "x->max\ny->a");
    check(nodes, "x rate=41; y rate=41; z model=large", "x->b\ny->a\nz->max");
    // Bound replicas do not move.
    check(
        nodes,
        "x on=max rate=41; y rate=41; z model=large",
        "y->a\n\
         z: 0/3 nodes are available: 1 Apple M4 Max: insufficient memory (35.5 GiB free at most); 2 Apple M4 Pro: no model \
         `large` in the model directory; max: needs 36.5 GiB (weights 36.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 \
         tokens + activations 0 B + runtime 476.8 MiB), 35.5 GiB free. Remedies, smallest change first: fewer other \
         replicas on max",
    );
}

#[test]
fn deployments_without_objectives_use_idle_and_fast_nodes_first() {
    let class = |chip: &'static str, mem: u32, count: usize| {
        let prefix = chip.to_lowercase();
        (0..count).map(move |index| format!("{prefix}-{index} chip={chip} mem={mem} model=guide:4"))
    };
    let nodes: Vec<String> = class("M4", 10, 6)
        .chain(class("M4_Pro", 18, 4))
        .chain(class("M3_Ultra", 180, 2))
        .collect();
    let placed = |count: usize| {
        let nodes: Vec<FleetNode> = nodes.iter().map(|line| node(line)).collect();
        let replicas = (0..count).map(|index| replica(&format!("r{index} of=d{index}")));
        let requests: Vec<_> = replicas.map(|replica| ReplicaRequest::new(&replica)).collect();
        let mut fleet = Fleet::new(&nodes, []);
        assert!(
            bind_all(&requests, &mut fleet)
                .iter()
                .all(|decision| decision.outcome.is_ok())
        );
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in &fleet.nodes {
            let class = node.name.rsplit_once('-').expect("an index").0;
            *counts.entry(class.to_owned()).or_default() += node.residents.len();
        }
        counts.into_iter().collect::<Vec<_>>()
    };
    let counts = |m3_ultra, m4, m4_pro| {
        [("m3_ultra", m3_ultra), ("m4", m4), ("m4_pro", m4_pro)]
            .map(|(class, count)| (class.to_owned(), count))
    };
    assert_eq!(placed(5), counts(2, 0, 3));
    assert_eq!(placed(12), counts(2, 6, 4));
    // Then in proportion to bandwidth: 819, 120 and 273 GB/s.
    let forty = placed(40);
    assert!(forty[0].1 >= 12 && forty[1].1 <= 12, "{forty:?}");
}

#[test]
fn required_anti_affinity_separates_replicas() {
    let nodes = "a model=guide:2; b model=guide:2";
    check(
        nodes,
        "x of=d anti=Required; y of=d anti=Required; z of=d anti=Required",
        "x->a\ny->b\nz: 0/2 nodes are available: 2 unknown chip: already runs a replica of the same deployment \
         (spec.placement.antiAffinity). Remedies, smallest change first: spec.placement.antiAffinity: Preferred",
    );
    check(
        nodes,
        "x of=d anti=Ignored; y of=d anti=Ignored; z of=d anti=Ignored",
        "x->a\ny->b\nz->a",
    );
    // A terminating replica does not count.
    check(
        "a model=guide:2",
        "old of=d on=a ending; x of=d anti=Required",
        "x->a",
    );
}

#[test]
fn spread_balances_domains_of_a_label() {
    let nodes = "a label=zone:x mem=64 model=guide:2; b label=zone:x mem=64 model=guide:2; \
                 c label=zone:y mem=8 model=guide:2; d mem=64 model=guide:2";
    let four = |more: &str| -> String {
        let one = |name: &str| format!("{name} of=d anti=Ignored spread=zone {more}");
        [one("p"), one("q"), one("r"), one("s")].join("; ")
    };
    // c has the least free memory; then zone x has the fewest replicas.
    check(nodes, &four(""), "p->c\nq->a\nr->b\ns->c");
    let full = format!("old on=c reserved=7; {}", four(""));
    let none = "0/4 nodes are available: 4 unknown chip: 1 insufficient memory (1.0 GiB free at most), 2 would exceed \
                spec.placement.spread.maxSkew in zone=x, 1 no label zone of spec.placement.spread; c: needs 2.5 GiB (weights \
                2.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB \
                free. Remedies, smallest change first: add the label zone to d; spec.placement.spread.maxSkew: 2, or \
                whenUnsatisfiable: ScheduleAnyway; fewer other replicas on c";
    check(nodes, &full, &format!("p->a\nq: {none}\nr: {none}\ns: {none}"));
    let full = format!("old on=c reserved=7; {}", four("anyway"));
    check(nodes, &full, "p->a\nq->b\nr->a\ns->b");
    // Every node is its own domain.
    check(
        "a model=guide:2; b model=guide:2",
        "x of=d anti=Ignored spread=kubernetes.io/hostname; y of=d anti=Ignored spread=kubernetes.io/hostname",
        "x->a\ny->b",
    );
}

#[test]
fn replicas_of_an_old_revision_do_not_block_nodes() {
    let nodes = "air model=guide:2 mem=16; max model=guide:2 mem=64; pro model=guide:2 mem=48";
    // The last old replica still runs on pro when the last new one is placed.
    let rollout =
        "old of=d rev=1 on=pro; p of=d rev=2 on=air; q of=d rev=2 on=max; x of=d rev=2 strategy=Spread";
    check(nodes, rollout, "x->pro");
    // With equal numbers of new replicas, old ones count.
    check(
        nodes,
        "old of=d rev=1 on=max; p of=d rev=2 on=air; x of=d rev=2 strategy=Spread",
        "x->pro",
    );
    // Never two replicas of any revisions on one node.
    let required = format!("{rollout} anti=Required; y of=d rev=2 anti=Required");
    assert!(
        describe(nodes, &required, 0)
            .contains("3 unknown chip: already runs a replica of the same deployment")
    );
    // The remaining replicas are spread, in any order of removal.
    let zones = "a label=zone:x mem=8 model=guide:2; b label=zone:x mem=64 model=guide:2; c label=zone:y mem=64 model=guide:2";
    check(
        zones,
        "p of=d rev=1 on=c; q of=d rev=2 on=a; x of=d rev=2 spread=zone; y of=d rev=2 spread=zone",
        "x->c\ny->b",
    );
}

#[test]
fn preemption_evicts_lowest_priority_at_least_cost() {
    let nodes = "a mem=8 model=guide:3; b mem=8 model=guide:3";
    let low = "p on=a of=d ready priority=1; q on=a of=e priority=2; r on=b of=f ready priority=1; s on=b of=f ready priority=1";
    // Each node holds two of 3.5 GiB. On a, p would leave its deployment without a replica; q has a
    // higher priority.
    check(nodes, &format!("{low}; x priority=5"), "x preempts s on b");
    check(nodes, &format!("{low}; x priority=2"), "x preempts s on b");
    // Never a victim of the same or a higher priority.
    let equal = |name: &str| format!("x priority={name}");
    let expect = "x: 0/2 nodes are available: 2 unknown chip: insufficient memory (1.1 GiB free at most); a: needs 3.5 GiB \
                (weights 3.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), \
                1.1 GiB free. Remedies, smallest change first: fewer other replicas on a";
    check(nodes, &format!("{low}; {}", equal("1")), expect);
    check(nodes, &format!("{low}; {}", equal("-1")), expect);
    // Never a victim without a controller that replaces it.
    check(
        "a mem=4 model=guide:3",
        "p on=a priority=-3; x",
        "x: 0/1 nodes are available: 1 unknown chip: insufficient memory (543.2 MiB free at most); a: needs 3.5 GiB \
         (weights 3.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 543.2 MiB \
         free. Remedies, smallest change first: fewer other replicas on a",
    );
}

#[test]
fn nomination_reserves_released_capacity() {
    let nodes = "a mem=8 model=guide:3,small:1";
    let leaving = "p on=a of=d ending; q on=a of=e ready priority=9; x nominated=a priority=5";
    let waits = "x: 0/1 nodes are available: 1 unknown chip: insufficient memory (1.1 GiB free at most); a: needs 3.5 GiB \
                 (weights 3.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), \
                 1.1 GiB free. Remedies, smallest change first: fewer other replicas on a";
    check(nodes, leaving, waits);
    // After the end of p, only x and higher priorities may use the capacity.
    let left = "q on=a of=e ready priority=9; y model=small priority=4; x nominated=a priority=5";
    check(
        nodes,
        left,
        "y: 0/1 nodes are available: 1 unknown chip: insufficient memory (1.1 GiB free at most); a: needs 1.5 GiB (weights \
         1.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.1 GiB free. Remedies, smallest change first: fewer other replicas on a\nx->a",
    );
    check(
        nodes,
        "q on=a of=e priority=9; y priority=6; x nominated=a priority=5",
        &format!("y->a\n{waits}"),
    );
}

#[test]
fn score_table_compares_the_next_best_nodes() {
    let nodes: Vec<_> = lines("a mem=16 model=guide:2; b mem=8 model=guide:2; c cordoned")
        .map(node)
        .collect();
    let x = replica("x of=d");
    let old = replica("old of=d on=b");
    let mut fleet = Fleet::new(&nodes, [&x, &old]);
    let placement = place(&ReplicaRequest::new(&x), &mut fleet).expect("two fit");
    assert_eq!(
        placement.table.to_string(),
        "2 of 3 nodes fit, best by SloSlack: a (speed unknown, 0 % slack lost, weights read within 1 s by a nominal disk speed, 13.5 GiB left \
         free); b (1 replicas of the same deployment, speed unknown, 0 % slack lost, model loaded, 3.1 GiB left free)"
    );
}

/// Returns the proposed moves as `x a->b for y`.
fn moves(nodes: &str, replicas: &str) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas);
    let waiting: Vec<_> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none())
        .map(ReplicaRequest::new)
        .collect();
    let moves: Vec<_> = rebalance(&mut fleet, &waiting)
        .into_iter()
        .map(|one| {
            let reason = one
                .makes_room_for
                .map_or_else(String::new, |key| format!(" for {}", key.name));
            format!("{} {}->{}{reason}", one.replica.name, one.from, one.to)
        })
        .collect();
    assert_eq!(rebalance(&mut fleet, &waiting), [], "the moves were made already");
    moves.join(", ")
}

#[test]
fn proposes_moves_that_are_worth_their_cost() {
    let nodes = "a mem=16 model=guide:2; b mem=16 model=guide:2; pro chip=M4_Pro mem=40 model=guide:2; \
                 max chip=M4_Max/40 mem=40 model=guide:2";
    let check = |replicas: &str, expect: &str| assert_eq!(moves(nodes, replicas), expect);
    check("p of=d on=a ready; q of=d on=b ready", "");
    check("p of=d on=a ready; q of=d on=a ready", "p a->max");
    // Neither replicas that are not ready nor ones without a controller.
    check("p of=d on=a; q of=d on=a", "");
    check("p on=pro rate=80 ready", "");
    check("p of=d on=pro rate=80 ready", "p pro->max");
    check("p of=d on=pro rate=40 ready", "");
    check("p of=d on=pro strategy=Fastest ready", "p pro->max");
    check(
        "p of=d on=a ready strategy=BinPack; q of=e on=b ready strategy=BinPack",
        "p a->b",
    );
    // The node is overcommitted.
    check(
        "p of=d on=pro rate=70 ready; q of=e on=pro rate=70 ready",
        "p pro->max",
    );
}

#[test]
fn move_includes_bytes_and_time_of_loading() {
    let read = |there: &str, replicas: &str| {
        let nodes = format!("a mem=16 model=guide:2; b mem=16 model=guide:2 {there}");
        let nodes: Vec<_> = lines(&nodes).map(node).collect();
        let replicas: Vec<_> = lines(replicas).map(replica).collect();
        let moves = rebalance(&mut Fleet::new(&nodes, &replicas), &[]);
        moves[0].arrival.map(|arrival| arrival.to_string())
    };
    let together = "p of=d on=a ready; q of=d on=a ready";
    assert_eq!(
        read("disk=2", together).as_deref(),
        Some("reads 2.0 GiB, in about 1.1 s (at the measured speed of its disk)")
    );
    assert_eq!(
        read("", together).as_deref(),
        Some(
            "reads 2.0 GiB, in about 0.5 s (at the published speed of Mac disks, because this disk is not measured)"
        )
    );
    assert_eq!(
        read("", &format!("{together}; r of=e on=b ready")),
        None,
        "it is in memory"
    );
}

#[test]
fn moves_release_capacity_for_unscheduled_replicas() {
    let nodes = "a mem=11 model=small:2,mid:5,large:9; b mem=11 model=small:2,mid:5,large:9; c mem=6 model=small:2,mid:5";
    // Neither `a` nor `b` has enough free memory, but both together do.
    let small = "p of=d on=a model=small ready; q of=e on=b model=small ready; r of=f on=c model=mid ready; ";
    let large = |more: &str| format!("{small}x of=x model=large {more}");
    assert_eq!(moves(nodes, &large("")), "p a->b for x");
    // The smaller replica moves. Replicas that block nothing stay.
    let uneven = "p of=d on=a model=mid ready; q of=e on=b model=small ready; x model=large";
    assert_eq!(moves(nodes, uneven), "q b->c for x");
    // Several replicas move from one node to several nodes.
    let two = "n mem=11 model=small:2,large:9; b mem=4 model=small:2; c mem=4 model=small:2";
    assert_eq!(
        moves(
            two,
            "p of=d on=n model=small ready; q of=e on=n model=small ready; x model=large"
        ),
        "p n->b for x, q n->c for x"
    );
    // No moves: one replica fits nowhere else, or may not move.
    assert_eq!(
        moves(
            two,
            "p of=d on=n model=small ready; q of=e on=n model=small ready; r of=f on=b model=small ready; x model=large"
        ),
        ""
    );
    assert_eq!(moves(nodes, &large("select=zone:y")), "");
    assert_eq!(
        moves(
            "n mem=11 model=small:2,large:9; b mem=4 model=small:2",
            "p on=n model=small ready; x model=large"
        ),
        ""
    );
    // The replica fits without moves.
    assert_eq!(moves(two, "x model=large"), "");
    // One of two equal replicas gets a node.
    assert_eq!(moves(nodes, &large("; y of=x model=large")), "p a->b for x");
}

#[test]
fn bound_and_terminating_replicas_keep_their_memory() {
    let nodes = "a mem=8 model=guide:4";
    check(
        nodes,
        "old on=a ending; x",
        "x: 0/1 nodes are available: 1 unknown chip: insufficient memory (3.5 GiB free at most); a: needs 4.5 GiB (weights \
         4.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 3.5 GiB free. Remedies, smallest change first: fewer other replicas on a",
    );
    check("a mem=10 model=guide:4", "old on=a ending; x", "x->a");
    // The agent's report counts if it is higher.
    check(
        "a mem=10 model=guide:4",
        "old on=a reserved=6 context=16; x context=16",
        "x: 0/1 nodes are available: 1 unknown chip: insufficient memory (4.0 GiB free at most); a: needs 4.5 GiB (weights \
         4.0 GiB + KV cache 256.0 KiB for 1 streams of 16 tokens + activations 0 B + runtime 476.8 MiB), 4.0 GiB free. Remedies, smallest change first: fewer other replicas on a",
    );
}

#[test]
fn message_contains_reasons_of_all_nodes() {
    check("", "x", "x: 0/0 nodes are available: no FleetNode has joined");
    check(
        "a cordoned; b cordoned; c notready; d taint=lid:NoSchedule; e; f model=guide:2 broken; \
         g model=guide:2 mem=2; h model=guide:2 mem=1",
        "x",
        "x: 0/8 nodes are available: 8 unknown chip: 2 insufficient memory (2.0 GiB free at most), 1 cannot serve the model: \
         config.json is missing, 1 no model `guide` in the model directory, 1 untolerated taint {lid:NoSchedule}, 2 cordoned, \
         1 not ready (LeaseExpired); g: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + \
         activations 0 B + runtime 476.8 MiB), 2.0 GiB free. Remedies, smallest change first: fix the model `guide` on f: \
         config.json is missing; put the model `guide` under e's --model-dir; `rooflet uncordon a`, and put the model \
         `guide` under a's --model-dir",
    );
    check(
        "a model=guide:1",
        "x context=5000; y select=zone:x",
        "x: 0/1 nodes are available: 1 unknown chip: model supports at most 4096 tokens of context. Remedies, smallest change first: spec.serving.contextTokens: 4096\n\
         y: 0/1 nodes are available: 1 unknown chip: labels do not match spec.placement.nodeSelector. Remedies, smallest change first: `kubectl label mac a zone=x`, or another spec.placement.nodeSelector, which no node matches",
    );
}

#[test]
fn suggests_the_context_that_fits() {
    let mut small = node("a mem=3 model=guide:2");
    let models = &mut small.status.as_mut().expect("built with one").models;
    let model = ServedModel::of_size(Bytes::gib(2), 1 << 20);
    models[0] = model.publish("guide".to_owned(), "llama".to_owned(), 4096);
    let x = replica("x");
    let mut fleet = Fleet::new([&small], [&x]);
    let why = place(&ReplicaRequest::new(&x), &mut fleet).expect_err("4 GiB of KV cache");
    // 547 tokens fit, and a cache grows in steps of 256.
    assert!(
        why.to_string().contains(
            " smallest change first: spec.serving.contextTokens: 512 for a; a Mac with at least 16 GiB"
        ),
        "{why}"
    );
    assert_eq!(why.reason(), "InsufficientMemory");
}

#[test]
fn selectors_and_tolerations_open_nodes() {
    let nodes = "a model=guide:2 taint=lid:NoExecute; b model=guide:2 label=zone:x mem=4; \
                 c model=guide:2 taint=lid:PreferNoSchedule mem=64";
    check(nodes, "x", "x->b");
    check(nodes, "x tolerate=lid strategy=Spread", "x->c");
    check(nodes, "x select=zone:x", "x->b");
}

/// In a fleet of one laptop, the battery does not prevent placement.
#[test]
fn usage_taints_repel_replicas_only_if_another_node_accepts_them() {
    for condition in ["OnBattery", "LidClosed", "QuietHours", "UserPresent"] {
        let unwelcome = format!("a model=guide:2 condition={condition}");
        check(&unwelcome, "x", "x->a");
        check(&format!("{unwelcome}; b model=guide:2 mem=64"), "x", "x->b");
        check(&format!("{unwelcome}; b model=guide:2 mem=1"), "x", "x->a");
        check(
            &format!("{unwelcome}; b model=guide:2 taint=soft:PreferNoSchedule"),
            "x",
            match condition {
                "UserPresent" => "x->a",
                _ => "x->b",
            },
        );
    }
    for (condition, key) in [
        ("MemoryPressure", "rooflet.dev/memory-pressure"),
        ("ThermalPressure", "rooflet.dev/thermal-pressure"),
    ] {
        let why = describe(&format!("a model=guide:2 condition={condition}"), "x", 0);
        let taint = format!("untolerated taint {{{key}:NoSchedule}}");
        assert!(why.contains(&taint), "{why}");
    }
}

#[test]
fn skips_node_whose_agent_rejected_the_replica() {
    let nodes = [node("a model=guide:2 mem=64"), node("b model=guide:2")];
    let x = replica("x");
    let mut fleet = Fleet::new(&nodes, [&x]);
    let mut request = ReplicaRequest::new(&x);
    request
        .refused
        .insert("a".to_owned(), "other programs use it".to_owned());
    assert_eq!(
        place(&request, &mut fleet).map(|p| p.node().to_owned()),
        Ok("b".to_owned())
    );
}

#[test]
fn replica_of_unknown_size_fills_its_node() {
    let nodes = "a mem=16 model=guide:2";
    check(
        nodes,
        "x file; y",
        "x->a\ny: 0/1 nodes are available: 1 unknown chip: insufficient memory (0 B free at most); a: needs 2.5 GiB (weights \
         2.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 0 B free. Remedies, smallest change first: fewer other replicas on a",
    );
    check(nodes, "x file on=a reserved=3; y", "y->a");
    check(nodes, "x file on=a failed; y", "y->a");
}

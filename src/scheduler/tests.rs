mod events;
mod quality;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::bind::{bind_all, decide_all, place};
use super::fleet::Fleet;
use super::rebalance::rebalance;
use super::request::{ReplicaKey, ReplicaRequest};
use crate::api::conditions::{Truth, condition_type, set_condition};
use crate::api::meta::DEPLOYMENT_LABEL;
use crate::api::v1alpha1::*;
use crate::roofline::memory::ServedModel;
use crate::units::Bytes;

/// A word `key=value` of a fixture line.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn has(line: &str, word: &str) -> bool {
    line.split_whitespace().any(|found| found == word)
}

/// `a mem=8 model=guide:4,big:9 label=zone:x taint=key:NoSchedule chip=M4_Max/40 cordoned notready broken`; sizes in GiB.
fn node(line: &str) -> FleetNode {
    let name = line.split_whitespace().next().expect("a name");
    let mut node = FleetNode::new(name, FleetNodeSpec::default());
    node.spec.unschedulable = has(line, "cordoned");
    if let Some((key, effect)) = field(line, "taint").and_then(|taint| taint.split_once(':')) {
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            _ => TaintEffect::NoExecute,
        };
        node.spec.taints.push(Taint {
            key: key.to_owned(),
            value: None,
            effect,
        });
    }
    if let Some((key, value)) = field(line, "label").and_then(|label| label.split_once(':')) {
        node.metadata.labels = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
    }
    let mut status = FleetNodeStatus::default();
    status.allocatable.memory = format!("{}Gi", field(line, "mem").unwrap_or("16"));
    if let Some(chip) = field(line, "chip") {
        let (name, cores) = chip.split_once('/').unwrap_or((chip, ""));
        status.chip.name = format!("Apple {}", name.replace('_', " "));
        status.chip.gpu_cores = cores.parse().ok();
    }
    let models = field(line, "model")
        .into_iter()
        .flat_map(|models| models.split(','));
    for (name, weights) in models.filter_map(|model| model.split_once(':')) {
        let weights = Bytes::gib(weights.parse().expect("a number"));
        let model = ServedModel::of_size(weights, 1024);
        status.models.push(NodeModel {
            problem: has(line, "broken").then(|| "config.json is missing".to_owned()),
            ..model.publish(name.to_owned(), "llama".to_owned(), 4096)
        });
    }
    let ready = Truth::from(!has(line, "notready"));
    let reason = if has(line, "notready") {
        "LeaseExpired"
    } else {
        "AgentReady"
    };
    let conditions = &mut status.conditions;
    set_condition(
        conditions,
        condition_type::READY,
        ready,
        reason,
        "",
        None,
        jiff::Timestamp::UNIX_EPOCH,
    );
    node.status = Some(status);
    node
}

/// `x of=dep on=a model=guide context=2048 select=zone:x tolerate=key rate=20 priority=5 strategy=BinPack anti=Required
/// spread=zone anyway nominated=a reserved=5 ready failed ending file`.
fn replica(line: &str) -> ModelReplica {
    let name = line.split_whitespace().next().expect("a name");
    let source = if has(line, "file") {
        "file:///models/x".to_owned()
    } else {
        format!("local://{}", field(line, "model").unwrap_or("guide"))
    };
    let mut placement = PlacementSpec::default();
    if let Some((key, value)) = field(line, "select").and_then(|label| label.split_once(':')) {
        placement.node_selector.insert(key.to_owned(), value.to_owned());
    }
    if let Some(key) = field(line, "tolerate") {
        placement.tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        });
    }
    placement.strategy = match field(line, "strategy") {
        Some("BinPack") => PlacementStrategy::BinPack,
        Some("Spread") => PlacementStrategy::Spread,
        Some("Fastest") => PlacementStrategy::Fastest,
        _ => PlacementStrategy::SloSlack,
    };
    placement.anti_affinity = field(line, "anti").map(|anti| match anti {
        "Required" => AntiAffinity::Required,
        "Ignored" => AntiAffinity::Ignored,
        _ => AntiAffinity::Preferred,
    });
    placement.spread = field(line, "spread").map(|key| TopologySpread {
        topology_key: key.to_owned(),
        max_skew: 1,
        when_unsatisfiable: if has(line, "anyway") {
            WhenUnsatisfiable::ScheduleAnyway
        } else {
            WhenUnsatisfiable::DoNotSchedule
        },
    });
    let mut replica = ModelReplica::new(
        name,
        ModelReplicaSpec {
            model: ModelSpec { source },
            serving: ServingSpec {
                name: Some("m".to_owned()),
                context_tokens: field(line, "context").map(|tokens| tokens.parse().expect("a number")),
                max_concurrency: 1,
                kv_cache: None,
            },
            objectives: ObjectivesSpec {
                decode_tokens_per_second: field(line, "rate").map(|rate| rate.parse().expect("a number")),
                time_to_first_token: None,
            },
            placement,
            priority: field(line, "priority").map_or(0, |priority| priority.parse().expect("a number")),
            golden_prompts: Vec::new(),
            node_name: field(line, "on").map(str::to_owned),
        },
    );
    replica.metadata.namespace = Some("default".to_owned());
    if let Some(deployment) = field(line, "of") {
        let labels = BTreeMap::from([(DEPLOYMENT_LABEL.to_owned(), deployment.to_owned())]);
        replica.metadata.labels = Some(labels);
    }
    if has(line, "ending") {
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        replica.metadata.deletion_timestamp = Some(now);
    }
    let mut status = ModelReplicaStatus {
        nominated_node_name: field(line, "nominated").map(str::to_owned),
        reserved_memory: field(line, "reserved").map(|gib| format!("{gib}Gi")),
        phase: if has(line, "failed") {
            ReplicaPhase::Failed
        } else {
            ReplicaPhase::Pending
        },
        ..ModelReplicaStatus::default()
    };
    if has(line, "ready") {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let conditions = &mut status.conditions;
        set_condition(
            conditions,
            condition_type::READY,
            Truth::True,
            "Serving",
            "",
            None,
            now,
        );
    }
    replica.status = Some(status);
    replica
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty())
}

/// Decides for the replicas without a node, in the order given; prints `x->a`, `x: why not` or `x preempts y on a`.
fn check(nodes: &str, replicas: &str, expect: &str) {
    check_with_reserve(nodes, replicas, 0, expect);
}

fn check_with_reserve(nodes: &str, replicas: &str, node_failures: usize, expect: &str) {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas).with_reserve(node_failures);
    let requests: Vec<_> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none())
        .map(ReplicaRequest::new)
        .collect();
    let said: Vec<_> = decide_all(&requests, &mut fleet, 1)
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
    assert_eq!(said.join("\n"), expect);
}

#[test]
fn the_smallest_room_without_a_copy_is_taken() {
    let nodes = "a mem=16 model=guide:2; b mem=32 model=guide:2; c mem=8 model=guide:2";
    check(nodes, "x", "x->c");
    check(
        nodes,
        "x of=d; y of=d; z of=d; w of=d; other of=e",
        "x->c\ny->a\nz->b\nw->c\nother->c",
    );
    check("b model=guide:2; a model=guide:2", "x", "x->a");
    // A node that holds the model in memory comes before a smaller one.
    check(nodes, "old on=b; x", "x->b");
}

#[test]
fn strategies_choose_differently() {
    let nodes = "air chip=M4 mem=10 model=guide:2; max chip=M4_Max/40 mem=60 model=guide:2; pro chip=M4_Pro mem=40 model=guide:2";
    check(nodes, "x", "x->air");
    check(nodes, "x rate=20", "x->max");
    check(nodes, "x strategy=Fastest", "x->max");
    check(nodes, "x strategy=Spread", "x->max");
    check(nodes, "old on=pro model=guide; x strategy=BinPack", "x->pro");
    check(
        nodes,
        "x of=d strategy=BinPack; y of=d strategy=BinPack; z of=d strategy=BinPack anti=Required",
        "x->air\ny->air\nz->pro",
    );
    // What runs there slows it down.
    check(
        nodes,
        "a on=max rate=40; b on=max rate=40; x strategy=Fastest",
        "x->pro",
    );
}

#[test]
fn slack_is_kept_where_objectives_are_tight() {
    // The same request on two chips: the faster one keeps more slack, until what runs there has too little.
    let nodes = "a chip=M4_Pro mem=40 model=guide:4; b chip=M4_Max/40 mem=40 model=guide:4";
    check(nodes, "x rate=10", "x->b");
    check(nodes, "old on=b rate=50; x rate=10", "x->a");
}

#[test]
fn replicas_keep_off_one_another_where_they_must() {
    let nodes = "a model=guide:2; b model=guide:2";
    check(
        nodes,
        "x of=d anti=Required; y of=d anti=Required; z of=d anti=Required",
        "x->a\ny->b\nz: 0/2 nodes are available: 2 had a replica of the same deployment already (spec.placement.antiAffinity)",
    );
    check(nodes, "x of=d anti=Ignored; y of=d anti=Ignored", "x->a\ny->a");
    // One that is ending is none any more.
    check(nodes, "old of=d on=a ending; x of=d anti=Required", "x->a");
}

#[test]
fn a_spread_is_kept_over_the_domains_of_a_label() {
    let nodes = "a label=zone:x mem=64 model=guide:2; b label=zone:x mem=64 model=guide:2; \
                 c label=zone:y mem=8 model=guide:2; d mem=64 model=guide:2";
    let four = |more: &str| -> String {
        let one = |name: &str| format!("{name} of=d anti=Ignored spread=zone {more}");
        [one("p"), one("q"), one("r"), one("s")].join("; ")
    };
    // c has the smallest room, and then zone x is due.
    check(nodes, &four(""), "p->c\nq->a\nr->c\ns->a");
    let full = format!("old on=c reserved=7; {}", four(""));
    check(
        nodes,
        &full,
        "p->a\n\
         q: 0/4 nodes are available: 1 had no label zone of spec.placement.spread, 2 would exceed \
         spec.placement.spread.maxSkew in zone=x, 1 insufficient memory; c: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 \
         MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free\n\
         r: 0/4 nodes are available: 1 had no label zone of spec.placement.spread, 2 would exceed \
         spec.placement.spread.maxSkew in zone=x, 1 insufficient memory; c: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 \
         MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free\n\
         s: 0/4 nodes are available: 1 had no label zone of spec.placement.spread, 2 would exceed \
         spec.placement.spread.maxSkew in zone=x, 1 insufficient memory; c: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 \
         MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free",
    );
    let full = format!("old on=c reserved=7; {}", four("anyway"));
    check(nodes, &full, "p->a\nq->a\nr->a\ns->a");
    // Every node is a domain of its own.
    check(
        "a model=guide:2; b model=guide:2",
        "x of=d anti=Ignored spread=kubernetes.io/hostname; y of=d anti=Ignored spread=kubernetes.io/hostname",
        "x->a\ny->b",
    );
}

#[test]
fn a_higher_priority_makes_the_least_of_the_lower_leave() {
    let nodes = "a mem=8 model=guide:3; b mem=8 model=guide:3";
    let low = "p on=a of=d ready priority=1; q on=a of=e priority=2; r on=b of=f ready priority=1; s on=b of=f ready priority=1";
    // Each node holds two of 3.5 GiB. On a, p would leave its deployment without a replica; q has a higher priority.
    check(nodes, &format!("{low}; x priority=5"), "x preempts s on b");
    check(nodes, &format!("{low}; x priority=2"), "x preempts s on b");
    // Never one of the same or a higher priority.
    let equal = |name: &str| format!("x priority={name}");
    let told = "x: 0/2 nodes are available: 2 insufficient memory; b: needs 3.5 GiB (weights 3.0 GiB + KV cache 4.0 MiB \
                for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.1 GiB free";
    check(nodes, &format!("{low}; {}", equal("1")), told);
    check(nodes, &format!("{low}; {}", equal("-1")), told);
    // Nor one that nothing would make anew.
    check(
        "a mem=4 model=guide:3",
        "p on=a priority=-3; x",
        "x: 0/1 nodes are available: 1 insufficient memory; a: needs 3.5 GiB (weights 3.0 GiB + KV cache 4.0 MiB \
         for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 543.2 MiB free",
    );
}

#[test]
fn what_leaves_for_one_is_not_taken_by_another() {
    let nodes = "a mem=8 model=guide:3,small:1";
    let leaving = "p on=a of=d ending; q on=a of=e ready priority=9; x nominated=a priority=5";
    let waits = "x: 0/1 nodes are available: 1 insufficient memory; a: needs 3.5 GiB (weights 3.0 GiB + KV cache 4.0 MiB \
                 for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.1 GiB free";
    check(nodes, leaving, waits);
    // p has left: the room is there, for x, and for what has a higher priority than x.
    let left = "q on=a of=e ready priority=9; y model=small priority=4; x nominated=a priority=5";
    check(
        nodes,
        left,
        "y: 0/1 nodes are available: 1 insufficient memory; a: needs 1.5 GiB (weights 1.0 GiB + KV cache 4.0 MiB \
         for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 1.1 GiB free\nx->a",
    );
    check(
        nodes,
        "q on=a of=e priority=9; y priority=6; x nominated=a priority=5",
        &format!("y->a\n{waits}"),
    );
}

#[test]
fn room_is_left_for_the_replicas_of_nodes_that_fail() {
    let nodes = "a mem=8 model=guide:3; b mem=8 model=guide:3; c mem=8 model=guide:3";
    let six = "p of=d; q of=d; r of=d; s of=d; t of=d; u of=d";
    let placed = |node_failures: usize| {
        let nodes: Vec<_> = lines(nodes).map(node).collect();
        let replicas: Vec<_> = lines(six).map(replica).collect();
        let requests: Vec<_> = replicas.iter().map(ReplicaRequest::new).collect();
        let mut fleet = Fleet::new(&nodes, []).with_reserve(node_failures);
        let decisions = bind_all(&requests, &mut fleet);
        decisions
            .iter()
            .filter(|decision| decision.outcome.is_ok())
            .count()
    };
    // Two fit on a node. Without one node there is room for four, without two for two.
    assert_eq!([0, 1, 2, 3].map(placed), [6, 4, 2, 0]);
    check_with_reserve(
        "a mem=8 model=guide:3",
        "x of=d",
        1,
        "x: 0/1 nodes are available: 1 kept free for the failure of 1 nodes (--reserve-node-failures)",
    );
}

#[test]
fn a_score_table_says_how_the_next_ones_compare() {
    let nodes: Vec<_> = lines("a mem=16 model=guide:2; b mem=8 model=guide:2; c cordoned")
        .map(node)
        .collect();
    let x = replica("x of=d");
    let old = replica("old of=d on=b");
    let mut fleet = Fleet::new(&nodes, [&x, &old]);
    let placement = place(&ReplicaRequest::new(&x), &mut fleet).expect("two fit");
    assert_eq!(
        placement.table.to_string(),
        "2 of 3 nodes fit, best by SloSlack: a (0 % slack lost, model not loaded, 13.5 GiB left free); b (1 of the same \
         deployment there, 0 % slack lost, model loaded, 3.1 GiB left free)"
    );
}

#[test]
fn a_move_is_proposed_where_it_is_worth_its_cost() {
    let nodes: Vec<_> = lines(
        "a mem=16 model=guide:2; b mem=16 model=guide:2; pro chip=M4_Pro mem=40 model=guide:2; \
         max chip=M4_Max/40 mem=40 model=guide:2",
    )
    .map(node)
    .collect();
    let check = |replicas: &str, expect: &str| {
        let replicas: Vec<_> = lines(replicas).map(replica).collect();
        let mut fleet = Fleet::new(&nodes, &replicas);
        let said: Vec<_> = rebalance(&mut fleet)
            .into_iter()
            .map(|one| format!("{} {}->{}", one.replica.name, one.from, one.to))
            .collect();
        assert_eq!(said.join(", "), expect);
        assert_eq!(rebalance(&mut fleet), [], "the moves were made already");
    };
    check("p of=d on=a ready; q of=d on=b ready", "");
    check("p of=d on=a ready; q of=d on=a ready", "p a->b");
    // Neither what does not serve yet nor what nothing would make anew.
    check("p of=d on=a; q of=d on=a", "");
    check("p on=pro rate=40 ready", "");
    check("p of=d on=pro rate=40 ready", "p pro->max");
    check("p of=d on=pro strategy=Fastest ready", "p pro->max");
    check(
        "p of=d on=a ready strategy=BinPack; q of=e on=b ready strategy=BinPack",
        "p a->b",
    );
    // More is promised than there is.
    check(
        "p of=d on=pro rate=70 ready; q of=e on=pro rate=70 ready",
        "p pro->max",
    );
}

#[test]
fn what_is_bound_or_ending_keeps_its_memory() {
    let nodes = "a mem=8 model=guide:4";
    check(
        nodes,
        "old on=a ending; x",
        "x: 0/1 nodes are available: 1 insufficient memory; a: needs 4.5 GiB (weights 4.0 GiB + KV cache 4.0 MiB for 1 \
         streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 3.5 GiB free",
    );
    check("a mem=10 model=guide:4", "old on=a ending; x", "x->a");
    // What the agent reports counts if it is more.
    check(
        "a mem=10 model=guide:4",
        "old on=a reserved=6 context=16; x context=16",
        "x: 0/1 nodes are available: 1 insufficient memory; a: needs 4.5 GiB (weights 4.0 GiB + KV cache 256.0 KiB for 1 \
         streams of 16 tokens + activations 0 B + runtime 476.8 MiB), 4.0 GiB free",
    );
}

#[test]
fn every_node_says_why_not() {
    check("", "x", "x: 0/0 nodes are available: no FleetNode has joined");
    check(
        "a cordoned; b cordoned; c notready; d taint=lid:NoSchedule; e; f model=guide:2 broken; \
         g model=guide:2 mem=2; h model=guide:2 mem=1",
        "x",
        "x: 0/8 nodes are available: 1 not ready (LeaseExpired), 2 cordoned, 1 had the untolerated taint \
         {lid:NoSchedule}, 1 had no model `guide` in its model directory, 1 cannot serve the model: config.json is \
         missing, 2 insufficient memory; g: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 MiB for 1 streams of 4096 \
         tokens + activations 0 B + runtime 476.8 MiB), 2.0 GiB free",
    );
    check(
        "a model=guide:1",
        "x context=5000; y select=zone:x",
        "x: 0/1 nodes are available: 1 had a model with a context of at most 4096 tokens\n\
         y: 0/1 nodes are available: 1 did not match spec.placement.nodeSelector",
    );
}

#[test]
fn the_context_that_would_fit_is_told() {
    let mut small = node("a mem=3 model=guide:2");
    let models = &mut small.status.as_mut().expect("built with one").models;
    let model = ServedModel::of_size(Bytes::gib(2), 1 << 20);
    models[0] = model.publish("guide".to_owned(), "llama".to_owned(), 4096);
    let x = replica("x");
    let mut fleet = Fleet::new([&small], [&x]);
    let why = place(&ReplicaRequest::new(&x), &mut fleet).expect_err("4 GiB of KV cache");
    // 547 tokens would fit, and a cache grows by 256.
    assert!(
        why.to_string()
            .ends_with("; spec.serving.contextTokens: 512 would fit"),
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

#[test]
fn a_node_that_refused_is_left_alone() {
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
fn a_path_that_only_the_agent_sees_fills_the_node_until_it_is_known() {
    let nodes = "a mem=16 model=guide:2";
    check(
        nodes,
        "x file; y",
        "x->a\ny: 0/1 nodes are available: 1 insufficient memory; a: needs 2.5 GiB (weights 2.0 GiB + KV cache 4.0 MiB \
         for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 0 B free",
    );
    check(nodes, "x file on=a reserved=3; y", "y->a");
    check(nodes, "x file on=a failed; y", "y->a");
}

fn any_node(index: usize) -> impl Strategy<Value = FleetNode> {
    (
        0u64..40,
        1u64..12,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(memory, weights, cordoned, not_ready)| {
            let mut line = format!("n{index} mem={memory} model=guide:{weights}");
            if cordoned {
                line.push_str(" cordoned");
            }
            if not_ready {
                line.push_str(" notready");
            }
            node(&line)
        })
}

fn any_replica(index: usize) -> impl Strategy<Value = ModelReplica> {
    let on = prop::option::of(0usize..6);
    (
        on,
        0u32..3,
        1u32..4096,
        any::<bool>(),
        prop::option::of(0u64..20),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(on, deployment, context, ending, reserved, file)| {
            let mut line = format!("r{index} of=d{deployment} context={context}");
            if let Some(node) = on {
                line.push_str(&format!(" on=n{node}"));
                if ending {
                    line.push_str(" ending");
                }
                if let Some(gib) = reserved {
                    line.push_str(&format!(" reserved={gib}"));
                }
            }
            if file {
                line.push_str(" file");
            }
            replica(&line)
        })
}

fn any_fleet() -> impl Strategy<Value = (Vec<FleetNode>, Vec<ModelReplica>)> {
    let nodes: Vec<_> = (0..5).map(any_node).collect();
    let replicas = (0usize..14).prop_flat_map(|count| (0..count).map(any_replica).collect::<Vec<_>>());
    (nodes, replicas)
}

/// Binds one replica at a time as the binder does, each on a fleet counted anew from the objects.
fn bind_one_by_one(nodes: &[FleetNode], replicas: &mut [ModelReplica]) {
    for at in 0..replicas.len() {
        if replicas[at].spec.node_name.is_some() {
            continue;
        }
        let mut fleet = Fleet::new(nodes, replicas.iter());
        if let Ok(placement) = place(&ReplicaRequest::new(&replicas[at]), &mut fleet) {
            replicas[at].spec.node_name = Some(placement.node().to_owned());
        }
    }
}

proptest! {
    #[test]
    fn memory_is_never_promised_twice((nodes, replicas) in any_fleet().prop_shuffle_replicas()) {
        let before = Fleet::new(&nodes, &replicas);
        let requests: Vec<_> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
            .map(ReplicaRequest::new)
            .collect();
        let decisions = bind_all(&requests, &mut before.clone());
        let mut bound = replicas.clone();
        for decision in &decisions {
            if let Ok(placement) = &decision.outcome {
                let replica = bound.iter_mut().find(|replica| ReplicaKey::of(*replica) == decision.key);
                replica.expect("one of them").spec.node_name = Some(placement.node().to_owned());
            }
        }
        // Counted anew from the objects, not from what was promised on the way.
        let after = Fleet::new(&nodes, &bound);
        for (before, after) in before.nodes.iter().zip(&after.nodes) {
            // What others did beforehand may be too much already; then nothing may be added.
            let limit = before.allocatable.max(before.load.reserved);
            prop_assert!(after.load.reserved <= limit, "{}: {} of {}", after.name, after.load.reserved, limit);
        }
        prop_assert_eq!(decisions.len(), requests.len());
    }

    #[test]
    fn counting_the_bound_objects_anew_never_finds_a_node_over_committed((nodes, mut replicas) in any_fleet()) {
        let before = Fleet::new(&nodes, &replicas);
        bind_one_by_one(&nodes, &mut replicas);
        let after = Fleet::new(&nodes, &replicas);
        for (before, after) in before.nodes.iter().zip(&after.nodes) {
            let limit = before.allocatable.max(before.load.reserved);
            prop_assert!(after.load.reserved <= limit, "{}: {} of {}", after.name, after.load.reserved, limit);
        }
    }

    #[test]
    fn the_order_of_nodes_makes_no_difference((nodes, replicas) in any_fleet()) {
        let requests: Vec<_> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
            .map(ReplicaRequest::new)
            .collect();
        let decide = |nodes: &[FleetNode]| bind_all(&requests, &mut Fleet::new(nodes, &replicas));
        let reversed: Vec<_> = nodes.iter().rev().cloned().collect();
        prop_assert_eq!(decide(&nodes), decide(&reversed));
    }
}

trait ShuffleReplicas {
    fn prop_shuffle_replicas(self) -> BoxedStrategy<(Vec<FleetNode>, Vec<ModelReplica>)>;
}

impl<S: Strategy<Value = (Vec<FleetNode>, Vec<ModelReplica>)> + 'static> ShuffleReplicas for S {
    fn prop_shuffle_replicas(self) -> BoxedStrategy<(Vec<FleetNode>, Vec<ModelReplica>)> {
        self.prop_flat_map(|(nodes, replicas)| (Just(nodes), Just(replicas).prop_shuffle()))
            .boxed()
    }
}

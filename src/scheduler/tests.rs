use std::collections::BTreeMap;

use proptest::prelude::*;

use super::bind::{bind_all, place};
use super::fleet::{Fleet, ReplicaKey, ReplicaRequest};
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

/// `a mem=8 model=guide:4 label=zone:x taint=key:NoSchedule cordoned notready broken=guide`; sizes in GiB.
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
    if let Some((name, weights)) = field(line, "model").and_then(|model| model.split_once(':')) {
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

/// `x of=dep on=a model=guide context=2048 select=zone:x tolerate=key reserved=5 failed ending file`.
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
            objectives: ObjectivesSpec::default(),
            placement,
            priority: 0,
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
    let status = ModelReplicaStatus {
        reserved_memory: field(line, "reserved").map(|gib| format!("{gib}Gi")),
        phase: if has(line, "failed") {
            ReplicaPhase::Failed
        } else {
            ReplicaPhase::Pending
        },
        ..ModelReplicaStatus::default()
    };
    replica.status = Some(status);
    replica
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty())
}

/// Binds the replicas without a node, in the order given; prints `x->a` or `x: why not`.
fn check(nodes: &str, replicas: &str, expect: &str) {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas);
    let requests: Vec<_> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none())
        .map(ReplicaRequest::new)
        .collect();
    let said: Vec<_> = bind_all(&requests, &mut fleet)
        .into_iter()
        .map(|decision| match decision.outcome {
            Ok(placement) => format!("{}->{}", decision.key.name, placement.node()),
            Err(why) => format!("{}: {why}", decision.key.name),
        })
        .collect();
    assert_eq!(said.join("\n"), expect);
}

#[test]
fn the_emptiest_node_without_a_copy_is_taken() {
    let nodes = "a mem=16 model=guide:2; b mem=32 model=guide:2; c mem=8 model=guide:2";
    check(nodes, "x", "x->b");
    check(
        nodes,
        "x of=d; y of=d; z of=d; w of=d; other of=e",
        "x->b\ny->a\nz->c\nw->b\nother->b",
    );
    check("b model=guide:2; a model=guide:2", "x", "x->a");
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
    let fleet = Fleet::new([&small], [&x]);
    let why = place(&ReplicaRequest::new(&x), &fleet).expect_err("4 GiB of KV cache");
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
    check(nodes, "x tolerate=lid", "x->c");
    check(nodes, "x select=zone:x", "x->b");
}

#[test]
fn a_node_that_refused_is_left_alone() {
    let nodes = [node("a model=guide:2 mem=64"), node("b model=guide:2")];
    let x = replica("x");
    let fleet = Fleet::new(&nodes, [&x]);
    let mut request = ReplicaRequest::new(&x);
    request
        .refused
        .insert("a".to_owned(), "other programs use it".to_owned());
    assert_eq!(
        place(&request, &fleet).map(|p| p.node().to_owned()),
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
        let fleet = Fleet::new(nodes, replicas.iter());
        if let Ok(placement) = place(&ReplicaRequest::new(&replicas[at]), &fleet) {
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
            let limit = before.allocatable.max(before.reserved);
            prop_assert!(after.reserved <= limit, "{}: {} of {}", after.name, after.reserved, limit);
        }
        prop_assert_eq!(decisions.len(), requests.len());
    }

    #[test]
    fn counting_the_bound_objects_anew_never_finds_a_node_over_committed((nodes, mut replicas) in any_fleet()) {
        let before = Fleet::new(&nodes, &replicas);
        bind_one_by_one(&nodes, &mut replicas);
        let after = Fleet::new(&nodes, &replicas);
        for (before, after) in before.nodes.iter().zip(&after.nodes) {
            let limit = before.allocatable.max(before.reserved);
            prop_assert!(after.reserved <= limit, "{}: {} of {}", after.name, after.reserved, limit);
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

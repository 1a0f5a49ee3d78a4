use super::scenario::fault::FaultSpec;
use super::scenario::planted::{Bug, Planted};
use super::scenario::{ChangeAt, ChangeWhat};
use super::*;
use rooflet_api::meta::CHANGE_CAUSE_ANNOTATION;

mod access;
mod preview;

const DAY: &str = include_str!("../../../examples/simulation/day.yaml");
const AUTOSCALING: &str = include_str!("../../../examples/simulation/autoscaling.yaml");
const BURST: &str = include_str!("../../../examples/simulation/burst.yaml");
const FAULTS: &str = include_str!("../../../examples/simulation/faults.yaml");

fn run(scenario: &Scenario, seed: u64) -> Outcome {
    simulate(scenario, &RunOptions::new(seed, Policy::default())).unwrap()
}

fn planted(bug: Bug, seed: u64) -> RunOptions {
    RunOptions {
        planted: Planted { bug: Some(bug) },
        ..RunOptions::new(seed, Policy::default())
    }
}

#[test]
fn outcome_depends_only_on_the_seed() {
    let scenario = Scenario::parse(FAULTS).unwrap();
    let text = |seed| serde_json::to_string(&run(&scenario, seed)).unwrap();
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn example_day_is_served() {
    let scenario = Scenario::parse(DAY).unwrap();
    let outcome = run(&scenario, 1);
    assert_eq!(outcome.violation, None);
    for deployment in &outcome.deployments {
        assert!(deployment.available_percent > 99.9, "{deployment:?}");
    }
    for demand in &outcome.demand {
        let dropped: u64 = demand.dropped.values().sum();
        assert!(demand.requests > 1000 && demand.slo_percent > 99.0, "{demand:?}");
        assert_eq!(demand.answered + dropped, demand.requests, "{demand:?}");
    }
}

/// Covers a rolling update, a scale-up and a drained node, under load and without faults.
#[test]
fn planned_changes_fail_no_request() {
    let mut text = FAULTS.replace("randomFaults: {every: 30s, until: 10m}", "");
    text = text.replace("requestsPerSecond: 0.05", "from: 30s, requestsPerSecond: 1");
    text = text.replace(
        "changes:\n",
        "changes:\n  - {at: 9m, drain: {node: mini-2, drain: true}}\n",
    );
    let scenario = Scenario::parse(&text).unwrap();
    for seed in 1..=3 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None, "seed {seed}");
        for demand in &outcome.demand {
            assert!(
                demand.dropped.is_empty() && demand.requests > 500,
                "seed {seed}: {demand:?}"
            );
        }
        assert!(outcome.control.placements > 10, "{:?}", outcome.control);
    }
}

/// Two Macs and one replica.
const SINGLE_REPLICA: &str = r#"
duration: 21m
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
models:
  - {name: small, model: tinyllama-1.1b, quantization: mlx4, maxContextTokens: 2048}
deployments:
  - name: small
    spec:
      replicas: 1
      model: {source: "local://small"}
      serving: {maxConcurrency: 2}
      strategy: {rollingUpdate: {maxSurge: 1}}
demand:
  - {deployment: small, from: 1m, requestsPerSecond: 0.5, promptTokens: 300, answerTokens: 100}
"#;

#[test]
fn drain_moves_a_single_replica_without_a_gap_if_surge_is_allowed() {
    let drains = "changes:
  - {at: 5m, drain: {node: mini-1, drain: true}}
  - {at: 10m, drain: {node: mini-1, drain: false}}
  - {at: 11m, drain: {node: mini-2, drain: true}}
";
    for (surge, has_gap) in [("maxSurge: 1", false), ("maxSurge: 0", true)] {
        let text = SINGLE_REPLICA.replace("maxSurge: 1", surge) + drains;
        let outcome = run(&Scenario::parse(&text).unwrap(), 1);
        assert_eq!(outcome.violation, None, "{surge}");
        let small = &outcome.deployments[0];
        assert_eq!(small.available_percent < 100.0, has_gap, "{surge}: {small:?}");
        assert!(
            outcome.demand[0].dropped.is_empty(),
            "{surge}: {:?}",
            outcome.demand
        );
        // The first placement and at least one move.
        assert!(outcome.control.placements >= 2, "{surge}: {:?}", outcome.control);
    }
}

/// Returns the scenario with a single replica, changes at 5 min, and `mustHeal`. The changes may be
/// kinds that scenario files cannot contain.
fn single_replica_with(changes: impl IntoIterator<Item = ChangeWhat>) -> Scenario {
    let mut scenario = Scenario::parse(&(SINGLE_REPLICA.to_owned() + "mustHeal: true\n")).unwrap();
    scenario.changes = changes
        .into_iter()
        .map(|what| ChangeAt {
            at: Duration::from_secs(300),
            what,
        })
        .collect();
    scenario
}

#[test]
fn deployment_adopts_orphans_instead_of_replacing_them() {
    let deployment = "small".to_owned();
    let outcome = run(&single_replica_with([ChangeWhat::Orphan { deployment }]), 1);
    assert_eq!(outcome.violation, None);
    assert_eq!(outcome.control.placements, 1, "{:?}", outcome.control);
    let small = &outcome.deployments[0];
    assert!(small.ready_at_end == 1 && outcome.demand[0].dropped.is_empty());
}

#[test]
fn changed_change_cause_is_recorded_on_the_revision() {
    let cause = ChangeWhat::Annotate {
        deployment: "small".to_owned(),
        key: CHANGE_CAUSE_ANNOTATION.to_owned(),
        value: "smaller model".to_owned(),
    };
    assert_eq!(run(&single_replica_with([cause]), 1).violation, None);
}

#[test]
fn replicas_wait_for_a_revision_whose_write_was_lost() {
    let lost = "faults:\n  - {at: 0s, for: 2m, lostWrites: {share: 0.7}}\n";
    let scenario = Scenario::parse(&(SINGLE_REPLICA.to_owned() + lost)).unwrap();
    for seed in 1..=20 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None, "seed {seed}");
        assert_eq!(outcome.deployments[0].ready_at_end, 1, "seed {seed}");
    }
}

#[test]
fn replica_under_memory_pressure_moves_to_another_node() {
    let faults = "faults:
  - {at: 5m, for: 4m, memoryTaken: {node: mini-1, share: 0.97}}
  - {at: 15m, for: 2m, memoryTaken: {node: mini-2, share: 0.97}}
";
    let outcome = run(
        &Scenario::parse(&(SINGLE_REPLICA.to_owned() + faults)).unwrap(),
        1,
    );
    assert_eq!(outcome.violation, None);
    let small = &outcome.deployments[0];
    assert!(
        small.available_percent > 95.0 && small.ready_at_end == 1,
        "{small:?}"
    );
    assert!(outcome.demand[0].dropped.is_empty(), "{:?}", outcome.demand);
    assert!(outcome.control.placements >= 2, "{:?}", outcome.control);
}

/// The nodes have quiet hours at different times of the virtual clock.
#[test]
fn replica_moves_to_a_node_without_quiet_hours() {
    let split = SINGLE_REPLICA
        .replace("{name: mini, chip", "{name: book, chip")
        .replace(
            "count: 2}",
            "count: 1}\n    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi}",
        );
    let hours = "fleet:\n  quietHours: {book: \"00:04-00:09\", mini: \"00:10-00:15\"}";
    let text = split.replace("fleet:", hours);
    let outcome = run(&Scenario::parse(&text).unwrap(), 1);
    assert_eq!(outcome.violation, None);
    let small = &outcome.deployments[0];
    assert_eq!(
        (small.available_percent, small.ready_at_end),
        (100.0, 1),
        "{small:?}"
    );
    assert!(outcome.demand[0].dropped.is_empty(), "{:?}", outcome.demand);
    // The replica moves at least once, whichever node it was placed on first.
    let placements = outcome.control.placements;
    assert!((2..=3).contains(&placements), "{:?}", outcome.control);
    // If both nodes have quiet hours at the same time, the replica stays.
    let outcome = run(
        &Scenario::parse(&text.replace("00:10-00:15", "00:00-24:00")).unwrap(),
        1,
    );
    assert_eq!(outcome.violation, None);
    assert_eq!(outcome.deployments[0].available_percent, 100.0);
    assert_eq!(outcome.control.placements, 1, "{:?}", outcome.control);
}

/// The deployment `rare` scales to zero and back.
#[test]
fn autoscaler_follows_the_requests_of_a_day() {
    let scenario = Scenario::parse(AUTOSCALING).unwrap();
    let outcome = run(&scenario, 1);
    assert_eq!(outcome.violation, None);
    let [chat, rare] = &outcome.deployments[..] else {
        panic!("{:?}", outcome.deployments);
    };
    let hour = |number: u64| Duration::from_secs(number * 3600);
    let most = |from, to| {
        let scaled = chat
            .scaled
            .iter()
            .filter(|scaled| (from..to).contains(&scaled.at));
        scaled.map(|scaled| scaled.replicas).max()
    };
    assert!(most(hour(9), hour(17)) >= Some(3), "{:?}", chat.scaled);
    assert_eq!(
        chat.scaled.last().map(|scaled| scaled.replicas),
        Some(1),
        "{:?}",
        chat.scaled
    );
    let count = |replicas| {
        rare.scaled
            .iter()
            .filter(|scaled| scaled.replicas == replicas)
            .count()
    };
    assert!(count(0) > 3 && count(1) > 3 && count(2) == 0, "{:?}", rare.scaled);
    for demand in &outcome.demand {
        assert!(demand.dropped.is_empty() && demand.answered > 10, "{demand:?}");
    }
}

/// Measurements of the old replicas from the time in which new ones loaded do not cause further
/// scaling.
#[test]
fn autoscaler_does_not_overshoot_after_a_burst() {
    let scenario = Scenario::parse(BURST).unwrap();
    for seed in 1..=2 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None);
        let scaled = &outcome.deployments[0].scaled;
        let most = scaled.iter().map(|scaled| scaled.replicas).max();
        assert!((Some(4)..=Some(5)).contains(&most), "{scaled:?}");
        assert!(outcome.demand[0].slo_percent > 99.0, "{:?}", outcome.demand);
    }
}

#[test]
fn invariants_hold_with_random_faults() {
    let scenario = Scenario::parse(FAULTS).unwrap();
    for seed in 1..=15 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None, "seed {seed}: {:#?}", outcome.faults);
    }
}

/// Returns the scenario with faults, a deployment with a throughput floor, and a drain of one of its
/// two nodes.
fn drained() -> Scenario {
    let steady = "  - name: steady
    spec:
      replicas: 2
      model: {source: \"local://small\"}
      serving: {maxConcurrency: 2}
      placement: {strategy: Fastest, spread: {topologyKey: kubernetes.io/hostname}}
      strategy: {rollingUpdate: {maxUnavailable: 1, minThroughput: 90%}}
demand:
";
    let drains = "  - {at: 8m, drain: {node: pro-1, drain: true}}
  - {at: 9m, drain: {node: pro-1, drain: false}}
randomFaults:";
    let text = FAULTS
        .replace("demand:\n", steady)
        .replace("randomFaults:", drains);
    Scenario::parse(&text).unwrap()
}

#[test]
fn drains_keep_the_throughput_floor_with_random_faults() {
    let scenario = drained();
    for seed in 1..=5 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None, "seed {seed}: {:#?}", outcome.faults);
    }
}

/// Returns the scenario with faults, and a Mac that is disconnected for three minutes.
fn isolated() -> Scenario {
    let isolation = "faults:
  - {at: 2m, for: 3m, isolate: {node: mini-3}}
randomFaults:";
    Scenario::parse(&FAULTS.replace("randomFaults:", isolation)).unwrap()
}

#[test]
fn invariants_hold_with_an_isolated_mac() {
    let outcome = run(&isolated(), 1);
    assert_eq!(outcome.violation, None, "{:#?}", outcome.faults);
}

/// Asserts that the invariants detect a planted bug within a thousand seeds.
fn assert_detected(bug: Bug) {
    let scenario = if bug == Bug::DrainIgnoresFloor {
        // In the example, the first seed in which a drain conflicts with a floor is 592.
        drained()
    } else if bug == Bug::SilentStaysReady {
        // In the example, random faults show this bug in seed 188 for the first time.
        isolated()
    } else {
        Scenario::parse(FAULTS).unwrap()
    };
    let breaks = |seed: &u64| simulate(&scenario, &planted(bug, *seed)).unwrap().violation;
    let found = (1..=1000).find_map(|seed| breaks(&seed).map(|violation| (seed, violation)));
    let (seed, violation) = found.expect("a thousand seeds detect the bug");
    println!("{bug:?}: seed {seed}: {violation}");
}

macro_rules! planted_bugs {
    ($($name:ident: $bug:ident,)*) => {
        mod planted_bugs {
            use super::*;
            $(
                #[test]
                fn $name() {
                    assert_detected(Bug::$bug);
                }
            )*
        }
    };
}

planted_bugs! {
    pass_placements_ignored: PassPlacementsIgnored,
    reservation_released_on_delete: ReservationReleasedOnDelete,
    unreachable_not_counted: UnreachableNotCounted,
    status_unguarded: StatusUnguarded,
    own_writes_discarded: OwnWritesDiscarded,
    silent_node_released: SilentNodeReleased,
    missing_immediately: MissingImmediately,
    silence_by_agent_clock: SilenceByAgentClock,
    evicted_immediately: EvictedImmediately,
    silent_stays_ready: SilentStaysReady,
    released_while_draining: ReleasedWhileDraining,
    workers_not_adopted: WorkersNotAdopted,
    acts_before_listing: ActsBeforeListing,
    no_backoff: NoBackoff,
    killed_instead_of_drained: KilledInsteadOfDrained,
    replaced_before_stopped: ReplacedBeforeStopped,
    double_bind: DoubleBind,
    generation_unchecked: GenerationUnchecked,
    older_event_applied: OlderEventApplied,
    acknowledged_before_sync: AcknowledgedBeforeSync,
    writes_without_lease: WritesWithoutLease,
    floor_ignored: FloorIgnored,
    drain_ignores_floor: DrainIgnoresFloor,
    unavailable_ignored: UnavailableIgnored,
    surge_ignored: SurgeIgnored,
}

#[test]
fn failing_run_is_reduced_and_printed_faults_reproduce_it() {
    let scenario = Scenario::parse(FAULTS).unwrap();
    let bug = Bug::ActsBeforeListing;
    let (options, failed) = (1..=1000)
        .map(|seed| planted(bug, seed))
        .find_map(|options| {
            let outcome = simulate(&scenario, &options).unwrap();
            outcome.violation.is_some().then_some((options, outcome))
        })
        .expect("a thousand seeds detect the bug");
    let all = failed.faults.len();
    let shrunk = shrink(&scenario, &options, failed).unwrap();
    assert!(
        shrunk.faults.len() < all && shrunk.faults.len() <= 2,
        "{:?}",
        shrunk.faults
    );
    let printed = rooflet_base::yaml::to_string(&shrunk.faults).unwrap();
    let read: Vec<FaultSpec> = rooflet_base::yaml::from_str(&printed).unwrap();
    assert_eq!(read, shrunk.faults);
    let replayed = simulate(
        &scenario,
        &RunOptions {
            faults: Some(read),
            ..options
        },
    );
    assert_eq!(replayed.unwrap().violation, shrunk.violation);
}

#[test]
fn errors_name_the_invalid_field_of_a_scenario() {
    let message = |from: &str, to: &str| {
        assert!(FAULTS.contains(from), "{from}");
        Scenario::parse(&FAULTS.replace(from, to))
            .and_then(|scenario| simulate(&scenario, &RunOptions::default()).map(drop))
            .unwrap_err()
            .to_string()
    };
    for (from, to, expect) in [
        (
            "duration: 21m",
            "duration: 0s",
            "duration: must be greater than 0",
        ),
        ("duration: 21m", "duration: long", "`long` must be a duration"),
        ("duration: 21m", "length: 21m", "length"),
        ("chip: M4,", "chip: M9,", "fleet.macs[0].chip: "),
        (
            "fleet:\n",
            "fleet:\n  quietHours: {book: \"09:00-17:00\"}\n",
            "fleet.quietHours.book: no class of Macs has this name; the classes are mini, pro",
        ),
        (
            "fleet:\n",
            "fleet:\n  quietHours: {mini: \"9-17\"}\n",
            "fleet.quietHours.mini: `9-17` is not a period: use HH:MM-HH:MM",
        ),
        ("model: phi-3-mini", "model: phi-99", "models[1].model: "),
        (
            "model: phi-3-mini",
            "slower: 0.5, model: phi-3-mini",
            "models[1].slower: must be between 1",
        ),
        (
            "maxSurge: 1",
            "maxSurge: -1",
            "deployments[1].spec.strategy.rollingUpdate",
        ),
        (
            "{replicas: 4}",
            "{replicants: 4}",
            "changes[5].spec.replicants: unknown field",
        ),
        (
            "deployment: large, requests",
            "deployment: huge, requests",
            "demand[1].deployment: no deployment",
        ),
        (
            "mustHeal: true",
            "faults: [{at: 1s, crash: {node: mini-9}}]",
            "faults[0].node: no Mac is named `mini-9`",
        ),
    ] {
        let error = message(from, to);
        assert!(error.contains(expect), "{to}: {error}");
    }
}

/// Seeds and faults of runs that violated an invariant in an earlier version.
mod regressions {
    use super::*;

    /// Scenario of most regressions.
    const SCENARIO: &str = r#"
duration: 21m
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 4}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 24Gi, count: 2}
models:
  - {name: small, model: tinyllama-1.1b, quantization: mlx4, maxContextTokens: 2048}
  - {name: large, model: phi-3-mini, quantization: mlx8, maxContextTokens: 4096}
deployments:
  - name: small
    spec:
      replicas: 3
      model: {source: "local://small"}
      serving: {maxConcurrency: 2}
  - name: large
    spec:
      replicas: 4
      model: {source: "local://large"}
      serving: {maxConcurrency: 2}
      objectives: {decodeTokensPerSecond: 4}
      strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}
demand:
  - {deployment: small, requestsPerSecond: 0.05, promptTokens: 300, answerTokens: 200}
  - {deployment: large, requestsPerSecond: 0.05, promptTokens: 500, answerTokens: 100}
changes:
  - {at: 3m, patch: {deployment: large, spec: {serving: {contextTokens: 2048}}}}
  - {at: 4m, patch: {deployment: large, spec: {objectives: {decodeTokensPerSecond: 3}}}}
  - {at: 5m, patch: {deployment: small, spec: {replicas: 4}}}
  - {at: 7m, patch: {deployment: large, spec: {serving: {contextTokens: 3072}}}}
mustHeal: true
"#;

    fn assert_holds(seed: u64, faults: &str) {
        assert_holds_in(SCENARIO, seed, faults);
    }

    fn assert_holds_in(scenario: &str, seed: u64, faults: &str) {
        let scenario = Scenario::parse(scenario).unwrap();
        let options = RunOptions {
            faults: Some(rooflet_base::yaml::from_str(faults).unwrap()),
            ..RunOptions::new(seed, Policy::default())
        };
        assert_eq!(simulate(&scenario, &options).unwrap().violation, None);
    }

    /// The release of a deleted node's replica is in flight while the node's agent registers again.
    #[test]
    fn node_that_registers_again_keeps_its_replicas() {
        let faults = "
- {at: 13.376s, for: 1m8.784s, agentRestart: {node: mini-4}}
- {at: 22.312s, for: 38.830s, relist: {}}
- {at: 25.412s, for: 1m36.025s, isolate: {node: mini-2}}
- {at: 1m6.919s, for: 1m54.549s, lostWrites: {share: 0.2}}
- {at: 5m56.703s, for: 41.459s, slowNetwork: {factor: 300}}
- {at: 6m5.538s, for: 37.307s, isolate: {node: mini-2}}
- {at: 6m10.066s, for: 2.857s, deleteNode: {node: mini-3}}
";
        assert_holds(5083, faults);
    }

    /// The taint is removed before the eviction that it caused arrives.
    #[test]
    fn eviction_may_arrive_after_its_taint_is_removed() {
        let faults = "
- {at: 6m13.866s, for: 1m41.449s, slowNetwork: {factor: 272.5}}
- {at: 6m44.146s, for: 8.792s, onBattery: {node: mini-3}}
";
        assert_holds(173, faults);
    }

    /// A disconnected, restarted agent reports a status that other writers have overtaken.
    #[test]
    fn outdated_status_is_not_written() {
        let faults = "
- {at: 7m2.446s, for: 1m33.400s, staleController: {}}
- {at: 7m19.491s, for: 1m53.656s, isolate: {node: mini-4}}
- {at: 7m29.693s, for: 42.719s, isolate: {node: pro-2}}
- {at: 8m19.985s, for: 27.182s, agentRestart: {node: mini-4}}
";
        assert_holds(1336, faults);
    }

    /// A node admits a rejected replica while the creation of its replacement is in flight.
    #[test]
    fn rejected_replica_may_be_admitted_during_its_replacement() {
        let faults = "
- {at: 2m12.058s, for: 1m51.981s, thermal: {node: pro-1, factor: 1.7}}
- {at: 2m17.559s, for: 1m6.318s, workerCrash: {node: mini-2}}
- {at: 2m44.299s, for: 1m56.203s, slowNetwork: {factor: 147.4}}
- {at: 3m11.563s, for: 11.232s, memoryTaken: {node: mini-3, share: 0.6}}
";
        assert_holds(3045, faults);
    }

    /// A reconciler's snapshot was sent while the network was slower.
    #[test]
    fn snapshot_may_have_been_sent_over_a_slower_network() {
        let faults = "
- {at: 6.076s, for: 1m2.056s, staleController: {}}
- {at: 17.116s, for: 1.984s, deleteNode: {node: mini-1}}
- {at: 48.688s, for: 12.531s, deleteNode: {node: pro-1}}
- {at: 2m26.486s, for: 2.074s, workerCrash: {node: mini-1}}
- {at: 5m50.481s, for: 1m38.748s, relist: {}}
- {at: 8m35.034s, for: 42.170s, slowNetwork: {factor: 221.2}}
- {at: 8m50.880s, for: 59.637s, deleteNode: {node: pro-1}}
- {at: 9m9.053s, for: 29.561s, slowNetwork: {factor: 254.5}}
- {at: 9m15.514s, for: 22.290s, relist: {}}
- {at: 9m29.927s, for: 1.294s, onBattery: {node: mini-3}}
";
        assert_holds(5020, faults);
    }

    /// A clock was set back by the time between two renewals, so both have the same time.
    #[test]
    fn renewal_with_an_unchanged_time_counts() {
        let faults = "
- {at: 33.498s, for: 1m23.780s, clockSkew: {node: pro-1, seconds: -60}}
- {at: 1m6.671s, for: 1m20.109s, workerCrash: {node: mini-3}}
";
        assert_holds(8754, faults);
    }

    /// The chip of an isolated node cools down.
    #[test]
    fn isolated_node_renews_no_lease() {
        let faults = "
- {at: 6m27.515s, for: 51.310s, thermal: {node: mini-3, factor: 2.8}}
- {at: 6m45.821s, for: 1m27.906s, isolate: {node: mini-3}}
- {at: 7m31.657s, for: 1m33.453s, isolate: {node: mini-3}}
";
        assert_holds(480, faults);
    }

    /// A node is disconnected between two leaders.
    #[test]
    fn new_leader_checks_all_nodes() {
        let faults = "
- {at: 6m3.497s, for: 1m16.740s, staleController: {}}
- {at: 7m12.608s, for: 25.288s, pausedLeader: {}}
- {at: 7m20.743s, for: 1m36.589s, cut: {node: pro-1}}
";
        assert_holds_in(FAULTS, 394, faults);
    }

    /// After a removal was planned, another replica starts to serve on the same chip and slows it
    /// down.
    #[test]
    fn new_replica_may_slow_down_a_chip_after_the_plan() {
        let scenario = Scenario::parse(FAULTS).unwrap();
        assert_eq!(run(&scenario, 206).violation, None);
    }
}

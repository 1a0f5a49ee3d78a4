//! Properties of rollouts under arbitrary sequences of events.

use super::*;
use crate::deployment::replica::is_leaving;
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION};

/// Event between two passes.
#[derive(Debug, Clone)]
enum Event {
    /// A replica becomes Ready, with this predicted speed in tokens/s. 0: no prediction.
    Ready(usize, u8),
    NotReady(usize),
    Lost(usize),
    Terminated,
    Template(u8),
    Replicas(i32),
    Paused(bool),
    /// Time passes, in seconds.
    Time(i64),
    /// The newest revision is promoted past a step, or aborted.
    Promoted(u8),
    Aborted,
    Unschedulable(usize),
    /// A request arrives, or the last one ends.
    InUse(usize, bool),
    /// The node of a replica is drained, or the drain is cancelled.
    Leaving(usize, bool),
    Pass,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0usize..8, 0u8..4).prop_map(|(index, speed)| Event::Ready(index, speed)),
        1 => (0usize..8).prop_map(Event::NotReady),
        1 => (0usize..8).prop_map(Event::Lost),
        2 => Just(Event::Terminated),
        1 => (0u8..3).prop_map(Event::Template),
        1 => (0i32..5).prop_map(Event::Replicas),
        1 => any::<bool>().prop_map(Event::Paused),
        1 => prop_oneof![1i64..60, 600i64..700].prop_map(Event::Time),
        1 => (0u8..5).prop_map(Event::Promoted),
        1 => Just(Event::Aborted),
        1 => (0usize..8).prop_map(Event::Unschedulable),
        2 => (0usize..8, any::<bool>()).prop_map(|(index, used)| Event::InUse(index, used)),
        2 => (0usize..8, any::<bool>()).prop_map(|(index, leaves)| Event::Leaving(index, leaves)),
        8 => Just(Event::Pass),
    ]
}

fn any_floor() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => Just(json!(null)),
        1 => (0u32..12).prop_map(|tens| json!(format!("{}%", tens * 10))),
        1 => (0u32..40).prop_map(|rate| json!(rate)),
    ]
}

fn any_steps() -> impl Strategy<Value = Value> {
    let step = prop_oneof![
        prop::sample::select(vec![1, 20, 50, 70, 100]).prop_map(|weight| json!({ "setWeight": weight })),
        Just(json!({ "pause": { "duration": "20s" } })),
        Just(json!({ "pause": {} })),
        Just(json!({ "analysis": {} })),
    ];
    prop::collection::vec(step, 1..5).prop_map(Value::from)
}

/// Start and end of each window in seconds of the day. The time of the tests starts at midnight.
const WINDOWS: [(i64, i64); 2] = [(0, 120), (600, 900)];
const IDLE_FOR: i64 = 20;
const AT_MOST: i64 = 100;

fn any_windows() -> impl Strategy<Value = Value> {
    let windows = WINDOWS.map(|(from, until)| {
        json!({ "start": format!("00:{:02}", from / 60), "duration": format!("{}s", until - from) })
    });
    prop_oneof![2 => Just(json!([])), 1 => Just(json!(windows))]
}

fn any_wait_for_idle() -> impl Strategy<Value = Value> {
    let wait = json!({ "idleFor": format!("{IDLE_FOR}s"), "atMost": format!("{AT_MOST}s") });
    prop_oneof![2 => Just(json!(null)), 1 => Just(wait)]
}

fn any_spec() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        3 => Just("RollingUpdate"),
        3 => Just("Canary"),
        1 => Just("Recreate"),
    ];
    (
        (0i32..5, 0i32..3, 0i32..3),
        kind,
        any_floor(),
        any_steps(),
        (any::<bool>(), any_windows(), any_wait_for_idle()),
    )
        .prop_map(|((replicas, unavailable, surge), kind, floor, steps, (rolls_back, windows, wait))| {
            let mut strategy = json!({
                "type": kind, "rollbackOnFailure": rolls_back, "maintenanceWindows": windows, "waitForIdle": wait,
            });
            // The schema rejects 0 for both.
            let unavailable = if surge == 0 {
                unavailable.max(1)
            } else {
                unavailable
            };
            // Percentages of a third, so that counts and percentages both occur.
            let amount = |count: i32| match count {
                0 | 1 => json!(count),
                _ => json!(format!("{}%", 33 * count)),
            };
            if kind != "Recreate" {
                strategy["rollingUpdate"] = json!({
                    "maxUnavailable": amount(unavailable),
                    "maxSurge": amount(surge),
                    "minThroughput": floor,
                });
            }
            if kind == "Canary" {
                strategy["canary"] = json!({ "steps": steps });
            }
            json!({ "replicas": replicas, "strategy": strategy })
        })
}

fn apply(scene: &mut Scene, event: &Event) {
    let name = |scene: &Scene, index: usize| {
        let alive: Vec<_> = scene.alive().map(|replica| replica.name_any()).collect();
        (!alive.is_empty()).then(|| alive[index % alive.len()].clone())
    };
    match event {
        Event::Ready(index, speed) => {
            if let Some(name) = name(scene, *index) {
                match speed {
                    0 => scene.run(&name),
                    // Another replica on the same chip.
                    1 => {
                        scene.run(&name);
                        scene.predict(&name, 1.5);
                    }
                    speed => scene.run_at(&name, f64::from(*speed)),
                }
            }
        }
        Event::InUse(index, used) => {
            if let Some(name) = name(scene, *index) {
                scene.set_in_use(&name, *used);
            }
        }
        Event::Time(seconds) => scene.second += seconds,
        Event::Promoted(step) if scene.rollout().id().is_some() => {
            let step = match step {
                4 => "full".to_owned(),
                step => step.to_string(),
            };
            scene.annotate(PROMOTE_ANNOTATION, scene.promotion(&step));
        }
        Event::Aborted if scene.rollout().id().is_some() => {
            scene.annotate(ABORT_ANNOTATION, scene.rollout_id());
        }
        Event::Promoted(_) | Event::Aborted => {}
        Event::Unschedulable(index) => {
            let placed = |name: &String| {
                scene
                    .alive()
                    .any(|replica| replica.name_any() == *name && replica.spec.node_name.is_some())
            };
            if let Some(name) = name(scene, *index).filter(|name| !placed(name)) {
                scene.no_room_for(&name);
            }
        }
        Event::Leaving(index, leaves) => {
            if let Some(name) = name(scene, *index) {
                let truth = Truth::from(*leaves);
                scene.leave(&name, truth);
            }
        }
        Event::NotReady(index) => {
            if let Some(name) = name(scene, *index) {
                scene.set(&name, condition_type::READY, Truth::False, "Crashed", "");
            }
        }
        Event::Lost(index) => {
            if let Some(name) = name(scene, *index) {
                scene.replicas.retain(|replica| replica.name_any() != name);
            }
        }
        Event::Terminated => scene.finish(),
        Event::Template(letter) => scene.change(new_template(&format!("t{letter}"))),
        Event::Replicas(replicas) => scene.change(json!({ "replicas": replicas })),
        Event::Paused(paused) => scene.change(json!({ "paused": paused })),
        Event::Pass => drop(scene.step()),
    }
}

/// Returns name, chip and predicted tokens/s of four streams of each Ready replica.
fn figures(scene: &Scene) -> Vec<(String, Option<String>, f64)> {
    let each = |replica: &ModelReplica| {
        let admission = replica.status.as_ref()?.admission.as_ref()?;
        Some(4.0 * admission.speed.as_ref()?.tokens_per_second.p50)
    };
    let ready = scene.alive().filter(|replica| is_ready(replica));
    ready
        .filter_map(|replica| Some((replica.name_any(), replica.spec.node_name.clone(), each(replica)?)))
        .collect()
}

/// Returns the total throughput. The replicas on a chip share it, so together they have their mean.
fn together<'a>(figures: impl Iterator<Item = &'a (String, Option<String>, f64)>) -> f64 {
    let mut chips: std::collections::BTreeMap<_, Vec<f64>> = std::collections::BTreeMap::new();
    for (_, chip, figure) in figures {
        chips.entry(chip).or_default().push(*figure);
    }
    chips
        .values()
        .map(|all| all.iter().sum::<f64>() / all.len() as f64)
        .sum()
}

/// Returns the throughput per replica at the last complete rollout, or the current one.
fn reference(scene: &Scene) -> f64 {
    let figures = figures(scene);
    let mean = together(figures.iter()) / figures.len().max(1) as f64;
    scene.rollout().reference_tokens_per_second.unwrap_or(mean)
}

fn floor(scene: &Scene, reference: f64) -> f64 {
    let spec = &scene.deployment.spec;
    let rolling = spec.strategy.rolling_update.as_ref();
    match rolling.and_then(|rolling| rolling.min_throughput) {
        None => 0.0,
        Some(_) if spec.replicas == 0 => 0.0,
        Some(CountOrPercent::Count(rate)) => f64::from(rate),
        Some(CountOrPercent::Percent(percent)) => {
            reference * f64::from(spec.replicas) * f64::from(percent) / 100.0
        }
    }
}

/// Returns a description of a replacement outside the windows or of a replica in use.
fn untimely_replacement(before: &Scene, after: &Scene, description: &str) -> Option<String> {
    let (was, is) = (before.rollout(), after.rollout());
    let promoted = before.deployment.annotations().get(PROMOTE_ANNOTATION);
    let may_hurry = is.aborted.is_some()
        || was.stable_revision.is_none()
        || promoted.is_some_and(|promoted| promoted.strip_suffix("/full") == is.id().as_deref());
    if may_hurry {
        return None;
    }
    let strategy = &before.deployment.spec.strategy;
    let now = before.second.rem_euclid(24 * 3600);
    let is_open = strategy.maintenance_windows.is_empty()
        || WINDOWS.iter().any(|(from, until)| (*from..*until).contains(&now));
    let has_waited = was
        .idle_wait_started_at
        .is_some_and(|began| before.second - began.0.as_second() >= AT_MOST);
    let in_use = |replica: &&ModelReplica| {
        let requests = replica
            .status
            .as_ref()
            .and_then(|status| status.requests.as_ref());
        let since = requests.and_then(|requests| requests.idle_since.as_ref());
        is_ready(replica) && since.is_none_or(|since| before.second - since.0.as_second() < IDLE_FOR)
    };
    let replaced = || {
        before
            .alive()
            .filter(|replica| description.contains(&format!("-{}(outdated)", replica.name_any())))
    };
    if let Some(replica) = replaced().next().filter(|_| !is_open) {
        return Some(format!("{} outside of a window", replica.name_any()));
    }
    let waits = strategy.wait_for_idle.is_some() && !has_waited;
    let used = replaced().find(in_use).filter(|_| waits);
    used.map(|replica| format!("{} while it was in use", replica.name_any()))
}

proptest! {
    #[test]
    fn no_pass_breaks_the_bounds_of_a_rollout(
        spec in any_spec(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for event in &events {
            let (total, ready) = (scene.alive().count(), scene.ready());
            if !matches!(event, Event::Pass) {
                apply(&mut scene, event);
                continue;
            }
            let figures = figures(&scene);
            let reference = reference(&scene);
            let before_pass = scene.clone();
            let description = scene.step();
            if let Some(untimely) = untimely_replacement(&before_pass, &scene, &description) {
                return Err(TestCaseError::fail(format!("{untimely}: {description}")));
            }
            let spec = &scene.deployment.spec;
            let bounds = Bounds::of(spec);
            // A canary runs beside a single replica, never instead of it.
            let is_beside = spec.strategy.canary.is_some() && bounds.desired == 1;
            // The canary, also an aborted one, does not count while the single replica is replaced.
            let is_moving = before_pass.alive().any(is_leaving);
            let has_canary = bounds.desired == 1 && (is_beside || scene.rollout().aborted.is_some());
            let most = total
                .max(bounds.max_total + usize::from(has_canary && is_moving))
                .max(if is_beside { 2 } else { 0 });
            // Surplus replicas may be deleted regardless of the floor.
            let kept = |name: &str| !description.contains(&format!("-{name}(outdated)"));
            let before = together(figures.iter());
            let after = together(figures.iter().filter(|(name, ..)| kept(name)));
            let floor = floor(&scene, reference);
            prop_assert!(
                after + 1e-6 >= before.min(floor),
                "{after} of {before} tokens/s left, the floor is {floor}: {description}"
            );
            prop_assert!(scene.alive().count() <= most, "{} > {most}", scene.alive().count());
            prop_assert!(
                scene.ready() >= ready.min(bounds.min_available),
                "{} ready of {ready}, the minimum is {}", scene.ready(), bounds.min_available
            );
            if spec.strategy.kind == StrategyType::Recreate && !spec.paused {
                let revisions: std::collections::BTreeSet<_> = scene
                    .alive()
                    .map(|replica| replica.labels()[rooflet_api::meta::REVISION_LABEL].clone())
                    .collect();
                prop_assert!(revisions.len() <= 1, "two revisions at once: {revisions:?}");
            }
        }
    }

    #[test]
    fn plan_is_empty_after_its_execution(
        spec in any_spec(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for event in &events {
            apply(&mut scene, event);
        }
        // A pass may make the next one possible: a replica that it creates replaces another, and
        // one that it deletes changes the mean throughput of the rest.
        for _ in 0..20 {
            if scene.step().is_empty() {
                break;
            }
        }
        // The same time as in the last pass, because a pause may end in the next second.
        scene.second -= 1;
        let status = scene.deployment.status.clone();
        // Revisions may still be pruned, because the last pass may have freed some.
        scene.plan(|plan| {
            prop_assert!(
                plan.revision == RevisionStep::Keep && plan.delete.is_empty() && plan.create.is_empty() && plan.amend.is_empty(),
                "{}", describe(&plan)
            );
            prop_assert_eq!(Some(&plan.status), status.as_ref());
            Ok(())
        })?;
    }

    #[test]
    fn promoted_rollout_reaches_the_newest_template(
        spec in any_spec(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for event in &events {
            apply(&mut scene, event);
        }
        // A floor could prevent the rollout permanently.
        let free = match scene.deployment.spec.strategy.kind {
            StrategyType::Recreate => json!({}),
            StrategyType::RollingUpdate | StrategyType::Canary => json!({ "rollingUpdate": { "minThroughput": null } }),
        };
        scene.change(json!({ "paused": false, "serving": { "name": "last" }, "strategy": free }));
        scene.step();
        let newest = scene.newest();
        scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
        for _ in 0..40 {
            scene.step();
            scene.finish();
            scene.run_all();
            // The node lifecycle deletes a leaving replica once there is another one.
            if scene.ready() > usize::try_from(scene.deployment.spec.replicas).expect("the count is not negative") {
                scene.replicas.retain(|replica| !is_leaving(replica));
            }
        }
        prop_assert_eq!(scene.plan(|plan| describe(&plan)), "");
        let replicas = usize::try_from(scene.deployment.spec.replicas).expect("the count is not negative");
        prop_assert_eq!(scene.ready(), replicas);
        prop_assert!(scene.alive().all(|replica| crate::deployment::replica::is_of(replica, &newest)));
        prop_assert!(scene.condition(condition_type::READY).starts_with("True"));
        prop_assert!(scene.traffic().is_empty());
    }

    #[test]
    fn hash_depends_on_the_template_only(name in "[a-z]{1,8}", context in prop::option::of(1u32..9999), replicas in 0i32..9) {
        let spec = json!({ "serving": { "name": name, "contextTokens": context } });
        let one = Scene::new(spec.clone());
        let mut other = Scene::new(spec);
        other.change(json!({ "replicas": replicas, "paused": true }));
        let hash = |scene: &Scene| crate::deployment::admission::Template::of(&scene.deployment).hash();
        prop_assert_eq!(hash(&one), hash(&other));
        other.change(json!({ "serving": { "maxConcurrency": 9 } }));
        prop_assert_ne!(hash(&one), hash(&other));
    }
}

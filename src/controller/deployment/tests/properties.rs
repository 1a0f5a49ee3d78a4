//! Whatever happens, in whatever order.

use super::*;

/// Something that happens between two passes.
#[derive(Debug, Clone)]
enum Happening {
    Ready(usize),
    Falters(usize),
    Vanishes(usize),
    Ends,
    Template(u8),
    Wanted(i32),
    Paused(bool),
    Pass,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0usize..8).prop_map(Happening::Ready),
        1 => (0usize..8).prop_map(Happening::Falters),
        1 => (0usize..8).prop_map(Happening::Vanishes),
        2 => Just(Happening::Ends),
        1 => (0u8..3).prop_map(Happening::Template),
        1 => (0i32..5).prop_map(Happening::Wanted),
        1 => any::<bool>().prop_map(Happening::Paused),
        6 => Just(Happening::Pass),
    ]
}

fn any_spec() -> impl Strategy<Value = Value> {
    (0i32..5, 0i32..3, 0i32..3, prop::bool::weighted(0.2)).prop_map(
        |(wanted, unavailable, surge, recreate)| {
            if recreate {
                return json!({ "replicas": wanted, "strategy": { "type": "Recreate" } });
            }
            // The schema refuses 0 and 0.
            let unavailable = if surge == 0 {
                unavailable.max(1)
            } else {
                unavailable
            };
            // Thirds, so that counts and what they round to both occur.
            let amount = |count: i32| match count {
                0 | 1 => json!(count),
                _ => json!(format!("{}%", 33 * count)),
            };
            let bounds = json!({ "maxUnavailable": amount(unavailable), "maxSurge": amount(surge) });
            json!({ "replicas": wanted, "strategy": { "rollingUpdate": bounds } })
        },
    )
}

fn happen(scene: &mut Scene, happening: &Happening) {
    let name = |scene: &Scene, index: usize| {
        let alive: Vec<_> = scene.alive().map(|replica| replica.name_any()).collect();
        (!alive.is_empty()).then(|| alive[index % alive.len()].clone())
    };
    match happening {
        Happening::Ready(index) => {
            if let Some(name) = name(scene, *index) {
                scene.run(&name);
            }
        }
        Happening::Falters(index) => {
            if let Some(name) = name(scene, *index) {
                scene.say(&name, condition_type::READY, Truth::False, "Crashed", "");
            }
        }
        Happening::Vanishes(index) => {
            if let Some(name) = name(scene, *index) {
                scene.replicas.retain(|replica| replica.name_any() != name);
            }
        }
        Happening::Ends => scene.finish(),
        Happening::Template(letter) => scene.change(new_template(&format!("t{letter}"))),
        Happening::Wanted(wanted) => scene.change(json!({ "replicas": wanted })),
        Happening::Paused(paused) => scene.change(json!({ "paused": paused })),
        Happening::Pass => drop(scene.step()),
    }
}

proptest! {
    #[test]
    fn no_pass_breaks_the_bounds_of_a_rollout(
        spec in any_spec(),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for happening in &happenings {
            let (total, ready) = (scene.alive().count(), scene.ready());
            happen(&mut scene, happening);
            if !matches!(happening, Happening::Pass) {
                continue;
            }
            let spec = &scene.deployment.spec;
            let bounds = Bounds::of(spec);
            let most = total.max(bounds.max_total);
            prop_assert!(scene.alive().count() <= most, "{} > {most}", scene.alive().count());
            prop_assert!(
                scene.ready() >= ready.min(bounds.min_available),
                "{} ready of {ready}, at least {} should be", scene.ready(), bounds.min_available
            );
            if spec.strategy.kind == StrategyType::Recreate && !spec.paused {
                let revisions: std::collections::BTreeSet<_> = scene
                    .alive()
                    .map(|replica| replica.labels()[crate::api::meta::REVISION_LABEL].clone())
                    .collect();
                prop_assert!(revisions.len() <= 1, "two revisions at once: {revisions:?}");
            }
        }
    }

    #[test]
    fn a_plan_carried_out_leaves_nothing_to_plan(
        spec in any_spec(),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for happening in &happenings {
            happen(&mut scene, happening);
        }
        scene.step();
        let status = scene.deployment.status.clone();
        // Pruning follows what the pass before has freed.
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
    fn in_the_end_all_replicas_are_of_the_newest_template(
        spec in any_spec(),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut scene = Scene::new(spec);
        for happening in &happenings {
            happen(&mut scene, happening);
        }
        scene.change(json!({ "paused": false }));
        for _ in 0..40 {
            scene.step();
            scene.finish();
            scene.run_all();
        }
        prop_assert_eq!(scene.plan(|plan| describe(&plan)), "");
        let wanted = usize::try_from(scene.deployment.spec.replicas).expect("not negative");
        prop_assert_eq!(scene.ready(), wanted);
        let newest = scene.revisions.iter().max_by_key(|revision| revision.spec.revision).expect("one");
        let newest = newest.name_any();
        prop_assert!(scene.alive().all(|replica| crate::controller::deployment::replica::is_of(replica, &newest)));
        prop_assert!(scene.condition(condition_type::READY).starts_with("True"));
    }

    #[test]
    fn a_hash_depends_on_the_template_alone(name in "[a-z]{1,8}", context in prop::option::of(1u32..9999), replicas in 0i32..9) {
        let spec = json!({ "serving": { "name": name, "contextTokens": context } });
        let one = Scene::new(spec.clone());
        let mut other = Scene::new(spec);
        other.change(json!({ "replicas": replicas, "paused": true }));
        let hash = |scene: &Scene| crate::controller::deployment::admission::Template::of(&scene.deployment).hash();
        prop_assert_eq!(hash(&one), hash(&other));
        other.change(json!({ "serving": { "maxConcurrency": 9 } }));
        prop_assert_ne!(hash(&one), hash(&other));
    }
}

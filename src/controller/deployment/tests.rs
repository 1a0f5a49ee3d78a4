use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{DeploymentPlan, Observed, RevisionStep};
use super::replica::is_ready;
use super::rollout::DeleteReason;
use crate::api::conditions::{Truth, condition_type, set_condition};
use crate::api::v1alpha1::*;
use crate::roofline::memory::ServedModel;
use crate::scheduler::Fleet;
use crate::units::Bytes;

/// A deployment with everything that belongs to it, and a node; time in seconds.
#[derive(Clone)]
struct Scene {
    deployment: ModelDeployment,
    revisions: Vec<ModelRevision>,
    replicas: Vec<ModelReplica>,
    models: Vec<NodeModel>,
    second: i64,
    named: usize,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

impl Scene {
    fn new(spec: Value) -> Self {
        let mut full = json!({ "model": { "source": "local://guide" } });
        json_patch::merge(&mut full, &spec);
        let mut deployment = ModelDeployment::new("guide", serde_json::from_value(full).expect("valid"));
        deployment.metadata.namespace = Some("default".to_owned());
        deployment.metadata.uid = Some("uid-guide".to_owned());
        deployment.metadata.generation = Some(1);
        let model =
            ServedModel::of_size(Bytes::mib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 2048);
        Self {
            deployment,
            revisions: Vec::new(),
            replicas: Vec::new(),
            models: vec![model],
            second: 0,
            named: 0,
        }
    }

    fn change(&mut self, spec: Value) {
        let mut full = serde_json::to_value(&self.deployment.spec).expect("serialises");
        json_patch::merge(&mut full, &spec);
        self.deployment.spec = serde_json::from_value(full).expect("valid");
        *self.deployment.metadata.generation.get_or_insert(0) += 1;
    }

    fn fleet(&self) -> Fleet {
        let mut node = FleetNode::new("mini", FleetNodeSpec::default());
        let mut status = FleetNodeStatus {
            models: self.models.clone(),
            ..FleetNodeStatus::default()
        };
        status.allocatable.memory = "64Gi".to_owned();
        node.status = Some(status);
        if self.models.is_empty() {
            return Fleet::default();
        }
        Fleet::new([&node], &[])
    }

    fn plan<T>(&self, look: impl FnOnce(DeploymentPlan<'_>) -> T) -> T {
        let fleet = self.fleet();
        let plan = DeploymentPlan::new(&Observed {
            deployment: &self.deployment,
            revisions: self.revisions.iter().collect(),
            replicas: self.replicas.iter().collect(),
            fleet: &fleet,
            now: at(self.second),
        });
        look(plan.expect("not being deleted"))
    }

    /// Plans and carries it out; prints what was done.
    fn step(&mut self) -> String {
        let (revision, prune, delete, mut create, status, told) = self.plan(|plan| {
            let told = describe(&plan);
            let delete: Vec<_> = plan
                .delete
                .iter()
                .map(|(replica, _)| replica.name_any())
                .collect();
            let prune: Vec<_> = plan.prune.iter().map(|revision| revision.name_any()).collect();
            (plan.revision, prune, delete, plan.create, plan.status, told)
        });
        match revision {
            RevisionStep::Keep => {}
            RevisionStep::Create(mut revision) => {
                revision.metadata.creation_timestamp = Some(Time(at(self.second)));
                self.revisions.push(*revision);
            }
            RevisionStep::Renumber { name, revision } => {
                let found = self.revisions.iter_mut().find(|found| found.name_any() == name);
                found.expect("it exists").spec.revision = revision;
            }
        }
        self.revisions
            .retain(|revision| !prune.contains(&revision.name_any()));
        for replica in &mut self.replicas {
            if delete.contains(&replica.name_any()) {
                replica.metadata.deletion_timestamp = Some(Time(at(self.second)));
            }
        }
        for replica in &mut create {
            self.named += 1;
            replica.metadata.name = Some(format!("r{}", self.named));
            replica.metadata.creation_timestamp = Some(Time(at(self.second)));
        }
        self.replicas.append(&mut create);
        self.deployment.status = Some(status);
        self.second += 1;
        told
    }

    fn settle(&mut self) {
        for _ in 0..8 {
            self.step();
        }
    }

    fn replica(&mut self, name: &str) -> &mut ModelReplica {
        let found = self
            .replicas
            .iter_mut()
            .find(|replica| replica.name_any() == name);
        found.unwrap_or_else(|| panic!("no replica {name}"))
    }

    fn say(&mut self, name: &str, kind: &str, truth: Truth, reason: &str, message: &str) {
        let now = at(self.second);
        let status = self
            .replica(name)
            .status
            .get_or_insert_with(ModelReplicaStatus::default);
        set_condition(&mut status.conditions, kind, truth, reason, message, None, now);
    }

    fn run(&mut self, name: &str) {
        self.replica(name).spec.node_name = Some("mini".to_owned());
        for kind in [
            condition_type::SCHEDULED,
            condition_type::ADMITTED,
            condition_type::ARTIFACTS_READY,
            condition_type::READY,
        ] {
            self.say(name, kind, Truth::True, "Ok", "");
        }
    }

    fn run_all(&mut self) {
        let names: Vec<_> = self.replicas.iter().map(|replica| replica.name_any()).collect();
        for name in names {
            self.run(&name);
        }
    }

    /// The agents confirm that what is ending has ended.
    fn finish(&mut self) {
        self.replicas
            .retain(|replica| replica.metadata.deletion_timestamp.is_none());
    }

    fn condition(&self, kind: &str) -> String {
        let conditions = &self
            .deployment
            .status
            .as_ref()
            .expect("planned before")
            .conditions;
        let found = conditions.iter().find(|condition| condition.type_ == kind);
        found.map_or("absent".to_owned(), |found| {
            format!("{} {}: {}", found.status, found.reason, found.message)
        })
    }

    fn check_condition(&self, kind: &str, expect: &str) {
        assert_eq!(self.condition(kind), expect, "{kind}");
    }

    /// Reasons of the events that the next pass publishes.
    fn events(&self) -> Vec<String> {
        self.plan(|plan| plan.events.into_iter().map(|(_, reason, _)| reason).collect())
    }

    fn alive(&self) -> impl Iterator<Item = &ModelReplica> {
        self.replicas
            .iter()
            .filter(|replica| replica.metadata.deletion_timestamp.is_none())
    }

    fn ready(&self) -> usize {
        self.alive().filter(|replica| is_ready(replica)).count()
    }
}

fn describe(plan: &DeploymentPlan<'_>) -> String {
    let mut words = Vec::new();
    match &plan.revision {
        RevisionStep::Keep => {}
        RevisionStep::Create(revision) => words.push(format!("revision {}", revision.spec.revision)),
        RevisionStep::Renumber { revision, .. } => words.push(format!("again as {revision}")),
    }
    for revision in &plan.prune {
        words.push(format!("prune {}", revision.spec.revision));
    }
    for (replica, why) in &plan.delete {
        let why = match why {
            DeleteReason::Surplus => "surplus",
            DeleteReason::Outdated => "outdated",
            DeleteReason::Refused => "refused",
        };
        words.push(format!("-{}({why})", replica.name_any()));
    }
    if !plan.create.is_empty() {
        words.push(format!("+{}", plan.create.len()));
    }
    words.join(" ")
}

fn new_template(serving: &str) -> Value {
    json!({ "serving": { "name": serving } })
}

#[test]
fn a_deployment_gets_a_revision_with_its_defaults_and_its_replicas() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    assert_eq!(scene.step(), "revision 1 +2");
    assert_eq!(scene.step(), "");
    let revision = &scene.revisions[0];
    assert_eq!(revision.spec.serving.context_tokens, Some(2048));
    assert_eq!(revision.spec.serving.name.as_deref(), Some("guide"));
    let replica = &scene.replicas[0];
    let prefix = replica.metadata.generate_name.clone().expect("set");
    assert_eq!(prefix, format!("{}-", revision.name_any()));
    assert!(
        prefix.starts_with("guide-") && prefix.len() == "guide-".len() + 10,
        "{prefix}"
    );
    assert_eq!(replica.spec.serving, revision.spec.serving);
    for meta in [&revision.metadata, &replica.metadata] {
        let owner = &meta.owner_references.as_ref().expect("owned")[0];
        assert_eq!((owner.uid.as_str(), owner.controller), ("uid-guide", Some(true)));
    }
    let status = scene.deployment.status.as_ref().expect("written");
    assert_eq!(
        (
            status.replicas,
            status.updated_replicas,
            status.unavailable_replicas
        ),
        (2, 2, 2)
    );
    assert_eq!(status.ready.as_deref(), Some("0/2"));
    assert_eq!(status.selector.as_deref(), Some("rooflet.dev/deployment=guide"));
    scene.check_condition(
        condition_type::SCHEDULED,
        "False WaitingForScheduler: 2 replicas wait to be placed on a node",
    );
}

#[test]
fn replicas_and_objectives_restart_nothing() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.change(json!({ "replicas": 3, "objectives": { "decodeTokensPerSecond": 5.0 }, "serving": { "name": "guide" } }));
    assert_eq!(scene.step(), "+2");
    assert_eq!(scene.revisions.len(), 1);
}

#[test]
fn scaling_down_spares_what_works_and_the_oldest() {
    let mut scene = Scene::new(json!({ "replicas": 4 }));
    scene.step();
    scene.run("r1");
    scene.run("r3");
    scene.run("r4");
    scene.second += 10;
    scene.change(json!({ "replicas": 5 }));
    scene.step();
    scene.run("r5");
    scene.change(json!({ "replicas": 3 }));
    assert_eq!(scene.step(), "-r2(surplus) -r5(surplus)");
    scene.change(json!({ "replicas": 0 }));
    assert_eq!(scene.step(), "-r4(surplus) -r3(surplus) -r1(surplus)");
    scene.check_condition(condition_type::READY, "True NoReplicasWanted: spec.replicas is 0");
}

#[test]
fn a_rolling_update_goes_one_by_one_in_place() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run_all();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    assert_eq!(scene.step(), "", "waits for the new one");
    scene.finish();
    scene.run("r3");
    assert_eq!(scene.step(), "-r1(outdated) +1");
    scene.finish();
    scene.run("r4");
    assert_eq!(scene.step(), "");
    let done = format!(
        "True RolloutComplete: revision 2 ({}) is rolled out",
        scene.revisions[1].name_any()
    );
    scene.check_condition(condition_type::PROGRESSING, &done);
    scene.check_condition(
        condition_type::READY,
        "True AllReplicasReady: all 2 replicas answer requests",
    );
}

#[test]
fn a_rolling_update_with_surge_keeps_all_available() {
    let rolling = json!({ "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    let mut scene = Scene::new(json!({ "replicas": 2, "strategy": rolling }));
    scene.step();
    scene.run_all();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r3");
    assert_eq!(scene.step(), "-r2(outdated) +1");
    scene.run("r4");
    assert_eq!(scene.step(), "-r1(outdated)");
    assert_eq!(scene.step(), "");
}

#[test]
fn old_replicas_that_do_not_work_go_first() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run("r2");
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
}

#[test]
fn recreate_waits_until_the_old_ones_are_gone() {
    let mut scene = Scene::new(json!({ "replicas": 2, "strategy": { "type": "Recreate" } }));
    scene.step();
    scene.run_all();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) -r1(outdated)");
    assert_eq!(scene.step(), "", "they are still ending");
    scene.finish();
    assert_eq!(scene.step(), "+2");
}

#[test]
fn a_paused_deployment_scales_and_rolls_nothing_out() {
    let mut scene = Scene::new(json!({ "replicas": 1 }));
    scene.step();
    scene.run_all();
    let mut change = new_template("other");
    json_patch::merge(&mut change, &json!({ "paused": true, "replicas": 2 }));
    scene.change(change);
    assert_eq!(scene.step(), "+1");
    assert_eq!(scene.revisions.len(), 1);
    assert_eq!(
        scene
            .deployment
            .status
            .as_ref()
            .expect("written")
            .updated_replicas,
        0
    );
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown Paused: spec.paused: changes of the template are not rolled out",
    );
    scene.change(json!({ "paused": false }));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
}

#[test]
fn an_undo_takes_the_old_revision_under_a_new_number() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.change(new_template("guide"));
    assert_eq!(scene.step(), "again as 3 -r2(outdated) +1");
    assert_eq!(scene.revisions.len(), 2);
    assert_eq!(scene.step(), "");
}

#[test]
fn old_revisions_are_kept_up_to_the_limit_and_while_in_use() {
    let mut scene = Scene::new(json!({ "revisionHistoryLimit": 1 }));
    scene.step();
    scene.run_all();
    scene.change(new_template("b"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.change(new_template("c"));
    // r1 is still ending: its revision is in use.
    assert_eq!(scene.step(), "revision 3 -r2(outdated) +1");
    assert_eq!(scene.step(), "");
    scene.finish();
    assert_eq!(scene.step(), "prune 1");
}

#[test]
fn a_model_that_no_node_has_is_refused_with_what_there_is() {
    let mut scene = Scene::new(json!({ "model": { "source": "local://gide" } }));
    assert_eq!(scene.events(), ["ModelNotFound"], "one cause is told once");
    assert_eq!(scene.step(), "");
    let why = "spec.model.source: no node has a directory `gide` in its --model-dir; on mini there are local://guide";
    scene.check_condition(condition_type::ADMITTED, &format!("False ModelNotFound: {why}"));
    scene.check_condition(condition_type::READY, &format!("False ModelNotFound: {why}"));
    scene.models[0].name = "gide".to_owned();
    scene.models[0].problem = Some("model.safetensors: the header is cut short".to_owned());
    scene.step();
    scene.check_condition(
        condition_type::ADMITTED,
        "False ModelNotServable: model `gide` cannot be served: model.safetensors: the header is cut short (on mini)",
    );
    scene.models.clear();
    scene.step();
    assert!(
        scene
            .condition(condition_type::ADMITTED)
            .starts_with("False NoNodes")
    );
    scene.models = Scene::new(json!({})).models;
    scene.change(json!({ "model": { "source": "local://guide" }, "serving": { "contextTokens": 4096 } }));
    scene.step();
    assert!(
        scene
            .condition(condition_type::ADMITTED)
            .starts_with("False ContextTooLong")
    );
    scene.change(json!({ "serving": { "contextTokens": 1024 } }));
    assert_eq!(scene.step(), "revision 1 +1");
    assert_eq!(scene.revisions[0].spec.serving.context_tokens, Some(1024));
}

#[test]
fn a_refused_change_leaves_what_serves_alone_and_still_heals_it() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run_all();
    scene.settle();
    scene.change(json!({ "model": { "source": "local://typo" } }));
    assert_eq!(scene.step(), "");
    assert!(scene.condition(condition_type::PROGRESSING).starts_with(
        "False ModelNotFound: revision 1 stays, because the new template is refused: spec.model.source"
    ));
    scene.check_condition(
        condition_type::AVAILABLE,
        "True MinimumReplicasAvailable: 2 of 2 replicas answer requests",
    );
    assert!(
        scene
            .condition(condition_type::READY)
            .starts_with("False ModelNotFound")
    );
    scene.replicas.remove(0);
    assert_eq!(scene.step(), "+1");
}

#[test]
fn why_a_replica_does_not_answer_is_told_on_the_deployment() {
    let mut scene = Scene::new(json!({ "replicas": 1 }));
    scene.step();
    let why = "0/1 nodes are available: 1 cordoned";
    scene.say("r1", condition_type::SCHEDULED, Truth::False, "NodeCordoned", why);
    scene.step();
    scene.check_condition(condition_type::SCHEDULED, &format!("False NodeCordoned: {why}"));
    scene.check_condition(
        condition_type::READY,
        &format!("False NodeCordoned: 0 of 1 replicas ready: r1: NodeCordoned: {why}"),
    );
    scene.run("r1");
    scene.settle();
    let replica = scene.replica("r1").status.as_mut().expect("set");
    replica.phase = ReplicaPhase::Failed;
    replica.restarts = 3;
    replica.last_termination = Some(Termination {
        reason: "OutOfMemory".to_owned(),
        message: "Metal ran out of memory".to_owned(),
        ..Termination::default()
    });
    scene.say(
        "r1",
        condition_type::READY,
        Truth::False,
        "CrashLoop",
        "the worker is started again in 40 s",
    );
    scene.step();
    scene.check_condition(
        condition_type::DEGRADED,
        "True CrashLoop: r1 on mini: the worker is started again in 40 s; its worker ended with OutOfMemory: Metal ran \
         out of memory",
    );
    assert!(
        scene
            .condition(condition_type::PROGRESSING)
            .starts_with("True RolloutComplete"),
        "a replica that falters is no rollout"
    );
}

#[test]
fn what_many_replicas_wait_for_is_told_once() {
    let mut scene = Scene::new(json!({ "replicas": 4 }));
    scene.step();
    scene.run("r1");
    for (name, free) in [("r2", "3.1"), ("r3", "2.9"), ("r4", "2.9")] {
        let why = format!("0/1 nodes are available: 1 insufficient memory (5 GiB asked, {free} GiB free)");
        scene.say(
            name,
            condition_type::SCHEDULED,
            Truth::False,
            "InsufficientMemory",
            &why,
        );
    }
    scene.step();
    scene.check_condition(
        condition_type::READY,
        "False InsufficientMemory: 1 of 4 replicas ready: r2, r3, r4: InsufficientMemory: 0/1 nodes are available: 1 \
         insufficient memory (5 GiB asked, 3.1 GiB free)",
    );
    scene.check_condition(
        condition_type::AVAILABLE,
        "False MinimumReplicasUnavailable: 1 of 4 replicas answer requests; at least 3 should: 3 InsufficientMemory",
    );
}

#[test]
fn a_rollout_without_progress_says_so_after_the_deadline() {
    let mut scene = Scene::new(json!({ "progressDeadlineSeconds": 60 }));
    scene.step();
    scene.step();
    assert!(
        scene
            .condition(condition_type::PROGRESSING)
            .starts_with("True RollingOut")
    );
    let wait = scene.plan(|plan| plan.look_again_after).expect("it looks again");
    scene.second += i64::try_from(wait.as_secs()).expect("small");
    scene.step();
    assert!(
        scene
            .condition(condition_type::PROGRESSING)
            .starts_with("False ProgressDeadlineExceeded: no progress for 60 s"),
        "{}",
        scene.condition(condition_type::PROGRESSING)
    );
    scene.run("r1");
    scene.step();
    assert!(
        scene
            .condition(condition_type::PROGRESSING)
            .starts_with("True RolloutComplete")
    );
}

#[test]
fn what_a_node_has_no_memory_for_is_made_anew_and_kept_as_a_mark_for_a_while() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run("r1");
    let refused = |scene: &mut Scene, name: &str| {
        scene.say(name, condition_type::READY, Truth::False, "Refused", "not loaded");
        scene.say(
            name,
            condition_type::ADMITTED,
            Truth::False,
            "MemoryInUse",
            "it needs 2 GiB",
        );
    };
    refused(&mut scene, "r1");
    assert_eq!(scene.step(), "+1");
    scene.check_condition(
        condition_type::ADMITTED,
        "False MemoryInUse: r1 on mini: it needs 2 GiB",
    );
    assert_eq!(scene.step(), "", "the mark keeps the scheduler off the node");
    let mut placed = scene.clone();
    placed.run("r2");
    assert_eq!(placed.step(), "-r1(refused)");
    scene.second += 60;
    assert_eq!(scene.step(), "-r1(refused)");
}

#[test]
fn measured_speed_is_shown_and_judged() {
    let mut scene = Scene::new(json!({ "objectives": { "decodeTokensPerSecond": 80.0,
        "timeToFirstToken": { "max": "500ms" } } }));
    scene.step();
    scene.run("r1");
    scene.step();
    let status = scene.deployment.status.clone().expect("written");
    assert_eq!(status.tokens_per_second.as_deref(), Some("-/-"));
    assert!(
        scene
            .condition(condition_type::OBJECTIVES_MET)
            .starts_with("Unknown NotMeasured")
    );
    scene.replica("r1").status.as_mut().expect("set").measured = Some(MeasuredSpeed {
        tokens_per_second: "85.14".to_owned(),
        time_to_first_token_seconds: "0.7".to_owned(),
        requests: 3,
    });
    scene.step();
    let status = scene.deployment.status.clone().expect("written");
    assert_eq!(status.tokens_per_second.as_deref(), Some("-/85.1"));
    assert_eq!(status.time_to_first_token.as_deref(), Some("-/0.70s"));
    scene.check_condition(
        condition_type::OBJECTIVES_MET,
        "False ObjectivesMissed: first token after 0.70 s, spec.objectives.timeToFirstToken.max is 500ms",
    );
    scene.change(json!({ "objectives": null }));
    scene.step();
    scene.check_condition(condition_type::OBJECTIVES_MET, "absent");
}

#[test]
fn each_turn_of_a_condition_is_told_once() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
    scene.say(
        "r1",
        condition_type::SCHEDULED,
        Truth::False,
        "InsufficientMemory",
        "no",
    );
    assert_eq!(scene.events(), ["InsufficientMemory"]);
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
    scene.run("r1");
    assert_eq!(
        scene.events(),
        ["RolloutComplete", "MinimumReplicasAvailable", "Recovered"]
    );
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
}

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
            let bounds = json!({ "maxUnavailable": unavailable, "maxSurge": surge });
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
            let bounds = super::rollout::Bounds::of(spec);
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
                plan.revision == RevisionStep::Keep && plan.delete.is_empty() && plan.create.is_empty(),
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
        prop_assert!(scene.alive().all(|replica| super::replica::is_of(replica, &newest)));
        prop_assert!(scene.condition(condition_type::READY).starts_with("True"));
    }

    #[test]
    fn a_hash_depends_on_the_template_alone(name in "[a-z]{1,8}", context in prop::option::of(1u32..9999), replicas in 0i32..9) {
        let spec = json!({ "serving": { "name": name, "contextTokens": context } });
        let one = Scene::new(spec.clone());
        let mut other = Scene::new(spec);
        other.change(json!({ "replicas": replicas, "paused": true }));
        let hash = |scene: &Scene| super::admission::Template::of(&scene.deployment).hash();
        prop_assert_eq!(hash(&one), hash(&other));
        other.change(json!({ "serving": { "maxConcurrency": 9 } }));
        prop_assert_ne!(hash(&one), hash(&other));
    }
}

//! Rollouts, simulated pass by pass on plain objects.

mod canaries;
mod conditions;
mod deadlines;
mod floors;
mod hub;
mod properties;
mod refused;
mod rollouts;
mod waiting;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::admission::HubAnswer;
use super::bounds::Bounds;
use super::observed::Observed;
use super::plan::DeploymentPlan;
use super::replica::is_ready;
use super::revision::RevisionStep;
use super::rollout::DeleteReason;
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::meta::{ADMISSION_ANNOTATION, CHANGE_CAUSE_ANNOTATION, SIMULATED_LABEL};
use rooflet_api::v1alpha1::*;
use rooflet_base::clock::at;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::ServedModel;
use rooflet_scheduler::Fleet;

/// Deployment with its objects and a node. Time is in seconds.
#[derive(Clone)]
struct Scene {
    deployment: ModelDeployment,
    revisions: Vec<ModelRevision>,
    replicas: Vec<ModelReplica>,
    /// Revisions that the deployment neither controls nor adopts.
    foreign: Vec<ModelRevision>,
    /// Older deployment with the same served name.
    namesake: Option<&'static str>,
    models: Vec<NodeModel>,
    /// Answer of the hub for a template without a revision.
    hub: Option<HubAnswer>,
    /// Nodes instead of `mini`.
    nodes: Vec<FleetNode>,
    /// Replicas of other deployments on `nodes`.
    others: Vec<ModelReplica>,
    /// True if the node `mini` is simulated.
    simulated: bool,
    second: i64,
    /// Number of names given to replicas.
    named: usize,
}

impl Scene {
    fn new(spec: Value) -> Self {
        let mut deployment = ModelDeployment::test("guide", spec);
        deployment.metadata.uid = Some("uid-guide".to_owned());
        deployment.metadata.generation = Some(1);
        let model =
            ServedModel::of_size(Bytes::mib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 2048);
        Self {
            deployment,
            revisions: Vec::new(),
            replicas: Vec::new(),
            foreign: Vec::new(),
            namesake: None,
            models: vec![model],
            hub: None,
            nodes: Vec::new(),
            others: Vec::new(),
            simulated: false,
            second: 0,
            named: 0,
        }
    }

    fn change(&mut self, spec: Value) {
        let mut full = serde_json::to_value(&self.deployment.spec).expect("a spec has only string keys");
        json_patch::merge(&mut full, &spec);
        self.deployment.spec = serde_json::from_value(full).expect("the test passes a valid spec");
        *self.deployment.metadata.generation.get_or_insert(0) += 1;
    }

    fn fleet(&self) -> Fleet {
        if !self.nodes.is_empty() {
            return Fleet::new(&self.nodes, self.replicas.iter().chain(&self.others));
        }
        let mut node = mini(self.models.clone());
        if self.simulated {
            node.labels_mut()
                .insert(SIMULATED_LABEL.to_owned(), "true".to_owned());
        }
        if self.models.is_empty() {
            return Fleet::default();
        }
        Fleet::new([&node], &[])
    }

    fn plan<T>(&self, read: impl FnOnce(DeploymentPlan<'_>) -> T) -> T {
        let fleet = self.fleet();
        let plan = DeploymentPlan::new(&Observed {
            deployment: &self.deployment,
            revisions: self.revisions.iter().collect(),
            replicas: self.replicas.iter().collect(),
            foreign: self.foreign.iter().collect(),
            namesake: self.namesake,
            fleet: &fleet,
            hub: self.hub.clone(),
            now: at(self.second),
        });
        read(plan.expect("the deployment is not being deleted"))
    }

    /// Runs one pass and applies its plan. Returns a description of the plan.
    fn step(&mut self) -> String {
        let (revision, prune, delete, mut create, amend, status, description) = self.plan(|plan| {
            let description = describe(&plan);
            let delete: Vec<_> = plan
                .delete
                .iter()
                .map(|(replica, _)| replica.name_any())
                .collect();
            let prune: Vec<_> = plan.prune.iter().map(|revision| revision.name_any()).collect();
            let amend: Vec<_> = plan
                .amend
                .into_iter()
                .map(|(replica, patch)| (replica.name_any(), patch))
                .collect();
            (
                plan.revision,
                prune,
                delete,
                plan.create,
                amend,
                plan.status,
                description,
            )
        });
        for (name, patch) in amend {
            let replica = self.replica(&name);
            let mut full = serde_json::to_value(&*replica).expect("a replica has only string keys");
            json_patch::merge(&mut full, &patch);
            *replica = serde_json::from_value(full).expect("the patch keeps the replica valid");
        }
        match revision {
            RevisionStep::Keep => {}
            RevisionStep::Create(mut revision) => {
                revision.metadata.creation_timestamp = Some(Time(at(self.second)));
                self.revisions.push(*revision);
            }
            RevisionStep::Renumber { name, revision } => {
                let found = self.revisions.iter_mut().find(|found| found.name_any() == name);
                found
                    .expect("the plan renumbers an existing revision")
                    .spec
                    .revision = revision;
            }
            RevisionStep::ChangeCause { name, cause } => {
                let found = self.revisions.iter_mut().find(|found| found.name_any() == name);
                let annotations = found
                    .expect("the plan patches an existing revision")
                    .annotations_mut();
                annotations.insert(CHANGE_CAUSE_ANNOTATION.to_owned(), cause);
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
        description
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

    fn set(&mut self, name: &str, kind: &str, truth: Truth, reason: &str, message: &str) {
        let now = at(self.second);
        let status = self
            .replica(name)
            .status
            .get_or_insert_with(ModelReplicaStatus::default);
        set_condition(&mut status.conditions, kind, truth, reason, message, None, now);
    }

    /// Sets the condition DisruptionTarget of the node lifecycle.
    fn leave(&mut self, name: &str, truth: Truth) {
        self.set(name, condition_type::DISRUPTION_TARGET, truth, "NodeLeft", "");
    }

    fn run(&mut self, name: &str) {
        self.replica(name).spec.node_name = Some("mini".to_owned());
        for kind in [
            condition_type::SCHEDULED,
            condition_type::ADMITTED,
            condition_type::ARTIFACTS_READY,
            condition_type::READY,
        ] {
            self.set(name, kind, Truth::True, "Ok", "");
        }
    }

    fn run_all(&mut self) {
        let names: Vec<_> = self.replicas.iter().map(|replica| replica.name_any()).collect();
        for name in names {
            self.run(&name);
        }
    }

    /// Removes the terminating replicas, as after the agents' confirmation.
    fn finish(&mut self) {
        self.replicas
            .retain(|replica| replica.metadata.deletion_timestamp.is_none());
    }

    fn condition(&self, kind: &str) -> String {
        let conditions = &self
            .deployment
            .status
            .as_ref()
            .expect("a pass has run")
            .conditions;
        let found = conditions.iter().find(|condition| condition.type_ == kind);
        found.map_or("absent".to_owned(), |found| {
            format!("{} {}: {}", found.status, found.reason, found.message)
        })
    }

    fn check_condition(&self, kind: &str, expect: &str) {
        assert_eq!(self.condition(kind), expect, "{kind}");
    }

    fn check_condition_begins(&self, kind: &str, expect: &str) {
        let actual = self.condition(kind);
        assert!(actual.starts_with(expect), "{kind}: {actual}");
    }

    /// Returns the reasons of the events of the next pass.
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

/// Returns a Ready node with these models.
fn mini(models: Vec<NodeModel>) -> FleetNode {
    let mut node = FleetNode::new("mini", FleetNodeSpec::default());
    let mut status = FleetNodeStatus {
        models,
        ..FleetNodeStatus::default()
    };
    status.allocatable.memory = "64Gi".to_owned();
    let kind = condition_type::READY;
    set_condition(
        &mut status.conditions,
        kind,
        Truth::True,
        "AgentReady",
        "",
        None,
        at(0),
    );
    node.status = Some(status);
    node
}

fn describe(plan: &DeploymentPlan<'_>) -> String {
    let mut words = Vec::new();
    match &plan.revision {
        RevisionStep::Keep => {}
        RevisionStep::Create(revision) => words.push(format!("revision {}", revision.spec.revision)),
        RevisionStep::Renumber { revision, .. } => words.push(format!("again as {revision}")),
        RevisionStep::ChangeCause { cause, .. } => words.push(format!("cause {cause}")),
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
    for (replica, _) in &plan.amend {
        words.push(format!("~{}", replica.name_any()));
    }
    words.join(" ")
}

fn new_template(serving: &str) -> Value {
    json!({ "serving": { "name": serving } })
}

#[test]
fn objectives_change_without_a_restart() {
    let mut scene =
        Scene::new(json!({ "objectives": { "timeToFirstToken": { "max": "2s", "atPromptTokens": 100 } } }));
    scene
        .deployment
        .annotations_mut()
        .insert(ADMISSION_ANNOTATION.to_owned(), "warn".to_owned());
    scene.step();
    let replica = |scene: &Scene| scene.replicas[0].clone();
    assert_eq!(replica(&scene).spec.objectives, scene.deployment.spec.objectives);
    assert_eq!(replica(&scene).annotations()[ADMISSION_ANNOTATION], "warn");
    scene.run("r1");
    scene.step();
    for objectives in [
        json!({ "decodeTokensPerSecond": 20.0, "timeToFirstToken": { "atPromptTokens": null } }),
        json!({ "timeToFirstToken": null }),
        json!(null),
    ] {
        scene.change(json!({ "objectives": objectives }));
        assert_eq!(scene.step(), "~r1");
        assert_eq!(replica(&scene).spec.objectives, scene.deployment.spec.objectives);
        assert_eq!(scene.step(), "");
    }
    scene.deployment.annotations_mut().clear();
    assert_eq!(scene.step(), "~r1");
    assert!(replica(&scene).annotations().is_empty());
    assert_eq!(scene.step(), "");
}

#[test]
fn placement_change_that_the_node_satisfies_restarts_nothing() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run("r1");
    scene.step();
    for change in [
        json!({ "placement": { "tolerations": [{ "key": "lid", "operator": "Exists" }] } }),
        json!({ "placement": { "strategy": "BinPack", "spread": { "topologyKey": "zone" } } }),
        json!({ "priority": 7 }),
        json!({ "placement": null }),
    ] {
        scene.change(change);
        assert_eq!(scene.step(), "~r1");
        let replica = &scene.replicas[0].spec;
        let deployment = &scene.deployment.spec;
        assert_eq!(
            (&replica.placement, replica.priority),
            (&deployment.placement, deployment.priority)
        );
        assert_eq!(scene.step(), "");
    }
    // The node `mini` has no labels.
    scene.change(json!({ "placement": { "nodeSelector": { "zone": "x" } } }));
    assert_eq!(scene.step(), "-r1(outdated) +1");
    scene.finish();
    assert_eq!(scene.replicas[0].spec.placement, scene.deployment.spec.placement);
    assert_eq!(scene.step(), "");
    // An unscheduled replica is patched instead.
    scene.change(json!({ "placement": { "nodeSelector": { "zone": "y" } } }));
    assert_eq!(scene.step(), "~r2");
    assert_eq!(scene.step(), "");
}

#[test]
fn first_pass_creates_revision_with_defaults_and_replicas() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    assert_eq!(scene.step(), "revision 1 +2");
    assert_eq!(scene.step(), "");
    let revision = &scene.revisions[0];
    assert_eq!(revision.spec.serving.context_tokens, Some(2048));
    assert_eq!(revision.spec.serving.name.as_deref(), Some("guide"));
    let replica = &scene.replicas[0];
    let prefix = replica
        .metadata
        .generate_name
        .clone()
        .expect("the server completes the name");
    assert_eq!(prefix, format!("{}-", revision.name_any()));
    assert!(
        prefix.starts_with("guide-") && prefix.len() == "guide-".len() + 10,
        "{prefix}"
    );
    assert_eq!(replica.spec.serving, revision.spec.serving);
    for meta in [&revision.metadata, &replica.metadata] {
        let owner = &meta.owner_references.as_ref().expect("the object has an owner")[0];
        assert_eq!((owner.uid.as_str(), owner.controller), ("uid-guide", Some(true)));
    }
    let status = scene.deployment.status.as_ref().expect("a pass has run");
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
        "False WaitingForScheduler: 2 replicas wait for the scheduler",
    );
}

#[test]
fn scaling_and_new_objectives_restart_nothing() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.change(json!({ "replicas": 3, "objectives": { "decodeTokensPerSecond": 5.0 }, "serving": { "name": "guide" } }));
    assert_eq!(scene.step(), "+2 ~r1");
    assert_eq!(scene.revisions.len(), 1);
}

#[test]
fn scaling_down_deletes_unready_and_new_replicas_first() {
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
fn scaling_down_deletes_replicas_of_slow_macs_before_new_replicas() {
    let mut scene = Scene::new(json!({ "replicas": 4 }));
    scene.step();
    for (name, tokens_per_second) in [("r1", 20.0), ("r2", 80.0), ("r3", 80.1), ("r4", 40.0)] {
        scene.run_at(name, tokens_per_second);
    }
    scene.change(json!({ "replicas": 1 }));
    assert_eq!(scene.step(), "-r1(surplus) -r4(surplus) -r3(surplus)");
}

#[test]
fn rolling_update_replaces_one_by_one_in_place() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run_all();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    assert_eq!(scene.step(), "", "waits for the new replica");
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
fn rolling_update_with_surge_keeps_all_available() {
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
fn percentages_always_permit_a_step() {
    let bounds = |replicas: i32, unavailable: &str, surge: &str| {
        let rolling = json!({ "rollingUpdate": { "maxUnavailable": unavailable, "maxSurge": surge } });
        let scene = Scene::new(json!({ "replicas": replicas, "strategy": rolling }));
        let bounds = Bounds::of(&scene.deployment.spec);
        (bounds.min_available, bounds.max_total)
    };
    assert_eq!(bounds(10, "25%", "25%"), (8, 13));
    assert_eq!(bounds(3, "25%", "25%"), (3, 4));
    assert_eq!(bounds(3, "25%", "0%"), (2, 3), "both round to 0");
    assert_eq!(bounds(0, "25%", "25%"), (0, 0));
}

#[test]
fn rolling_update_replaces_unready_replicas_first() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run("r2");
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
}

#[test]
fn recreate_waits_until_old_replicas_are_deleted() {
    let mut scene = Scene::new(json!({ "replicas": 2, "strategy": { "type": "Recreate" } }));
    scene.step();
    scene.run_all();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) -r1(outdated)");
    assert_eq!(scene.step(), "", "the old replicas are terminating");
    scene.finish();
    assert_eq!(scene.step(), "+2");
}

#[test]
fn paused_deployment_scales_but_does_not_roll_out() {
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
            .expect("a pass has run")
            .updated_replicas,
        0
    );
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown Paused: spec.paused is true: changes of the template are not rolled out",
    );
    scene.change(json!({ "paused": false }));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
}

#[test]
fn undo_reuses_the_old_revision_with_a_new_number() {
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
fn change_cause_is_copied_to_the_revision() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run_all();
    let annotate = |scene: &mut Scene, cause: &str| {
        let annotations = scene.deployment.annotations_mut();
        annotations.insert(CHANGE_CAUSE_ANNOTATION.to_owned(), cause.to_owned());
    };
    annotate(&mut scene, "first");
    assert_eq!(scene.step(), "cause first");
    assert_eq!(scene.step(), "");
    annotate(&mut scene, "second");
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    let causes = |scene: &Scene| -> Vec<String> {
        let of = |revision: &ModelRevision| revision.annotations()[CHANGE_CAUSE_ANNOTATION].clone();
        scene.revisions.iter().map(of).collect()
    };
    assert_eq!(causes(&scene), ["first", "second"]);
    // A removed annotation leaves the causes of revisions unchanged.
    scene.deployment.annotations_mut().clear();
    assert_eq!(scene.step(), "");
    assert_eq!(causes(&scene), ["first", "second"]);
}

#[test]
fn revision_name_avoids_names_in_use() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.foreign = std::mem::take(&mut scene.revisions);
    scene.replicas.clear();
    let taken = scene.foreign[0].name_any();
    assert_eq!(scene.step(), "revision 1 +1");
    let revision = &scene.revisions[0];
    assert_ne!(revision.name_any(), taken);
    assert_eq!(
        revision.labels(),
        scene.foreign[0].labels(),
        "the new revision has the same hash label"
    );
    // If the response to the creation was lost, the next pass uses the same name. If the revision
    // exists, no revision is created.
    assert_eq!(scene.step(), "");
    let name = scene.revisions.remove(0).name_any();
    scene.replicas.clear();
    scene.step();
    assert_eq!(scene.revisions[0].name_any(), name);
}

#[test]
fn history_keeps_the_limit_and_revisions_in_use() {
    let mut scene = Scene::new(json!({ "revisionHistoryLimit": 1 }));
    scene.step();
    scene.run_all();
    scene.change(new_template("b"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.change(new_template("c"));
    // r1 is still terminating, so its revision is in use.
    assert_eq!(scene.step(), "revision 3 -r2(outdated) +1");
    assert_eq!(scene.step(), "");
    scene.finish();
    assert_eq!(scene.step(), "prune 1");
}

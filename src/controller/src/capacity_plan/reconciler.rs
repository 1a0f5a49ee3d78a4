//! Computation of the verdicts and execution of the planned writes.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;

use super::writes::{AnswerError, shorten, status_write};
use crate::executor::Executor;
use crate::intent::Snapshot;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::v1alpha1::{CapacityPlan, FleetNode, ModelReplica, PlanVerdict};
use rooflet_scheduler::capacity;
use rooflet_scheduler::capacity::Question;

/// Reconciler of CapacityPlans.
pub(crate) struct CapacityPlanReconciler {
    world: World,
    /// Last question and verdict by UID of the plan. The search for a large question lasts about a
    /// second, so the verdict is reused while the question is the same.
    answered: HashMap<String, (Question, Result<PlanVerdict, AnswerError>)>,
}

impl CapacityPlanReconciler {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            answered: HashMap::new(),
        }
    }

    async fn answer(
        &mut self,
        plan: &CapacityPlan,
        nodes: &[FleetNode],
        replicas: &[ModelReplica],
    ) -> Result<PlanVerdict, AnswerError> {
        let current = capacity::current_fleet(nodes, replicas, plan.spec.fleet.beside_running);
        match capacity::question(&plan.spec, current, nodes, &|_| None) {
            Ok(question) => self.verdict(plan.uid().unwrap_or_default(), question).await,
            Err(err) => Err(AnswerError::Invalid(err)),
        }
    }

    /// Computes the verdict on a blocking thread, because the search would block the async runtime.
    async fn verdict(&mut self, uid: String, question: Question) -> Result<PlanVerdict, AnswerError> {
        if let Some((known, verdict)) = self.answered.get(&uid)
            && *known == question
        {
            return verdict.clone();
        }
        let asked = question.clone();
        let computed = tokio::task::spawn_blocking(move || shorten(capacity::answer(&asked))).await;
        // The task fails only by a panic, which must not stop the other reconcilers.
        let verdict = computed.map_err(|_| AnswerError::Internal);
        self.answered.insert(uid, (question, verdict.clone()));
        verdict
    }
}

impl Reconciler for CapacityPlanReconciler {
    const NAME: &'static str = "capacity-plan";
    const RESYNC: Duration = Duration::from_secs(60);
    // A pass reads the whole fleet.
    const MIN_PERIOD: Duration = Duration::from_secs(2);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let world = self.world.clone();
        let plans = world.plans.list();
        if plans.is_empty() {
            self.answered.clear();
            return pass;
        }
        let uids: Vec<_> = plans.iter().filter_map(|plan| plan.uid()).collect();
        self.answered.retain(|uid, _| uids.contains(uid));
        let nodes = world.nodes.list();
        let nodes: Vec<FleetNode> = nodes.iter().map(|node| node.as_ref().clone()).collect();
        let replicas = world.replicas.list();
        let replicas: Vec<ModelReplica> = replicas.iter().map(|replica| replica.as_ref().clone()).collect();
        let snapshot = Snapshot {
            plans,
            ..Snapshot::default()
        };
        let mut executor = Executor::new(&world, &snapshot);
        let is_kept = |plan: &&CapacityPlan| plan.metadata.deletion_timestamp.is_none();
        for plan in snapshot.plans.iter().map(AsRef::as_ref).filter(is_kept) {
            let verdict = self.answer(plan, &nodes, &replicas).await;
            // Each status is written before the next verdict is computed, which can be slow.
            let write = status_write(plan, verdict, world.clock.now());
            pass.record_failures(executor.run([write]).await);
        }
        pass
    }
}

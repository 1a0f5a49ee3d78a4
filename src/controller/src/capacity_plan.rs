//! Answers CapacityPlans. It writes their status and events, and nothing else.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kube::ResourceExt;

use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use rooflet_api::conditions::condition_type::{FEASIBLE, READY};
use rooflet_api::conditions::{Truth, set_condition};
use rooflet_api::v1alpha1::{
    CapacityPlan, CapacityPlanStatus, FleetNode, ModelReplica, PlanReplica, PlanVerdict,
};
use rooflet_client::{ApiError, EventType};
use rooflet_scheduler::capacity;
use rooflet_scheduler::capacity::{PlanError, Question};

/// See the module.
pub(super) struct CapacityPlans {
    world: World,
    /// By uid: the last question and its answer. Large questions take a second; the same one is not asked twice.
    answered: HashMap<String, (Question, Result<PlanVerdict, Unanswered>)>,
}

/// Models on classes of node that a status holds at most, about 500 bytes each.
const MAX_FITS: usize = 600;

impl CapacityPlans {
    pub(super) fn new(world: World) -> Self {
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
    ) -> Result<(), ApiError> {
        let current = capacity::current_fleet(nodes, replicas, plan.spec.fleet.beside_running);
        let verdict = match capacity::question(&plan.spec, current, nodes, &|_| None) {
            Ok(question) => self.verdict(plan.uid().unwrap_or_default(), question).await,
            Err(err) => Err(Unanswered::Invalid(err)),
        };
        let (status, reason, message) = status(plan, verdict, self.world.clock.now());
        let feasible = |status: Option<&CapacityPlanStatus>| {
            status.and_then(|status| {
                let condition = status.conditions.iter().find(|one| one.type_ == FEASIBLE)?;
                Some((condition.status.clone(), condition.reason.clone()))
            })
        };
        let changed = feasible(plan.status.as_ref()) != feasible(Some(&status));
        if self.world.status(&self.world.plans, plan, &status).await? && changed {
            let kind = if reason == CARRIED {
                EventType::Normal
            } else {
                EventType::Warning
            };
            self.world.recorder.publish(plan, kind, reason, message);
        }
        Ok(())
    }
}

impl CapacityPlans {
    /// Computes on a thread of its own: the runtime's are for waiting.
    async fn verdict(&mut self, uid: String, question: Question) -> Result<PlanVerdict, Unanswered> {
        if let Some((known, verdict)) = self.answered.get(&uid)
            && *known == question
        {
            return verdict.clone();
        }
        let asked = question.clone();
        let computed = tokio::task::spawn_blocking(move || shortened(capacity::answer(&asked))).await;
        // It fails only by a panic. That is this plan's trouble and must not take the other controllers along.
        let verdict = computed.map_err(|_| Unanswered::Broken);
        self.answered.insert(uid, (question, verdict.clone()));
        verdict
    }
}

/// Why a plan has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Invalid(PlanError),
    #[error(
        "the planner failed over this question; its log says where, and any change of the plan tries again"
    )]
    Broken,
}

impl Unanswered {
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(err) => err.reason(),
            Self::Broken => "PlannerFailed",
        }
    }
}

/// An object may not be larger than 1.5 MB on a usual cluster: of a large question the status keeps only how each model is
/// on the classes of node that run it, or else on the first.
fn shortened(mut verdict: PlanVerdict) -> PlanVerdict {
    let fits: usize = verdict.models.iter().map(|model| model.fits.len()).sum();
    if fits <= MAX_FITS {
        return verdict;
    }
    let runs: HashSet<(String, String)> = verdict
        .placements
        .iter()
        .flat_map(|placement| {
            let pair = |one: &PlanReplica| (placement.class.clone(), one.model.clone());
            placement.replicas.iter().map(pair)
        })
        .collect();
    for model in &mut verdict.models {
        let first = model.fits.first().cloned();
        let name = &model.name;
        model
            .fits
            .retain(|fit| runs.contains(&(fit.class.clone(), name.clone())));
        if model.fits.is_empty() {
            model.fits.extend(first);
        }
    }
    verdict
}

/// The demand is carried, and it is not.
const CARRIED: &str = "DemandCarried";
const NOT_CARRIED: &str = "DemandNotCarried";

/// What is written of a plan; with the reason and message of its condition Feasible. Pure.
fn status(
    plan: &CapacityPlan,
    verdict: Result<PlanVerdict, Unanswered>,
    now: jiff::Timestamp,
) -> (CapacityPlanStatus, &'static str, String) {
    let generation = plan.metadata.generation;
    let mut conditions = plan
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    let mut set = |kind, truth, reason, message: &str| {
        set_condition(&mut conditions, kind, truth, reason, message, generation, now);
    };
    let (verdict, reason, message) = match verdict {
        Ok(verdict) => {
            set(
                READY,
                Truth::True,
                "Answered",
                "the plan was understood and answered",
            );
            let reason = if verdict.feasible { CARRIED } else { NOT_CARRIED };
            set(FEASIBLE, verdict.feasible.into(), reason, &verdict.summary);
            let summary = verdict.summary.clone();
            (Some(verdict), reason, summary)
        }
        Err(err) => {
            let message = err.to_string();
            set(READY, Truth::False, err.reason(), &message);
            set(FEASIBLE, Truth::Unknown, err.reason(), &message);
            (None, err.reason(), message)
        }
    };
    let status = CapacityPlanStatus {
        observed_generation: generation,
        binding: verdict.as_ref().and_then(|verdict| {
            Some(format!(
                "{} at x{:.2}",
                verdict.binding.as_ref()?,
                verdict.demand_factor
            ))
        }),
        nodes: verdict
            .as_ref()
            .map(|verdict| format!("{}/{}", verdict.nodes_used, verdict.nodes)),
        verdict,
        conditions,
    };
    (status, reason, message)
}

impl Reconciler for CapacityPlans {
    const NAME: &'static str = "capacity-plan";
    const RESYNC: Duration = Duration::from_secs(60);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let plans = self.world.plans.list();
        if plans.is_empty() {
            self.answered.clear();
            return pass;
        }
        let uids: Vec<_> = plans.iter().filter_map(|plan| plan.uid()).collect();
        self.answered.retain(|uid, _| uids.contains(uid));
        let nodes: Vec<FleetNode> = self
            .world
            .nodes
            .list()
            .iter()
            .map(|node| node.as_ref().clone())
            .collect();
        let replicas: Vec<ModelReplica> = self
            .world
            .replicas
            .list()
            .iter()
            .map(|replica| replica.as_ref().clone())
            .collect();
        for plan in plans
            .iter()
            .filter(|plan| plan.metadata.deletion_timestamp.is_none())
        {
            pass.note(self.answer(plan, &nodes, &replicas).await);
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::yaml;

    fn plan(macs: &str, model: &str) -> CapacityPlan {
        let text = format!(
            "demand: [{{model: {model}, quantization: mlx4, requestsPerSecond: 0.01, promptTokens: 900, answerTokens: 300}}]\n\
             fleet: {{macs: [{macs}]}}"
        );
        CapacityPlan::new("p", yaml::from_str(&text).unwrap())
    }

    fn answered(plan: &CapacityPlan, now: jiff::Timestamp) -> CapacityPlanStatus {
        let asked = capacity::question(&plan.spec, Vec::new(), &[], &|_| None);
        let verdict = asked.map(|question| shortened(capacity::answer(&question)));
        status(plan, verdict.map_err(Unanswered::Invalid), now).0
    }

    /// The API server hands the status back as JSON: it must be recognised, or it would be written again and again.
    #[test]
    fn answering_again_changes_nothing() {
        let mut plan = plan("{chip: M4 Pro, memory: 24Gi, count: 3}", "qwen3-8b");
        let first = answered(&plan, jiff::Timestamp::UNIX_EPOCH);
        let text = serde_json::to_string(&first).unwrap();
        plan.status = serde_json::from_str(&text).unwrap();
        assert_eq!(answered(&plan, jiff::Timestamp::MAX), first);
    }

    #[test]
    fn a_large_status_keeps_what_is_used() {
        let plan = plan("{chip: M4 Pro, memory: 24Gi, count: 3}", "qwen3-8b");
        let verdict = answered(&plan, jiff::Timestamp::UNIX_EPOCH).verdict.unwrap();
        let mut large = verdict.clone();
        let fit = verdict.models[0].fits[0].clone();
        for index in 0..MAX_FITS {
            let mut other = fit.clone();
            other.class = format!("unused-{index}");
            large.models[0].fits.push(other);
        }
        assert_eq!(shortened(large), verdict);
    }

    fn conditions(plan: &CapacityPlan) -> Vec<(String, String, String)> {
        let status = answered(plan, jiff::Timestamp::UNIX_EPOCH);
        let triple = |one: k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            (one.type_, one.status, one.reason)
        };
        status.conditions.into_iter().map(triple).collect()
    }

    fn triple(kind: &str, status: &str, reason: &str) -> (String, String, String) {
        (kind.to_owned(), status.to_owned(), reason.to_owned())
    }

    #[test]
    fn the_status_says_whether_the_plan_was_understood_and_whether_it_is_feasible() {
        let ready = triple("Ready", "True", "Answered");
        let large = plan("{chip: M4 Max, memory: 64Gi}", "qwen3-8b");
        assert_eq!(
            conditions(&large),
            [ready.clone(), triple("Feasible", "True", "DemandCarried")]
        );
        let small = plan("{chip: M1, memory: 8Gi}", "qwen3-32b");
        assert_eq!(
            conditions(&small),
            [ready, triple("Feasible", "False", "DemandNotCarried")]
        );
        let unknown = plan("{chip: M4, memory: 16Gi}", "qwen99");
        assert_eq!(
            conditions(&unknown),
            [
                triple("Ready", "False", "InvalidPlan"),
                triple("Feasible", "Unknown", "InvalidPlan")
            ]
        );
    }
}

//! Judges every claim whose spec it has not judged yet, and writes what came out.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;

use super::plan::{Judgement, Unjudged};
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::v1alpha1::PerformanceClaim;
use rooflet_claim::Assessment;

/// See the module.
pub(crate) struct ClaimJudge {
    world: World,
    /// Generations judged by this process, by uid: another version may judge otherwise, so none is taken over.
    judged: HashMap<String, Option<i64>>,
}

impl ClaimJudge {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            judged: HashMap::new(),
        }
    }
}

impl Reconciler for ClaimJudge {
    const NAME: &'static str = "claim";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let claims = self.world.claims.list();
        let mut judged = HashMap::new();
        for claim in &claims {
            let (uid, generation) = (claim.uid().unwrap_or_default(), claim.metadata.generation);
            if self.judged.get(&uid) == Some(&generation) {
                judged.insert(uid, generation);
                continue;
            }
            let assessment = assess(claim).await;
            let judgement = Judgement::new(claim, assessment, self.world.clock.now());
            let written = self
                .world
                .status(&self.world.claims, claim, &judgement.status)
                .await;
            let Some(changed) = pass.note(written) else {
                continue;
            };
            judged.insert(uid, generation);
            if changed {
                self.world.recorder.publish(
                    claim.as_ref(),
                    judgement.event,
                    judgement.reason,
                    judgement.message,
                );
            }
        }
        self.judged = judged;
        pass
    }
}

/// On a thread of its own: the runtime's are for waiting.
async fn assess(claim: &PerformanceClaim) -> Result<Assessment, Unjudged> {
    let spec = claim.spec.clone();
    match tokio::task::spawn_blocking(move || Assessment::new(&spec)).await {
        Ok(assessment) => assessment.map_err(Unjudged::Invalid),
        // It fails only by a panic. That is this claim's trouble and must not take the other controllers along.
        Err(_) => Err(Unjudged::Broken),
    }
}

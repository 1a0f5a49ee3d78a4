//! Assessment of claims with a new spec and execution of the planned writes.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;

use super::writes::{CheckError, status_write};
use crate::executor::Executor;
use crate::intent::Snapshot;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::v1alpha1::PerformanceClaim;
use rooflet_claim::Assessment;

/// Reconciler of PerformanceClaims.
pub(crate) struct ClaimReconciler {
    world: World,
    /// Generations that this process assessed, by UID. `status.observedGeneration` is not used,
    /// because another version of rooflet may reach a different verdict.
    assessed: HashMap<String, Option<i64>>,
}

impl ClaimReconciler {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            assessed: HashMap::new(),
        }
    }
}

impl Reconciler for ClaimReconciler {
    const NAME: &'static str = "claim";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let snapshot = Snapshot {
            claims: self.world.claims.list(),
            ..Snapshot::default()
        };
        let mut executor = Executor::new(&self.world, &snapshot);
        let mut assessed = HashMap::new();
        for claim in &snapshot.claims {
            let (uid, generation) = (claim.uid().unwrap_or_default(), claim.metadata.generation);
            if self.assessed.get(&uid) == Some(&generation) {
                assessed.insert(uid, generation);
                continue;
            }
            let assessment = assess(claim).await;
            let write = status_write(claim, assessment, self.world.clock.now());
            let failures = executor.run([write]).await;
            if failures.is_empty() {
                assessed.insert(uid, generation);
            }
            pass.record_failures(failures);
        }
        self.assessed = assessed;
        pass
    }
}

/// Checks the claim on a blocking thread, because the checks would block the async runtime.
async fn assess(claim: &PerformanceClaim) -> Result<Assessment, CheckError> {
    let spec = claim.spec.clone();
    match tokio::task::spawn_blocking(move || Assessment::new(&spec)).await {
        Ok(assessment) => assessment.map_err(CheckError::Invalid),
        // The task fails only by a panic, which must not stop the other reconcilers.
        Err(_) => Err(CheckError::Internal),
    }
}

//! What hubs say of models that deployments name: which commit a revision is, how large it is and what it needs, before
//! anybody downloads it. Asked once for a template; the ModelRevision keeps the answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::deployment::HubAnswer;
use rooflet_api::v1alpha1::HubModel;
use rooflet_artifact::hub::survey;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::Changes;

/// How long an answer is good: until the revision is made that keeps it. Branches move.
const FRESH: Duration = Duration::from_secs(5);
/// Asked again after this time where no answer came, and where nothing can be made of it.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_REFUSED: Duration = Duration::from_secs(60);

/// The hub, and what it answered lately. Clones are the same.
#[derive(Clone)]
pub(super) struct Hub {
    access: HubAccess,
    tasks: Tasks,
    clock: Clock,
    changes: Changes,
    known: Arc<Mutex<BTreeMap<HubModel, Known>>>,
}

#[derive(Default)]
struct Known {
    answer: Option<HubAnswer>,
    /// When it came.
    at: Option<Instant>,
    is_asked: bool,
}

impl Known {
    /// What is to be said, if anything is known; and for how long it need not be asked again.
    fn told(
        &self,
        now: Instant,
        is_refused: impl FnOnce(&HubAnswer) -> bool,
    ) -> (Option<HubAnswer>, Option<Duration>) {
        let Some((answer, at)) = self.answer.as_ref().zip(self.at) else {
            return (None, None);
        };
        let becomes_revision = match answer {
            HubAnswer::Artifact { .. } => !is_refused(answer),
            HubAnswer::Unknown { .. } => false,
        };
        let stays = match answer {
            HubAnswer::Artifact { .. } if becomes_revision => FRESH,
            HubAnswer::Unknown { is_passing: true, .. } => RETRY,
            HubAnswer::Artifact { .. } | HubAnswer::Unknown { .. } => RETRY_REFUSED,
        };
        let left = stays.checked_sub(now - at).filter(|left| !left.is_zero());
        // What was true of a branch then becomes no revision any more. A refusal stands until there is another answer.
        let is_stale = becomes_revision && left.is_none();
        ((!is_stale).then(|| answer.clone()), left)
    }
}

impl Hub {
    pub(super) fn new(access: HubAccess, tasks: Tasks, clock: Clock, changes: Changes) -> Self {
        Self {
            access,
            tasks,
            clock,
            changes,
            known: Arc::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<HubModel, Known>> {
        lock(&self.known)
    }

    /// What is known of the model, which is asked for if need be; and when to ask here again. `is_refused`: whether a
    /// template is refused with that answer, so that no revision uses it up.
    pub(super) fn ask(
        &self,
        model: &HubModel,
        is_refused: impl FnOnce(&HubAnswer) -> bool,
    ) -> (HubAnswer, Option<Duration>) {
        let now = self.clock.instant();
        let mut all = self.known();
        // Who is not asked for any more is forgotten.
        let is_kept = |known: &Known| {
            let old = known.at.is_some_and(|at| now - at > FRESH.max(RETRY_REFUSED) * 2);
            known.is_asked || !old
        };
        all.retain(|key, known| key == model || is_kept(known));
        let known = all.entry(model.clone()).or_default();
        let (answer, left) = known.told(now, is_refused);
        if left.is_none() && !known.is_asked {
            known.is_asked = true;
            self.tasks.spawn_detached(self.clone().survey(model.clone()));
        }
        (answer.unwrap_or_else(|| HubAnswer::asking(model)), left)
    }

    /// What was answered is used up.
    pub(super) fn forget(&self, model: &HubModel) {
        self.known().remove(model);
    }

    async fn survey(self, model: HubModel) {
        let stop = self.tasks.stop_token();
        let answer = tokio::select! {
            () = stop.cancelled() => return,
            answer = survey(&model, &self.access) => answer,
        };
        let answer = match answer {
            Ok(survey) => HubAnswer::Artifact {
                commit: survey.model.revision.clone(),
                artifact: Arc::new(survey.artifact()),
            },
            Err(err) => HubAnswer::Unknown {
                reason: err.reason(),
                message: format!("spec.model.source: {}", Chain(&err)),
                is_passing: err.is_passing(),
            },
        };
        {
            let mut all = self.known();
            let known = all.entry(model).or_default();
            *known = Known {
                answer: Some(answer),
                at: Some(self.clock.instant()),
                is_asked: false,
            };
        }
        self.changes.mark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::ArtifactSpec;

    fn artifact() -> HubAnswer {
        HubAnswer::Artifact {
            commit: Some("c0".to_owned()),
            artifact: Arc::new(ArtifactSpec::default()),
        }
    }

    fn unknown(is_passing: bool) -> HubAnswer {
        HubAnswer::Unknown {
            reason: "HubUnreachable",
            message: String::new(),
            is_passing,
        }
    }

    /// What is told so many seconds after the answer came, and in how many seconds the hub is asked again.
    #[track_caller]
    fn check(answer: &HubAnswer, is_refused: bool, second: u64, is_told: bool, left: Option<u64>) {
        let at = Clock::System.instant();
        let known = Known {
            answer: Some(answer.clone()),
            at: Some(at),
            is_asked: false,
        };
        let told = known.told(at + Duration::from_secs(second), |_| is_refused);
        let expect = (is_told.then(|| answer.clone()), left.map(Duration::from_secs));
        assert_eq!(told, expect, "after {second} s");
    }

    #[test]
    fn a_refusal_stands_until_the_hub_says_something_else() {
        assert_eq!(
            Known::default().told(Clock::System.instant(), |_| true),
            (None, None)
        );
        // What a revision is made of is what the branch is now.
        check(&artifact(), false, 4, true, Some(1));
        check(&artifact(), false, 5, false, None);
        // What no revision can be made of is told while the hub is asked again, which is seldom.
        check(&artifact(), true, 5, true, Some(55));
        check(&artifact(), true, 60, true, None);
        check(&unknown(false), false, 59, true, Some(1));
        check(&unknown(false), false, 60, true, None);
        check(&unknown(true), false, 4, true, Some(1));
        check(&unknown(true), false, 5, true, None);
    }
}

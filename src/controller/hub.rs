//! What hubs say of models that deployments name: which commit a revision is, how large it is and what it needs, before
//! anybody downloads it. Asked once for a template; the ModelRevision keeps the answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::deployment::HubAnswer;
use crate::api::v1alpha1::HubModel;
use crate::artifact::hub::survey;
use crate::artifact::remote::HubAccess;
use crate::client::Changes;
use crate::clock::Clock;
use crate::error::Chain;
use crate::task::Tasks;

/// How long an answer is good: until the revision is made that keeps it. Branches move.
const FRESH: Duration = Duration::from_secs(5);
/// Asked again after this time where no answer came, and where it was no.
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
        self.known
            .lock()
            .expect("no code panics while it holds this lock")
    }

    /// What is known of the model, which is asked for if need be; and when to ask here again.
    pub(super) fn ask(&self, model: &HubModel) -> (HubAnswer, Option<Duration>) {
        let now = self.clock.instant();
        let mut all = self.known();
        // Who is not asked for any more is forgotten.
        let is_kept = |known: &Known| {
            let old = known.at.is_some_and(|at| now - at > FRESH.max(RETRY_REFUSED) * 2);
            known.is_asked || !old
        };
        all.retain(|key, known| key == model || is_kept(known));
        let known = all.entry(model.clone()).or_default();
        let stays = match &known.answer {
            None => Duration::ZERO,
            Some(HubAnswer::Artifact { .. }) => FRESH,
            Some(HubAnswer::Unknown { is_passing: true, .. }) => RETRY,
            Some(HubAnswer::Unknown { .. }) => RETRY_REFUSED,
        };
        let left = known
            .at
            .and_then(|at| stays.checked_sub(now - at))
            .filter(|left| *left > Duration::ZERO);
        let is_due = left.is_none();
        if is_due && !known.is_asked {
            known.is_asked = true;
            self.tasks.spawn_detached(self.clone().survey(model.clone()));
        }
        match &known.answer {
            // What was true of a branch then is not used any more.
            Some(HubAnswer::Artifact { .. }) if is_due => (HubAnswer::asking(model), None),
            Some(answer @ HubAnswer::Artifact { .. }) => (answer.clone(), None),
            Some(answer @ HubAnswer::Unknown { .. }) => (answer.clone(), left),
            None => (HubAnswer::asking(model), None),
        }
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

//! Facts about models on a hub: the commit of a revision, the size and the requirements. The hub is
//! queried once per template, before any download. The ModelRevision stores the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::deployment::HubAnswer;
use super::queue::Priority;
use super::shared::SharedQueue;
use rooflet_api::v1alpha1::HubModel;
use rooflet_artifact::hub::fetch_snapshot;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::ObjectKey;

/// Validity of an answer that becomes a ModelRevision. A branch may move to another commit.
const FRESH: Duration = Duration::from_secs(5);
/// Delay before the next query after a transient error.
const RETRY: Duration = Duration::from_secs(5);
/// Delay before the next query after a permanent error, or if the template is rejected.
const RETRY_REJECTED: Duration = Duration::from_secs(60);

/// Hub client with a cache of recent answers. Clones share the cache.
#[derive(Clone)]
pub(super) struct Hub {
    access: HubAccess,
    tasks: Tasks,
    clock: Clock,
    /// Queue of the deployments that wait for answers.
    queue: SharedQueue,
    entries: Arc<Mutex<BTreeMap<HubModel, Entry>>>,
}

#[derive(Default)]
struct Entry {
    answer: Option<HubAnswer>,
    /// Time of the answer.
    at: Option<Instant>,
    /// True while a query is in progress.
    is_pending: bool,
    /// Deployments that asked since the last answer.
    askers: BTreeSet<ObjectKey>,
}

impl Entry {
    /// Returns the answer, unless it is missing or expired, and the time until the next query is
    /// due. `is_rejected` returns whether the controller rejects a template with that answer.
    fn current(
        &self,
        now: Instant,
        is_rejected: impl FnOnce(&HubAnswer) -> bool,
    ) -> (Option<HubAnswer>, Option<Duration>) {
        let Some((answer, at)) = self.answer.as_ref().zip(self.at) else {
            return (None, None);
        };
        let becomes_revision = match answer {
            HubAnswer::Artifact { .. } => !is_rejected(answer),
            HubAnswer::Unknown { .. } => false,
        };
        let validity = match answer {
            HubAnswer::Artifact { .. } if becomes_revision => FRESH,
            HubAnswer::Unknown {
                is_transient: true, ..
            } => RETRY,
            HubAnswer::Artifact { .. } | HubAnswer::Unknown { .. } => RETRY_REJECTED,
        };
        let left = validity.checked_sub(now - at).filter(|left| !left.is_zero());
        // A revision must not be made from an old state of a branch. A rejection remains until the
        // next answer replaces it.
        let is_expired = becomes_revision && left.is_none();
        ((!is_expired).then(|| answer.clone()), left)
    }
}

impl Hub {
    pub(super) fn new(access: HubAccess, tasks: Tasks, clock: Clock, queue: SharedQueue) -> Self {
        Self {
            access,
            tasks,
            clock,
            queue,
            entries: Arc::default(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<HubModel, Entry>> {
        lock(&self.entries)
    }

    /// Returns the answer for the model of the deployment `asker`, and the time until the next query
    /// is due. Starts a query if none is pending and one is due. Its answer queues the deployment.
    ///
    /// `is_rejected` returns whether the controller rejects a template with that answer. No
    /// revision stores such an answer, so it stays cached.
    pub(super) fn resolve(
        &self,
        model: &HubModel,
        asker: ObjectKey,
        is_rejected: impl FnOnce(&HubAnswer) -> bool,
    ) -> (HubAnswer, Option<Duration>) {
        let now = self.clock.instant();
        let mut entries = self.entries();
        // Remove the entries of models that no deployment uses any more.
        let is_kept = |entry: &Entry| {
            let is_old = entry
                .at
                .is_some_and(|at| now - at > FRESH.max(RETRY_REJECTED) * 2);
            entry.is_pending || !is_old
        };
        entries.retain(|key, entry| key == model || is_kept(entry));
        let entry = entries.entry(model.clone()).or_default();
        entry.askers.insert(asker);
        let (answer, left) = entry.current(now, is_rejected);
        if left.is_none() && !entry.is_pending {
            entry.is_pending = true;
            self.tasks.spawn_detached(self.clone().snapshot(model.clone()));
        }
        (answer.unwrap_or_else(|| HubAnswer::pending(model)), left)
    }

    /// Removes the answer of the model, after a revision stored it.
    pub(super) fn invalidate(&self, model: &HubModel) {
        self.entries().remove(model);
    }

    async fn snapshot(self, model: HubModel) {
        let stop = self.tasks.stop_token();
        let answer = tokio::select! {
            () = stop.cancelled() => return,
            answer = fetch_snapshot(&model, &self.access) => answer,
        };
        let answer = match answer {
            Ok(snapshot) => HubAnswer::Artifact {
                commit: snapshot.model.revision.clone(),
                artifact: Arc::new(snapshot.artifact()),
            },
            Err(err) => HubAnswer::Unknown {
                reason: err.reason(),
                message: format!("spec.model.source: {}", Chain(&err)),
                is_transient: err.is_transient(),
            },
        };
        let askers = {
            let mut entries = self.entries();
            let entry = entries.entry(model).or_default();
            let answered = Entry {
                answer: Some(answer),
                at: Some(self.clock.instant()),
                is_pending: false,
                askers: BTreeSet::new(),
            };
            std::mem::replace(entry, answered).askers
        };
        for asker in askers {
            self.queue.add(asker, Priority::Created);
        }
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

    fn unknown(is_transient: bool) -> HubAnswer {
        HubAnswer::Unknown {
            reason: "HubUnreachable",
            message: String::new(),
            is_transient,
        }
    }

    /// Checks the entry `second` seconds after the answer: whether the answer is returned, and the
    /// seconds until the next query is due.
    #[track_caller]
    fn check(answer: &HubAnswer, is_rejected: bool, second: u64, is_returned: bool, left: Option<u64>) {
        let at = Clock::System.instant();
        let entry = Entry {
            answer: Some(answer.clone()),
            at: Some(at),
            ..Entry::default()
        };
        let current = entry.current(at + Duration::from_secs(second), |_| is_rejected);
        let expect = (is_returned.then(|| answer.clone()), left.map(Duration::from_secs));
        assert_eq!(current, expect, "after {second} s");
    }

    #[test]
    fn rejected_answer_is_kept_until_the_next_answer() {
        assert_eq!(
            Entry::default().current(Clock::System.instant(), |_| true),
            (None, None)
        );
        // A revision is made from a recent answer only.
        check(&artifact(), false, 4, true, Some(1));
        check(&artifact(), false, 5, false, None);
        // A rejected answer is returned while the next query is pending.
        check(&artifact(), true, 5, true, Some(55));
        check(&artifact(), true, 60, true, None);
        check(&unknown(false), false, 59, true, Some(1));
        check(&unknown(false), false, 60, true, None);
        check(&unknown(true), false, 4, true, Some(1));
        check(&unknown(true), false, 5, true, None);
    }
}

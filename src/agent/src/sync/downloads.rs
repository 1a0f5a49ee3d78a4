//! What is downloaded besides what starts now: models for replicas that will follow those that run.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{Desired, Wanted};
use super::observed::Observed;
use super::sync_loop::SyncLoop;
use crate::models::ASKING_HUB;
use crate::replica::{DesiredReplica, ReplicaKey};
use rooflet_api::v1alpha1::{HubModel, ModelSource};
use rooflet_base::units::Bytes;
use rooflet_client::EventType;

impl SyncLoop {
    /// Downloads what follows replicas that run, as far as the disk has room beside what is promised, and ends the downloads
    /// that nobody needs any more.
    pub(super) fn prepare(&mut self, desired: &Desired, observed: &Observed) {
        // One that is refused for now may go on coming; one of a replica that leaves is nobody's.
        let here = desired
            .replicas
            .iter()
            .filter(|(_, wanted)| !wanted.replica.deleting);
        let mut wanted = BTreeSet::new();
        let mut next = BTreeMap::new();
        for (key, Wanted { replica, .. }) in here {
            if let Ok(ModelSource::Hub(model)) = replica.spec.source() {
                wanted.insert(model);
            }
            if let Some(model) = &replica.next {
                next.insert(model.clone(), (key, replica));
            }
        }
        wanted.extend(next.keys().cloned());
        self.models.retain_pulls(&wanted);
        self.prepared.retain(|model, _| next.contains_key(model));
        if desired.stopping {
            return;
        }
        let room = observed.disk_limit - observed.promised_disk();
        for (model, (key, replica)) in next {
            let trouble = self.get(&model, room);
            self.tell(key, replica, model, trouble);
        }
    }

    /// Begins a download that fits into `room`, unless it has begun. What is wrong with it, if anything is.
    fn get(&mut self, model: &HubModel, room: Bytes) -> Option<(&'static str, String)> {
        let source = ModelSource::Hub(model.clone());
        let used = self.used_models.get_or_insert_default();
        used.extend(self.models.downloaded_to(&source));
        let found = match self.models.inspect(&source) {
            Ok(found) => found,
            Err(problem) => {
                return (problem.reason != ASKING_HUB).then_some((problem.reason, problem.message));
            }
        };
        used.insert(found.path);
        let pull = found.pull?;
        if pull.missing() <= room {
            let missing = self.workers.missing_disk(pull.missing());
            self.models.pull(&source, used, missing);
        }
        let trouble = pull.trouble?;
        Some((trouble.reason, trouble.message))
    }

    /// An event, since conditions speak of what runs.
    fn tell(
        &mut self,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        model: HubModel,
        trouble: Option<(&'static str, String)>,
    ) {
        let reason = trouble.as_ref().map(|(reason, _)| *reason);
        let before = self.prepared.insert(model.clone(), reason).flatten();
        let Some((reason, message)) = trouble.filter(|_| before != reason) else {
            return;
        };
        if let Some((recorder, object)) = self.recorder.as_ref().zip(self.object(key, replica)) {
            let message = format!("{model}, which is to follow it here: {message}");
            recorder.publish(object.as_ref(), EventType::Warning, reason, message);
        }
    }
}

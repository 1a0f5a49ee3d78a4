//! Changes of a replica's record when its worker starts and exits.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::replica::{DesiredReplica, ReplicaKey};
use crate::state::{Record, WorkerRecord};
use crate::sync::Start;
use crate::workers::backoff;
use crate::workers::golden::Golden;
use crate::workers::prefix_files::PrefixFiles;
use rooflet_api::v1alpha1::Termination;

pub fn first_record(key: &ReplicaKey, replica: &DesiredReplica) -> Record {
    Record {
        key: key.clone(),
        uid: replica.uid.clone(),
        generation: replica.generation,
        origin: replica.origin.clone(),
        spec: replica.spec.clone(),
        terms: replica.terms.clone(),
        restarts: 0,
        ended_by_itself: false,
        stopped_for_memory: false,
        failures: 0,
        backoff_until: None,
        bad_model: None,
        last_termination: None,
        worker: None,
    }
}

impl Record {
    pub fn begin(
        &mut self,
        replica: &DesiredReplica,
        start: &Start,
        prefixes: Option<&PrefixFiles>,
        engine: &str,
        now: Timestamp,
    ) {
        if self.spec != replica.spec {
            // Failures of the previous specification do not count for the new one.
            self.failures = 0;
            self.ended_by_itself = false;
        }
        self.generation = replica.generation;
        self.spec = replica.spec.clone();
        self.terms = replica.terms.clone();
        self.origin = replica.origin.clone();
        self.backoff_until = None;
        self.bad_model = None;
        self.stopped_for_memory = false;
        if std::mem::take(&mut self.ended_by_itself) {
            self.restarts = self.restarts.saturating_add(1);
        }
        self.worker = Some(WorkerRecord {
            process: None,
            started: now,
            reserved_bytes: start.reservation.total().0,
            reserved_share: Some(start.admission.chip_time_percent / 100.0),
            reservation: match prefixes {
                Some(files) => format!(
                    "{}; up to {} of disk for prefixes",
                    start.reservation, files.limit
                ),
                None => format!("{}; no disk for prefixes", start.reservation),
            },
            model_path: start.path.clone(),
            fingerprint: start.fingerprint,
            engine: engine.to_owned(),
            context_tokens: start.context_tokens,
            answer_seconds: start.longest_answer().as_secs(),
            prefix_dir: prefixes.map(|files| files.dir.clone()),
            prefix_bytes: prefixes.map_or(0, |files| files.limit.0),
            golden: (!replica.terms.golden_prompts.is_empty()).then(|| Golden {
                model: replica.spec.serving_name.clone(),
                prompts: replica.terms.golden_prompts.clone(),
            }),
        });
    }

    /// Records that the worker exited on its own or failed to start.
    pub fn fail(&mut self, end: Termination, ready_for: Option<Duration>, now: Timestamp) {
        self.failures = backoff::count_failure(self.failures, ready_for);
        self.backoff_until = Some(now + backoff::delay_after(self.failures));
        self.ended_by_itself = true;
        self.last_termination = Some(end);
    }
}

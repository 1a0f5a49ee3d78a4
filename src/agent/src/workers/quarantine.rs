//! Quarantine of models that crashed the whole machine. Pure.
//!
//! A kernel panic in the GPU drivers repeats with the same model, engine and operating system,
//! sometimes several times an hour, and ends every process on the machine. All workers that ran at
//! the time of the panic are suspects. The admission override lifts the quarantine of a replica.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::replica::rfc3339;
use crate::state::WorkerRecord;
use rooflet_host::{PanicCause, PanicReport};

/// Model that a worker ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RanModel {
    pub(crate) fingerprint: u64,
    model_path: Utf8PathBuf,
    engine: String,
    pub(crate) started: Timestamp,
}

impl RanModel {
    /// Returns the model of a worker's record. `engine` applies to records of older agents, which
    /// have none.
    pub(crate) fn of(worker: &WorkerRecord, engine: &str) -> Self {
        Self {
            fingerprint: worker.fingerprint,
            model_path: worker.model_path.clone(),
            engine: match worker.engine.as_str() {
                "" => engine.to_owned(),
                known => known.to_owned(),
            },
            started: worker.started,
        }
    }
}

/// Model that ran during a kernel panic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Suspect {
    fingerprint: u64,
    model_path: Utf8PathBuf,
    /// Empty in files of older agents, which matches no engine.
    #[serde(default)]
    engine: String,
    os_build: String,
    at: Timestamp,
    message: String,
}

/// All suspects, as stored in the state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quarantine(Vec<Suspect>);

impl Quarantine {
    /// Adds the models that ran during a panic of the GPU drivers. Returns true if a suspect was
    /// added.
    pub(crate) fn add(&mut self, reports: &[PanicReport], ran: &[RanModel]) -> bool {
        let before = self.0.len();
        let by_gpu = reports
            .iter()
            .filter(|report| report.cause == PanicCause::GpuDriver);
        for report in by_gpu {
            for model in ran.iter().filter(|model| model.started <= report.at) {
                let suspect = Suspect {
                    fingerprint: model.fingerprint,
                    model_path: model.model_path.clone(),
                    engine: model.engine.clone(),
                    os_build: report.os_build.clone(),
                    at: report.at,
                    message: report.message.clone(),
                };
                if !self.0.contains(&suspect) {
                    self.0.push(suspect);
                }
            }
        }
        self.0.len() > before
    }

    /// Returns the models by fingerprint that must not start with this engine and operating system,
    /// with a message.
    pub(crate) fn applies(&self, engine: &str, os_build: &str) -> BTreeMap<u64, String> {
        let applies = |suspect: &&Suspect| suspect.engine == engine && suspect.os_build == os_build;
        let entry = |suspect: &Suspect| {
            let message = format!(
                "{} was running on {} when the kernel panicked in the GPU drivers: {}; the agent does not start it with {engine} on system \
                build {os_build}. Update either of them, or override with the annotation \
                rooflet.dev/admission: warn",
                suspect.model_path,
                rfc3339(suspect.at),
                suspect.message,
            );
            (suspect.fingerprint, message)
        };
        self.0.iter().filter(applies).map(entry).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::state::Record;
    use crate::state::tests::record;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    pub(crate) fn running(name: &str, fingerprint: u64, started: &str, engine: &str) -> Record {
        let mut record = record(name);
        record.worker = Some(WorkerRecord {
            process: None,
            started: at(started),
            reserved_bytes: 0,
            reserved_share: None,
            reservation: String::new(),
            model_path: format!("/models/{name}").into(),
            fingerprint,
            engine: engine.to_owned(),
            context_tokens: 16,
            answer_seconds: 0,
            prefix_dir: None,
            prefix_bytes: 0,
            golden: None,
        });
        record
    }

    fn panic(time: &str, cause: PanicCause) -> PanicReport {
        PanicReport {
            at: at(time),
            os_build: "25E246".to_owned(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            cause,
            written: None,
        }
    }

    #[test]
    fn models_of_a_gpu_panic_are_quarantined_on_the_same_system() {
        // This agent runs a newer engine than the worker did.
        let agent_engine = "mlx 2";
        let ran = [
            running("a", 1, "2026-04-01T10:00:00Z", "mlx 1"),
            running("of-an-older-agent", 3, "2026-04-01T10:00:00Z", ""),
            running("later", 2, "2026-04-01T12:00:00Z", "mlx 1"),
        ]
        .map(|record| RanModel::of(&record.worker.unwrap(), agent_engine));
        let mut quarantine = Quarantine::default();
        for (time, cause) in [
            ("2026-04-01T11:00:00Z", PanicCause::Other),
            ("2026-04-01T11:00:00Z", PanicCause::Watchdog),
            ("2026-04-01T09:00:00Z", PanicCause::GpuDriver),
        ] {
            assert!(!quarantine.add(&[panic(time, cause)], &ran), "{time} {cause:?}");
        }
        let panics = [panic("2026-04-01T11:00:00Z", PanicCause::GpuDriver)];
        assert!(quarantine.add(&panics, &ran));
        assert!(!quarantine.add(&panics, &ran), "already added");
        let applies = quarantine.applies("mlx 1", "25E246");
        assert_eq!(applies.keys().collect::<Vec<_>>(), [&1]);
        assert!(
            applies[&1].starts_with("/models/a was running on 2026-04-01T11:00:00Z when"),
            "{applies:?}"
        );
        let unknown = quarantine.applies("mlx 2", "25E246");
        assert_eq!(unknown.keys().collect::<Vec<_>>(), [&3]);
        assert_eq!(quarantine.applies("mlx 3", "25E246"), BTreeMap::new());
        assert_eq!(quarantine.applies("mlx 1", "25F84"), BTreeMap::new());
    }
}

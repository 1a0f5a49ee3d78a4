//! Quarantine of models that crashed the whole machine.
//!
//! A kernel panic in the GPU drivers repeats with the same model, engine and operating system,
//! sometimes several times an hour, and ends every process on the machine. All workers that ran at
//! the time of the panic are suspects. The admission override lifts the quarantine of a replica.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::replica::rfc3339;
use crate::state::{Record, StateDir};
use rooflet_base::error::Chain;
use rooflet_host::{Host, PanicReport};

/// File in the state directory.
const FILE: &str = "quarantine.json";

/// Searches for kernel panics since the start of the recorded workers. Returns the quarantined
/// models by fingerprint, with the message for their conditions.
pub(crate) fn load(
    state: &StateDir,
    host: &Host,
    engine: &str,
    os_build: &str,
    now: Timestamp,
) -> BTreeMap<u64, String> {
    let mut quarantine: Quarantine = state.read(FILE).unwrap_or_else(|err| {
        warn!(error = %Chain(&err), file = FILE, "failed to read quarantined models: models that crashed this machine may start again");
        None
    }).unwrap_or_default();
    let records = state.records();
    let started = records
        .iter()
        .filter_map(|record| record.worker.as_ref())
        .map(|worker| worker.started);
    // Also without workers: unreadable reports are logged before they are needed.
    let panics = host.panics(started.min().unwrap_or(now));
    if let Some(err) = &panics.unreadable {
        warn!(
            error = %Chain(err),
            "failed to read kernel panic reports: models that crash this machine are not quarantined; run the agent as an administrator"
        );
    }
    if quarantine.add(&panics.read, &records, engine)
        && let Err(err) = state.write(FILE, &quarantine)
    {
        warn!(error = %Chain(&err), file = FILE, "failed to store quarantined models");
    }
    let applies = quarantine.applies(engine, os_build);
    for message in applies.values() {
        warn!("{message}");
    }
    applies
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
    /// Adds the models whose workers ran during a panic of the GPU drivers. `engine` applies to
    /// records without an engine. Returns true if a suspect was added.
    pub(crate) fn add(&mut self, reports: &[PanicReport], records: &[Record], engine: &str) -> bool {
        let before = self.0.len();
        for report in reports.iter().filter(|report| report.by_gpu) {
            let ran = records
                .iter()
                .filter_map(|record| record.worker.as_ref())
                .filter(|worker| worker.started <= report.at);
            for worker in ran {
                let suspect = Suspect {
                    fingerprint: worker.fingerprint,
                    model_path: worker.model_path.clone(),
                    engine: match worker.engine.as_str() {
                        "" => engine.to_owned(),
                        known => known.to_owned(),
                    },
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

    /// Models by fingerprint that must not start with this engine and operating system, with a
    /// message.
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
mod tests {
    use super::*;
    use crate::state::WorkerRecord;
    use crate::state::tests::record;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn running(name: &str, fingerprint: u64, started: &str, engine: &str) -> Record {
        let mut record = record(name);
        record.worker = Some(WorkerRecord {
            process: None,
            started: at(started),
            reserved_bytes: 0,
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

    fn panic(time: &str, by_gpu: bool) -> PanicReport {
        PanicReport {
            at: at(time),
            os_build: "25E246".to_owned(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            by_gpu,
        }
    }

    #[test]
    fn models_of_a_gpu_panic_are_quarantined_on_the_same_system() {
        let records = [
            running("a", 1, "2026-04-01T10:00:00Z", "mlx 1"),
            running("of-an-older-agent", 3, "2026-04-01T10:00:00Z", ""),
            running("later", 2, "2026-04-01T12:00:00Z", "mlx 1"),
            record("stopped"),
        ];
        let mut quarantine = Quarantine::default();
        // This agent runs a newer engine than the worker did.
        let agent_engine = "mlx 2";
        assert!(!quarantine.add(&[panic("2026-04-01T11:00:00Z", false)], &records, agent_engine));
        assert!(!quarantine.add(&[panic("2026-04-01T09:00:00Z", true)], &records, agent_engine));
        let panics = [panic("2026-04-01T11:00:00Z", true)];
        assert!(quarantine.add(&panics, &records, agent_engine));
        assert!(!quarantine.add(&panics, &records, agent_engine), "already added");
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

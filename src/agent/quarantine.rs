//! Models that took the whole machine down, which are not started again as things are.
//!
//! A kernel panic in the GPU's drivers repeats with the same model on the same engine and system, sometimes several times
//! an hour, and takes everything else on the machine along. The workers that ran when it happened are the suspects; who
//! knows better says so with the admission override.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::replica::rfc3339;
use super::state::{Record, StateDir};
use crate::error::Chain;
use crate::host::{Host, PanicReport};

/// Where the state directory keeps them.
const FILE: &str = "quarantine.json";

/// Looks for panics since the workers were started of which there are records, and returns by fingerprint what is to be said
/// of models that must not be started here.
pub(super) fn look(state: &StateDir, host: &Host, os_build: &str) -> BTreeMap<u64, String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut quarantine: Quarantine = state.read(FILE).unwrap_or_else(|err| {
        warn!(error = %Chain(&err), file = FILE, "the file cannot be read: models that took this machine down may be started again");
        None
    }).unwrap_or_default();
    let records = state.records();
    let started = records
        .iter()
        .filter_map(|record| record.worker.as_ref())
        .map(|worker| worker.started);
    if let Some(since) = started.min()
        && quarantine.add(&host.panics(since), &records, version)
        && let Err(err) = state.write(FILE, &quarantine)
    {
        warn!(error = %Chain(&err), file = FILE, "models that took this machine down cannot be noted");
    }
    let applies = quarantine.applies(version, os_build);
    for message in applies.values() {
        warn!("{message}");
    }
    applies
}

/// One model under suspicion. The engine is part of this program, so the program's version stands for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Suspect {
    fingerprint: u64,
    model_path: Utf8PathBuf,
    version: String,
    os_build: String,
    at: Timestamp,
    message: String,
}

/// All that were ever found, as the state directory keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Quarantine(Vec<Suspect>);

impl Quarantine {
    /// Adds the models whose workers ran when the GPU's drivers panicked. Whether anything is new.
    pub(super) fn add(&mut self, reports: &[PanicReport], records: &[Record], version: &str) -> bool {
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
                    version: version.to_owned(),
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

    /// By fingerprint, what is to be said of the models that are not started with this program on this system.
    pub(super) fn applies(&self, version: &str, os_build: &str) -> BTreeMap<u64, String> {
        let applies = |suspect: &&Suspect| suspect.version == version && suspect.os_build == os_build;
        let said = |suspect: &Suspect| {
            let message = format!(
                "{} was running on {} when the machine's kernel panicked in the GPU's drivers: {}; it is not started again with \
                 rooflet {version} on system build {os_build}. Update either, or override with the annotation \
                 rooflet.dev/admission: warn",
                suspect.model_path,
                rfc3339(suspect.at),
                suspect.message,
            );
            (suspect.fingerprint, message)
        };
        self.0.iter().filter(applies).map(said).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::state::WorkerRecord;
    use crate::agent::state::tests::record;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn running(name: &str, fingerprint: u64, started: &str) -> Record {
        let mut record = record(name);
        record.worker = Some(WorkerRecord {
            process: None,
            started: at(started),
            reserved_bytes: 0,
            reservation: String::new(),
            model_path: format!("/models/{name}").into(),
            fingerprint,
            context_tokens: 16,
            answer_seconds: 0,
            prefix_dir: None,
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
    fn what_ran_when_the_gpu_s_drivers_panicked_is_kept_apart_on_that_system() {
        let records = [
            running("a", 1, "2026-04-01T10:00:00Z"),
            running("later", 2, "2026-04-01T12:00:00Z"),
            record("stopped"),
        ];
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.add(&[panic("2026-04-01T11:00:00Z", false)], &records, "1.0.0"));
        assert!(!quarantine.add(&[panic("2026-04-01T09:00:00Z", true)], &records, "1.0.0"));
        let panics = [panic("2026-04-01T11:00:00Z", true)];
        assert!(quarantine.add(&panics, &records, "1.0.0"));
        assert!(!quarantine.add(&panics, &records, "1.0.0"), "once is enough");
        let applies = quarantine.applies("1.0.0", "25E246");
        assert_eq!(applies.keys().collect::<Vec<_>>(), [&1]);
        assert!(
            applies[&1].starts_with("/models/a was running on 2026-04-01T11:00:00Z when"),
            "{applies:?}"
        );
        assert_eq!(quarantine.applies("1.1.0", "25E246"), BTreeMap::new());
        assert_eq!(quarantine.applies("1.0.0", "25F84"), BTreeMap::new());
    }
}

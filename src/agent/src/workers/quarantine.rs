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

use crate::replica::rfc3339;
use crate::state::{Record, StateDir};
use rooflet_base::error::Chain;
use rooflet_host::{Host, PanicReport};

/// Where the state directory keeps them.
const FILE: &str = "quarantine.json";

/// Looks for panics since the workers were started of which there are records, and returns by fingerprint what is to be said
/// of models that must not be started here with this engine.
pub(crate) fn look(
    state: &StateDir,
    host: &Host,
    engine: &str,
    os_build: &str,
    now: Timestamp,
) -> BTreeMap<u64, String> {
    let mut quarantine: Quarantine = state.read(FILE).unwrap_or_else(|err| {
        warn!(error = %Chain(&err), file = FILE, "the file cannot be read: models that took this machine down may be started again");
        None
    }).unwrap_or_default();
    let records = state.records();
    let started = records
        .iter()
        .filter_map(|record| record.worker.as_ref())
        .map(|worker| worker.started);
    // Without workers, too: whether reports can be read is told before one is needed.
    let panics = host.panics(started.min().unwrap_or(now));
    if let Some(err) = &panics.unreadable {
        warn!(
            error = %Chain(err),
            "reports of kernel panics cannot be read, so a model that takes this machine down is started again: run the agent as an administrator"
        );
    }
    if quarantine.add(&panics.read, &records, engine)
        && let Err(err) = state.write(FILE, &quarantine)
    {
        warn!(error = %Chain(&err), file = FILE, "models that took this machine down cannot be noted");
    }
    let applies = quarantine.applies(engine, os_build);
    for message in applies.values() {
        warn!("{message}");
    }
    applies
}

/// One model under suspicion, with what it ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Suspect {
    fingerprint: u64,
    model_path: Utf8PathBuf,
    /// Empty in what an older agent has noted, which says nothing of any engine.
    #[serde(default)]
    engine: String,
    os_build: String,
    at: Timestamp,
    message: String,
}

/// All that were ever found, as the state directory keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quarantine(Vec<Suspect>);

impl Quarantine {
    /// Adds the models whose workers ran when the GPU's drivers panicked, each with its engine; where a record does not say
    /// which, `engine`. Whether anything is new.
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

    /// By fingerprint, what is to be said of the models that are not started with this engine on this system.
    pub(crate) fn applies(&self, engine: &str, os_build: &str) -> BTreeMap<u64, String> {
        let applies = |suspect: &&Suspect| suspect.engine == engine && suspect.os_build == os_build;
        let said = |suspect: &Suspect| {
            let message = format!(
                "{} was running on {} when the machine's kernel panicked in the GPU's drivers: {}; it is not started again with \
                 {engine} on system build {os_build}. Update either, or override with the annotation \
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
    fn what_ran_when_the_gpu_s_drivers_panicked_is_kept_apart_on_that_system() {
        let records = [
            running("a", 1, "2026-04-01T10:00:00Z", "mlx 1"),
            running("of-an-older-agent", 3, "2026-04-01T10:00:00Z", ""),
            running("later", 2, "2026-04-01T12:00:00Z", "mlx 1"),
            record("stopped"),
        ];
        let mut quarantine = Quarantine::default();
        // The agent that looks was started with a newer engine than the worker was.
        let looking = "mlx 2";
        assert!(!quarantine.add(&[panic("2026-04-01T11:00:00Z", false)], &records, looking));
        assert!(!quarantine.add(&[panic("2026-04-01T09:00:00Z", true)], &records, looking));
        let panics = [panic("2026-04-01T11:00:00Z", true)];
        assert!(quarantine.add(&panics, &records, looking));
        assert!(!quarantine.add(&panics, &records, looking), "once is enough");
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

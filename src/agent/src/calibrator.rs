//! Calibration of the node's predictions by the measured speed of its requests. The agent stores it
//! in the state directory and publishes it in `FleetNode.status`.

mod contention;

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use self::contention::ContentionTracker;
use super::replica::ReplicaKey;
use super::state::{StateDir, read_json};
use crate::node::hardware::show_engine;
use rooflet_api::conditions::whole_seconds;
use rooflet_api::v1alpha1::{self as api, CalibrationReset};
use rooflet_api::wire::{EngineInfo, RequestCounts, WorkerStatus};
use rooflet_base::error::Chain;
use rooflet_host::Identity;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::calibration::{Calibration, PrefillRun, Run, age, observe, observe_prefill};
use rooflet_roofline::predict::{Basis, Hardware};
use rooflet_roofline::published::{Load, publish_calibration, speed_under_load};

const FILE: &str = "calibration.json";

/// Minimum number of requests whose median counts as one run.
const RUN_REQUESTS: u64 = 10;

/// Calibration in the state directory, which persists across restarts of the agent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredCalibration {
    /// Engine and basis as one text, in files of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Subject of the calibrated predictions. A calibration of another subject is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Subject>,
    calibrations: Vec<api::Calibration>,
    /// Last deletion of the calibrations.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<CalibrationReset>,
}

/// Software that determines the error of a node's predictions, and their basis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subject {
    engine: String,
    operating_system: String,
    basis: String,
}

/// Change after which calibrations no longer apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResetReason {
    Engine,
    OperatingSystem,
    PredictionBasis,
}

impl ResetReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "EngineChanged",
            Self::OperatingSystem => "OperatingSystemChanged",
            Self::PredictionBasis => "PredictionBasisChanged",
        }
    }
}

impl Subject {
    fn new(engine: &EngineInfo, operating_system: &str, hardware: Hardware) -> Self {
        let basis = match hardware {
            Hardware::Chip(_) => Basis::Nominal,
            Hardware::Measured(_) => Basis::Measured,
        };
        // Calibration of sustained figures is separate: calibration of cold figures already includes
        // the effect of heat.
        let hot = hardware.sustained().map_or("", |_| ", sustained");
        Self {
            engine: show_engine(engine),
            operating_system: operating_system.to_owned(),
            basis: format!("{}{hot}", basis.as_str()),
        }
    }

    /// Parses the subject of an earlier version, which did not record the operating system: the
    /// current one is assumed.
    fn of_earlier_version(subject: &str, operating_system: &str) -> Option<Self> {
        let (engine, basis) = subject.split_once(", ")?;
        Some(Self {
            engine: engine.to_owned(),
            operating_system: operating_system.to_owned(),
            basis: basis.to_owned(),
        })
    }

    /// Returns the first difference to the current subject: its reason, and both values.
    fn difference<'a>(&'a self, current: &'a Self) -> Option<(ResetReason, &'a str, &'a str)> {
        let parts = [
            (ResetReason::Engine, &self.engine, &current.engine),
            (
                ResetReason::OperatingSystem,
                &self.operating_system,
                &current.operating_system,
            ),
            (ResetReason::PredictionBasis, &self.basis, &current.basis),
        ];
        let difference = parts.into_iter().find(|(_, before, after)| before != after);
        difference.map(|(reason, before, after)| (reason, before.as_str(), after.as_str()))
    }
}

impl StoredCalibration {
    fn measured(&self, operating_system: &str) -> Option<Subject> {
        let earlier = || Subject::of_earlier_version(self.subject.as_deref()?, operating_system);
        self.measured.clone().or_else(earlier)
    }

    fn calibrations(&self, now: Timestamp) -> Vec<Calibration> {
        let mut calibrations = self.calibrations.iter().map(Calibration::from).collect();
        age(&mut calibrations, now);
        calibrations
    }
}

/// Returns the name and build of an operating system, such as `macOS 26.4.1 (25E246)`.
pub fn operating_system(identity: &Identity) -> String {
    match identity.os_build.as_str() {
        "" => identity.operating_system.clone(),
        build => format!("{} ({build})", identity.operating_system),
    }
}

/// Returns the calibrations in this state directory that apply to predictions from `hardware` with
/// `engine` on this operating system.
pub fn stored(
    state_dir: &Utf8Path,
    engine: &EngineInfo,
    operating_system: &str,
    hardware: Hardware,
    now: Timestamp,
) -> Vec<Calibration> {
    let current = Subject::new(engine, operating_system, hardware);
    let stored: Option<StoredCalibration> = read_json(&state_dir.join(FILE)).ok().flatten();
    let stored = stored.filter(|stored| stored.measured(operating_system) == Some(current));
    stored.map_or_else(Vec::new, |stored| stored.calibrations(now))
}

/// Calibration of this node's predictions.
pub(crate) struct Calibrator {
    state: Arc<StateDir>,
    /// Name and build of the operating system.
    operating_system: String,
    /// Subject of the calibrations. `None` before the first run.
    subject: Option<Subject>,
    calibrations: Vec<Calibration>,
    /// Last deletion of the calibrations.
    reset: Option<CalibrationReset>,
    /// Number of completed requests of each replica's worker that the calibration includes.
    counted: BTreeMap<ReplicaKey, u64>,
    contention: ContentionTracker,
}

impl Calibrator {
    /// Loads the stored calibration. Deletes it if the operating system has changed.
    pub(crate) fn new(state: Arc<StateDir>, operating_system: String, now: Timestamp) -> Self {
        let stored: StoredCalibration = match state.read(FILE) {
            Ok(stored) => stored.unwrap_or_default(),
            Err(err) => {
                warn!(error = %Chain(&err), "failed to read {FILE}: calibration starts from zero");
                StoredCalibration::default()
            }
        };
        let subject = stored.measured(&operating_system);
        let mut calibrator = Self {
            state,
            subject: subject.clone(),
            calibrations: stored.calibrations(now),
            reset: stored.reset,
            counted: BTreeMap::new(),
            contention: ContentionTracker::default(),
            operating_system,
        };
        if let Some(subject) = subject {
            let current = Subject {
                operating_system: calibrator.operating_system.clone(),
                ..subject
            };
            calibrator.follow(current, now);
        }
        calibrator
    }

    /// Updates the load of all workers of the node. Must be called before the measurements of any
    /// worker are used.
    pub(crate) fn update_load(&mut self, workers: &BTreeMap<ReplicaKey, RequestCounts>) {
        self.contention.update(workers);
    }

    /// Returns true if a worker's measurement covers only requests that ran without requests of
    /// another worker. Predictions do not include the memory traffic of other workers, so a
    /// disturbed measurement neither calibrates a prediction nor is compared with one.
    pub(crate) fn is_undisturbed(&self, key: &ReplicaKey, status: &WorkerStatus) -> bool {
        self.contention.ran_alone(key, status.measured.samples)
    }

    /// Returns the calibrations of predictions from `hardware` with this engine.
    pub(crate) fn current(
        &mut self,
        engine: &EngineInfo,
        hardware: Hardware,
        now: Timestamp,
    ) -> &[Calibration] {
        age(&mut self.calibrations, now);
        if self.subject == Some(self.subject_of(engine, hardware)) {
            &self.calibrations
        } else {
            &[]
        }
    }

    /// Returns the last deletion of the calibrations.
    pub(crate) fn reset(&self) -> Option<&CalibrationReset> {
        self.reset.as_ref()
    }

    /// Updates the calibration with a worker's requests. Each request counts once.
    pub(crate) fn observe(
        &mut self,
        key: &ReplicaKey,
        status: &WorkerStatus,
        model: &ServedModel,
        hardware: Hardware,
        now: Timestamp,
    ) {
        let subject = self.subject_of(&status.engine, hardware);
        self.follow(subject, now);
        let (completed, measured) = (status.requests.completed, &status.measured);
        let undisturbed = self.is_undisturbed(key, status);
        let counted = self.counted.entry(key.clone()).or_default();
        if completed < *counted {
            // The count restarts with a new worker process.
            *counted = 0;
        }
        // The median covers the last `samples` requests. None of them may have counted before.
        if completed - *counted < measured.samples.max(RUN_REQUESTS) || !undisturbed {
            return;
        }
        *counted = completed;
        let (runs, cost) = (&mut self.calibrations, &model.cost);
        let decode = run(status, model, hardware).map(|run| observe(runs, cost, &run, now));
        let prefill = prefill_run(status, model, hardware).map(|run| observe_prefill(runs, cost, &run, now));
        let mut is_updated = false;
        for outcome in [decode, prefill].into_iter().flatten() {
            match outcome {
                Ok(()) => is_updated = true,
                Err(err) => {
                    debug!(replica = %key, reason = err.reason(), "run not used for calibration: {err}")
                }
            }
        }
        if is_updated {
            self.save();
        }
    }

    fn subject_of(&self, engine: &EngineInfo, hardware: Hardware) -> Subject {
        Subject::new(engine, &self.operating_system, hardware)
    }

    /// Deletes the calibrations if they do not belong to the current subject.
    fn follow(&mut self, current: Subject, now: Timestamp) {
        let before = self.subject.replace(current.clone());
        let Some((reason, was, is)) = before.as_ref().and_then(|before| before.difference(&current)) else {
            return;
        };
        if self.calibrations.is_empty() {
            return;
        }
        let message = format!("calibrations of {was} do not apply to {is}");
        info!(reason = reason.as_str(), "calibrations deleted: {message}");
        self.calibrations.clear();
        self.reset = Some(CalibrationReset {
            reason: reason.as_str().to_owned(),
            message,
            time: Time(whole_seconds(now)),
        });
        self.save();
    }

    /// Removes the counts of replicas that no longer exist.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&ReplicaKey) -> bool) {
        self.counted.retain(|key, _| is_wanted(key));
    }

    fn save(&self) {
        let stored = StoredCalibration {
            subject: None,
            measured: self.subject.clone(),
            calibrations: self.calibrations.iter().map(publish_calibration).collect(),
            reset: self.reset.clone(),
        };
        if let Err(err) = self.state.write(FILE, &stored) {
            warn!(error = %Chain(&err), "failed to write {FILE}: new calibration is lost when the agent exits");
        }
    }
}

/// Returns `None` while the worker has no measurement.
fn run(status: &WorkerStatus, model: &ServedModel, hardware: Hardware) -> Option<Run> {
    let measured = &status.measured;
    let load = Load {
        streams: measured.streams?,
        prompt_tokens: measured.prompt_tokens?,
        context_tokens: measured.context_tokens?,
    };
    let speed = speed_under_load(load, hardware, model);
    // The context grows linearly from the prompt length, so its mean is half way to the final
    // length.
    let tokens = 2.0 * (load.context_tokens - load.prompt_tokens).max(0.0) * measured.samples as f64;
    Some(Run {
        measured: measured.decode_tokens_per_second?,
        predicted: speed.decode.p50,
        tokens: tokens as u64,
        context_tokens: load.context_tokens,
        ceiling: hardware
            .chip()
            .map(|chip| chip.bandwidth.0 / speed.bytes_per_token),
    })
}

/// Returns `None` while too few requests ran alone on the engine.
fn prefill_run(status: &WorkerStatus, model: &ServedModel, hardware: Hardware) -> Option<PrefillRun> {
    let prefill = status
        .measured
        .prefill
        .filter(|prefill| prefill.samples >= RUN_REQUESTS)?;
    let load = Load::of_prompt(prefill.prompt_tokens);
    Some(PrefillRun {
        measured: prefill.seconds,
        predicted: speed_under_load(load, hardware, model).first_token.p50,
        prompt_tokens: prefill.prompt_tokens,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;
    use rooflet_api::v1alpha1::{Measurements, Sustained};
    use rooflet_api::wire::{EngineMemory, MeasuredPrefill, MeasuredSpeed, WorkerPhase};
    use rooflet_base::units::Bytes;
    use rooflet_roofline::chip;
    use rooflet_roofline::predict::MeasuredMachine;
    use rooflet_testing::TempDir;

    fn key() -> ReplicaKey {
        ReplicaKey::new("default", "a")
    }

    fn m4_pro() -> Hardware {
        Hardware::Chip(chip::find("M4 Pro", Some(20), None).unwrap())
    }

    fn model() -> ServedModel {
        ServedModel::of_size(Bytes::gib(4), 1 << 10)
    }

    /// Returns a worker with `completed` requests that ran `factor` times as fast as predicted.
    fn worker(completed: u64, factor: f64, version: &str) -> WorkerStatus {
        let load = Load {
            streams: 1.0,
            prompt_tokens: 100.0,
            context_tokens: 200.0,
        };
        let predicted = speed_under_load(load, m4_pro(), &model()).decode.p50;
        WorkerStatus {
            phase: WorkerPhase::Ready,
            engine: EngineInfo {
                name: "mlx".to_owned(),
                version: version.to_owned(),
                device: "metal".to_owned(),
            },
            model: None,
            memory: EngineMemory::default(),
            requests: RequestCounts {
                completed,
                ..RequestCounts::default()
            },
            measured: MeasuredSpeed {
                decode_tokens_per_second: Some(predicted * factor),
                time_to_first_token_seconds: Some(1.0),
                streams: Some(load.streams),
                prompt_tokens: Some(load.prompt_tokens),
                context_tokens: Some(load.context_tokens),
                samples: completed.min(64),
                ..MeasuredSpeed::default()
            },
            stalled: false,
        }
    }

    const SYSTEM: &str = "macOS 26.4.1 (25E246)";
    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn open_on(directory: &TempDir, system: &str) -> Calibrator {
        let state = StateDir::open(directory.path()).unwrap();
        Calibrator::new(Arc::new(state), system.to_owned(), NOW)
    }

    fn open(directory: &TempDir) -> Calibrator {
        open_on(directory, SYSTEM)
    }

    fn see(calibrator: &mut Calibrator, status: &WorkerStatus) {
        calibrator.observe(&key(), status, &model(), m4_pro(), NOW);
    }

    fn learned(calibrator: &mut Calibrator, version: &str) -> Vec<Calibration> {
        let engine = worker(0, 1.0, version).engine;
        calibrator.current(&engine, m4_pro(), NOW).to_vec()
    }

    fn runs(calibrator: &mut Calibrator, version: &str) -> usize {
        let current = learned(calibrator, version);
        current.iter().map(|one| one.decode().len()).sum()
    }

    fn reset_reason(calibrator: &Calibrator) -> Option<&str> {
        Some(calibrator.reset()?.reason.as_str())
    }

    #[test]
    fn requests_count_once_and_calibration_survives_restart() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        for (completed, expect) in [
            (9, 0),
            (10, 1),
            (11, 1),
            (73, 1),
            (74, 2),
            // The worker was restarted.
            (3, 2),
            (12, 3),
        ] {
            see(&mut calibrator, &worker(completed, 0.9, "1"));
            assert_eq!(runs(&mut calibrator, "1"), expect, "{completed} requests");
        }
        drop(calibrator);
        let mut calibrator = open(&directory);
        assert_eq!(runs(&mut calibrator, "1"), 3);
        assert_eq!(runs(&mut calibrator, "2"), 0, "another release of the engine");
        let learned = learned(&mut calibrator, "1");
        let for_fit = |version, system| {
            let engine = worker(0, 1.0, version).engine;
            stored(directory.path(), &engine, system, m4_pro(), NOW)
        };
        assert_eq!(for_fit("1", SYSTEM), learned);
        assert_eq!(for_fit("2", SYSTEM), []);
        assert_eq!(for_fit("1", "macOS 26.5 (25F71)"), []);
        let plain = speed_under_load(
            Load {
                streams: 1.0,
                prompt_tokens: 100.0,
                context_tokens: 200.0,
            },
            m4_pro(),
            &model(),
        );
        let corrected = plain.calibrated(&model().cost, &learned);
        let ratio = corrected.decode.p50 / plain.decode.p50;
        assert!((0.9..0.95).contains(&ratio), "{ratio}");
        assert_eq!(
            (plain.basis, corrected.basis),
            (Basis::Nominal, Basis::Calibrated)
        );
    }

    /// Calibration of cold figures includes the effect of heat; sustained figures already contain
    /// it.
    #[test]
    fn calibration_of_cold_figures_does_not_apply_to_sustained_figures() {
        let probed = |sustained: Option<Sustained>| {
            let mut probe = Measurements::default();
            probe.qmv.median_bytes_per_second = 200e9;
            probe.read.median_bytes_per_second = 200e9;
            probe.sustained = sustained;
            Hardware::Measured(MeasuredMachine::new(&probe).unwrap())
        };
        let hot = |thermal_factor| {
            probed(Some(Sustained {
                thermal_factor,
                ..Sustained::default()
            }))
        };
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        let seen = worker(10, 1.0, "1");
        calibrator.observe(&key(), &seen, &model(), probed(None), NOW);
        let known =
            |calibrator: &mut Calibrator, hardware| calibrator.current(&seen.engine, hardware, NOW).len();
        assert_eq!(known(&mut calibrator, probed(None)), 1);
        assert_eq!(known(&mut calibrator, hot(0.8)), 0);
        calibrator.observe(&key(), &worker(84, 1.0, "1"), &model(), hot(0.8), NOW);
        assert_eq!(
            known(&mut calibrator, hot(0.7)),
            1,
            "the next probe differs a little"
        );
        assert_eq!(reset_reason(&calibrator), Some("PredictionBasisChanged"));
    }

    /// Slowness caused by a second worker of the same Mac must not calibrate the chip.
    #[test]
    fn requests_concurrent_with_another_worker_are_not_used() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        let other = ReplicaKey::new("default", "b");
        let mut see = |completed, running, factor, expect| {
            let status = worker(completed, factor, "1");
            let beside = RequestCounts {
                running,
                ..RequestCounts::default()
            };
            calibrator.update_load(&[(key(), status.requests), (other.clone(), beside)].into());
            calibrator.observe(&key(), &status, &model(), m4_pro(), NOW);
            assert_eq!(runs(&mut calibrator, "1"), expect, "{completed} requests");
            calibrator.is_undisturbed(&key(), &status)
        };
        assert!(!see(64, 2, 0.5, 0));
        assert!(
            !see(120, 0, 0.6, 0),
            "half of the median's requests were disturbed"
        );
        assert!(see(128, 0, 0.95, 1));
    }

    /// Prefill calibration uses requests with long prompts that ran alone on the engine.
    #[test]
    fn prefill_and_decode_are_calibrated_separately() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        let load = Load::of_prompt(1000.0);
        let plain = speed_under_load(load, m4_pro(), &model());
        let mut see = |completed, samples, prompt_tokens, expect: usize| {
            let mut status = worker(completed, 0.9, "1");
            status.measured.prefill = Some(MeasuredPrefill {
                seconds: 1.3 * plain.first_token.p50,
                prompt_tokens,
                samples,
            });
            calibrator.observe(&key(), &status, &model(), m4_pro(), NOW);
            let current = calibrator.current(&status.engine, m4_pro(), NOW);
            let known: usize = current.iter().map(|one| one.first_token().len()).sum();
            assert_eq!(known, expect, "{completed} requests");
        };
        see(10, 9, 1000.0, 0);
        see(100, 10, 100.0, 0);
        see(200, 10, 1000.0, 1);
        see(210, 10, 1000.0, 1);
        see(300, 10, 1000.0, 2);
        drop(calibrator);
        let mut calibrator = open(&directory);
        let corrected = plain.calibrated(&model().cost, &learned(&mut calibrator, "1"));
        let ratio = corrected.first_token.p50 / plain.first_token.p50;
        assert!((1.15..1.3).contains(&ratio), "{ratio}");
        assert_eq!(
            (plain.first_token_basis, corrected.first_token_basis),
            (Basis::Nominal, Basis::Calibrated)
        );
    }

    #[test]
    fn new_engine_version_deletes_calibrations_and_impossible_runs_are_ignored() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        see(&mut calibrator, &worker(10, 0.9, "1"));
        see(&mut calibrator, &worker(100, 3.0, "1"));
        assert_eq!(
            runs(&mut calibrator, "1"),
            1,
            "three times as fast is above the roofline"
        );
        assert_eq!(reset_reason(&calibrator), None);
        // The first status of the new engine is enough.
        see(&mut calibrator, &worker(0, 0.9, "2"));
        assert_eq!((runs(&mut calibrator, "1"), runs(&mut calibrator, "2")), (0, 0));
        let reset = calibrator.reset().unwrap();
        assert_eq!(
            (reset.reason.as_str(), reset.message.as_str()),
            (
                "EngineChanged",
                "calibrations of mlx 1 (metal) do not apply to mlx 2 (metal)"
            )
        );
        see(&mut calibrator, &worker(200, 0.9, "2"));
        assert_eq!(runs(&mut calibrator, "2"), 1);
        drop(calibrator);
        let reopened = open(&directory);
        assert_eq!(reset_reason(&reopened), Some("EngineChanged"), "after a restart");
    }

    #[test]
    fn new_operating_system_deletes_calibrations() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        see(&mut calibrator, &worker(10, 0.9, "1"));
        drop(calibrator);
        let mut calibrator = open_on(&directory, "macOS 26.5 (25F71)");
        assert_eq!(runs(&mut calibrator, "1"), 0);
        let reset = calibrator.reset().unwrap();
        assert_eq!(reset.reason, "OperatingSystemChanged");
        assert_eq!(
            reset.message,
            "calibrations of macOS 26.4.1 (25E246) do not apply to macOS 26.5 (25F71)"
        );
    }

    /// Version 0.1 stored one list of errors per weight format, without the operating system.
    #[test]
    fn reads_the_file_of_an_earlier_version() {
        let directory = TempDir::new();
        let file = r#"{"subject": "mlx 1 (metal), Nominal", "calibrations": [
            {"weightBits": 4, "logTimeRatios": [0.1, 0.12], "logFirstTokenRatios": [0.3]},
            {"weightBits": 8, "logTimeRatios": [0.2]}]}"#;
        std::fs::write(directory.path().join(FILE), file).unwrap();
        let mut calibrator = open(&directory);
        assert_eq!(runs(&mut calibrator, "1"), 3);
        assert_eq!(runs(&mut calibrator, "2"), 0);
        assert_eq!(reset_reason(&calibrator), None);
    }

    #[test]
    fn calibrations_age() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        see(&mut calibrator, &worker(10, 0.9, "1"));
        let engine = worker(0, 1.0, "1").engine;
        let mut weight = |hours| {
            let now = NOW + SignedDuration::from_hours(hours);
            let current = calibrator.current(&engine, m4_pro(), now);
            current.first().map(|one| one.decode()[0].weight)
        };
        assert_eq!(weight(23), Some(1.0));
        assert_eq!(weight(14 * 24), Some(0.5));
        assert_eq!(weight(100 * 24), None);
    }
}

//! Calibration of the node's predictions by the measured speed of its requests. The agent stores it
//! in the state directory and publishes it in `FleetNode.status`.

mod contention;

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use self::contention::ContentionTracker;
use super::replica::ReplicaKey;
use super::state::{StateDir, read_json};
use crate::node::hardware::show_engine;
use rooflet_api::v1alpha1 as api;
use rooflet_api::wire::{EngineInfo, RequestCounts, WorkerStatus};
use rooflet_base::error::Chain;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::calibration::{Calibration, PrefillRun, Run, weight_bits};
use rooflet_roofline::predict::{Basis, Hardware};
use rooflet_roofline::published::{Load, publish_calibration, speed_under_load};

const FILE: &str = "calibration.json";

/// Minimum number of requests whose median counts as one run.
const RUN_REQUESTS: u64 = 10;

/// Calibration in the state directory, which persists across restarts of the agent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredCalibration {
    /// Engine and basis of the calibrated predictions. A calibration for another subject is not
    /// used.
    subject: String,
    calibrations: Vec<api::Calibration>,
}

/// Returns the calibrations in this state directory that apply to predictions from `hardware` with
/// `engine`.
pub fn stored(state_dir: &Utf8Path, engine: &EngineInfo, hardware: Hardware) -> Vec<Calibration> {
    let stored: Option<StoredCalibration> = read_json(&state_dir.join(FILE)).ok().flatten();
    let stored = stored.filter(|stored| stored.subject == subject(engine, hardware));
    stored.map_or_else(Vec::new, |stored| {
        stored.calibrations.iter().map(Calibration::from).collect()
    })
}

/// Calibration of this node's predictions.
pub(crate) struct Calibrator {
    state: Arc<StateDir>,
    subject: String,
    calibrations: Vec<Calibration>,
    /// Number of completed requests of each replica's worker that the calibration includes.
    counted: BTreeMap<ReplicaKey, u64>,
    contention: ContentionTracker,
}

impl Calibrator {
    /// Loads the stored calibration.
    pub(crate) fn new(state: Arc<StateDir>) -> Self {
        let stored: StoredCalibration = match state.read(FILE) {
            Ok(stored) => stored.unwrap_or_default(),
            Err(err) => {
                warn!(error = %Chain(&err), "failed to read {FILE}: calibration starts from zero");
                StoredCalibration::default()
            }
        };
        Self {
            state,
            subject: stored.subject,
            calibrations: stored.calibrations.iter().map(Calibration::from).collect(),
            counted: BTreeMap::new(),
            contention: ContentionTracker::default(),
        }
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
    pub(crate) fn current(&self, engine: &EngineInfo, hardware: Hardware) -> &[Calibration] {
        if self.subject == subject(engine, hardware) {
            &self.calibrations
        } else {
            &[]
        }
    }

    /// Updates the calibration with a worker's requests. Each request counts once.
    pub(crate) fn observe(
        &mut self,
        key: &ReplicaKey,
        status: &WorkerStatus,
        model: &ServedModel,
        hardware: Hardware,
    ) {
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
        let subject = subject(&status.engine, hardware);
        if self.subject != subject {
            self.calibrations.clear();
            self.subject = subject;
        }
        let decode = run(status, model, hardware);
        let prefill = prefill_run(status, model, hardware);
        let calibration = self.of(weight_bits(&model.cost));
        let outcomes = [
            decode.map(|run| calibration.observe(&run)),
            prefill.map(|run| calibration.observe_prefill(&run)),
        ];
        let mut is_updated = false;
        for outcome in outcomes.into_iter().flatten() {
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

    /// Removes the counts of replicas that no longer exist.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&ReplicaKey) -> bool) {
        self.counted.retain(|key, _| is_wanted(key));
    }

    fn of(&mut self, weight_bits: u32) -> &mut Calibration {
        let existing = self
            .calibrations
            .iter()
            .position(|calibration| calibration.weight_bits == weight_bits);
        let index = existing.unwrap_or_else(|| {
            self.calibrations.push(Calibration::new(weight_bits));
            self.calibrations.len() - 1
        });
        &mut self.calibrations[index]
    }

    fn save(&self) {
        let stored = StoredCalibration {
            subject: self.subject.clone(),
            calibrations: self.calibrations.iter().map(publish_calibration).collect(),
        };
        if let Err(err) = self.state.write(FILE, &stored) {
            warn!(error = %Chain(&err), "failed to write {FILE}: new calibration is lost when the agent exits");
        }
    }
}

fn subject(engine: &EngineInfo, hardware: Hardware) -> String {
    let basis = match hardware {
        Hardware::Chip(_) => Basis::Nominal,
        Hardware::Measured(_) => Basis::Measured,
    };
    // Calibration of sustained figures is separate: calibration of cold figures already includes
    // the effect of heat.
    let hot = hardware.sustained().map_or("", |_| ", sustained");
    format!("{}, {}{hot}", show_engine(engine), basis.as_str())
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

    fn open(directory: &TempDir) -> Calibrator {
        let path = directory.path();
        Calibrator::new(Arc::new(StateDir::open(path).unwrap()))
    }

    fn runs(calibrator: &Calibrator, version: &str) -> usize {
        let current = calibrator.current(&worker(0, 1.0, version).engine, m4_pro());
        current.iter().map(|one| one.decode_errors().len()).sum()
    }

    #[test]
    fn requests_count_once_and_calibration_survives_restart() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        let mut see = |completed, expect| {
            calibrator.observe(&key(), &worker(completed, 0.9, "1"), &model(), m4_pro());
            assert_eq!(runs(&calibrator, "1"), expect, "{completed} requests");
        };
        see(9, 0);
        see(10, 1);
        see(11, 1);
        see(73, 1);
        see(74, 2);
        // The worker was restarted.
        see(3, 2);
        see(12, 3);
        drop(calibrator);
        let calibrator = open(&directory);
        assert_eq!(runs(&calibrator, "1"), 3);
        assert_eq!(runs(&calibrator, "2"), 0, "another release of the engine");
        let learned = calibrator.current(&worker(0, 1.0, "1").engine, m4_pro());
        let path = directory.path();
        assert_eq!(
            stored(path, &worker(0, 1.0, "1").engine, m4_pro()),
            learned,
            "for `fit`"
        );
        assert_eq!(stored(path, &worker(0, 1.0, "2").engine, m4_pro()), []);
        let plain = speed_under_load(
            Load {
                streams: 1.0,
                prompt_tokens: 100.0,
                context_tokens: 200.0,
            },
            m4_pro(),
            &model(),
        );
        let corrected = plain.calibrated(&model().cost, learned);
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
        calibrator.observe(&key(), &seen, &model(), probed(None));
        let known = |calibrator: &Calibrator, hardware| calibrator.current(&seen.engine, hardware).len();
        assert_eq!(known(&calibrator, probed(None)), 1);
        assert_eq!(known(&calibrator, hot(0.8)), 0);
        calibrator.observe(&key(), &worker(84, 1.0, "1"), &model(), hot(0.8));
        assert_eq!(known(&calibrator, hot(0.7)), 1, "the next probe differs a little");
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
            calibrator.observe(&key(), &status, &model(), m4_pro());
            assert_eq!(runs(&calibrator, "1"), expect, "{completed} requests");
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
            calibrator.observe(&key(), &status, &model(), m4_pro());
            let current = calibrator.current(&status.engine, m4_pro());
            let known: usize = current.iter().map(|one| one.first_token_errors().len()).sum();
            assert_eq!(known, expect, "{completed} requests");
        };
        see(10, 9, 1000.0, 0);
        see(100, 10, 100.0, 0);
        see(200, 10, 1000.0, 1);
        see(210, 10, 1000.0, 1);
        see(300, 10, 1000.0, 2);
        drop(calibrator);
        let calibrator = open(&directory);
        let learned = calibrator.current(&worker(0, 1.0, "1").engine, m4_pro());
        let corrected = plain.calibrated(&model().cost, learned);
        let ratio = corrected.first_token.p50 / plain.first_token.p50;
        assert!((1.15..1.3).contains(&ratio), "{ratio}");
        assert_eq!(
            (plain.first_token_basis, corrected.first_token_basis),
            (Basis::Nominal, Basis::Calibrated)
        );
    }

    #[test]
    fn new_engine_version_resets_calibration_and_impossible_runs_are_ignored() {
        let directory = TempDir::new();
        let mut calibrator = open(&directory);
        calibrator.observe(&key(), &worker(10, 0.9, "1"), &model(), m4_pro());
        calibrator.observe(&key(), &worker(100, 3.0, "1"), &model(), m4_pro());
        assert_eq!(
            runs(&calibrator, "1"),
            1,
            "three times as fast is above the roofline"
        );
        calibrator.observe(&key(), &worker(200, 0.9, "2"), &model(), m4_pro());
        assert_eq!((runs(&calibrator, "1"), runs(&calibrator, "2")), (0, 1));
    }
}

//! The bandwidth probe: run once in a child process, on an idle node, and remembered in the state directory.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::reports::Reports;
use crate::state::{StateDir, read_json};
use rooflet_api::wire::ProbeReport;
use rooflet_base::clock::{Clock, since};
use rooflet_base::error::Chain;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_base::units::BytesPerSecond;
use rooflet_client::Changes;
use rooflet_roofline::probing::PROBE_FRESH_FOR;

/// The file in the state directory.
const FILE: &str = "probe.json";

/// A probe that takes longer, what it waits for heat not included, is ended: replicas wait for it.
const LIMIT: Duration = Duration::from_secs(120);

/// After a failure the probe is tried again after this time, if the node is idle then.
const RETRY: Duration = Duration::from_secs(3600);

/// What is read of the probe's output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 256 << 10;

/// What is known of the node's bandwidth.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeState {
    pub step: ProbeStep,
    /// What was measured last. It counts until there is something newer, and less once it is old.
    pub last: Option<Measured>,
}

impl ProbeState {
    /// Of a machine that does not exist.
    pub fn simulated() -> Self {
        Self {
            step: ProbeStep::Simulated,
            last: None,
        }
    }
}

/// What the probe is doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ProbeStep {
    /// The machine does not exist: there is nothing to measure.
    Simulated,
    /// It runs when the last figure is old, or there is none, and no replica runs.
    #[default]
    Waiting,
    Running,
    /// It is tried again later.
    Failed {
        reason: &'static str,
        message: String,
    },
}

/// A figure of this machine, as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub report: Box<ProbeReport>,
    pub duration: Duration,
}

impl Measured {
    pub fn measured_at(&self) -> Timestamp {
        self.report.measured_at.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// For how long it is still fresh.
    pub(crate) fn fresh_for(&self, now: Timestamp) -> Duration {
        PROBE_FRESH_FOR.saturating_sub(since(now, self.measured_at()))
    }
}

/// A figure as it is kept. It is worth nothing on another machine, system or engine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    /// What it was measured on and with.
    conditions: String,
    duration_seconds: f64,
    report: ProbeReport,
}

/// What the agent with this state directory measured last, good or not; `None` where there is nothing that can be read.
pub fn last_report(state_dir: &Utf8Path) -> Option<ProbeReport> {
    let kept: Kept = read_json(&state_dir.join(FILE)).ok().flatten()?;
    Some(kept.report)
}

/// See the module.
pub(crate) struct Prober {
    pub state: Arc<StateDir>,
    /// The command of the child.
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    /// How much of its time the child loads the machine to see what heat leaves.
    pub sustained: Duration,
    /// Machine, system and version: a figure measured under others is not used.
    pub conditions: String,
    pub clock: Clock,
    pub changes: Changes,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    pub probing_tx: watch::Sender<bool>,
    pub state_tx: watch::Sender<ProbeState>,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("starting the probe")]
    Start(#[source] std::io::Error),
    #[error("the probe ended with {status}: {said}")]
    Ended {
        status: std::process::ExitStatus,
        said: String,
    },
    #[error("the probe did not end within {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("the probe's output cannot be read")]
    Output(#[source] serde_json::Error),
}

impl Prober {
    /// The figure of an earlier life, fresh or old, if it was measured under these conditions. To be asked before anything
    /// is started.
    pub(crate) fn remembered(state: &StateDir, conditions: &str) -> Option<Measured> {
        let kept: Kept = state.read(FILE).ok().flatten()?;
        (kept.conditions == conditions).then(|| Measured {
            report: Box::new(kept.report),
            duration: Duration::try_from_secs_f64(kept.duration_seconds).unwrap_or_default(),
        })
    }

    /// Measures when there is no good figure and the node is idle, until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait_until_due() => {}
            }
            // From here on the sync loop starts nothing. A worker that it was just starting has the machine.
            self.set(true, ProbeStep::Running, None);
            if !self.is_granted().await {
                self.set(false, ProbeStep::Waiting, None);
                continue;
            }
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.measure() => outcome,
            };
            match outcome {
                Ok(measured) => self.set(false, ProbeStep::Waiting, Some(measured)),
                Err(err) => {
                    warn!(error = %Chain(&err), "the node's memory bandwidth could not be measured");
                    let failed = ProbeStep::Failed {
                        reason: "ProbeFailed",
                        message: Chain(&err).to_string(),
                    };
                    self.set(false, failed, None);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(RETRY) => {}
                    }
                }
            }
        }
    }

    async fn wait_until_due(&mut self) {
        loop {
            let now = self.clock.now();
            let last = self.state_tx.latest().last;
            let due_in = last.map_or(Duration::ZERO, |last| last.fresh_for(now));
            if !due_in.is_zero() {
                tokio::time::sleep(due_in).await;
            } else if self.reports_rx.see_latest().idle {
                return;
            } else if self.reports_rx.changed().await.is_err() {
                // The sync loop has ended, and the agent with it.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether the sync loop holds back, with no worker running.
    async fn is_granted(&mut self) -> bool {
        match self.reports_rx.wait_for(|reports| reports.probing).await {
            Ok(reports) => reports.idle,
            Err(_) => false,
        }
    }

    /// Without a new figure the last one stays.
    fn set(&self, probing: bool, step: ProbeStep, measured: Option<Measured>) {
        self.probing_tx.send_replace(probing);
        self.state_tx.send_modify(|state| {
            state.step = step;
            state.last = measured.or(state.last.take());
        });
        self.changes.mark();
    }

    async fn measure(&self) -> Result<Measured, ProbeError> {
        let began = self.clock.instant();
        let mut child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(ProbeError::Start)?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let all = async { tokio::join!(read(output), read(errors), child.wait()) };
        let limit = LIMIT + self.sustained;
        let (output, errors, status) = tokio::time::timeout(limit, all)
            .await
            .map_err(|_| ProbeError::TooLong(limit))?;
        let status = status.map_err(ProbeError::Start)?;
        if !status.success() {
            let said = String::from_utf8_lossy(&errors);
            let said = said
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("it said nothing")
                .to_owned();
            return Err(ProbeError::Ended { status, said });
        }
        let report: ProbeReport = serde_json::from_slice(&output).map_err(ProbeError::Output)?;
        let duration = self.clock.instant() - began;
        info!(
            qmv = %BytesPerSecond(report.measurements.qmv.median_bytes_per_second),
            read = %BytesPerSecond(report.measurements.read.median_bytes_per_second),
            seconds = duration.as_secs_f64(),
            "measured the node's memory bandwidth"
        );
        let kept = Kept {
            conditions: self.conditions.clone(),
            duration_seconds: duration.as_secs_f64(),
            report: report.clone(),
        };
        if let Err(err) = self.state.write(FILE, &kept) {
            warn!(error = %Chain(&err), "the measured figure could not be kept");
        }
        Ok(Measured {
            report: Box::new(report),
            duration,
        })
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let mut stream = stream.take(MAX_OUTPUT_BYTES);
        // What came before a failure is all there is to show.
        drop(stream.read_to_end(&mut bytes).await);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{Measurements, Plausibility, PlausibilityVerdict};
    use rooflet_api::wire::{EngineInfo, ProbedMachine};
    use rooflet_testing::TempDir;

    fn report() -> ProbeReport {
        ProbeReport {
            engine: EngineInfo {
                name: "mlx".to_owned(),
                version: "1".to_owned(),
                device: "metal".to_owned(),
            },
            machine: ProbedMachine {
                chip: Default::default(),
                memory_bytes: 0,
                operating_system: String::new(),
                os_build: String::new(),
                spec_bytes_per_second: None,
            },
            measurements: Measurements::default(),
            plausibility: Plausibility {
                verdict: PlausibilityVerdict::NotJudged,
                ..Plausibility::default()
            },
            measured_at: "2026-01-01T00:00:00Z".to_owned(),
            expires_at: "2026-01-08T00:00:00Z".to_owned(),
        }
    }

    /// It is old, and all there is: of an earlier life, and while the next one fails.
    #[tokio::test]
    async fn an_old_figure_stays_until_there_is_a_new_one() {
        let directory = TempDir::new();
        let path = directory.path();
        let state = Arc::new(StateDir::open(path).unwrap());
        let kept = Kept {
            conditions: "here".to_owned(),
            duration_seconds: 6.0,
            report: report(),
        };
        state.write(FILE, &kept).unwrap();
        assert_eq!(Prober::remembered(&state, "elsewhere"), None);
        let last = Prober::remembered(&state, "here");
        let fresh_for = |now: &str| last.as_ref().unwrap().fresh_for(now.parse().unwrap());
        assert_eq!(fresh_for("2026-01-07T23:00:00Z"), Duration::from_secs(3600));
        assert_eq!(fresh_for("2026-02-01T00:00:00Z"), Duration::ZERO);

        let idle = Reports {
            idle: true,
            probing: true,
            ..Reports::default()
        };
        let (_reports_tx, reports_rx) = watch::channel(Arc::new(idle));
        let (probing_tx, _) = watch::channel(true);
        let (state_tx, mut state_rx) = watch::channel(ProbeState {
            step: ProbeStep::Waiting,
            last: last.clone(),
        });
        let prober = Prober {
            state,
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), "exit 1".to_owned()],
            sustained: Duration::ZERO,
            conditions: "here".to_owned(),
            clock: Clock::System,
            changes: Changes::new(),
            reports_rx,
            probing_tx,
            state_tx,
        };
        let stop = CancellationToken::new();
        let failed = async {
            let failed = |state: &ProbeState| matches!(state.step, ProbeStep::Failed { .. });
            let seen = state_rx.wait_for(failed).await.map(|state| state.last.clone());
            stop.cancel();
            seen
        };
        let outcome = async { tokio::join!(prober.run(stop.clone()), failed).1 };
        let seen = tokio::time::timeout(Duration::from_secs(20), outcome)
            .await
            .unwrap();
        assert_eq!(seen.unwrap(), last);
    }
}

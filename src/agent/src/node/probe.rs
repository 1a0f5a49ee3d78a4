//! The bandwidth probe. It runs in a child process while the node is idle. Its result is stored in
//! the state directory.

use std::fmt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::probe_schedule::{ProbeSchedule, better};
use crate::reports::Reports;
use crate::state::{StateDir, read_json};
use rooflet_api::meta::PROBE_ANNOTATION;
use rooflet_api::v1alpha1::{FleetNode, PlausibilityVerdict, PowerSource};
use rooflet_api::wire::ProbeReport;
use rooflet_base::clock::{Clock, since};
use rooflet_base::error::Chain;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_base::units::BytesPerSecond;
use rooflet_client::{Cache, Changes};
use rooflet_host::{Host, Power};
use rooflet_roofline::probing;
use rooflet_roofline::probing::PROBE_FRESH_FOR;

/// File in the state directory.
const FILE: &str = "probe.json";

/// Maximum duration of the probe, excluding the time of sustained load. Replicas wait for the
/// probe.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Delay of the retry after a failure. The retry also waits until the node is idle.
const RETRY: Duration = Duration::from_secs(3600);

/// Period of the check whether the power supply has changed.
const POWER_CHECK_PERIOD: Duration = Duration::from_secs(30);

/// Minimum time between two checks.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Maximum output of the probe that is read, in bytes.
const MAX_OUTPUT_BYTES: u64 = 256 << 10;

/// State of the node's measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeState {
    pub step: ProbeStep,
    /// Last measurement. It stays valid until a newer one exists; predictions from an old one are
    /// less certain.
    pub last: Option<ProbeResult>,
}

impl ProbeState {
    /// Returns the state of a simulated machine.
    pub fn simulated() -> Self {
        Self {
            step: ProbeStep::Simulated,
            last: None,
        }
    }
}

/// Step of the probe.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ProbeStep {
    /// The machine is simulated and never probed.
    Simulated,
    /// The probe runs when the last measurement has expired or is missing, and no worker runs.
    #[default]
    Waiting,
    Running,
    /// The last attempt failed and is retried later.
    Failed {
        reason: &'static str,
        message: String,
    },
}

/// Measurement of this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeResult {
    pub report: Box<ProbeReport>,
    pub duration: Duration,
}

impl ProbeResult {
    pub fn measured_at(&self) -> Timestamp {
        self.report.measured_at.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns the load of other programs that reduced the figures, if any.
    pub(crate) fn disturbance(&self) -> Option<String> {
        probing::disturbance(&self.report.measurements)
    }

    /// Returns whether other load, or another reason, probably reduced the figures.
    pub(super) fn is_doubtful(&self) -> bool {
        self.disturbance().is_some() || self.report.plausibility.verdict == PlausibilityVerdict::TooLow
    }

    /// Returns the remaining time until the measurement expires.
    pub(crate) fn remaining_validity(&self, now: Timestamp) -> Duration {
        PROBE_FRESH_FOR.saturating_sub(since(now, self.measured_at()))
    }
}

/// Stored measurement. It is valid only for the same machine, power state, operating system, build
/// and engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredProbe {
    /// Description of everything that the measurement depends on.
    conditions: String,
    duration_seconds: f64,
    report: ProbeReport,
    /// Last request of an administrator that a measurement has fulfilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

/// Content of the file. Older agents stored one measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum StoredProbes {
    All(Vec<StoredProbe>),
    One(Box<StoredProbe>),
}

impl StoredProbes {
    /// Returns the measurements, the newest first.
    fn newest_first(self) -> Vec<StoredProbe> {
        match self {
            Self::All(all) => all,
            Self::One(one) => vec![*one],
        }
    }
}

/// Number of stored measurements: power states of the current and the previous system.
const MAX_STORED: usize = 8;

/// Returns the last measurement in an agent's state directory, even if it is expired or for other
/// conditions.
pub fn last_report(state_dir: &Utf8Path) -> Option<ProbeReport> {
    let stored: StoredProbes = read_json(&state_dir.join(FILE)).ok().flatten()?;
    stored
        .newest_first()
        .into_iter()
        .next()
        .map(|stored| stored.report)
}

/// Everything that a measurement depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// Machine, operating system, build and engine.
    pub(crate) installation: String,
    pub(crate) power: PowerState,
}

/// State of the power supply, as far as it changes the speed of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PowerState {
    on_battery: bool,
    saves_power: bool,
}

impl PowerState {
    pub(crate) fn of(power: Power) -> Self {
        Self {
            on_battery: power.source == PowerSource::Battery,
            saves_power: power.low_power_mode == Some(true),
        }
    }

    /// Returns true if the machine may be probed: the probe would drain a battery that is being
    /// saved.
    fn may_probe(self) -> bool {
        !(self.on_battery && self.saves_power)
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.installation)?;
        if self.power.on_battery {
            f.write_str(", on battery")?;
        }
        if self.power.saves_power {
            f.write_str(", in low power mode")?;
        }
        Ok(())
    }
}

/// Task that runs the probe.
pub(crate) struct Prober {
    pub state: Arc<StateDir>,
    /// Program of the child process.
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    /// Time for which the child process loads the machine before the sustained measurement.
    pub sustained: Duration,
    /// Conditions of the last measurement in the state.
    pub conditions: Conditions,
    /// This node's object, whose annotation requests a measurement. `None` without an API server.
    pub nodes: Option<Cache<FleetNode>>,
    pub node: String,
    pub host: Host,
    pub clock: Clock,
    pub changes: Changes,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    pub probing_tx: watch::Sender<bool>,
    pub state_tx: watch::Sender<ProbeState>,
}

/// Error of a probe run.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("starting the probe")]
    Start(#[source] std::io::Error),
    #[error("the probe exited with {status}: {message}")]
    Ended {
        status: std::process::ExitStatus,
        message: String,
    },
    #[error("the probe did not finish within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("parsing the probe's output")]
    Output(#[source] serde_json::Error),
}

impl Prober {
    /// Returns the stored measurement, fresh or expired, that was taken under these conditions.
    pub(crate) fn stored(state: &StateDir, conditions: &Conditions) -> Option<ProbeResult> {
        let conditions = conditions.to_string();
        let mut stored = read_stored(state).into_iter();
        let stored = stored.find(|stored| stored.conditions == conditions)?;
        Some(ProbeResult {
            report: Box::new(stored.report),
            duration: Duration::try_from_secs_f64(stored.duration_seconds).unwrap_or_default(),
        })
    }

    /// Probes the machine whenever a measurement is due and the node is idle, until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let stored = read_stored(&self.state).into_iter();
        let mut schedule = ProbeSchedule::new(stored.filter_map(|one| one.request).next());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait_until_due(&schedule) => {}
            }
            // From here on the sync loop starts no worker. If a worker is already starting, the
            // probe waits.
            self.set(true, ProbeStep::Running, None);
            if !self.is_machine_idle().await {
                self.set(false, ProbeStep::Waiting, None);
                continue;
            }
            let request = self.request();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.measure() => outcome,
            };
            match outcome {
                Ok(None) => self.set(false, ProbeStep::Waiting, None),
                Ok(Some(measured)) => {
                    schedule.completed(&measured, request, self.clock.instant());
                    let previous = self.state_tx.latest().last;
                    let kept = better(previous, measured, self.clock.now());
                    self.store(&kept.report, kept.duration, schedule.fulfilled());
                    self.set(false, ProbeStep::Waiting, Some(kept));
                }
                Err(err) => {
                    warn!(error = %Chain(&err), "failed to measure the node's memory bandwidth");
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

    /// Returns the request of an administrator, if one exists.
    fn request(&self) -> Option<String> {
        let node = self.nodes.as_ref()?.get(None, &self.node)?;
        node.annotations().get(PROBE_ANNOTATION).cloned()
    }

    async fn wait_until_due(&mut self, schedule: &ProbeSchedule) {
        loop {
            self.follow_power();
            let (now, instant) = (self.clock.now(), self.clock.instant());
            let last = self.state_tx.latest().last;
            let due_in = schedule.due_in(last.as_ref(), self.request().as_deref(), now, instant);
            if !due_in.is_zero() || !self.conditions.power.may_probe() {
                tokio::time::sleep(due_in.clamp(MIN_WAIT, POWER_CHECK_PERIOD)).await;
            } else if self.reports_rx.see_latest().idle {
                return;
            } else {
                tokio::select! {
                    changed = self.reports_rx.changed() => if changed.is_err() {
                        // The sync loop has ended, so the agent is stopping.
                        std::future::pending::<()>().await;
                    },
                    () = tokio::time::sleep(POWER_CHECK_PERIOD) => {}
                }
            }
        }
    }

    /// Replaces the last measurement if the power state has changed: a chip on another power supply
    /// has another speed.
    fn follow_power(&mut self) {
        let power = PowerState::of(self.host.power());
        if power == self.conditions.power {
            return;
        }
        self.conditions.power = power;
        let stored = Self::stored(&self.state, &self.conditions);
        self.state_tx.send_modify(|state| state.last = stored);
        self.changes.mark();
    }

    /// Waits until the sync loop stops starting workers. Returns true if none runs.
    async fn is_machine_idle(&mut self) -> bool {
        match self.reports_rx.wait_for(|reports| reports.probing).await {
            Ok(reports) => reports.idle,
            Err(_) => false,
        }
    }

    /// Sets the state. Without a new measurement the last one is kept.
    fn set(&self, probing: bool, step: ProbeStep, measured: Option<ProbeResult>) {
        self.probing_tx.send_replace(probing);
        self.state_tx.send_modify(|state| {
            state.step = step;
            state.last = measured.or(state.last.take());
        });
        self.changes.mark();
    }

    /// Returns `None` if the power state changed meanwhile.
    async fn measure(&self) -> Result<Option<ProbeResult>, ProbeError> {
        let started = self.clock.instant();
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
        let limit = TIMEOUT + self.sustained;
        let (output, errors, status) = tokio::time::timeout(limit, all)
            .await
            .map_err(|_| ProbeError::Timeout(limit))?;
        let status = status.map_err(ProbeError::Start)?;
        if !status.success() {
            let message = String::from_utf8_lossy(&errors);
            let message = message
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("no error output")
                .to_owned();
            return Err(ProbeError::Ended { status, message });
        }
        let report: ProbeReport = serde_json::from_slice(&output).map_err(ProbeError::Output)?;
        let duration = self.clock.instant() - started;
        info!(
            qmv = %BytesPerSecond(report.measurements.qmv.median_bytes_per_second),
            read = %BytesPerSecond(report.measurements.read.median_bytes_per_second),
            seconds = duration.as_secs_f64(),
            "measured the node's memory bandwidth"
        );
        if PowerState::of(self.host.power()) != self.conditions.power {
            info!("power supply changed during the measurement; repeating the measurement");
            return Ok(None);
        }
        let measured = ProbeResult {
            report: Box::new(report),
            duration,
        };
        if let Some(why) = measured.disturbance() {
            warn!(
                why,
                "other programs used the machine during the measurement; repeating it later"
            );
        }
        Ok(Some(measured))
    }

    fn store(&self, report: &ProbeReport, duration: Duration, request: Option<&str>) {
        let newest = StoredProbe {
            request: request.map(str::to_owned),
            conditions: self.conditions.to_string(),
            duration_seconds: duration.as_secs_f64(),
            report: report.clone(),
        };
        let older = read_stored(&self.state);
        let others = older
            .into_iter()
            .filter(|stored| stored.conditions != newest.conditions);
        let stored: Vec<_> = std::iter::once(newest.clone())
            .chain(others)
            .take(MAX_STORED)
            .collect();
        if let Err(err) = self.state.write(FILE, &StoredProbes::All(stored)) {
            warn!(error = %Chain(&err), "failed to store the measurement");
        }
    }
}

fn read_stored(state: &StateDir) -> Vec<StoredProbe> {
    let stored: Option<StoredProbes> = state.read(FILE).ok().flatten();
    stored.map(StoredProbes::newest_first).unwrap_or_default()
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let mut stream = stream.take(MAX_OUTPUT_BYTES);
        // After a read error, the bytes read so far are used.
        drop(stream.read_to_end(&mut bytes).await);
    }
    bytes
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{Measurements, Plausibility};
    use rooflet_api::wire::{EngineInfo, ProbedMachine};
    use rooflet_base::units::Bytes;
    use rooflet_host::FakeHost;
    use rooflet_testing::TempDir;

    pub(in crate::node) fn report() -> ProbeReport {
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

    fn conditions(installation: &str, power: Power) -> Conditions {
        Conditions {
            installation: installation.to_owned(),
            power: PowerState::of(power),
        }
    }

    fn power(source: PowerSource, low_power_mode: bool) -> Power {
        Power {
            source,
            low_power_mode: Some(low_power_mode),
            ..Power::default()
        }
    }

    /// Each power state has its own measurement.
    #[tokio::test(start_paused = true)]
    async fn measurement_belongs_to_one_power_state() {
        let directory = TempDir::new();
        let state = Arc::new(StateDir::open(directory.path()).unwrap());
        let fake = FakeHost::new("book-1", Bytes::gib(16));
        fake.set_power(power(PowerSource::Ac, false));
        let host = Host::Fake(fake.clone());
        let (_reports_tx, reports_rx) = watch::channel(Arc::new(Reports::default()));
        let (probing_tx, _) = watch::channel(false);
        let (state_tx, mut state_rx) = watch::channel(ProbeState::default());
        let prober = Prober {
            state: state.clone(),
            program: "/bin/false".into(),
            arguments: Vec::new(),
            sustained: Duration::ZERO,
            conditions: conditions("here", host.power()),
            nodes: None,
            node: "book-1".to_owned(),
            host,
            clock: Clock::System,
            changes: Changes::new(),
            reports_rx,
            probing_tx,
            state_tx,
        };
        let on_power = ProbeReport {
            measured_at: "2026-01-02T00:00:00Z".to_owned(),
            ..report()
        };
        prober.store(&on_power, Duration::ZERO, None);
        let unplugged = power(PowerSource::Battery, false);
        assert_eq!(Prober::stored(&state, &conditions("here", unplugged)), None);
        let changes_of_power = async {
            fake.set_power(unplugged);
            tokio::time::sleep(POWER_CHECK_PERIOD * 2).await;
            assert_eq!(state_rx.see_latest().last, None);
            fake.set_power(power(PowerSource::Ac, false));
            let known = state_rx.wait_for(|state| state.last.is_some()).await.unwrap();
            assert_eq!(
                known.last.as_ref().unwrap().report.measured_at,
                on_power.measured_at
            );
        };
        tokio::select! {
            () = prober.run(CancellationToken::new()) => panic!("the prober runs until it is stopped"),
            () = changes_of_power => {}
        }
    }

    #[test]
    fn machine_that_saves_its_battery_is_not_probed() {
        let may = |source, saves| PowerState::of(power(source, saves)).may_probe();
        assert!(!may(PowerSource::Battery, true));
        assert!(may(PowerSource::Battery, false) && may(PowerSource::Ac, true));
        assert!(PowerState::of(Power::default()).may_probe());
    }

    /// An expired measurement is kept across restarts and failed probes.
    #[tokio::test]
    async fn expired_measurement_is_kept_until_a_new_one_exists() {
        let directory = TempDir::new();
        let path = directory.path();
        let state = Arc::new(StateDir::open(path).unwrap());
        // The file of an older agent.
        let kept = StoredProbe {
            conditions: "here".to_owned(),
            duration_seconds: 6.0,
            report: report(),
            request: None,
        };
        state.write(FILE, &kept).unwrap();
        assert_eq!(
            Prober::stored(&state, &conditions("elsewhere", Power::default())),
            None
        );
        let here = conditions("here", Power::default());
        let last = Prober::stored(&state, &here);
        let remaining_validity = |now: &str| last.as_ref().unwrap().remaining_validity(now.parse().unwrap());
        assert_eq!(
            remaining_validity("2026-01-07T23:00:00Z"),
            Duration::from_secs(3600)
        );
        assert_eq!(remaining_validity("2026-02-01T00:00:00Z"), Duration::ZERO);

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
            conditions: here,
            nodes: None,
            node: "mini-1".to_owned(),
            host: Host::Fake(FakeHost::new("mini-1", Bytes::gib(16))),
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

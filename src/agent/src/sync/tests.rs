//! Tests of the real sync loop with real processes (shell scripts instead of workers), a simulated
//! host, and a manual clock.

use std::fs;

use camino::Utf8Path;

use super::*;
use crate::manifests::Manifest;
use crate::models::pulls::Pulls;
use crate::node::pressure::Pressure;
use crate::node::probe::ProbeState;
use crate::replica::ReplicaSpec;
use crate::replica::Terms;
use crate::state::StateDir;
use crate::sync::plan::BAD_MODEL_RETRY;
use crate::sync::{ObservedReplica, WorkerState};
use crate::workers::WorkerCommand;
use rooflet_api::v1alpha1::{Chip, ObjectivesSpec, ReplicaPhase};
use rooflet_artifact::ModelDirectory;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::ManualClock;
use rooflet_base::latest::Latest;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_host::{FakeHost, MemoryLevel};
use rooflet_process::ProcessId;
use rooflet_proxy::Proxy;
use rooflet_testing::TempDir;

const LONG: Duration = Duration::from_secs(20);

const SLEEPS: &str = "exec sleep 600";

/// Exits like a worker that cannot serve its model.
const BAD_MODEL: &str = r#"while [ $# -gt 0 ]; do
    if [ "$1" = --termination-message-path ]; then
        echo '{"reason": "CorruptWeights", "message": "model.safetensors is cut short"}' > "$2"
    fi
    shift
done
exit 78"#;

/// Opens the state directory. Retries, because a child process of a concurrent test can briefly
/// inherit the lock.
fn open(path: &Utf8Path) -> StateDir {
    let mut tries = 0;
    loop {
        match StateDir::open(path) {
            Err(err) if err.is_locked() && tries < 1000 => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
        tries += 1;
    }
}

struct Fixture {
    directory: TempDir,
    tasks: Tasks,
    time: ManualClock,
    host: FakeHost,
    manifests_tx: watch::Sender<Arc<ManifestSet>>,
    reports_rx: watch::Receiver<Arc<Reports>>,
    sync: SyncLoop,
}

fn key(name: &str) -> ReplicaKey {
    ReplicaKey::new("default", name)
}

impl Fixture {
    fn new(script: &str) -> Self {
        Self::on(TempDir::new(), script)
    }

    fn on(directory: TempDir, script: &str) -> Self {
        let state_path = directory.path().join("state");
        let (tasks, changes) = (Tasks::new(), Changes::new());
        let time = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let clock = Clock::Manual(time.clone());
        let host = FakeHost::new("mini-1", Bytes::gib(16));
        let command = WorkerCommand {
            program: "/bin/sh".into(),
            engine: "test".to_owned(),
            arguments: ["-c", script, "worker"].map(str::to_owned).into(),
            grace: Duration::from_secs(1),
            answer_grace: Duration::from_secs(1),
        };
        let state = Arc::new(open(&state_path));
        let workers = Workers::adopt(
            state.clone(),
            command,
            tasks.clone(),
            clock.clone(),
            changes.clone(),
            Proxy::new(),
            Host::Fake(host.clone()),
        );
        let memory_watch = MemoryWatch::resume(workers.records().any(|record| record.stopped_for_memory));
        let (manifests_tx, manifests_rx) = watch::channel(Arc::default());
        let (reports_tx, reports_rx) = watch::channel(Arc::default());
        let (_, probing) = watch::channel(false);
        let models = Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/models");
        let (_, probe) = watch::channel(ProbeState::default());
        let sync = SyncLoop {
            crash_watch: CrashWatch::load(
                state.clone(),
                Host::Fake(host.clone()),
                "test",
                "0",
                Timestamp::UNIX_EPOCH,
            ),
            wired: WiredWatch::load(state.clone(), None),
            node: "mini-1".to_owned(),
            host: Host::Fake(host.clone()),
            chip: Chip::default(),
            computes_here: true,
            clock,
            sources: Sources {
                api: None,
                nodes: None,
                fleet: None,
                restoration: None,
                manifests: Some(manifests_rx),
                probing,
                probe,
            },
            workers,
            models: Models::new(ModelDirectory::new(Some(models)), ComputeType::Float32),
            used_models: None,
            prefetches: BTreeMap::new(),
            calibrator: Calibrator::new(state, String::new(), Timestamp::UNIX_EPOCH),
            memory_watch,
            recorder: None,
            metrics: AgentMetrics::register(&Registry::new()).unwrap(),
            changes,
            reports_tx,
            last_statuses: BTreeMap::new(),
            listed: None,
            absence: None,
        };
        Self {
            directory,
            tasks,
            time,
            host,
            manifests_tx,
            reports_rx,
            sync,
        }
    }

    /// Kills the agent and starts it again.
    fn restart(self, script: &str) -> Self {
        let Self { directory, sync, .. } = self;
        drop(sync);
        Self::on(directory, script)
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.directory.path().join(name)
    }

    fn want(&self, names: &[&str]) {
        let all: Vec<_> = names.iter().map(|name| (*name, Terms::default())).collect();
        self.want_on(&all);
    }

    fn want_on(&self, all: &[(&str, Terms)]) {
        let replicas = all.iter().map(|(name, terms)| {
            let spec = ReplicaSpec {
                source: "local://guide".to_owned(),
                serving_name: (*name).to_owned(),
                context_tokens: Some(64),
                max_concurrency: 1,
                kv_cache: None,
                prompt_lookup_tokens: None,
                keep_alive: None,
                allow_request_chat_template: false,
            };
            let manifest = Manifest {
                key: key(name),
                spec,
                terms: terms.clone(),
            };
            (key(name), ("a.yaml".to_owned(), manifest))
        });
        let set = ManifestSet {
            replicas: replicas.collect(),
            problems: Vec::new(),
        };
        self.manifests_tx.send_replace(Arc::new(set));
    }

    /// Returns the reported replicas as `name=Phase/reason of Ready/restarts`.
    fn shown(&self) -> String {
        let reports = self.reports_rx.latest();
        let all: Vec<_> = reports
            .replicas
            .iter()
            .map(|(key, report)| {
                let ready = report
                    .status
                    .conditions
                    .iter()
                    .find(|one| one.type_ == "Ready")
                    .unwrap();
                format!(
                    "{}={:?}/{}/{}",
                    key.name, report.status.phase, ready.reason, report.status.restarts
                )
            })
            .collect();
        all.join(" ")
    }

    async fn until(&mut self, expect: &str) {
        let mut changed_rx = self.sync.changes.subscribe();
        let waiting = async {
            loop {
                self.sync.pass(false);
                if self.shown() == expect {
                    return;
                }
                tokio::select! {
                    _ = changed_rx.changed() => {}
                    () = tokio::time::sleep(Duration::from_millis(50)) => {}
                }
            }
        };
        let outcome = tokio::time::timeout(LONG, waiting).await;
        assert!(outcome.is_ok(), "wanted `{expect}`, have `{}`", self.shown());
    }

    fn process(&self, name: &str) -> Option<ProcessId> {
        self.sync
            .workers
            .records()
            .find(|record| record.key == key(name))?
            .worker
            .clone()?
            .process
    }
}

#[tokio::test]
async fn worker_is_started_restarted_after_backoff_and_stopped() {
    let mut fixture = Fixture::new(SLEEPS);
    fixture.want(&["a"]);
    fixture.until("a=Loading/Starting/0").await;
    let first = fixture.process("a").unwrap();
    first.kill_group().unwrap();
    fixture.until("a=Pending/CrashLoopBackOff/0").await;
    fixture.time.advance(Duration::from_millis(999));
    fixture.until("a=Pending/CrashLoopBackOff/0").await;
    fixture.time.advance(Duration::from_millis(1));
    fixture.until("a=Loading/Starting/1").await;
    let second = fixture.process("a").unwrap();
    assert!(second != first && second.is_alive());
    second.kill_group().unwrap();
    fixture.until("a=Pending/CrashLoopBackOff/1").await;
    fixture.time.advance(Duration::from_secs(1));
    fixture.until("a=Pending/CrashLoopBackOff/1").await;
    fixture.time.advance(Duration::from_secs(1));
    fixture.until("a=Loading/Starting/2").await;
    let third = fixture.process("a").unwrap();
    fixture.want(&[]);
    fixture.until("").await;
    let (mut changed_rx, deadline) = (fixture.sync.changes.subscribe(), tokio::time::sleep(LONG));
    tokio::pin!(deadline);
    while !fixture.sync.workers.is_idle() {
        tokio::select! {
            _ = changed_rx.changed() => {}
            () = &mut deadline => panic!("the worker is still running"),
        }
        fixture.sync.pass(false);
    }
    assert!(!third.is_alive());
    fixture.sync.pass(false);
    let left = fs::read_dir(fixture.directory.path().join("state/replicas"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "the replica's directory is removed");
}

#[tokio::test]
async fn restarted_agent_adopts_its_workers() {
    let mut fixture = Fixture::new(SLEEPS);
    fixture.want(&["a", "b"]);
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/0").await;
    let (a, b) = (fixture.process("a").unwrap(), fixture.process("b").unwrap());
    b.kill_group().unwrap();
    tokio::time::timeout(LONG, async {
        while b.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let mut fixture = fixture.restart(SLEEPS);
    fixture.want(&["a", "b"]);
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/1").await;
    assert_eq!(fixture.process("a"), Some(a.clone()));
    let new_b = fixture.process("b").unwrap();
    assert_ne!(new_b, b);
    for process in [a, new_b] {
        process.kill_group().unwrap();
    }
}

#[tokio::test]
async fn bad_model_is_not_restarted() {
    let mut fixture = Fixture::new(BAD_MODEL);
    fixture.want(&["a"]);
    fixture.until("a=Failed/CorruptWeights/0").await;
    let message = |fixture: &Fixture| {
        let reports = fixture.reports_rx.latest();
        let report = &reports.replicas[&key("a")];
        let condition = report
            .status
            .conditions
            .iter()
            .find(|one| one.type_ == "ArtifactsReady")
            .unwrap();
        condition.message.clone()
    };
    assert_eq!(message(&fixture), "model.safetensors is cut short");
    fixture.time.advance(BAD_MODEL_RETRY - Duration::from_secs(1));
    fixture.until("a=Failed/CorruptWeights/0").await;
    fixture.time.advance(Duration::from_secs(1));
    fixture.until("a=Failed/CorruptWeights/1").await;
}

#[tokio::test]
async fn full_node_rejects_replica_until_memory_is_free() {
    let mut fixture = Fixture::new(SLEEPS);
    // The margin of admission, and memory for one replica.
    fixture
        .host
        .set_available(pressure::margin(Bytes::gib(16)) + Bytes::mib(700));
    fixture.want(&["a", "b"]);
    fixture
        .until("a=Loading/Starting/0 b=Pending/MemoryInUse/0")
        .await;
    assert!(fixture.reports_rx.latest().reserved > Bytes::mib(400));
    fixture.host.set_available(Bytes::gib(8));
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/0").await;
    for name in ["a", "b"] {
        fixture.process(name).unwrap().kill_group().unwrap();
    }
}

#[tokio::test]
async fn memory_pressure_stops_replicas() {
    let mut fixture = Fixture::new(SLEEPS);
    let prior = Terms {
        priority: 1,
        ..Terms::default()
    };
    let all = [("a", prior), ("b", Terms::default())];
    fixture.want_on(&all);
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/0").await;
    fixture.host.set_available(Bytes::mib(500));
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/0").await;
    fixture.time.advance(Duration::from_secs(20));
    fixture.sync.pass(false);
    assert_eq!(fixture.reports_rx.latest().pressure, Pressure::Low);
    // Stopping one replica frees enough memory, so the second keeps running.
    fixture.host.set_available(Bytes::gib(8));
    let gone = "a=Loading/Starting/0 b=Pending/NodeMemoryPressure/0";
    fixture.until(gone).await;
    // A restarted agent still honours the stop.
    let mut fixture = fixture.restart(SLEEPS);
    fixture.host.set_available(Bytes::gib(8));
    fixture.want_on(&all);
    fixture.until(gone).await;
    fixture
        .time
        .advance(pressure::RECOVERY_TIME - Duration::from_secs(1));
    fixture.until(gone).await;
    fixture.time.advance(Duration::from_secs(1));
    fixture.until("a=Loading/Starting/0 b=Loading/Starting/0").await;
    for name in ["a", "b"] {
        fixture.process(name).unwrap().kill_group().unwrap();
    }
}

#[tokio::test]
async fn restored_replica_keeps_its_worker_under_the_new_uid() {
    let mut fixture = Fixture::new(SLEEPS);
    fixture.want(&["a"]);
    fixture.until("a=Loading/Starting/0").await;
    let record = |fixture: &Fixture| fixture.sync.workers.records().next().unwrap().clone();
    let before = record(&fixture);
    let mut restored = before.desired();
    restored.uid = "u2".to_owned();
    restored.generation = 7;
    fixture
        .sync
        .workers
        .continue_as(&key("a"), "of another replica", &restored);
    assert_eq!(record(&fixture), before);
    fixture
        .sync
        .workers
        .continue_as(&key("a"), MANIFEST_UID, &restored);
    let fixture = fixture.restart(SLEEPS);
    let after = record(&fixture);
    assert_eq!((after.uid.as_str(), after.generation), ("u2", 7));
    assert_eq!(after.worker, before.worker);
    fixture.process("a").unwrap().kill_group().unwrap();
}

/// While the API server is unreachable, a starting agent uses all recorded specifications.
#[tokio::test]
async fn recorded_terms_survive_agent_restart() {
    let mut fixture = Fixture::new(SLEEPS);
    let with_objective = |rate| Terms {
        objectives: ObjectivesSpec {
            decode_tokens_per_second: Some(rate),
            time_to_first_token: None,
        },
        overridden: true,
        ..Terms::default()
    };
    let remembered = |fixture: &Fixture| {
        let record = fixture.sync.workers.records().next().unwrap();
        record.desired().terms
    };
    fixture.want_on(&[("a", with_objective(1.0))]);
    fixture.until("a=Loading/Starting/0").await;
    assert_eq!(remembered(&fixture), with_objective(1.0));
    // Changed terms restart no worker.
    let process = fixture.process("a").unwrap();
    fixture.want_on(&[("a", with_objective(2.0))]);
    fixture.sync.pass(false);
    assert_eq!(fixture.process("a"), Some(process.clone()));
    let fixture = fixture.restart(SLEEPS);
    assert_eq!(remembered(&fixture), with_objective(2.0));
    process.kill_group().unwrap();
}

/// After an agent restart, the state of a needed model is unknown while the hub is unreachable.
#[tokio::test]
async fn needed_download_is_kept_while_the_hub_is_unreachable() {
    let mut fixture = Fixture::new(SLEEPS);
    let state = Arc::new(open(&fixture.path("other-state")));
    let partial = state.downloads().join("o/n/.c0.partial");
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join("model.safetensors.partial"), [1; 50]).unwrap();
    let pulls = Pulls::new(
        HubAccess::unreachable(),
        &state,
        &fixture.tasks,
        Clock::System,
        Changes::new(),
        AgentMetrics::register(&Registry::new()).unwrap(),
    );
    fixture.sync.models = Models::new(ModelDirectory::new(None), ComputeType::Float32).with_pulls(pulls);
    let unused = |fixture: &mut Fixture, name: &str, source: &str| {
        fixture.want(&[name]);
        fixture.manifests_tx.send_modify(|set| {
            let set = Arc::make_mut(set);
            set.replicas.get_mut(&key(name)).unwrap().1.spec.source = source.to_owned();
        });
        fixture.sync.pass(false);
        fixture.sync.models.unused(fixture.sync.used_models.as_ref())
    };
    assert_eq!(unused(&mut fixture, "a", "hf://o/n@c0"), Bytes::ZERO);
    assert_eq!(unused(&mut fixture, "b", "hf://o/other@c0"), Bytes(50));
    // The model of a replica's successor.
    let observed = fixture.sync.observe();
    let (mut desired, _) = fixture.sync.desired(None, false, &observed);
    desired.replicas.get_mut(&key("b")).unwrap().replica.next = "hf://o/n@c0".parse().ok();
    fixture.sync.download(&desired, &SyncPlan::default(), &observed);
    let used = fixture.sync.used_models.as_ref();
    assert_eq!(fixture.sync.models.unused(used), Bytes::ZERO);
}

/// Stops an agent with one worker. Returns the worker's process and the last reports.
async fn stopped_agent(keep_workers: bool) -> (ProcessId, Arc<Reports>) {
    let mut fixture = Fixture::new(SLEEPS);
    fixture.want(&["a"]);
    fixture.until("a=Loading/Starting/0").await;
    let process = fixture.process("a").unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    tokio::time::timeout(LONG, fixture.sync.run(stop, keep_workers))
        .await
        .unwrap();
    fixture.tasks.cancel();
    (process, fixture.reports_rx.latest())
}

#[tokio::test]
async fn stopping_agent_stops_its_workers() {
    let (process, reports) = stopped_agent(false).await;
    assert!(!process.is_alive());
    assert_eq!(reports.replicas[&key("a")].status.phase, ReplicaPhase::Pending);
}

#[tokio::test]
async fn keep_workers_leaves_workers_running() {
    let (process, _) = stopped_agent(true).await;
    assert!(process.is_alive());
    process.kill_group().unwrap();
}

/// Returns the memory that counts as lost and the last message after a worker has exited.
async fn lost_after_exit(script: &str) -> (Bytes, String) {
    let mut fixture = Fixture::new(script);
    fixture.want(&["a"]);
    fixture.sync.pass(false);
    let exited = async {
        while fixture.sync.workers.observe()[&key("a")].worker != WorkerState::None {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, exited).await.expect("it exits");
    let progress = fixture.sync.workers.progress(&key("a")).unwrap();
    (
        fixture.sync.workers.take_lost_memory(),
        progress.last_termination.unwrap().message,
    )
}

#[tokio::test]
async fn worker_killed_before_it_starts_has_lost_no_memory() {
    let (lost, message) = lost_after_exit("kill -9 $$").await;
    assert_eq!(lost, Bytes::ZERO);
    assert!(message.contains("replace it with mv"), "{message}");
    let (lost, message) = lost_after_exit("echo loading; kill -9 $$").await;
    assert!(lost > Bytes::ZERO && message.contains("loading"), "{message}");
}

impl Fixture {
    /// Makes a pass, and waits until no worker is stopping.
    async fn settled_pass(&mut self) {
        self.sync.pass(false);
        let settles = async {
            let is_stopping = |observed: &ObservedReplica| observed.worker == WorkerState::Stopping;
            while self.sync.workers.observe().values().any(is_stopping) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, settles).await.expect("workers stop");
    }

    fn running(&self) -> usize {
        self.sync
            .workers
            .records()
            .filter(|record| record.worker.is_some())
            .count()
    }
}

/// A Mac with 16 GiB, of which 10 GiB are wired for the GPU, has the level `warn` while it
/// computes. The user starts programs three times. Each time, the system swaps for two minutes
/// unless a replica stops.
#[tokio::test]
async fn an_hour_of_memory_warnings_stops_at_most_two_replicas() {
    let mut fixture = Fixture::new(SLEEPS);
    fixture.want(&["a", "b", "c"]);
    fixture
        .until("a=Loading/Starting/0 b=Loading/Starting/0 c=Loading/Starting/0")
        .await;
    fixture.host.set_available(Bytes::mib(2048));
    fixture.host.set_memory_level(MemoryLevel::Low);
    let (mut swapouts, mut stops, mut running) = (0, 0, fixture.running());
    for second in (0_u64..3600).step_by(10) {
        let is_busy = [600, 1800, 3000]
            .iter()
            .any(|start| (*start..start + 120).contains(&second));
        swapouts += u64::from(is_busy && running == 3) * 10_000;
        fixture.host.set_swapouts(swapouts);
        fixture.time.advance(Duration::from_secs(10));
        fixture.settled_pass().await;
        let now_running = fixture.running();
        assert!(
            now_running <= running,
            "a replica started at second {second} of the warning"
        );
        stops += running - now_running;
        running = now_running;
    }
    assert!((1..=2).contains(&stops), "{stops} replicas were stopped");
    // With the end of the warning, they start again.
    fixture.host.set_available(Bytes::gib(8));
    fixture.host.set_memory_level(MemoryLevel::Normal);
    for _ in 0..(45 * 60 / 10) {
        fixture.time.advance(Duration::from_secs(10));
        fixture.settled_pass().await;
    }
    assert_eq!(fixture.running(), 3);
}

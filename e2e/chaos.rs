//! Worker, agent, server and gateway are killed with SIGKILL at random times while clients write. The fleet
//! recovers, no acknowledged write is lost, watchers observe all writes, and no process is left.
//!
//! A seed, which is printed, determines the processes and the times. A test run uses two seeds.
//! `cargo xtask chaos --seeds N` uses more. `ROOFLET_CHAOS_SEEDS=7` repeats a seed, except for the
//! timing of the machine.
#![expect(clippy::disallowed_methods, reason = "times are measured by the real clock")]
#![expect(clippy::print_stderr, reason = "messages of tests are printed there")]

mod load;
mod test_fleet;
mod under_load;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config, ResourceExt as _};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::harness::{Fleet, Kubectl, eventually, kill_9, processes_with};

const SEEDS: &str = "ROOFLET_CHAOS_SEEDS";
const WRITERS: usize = 4;
const KILLS: usize = 8;
/// Time after which the outcome of a write is unknown.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn fleet_recovers_and_keeps_acknowledged_writes() {
    for seed in seeds() {
        eprintln!("seed {seed}; to repeat: {SEEDS}={seed} cargo test --test e2e chaos");
        run_seed(seed);
    }
}

/// Parses `7`, `1,5` or `1..20` (exclusive end).
fn seeds() -> Vec<u64> {
    let text = std::env::var(SEEDS).unwrap_or_else(|_| "1,2".to_owned());
    let number = |text: &str| -> u64 {
        let wrong = |err| panic!("{SEEDS}={text}: {err}; write 7, or 1,5, or 1..20");
        text.trim().parse().unwrap_or_else(wrong)
    };
    match text.split_once("..") {
        Some((from, to)) => (number(from)..number(to)).collect(),
        None => text.split(',').map(number).collect(),
    }
}

fn run_seed(seed: u64) {
    let mut fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    let deployment = "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: guide}\n\
                      spec: {replicas: 2, model: {source: 'local://guide'}, serving: {contextTokens: 512}}\n";
    kubectl.apply(deployment).ok();
    fleet.wait_for_ready(&kubectl, "guide");

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let is_over = AtomicBool::new(false);
    let kubeconfig = fleet.kubeconfig();
    let histories = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kill_at_random(&fleet, seed)));
            is_over.store(true, Ordering::SeqCst);
            outcome
        });
        let histories = runtime.block_on(async {
            let api: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await, "default");
            let writers = (0..WRITERS).map(|writer| write(&api, writer, &is_over));
            let (histories, seen) = futures::join!(join_all(writers), watch(&api, &is_over));
            check_watcher(&api, seen).await;
            histories
        });
        killer.join().expect("the panic is caught").expect("no panic");
        histories
    });

    wait_for_recovery(&fleet, &kubectl);
    let stored: BTreeMap<String, ConfigMap> = runtime
        .block_on(async {
            let api: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await, "default");
            api.list(&ListParams::default()).await
        })
        .expect("the server has recovered")
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    let acknowledged: u64 = histories.iter().map(|history| history.acknowledged).sum();
    eprintln!("seed {seed}: {acknowledged} acknowledged writes");
    assert!(acknowledged > 50, "too few acknowledged writes");
    for (writer, history) in histories.iter().enumerate() {
        history.check(writer, &stored);
    }

    kubectl.run("delete mdep guide --timeout=120s").ok();
    eventually("no replica and no worker", || {
        let left = (
            kubectl.run("get mrep -o name").stdout,
            fleet.processes("worker").len(),
        );
        if left == (String::new(), 0) {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    assert!(fleet.up.interrupt().success(), "{}", fleet.up.log());
    let directory = fleet.scratch.path().display().to_string();
    assert_eq!(
        processes_with(&[&directory]),
        [0u32; 0],
        "no process is left behind"
    );
}

fn kill_at_random(fleet: &Fleet, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let begin = Instant::now();
    for _ in 0..KILLS {
        let wait = Duration::from_millis(random.random_range(20..2500));
        let verb = *["worker", "agent", "server", "gateway"]
            .choose(&mut random)
            .expect("four");
        let which: usize = random.random_range(0..1000);
        std::thread::sleep(wait);
        let pids = eventually(&format!("a running {verb}"), || match fleet.processes(verb) {
            pids if pids.is_empty() => Err("none".to_owned()),
            pids => Ok(pids),
        });
        let pid = pids[which % pids.len()];
        eprintln!(
            "  {:>6.2} s: SIGKILL for {verb} {pid}",
            begin.elapsed().as_secs_f64()
        );
        kill_9(pid);
    }
}

/// Waits until the fleet is in the desired state.
fn wait_for_recovery(fleet: &Fleet, kubectl: &Kubectl) {
    eventually("the server", || {
        let found = kubectl.run("get ns --request-timeout=5s");
        if found.success { Ok(()) } else { Err(found.stderr) }
    });
    eventually("two serving replicas, and no third", || {
        let found = kubectl.json("mdep guide")?;
        let ready = found["status"]["readyReplicas"].clone();
        let workers = fleet.processes("worker").len();
        let others = ["agent", "server", "gateway"].map(|name| fleet.processes(name).len());
        if (ready == 2) && (workers, others) == (2, [1, 1, 1]) {
            Ok(())
        } else {
            let replicas = kubectl.run("get mrep -o wide").stdout;
            Err(format!(
                "ready {ready}, {workers} workers, {others:?} agents, servers, gateways\n{replicas}"
            ))
        }
    });
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=120s")
        .ok();
    eventually("an answer", || {
        match fleet.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
}

async fn client(kubeconfig: &std::path::Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a valid kubeconfig");
    Client::try_from(config).expect("a client")
}

/// Acknowledged writes of a writer.
#[derive(Default)]
struct History {
    acknowledged: u64,
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Objects whose deletion was requested and not acknowledged.
    unconfirmed: BTreeSet<String>,
    /// Last acknowledged value of the counter.
    counted: u64,
    /// Last requested value of the counter.
    requested: u64,
}

/// Creates, increments and deletes objects until the end. Failed writes are repeated.
async fn write(api: &Api<ConfigMap>, writer: usize, is_over: &AtomicBool) -> History {
    let mut history = History::default();
    let counter = format!("counter-{writer}");
    for n in 0_u64.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("written-{writer}-{n}");
        let object = |name: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": name}, "data": {"n": n.to_string()}}))
                .expect("a valid object")
        };
        match tokio::time::timeout(
            RESPONSE_TIMEOUT,
            api.create(&PostParams::default(), &object(&name)),
        )
        .await
        {
            Ok(Ok(_)) => {
                history.acknowledged += 1;
                history.created.insert(name.clone());
            }
            // Without a connection, the pause prevents a busy loop.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        history.requested = n;
        let count = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"n": n.to_string()}});
        let counted = async {
            match api
                .patch(&counter, &PatchParams::default(), &Patch::Merge(&count))
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    api.create(&PostParams::default(), &object(&counter)).await
                }
                other => other,
            }
        };
        if let Ok(Ok(_)) = tokio::time::timeout(RESPONSE_TIMEOUT, counted).await {
            history.acknowledged += 1;
            history.counted = n;
        }
        if n % 3 == 0 && history.created.contains(&name) {
            match tokio::time::timeout(RESPONSE_TIMEOUT, api.delete(&name, &DeleteParams::default())).await {
                Ok(Ok(_)) => {
                    history.acknowledged += 1;
                    history.deleted.insert(name);
                }
                Ok(Err(_)) | Err(_) => {
                    history.unconfirmed.insert(name);
                }
            }
        }
    }
    history
}

impl History {
    fn check(&self, writer: usize, stored: &BTreeMap<String, ConfigMap>) {
        let is_stored = |name: &&String| stored.contains_key(*name);
        let kept = self
            .created
            .difference(&self.deleted)
            .filter(|name| !self.unconfirmed.contains(*name));
        let lost: Vec<_> = kept.filter(|name| !is_stored(name)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        let back: Vec<_> = self.deleted.iter().filter(is_stored).collect();
        assert!(back.is_empty(), "deleted and stored: {back:?}");
        let counter = stored.get(&format!("counter-{writer}"));
        let value: u64 = counter
            .and_then(|counter| counter.data.as_ref()?.get("n")?.parse().ok())
            .expect("the counter was created");
        assert!(
            (self.counted..=self.requested).contains(&value),
            "acknowledged {}, requested {}, stored {value}",
            self.counted,
            self.requested
        );
    }
}

/// Version of each ConfigMap by name.
type Versions = BTreeMap<String, String>;

/// Watches all changes, as a controller does, until the end.
async fn watch<'a>(
    api: &'a Api<ConfigMap>,
    is_over: &AtomicBool,
) -> (
    Versions,
    futures::stream::BoxStream<'a, watcher::Result<watcher::Event<ConfigMap>>>,
) {
    let mut events = watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut seen = Versions::new();
    while !is_over.load(Ordering::SeqCst) {
        if let Ok(event) = tokio::time::timeout(Duration::from_millis(100), events.next()).await {
            apply_event(&mut seen, event.expect("a watcher never ends"));
        }
    }
    (seen, events)
}

fn apply_event(seen: &mut Versions, event: watcher::Result<watcher::Event<ConfigMap>>) {
    match event {
        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
            seen.insert(object.name_any(), object.resource_version().unwrap_or_default());
        }
        Ok(watcher::Event::Delete(object)) => {
            seen.remove(&object.name_any());
        }
        Ok(watcher::Event::Init) => seen.clear(),
        // The server is down; the watcher reconnects.
        Ok(watcher::Event::InitDone) | Err(_) => {}
    }
}

/// Waits until the watched objects equal the stored ones.
async fn check_watcher<S>(api: &Api<ConfigMap>, (mut seen, mut events): (Versions, S))
where
    S: futures::Stream<Item = watcher::Result<watcher::Event<ConfigMap>>> + Unpin,
{
    let begin = Instant::now();
    loop {
        let stored: Option<Versions> = api.list(&ListParams::default()).await.ok().map(|list| {
            let version =
                |object: ConfigMap| (object.name_any(), object.resource_version().unwrap_or_default());
            list.into_iter().map(version).collect()
        });
        if stored.as_ref() == Some(&seen) {
            return;
        }
        assert!(
            begin.elapsed() < crate::harness::TIMEOUT,
            "the watched objects differ from the stored ones\nwatched: {seen:?}\nstored: {stored:?}"
        );
        let quiet = tokio::time::sleep(Duration::from_millis(200));
        let follow = async {
            while let Ok(Some(event)) = events.try_next().await.map(|event| event.map(Ok)) {
                apply_event(&mut seen, event);
            }
        };
        tokio::select! { () = quiet => {}, () = follow => {} }
    }
}

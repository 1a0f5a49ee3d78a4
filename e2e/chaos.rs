//! Worker, agent and server killed with SIGKILL at random moments while clients write: everything heals, every
//! acknowledged write is there, every watcher has seen it, and nothing is left running.
//!
//! What is killed, and when, follows a seed, which is printed. `cargo xtask chaos --seeds N` tries more of them than
//! the two that every test run does; `ROOFLET_CHAOS_SEEDS=7` repeats one, as far as the machine's own timing lets it.
#![expect(
    clippy::disallowed_methods,
    reason = "what is tried in how much time is the real clock's"
)]
#![expect(clippy::print_stderr, reason = "what a test has to say of itself goes there")]

mod load;
mod stage;
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
/// A write whose answer takes longer has an unknown outcome.
const ANSWER: Duration = Duration::from_secs(5);

#[test]
fn everything_heals_and_no_acknowledged_write_is_lost() {
    for seed in seeds() {
        eprintln!("seed {seed}; again: {SEEDS}={seed} cargo test --test e2e chaos");
        one_seed(seed);
    }
}

/// `7`, `1,5` or `1..20` (without the end).
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

fn one_seed(seed: u64) {
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
            let (histories, seen) = futures::join!(join_all(writers), look_on(&api, &is_over));
            check_watcher(&api, seen).await;
            histories
        });
        killer
            .join()
            .expect("caught")
            .expect("the killer found what to kill");
        histories
    });

    heals(&fleet, &kubectl);
    let stored: BTreeMap<String, ConfigMap> = runtime
        .block_on(async {
            let api: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await, "default");
            api.list(&ListParams::default()).await
        })
        .expect("it heals")
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    let acknowledged: u64 = histories.iter().map(|history| history.acknowledged).sum();
    eprintln!("seed {seed}: {acknowledged} acknowledged writes");
    assert!(acknowledged > 50, "the writers hardly wrote");
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
        let verb = *["worker", "agent", "server"].choose(&mut random).expect("three");
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

/// All is as it was asked for.
fn heals(fleet: &Fleet, kubectl: &Kubectl) {
    eventually("the server", || {
        let found = kubectl.run("get ns --request-timeout=5s");
        if found.success { Ok(()) } else { Err(found.stderr) }
    });
    eventually("two serving replicas, and no third", || {
        let found = kubectl.json("mdep guide")?;
        let ready = found["status"]["readyReplicas"].clone();
        let workers = fleet.processes("worker").len();
        let (agents, servers) = (fleet.processes("agent").len(), fleet.processes("server").len());
        if (ready == 2) && (workers, agents, servers) == (2, 1, 1) {
            Ok(())
        } else {
            let replicas = kubectl.run("get mrep -o wide").stdout;
            Err(format!(
                "ready {ready}, {workers} workers, {agents} agents, {servers} servers\n{replicas}"
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
        .expect("a sound kubeconfig");
    Client::try_from(config).expect("a client")
}

/// What one writer was told.
#[derive(Default)]
struct History {
    acknowledged: u64,
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Objects whose deletion was asked for and not answered.
    doubtful: BTreeSet<String>,
    /// The counter's last acknowledged value, and the last one that was asked for.
    counted: u64,
    asked: u64,
}

/// Creates, counts and deletes until it is over. A write that fails or is not answered is tried again, as clients do.
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
                .expect("sound")
        };
        match tokio::time::timeout(ANSWER, api.create(&PostParams::default(), &object(&name))).await {
            Ok(Ok(_)) => {
                history.acknowledged += 1;
                history.created.insert(name.clone());
            }
            // No connection: not worth a busy loop.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        history.asked = n;
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
        if let Ok(Ok(_)) = tokio::time::timeout(ANSWER, counted).await {
            history.acknowledged += 1;
            history.counted = n;
        }
        if n % 3 == 0 && history.created.contains(&name) {
            match tokio::time::timeout(ANSWER, api.delete(&name, &DeleteParams::default())).await {
                Ok(Ok(_)) => {
                    history.acknowledged += 1;
                    history.deleted.insert(name);
                }
                Ok(Err(_)) | Err(_) => {
                    history.doubtful.insert(name);
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
            .filter(|name| !self.doubtful.contains(*name));
        let lost: Vec<_> = kept.filter(|name| !is_stored(name)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        let back: Vec<_> = self.deleted.iter().filter(is_stored).collect();
        assert!(back.is_empty(), "deleted and back: {back:?}");
        let counter = stored.get(&format!("counter-{writer}"));
        let value: u64 = counter
            .and_then(|counter| counter.data.as_ref()?.get("n")?.parse().ok())
            .expect("the counter was created");
        assert!(
            (self.counted..=self.asked).contains(&value),
            "counted to {}, asked for {}, stored {value}",
            self.counted,
            self.asked
        );
    }
}

/// Names and versions of all ConfigMaps.
type Versions = BTreeMap<String, String>;

/// Follows all changes, as a controller does, until it is over.
async fn look_on<'a>(
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
            note(&mut seen, event.expect("a watcher never ends"));
        }
    }
    (seen, events)
}

fn note(seen: &mut Versions, event: watcher::Result<watcher::Event<ConfigMap>>) {
    match event {
        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
            seen.insert(object.name_any(), object.resource_version().unwrap_or_default());
        }
        Ok(watcher::Event::Delete(object)) => {
            seen.remove(&object.name_any());
        }
        Ok(watcher::Event::Init) => seen.clear(),
        // The server is away; the watcher comes again.
        Ok(watcher::Event::InitDone) | Err(_) => {}
    }
}

/// What the watcher has seen becomes what is stored.
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
            begin.elapsed() < crate::harness::PATIENCE,
            "the watcher has another picture\nseen: {seen:?}\nstored: {stored:?}"
        );
        let quiet = tokio::time::sleep(Duration::from_millis(200));
        let follow = async {
            while let Ok(Some(event)) = events.try_next().await.map(|event| event.map(Ok)) {
                note(&mut seen, event);
            }
        };
        tokio::select! { () = quiet => {}, () = follow => {} }
    }
}

//! Streams of answers while a fleet of real processes is changed, killed, paused, cut off and left
//! without disk, one thing after the other, until a time is over. After each everything heals.
//!
//! What is asked of the requests: a planned change fails none. Neither does what happens to the
//! control plane, for the data plane serves on without it. What happens to a node may break the
//! streams that are open on it, and what happens to the gateway those that go through it; nothing
//! else, and nothing that had not begun.
//!
//! `cargo xtask chaos --minutes 10` goes on for ten minutes; a test run does what [`Deed::BRIEFLY`]
//! names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::load::{Ending, Load, Request, question, said};
use super::stage::{NODES, Stage};
use crate::harness::{Http, Link, eventually, kill_9, not_run, pause, resume};

const MINUTES: &str = "ROOFLET_CHAOS_MINUTES";
const SEED: u64 = 1;

/// What is done to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    RollingUpdate,
    DrainNode,
    KillWorker,
    KillAgent,
    KillServer,
    KillGateway,
    PauseWorker,
    PauseAgent,
    PauseServer,
    CutFromServer,
    CutEverybody,
    Unplug,
    LoseNode,
    FillDisk,
}

/// Whose streams may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excused {
    Nobody,
    /// Those that are open on this node.
    Node(&'static str),
    /// All that go through the gateway, and those that come while it is away.
    Gateway,
}

impl Deed {
    const ALL: [Self; 14] = [
        Self::RollingUpdate,
        Self::DrainNode,
        Self::KillWorker,
        Self::KillAgent,
        Self::KillServer,
        Self::KillGateway,
        Self::PauseWorker,
        Self::PauseAgent,
        Self::PauseServer,
        Self::CutFromServer,
        Self::CutEverybody,
        Self::Unplug,
        Self::LoseNode,
        Self::FillDisk,
    ];
    const BRIEFLY: [Self; 3] = [Self::RollingUpdate, Self::KillAgent, Self::KillServer];

    fn text(self) -> &'static str {
        match self {
            Self::RollingUpdate => "rolling update",
            Self::DrainNode => "node drained",
            Self::KillWorker => "worker killed",
            Self::KillAgent => "agent killed",
            Self::KillServer => "server killed",
            Self::KillGateway => "gateway killed",
            Self::PauseWorker => "worker paused",
            Self::PauseAgent => "agent paused",
            Self::PauseServer => "server paused",
            Self::CutFromServer => "agent cut off from the server",
            Self::CutEverybody => "connections of a node cut",
            Self::Unplug => "node unplugged for seconds",
            Self::LoseNode => "node unplugged for minutes",
            Self::FillDisk => "the server's disk full",
        }
    }
}

/// An excuse holds for what was open while something was done, until all was whole again.
#[derive(Debug)]
struct Excuse {
    from: Instant,
    to: Instant,
    what: Excused,
}

/// What became of the requests while one kind of thing was done.
#[derive(Debug, Default)]
struct Tally {
    times: usize,
    answered: usize,
    excused: usize,
    failed: Vec<String>,
    healed_after: Vec<Duration>,
}

#[test]
fn only_streams_on_what_died_break() {
    let minutes = std::env::var(MINUTES).ok();
    let minutes: Option<f64> = minutes.map(|text| {
        let wrong = |err| panic!("{MINUTES}={text}: {err}; write a number of minutes");
        text.parse().unwrap_or_else(wrong)
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let Some(mut stage) = Stage::start(runtime.handle()) else {
        return;
    };
    let alone = Http::new(&stage.gateway_url);
    let expected = eventually("an answer", || {
        match alone.post("/v1/chat/completions", &question())? {
            answer if answer.status == 200 => Ok(said(&answer.events())),
            answer => Err(answer.text),
        }
    });
    assert!(!expected.is_empty(), "there is something to compare with");

    let load = Load::start(runtime.handle(), &stage.gateway_url, &expected);
    let begin = Instant::now();
    let mut story = Story::new();
    match minutes {
        None => {
            for deed in Deed::BRIEFLY {
                story.round(&mut stage, &load, deed);
            }
        }
        Some(minutes) => {
            // Each kind once, and then any.
            let mut first = Deed::ALL.iter();
            while begin.elapsed().as_secs_f64() < minutes * 60.0 {
                let next = first.next().or_else(|| Deed::ALL.choose(&mut story.random));
                story.round(&mut stage, &load, *next.expect("there are some"));
            }
        }
    }
    let deed = story.last;
    story.count(deed, &load.finish());
    story.tell(begin.elapsed());
    story.check(&stage);
    stage.end();
}

/// What was done, and what became of it.
struct Story {
    random: StdRng,
    tallies: BTreeMap<Deed, Tally>,
    excuses: Vec<Excuse>,
    /// The node of every replica there was.
    homes: BTreeMap<String, String>,
    /// Names of objects whose writing was acknowledged.
    written: Vec<String>,
    last: Deed,
}

impl Story {
    fn new() -> Self {
        Self {
            random: StdRng::seed_from_u64(SEED),
            tallies: BTreeMap::new(),
            excuses: Vec::new(),
            homes: BTreeMap::new(),
            written: Vec::new(),
            last: Deed::RollingUpdate,
        }
    }

    /// Does one thing, waits until all is well again, and judges what became of the requests
    /// meanwhile.
    fn round(&mut self, stage: &mut Stage, load: &Load, deed: Deed) {
        write(stage, &mut self.written);
        self.homes.extend(stage.homes());
        let node = *NODES.choose(&mut self.random).expect("three");
        let from = Instant::now();
        eprintln!("{}: {node}", deed.text());
        let Some(what) = self.act(stage, deed, node) else {
            return;
        };
        eventually(&format!("the fleet after: {}", deed.text()), || stage.is_whole());
        let to = Instant::now();
        self.excuses.push(Excuse { from, to, what });
        self.last = deed;
        let tally = self.tallies.entry(deed).or_default();
        tally.times += 1;
        tally.healed_after.push(to - from);
        write(stage, &mut self.written);
        self.homes.extend(stage.homes());
        // At least a few of those that follow, so that what was left broken is seen.
        let mut requests = load.take();
        eventually("answers after it", || {
            requests.extend(load.take());
            match requests.iter().filter(|request| request.began > to).count() {
                0..4 => Err("too few".to_owned()),
                _ => Ok(()),
            }
        });
        self.count(deed, &requests);
    }

    /// Does it, and undoes it where it does not end by itself. `None` where this machine cannot do
    /// it.
    fn act(&mut self, stage: &mut Stage, deed: Deed, node: &'static str) -> Option<Excused> {
        let (random, written) = (&mut self.random, &mut self.written);
        let seconds =
            |random: &mut StdRng, most: u64| Duration::from_millis(random.random_range(500..most * 1000));
        Some(match deed {
            Deed::RollingUpdate => {
                // Another context length is another template.
                let tokens = 256 + 64 * random.random_range(0..8);
                let patch = format!(r#"{{"spec":{{"serving":{{"contextTokens":{tokens}}}}}}}"#);
                let args = ["patch", "mdep", "guide", "--type=merge", "-p", &patch];
                stage.kubectl.run_with(&args, "").ok();
                Excused::Nobody
            }
            Deed::DrainNode => {
                let drain = |on: bool| {
                    let patch = format!(r#"{{"spec":{{"drain":{on}}}}}"#);
                    let args = ["patch", "mac", node, "--type=merge", "-p", &patch];
                    stage.kubectl.run_with(&args, "").ok();
                };
                drain(true);
                eventually("a drained node", || match stage.workers(node).len() {
                    0 => stage.is_whole(),
                    count => Err(format!("{count} workers")),
                });
                drain(false);
                Excused::Nobody
            }
            Deed::KillWorker => {
                for pid in stage.workers(node) {
                    kill_9(pid);
                }
                Excused::Node(node)
            }
            Deed::KillAgent => {
                stage.crash_agent(node);
                Excused::Node(node)
            }
            Deed::KillServer => {
                stage.crash_server();
                Excused::Nobody
            }
            Deed::KillGateway => {
                stage.crash_gateway();
                Excused::Gateway
            }
            Deed::PauseWorker => {
                let pids = stage.workers(node);
                pids.iter().for_each(|pid| pause(*pid));
                std::thread::sleep(seconds(random, 8));
                pids.iter().for_each(|pid| resume(*pid));
                Excused::Node(node)
            }
            Deed::PauseAgent => {
                let agent = &stage.nodes[node].agent;
                agent.pause();
                std::thread::sleep(seconds(random, 8));
                agent.resume();
                Excused::Node(node)
            }
            Deed::PauseServer => {
                stage.server.pause();
                std::thread::sleep(seconds(random, 15));
                stage.server.resume();
                Excused::Nobody
            }
            Deed::CutFromServer => {
                stage.nodes[node].up.set(Link::Closed);
                std::thread::sleep(seconds(random, 15));
                stage.nodes[node].up.set(Link::Whole);
                Excused::Nobody
            }
            Deed::CutEverybody => {
                stage.nodes[node].set(Link::Closed);
                std::thread::sleep(seconds(random, 8));
                stage.nodes[node].set(Link::Whole);
                Excused::Node(node)
            }
            Deed::Unplug => {
                can_be_unplugged(stage, node)?;
                stage.nodes[node].set(Link::Silent);
                std::thread::sleep(seconds(random, 8));
                stage.nodes[node].set(Link::Whole);
                Excused::Node(node)
            }
            Deed::LoseNode => {
                can_be_unplugged(stage, node)?;
                stage.nodes[node].set(Link::Silent);
                eventually("a replacement elsewhere", || {
                    let found = stage.kubectl.json("mdep guide")?;
                    let elsewhere = NODES.iter().filter(|other| **other != node);
                    let workers: usize = elsewhere.map(|other| stage.workers(other).len()).sum();
                    match (&found["status"]["readyReplicas"], workers) {
                        (ready, 3) if *ready == 3 => Ok(()),
                        (ready, workers) => Err(format!("ready {ready}, {workers} workers")),
                    }
                });
                stage.nodes[node].set(Link::Whole);
                Excused::Node(node)
            }
            Deed::FillDisk => {
                let Some(disk) = &stage.disk else {
                    not_run("root, to mount a small disk for the server");
                    return None;
                };
                disk.fill();
                // Some of these find no room.
                for _ in 0..6 {
                    write(stage, written);
                }
                disk.empty();
                eventually("a write", || {
                    let before = written.len();
                    write(stage, written);
                    if written.len() > before {
                        Ok(())
                    } else {
                        Err("it is refused".to_owned())
                    }
                });
                Excused::Nobody
            }
        })
    }

    /// A request that failed is excused where it was open on what something was done to.
    fn count(&mut self, deed: Deed, requests: &[Request]) {
        let (excuses, homes) = (&self.excuses, &self.homes);
        let tally = self.tallies.entry(deed).or_default();
        for request in requests {
            let home = homes.get(&request.replica).map(String::as_str);
            let covers = |excuse: &Excuse| {
                let open = request.began <= excuse.to && request.ended >= excuse.from;
                open && match (excuse.what, &request.ending) {
                    (Excused::Node(node), Ending::Broken(_)) => home == Some(node),
                    (Excused::Gateway, Ending::Broken(_) | Ending::NoAnswer(_)) => true,
                    (Excused::Node(_) | Excused::Gateway | Excused::Nobody, _) => false,
                }
            };
            if request.ending == Ending::Answered {
                tally.answered += 1;
            } else if excuses.iter().any(covers) {
                tally.excused += 1;
            } else {
                let took = request.ended - request.began;
                let at = (&request.replica, home.unwrap_or_default());
                tally.failed.push(format!(
                    "{}: after {took:.1?} at {at:?}: {:?}",
                    deed.text(),
                    request.ending
                ));
            }
        }
    }

    fn tell(&self, took: Duration) {
        let tallies = &self.tallies;
        eprintln!("\nin {:.0} s:", took.as_secs_f64());
        eprintln!(
            "{:32} {:>5} {:>9} {:>22} {:>6}  whole again after (median, longest)",
            "", "times", "answered", "broken on what died", "failed"
        );
        for (deed, tally) in tallies {
            let mut times = tally.healed_after.clone();
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied().unwrap_or_default();
            let longest = times.last().copied().unwrap_or_default();
            eprintln!(
                "{:32} {:>5} {:>9} {:>22} {:>6}  {:.1} s, {:.1} s",
                deed.text(),
                tally.times,
                tally.answered,
                tally.excused,
                tally.failed.len(),
                median.as_secs_f64(),
                longest.as_secs_f64()
            );
        }
        let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
        eprintln!(
            "{} answered, {} broken on what died, {} failed",
            sum(|tally| tally.answered),
            sum(|tally| tally.excused),
            sum(|tally| tally.failed.len())
        );
    }

    /// Nothing that was acknowledged is lost, and no request failed without an excuse.
    fn check(&self, stage: &Stage) {
        let stored = stage
            .kubectl
            .run("get cm -o jsonpath={.items[*].metadata.name}")
            .ok();
        let is_stored = |name: &&String| stored.split_whitespace().any(|known| known == name.as_str());
        let lost: Vec<_> = self.written.iter().filter(|name| !is_stored(name)).collect();
        assert!(!self.written.is_empty(), "no write was acknowledged");
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        let failed: Vec<_> = self.tallies.values().flat_map(|tally| &tally.failed).collect();
        assert!(failed.is_empty(), "{} requests failed: {failed:#?}", failed.len());
    }
}

fn can_be_unplugged(stage: &Stage, node: &str) -> Option<()> {
    if stage.nodes[node].down.is_none() {
        not_run("the address 127.0.0.2, to stand between the gateway and an agent");
        return None;
    }
    Some(())
}

/// Writes an object, and remembers it if that was acknowledged.
fn write(stage: &Stage, written: &mut Vec<String>) {
    let name = format!("written-{}", written.len());
    let yaml = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{x: text}}\n");
    let args = ["apply", "--validate=false", "--request-timeout=5s", "-f", "-"];
    if stage.kubectl.run_with(&args, &yaml).success {
        written.push(name);
    }
}

//! Disruptions of a fleet of real processes while clients stream answers. After each disruption,
//! the fleet must recover.
//!
//! Planned changes and faults of the control plane must not fail a request. Faults of a node may
//! break the open streams on it, and faults of the gateway the open streams through it. All other
//! requests must succeed.
//!
//! `cargo xtask chaos --minutes 10` runs for ten minutes, `cargo xtask chaos --faults all` applies each
//! disruption once. A test run applies the disruptions in [`Disruption::SHORT_RUN`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::load::{Load, Outcome, Request, question, streamed_text};
use super::test_fleet::{NODES, TestFleet};
use crate::harness::{Http, HungThread, Link, eventually, kill_9, not_run, pause, resume};

const MINUTES: &str = "ROOFLET_CHAOS_MINUTES";
/// Names of the disruptions to apply, separated by commas, or `all`.
const FAULTS: &str = "ROOFLET_CHAOS_FAULTS";
const SEED: u64 = 1;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Disruption of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disruption {
    RollingUpdate,
    DrainNode,
    KillWorker,
    KillAgent,
    KillServer,
    KillGateway,
    PauseWorker,
    PauseAgent,
    PauseServer,
    HangEngine,
    CutFromServer,
    CutAllConnections,
    Unplug,
    LoseNode,
    FillDisk,
    DeleteData,
    JumpAgentClock,
    JumpServerClock,
}

/// Streams that a disruption may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Affected {
    None,
    /// Open streams on this node.
    Node(&'static str),
    /// All streams through the gateway, and requests while it does not run.
    Gateway,
}

impl Disruption {
    const ALL: [Self; 18] = [
        Self::RollingUpdate,
        Self::DrainNode,
        Self::KillWorker,
        Self::KillAgent,
        Self::KillServer,
        Self::KillGateway,
        Self::PauseWorker,
        Self::PauseAgent,
        Self::PauseServer,
        Self::HangEngine,
        Self::CutFromServer,
        Self::CutAllConnections,
        Self::Unplug,
        Self::LoseNode,
        Self::FillDisk,
        Self::DeleteData,
        Self::JumpAgentClock,
        Self::JumpServerClock,
    ];
    const SHORT_RUN: [Self; 3] = [Self::RollingUpdate, Self::KillAgent, Self::KillServer];

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
            Self::HangEngine => "engine hung",
            Self::CutFromServer => "agent disconnected from the server",
            Self::CutAllConnections => "connections of a node cut",
            Self::Unplug => "node unplugged for seconds",
            Self::LoseNode => "node unplugged for minutes",
            Self::FillDisk => "the server's disk full",
            Self::DeleteData => "data directory deleted",
            Self::JumpAgentClock => "agent's clock a day off",
            Self::JumpServerClock => "server's clock a day off",
        }
    }

    /// Parses a list of names as in the summary of a run, separated by commas, or `all`.
    fn parse_list(text: &str) -> Vec<Self> {
        if text == "all" {
            return Self::ALL.to_vec();
        }
        let one = |name: &str| {
            let found = Self::ALL.into_iter().find(|one| one.text() == name.trim());
            let known = || Self::ALL.map(Self::text).join(", ");
            found.unwrap_or_else(|| {
                panic!(
                    "{FAULTS}: no fault `{name}`; write `all`, or some of: {}",
                    known()
                )
            })
        };
        text.split(',').map(one).collect()
    }
}

/// Time from the start of a disruption until the recovery, and the streams that may break.
#[derive(Debug)]
struct Window {
    from: Instant,
    to: Instant,
    what: Affected,
}

/// Outcomes of the requests during a kind of disruption.
#[derive(Debug, Default)]
struct Tally {
    times: usize,
    answered: usize,
    affected: usize,
    failed: Vec<String>,
    recovery_times: Vec<Duration>,
}

#[test]
fn only_streams_on_disrupted_processes_break() {
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
    let Some(mut fleet) = TestFleet::start(runtime.handle()) else {
        return;
    };
    let alone = Http::new(&fleet.gateway_url);
    let expected = eventually("an answer", || {
        match alone.post("/v1/chat/completions", &question())? {
            answer if answer.status == 200 => Ok(streamed_text(&answer.events())),
            answer => Err(answer.text),
        }
    });
    assert!(!expected.is_empty(), "the undisturbed answer is empty");

    let load = Load::start(runtime.handle(), &fleet.gateway_url, &expected);
    let begin = Instant::now();
    let mut run = Run::new();
    match minutes {
        None => {
            let faults = std::env::var(FAULTS).ok();
            let faults = faults.map(|text| Disruption::parse_list(&text));
            for disruption in faults.unwrap_or_else(|| Disruption::SHORT_RUN.to_vec()) {
                run.round(&mut fleet, &load, disruption);
            }
        }
        Some(minutes) => {
            // Each kind once, and then random ones.
            let mut first = Disruption::ALL.iter();
            while begin.elapsed().as_secs_f64() < minutes * 60.0 {
                let next = first.next().or_else(|| Disruption::ALL.choose(&mut run.random));
                run.round(&mut fleet, &load, *next.expect("the list is not empty"));
            }
        }
    }
    let disruption = run.last;
    run.count(disruption, &load.finish());
    run.print(begin.elapsed());
    run.check(&fleet);
    fleet.end();
}

/// Disruptions of a run, and their effects.
struct Run {
    random: StdRng,
    tallies: BTreeMap<Disruption, Tally>,
    windows: Vec<Window>,
    /// Node of every replica, including deleted ones.
    replica_nodes: BTreeMap<String, String>,
    /// Names of objects whose creation was acknowledged.
    written: Vec<String>,
    last: Disruption,
}

impl Run {
    fn new() -> Self {
        Self {
            random: StdRng::seed_from_u64(SEED),
            tallies: BTreeMap::new(),
            windows: Vec::new(),
            replica_nodes: BTreeMap::new(),
            written: Vec::new(),
            last: Disruption::RollingUpdate,
        }
    }

    /// Applies a disruption, waits for the recovery, and counts the outcomes of the requests.
    fn round(&mut self, fleet: &mut TestFleet, load: &Load, disruption: Disruption) {
        write(fleet, &mut self.written);
        self.replica_nodes.extend(fleet.replica_nodes());
        let node = *NODES.choose(&mut self.random).expect("three");
        let from = Instant::now();
        eprintln!("{}: {node}", disruption.text());
        let Some(what) = self.act(fleet, disruption, node) else {
            return;
        };
        eventually(&format!("the fleet after: {}", disruption.text()), || {
            fleet.check_converged()
        });
        let to = Instant::now();
        self.windows.push(Window { from, to, what });
        self.last = disruption;
        let tally = self.tallies.entry(disruption).or_default();
        tally.times += 1;
        tally.recovery_times.push(to - from);
        write(fleet, &mut self.written);
        self.replica_nodes.extend(fleet.replica_nodes());
        // Wait for some requests after the recovery, to detect permanent damage.
        let mut requests = load.take();
        eventually("answers after the recovery", || {
            requests.extend(load.take());
            match requests.iter().filter(|request| request.began > to).count() {
                0..4 => Err("too few".to_owned()),
                _ => Ok(()),
            }
        });
        self.count(disruption, &requests);
    }

    /// Applies a disruption and ends it. Returns `None` if this machine does not support it.
    fn act(&mut self, fleet: &mut TestFleet, disruption: Disruption, node: &'static str) -> Option<Affected> {
        let (random, written) = (&mut self.random, &mut self.written);
        let seconds =
            |random: &mut StdRng, most: u64| Duration::from_millis(random.random_range(500..most * 1000));
        Some(match disruption {
            Disruption::RollingUpdate => {
                // A changed context length changes the template.
                let tokens = 256 + 64 * random.random_range(0..8);
                let patch = format!(r#"{{"spec":{{"serving":{{"contextTokens":{tokens}}}}}}}"#);
                let args = ["patch", "mdep", "guide", "--type=merge", "-p", &patch];
                fleet.kubectl.run_with(&args, "").ok();
                Affected::None
            }
            Disruption::DrainNode => {
                let drain = |on: bool| {
                    let patch = format!(r#"{{"spec":{{"drain":{on}}}}}"#);
                    let args = ["patch", "mac", node, "--type=merge", "-p", &patch];
                    fleet.kubectl.run_with(&args, "").ok();
                };
                drain(true);
                eventually("a drained node", || match fleet.workers(node).len() {
                    0 => fleet.check_converged(),
                    count => Err(format!("{count} workers")),
                });
                drain(false);
                Affected::None
            }
            Disruption::KillWorker => {
                for pid in fleet.workers(node) {
                    kill_9(pid);
                }
                Affected::Node(node)
            }
            Disruption::KillAgent => {
                fleet.crash_agent(node);
                Affected::Node(node)
            }
            Disruption::KillServer => {
                fleet.crash_server();
                Affected::None
            }
            Disruption::KillGateway => {
                fleet.crash_gateway();
                Affected::Gateway
            }
            Disruption::PauseWorker => {
                let pids = fleet.workers(node);
                pids.iter().for_each(|pid| pause(*pid));
                std::thread::sleep(seconds(random, 8));
                pids.iter().for_each(|pid| resume(*pid));
                Affected::Node(node)
            }
            Disruption::PauseAgent => {
                let agent = &fleet.nodes[node].agent;
                agent.pause();
                std::thread::sleep(seconds(random, 8));
                agent.resume();
                Affected::Node(node)
            }
            Disruption::PauseServer => {
                fleet.server.pause();
                std::thread::sleep(seconds(random, 15));
                fleet.server.resume();
                Affected::None
            }
            Disruption::HangEngine => {
                let hung: Option<Vec<_>> = fleet
                    .workers(node)
                    .into_iter()
                    .map(|pid| HungThread::hang(pid, "engine"))
                    .collect();
                let hung = hung?;
                std::thread::sleep(seconds(random, 20));
                drop(hung);
                Affected::Node(node)
            }
            Disruption::CutFromServer => {
                fleet.nodes[node].up.set(Link::Closed);
                std::thread::sleep(seconds(random, 15));
                fleet.nodes[node].up.set(Link::Up);
                Affected::None
            }
            Disruption::CutAllConnections => {
                fleet.nodes[node].set(Link::Closed);
                std::thread::sleep(seconds(random, 8));
                fleet.nodes[node].set(Link::Up);
                Affected::Node(node)
            }
            Disruption::Unplug => {
                can_be_unplugged(fleet, node)?;
                fleet.nodes[node].set(Link::Blackhole);
                std::thread::sleep(seconds(random, 8));
                fleet.nodes[node].set(Link::Up);
                Affected::Node(node)
            }
            Disruption::LoseNode => {
                can_be_unplugged(fleet, node)?;
                fleet.nodes[node].set(Link::Blackhole);
                eventually("a replacement elsewhere", || {
                    let found = fleet.kubectl.json("mdep guide")?;
                    let elsewhere = NODES.iter().filter(|other| **other != node);
                    let workers: usize = elsewhere.map(|other| fleet.workers(other).len()).sum();
                    match (&found["status"]["readyReplicas"], workers) {
                        (ready, 3) if *ready == 3 => Ok(()),
                        (ready, workers) => Err(format!("ready {ready}, {workers} workers")),
                    }
                });
                fleet.nodes[node].set(Link::Up);
                Affected::Node(node)
            }
            Disruption::FillDisk => {
                let Some(disk) = &fleet.disk else {
                    not_run("root, to mount a small disk for the server");
                    return None;
                };
                disk.fill();
                // Some of these writes fail, because the disk is full.
                for _ in 0..6 {
                    write(fleet, written);
                }
                disk.empty();
                eventually("a write", || {
                    let before = written.len();
                    write(fleet, written);
                    if written.len() > before {
                        Ok(())
                    } else {
                        Err("the write failed".to_owned())
                    }
                });
                Affected::None
            }
            Disruption::DeleteData => {
                fleet.delete_data();
                // The write after the first failed one must fail, too: the server does not create the
                // directory again.
                eventually("rejected writes", || {
                    let before = written.len();
                    write(fleet, written);
                    let ready = fleet.kubectl.run("get --raw /readyz --request-timeout=5s");
                    match (written.len() - before, ready.success) {
                        (0, false) => Ok(()),
                        (acknowledged, ready) => {
                            Err(format!("{acknowledged} writes acknowledged, ready {ready}"))
                        }
                    }
                });
                let acknowledged = written.len();
                for _ in 0..3 {
                    write(fleet, written);
                }
                assert_eq!(written.len(), acknowledged, "writes are rejected");
                fleet.restore_data();
                eventually("the restored server", || {
                    let found = fleet.kubectl.run("get --raw /readyz --request-timeout=5s");
                    if found.success { Ok(()) } else { Err(found.stderr) }
                });
                Affected::None
            }
            Disruption::JumpAgentClock | Disruption::JumpServerClock => {
                let is_of_agent = disruption == Disruption::JumpAgentClock;
                let clock = match is_of_agent {
                    true => &fleet.nodes[node].clock,
                    false => &fleet.server_clock,
                };
                let Some(clock) = clock else {
                    not_run("Linux and a C compiler, to change the clock of one process");
                    return None;
                };
                clock.set_offset(DAY);
                std::thread::sleep(seconds(random, 15));
                eventually("the fleet with a wrong clock", || fleet.check_converged());
                clock.set_offset(Duration::ZERO);
                Affected::None
            }
        })
    }

    /// Counts outcomes. A failed request is expected if it was open on the disrupted process.
    fn count(&mut self, disruption: Disruption, requests: &[Request]) {
        let (windows, replica_nodes) = (&self.windows, &self.replica_nodes);
        let tally = self.tallies.entry(disruption).or_default();
        for request in requests {
            let serving_node = replica_nodes.get(&request.replica).map(String::as_str);
            let covers = |window: &Window| {
                let open = request.began <= window.to && request.ended >= window.from;
                open && match (window.what, &request.outcome) {
                    (Affected::Node(node), Outcome::Broken(_)) => serving_node == Some(node),
                    (Affected::Gateway, Outcome::Broken(_) | Outcome::NoResponse(_)) => true,
                    (Affected::Node(_) | Affected::Gateway | Affected::None, _) => false,
                }
            };
            if request.outcome == Outcome::Answered {
                tally.answered += 1;
            } else if windows.iter().any(covers) {
                tally.affected += 1;
            } else {
                let took = request.ended - request.began;
                let at = (&request.replica, serving_node.unwrap_or_default());
                tally.failed.push(format!(
                    "{}: after {took:.1?} at {at:?}: {:?}",
                    disruption.text(),
                    request.outcome
                ));
            }
        }
    }

    fn print(&self, took: Duration) {
        let tallies = &self.tallies;
        eprintln!("\nin {:.0} s:", took.as_secs_f64());
        eprintln!(
            "{:34} {:>5} {:>9} {:>16} {:>6}  recovered after (median, longest)",
            "", "times", "answered", "broken, expected", "failed"
        );
        for (disruption, tally) in tallies {
            let mut times = tally.recovery_times.clone();
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied().unwrap_or_default();
            let longest = times.last().copied().unwrap_or_default();
            eprintln!(
                "{:34} {:>5} {:>9} {:>16} {:>6}  {:.1} s, {:.1} s",
                disruption.text(),
                tally.times,
                tally.answered,
                tally.affected,
                tally.failed.len(),
                median.as_secs_f64(),
                longest.as_secs_f64()
            );
        }
        let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
        eprintln!(
            "{} answered, {} broken as expected, {} failed",
            sum(|tally| tally.answered),
            sum(|tally| tally.affected),
            sum(|tally| tally.failed.len())
        );
    }

    /// Asserts that no acknowledged write is lost and no request failed unexpectedly.
    fn check(&self, fleet: &TestFleet) {
        let stored = fleet
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

fn can_be_unplugged(fleet: &TestFleet, node: &str) -> Option<()> {
    if fleet.nodes[node].down.is_none() {
        not_run("the address 127.0.0.2, for the relay between the gateway and an agent");
        return None;
    }
    Some(())
}

/// Writes an object, and records its name if the write is acknowledged.
fn write(fleet: &TestFleet, written: &mut Vec<String>) {
    let name = format!("written-{}", written.len());
    let yaml = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{x: text}}\n");
    let args = ["apply", "--validate=false", "--request-timeout=5s", "-f", "-"];
    if fleet.kubectl.run_with(&args, &yaml).success {
        written.push(name);
    }
}

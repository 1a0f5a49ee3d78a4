//! Control plane, gateway and three nodes as processes that can be killed and suspended, with
//! relays between them that can break their connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tokio::runtime::Handle;

use crate::harness::{
    Kubectl, Link, Process, Relay, Scratch, TestClock, eventually, free_port, kill_9, processes_with,
    repository,
};

pub(super) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Names of the server's data directory on its disk, and of the copy while it is deleted.
const DATA: &str = "server";
const BACKUP: &str = "backup";
/// Size of the store's disk. It is small, so that a test can fill it.
const DISK_MIB: u32 = 64;

const DEPLOYMENT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 3
  model: {source: 'local://guide'}
  serving: {contextTokens: 512, maxConcurrency: 4}
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}
  # The machine of the test may be short of memory.
  placement:
    strategy: Spread
    tolerations: [{key: rooflet.dev/memory-pressure, operator: Exists}]
";

/// Node: an agent and the relays of its connections.
pub(super) struct Node {
    pub(super) agent: Process,
    args: Vec<String>,
    log: PathBuf,
    state: PathBuf,
    /// Clock of the agent and its workers; `None` if it cannot be changed on this machine.
    pub(super) clock: Option<TestClock>,
    /// Relay from the agent to the API server.
    pub(super) up: Relay,
    /// Relay from the gateway to the agent; `None` if the machine has no second loopback address.
    pub(super) down: Option<Relay>,
}

/// Running fleet.
pub(super) struct TestFleet {
    pub(super) server: Process,
    server_args: Vec<String>,
    pub(super) server_clock: Option<TestClock>,
    pub(super) gateway: Process,
    gateway_args: Vec<String>,
    pub(super) gateway_url: String,
    pub(super) nodes: BTreeMap<&'static str, Node>,
    pub(super) kubectl: Kubectl,
    /// Disk of the store; `None` if mounting failed.
    pub(super) disk: Option<Disk>,
    /// Working directory of the processes; dropped last.
    pub(super) scratch: Scratch,
}

impl TestFleet {
    /// Starts all processes. Returns `None` if kubectl is not installed.
    pub(super) fn start(runtime: &Handle) -> Option<Self> {
        let scratch = Scratch::new();
        let kubeconfig = scratch.join("kubeconfig");
        let kubectl = Kubectl::find(&kubeconfig, scratch.path())?;
        let data = scratch.join("data");
        std::fs::create_dir_all(&data).expect("writable");
        let disk = Disk::mount(&data);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let server_args = vec![
            "server".to_owned(),
            "--roles=apiserver,controller".to_owned(),
            format!("--data-dir={}", data.join(DATA).display()),
            format!("--listen={address}"),
            format!("--kubeconfig-out={}", kubeconfig.display()),
        ];
        let server_clock = TestClock::new(&scratch, "server");
        let server = start(server_clock.as_ref(), &server_args, &scratch.join("server.log"));
        eventually("the kubeconfig", || match kubeconfig.exists() {
            true => Ok(()),
            false => Err(server.log()),
        });
        let gateway_address = format!("127.0.0.1:{}", free_port());
        let gateway_args = vec![
            "server".to_owned(),
            "--roles=gateway".to_owned(),
            format!("--data-dir={}", scratch.join("gateway").display()),
            format!("--gateway-listen={gateway_address}"),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let gateway = Process::start_pausable(Vec::new(), &gateway_args, &scratch.join("gateway.log"));
        let nodes = NODES.map(|name| (name, Node::start(name, runtime, &scratch, &kubeconfig, address)));
        let fleet = Self {
            server,
            server_args,
            server_clock,
            gateway,
            gateway_args,
            gateway_url: format!("http://{gateway_address}"),
            nodes: nodes.into(),
            kubectl,
            disk,
            scratch,
        };
        for name in NODES {
            eventually("a node", || fleet.kubectl.json(&format!("mac {name}")));
        }
        fleet.kubectl.apply(DEPLOYMENT).ok();
        eventually("three replicas", || fleet.check_converged());
        Some(fleet)
    }

    /// Returns an error unless the fleet is in the desired state: three ready replicas and three
    /// workers.
    pub(super) fn check_converged(&self) -> Result<(), String> {
        let found = self.kubectl.json("mdep guide")?;
        let (meta, status) = (&found["metadata"], &found["status"]);
        let seen = status["observedGeneration"] == meta["generation"];
        let counts = ["replicas", "readyReplicas", "updatedReplicas"].map(|name| status[name].as_u64());
        let workers = NODES.map(|node| self.workers(node).len());
        if seen && counts == [Some(3); 3] && workers.iter().sum::<usize>() == 3 {
            Ok(())
        } else {
            let replicas = self.kubectl.run("get mrep -o wide --request-timeout=5s").stdout;
            Err(format!(
                "replicas, ready, updated {counts:?}, seen {seen}, workers {workers:?}\n{replicas}"
            ))
        }
    }

    /// Returns the node of every replica, by `NAMESPACE/NAME`.
    pub(super) fn replica_nodes(&self) -> BTreeMap<String, String> {
        let listed = self.kubectl.json("mrep").unwrap_or_default()["items"].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        listed
            .as_array()
            .into_iter()
            .flatten()
            .map(|replica| {
                let meta = &replica["metadata"];
                let name = format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]));
                (name, text(&replica["spec"]["nodeName"]))
            })
            .collect()
    }

    /// Returns the process ids of the workers of a node.
    pub(super) fn workers(&self, node: &str) -> Vec<u32> {
        let directory = self.scratch.join(node).display().to_string();
        processes_with(&[&directory, " worker "])
    }

    /// Kills the server and starts it again, as a supervisor does.
    pub(super) fn crash_server(&mut self) {
        kill_9(self.server.pid());
        self.server.wait();
        self.start_server();
    }

    fn start_server(&mut self) {
        let log = self.scratch.join("server.log");
        self.server = start(self.server_clock.as_ref(), &self.server_args, &log);
    }

    /// Deletes the data directory of the running server. The files stay as a backup.
    pub(super) fn delete_data(&self) {
        let data = self.scratch.join("data");
        std::fs::rename(data.join(DATA), data.join(BACKUP)).expect("the directory exists");
    }

    /// Stops the server, restores the backup and starts the server again.
    pub(super) fn restore_data(&mut self) {
        kill_9(self.server.pid());
        self.server.wait();
        let data = self.scratch.join("data");
        assert!(
            !data.join(DATA).exists(),
            "the server has created its directory again"
        );
        std::fs::rename(data.join(BACKUP), data.join(DATA)).expect("a backup");
        self.start_server();
    }

    pub(super) fn crash_gateway(&mut self) {
        kill_9(self.gateway.pid());
        self.gateway.wait();
        self.gateway =
            Process::start_pausable(Vec::new(), &self.gateway_args, &self.scratch.join("gateway.log"));
    }

    pub(super) fn crash_agent(&mut self, node: &str) {
        let node = self.nodes.get_mut(node).expect("the node exists");
        kill_9(node.agent.pid());
        node.agent.wait();
        node.agent = start(node.clock.as_ref(), &node.args, &node.log);
    }

    /// Terminates all processes. Agents terminate their workers. Panics if a process is left.
    pub(super) fn end(mut self) {
        self.kubectl.run("delete mdep guide --timeout=120s").ok();
        for node in self.nodes.values_mut() {
            assert!(node.agent.terminate().success(), "{}", node.agent.log());
            assert!(node.state.exists(), "the state directory is kept");
        }
        assert!(self.gateway.terminate().success(), "{}", self.gateway.log());
        assert!(self.server.terminate().success(), "{}", self.server.log());
        let directory = self.scratch.path().display().to_string();
        assert_eq!(
            processes_with(&[&directory]),
            [0u32; 0],
            "no process is left behind"
        );
    }
}

/// Starts `rooflet ARGS` as a process that can be suspended.
fn start(clock: Option<&TestClock>, args: &[String], log: &Path) -> Process {
    let env = clock.map(TestClock::env).unwrap_or_default();
    Process::start_pausable(env, args, log)
}

impl Node {
    fn start(
        name: &'static str,
        runtime: &Handle,
        scratch: &Scratch,
        kubeconfig: &Path,
        server: SocketAddr,
    ) -> Self {
        let relay = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let up = Relay::start(runtime, relay, server).expect("a free port");
        let text = std::fs::read_to_string(kubeconfig).expect("readable");
        assert!(text.contains(&server.to_string()), "{text}");
        let own = scratch.write(
            &format!("{name}.kubeconfig"),
            &text.replace(&server.to_string(), &relay.to_string()),
        );
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        // The gateway reaches the agent at the same port of another address. On Linux, all
        // addresses in 127/8 are local.
        let other = SocketAddr::from(([127, 0, 0, 2], listen.port()));
        let down = Relay::start(runtime, other, listen).ok();
        let state = scratch.join(name);
        let mut args = vec![
            "agent".to_owned(),
            format!("--kubeconfig={}", own.display()),
            format!("--node-name={name}"),
            format!("--state-dir={}", state.display()),
            format!("--model-dir={}", repository("examples/models").display()),
            format!("--listen={listen}"),
            "--no-probe".to_owned(),
        ];
        if down.is_some() {
            args.push(format!("--advertise-address={}", other.ip()));
        }
        let log = scratch.join(&format!("{name}.log"));
        let clock = TestClock::new(scratch, name);
        Self {
            agent: start(clock.as_ref(), &args, &log),
            args,
            log,
            state,
            clock,
            up,
            down,
        }
    }

    pub(super) fn set(&self, link: Link) {
        self.up.set(link);
        if let Some(down) = &self.down {
            down.set(link);
        }
    }
}

/// Small disk for the store. Mounting requires root.
pub(super) struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Option<Self> {
        let size = format!("size={DISK_MIB}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "rooflet-chaos"])
            .arg(at)
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then(|| Self(at.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills the disk.
    pub(super) fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.filler()).expect("the disk has space for a name");
        let block = vec![0; 64 << 10];
        while file.write_all(&block).is_ok() {}
    }

    pub(super) fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("the disk was filled");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).output());
    }
}

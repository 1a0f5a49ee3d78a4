//! `rooflet server` and agents, each a process of the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Http, Kubectl, Process, Scratch, eventually, free_port, processes_with, repository, rooflet};

/// Running control plane.
pub(crate) struct Cluster {
    server: Process,
    args: Vec<String>,
    /// Environment variables of the server and of its agents.
    env: Vec<(&'static str, String)>,
    /// Model directory of the agents. Default: the examples.
    pub(crate) model_dir: PathBuf,
    pub(crate) kubectl: Kubectl,
    pub(crate) gateway: Http,
    /// URL of the web page.
    pub(crate) web: String,
    /// `ADDR:PORT` of the API server.
    pub(crate) address: String,
    /// Working directory of the processes; dropped last.
    pub(crate) scratch: Scratch,
}

impl Cluster {
    /// Starts `rooflet server ARGS`. Returns `None` if kubectl is not installed.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        Self::with(args, |args, log| Process::start(args, log))
    }

    /// Starts `rooflet server ARGS` with its data in `directory`.
    pub(crate) fn start_on_disk(args: &[&str], directory: &Path) -> Option<Self> {
        let scratch = Scratch::new();
        std::os::unix::fs::symlink(directory, scratch.join("data")).expect("a new link");
        Self::launch(scratch, args, |args, log| Process::start(args, log))
    }

    /// Starts a cluster whose processes have additional environment variables.
    pub(crate) fn start_with_env(env: Vec<(&'static str, String)>, args: &[&str]) -> Option<Self> {
        let start = |args: &[String], log: &Path| Process::start_with_env(env.clone(), args, log);
        let cluster = Self::with(args, start)?;
        Some(Self { env, ..cluster })
    }

    /// Starts a cluster whose server `start` starts.
    pub(crate) fn with(args: &[&str], start: impl FnOnce(&[String], &Path) -> Process) -> Option<Self> {
        Self::launch(Scratch::new(), args, start)
    }

    fn launch(
        scratch: Scratch,
        args: &[&str],
        start: impl FnOnce(&[String], &Path) -> Process,
    ) -> Option<Self> {
        let kubeconfig = scratch.join("kubeconfig");
        let kubectl = Kubectl::find(&kubeconfig, scratch.path())?;
        let address = format!("127.0.0.1:{}", free_port());
        let gateway = format!("127.0.0.1:{}", free_port());
        let web = format!("127.0.0.1:{}", free_port());
        let mut all = vec![
            "server".to_owned(),
            format!("--data-dir={}", scratch.join("data").display()),
            format!("--listen={address}"),
            format!("--gateway-listen={gateway}"),
            format!("--web-listen={web}"),
            format!("--kubeconfig-out={}", kubeconfig.display()),
        ];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let server = start(&all, &scratch.join("server.log"));
        eventually("the kubeconfig", || match kubeconfig.exists() {
            true => Ok(()),
            false => Err(server.log()),
        });
        Some(Self {
            server,
            args: all,
            env: Vec::new(),
            model_dir: repository("examples/models"),
            kubectl,
            gateway: Http::new(format!("http://{gateway}")),
            web: format!("http://{web}"),
            address,
            scratch,
        })
    }

    /// Terminates the server and starts it again with the same data and ports.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Terminates the server.
    pub(crate) fn stop(&mut self) {
        assert!(self.server.terminate().success(), "{}", self.server.log());
    }

    /// Starts a terminated server with the same data and ports.
    pub(crate) fn start_again(&mut self) {
        self.server = Process::start_with_env(self.env.clone(), &self.args, &self.scratch.join("server.log"));
        eventually("the restarted server", || {
            let found = self.kubectl.run("get --raw /readyz");
            if found.success { Ok(()) } else { Err(found.stderr) }
        });
    }

    /// Starts a terminated server once with additional arguments.
    pub(crate) fn start_again_with(&mut self, args: &[&str]) {
        let before = self.args.clone();
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.start_again();
        self.args = before;
    }

    /// Starts a terminated server, which must fail. Returns its error output.
    pub(crate) fn fails_to_start(&self) -> String {
        let output = Command::new(rooflet())
            .args(&self.args)
            .output()
            .expect("the binary starts");
        assert!(!output.status.success(), "the server started");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Starts the agent of a node, without the probe.
    pub(crate) fn agent(&self, node: &str, more: &[String]) -> Process {
        let mut args = self.agent_args(node);
        args.extend_from_slice(more);
        Process::start_with_env(self.env.clone(), args, &self.agent_log(node))
    }

    /// Starts an agent that can be paused.
    pub(crate) fn pausable_agent(&self, node: &str) -> Process {
        Process::start_pausable(Vec::new(), self.agent_args(node), &self.agent_log(node))
    }

    /// Starts an agent with `start`.
    pub(crate) fn agent_with(
        &self,
        node: &str,
        more: &[String],
        start: impl FnOnce(&[String], &Path) -> Process,
    ) -> Process {
        let mut args = self.agent_args(node);
        args.extend_from_slice(more);
        start(&args, &self.agent_log(node))
    }

    /// Starts a second gateway in a separate process.
    pub(crate) fn start_second_gateway(&self, flags: &[&str]) -> (Process, Http) {
        let address = format!("127.0.0.1:{}", free_port());
        let args = [
            "server".to_owned(),
            "--roles=gateway".to_owned(),
            format!("--data-dir={}", self.scratch.join("gateway").display()),
            format!("--kubeconfig={}", self.scratch.join("kubeconfig").display()),
            format!("--gateway-listen={address}"),
        ];
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        let process = Process::start(args.into_iter().chain(flags), &self.scratch.join("gateway.log"));
        let http = Http::new(format!("http://{address}"));
        eventually("the second gateway being ready", || match http.get("/ready")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        });
        (process, http)
    }

    fn agent_log(&self, node: &str) -> PathBuf {
        self.scratch.join(&format!("{node}.log"))
    }

    fn agent_args(&self, node: &str) -> Vec<String> {
        vec![
            "agent".to_owned(),
            format!("--kubeconfig={}", self.scratch.join("kubeconfig").display()),
            format!("--node-name={node}"),
            format!("--state-dir={}", self.scratch.join(node).display()),
            format!("--model-dir={}", self.model_dir.display()),
            "--no-probe".to_owned(),
        ]
    }

    /// Starts a server, and for every Mac (name, chip, memory) an agent with a simulated chip, the
    /// real engine and the models in `model_dir`. Waits until all nodes are Ready.
    pub(crate) fn with_simulated_chips(
        macs: &[(&str, &str, &str)],
        model_dir: &Path,
    ) -> Option<(Self, Vec<Process>)> {
        let mut cluster = Self::start(&[])?;
        cluster.model_dir = model_dir.to_owned();
        let start = |(node, chip, memory): &(&str, &str, &str)| {
            let chip = format!("--simulated-chip={chip}");
            cluster.agent(node, &[chip, format!("--simulated-memory={memory}")])
        };
        let agents = macs.iter().map(start).collect();
        for (node, ..) in macs {
            eventually("a node", || cluster.kubectl.json(&format!("mac {node}")));
            let ready = format!("wait --for=condition=Ready mac/{node} --timeout=120s");
            cluster.kubectl.run(&ready).ok();
        }
        Some((cluster, agents))
    }

    /// Starts `rooflet server ARGS` with the simulated Macs of `fleet`.
    pub(crate) fn simulated(fleet: &str, args: &[&str]) -> Option<Self> {
        let scratch = Scratch::new();
        let file = scratch.write("fleet.yaml", fleet);
        let simulate = format!("--simulate={}", file.display());
        let args = [args, &[simulate.as_str()]].concat();
        Self::launch(scratch, &args, |args, log| Process::start(args, log))
    }

    /// Runs `rooflet ARGS` with the administrator's kubeconfig.
    pub(crate) fn rooflet(&self, args: &str) -> Output {
        let kubeconfig = self.scratch.join("kubeconfig");
        Command::new(rooflet())
            .args(args.split_whitespace())
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .output()
            .expect("the binary starts")
    }

    /// Runs `rooflet rollout ARGS`. Returns true if it succeeded, and its output.
    pub(crate) fn rollout(&self, args: &str) -> (bool, String) {
        let output = self.rooflet(&format!("rollout {args}"));
        let printed = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&printed).into_owned(),
        )
    }

    /// Runs `rooflet rollout ARGS`, which must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn rollout_ok(&self, args: &str) -> String {
        let (success, printed) = self.rollout(args);
        assert!(success, "rooflet rollout {args}: {printed}");
        printed
    }

    /// Returns the process ids of the workers of a node.
    pub(crate) fn workers(&self, node: &str) -> Vec<u32> {
        let directory = self.scratch.join(node).display().to_string();
        processes_with(&[&directory, " worker "])
    }
}

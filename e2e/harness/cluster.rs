//! `rooflet server`, and agents beside it, each in the test's own hand.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Http, Kubectl, Process, Scratch, eventually, free_port, processes_with, repository, rooflet};

/// A running control plane.
pub(crate) struct Cluster {
    server: Process,
    args: Vec<String>,
    pub(crate) kubectl: Kubectl,
    pub(crate) gateway: Http,
    /// `ADDR:PORT` of the API server.
    pub(crate) address: String,
    /// Dropped last: the processes write into it.
    pub(crate) scratch: Scratch,
}

impl Cluster {
    /// Starts `rooflet server ARGS`; `None` where kubectl is not installed.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        Self::with(args, |args, log| Process::start(args, log))
    }

    /// The same, with a server that `start` starts.
    pub(crate) fn with(args: &[&str], start: impl FnOnce(&[String], &Path) -> Process) -> Option<Self> {
        let scratch = Scratch::new();
        let kubeconfig = scratch.join("kubeconfig");
        let kubectl = Kubectl::find(&kubeconfig, scratch.path())?;
        let address = format!("127.0.0.1:{}", free_port());
        let gateway = format!("127.0.0.1:{}", free_port());
        let mut all = vec![
            "server".to_owned(),
            format!("--data-dir={}", scratch.join("data").display()),
            format!("--listen={address}"),
            format!("--gateway-listen={gateway}"),
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
            kubectl,
            gateway: Http::new(format!("http://{gateway}")),
            address,
            scratch,
        })
    }

    /// Stops the server in order and starts it again on the same data and ports.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Stops the server in order.
    pub(crate) fn stop(&mut self) {
        assert!(self.server.terminate().success(), "{}", self.server.log());
    }

    /// Starts a server that was stopped again, on the same data and ports.
    pub(crate) fn start_again(&mut self) {
        self.server = Process::start(&self.args, &self.scratch.join("server.log"));
        eventually("the server again", || {
            let found = self.kubectl.run("get --raw /readyz");
            if found.success { Ok(()) } else { Err(found.stderr) }
        });
    }

    /// Starts the agent of a node; it does not measure the machine.
    pub(crate) fn agent(&self, node: &str, more: &[String]) -> Process {
        let mut args = self.agent_args(node);
        args.extend_from_slice(more);
        Process::start(args, &self.agent_log(node))
    }

    /// An agent that may be paused.
    pub(crate) fn pausable_agent(&self, node: &str) -> Process {
        Process::start_pausable(self.agent_args(node), &self.agent_log(node))
    }

    /// An agent that `start` starts.
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

    /// One more gateway, in a process of its own.
    pub(crate) fn another_gateway(&self) -> (Process, Http) {
        let address = format!("127.0.0.1:{}", free_port());
        let args = [
            "server".to_owned(),
            "--roles=gateway".to_owned(),
            format!("--data-dir={}", self.scratch.join("gateway").display()),
            format!("--kubeconfig={}", self.scratch.join("kubeconfig").display()),
            format!("--gateway-listen={address}"),
        ];
        let process = Process::start(args, &self.scratch.join("gateway.log"));
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
            format!("--model-dir={}", repository("examples/models").display()),
            "--no-probe".to_owned(),
        ]
    }

    /// Runs `rooflet ARGS` to its end, as somebody who administers the cluster.
    pub(crate) fn rooflet(&self, args: &str) -> Output {
        let kubeconfig = self.scratch.join("kubeconfig");
        Command::new(rooflet())
            .args(args.split_whitespace())
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .output()
            .expect("the binary starts")
    }

    /// Pids of the workers of a node.
    pub(crate) fn workers(&self, node: &str) -> Vec<u32> {
        let directory = self.scratch.join(node).display().to_string();
        processes_with(&[&directory, " worker "])
    }
}

//! `rooflet up` with a separate directory and ports.

use std::path::PathBuf;

use super::{Http, Kubectl, Process, Scratch, eventually, free_port, processes_with, repository};

/// Options of a fleet.
#[derive(Default)]
pub(crate) struct Options {
    /// Additional arguments of `rooflet up`.
    pub(crate) args: Vec<String>,
    /// Model directory. Default: the examples.
    pub(crate) model_dir: Option<PathBuf>,
    /// Additional environment variables of `rooflet up`, which its child processes inherit.
    pub(crate) env: Vec<(&'static str, String)>,
}

/// Running `rooflet up`.
pub(crate) struct Fleet {
    pub(crate) up: Process,
    pub(crate) gateway: Http,
    pub(crate) gateway_port: u16,
    pub(crate) api_port: u16,
    /// Working directory of the processes; dropped last.
    pub(crate) scratch: Scratch,
}

impl Fleet {
    /// Starts `rooflet up` and waits until it reports that it is ready.
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let fleet = Self::launch(options);
        fleet.wait_ready();
        fleet
    }

    /// Starts a fleet that serves the guide. Returns `None` if kubectl is not installed.
    pub(crate) fn with_guide() -> Option<(Self, Kubectl)> {
        let fleet = Self::start();
        let kubectl = fleet.kubectl()?;
        let guide = repository("examples/guide.yaml");
        kubectl.run(&format!("apply -f {}", guide.display())).ok();
        fleet.wait_for_ready(&kubectl, "guide");
        Some((fleet, kubectl))
    }

    fn launch(options: Options) -> Self {
        let scratch = Scratch::new();
        let (api_port, gateway_port) = (free_port(), free_port());
        let model_dir = options.model_dir.unwrap_or_else(|| repository("examples/models"));
        let mut args = vec![
            "up".to_owned(),
            format!("--data-dir={}", scratch.join("data").display()),
            format!("--model-dir={}", model_dir.display()),
            format!("--listen=127.0.0.1:{api_port}"),
            format!("--gateway-listen=127.0.0.1:{gateway_port}"),
            "--web-listen=127.0.0.1:0".to_owned(),
            "--node-name=node-1".to_owned(),
        ];
        args.extend(options.args);
        let up = Process::start_with_env(options.env, args, &scratch.join("up.log"));
        let gateway = Http::new(format!("http://127.0.0.1:{gateway_port}"));
        Self {
            up,
            gateway,
            gateway_port,
            api_port,
            scratch,
        }
    }

    fn wait_ready(&self) {
        eventually("`rooflet up` being ready", || {
            let log = self.up.log();
            if log.contains("\nnext:") { Ok(()) } else { Err(log) }
        });
    }

    /// Interrupts `rooflet up` as Ctrl-C does and starts it again with the same data and ports.
    pub(crate) fn restart(&mut self) {
        assert!(self.up.interrupt().success(), "{}", self.up.log());
        drop(std::fs::remove_file(self.scratch.join("up.log")));
        let args = [
            "up".to_owned(),
            format!("--data-dir={}", self.scratch.join("data").display()),
            format!("--model-dir={}", repository("examples/models").display()),
            format!("--listen=127.0.0.1:{}", self.api_port),
            format!("--gateway-listen=127.0.0.1:{}", self.gateway_port),
            "--web-listen=127.0.0.1:0".to_owned(),
            "--node-name=node-1".to_owned(),
        ];
        self.up = Process::start(args, &self.scratch.join("up.log"));
        self.wait_ready();
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.scratch.join("data/kubeconfig")
    }

    pub(crate) fn kubectl(&self) -> Option<Kubectl> {
        Kubectl::find(&self.kubeconfig(), self.scratch.path())
    }

    /// Returns the ids of this fleet's processes: `server`, `gateway`, `agent` or `worker`.
    pub(crate) fn processes(&self, name: &str) -> Vec<u32> {
        let directory = self.scratch.path().display().to_string();
        let arguments = match name {
            "server" => " server --roles=apiserver,controller,web ".to_owned(),
            "gateway" => " server --roles=gateway ".to_owned(),
            verb => format!(" {verb} "),
        };
        processes_with(&[&directory, &arguments])
    }

    /// Waits until a deployment is Ready.
    #[track_caller]
    pub(crate) fn wait_for_ready(&self, kubectl: &Kubectl, deployment: &str) {
        let output = kubectl.run(&format!(
            "wait --for=condition=Ready mdep/{deployment} --timeout=120s"
        ));
        assert!(
            output.success,
            "{}{}{}{}",
            output.stderr,
            kubectl.run(&format!("describe mdep {deployment}")).stdout,
            kubectl
                .run(&format!("describe mrep -l rooflet.dev/deployment={deployment}"))
                .stdout,
            kubectl.run("describe fleetnodes").stdout
        );
    }
}

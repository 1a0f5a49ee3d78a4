//! etcd, kube-apiserver and kube-controller-manager, each a process of the test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::KeyPair;

use super::helm::{Helm, Version};
use crate::harness::{Kubectl, Process, Scratch, eventually, free_port, kill_9, not_run};

pub(super) const ADMIN_TOKEN: &str = "admin-of-the-test";
/// Controllers on which the tests depend.
const CONTROLLERS: &str = "clusterrole-aggregation-controller,garbage-collector-controller,\
                           namespace-controller,serviceaccount-controller,\
                           root-ca-certificate-publisher-controller";

/// Directories with the binaries of Kubernetes.
struct Binaries(OsString);

impl Binaries {
    /// Returns `None` if the binaries are not provided.
    fn provided() -> Option<Self> {
        let provided = std::env::var_os("ROOFLET_KUBERNETES_PATH").map(Self);
        if provided.is_none() {
            not_run("the binaries that `cargo xtask test-kubernetes` provides");
        }
        provided
    }

    fn path(&self, name: &str) -> PathBuf {
        let candidates = std::env::split_paths(&self.0).map(|directory| directory.join(name));
        let mut found = candidates.filter(|file| file.is_file());
        found
            .next()
            .unwrap_or_else(|| panic!("{name} is not in ROOFLET_KUBERNETES_PATH"))
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.path(name))
    }
}

/// Returns the path of a binary, or `None` if the binaries are not provided.
pub(super) fn binary(name: &str) -> Option<PathBuf> {
    Binaries::provided().map(|binaries| binaries.path(name))
}

/// Running Kubernetes without nodes.
pub(super) struct KubernetesCluster {
    binaries: Binaries,
    api_server: Process,
    api_server_args: Vec<String>,
    _etcd: Process,
    _controller_manager: Option<Process>,
    pub(super) kubectl: Kubectl,
    pub(super) kubeconfig: PathBuf,
    pub(super) port: u16,
    /// Working directory of the processes; dropped last.
    pub(super) scratch: Scratch,
}

impl KubernetesCluster {
    /// Starts the cluster. Returns `None` if the binaries are not provided.
    pub(super) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts the cluster with additional flags of kube-apiserver.
    pub(super) fn start_with(flags: &[&str]) -> Option<Self> {
        let binaries = Binaries::provided()?;
        let scratch = Scratch::new();
        let etcd_port = free_port();
        let etcd = start_etcd(&binaries, &scratch, etcd_port);
        let port = free_port();
        let mut args = api_server_args(&scratch, etcd_port, port);
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let api_server = start_api_server(&binaries, &scratch, &args);
        let kubeconfig = scratch.join("kubeconfig");
        let certificate = scratch.join("certificates/apiserver.crt");
        eventually("the certificate of kube-apiserver", || {
            match certificate.exists() {
                true => Ok(()),
                false => Err(api_server.log()),
            }
        });
        write_kubeconfig(&kubeconfig, port, &certificate, ADMIN_TOKEN);
        let kubectl = Kubectl::of(&binaries.path("kubectl"), &kubeconfig, scratch.path());
        let mut cluster = Self {
            binaries,
            api_server,
            api_server_args: args,
            _etcd: etcd,
            _controller_manager: None,
            kubectl,
            kubeconfig,
            port,
            scratch,
        };
        cluster.wait_for_api_server();
        let mut manager = cluster.binaries.command("kube-controller-manager");
        manager
            .arg(format!("--kubeconfig={}", cluster.kubeconfig.display()))
            .arg(format!("--controllers={CONTROLLERS}"))
            .arg(format!("--root-ca-file={}", certificate.display()))
            .arg(format!("--secure-port={}", free_port()))
            .arg("--leader-elect=false");
        cluster._controller_manager = Some(Process::run(&mut manager, &cluster.scratch.join("manager.log")));
        Some(cluster)
    }

    /// Returns the path of kubectl.
    pub(super) fn kubectl_program(&self) -> PathBuf {
        self.binaries.path("kubectl")
    }

    /// Kills kube-apiserver and starts it again with the same data.
    pub(super) fn restart_api_server(&mut self) {
        kill_9(self.api_server.pid());
        self.api_server.wait();
        self.api_server = start_api_server(&self.binaries, &self.scratch, &self.api_server_args);
        self.wait_for_api_server();
    }

    fn wait_for_api_server(&self) {
        eventually("kube-apiserver being ready", || {
            let ready = self.kubectl.run("get --raw /readyz");
            let namespace = self.kubectl.run("get namespace kube-node-lease");
            match ready.success && namespace.success {
                true => Ok(()),
                false => Err(self.api_server.log()),
            }
        });
    }

    /// Runs `helm ARGS` of Helm 3 as the administrator.
    pub(super) fn helm(&self, args: &[&str]) -> Result<String, String> {
        let program = self.binaries.path("helm");
        Helm::of(Version::Three, program, &self.kubeconfig, self.scratch.path()).run(args)
    }

    /// Writes the kubeconfig of a ServiceAccount in the namespace of the release.
    pub(super) fn service_account_kubeconfig(&self, account: &str) -> PathBuf {
        self.kubeconfig_with(account, &self.token(account))
    }

    /// Writes a kubeconfig with a token.
    pub(super) fn kubeconfig_with(&self, name: &str, token: &str) -> PathBuf {
        let path = self.scratch.join(&format!("{name}.kubeconfig"));
        let certificate = self.scratch.join("certificates/apiserver.crt");
        write_kubeconfig(&path, self.port, &certificate, token);
        path
    }

    /// Writes the files that a Pod of the ServiceAccount has. Returns their directory.
    pub(super) fn service_account_files(&self, account: &str) -> PathBuf {
        let directory = self.scratch.join(&format!("{account}.files"));
        std::fs::create_dir_all(&directory).expect("writable");
        let write = |name: &str, text: &[u8]| {
            std::fs::write(directory.join(name), text).expect("writable");
        };
        write("token", self.token(account).as_bytes());
        write("namespace", super::control_plane::NAMESPACE.as_bytes());
        let certificate = std::fs::read(self.scratch.join("certificates/apiserver.crt")).expect("readable");
        write("ca.crt", &certificate);
        directory
    }

    fn token(&self, account: &str) -> String {
        let namespace = super::control_plane::NAMESPACE;
        let token = self
            .kubectl
            .run(&format!("--namespace={namespace} create token {account}"));
        token.ok().trim().to_owned()
    }
}

fn start_etcd(binaries: &Binaries, scratch: &Scratch, port: u16) -> Process {
    let (client, peer) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{}", free_port()),
    );
    let mut etcd = binaries.command("etcd");
    etcd.arg(format!("--data-dir={}", scratch.join("etcd").display()))
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .arg(format!("--initial-cluster=default={peer}"))
        // The data need not survive a crash of the machine.
        .arg("--unsafe-no-fsync");
    Process::run(&mut etcd, &scratch.join("etcd.log"))
}

fn api_server_args(scratch: &Scratch, etcd_port: u16, port: u16) -> Vec<String> {
    let key = KeyPair::generate().expect("a key");
    let public_key = scratch.write("service-account.pub", &key.public_key_pem());
    let key = scratch.write("service-account.key", &key.serialize_pem());
    let tokens = format!("{ADMIN_TOKEN},admin,admin,system:masters\n");
    let tokens = scratch.write("tokens.csv", &tokens).display().to_string();
    let certificates = scratch.join("certificates").display().to_string();
    [
        ("etcd-servers", format!("http://127.0.0.1:{etcd_port}")),
        ("bind-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        ("cert-dir", certificates),
        ("token-auth-file", tokens),
        ("authorization-mode", "RBAC".to_owned()),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".to_owned(),
        ),
        ("service-account-key-file", public_key.display().to_string()),
        ("service-account-signing-key-file", key.display().to_string()),
        ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
    ]
    .map(|(flag, value)| format!("--{flag}={value}"))
    .into()
}

fn start_api_server(binaries: &Binaries, scratch: &Scratch, args: &[String]) -> Process {
    let mut command = binaries.command("kube-apiserver");
    Process::run(command.args(args), &scratch.join("apiserver.log"))
}

fn write_kubeconfig(path: &Path, port: u16, certificate: &Path, token: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n\
         clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: test, user: {{token: '{token}'}}}}]\n",
        certificate.display()
    );
    std::fs::write(path, text).expect("writable");
}

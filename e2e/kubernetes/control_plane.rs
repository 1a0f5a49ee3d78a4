//! Processes of an installed release: the commands of the rendered Deployments, with the files of
//! their ServiceAccounts.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::cluster::KubernetesCluster;
use crate::harness::{Http, Process, eventually, free_port, repository, rooflet};

/// Namespace of the release.
pub(super) const NAMESPACE: &str = "rooflet-system";

/// Container of a Deployment as a process of the test.
pub(super) struct Pod {
    pub(super) process: Process,
    /// HTTP server of the container.
    pub(super) http: Http,
    /// URL of this server.
    pub(super) url: String,
}

impl Pod {
    /// Starts the container of Deployment `rooflet-COMPONENT` and waits until its readiness probe
    /// succeeds.
    pub(super) fn start(cluster: &KubernetesCluster, component: &str, name: &str) -> Self {
        let deployment = cluster
            .kubectl
            .json(&format!("--namespace={NAMESPACE} deployment rooflet-{component}"))
            .expect("installed");
        let pod = &deployment["spec"]["template"]["spec"];
        let account = pod["serviceAccountName"].as_str().expect("a ServiceAccount");
        let container = &pod["containers"][0];
        let own = container["ports"][0]["containerPort"].as_u64().expect("a port");
        let port = free_port();
        // All processes share the network of this machine.
        let args = container["args"].as_array().into_iter().flatten();
        let args = args
            .filter_map(Value::as_str)
            .map(|arg| arg.replace(&format!("0.0.0.0:{own}"), &format!("127.0.0.1:{port}")));
        let files = cluster.service_account_files(account);
        let mut command = in_pod(&files.display().to_string());
        command
            .arg(rooflet())
            .args(args)
            .env_remove("KUBECONFIG")
            .env("HOME", cluster.scratch.path())
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", cluster.port.to_string());
        let process = Process::run(&mut command, &cluster.scratch.join(&format!("{name}.log")));
        let url = format!("http://127.0.0.1:{port}");
        let http = Http::new(url.clone());
        let probe = container["readinessProbe"]["httpGet"]["path"]
            .as_str()
            .expect("a probe");
        eventually(&format!("readiness of {name}"), || match http.get(probe) {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("{}: {}", answer.status, process.log())),
            Err(err) => Err(format!("{err}: {}", process.log())),
        });
        Self { process, http, url }
    }
}

/// Returns a command that runs its arguments in a mount namespace with the files in `directory` at
/// the location of a Pod's ServiceAccount.
fn in_pod(directory: &str) -> Command {
    // `/var/run` is a link to `/run`. The rest of `/run` is not needed.
    let script = "mount -t tmpfs tmpfs /run \
                  && mkdir -p /run/secrets/kubernetes.io/serviceaccount \
                  && cp \"$0\"/* /run/secrets/kubernetes.io/serviceaccount/ && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        directory,
    ]);
    command
}

/// Installs the chart for these nodes.
pub(super) fn install(cluster: &KubernetesCluster, nodes: &[&str]) {
    let nodes = format!("--set=agents.nodes={{{}}}", nodes.join(","));
    let namespace = format!("--namespace={NAMESPACE}");
    let args = [
        "install",
        "rooflet",
        "charts/rooflet",
        &namespace,
        "--create-namespace",
        &nodes,
    ];
    cluster.helm(&args).expect("installed");
}

/// Runs `rooflet token create ARGS` as the administrator.
pub(super) fn create_token(cluster: &KubernetesCluster, args: &[&str]) -> Output {
    Command::new(rooflet())
        .args(["token", "create"])
        .arg(format!("--server=https://127.0.0.1:{}", cluster.port))
        .args(args)
        .env("KUBECONFIG", &cluster.kubeconfig)
        .output()
        .expect("the binary starts")
}

/// Runs `rooflet join` for a node with the kubeconfig on standard input.
pub(super) fn join(cluster: &KubernetesCluster, node: &str, kubeconfig: &[u8]) -> Output {
    let mut child = Command::new(rooflet())
        .args(["join", "--token-file=-"])
        .arg(format!("--state-dir={}", cluster.scratch.join(node).display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(kubeconfig).expect("read");
    drop(stdin);
    child.wait_with_output().expect("the binary ends")
}

/// Joins a Mac, and starts its agent with a simulated chip.
pub(super) fn start_agent(cluster: &KubernetesCluster, node: &str) -> Process {
    let created = create_token(cluster, &["--node", node]);
    assert!(created.status.success(), "{created:?}");
    let joined = join(cluster, node, &created.stdout);
    assert!(joined.status.success(), "{joined:?}");
    run_agent(cluster, node)
}

/// Starts the agent of a Mac that has joined. It serves other machines.
pub(super) fn run_agent(cluster: &KubernetesCluster, node: &str) -> Process {
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join(node).display()),
        format!("--model-dir={}", repository("examples/models").display()),
        "--listen=0.0.0.0:0".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--no-probe".to_owned(),
        "--simulated-chip=M4".to_owned(),
        "--simulated-gpu-cores=10".to_owned(),
        "--simulated-memory=16Gi".to_owned(),
    ];
    Process::start(args, &cluster.scratch.join(&format!("{node}.log")))
}

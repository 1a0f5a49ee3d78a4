//! Processes of a server that has the role gateway and other roles. The gateway has a process of its
//! own, so that its streams outlive a crash of the control plane.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::warn;

use crate::cli::Failure;
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_composition::server::Role;
use rooflet_composition::supervisor::{ChildEvent, ChildSpec, Supervised};
use rooflet_web::WebListen;

/// Interval of checks whether the API server accepts connections.
const POLL: Duration = Duration::from_millis(50);
/// Timeout until all tasks have ended after the child processes have exited.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Arguments that the processes do not share.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) roles: Vec<Role>,
    pub(super) listen: SocketAddr,
    pub(super) gateway_listen: SocketAddr,
    pub(super) web_listen: WebListen,
    /// Kubeconfig that the API server writes for the gateway.
    pub(super) gateway_kubeconfig: Utf8PathBuf,
    /// Time for answers in progress to finish after the server was asked to stop.
    pub(super) stop_grace: Duration,
}

impl Processes {
    /// Runs the processes until `tasks` stop, or one of them cannot run. `own` are the arguments of
    /// this process.
    pub(super) async fn run(&self, own: &[OsString], tasks: &Tasks) -> Result<(), Failure> {
        let stop = tasks.stop_token();
        let (events_tx, mut events) = mpsc::channel(64);
        let mut children = Vec::new();
        let outcome = tokio::select! {
            failure = watch(&mut events) => Err(failure),
            () = stop.cancelled() => Ok(()),
            never = self.start(own, tasks, &events_tx, &mut children) => match never {},
        };
        events.close();
        // The gateway stops first, so that it finishes its streams while the control plane runs.
        while let Some(child) = children.pop() {
            child.stop().await;
        }
        tasks.cancel();
        drop(tasks.join(STOP_GRACE).await);
        outcome
    }

    /// Starts the processes. Never returns.
    async fn start(
        &self,
        own: &[OsString],
        tasks: &Tasks,
        events: &mpsc::Sender<ChildEvent>,
        children: &mut Vec<Supervised>,
    ) -> std::convert::Infallible {
        let start = |name, args| {
            let spec = ChildSpec {
                name,
                args,
                log: None,
                stop_grace: self.stop_grace,
            };
            Supervised::start(spec, Clock::System, tasks, events.clone())
        };
        children.push(start("control plane", self.control_plane(own)));
        if self.has_api_server() {
            self.api_server_ready().await;
        }
        children.push(start("gateway", self.gateway(own)));
        std::future::pending().await
    }

    fn has_api_server(&self) -> bool {
        self.roles.contains(&Role::Apiserver)
    }

    /// Waits until the API server has written the gateway's kubeconfig and accepts connections.
    async fn api_server_ready(&self) {
        let mut address = self.listen;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        while !self.gateway_kubeconfig.exists() || TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(POLL).await;
        }
    }

    fn control_plane(&self, own: &[OsString]) -> Vec<OsString> {
        let mut args = without(own, &["--roles", "--listen", "--gateway-listen", "--web-listen"]);
        let names = [
            (Role::Apiserver, "apiserver"),
            (Role::Controller, "controller"),
            (Role::Web, "web"),
        ];
        let names = names.into_iter().filter(|(role, _)| self.roles.contains(role));
        let roles: Vec<_> = names.map(|(_, name)| name).collect();
        args.push(format!("--roles={}", roles.join(",")).into());
        args.push(format!("--listen={}", self.listen).into());
        args.push(format!("--gateway-listen={}", self.gateway_listen).into());
        args.push(format!("--web-listen={}", self.web_listen).into());
        args.push(STOP_WITH_STDIN.into());
        args
    }

    fn gateway(&self, own: &[OsString]) -> Vec<OsString> {
        let mut removed = vec![
            "--roles",
            "--listen",
            "--gateway-listen",
            "--web-listen",
            "--metrics-listen",
            "--simulate",
            "--gateway-url",
        ];
        // The flags of Prometheus stay, although the gateway does not use them: one of them may be a
        // variable, which the gateway inherits and which requires the other.
        if self.has_api_server() {
            removed.push("--kubeconfig");
        }
        let mut args = without(own, &removed);
        args.push("--roles=gateway".into());
        args.push(format!("--gateway-listen={}", self.gateway_listen).into());
        if self.has_api_server() {
            args.push(format!("--kubeconfig={}", self.gateway_kubeconfig).into());
            args.push("--local-authority".into());
        }
        args.push(STOP_WITH_STDIN.into());
        args
    }
}

const STOP_WITH_STDIN: &str = "--stop-with-stdin";

/// Returns the arguments without these flags and their values, and without `--stop-with-stdin`.
fn without(args: &[OsString], flags: &[&str]) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let name = text.split_once('=').map_or(&*text, |(name, _)| name);
        if flags.contains(&name) {
            if name == text {
                // The value is the next argument.
                args.next();
            }
        } else if text != STOP_WITH_STDIN {
            left.push(arg.clone());
        }
    }
    left
}

/// Logs restarts. Returns when a process cannot run.
async fn watch(events: &mut mpsc::Receiver<ChildEvent>) -> Failure {
    while let Some(event) = events.recv().await {
        match event {
            ChildEvent::Restarting { name, how, wait } => {
                warn!(
                    process = name,
                    wait_seconds = wait.as_secs_f64(),
                    "process {how}; restarting"
                );
            }
            ChildEvent::GaveUp {
                name, how, status, ..
            } => {
                return Failure::new(status, anyhow!("the {name} {how}"));
            }
        }
    }
    // The channel closes only after all children were stopped on request.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn processes_share_all_arguments_but_roles_and_ports() {
        let all = Processes {
            roles: vec![Role::Apiserver, Role::Controller, Role::Gateway, Role::Web],
            listen: "127.0.0.1:1".parse().expect("an address"),
            gateway_listen: "127.0.0.1:2".parse().expect("an address"),
            web_listen: "off".parse().expect("a value"),
            gateway_kubeconfig: "/d/gateway.kubeconfig".into(),
            stop_grace: Duration::from_secs(15),
        };
        let own = args(
            "server --data-dir /d --listen 127.0.0.1:0 --gateway-listen=127.0.0.1:0 --web-listen off --simulate f.yaml --kubeconfig x --let-sleep --prometheus-url http://p",
        );
        assert_eq!(
            all.control_plane(&own),
            args(
                "server --data-dir /d --simulate f.yaml --kubeconfig x --let-sleep --prometheus-url http://p --roles=apiserver,controller,web \
                 --listen=127.0.0.1:1 --gateway-listen=127.0.0.1:2 --web-listen=off --stop-with-stdin"
            )
        );
        assert_eq!(
            all.gateway(&own),
            args(
                "server --data-dir /d --let-sleep --prometheus-url http://p --roles=gateway --gateway-listen=127.0.0.1:2 \
                 --kubeconfig=/d/gateway.kubeconfig --local-authority --stop-with-stdin"
            )
        );
        let remote = Processes {
            roles: vec![Role::Gateway, Role::Controller],
            ..all
        };
        let own = args("server --roles controller,gateway --kubeconfig=x --metrics-listen 127.0.0.1:3");
        assert_eq!(
            remote.control_plane(&own),
            args(
                "server --kubeconfig=x --metrics-listen 127.0.0.1:3 --roles=controller --listen=127.0.0.1:1 \
                 --gateway-listen=127.0.0.1:2 --web-listen=off --stop-with-stdin"
            )
        );
        assert_eq!(
            remote.gateway(&own),
            args("server --kubeconfig=x --roles=gateway --gateway-listen=127.0.0.1:2 --stop-with-stdin")
        );
    }
}

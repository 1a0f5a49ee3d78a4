//! Client of controllers and gateways whose kubeconfig may change, for example because the control
//! plane was rebuilt.

use std::time::Duration;

use camino::Utf8PathBuf;
use kube::Client;
use tracing::{info, warn};

use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_client::{ConnectError, KubeconfigSource, Renewable, connect};

/// Interval between checks of the file.
const PERIOD: Duration = Duration::from_secs(5);

/// Returns a client that uses the current content of the kubeconfig until `tasks` stop.
pub(super) async fn follow(
    source: &KubeconfigSource,
    clock: &Clock,
    tasks: &Tasks,
) -> Result<Client, ConnectError> {
    let KubeconfigSource::File(path) = source else {
        return connect(source, clock).await;
    };
    let (client, mut followed) = Followed::open(path.clone(), clock.clone()).await?;
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => followed.check().await,
            }
        }
    });
    Ok(client)
}

/// Kubeconfig with the content that the client uses.
struct Followed {
    path: Utf8PathBuf,
    content: Option<Vec<u8>>,
    renewable: Renewable,
    clock: Clock,
}

impl Followed {
    async fn open(path: Utf8PathBuf, clock: Clock) -> Result<(Client, Self), ConnectError> {
        let content = std::fs::read(&path).ok();
        let client = connect(&KubeconfigSource::File(path.clone()), &clock).await?;
        let (client, renewable) = Renewable::new(client);
        let followed = Self {
            path,
            content,
            renewable,
            clock,
        };
        Ok((client, followed))
    }

    /// Uses the current content if it has changed.
    async fn check(&mut self) {
        let current = std::fs::read(&self.path).ok();
        // A file that is missing or being written is read again later.
        if current.is_none() || current == self.content {
            return;
        }
        self.content = current;
        match connect(&KubeconfigSource::File(self.path.clone()), &self.clock).await {
            Ok(client) => {
                info!(kubeconfig = %self.path, "kubeconfig changed; reconnecting");
                self.renewable.replace(client);
            }
            Err(err) => warn!(
                kubeconfig = %self.path,
                error = %Chain(&err),
                "changed kubeconfig is unusable; keeping the previous credentials"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use axum::{Json, Router};
    use rooflet_testing::{TempDir, within};
    use serde_json::json;

    /// Serves only the version. Returns the address.
    async fn server(version: &'static str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let answer = json!({
            "major": "1", "minor": "36", "gitVersion": version, "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        });
        let router = Router::new().route("/version", get(|| async move { Json(answer) }));
        Tasks::new().spawn_detached(async move {
            axum::serve(listener, router).await.expect("serves");
        });
        format!("http://{address}")
    }

    fn kubeconfig(server: &str) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": server}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        })
        .to_string()
    }

    #[tokio::test]
    async fn client_uses_the_changed_kubeconfig() {
        let directory = TempDir::new();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig(&server("v1").await)).expect("writable");
        let opened = Followed::open(path.clone(), Clock::System).await;
        let (client, mut followed) = opened.expect("a kubeconfig");
        let version = || async {
            let found = within(client.apiserver_version()).await;
            found.expect("a version").git_version
        };
        assert_eq!(version().await, "v1");
        for unusable in ["", "not: [a kubeconfig"] {
            std::fs::write(&path, unusable).expect("writable");
            followed.check().await;
            assert_eq!(version().await, "v1", "{unusable}");
        }
        std::fs::write(&path, kubeconfig(&server("v2").await)).expect("writable");
        followed.check().await;
        assert_eq!(version().await, "v2");
    }
}

//! Watches of a machine that slept while the network forgot its connections.

use std::net::SocketAddr;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use rooflet_base::clock::ManualClock;
use rooflet_client::{Cache, Changes};

/// Proxy that can make its open connections half-open: no byte passes, and neither side is closed.
struct Proxy {
    address: SocketAddr,
    interruptions: watch::Sender<()>,
}

impl Proxy {
    async fn start(tasks: &Tasks, target: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (interruptions, interrupted_rx) = watch::channel(());
        let (connections, stop) = (tasks.clone(), tasks.stop_token());
        tasks.spawn_detached(async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let (mut near, _) = accepted.expect("accepts");
                let mut far = TcpStream::connect(&target).await.expect("the server listens");
                let (mut interrupted_rx, stop) = (interrupted_rx.clone(), stop.clone());
                interrupted_rx.mark_unchanged();
                connections.spawn_detached(async move {
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = interrupted_rx.changed() => stop.cancelled().await,
                        () = stop.cancelled() => {}
                    }
                });
            }
        });
        Self {
            address,
            interruptions,
        }
    }

    /// Makes all open connections half-open. New connections work.
    fn interrupt(&self) {
        self.interruptions.send_replace(());
    }
}

#[tokio::test]
async fn cache_sees_new_objects_after_sleep_with_half_open_connections() {
    let fixture = Fixture::start().await;
    let kubeconfig = std::fs::read_to_string(&fixture.kubeconfig).expect("written");
    let server = kubeconfig.split_once("https://").expect("a URL").1;
    let server = server
        .split(['"', '\'', '\n'])
        .next()
        .expect("an address")
        .to_owned();
    let proxy = Proxy::start(&fixture.tasks, server.clone()).await;
    let path = fixture.kubeconfig.with_file_name("through-proxy");
    std::fs::write(&path, kubeconfig.replace(&server, &proxy.address.to_string())).expect("written");

    let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let client = connect(&KubeconfigSource::File(path), &clock)
        .await
        .expect("a good kubeconfig");
    let nodes: Cache<FleetNode> = rooflet_client::watch(
        &fixture.tasks,
        Api::all(client.clone()),
        watcher::Config::default(),
        &clock,
        &Changes::new(),
    );
    fixture.join("before", 8).await;
    until("the cache has the first node", || async {
        nodes.get(None, "before").is_some()
    })
    .await;
    // Leaves an idle connection in the client's pool.
    client.apiserver_version().await.expect("an answer");

    proxy.interrupt();
    fixture.join("during", 8).await;
    let observed = tokio::time::timeout(Duration::from_millis(500), async {
        until("never", || async { nodes.get(None, "during").is_some() }).await;
    });
    assert!(observed.await.is_err(), "the watch is half-open");

    manual.sleep(Duration::from_secs(3600));
    let observed = tokio::time::timeout(Duration::from_secs(20), async {
        until("the cache has the node", || async {
            nodes.get(None, "during").is_some()
        })
        .await;
        client.apiserver_version().await.expect("an answer");
    });
    observed.await.expect("within seconds of the end of the sleep");
}

//! Watches of a machine that slept while the network forgot its connections.

use std::net::SocketAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use rooflet_base::clock::ManualClock;
use rooflet_client::{Cache, Changes};
use rooflet_doctor::sleep::heartbeat::{Heartbeat, HeartbeatError, Renewal};

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

/// Returns a proxy to the server of a fixture, a clock that can sleep, and a client that uses both.
async fn through_proxy(fixture: &Fixture) -> (Proxy, ManualClock, Client) {
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
    let client = connect(&KubeconfigSource::File(path), &Clock::Manual(manual.clone()))
        .await
        .expect("a good kubeconfig");
    (proxy, manual, client)
}

#[tokio::test]
async fn cache_sees_new_objects_after_sleep_with_half_open_connections() {
    let fixture = Fixture::start().await;
    let (proxy, manual, client) = through_proxy(&fixture).await;
    let clock = Clock::Manual(manual.clone());
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

/// `rooflet doctor --sleep` watches the Lease of its node.
#[tokio::test]
async fn doctor_sees_the_renewed_lease_after_sleep_with_half_open_connections() {
    let fixture = Fixture::start().await;
    fixture.join("a", 8).await;
    let (proxy, manual, client) = through_proxy(&fixture).await;
    let clock = Clock::Manual(manual.clone());
    let unknown = Heartbeat::watch(client.clone(), "b", &clock).await;
    assert_eq!(unknown.err(), Some(HeartbeatError::NoLease));
    let heartbeat = Heartbeat::watch(client, "a", &clock).await.expect("watched");

    proxy.interrupt();
    manual.sleep(Duration::from_secs(3600));
    let woken = clock.now();
    let never = heartbeat.renewal_after(woken, Duration::ZERO).await;
    assert_eq!(never, None);
    let renewed = json!({ "spec": { "renewTime": MicroTime(woken + Duration::from_secs(2)) } });
    let leases: Api<Lease> = Api::namespaced(fixture.client.clone(), LEASE_NAMESPACE);
    leases
        .patch(&lease_name("a"), &PatchParams::default(), &Patch::Merge(renewed))
        .await
        .expect("patched");
    manual.advance(Duration::from_secs(5));
    let renewal = heartbeat.renewal_after(woken, DEADLINE).await;
    let expect = Renewal {
        renewed: Duration::from_secs(2),
        reported: Duration::from_secs(5),
    };
    assert_eq!(renewal, Some(expect));
}

//! Identity of the fleet: the UID of the namespace `kube-system` at the API server.
//!
//! A rebuilt API server has an empty store and another UID. Replicas that it does not list were not
//! deleted, so their workers keep running. [`Restoration`](crate::replica::restorer::Restoration)
//! creates the objects of those whose deployments exist.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::connection::ConnectionState;
use crate::replica::ReplicaKey;
use crate::state::StateDir;
use rooflet_base::error::Chain;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_base::mutex::lock;
use rooflet_client::{ApiError, Attempts, Changes};

/// Namespace whose UID identifies the fleet. It exists on every API server.
const NAMESPACE: &str = "kube-system";
/// File in the state directory that stores the UID.
const FILE: &str = "fleet.json";
/// Interval of checks that nothing requests.
const RECHECK: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after the first replica of another fleet on this node in which all workers keep running:
/// deployments are applied one after another.
const SETTLING: Duration = Duration::from_secs(30);
/// Time after the first replica of another fleet on this node at which workers of unknown
/// deployments stop.
const EXPIRY: Duration = Duration::from_secs(600);

/// Handle of the fleet's identity. Clones share it.
#[derive(Clone)]
pub(crate) struct FleetIdentity {
    state: Arc<StateDir>,
    known: Arc<Mutex<Known>>,
    /// Number of the last requested check.
    requests_tx: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct Known {
    /// UID of the fleet of the running workers.
    accepted: Option<String>,
    /// UID of the current API server. `None` if it is unknown or not readable.
    reported: Option<String>,
    /// Number of the last request that was answered.
    answered: u64,
}

impl Known {
    fn is_other(&self) -> bool {
        self.reported.is_some() && self.reported != self.accepted
    }
}

/// Running replicas that the API server does not list.
#[derive(Debug)]
pub(crate) struct Absence {
    keys: BTreeSet<ReplicaKey>,
    /// Check of the fleet's identity that was requested after the absence was found.
    request: u64,
    /// Time since which the other fleet has replicas on this node.
    listed_since: Option<Instant>,
}

/// Decision about running workers whose replicas the API server does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// The replicas were deleted in this fleet. The workers stop.
    Stop,
    /// The API server is not identified since the absence was found. The workers keep running.
    Unidentified,
    /// The API server belongs to another fleet. The workers keep running.
    Keep,
    /// Like `Keep`, but a worker without a deployment stops if another replica needs its resources.
    Yield,
    /// Like `Keep`, but the workers without a deployment stop.
    Expire,
}

impl FleetIdentity {
    pub(crate) fn load(state: Arc<StateDir>) -> Self {
        let accepted = state.read(FILE).unwrap_or_else(|err| {
            warn!(error = %Chain(&err), "failed to read the identity of the fleet");
            None
        });
        Self {
            state,
            known: Arc::new(Mutex::new(Known {
                accepted,
                ..Known::default()
            })),
            requests_tx: Arc::new(watch::Sender::new(1)),
        }
    }

    /// Decides about the workers of the `absent` replicas. `has_listed` is true if the server lists
    /// other replicas of this node.
    pub(crate) fn retention(
        &self,
        absence: &mut Option<Absence>,
        absent: BTreeSet<ReplicaKey>,
        has_listed: bool,
        now: Instant,
    ) -> Retention {
        if absent.is_empty() {
            *absence = None;
            self.accept();
            return Retention::Stop;
        }
        let known = match absence {
            Some(known) if absent.is_subset(&known.keys) => known,
            Some(_) | None => {
                let request = self.requests_tx.latest() + 1;
                self.requests_tx.send_replace(request);
                absence.insert(Absence {
                    keys: absent,
                    request,
                    listed_since: None,
                })
            }
        };
        let (is_answered, is_other) = {
            let fleet = lock(&self.known);
            (fleet.answered >= known.request, fleet.is_other())
        };
        if !is_answered {
            return Retention::Unidentified;
        }
        if !is_other {
            return Retention::Stop;
        }
        if !has_listed {
            known.listed_since = None;
            return Retention::Keep;
        }
        match now - *known.listed_since.get_or_insert(now) {
            listed_for if listed_for < SETTLING => Retention::Keep,
            listed_for if listed_for < EXPIRY => Retention::Yield,
            _ => Retention::Expire,
        }
    }

    /// Accepts the fleet of the current API server.
    fn accept(&self) {
        let mut known = lock(&self.known);
        if known.is_other() {
            known.accepted = known.reported.clone();
            self.save(&known);
        }
    }

    fn answer(&self, request: u64, reported: Option<String>) {
        let mut known = lock(&self.known);
        let was_other = known.is_other();
        known.reported = reported;
        known.answered = request;
        if known.accepted.is_none() && known.reported.is_some() {
            known.accepted = known.reported.clone();
            self.save(&known);
        }
        if known.is_other() && !was_other {
            warn!(
                known = known.accepted,
                found = known.reported,
                "API server belongs to another fleet; workers of the known fleet keep running, and the agent restores their replicas when their deployments are applied"
            );
        }
    }

    fn save(&self, known: &Known) {
        if let Err(err) = self.state.write(FILE, &known.accepted) {
            warn!(error = %Chain(&err), "failed to save the identity of the fleet");
        }
    }

    /// Identifies the API server after each request and periodically, until `stop`.
    pub(crate) async fn identify(
        self,
        client: Client,
        changes: Changes,
        connection: ConnectionState,
        stop: CancellationToken,
    ) {
        let mut attempts = Attempts::new("identifying the API server");
        let mut requests_rx = self.requests_tx.subscribe();
        loop {
            let request = requests_rx.see_latest();
            let read = tokio::select! {
                () = stop.cancelled() => return,
                read = tokio::time::timeout(TIMEOUT, uid(&client)) => read,
            };
            let no_answer = |_| {
                Err(ApiError::Unreachable(format!(
                    "no answer within {} s",
                    TIMEOUT.as_secs()
                )))
            };
            let wait = match read.unwrap_or_else(no_answer) {
                Ok(reported) => {
                    attempts.succeeded();
                    connection.succeeded();
                    self.answer(request, reported);
                    changes.mark();
                    RECHECK
                }
                Err(err) => {
                    connection.failed(&err);
                    attempts.failed(&err)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = requests_rx.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

/// Returns the UID. `None` if the server does not let this node read it.
async fn uid(client: &Client) -> Result<Option<String>, ApiError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_opt(NAMESPACE).await {
        Ok(namespace) => Ok(namespace.and_then(|namespace| namespace.uid())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(err) => Err(err.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    struct Fixture {
        directory: TempDir,
        fleet: FleetIdentity,
        absence: Option<Absence>,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = TempDir::new();
            let fleet = FleetIdentity::load(Arc::new(StateDir::open(directory.path()).unwrap()));
            Self {
                directory,
                fleet,
                absence: None,
                now: rooflet_base::clock::Clock::System.instant(),
            }
        }

        fn retention(&mut self, absent: &[&str], has_listed: bool) -> Retention {
            let absent = absent.iter().map(|name| ReplicaKey::new("default", *name));
            self.fleet
                .retention(&mut self.absence, absent.collect(), has_listed, self.now)
        }

        fn answer(&self, uid: Option<&str>) {
            let request = self.fleet.requests_tx.latest();
            self.fleet.answer(request, uid.map(str::to_owned));
        }

        fn accepted(&self) -> String {
            let file = self.directory.path().join(FILE);
            std::fs::read_to_string(file).unwrap().trim().to_owned()
        }
    }

    #[test]
    fn workers_of_unlisted_replicas_stop_only_in_the_same_fleet() {
        let mut fixture = Fixture::new();
        fixture.answer(Some("one"));
        assert_eq!(
            fixture.retention(&["a"], false),
            Retention::Unidentified,
            "the server may be another one since"
        );
        fixture.answer(Some("one"));
        assert_eq!(fixture.retention(&["a"], false), Retention::Stop);
        assert_eq!(
            fixture.retention(&["a", "b"], false),
            Retention::Unidentified,
            "a new absence needs a new check"
        );
        fixture.answer(Some("one"));
        assert_eq!(fixture.retention(&["b"], false), Retention::Stop);
    }

    #[test]
    fn workers_survive_the_first_replicas_of_another_fleet() {
        let mut fixture = Fixture::new();
        fixture.answer(Some("one"));
        assert_eq!(fixture.retention(&["a", "b"], false), Retention::Unidentified);
        fixture.answer(Some("two"));
        assert_eq!(fixture.retention(&["a", "b"], false), Retention::Keep);
        fixture.now += EXPIRY;
        assert_eq!(fixture.retention(&["a"], false), Retention::Keep);
        assert_eq!(fixture.retention(&["a"], true), Retention::Keep);
        fixture.now += SETTLING;
        assert_eq!(fixture.retention(&["a"], true), Retention::Yield);
        fixture.now += EXPIRY - SETTLING;
        assert_eq!(fixture.retention(&["a"], true), Retention::Expire);
        assert_eq!(fixture.accepted(), "\"one\"", "a worker of the former fleet runs");
        assert_eq!(fixture.retention(&[], true), Retention::Stop);
        assert_eq!(fixture.accepted(), "\"two\"");
    }

    #[test]
    fn node_without_workers_accepts_another_fleet() {
        let mut fixture = Fixture::new();
        fixture.answer(Some("one"));
        fixture.answer(Some("two"));
        fixture.retention(&[], false);
        assert_eq!(fixture.accepted(), "\"two\"");
        fixture.retention(&["a"], false);
        fixture.answer(Some("two"));
        assert_eq!(fixture.retention(&["a"], false), Retention::Stop);
    }

    #[test]
    fn server_that_hides_its_identity_counts_as_the_same() {
        let mut fixture = Fixture::new();
        fixture.answer(None);
        assert_eq!(fixture.retention(&["a"], false), Retention::Unidentified);
        fixture.answer(None);
        assert_eq!(fixture.retention(&["a"], false), Retention::Stop);
    }
}

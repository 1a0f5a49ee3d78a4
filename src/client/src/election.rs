//! Leader election with a Lease, with the rules of client-go.
//!
//! A candidate never compares clocks with the holder. It takes over a Lease that has not changed
//! for its whole duration by the candidate's own clock. A holder that cannot renew in time stops
//! leading, well before another candidate may start.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{ApiError, Attempts, Backoff, FIELD_MANAGER, remedy};
use rooflet_base::clock::{Clock, Moment};
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;

/// Time without renewal after which a Lease may be taken over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without a successful renewal after which the holder stops leading.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between attempts.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Candidate for one Lease.
pub struct Elector {
    leases: Api<Lease>,
    namespace: String,
    name: &'static str,
    identity: String,
    clock: Clock,
}

/// Proof of leadership, valid since the last renewal. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    renewed: Arc<Mutex<Moment>>,
    lost: CancellationToken,
    clock: Clock,
}

impl Leadership {
    fn new(clock: Clock, renewed: Moment) -> Self {
        Self {
            renewed: Arc::new(Mutex::new(renewed)),
            lost: CancellationToken::new(),
            clock,
        }
    }

    /// Returns whether no other process can be leading now. Check this before every write that two
    /// leaders must not both make.
    pub fn holds(&self) -> bool {
        !self.lost.is_cancelled() && self.age() < RENEW_DEADLINE
    }

    fn age(&self) -> Duration {
        let renewed = *lock(&self.renewed);
        renewed.age(&self.clock)
    }

    fn renew(&self, at: Moment) {
        *lock(&self.renewed) = at;
    }
}

/// Last observed record of the holder, and the time of its last observed change.
#[derive(Debug, Clone, PartialEq)]
struct Observed {
    spec: LeaseSpec,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The Lease is ours or free.
    Take,
    /// Another process holds the Lease.
    Wait { holder: String },
}

/// Decides whether `identity` may take the Lease.
fn decide(observed: &Observed, identity: &str, now: Instant) -> Verdict {
    let holder = observed.spec.holder_identity.as_deref().unwrap_or_default();
    let duration = observed
        .spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(LEASE_DURATION, Duration::from_secs);
    if holder.is_empty() || holder == identity || now - observed.since >= duration {
        Verdict::Take
    } else {
        Verdict::Wait {
            holder: holder.to_owned(),
        }
    }
}

/// Returns the record with which `identity` takes or renews the Lease.
fn taken(before: Option<&LeaseSpec>, identity: &str, now: Timestamp) -> LeaseSpec {
    let kept = before.filter(|spec| spec.holder_identity.as_deref() == Some(identity));
    let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        acquire_time: kept
            .and_then(|spec| spec.acquire_time.clone())
            .or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if kept.is_some() || before.is_none() {
            transitions
        } else {
            transitions.saturating_add(1)
        }),
        ..LeaseSpec::default()
    }
}

impl Elector {
    /// Creates a candidate. Two candidates with the same `identity` count as one, so it must be
    /// unique among running processes.
    pub fn new(client: Client, namespace: &str, name: &'static str, identity: String, clock: Clock) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name,
            identity,
            clock,
        }
    }

    /// Runs `lead` whenever this process leads, until `stop`. When leadership is lost, the token
    /// passed to `lead` is cancelled, and the next election starts only after `lead` has returned.
    /// If `lead` returns early, it is restarted with backoff.
    pub async fn run<F, W>(self, stop: CancellationToken, mut lead: F)
    where
        F: FnMut(Leadership, CancellationToken) -> W,
        W: Future<Output = ()>,
    {
        let mut backoff = Backoff::default();
        while !stop.is_cancelled() {
            let leadership = tokio::select! {
                () = stop.cancelled() => return,
                leadership = self.acquire() => leadership,
            };
            info!(lease = self.name, identity = self.identity, "became leader");
            let started = Moment::now(&self.clock);
            let body_stop = stop.child_token();
            let body = lead(leadership.clone(), body_stop.clone());
            let mut body = std::pin::pin!(body);
            tokio::select! {
                () = &mut body => {}
                () = self.keep(&leadership) => {
                    warn!(lease = self.name, identity = self.identity, "lost leadership");
                    leadership.lost.cancel();
                    body_stop.cancel();
                    body.await;
                    continue;
                }
            }
            leadership.lost.cancel();
            match tokio::time::timeout(RETRY_PERIOD, self.release()).await {
                Ok(Ok(())) => {}
                Ok(Err(err)) => {
                    debug!(lease = self.name, error = %Chain(&err), "failed to release lease")
                }
                Err(_) => debug!(lease = self.name, "lease release timed out"),
            }
            if stop.is_cancelled() {
                return;
            }
            if started.age(&self.clock) >= LEASE_DURATION {
                backoff.reset();
            }
            let delay = backoff.next_wait();
            warn!(
                lease = self.name,
                ?delay,
                "leader tasks ended unexpectedly; restarting"
            );
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn acquire(&self) -> Leadership {
        let mut observed: Option<Observed> = None;
        let mut logged_holder: Option<String> = None;
        let mut attempts = Attempts::new(format!("acquiring the Lease {}/{}", self.namespace, self.name));
        loop {
            let requested_at = Moment::now(&self.clock);
            let mut wait = RETRY_PERIOD;
            let result = tokio::time::timeout(RENEW_DEADLINE, self.try_acquire(&mut observed)).await;
            let result =
                result.unwrap_or_else(|_| Err(ApiError::Unreachable("the request timed out".to_owned())));
            match result {
                // After a slow response, the Lease may have expired already.
                Ok(None) if requested_at.age(&self.clock) < RENEW_DEADLINE => {
                    return Leadership::new(self.clock.clone(), requested_at);
                }
                Ok(None) => {}
                Ok(Some(holder)) => {
                    attempts.succeeded();
                    if logged_holder.as_ref() != Some(&holder) {
                        info!(
                            lease = self.name,
                            holder, "another process is leading; standing by"
                        );
                        logged_holder = Some(holder);
                    }
                }
                Err(err) => {
                    let remedy = remedy::of_lease(&err, &self.namespace, self.name);
                    wait = wait.max(attempts.failed_with(&err, remedy));
                }
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns `Ok(Some(holder))` if another process holds the Lease.
    async fn try_acquire(&self, observed: &mut Option<Observed>) -> Result<Option<String>, ApiError> {
        let Some(lease) = self.leases.get_opt(self.name).await? else {
            self.create().await?;
            return Ok(None);
        };
        let now = self.clock.instant();
        let spec = lease.spec.clone().unwrap_or_default();
        let current = match observed.take() {
            Some(before) if before.spec == spec => before,
            Some(_) | None => Observed { spec, since: now },
        };
        let verdict = decide(&current, &self.identity, now);
        *observed = Some(current);
        match verdict {
            Verdict::Wait { holder } => Ok(Some(holder)),
            Verdict::Take => {
                self.write(lease).await?;
                Ok(None)
            }
        }
    }

    /// Renews the Lease until no renewal has succeeded for [`RENEW_DEADLINE`].
    async fn keep(&self, leadership: &Leadership) {
        let mut attempts = Attempts::new(format!("renewing the Lease {}/{}", self.namespace, self.name));
        loop {
            tokio::time::sleep(RETRY_PERIOD).await;
            let requested_at = Moment::now(&self.clock);
            let left = RENEW_DEADLINE.saturating_sub(leadership.age());
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(true)) => {
                    attempts.succeeded();
                    leadership.renew(requested_at);
                }
                Ok(Ok(false)) => return,
                Ok(Err(err)) => {
                    let remedy = remedy::of_lease(&err, &self.namespace, self.name);
                    let _ = attempts.failed_with(&err, remedy);
                }
                Err(_) => {}
            }
            if leadership.age() >= RENEW_DEADLINE {
                return;
            }
        }
    }

    /// Returns `false` if another process has taken the Lease.
    async fn renew(&self) -> Result<bool, ApiError> {
        let Some(lease) = self.leases.get_opt(self.name).await? else {
            self.create().await?;
            return Ok(true);
        };
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(self.identity.as_str()) {
            return Ok(false);
        }
        self.write(lease).await?;
        Ok(true)
    }

    async fn create(&self) -> Result<(), ApiError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(taken(None, &self.identity, self.clock.now())),
        };
        self.leases.create(&params(), &lease).await?;
        Ok(())
    }

    /// Sends the resourceVersion that was read: of two concurrent writers, one succeeds.
    async fn write(&self, mut lease: Lease) -> Result<(), ApiError> {
        lease.spec = Some(taken(lease.spec.as_ref(), &self.identity, self.clock.now()));
        self.leases.replace(self.name, &params(), &lease).await?;
        Ok(())
    }

    /// Releases the Lease, so that another candidate can start immediately.
    async fn release(&self) -> Result<(), ApiError> {
        let Some(mut lease) = self.leases.get_opt(self.name).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        self.leases.replace(self.name, &params(), &lease).await?;
        Ok(())
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::ManualClock;

    fn held_by(holder: &str, since: Instant) -> Observed {
        let spec = taken(None, holder, Timestamp::UNIX_EPOCH);
        Observed { spec, since }
    }

    #[test]
    fn takes_lease_only_after_its_duration_without_renewal() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock_of = || Clock::Manual(clock.clone()).instant();
        let observed = held_by("a", clock_of());
        let wait = Verdict::Wait {
            holder: "a".to_owned(),
        };
        assert_eq!(decide(&observed, "a", clock_of()), Verdict::Take);
        assert_eq!(decide(&observed, "b", clock_of()), wait);
        clock.advance(LEASE_DURATION - Duration::from_millis(1));
        assert_eq!(decide(&observed, "b", clock_of()), wait);
        clock.advance(Duration::from_millis(1));
        assert_eq!(decide(&observed, "b", clock_of()), Verdict::Take);
        assert_eq!(decide(&held_by("", clock_of()), "b", clock_of()), Verdict::Take);
    }

    #[test]
    fn only_a_new_holder_counts_as_transition() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let first = taken(None, "a", at(1));
        assert_eq!(first.lease_transitions, Some(0));
        let renewed = taken(Some(&first), "a", at(2));
        assert_eq!(
            (renewed.lease_transitions, &renewed.acquire_time),
            (Some(0), &Some(MicroTime(at(1))))
        );
        let other = taken(Some(&renewed), "b", at(3));
        assert_eq!(
            (other.lease_transitions, &other.acquire_time),
            (Some(1), &Some(MicroTime(at(3))))
        );
    }

    #[test]
    fn leadership_expires_before_the_lease_does() {
        const { assert!(RENEW_DEADLINE.as_secs() < LEASE_DURATION.as_secs()) }
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let leadership = Leadership::new(clock.clone(), Moment::now(&clock));
        manual.advance(RENEW_DEADLINE - Duration::from_millis(1));
        assert!(leadership.holds());
        manual.advance(Duration::from_millis(1));
        assert!(!leadership.holds());
        leadership.renew(Moment::now(&clock));
        assert!(leadership.holds());
        manual.sleep(RENEW_DEADLINE);
        assert!(!leadership.holds(), "only the wall clock advances during sleep");
        leadership.renew(Moment::now(&clock));
        assert!(leadership.holds());
        leadership.lost.cancel();
        assert!(!leadership.holds());
    }

    /// Returns a client of an API server with one Lease, which is initially free.
    fn server() -> Client {
        let stored = Arc::new(Mutex::new(
            br#"{"metadata": {"name": "lead", "resourceVersion": "1"}}"#.to_vec(),
        ));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let stored = stored.clone();
            async move {
                let writes = request.method() == http::Method::PUT;
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut stored = stored.lock().expect("whole");
                if writes {
                    *stored = body.to_vec();
                }
                let answer = kube::client::Body::from(stored.clone());
                Ok::<_, std::convert::Infallible>(http::Response::new(answer))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_leader_tasks_with_backoff() {
        let elector = Elector::new(server(), "default", "lead", "me".to_owned(), Clock::System);
        let stop = CancellationToken::new();
        let mut terms = 0;
        let leading = elector.run(stop.clone(), |_, _| {
            terms += 1;
            if terms > 100 {
                stop.cancel();
            }
            std::future::ready(())
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), leading).await;
        assert!(ended.is_err(), "the elector does not stop by itself");
        assert!((10..25).contains(&terms), "{terms} terms in a minute");
    }
}

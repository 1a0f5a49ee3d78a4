//! Rotation of the fleet's authorities without an interruption.
//!
//! An administrator requests a rotation in a ConfigMap. The server then replaces the keys of its
//! authorities, and publishes old and new authorities as trusted. Machines follow the published trust. The
//! server retires the old authorities when a waiting time is over and no client uses their certificates.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::fleet_trust::{FleetTrust, config_maps};
use rooflet_api::meta::FLEET_TRUST_NAMESPACE;
use rooflet_base::clock::{Clock, since};
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, Cache, Changes, FIELD_MANAGER};
use rooflet_pki::{Authority, RotateAuthorityError, UserCertificates};

/// ConfigMap of requests and of the status.
pub(crate) const ROTATION: &str = "rooflet-ca-rotation";
const REQUEST: &str = "request.json";
const RETIRE: &str = "retire";
const STATUS: &str = "status.json";
/// Interval between checks of the certificates in use.
const PERIOD: Duration = Duration::from_secs(2);
/// Period in which every running machine uses its certificate several times: a node renews its Lease every
/// 10 s.
pub(crate) const OBSERVATION: Duration = Duration::from_secs(30);

/// Authorities of a server.
#[derive(Clone)]
pub struct FleetAuthorities {
    /// Signs the API server's certificate.
    pub servers: Arc<Authority>,
    /// Signs client certificates.
    pub clients: Authority,
    /// Signs serving certificates of nodes.
    pub nodes: Authority,
}

impl FleetAuthorities {
    fn all(&self) -> [&Authority; 3] {
        [&self.servers, &self.clients, &self.nodes]
    }

    pub(crate) fn trust(&self, revoked: std::collections::BTreeMap<String, Timestamp>) -> FleetTrust {
        FleetTrust {
            servers: self.servers.certificate_pem(),
            clients: self.clients.certificate_pem(),
            nodes: self.nodes.certificate_pem(),
            revoked,
            has_own_signers: false,
        }
    }

    /// Rotates the authorities that a previous attempt has not rotated.
    pub(crate) fn rotate(&self, now: Timestamp) -> Result<(), RotateAuthorityError> {
        let mut left = self
            .all()
            .into_iter()
            .filter(|authority| !authority.has_previous());
        left.try_for_each(|authority| authority.rotate(now))
    }

    pub(crate) fn retire(&self) -> Result<(), RotateAuthorityError> {
        let mut left = self
            .all()
            .into_iter()
            .filter(|authority| authority.has_previous());
        left.try_for_each(Authority::retire_previous)
    }

    pub(crate) fn have_previous(&self) -> bool {
        self.all().into_iter().any(Authority::has_previous)
    }
}

/// Request of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    /// Identifies the request.
    pub(crate) requested: Timestamp,
    /// Minimum time during which both authorities are trusted.
    pub(crate) after_seconds: u64,
}

/// State of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RotationPhase {
    /// New authorities issue certificates, and the old ones are trusted.
    Rotating,
    /// The old authorities are not trusted.
    Completed,
}

/// Last rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RotationStatus {
    /// Time of the request that was executed.
    pub requested: Timestamp,
    pub phase: RotationPhase,
    pub started: Timestamp,
    /// Earliest time at which the old authorities are retired.
    pub retire_after: Timestamp,
    pub completed: Option<Timestamp>,
    /// Users that use certificates of the old authorities: the old authorities are trusted until there are none.
    pub waiting_for: Vec<String>,
}

/// Content of the ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) request: Option<Request>,
    /// Request whose old authorities are to be retired immediately.
    pub(crate) retire: Option<Timestamp>,
    pub(crate) status: Option<RotationStatus>,
}

impl Content {
    pub(crate) fn parse(config_map: Option<&ConfigMap>) -> Self {
        let Some(data) = config_map.and_then(|config_map| config_map.data.as_ref()) else {
            return Self::default();
        };
        Self {
            request: data.get(REQUEST).and_then(|text| serde_json::from_str(text).ok()),
            retire: data.get(RETIRE).and_then(|text| text.parse().ok()),
            status: data.get(STATUS).and_then(|text| serde_json::from_str(text).ok()),
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        let executed = self.status.as_ref().map(|status| status.requested);
        self.request
            .as_ref()
            .is_some_and(|request| executed != Some(request.requested))
    }
}

/// Next action of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Replace the keys, then store this status.
    Rotate(RotationStatus),
    /// End the trust in the old authorities, then store this status.
    Retire(Option<RotationStatus>),
    /// Store this status.
    Report(RotationStatus),
}

/// Facts that the server observes.
pub(crate) struct Observed {
    pub(crate) now: Timestamp,
    /// Start of the observation of certificates in use.
    pub(crate) since: Timestamp,
    /// Users that used a certificate of an old authority lately.
    pub(crate) users_of_previous: Vec<String>,
    pub(crate) have_previous: bool,
}

pub(crate) fn next_step(content: &Content, observed: Observed) -> Option<Step> {
    let Observed { now, .. } = observed;
    let rotating = content
        .status
        .as_ref()
        .filter(|status| status.phase == RotationPhase::Rotating);
    let Some(status) = rotating else {
        return match &content.request {
            Some(request) if content.is_pending() => Some(Step::Rotate(RotationStatus {
                requested: request.requested,
                phase: RotationPhase::Rotating,
                started: now,
                retire_after: now
                    .checked_add(Duration::from_secs(request.after_seconds))
                    .unwrap_or(Timestamp::MAX),
                completed: None,
                waiting_for: Vec::new(),
            })),
            // The store is older than the files, for example restored from a backup.
            Some(_) | None => observed.have_previous.then_some(Step::Retire(None)),
        };
    };
    let is_observed = since(now, status.started.max(observed.since)) >= OBSERVATION;
    let is_due = now >= status.retire_after && is_observed && observed.users_of_previous.is_empty();
    if is_due || content.retire == Some(status.requested) {
        return Some(Step::Retire(Some(RotationStatus {
            phase: RotationPhase::Completed,
            completed: Some(now),
            waiting_for: Vec::new(),
            ..status.clone()
        })));
    }
    (observed.users_of_previous != status.waiting_for).then(|| {
        Step::Report(RotationStatus {
            waiting_for: observed.users_of_previous,
            ..status.clone()
        })
    })
}

/// Error of a step.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Authority(#[from] RotateAuthorityError),
    #[error("storing the status of the rotation")]
    Store(#[from] ApiError),
}

/// Executor of requested rotations.
pub struct AuthorityRotation {
    pub client: Client,
    pub authorities: FleetAuthorities,
    pub users: UserCertificates,
    pub clock: Clock,
}

impl AuthorityRotation {
    pub fn start(self, tasks: &Tasks) {
        let changes = Changes::new();
        let config = watcher::Config::default().fields(&format!("metadata.name={ROTATION}"));
        let api: Api<DeserializeGuard<ConfigMap>> =
            Api::namespaced(self.client.clone(), FLEET_TRUST_NAMESPACE);
        let stored = rooflet_client::watch(tasks, api, config, &self.clock, &changes);
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            let running = self.run(stored, changes.subscribe());
            stop.run_until_cancelled(running).await;
        });
    }

    async fn run(self, stored: Cache<ConfigMap>, mut changed_rx: watch::Receiver<u64>) {
        stored.synced().await;
        let started = self.clock.now();
        loop {
            changed_rx.mark_unchanged();
            let found = stored.list();
            let content = Content::parse(found.first().map(|config_map| &**config_map));
            let now = self.clock.now();
            let observed = Observed {
                now,
                since: started,
                users_of_previous: self.users.users_of_previous(now - OBSERVATION),
                have_previous: self.authorities.have_previous(),
            };
            if let Some(step) = next_step(&content, observed)
                && let Err(err) = self.execute(step, now).await
            {
                warn!(
                    error = %Chain(&err),
                    "failed to rotate the authorities of the fleet; retrying in {} s", PERIOD.as_secs()
                );
            }
            let is_idle = content
                .status
                .as_ref()
                .is_none_or(|status| status.phase == RotationPhase::Completed)
                && !content.is_pending();
            tokio::select! {
                changed = changed_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(PERIOD), if !is_idle => {}
            }
        }
    }

    async fn execute(&self, step: Step, now: Timestamp) -> Result<(), StepError> {
        let status = match step {
            Step::Rotate(status) => {
                self.authorities.rotate(now)?;
                info!(
                    retire_after = %status.retire_after,
                    "new certificate authorities issue certificates; the old ones are trusted until they are retired"
                );
                status
            }
            Step::Retire(status) => {
                self.authorities.retire()?;
                info!("the old certificate authorities are not trusted any more");
                let Some(status) = status else { return Ok(()) };
                status
            }
            Step::Report(status) => status,
        };
        Ok(store_status(&self.client, &status).await?)
    }
}

pub(crate) async fn store_status(client: &Client, status: &RotationStatus) -> Result<(), ApiError> {
    let text = serde_json::to_string(status).map_err(|err| ApiError::Invalid(err.to_string()))?;
    merge(client, STATUS, &text).await
}

/// Error of a request for a rotation.
#[derive(Debug, thiserror::Error)]
pub enum RequestRotationError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "the rotation of {started} is not completed: wait until `rooflet server rotate-ca --status` shows Completed, \
         or run `rooflet server rotate-ca --retire`"
    )]
    InProgress { started: Timestamp },
    #[error("no rotation is in progress; `rooflet server rotate-ca` starts one")]
    NotInProgress,
    #[error(
        "{users} use certificates of the old authorities, and would have no access; wait until they have renewed \
         them, or add --force"
    )]
    InUse { users: String },
}

/// Returns the state of the last rotation; `None` if there was none.
pub async fn rotation_status(client: &Client) -> Result<Option<RotationStatus>, ApiError> {
    Ok(read(client).await?.status)
}

/// Requests a rotation. Returns the time that identifies it in [`RotationStatus::requested`].
pub async fn request_rotation(
    client: &Client,
    after: Duration,
    now: Timestamp,
) -> Result<Timestamp, RequestRotationError> {
    let content = read(client).await?;
    if let Some(status) = &content.status
        && status.phase == RotationPhase::Rotating
    {
        return Err(RequestRotationError::InProgress {
            started: status.started,
        });
    }
    let request = Request {
        requested: now,
        after_seconds: after.as_secs(),
    };
    let text = serde_json::to_string(&request).map_err(|err| ApiError::Invalid(err.to_string()))?;
    merge(client, REQUEST, &text).await?;
    Ok(now)
}

/// Requests that the old authorities are retired immediately. Without `force`, their use is an error.
pub async fn request_retirement(client: &Client, force: bool) -> Result<Timestamp, RequestRotationError> {
    let status = read(client).await?.status;
    let rotating = status.filter(|status| status.phase == RotationPhase::Rotating);
    let status = rotating.ok_or(RequestRotationError::NotInProgress)?;
    if !force && !status.waiting_for.is_empty() {
        return Err(RequestRotationError::InUse {
            users: status.waiting_for.join(", "),
        });
    }
    merge(client, RETIRE, &status.requested.to_string()).await?;
    Ok(status.requested)
}

async fn read(client: &Client) -> Result<Content, ApiError> {
    let found = config_maps(client).get_opt(ROTATION).await?;
    Ok(Content::parse(found.as_ref()))
}

/// Sets one key of the ConfigMap, which is created if it does not exist.
async fn merge(client: &Client, key: &str, text: &str) -> Result<(), ApiError> {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ROTATION}, "data": {key: text}});
    // Each key has a manager of its own, so that a write keeps the other keys.
    let params = PatchParams::apply(&format!("{FIELD_MANAGER}-{key}")).force();
    config_maps(client)
        .patch(ROTATION, &params, &Patch::Apply(&object))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    const DAY: i64 = 24 * 3600;

    fn observed(now: i64, users: &[&str]) -> Observed {
        Observed {
            now: at(now),
            since: at(0),
            users_of_previous: users.iter().map(|user| (*user).to_owned()).collect(),
            have_previous: true,
        }
    }

    fn requested(after_seconds: u64) -> Content {
        Content {
            request: Some(Request {
                requested: at(90),
                after_seconds,
            }),
            ..Content::default()
        }
    }

    fn rotating() -> Content {
        let Some(Step::Rotate(status)) = next_step(&requested(24 * 3600), observed(100, &[])) else {
            panic!("the request is executed");
        };
        Content {
            status: Some(status),
            ..requested(24 * 3600)
        }
    }

    #[test]
    fn old_authorities_are_retired_when_the_time_is_over_and_no_client_uses_them() {
        let content = rotating();
        assert_eq!(next_step(&content, observed(100 + DAY - 1, &[])), None);
        let waiting = next_step(&content, observed(100 + DAY, &["system:node:mini-1"]));
        let Some(Step::Report(status)) = waiting else {
            panic!("{waiting:?}");
        };
        assert_eq!(status.waiting_for, ["system:node:mini-1"]);
        let content = Content {
            status: Some(status),
            ..content
        };
        let again = observed(100 + DAY, &["system:node:mini-1"]);
        assert_eq!(next_step(&content, again), None);
        let retired = next_step(&content, observed(100 + DAY, &[]));
        let Some(Step::Retire(Some(status))) = retired else {
            panic!("{retired:?}");
        };
        assert_eq!(
            (status.phase, status.completed, status.waiting_for.len()),
            (RotationPhase::Completed, Some(at(100 + DAY)), 0)
        );
        let content = Content {
            status: Some(status),
            ..content
        };
        let idle = Observed {
            have_previous: false,
            ..observed(101 + DAY, &[])
        };
        assert_eq!(next_step(&content, idle), None);
    }

    #[test]
    fn certificates_in_use_are_observed_before_the_end() {
        let Some(Step::Rotate(status)) = next_step(&requested(0), observed(100, &[])) else {
            panic!("the request is executed");
        };
        let content = Content {
            status: Some(status),
            ..requested(0)
        };
        assert_eq!(next_step(&content, observed(129, &[])), None);
        // The server was restarted.
        let restarted = Observed {
            since: at(120),
            ..observed(149, &[])
        };
        assert_eq!(next_step(&content, restarted), None);
        let retired = next_step(&content, observed(130, &[]));
        assert!(matches!(retired, Some(Step::Retire(Some(_)))), "{retired:?}");
    }

    #[test]
    fn administrator_can_retire_old_authorities_that_are_in_use() {
        let content = Content {
            retire: Some(at(90)),
            ..rotating()
        };
        let retired = next_step(&content, observed(101, &["alice"]));
        assert!(matches!(retired, Some(Step::Retire(Some(_)))), "{retired:?}");
        let of_earlier_rotation = Content {
            retire: Some(at(50)),
            ..rotating()
        };
        assert_eq!(next_step(&of_earlier_rotation, observed(101, &[])), None);
    }

    #[test]
    fn old_authorities_without_a_rotation_are_retired() {
        let step = next_step(&Content::default(), observed(100, &[]));
        assert_eq!(step, Some(Step::Retire(None)));
        let without = Observed {
            have_previous: false,
            ..observed(100, &[])
        };
        assert_eq!(next_step(&Content::default(), without), None);
    }

    #[test]
    fn content_of_the_config_map_is_parsed_and_other_content_ignored() {
        let parse = |data: serde_json::Value| {
            let config_map: ConfigMap = serde_json::from_value(json!({ "data": data })).expect("a ConfigMap");
            Content::parse(Some(&config_map))
        };
        let content = rotating();
        let text = |value: &serde_json::Value| value.to_string();
        let stored = json!({
            REQUEST: text(&json!({"requested": at(90), "afterSeconds": 86_400})),
            STATUS: text(&json!(content.status)),
        });
        assert_eq!(parse(stored), content);
        assert_eq!(
            parse(json!({REQUEST: "x", STATUS: "{}", RETIRE: "now"})),
            Content::default()
        );
    }
}

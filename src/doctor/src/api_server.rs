//! Check of the API server: address, certificate and credentials of the kubeconfig.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use super::Settings;
use super::check::{Check, Status, milliseconds};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_client::{ApiError, ConnectError, KubeconfigSource, connect};
use rooflet_trust::KUBECONFIG_FILE;

const NAME: &str = "API server";
const TIMEOUT: Duration = Duration::from_secs(10);
/// Namespace that exists on every API server. Agents may read it.
const NAMESPACE: &str = "kube-system";
/// User of requests without credentials.
const ANONYMOUS: &str = "system:anonymous";
const NEW_CREDENTIALS: &str = "run `rooflet join` again, or replace the kubeconfig";

/// Result of a request with the credentials of the kubeconfig.
#[derive(Debug)]
enum Outcome {
    /// The server accepted the credentials after this time.
    Accepted(Duration),
    /// The server does not know the credentials, or the kubeconfig contains none.
    Unauthorized,
    Failed(ApiError),
    TimedOut,
    /// The kubeconfig cannot be used.
    Unusable,
}

/// Checks the API server of the given kubeconfig, of the agent, or of kubectl.
/// Returns `None` if there is no kubeconfig. The findings contain no addresses and no paths, which
/// the report must not contain. They are printed instead.
pub(super) async fn check(settings: &Settings, clock: &Clock) -> Option<Check> {
    let joined = Some(settings.state_dir.join(KUBECONFIG_FILE)).filter(|file| file.exists());
    let own = settings.kubeconfig.clone().or(joined).map(KubeconfigSource::File);
    let is_own = own.is_some();
    let outcome = match connect(&own.unwrap_or_else(settings.default_kubeconfig), clock).await {
        Ok(client) => request(client, clock, settings.progress).await,
        Err(ConnectError::NotConfigured(_)) if !is_own => return None,
        Err(err) => {
            (settings.progress)(&format!("API server: {}", Chain(&err)));
            Outcome::Unusable
        }
    };
    let mut check = judge(&outcome);
    // Without an agent, this machine needs no API server.
    if !is_own && check.status == Status::Fail {
        check.status = Status::Warn;
    }
    Some(check)
}

async fn request(client: Client, clock: &Clock, progress: fn(&str)) -> Outcome {
    let start = clock.instant();
    let namespaces: Api<Namespace> = Api::all(client);
    match tokio::time::timeout(TIMEOUT, namespaces.get_opt(NAMESPACE)).await {
        Err(_) => Outcome::TimedOut,
        Ok(Ok(_)) => Outcome::Accepted(clock.instant() - start),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 || status.message.contains(ANONYMOUS) => {
            progress(&format!("API server: {}", status.message));
            Outcome::Unauthorized
        }
        // The server knows the user, who may not read the namespace.
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Outcome::Accepted(clock.instant() - start),
        Ok(Err(err)) => {
            let err = ApiError::from(err);
            progress(&format!("API server: {}", Chain(&err)));
            Outcome::Failed(err)
        }
    }
}

fn judge(outcome: &Outcome) -> Check {
    let unreachable = "check the network, the firewall, and the address in the kubeconfig";
    match outcome {
        Outcome::Accepted(time) => Check::ok(
            NAME,
            format!(
                "answers after {}; its certificate and the credentials are accepted",
                milliseconds(*time)
            ),
        ),
        Outcome::Unauthorized => Check::fail(
            NAME,
            "the server does not accept the credentials of the kubeconfig",
            NEW_CREDENTIALS,
        ),
        Outcome::Failed(ApiError::Refused { .. }) => Check::fail(
            NAME,
            "no server listens at the address in the kubeconfig",
            "start the server, or correct the address in the kubeconfig",
        ),
        Outcome::Failed(ApiError::Untrusted { remedy, .. }) => Check::fail(
            NAME,
            "the server's certificate does not match the authority in the kubeconfig, or the clock",
            remedy,
        ),
        Outcome::Failed(ApiError::Server { code, .. }) => Check::fail(
            NAME,
            format!("the server returned the status code {code}"),
            "read the log of the server",
        ),
        Outcome::Failed(_) => Check::fail(NAME, "the server cannot be reached", unreachable),
        Outcome::TimedOut => Check::fail(
            NAME,
            format!("the server does not answer within {} s", TIMEOUT.as_secs()),
            unreachable,
        ),
        Outcome::Unusable => Check::fail(NAME, "the kubeconfig cannot be used", NEW_CREDENTIALS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_a_remedy_and_no_address() {
        let server = "API server https://192.0.2.1:7443".to_owned();
        for (outcome, status, finding, remedy) in [
            (
                Outcome::Accepted(Duration::from_millis(12)),
                Status::Ok,
                "answers after 12 ms",
                "",
            ),
            (Outcome::Unauthorized, Status::Fail, "credentials", "rooflet join"),
            (
                Outcome::Failed(ApiError::Refused {
                    server: server.clone(),
                }),
                Status::Fail,
                "no server listens",
                "start the server",
            ),
            (
                Outcome::Failed(ApiError::Untrusted {
                    server: server.clone(),
                    problem: "UnknownIssuer".to_owned(),
                    remedy: "join again",
                }),
                Status::Fail,
                "certificate",
                "join again",
            ),
            (
                Outcome::Failed(ApiError::Server {
                    code: 503,
                    message: server.clone(),
                }),
                Status::Fail,
                "503",
                "log of the server",
            ),
            (
                Outcome::Failed(ApiError::Unreachable(server.clone())),
                Status::Fail,
                "cannot be reached",
                "network",
            ),
            (Outcome::TimedOut, Status::Fail, "within 10 s", "firewall"),
            (Outcome::Unusable, Status::Fail, "kubeconfig", "rooflet join"),
        ] {
            let check = judge(&outcome);
            assert_eq!(check.status, status, "{outcome:?}");
            let found = check.remedy.clone().unwrap_or_default();
            assert!(
                check.finding.contains(finding) && found.contains(remedy),
                "{check:?}"
            );
            assert!(!format!("{check:?}").contains("192.0.2.1"), "{check:?}");
        }
    }
}

//! Checks of the certificates and the token with which a node identifies itself.

use camino::Utf8Path;
use jiff::Timestamp;

use super::check::Check;
use rooflet_client::{BoundToken, KubeconfigSource, bearer_token, client_certificate};
use rooflet_pki::NodeCertificate;
use rooflet_trust::{KUBECONFIG_FILE, MACHINE_TLS_FILE, stored_certificate};

/// Time after the renewal is due until the check warns.
const LATE_SECONDS: i64 = 24 * 3600;

/// Validity of a credential that the agent renews.
#[derive(Debug, Clone, Copy)]
struct Validity {
    from: Timestamp,
    until: Timestamp,
    renew_at: Timestamp,
}

impl From<NodeCertificate> for Validity {
    fn from(certificate: NodeCertificate) -> Self {
        Self {
            from: certificate.not_before,
            until: certificate.not_after,
            renew_at: certificate.renew_at(),
        }
    }
}

impl From<BoundToken> for Validity {
    fn from(token: BoundToken) -> Self {
        Self {
            from: token.issued,
            until: token.expires,
            renew_at: token.renew_at(),
        }
    }
}

/// Returns one check for each certificate or token in the state directory of an agent, and none on
/// a machine that is no node of a fleet on the network.
pub(super) async fn checks(state_dir: &Utf8Path, now: Timestamp) -> Vec<Check> {
    let serving = stored_certificate(&state_dir.join(MACHINE_TLS_FILE)).map(String::into_bytes);
    let kubeconfig = state_dir.join(KUBECONFIG_FILE);
    let (client, token) = match kubeconfig.exists() {
        true => {
            let source = KubeconfigSource::File(kubeconfig);
            (client_certificate(&source).await, bearer_token(&source).await)
        }
        false => (Ok(None), Ok(None)),
    };
    let certificate = |pem: Vec<u8>| NodeCertificate::read(&pem).map(Validity::from);
    // The check of the API server reports an unusable kubeconfig. A token that is not bound to a
    // node is that of a person.
    let token = token.ok().flatten().and_then(|token| BoundToken::read(&token));
    [
        ("certificate of the node", "certificate", serving.map(certificate)),
        (
            "certificate of the kubeconfig",
            "certificate",
            client.ok().flatten().map(certificate),
        ),
        (
            "token of the kubeconfig",
            "token",
            token.map(|token| Some(token.into())),
        ),
    ]
    .into_iter()
    .filter_map(|(name, kind, validity)| Some(judge(name, kind, validity?, now)))
    .collect()
}

fn judge(name: &str, kind: &str, validity: Option<Validity>, now: Timestamp) -> Check {
    let rejoin = "run `rooflet join` again";
    let Some(validity) = validity else {
        return Check::fail(name, format!("the {kind} cannot be read"), rejoin);
    };
    let days = |to: Timestamp| (to.as_second() - now.as_second()) as f64 / 86_400.0;
    let left = days(validity.until);
    if left <= 0.0 {
        return Check::fail(name, format!("expired {:.0} days ago", -left), rejoin);
    }
    if now < validity.from {
        return Check::fail(
            name,
            format!("valid only in {:.1} days", days(validity.from)),
            "correct the clock of this machine, or of the server that issued it",
        );
    }
    let due = validity.renew_at;
    if now.as_second() > due.as_second() + LATE_SECONDS {
        return Check::warn(
            name,
            format!(
                "expires in {left:.1} days; its renewal is {:.1} days late",
                -days(due)
            ),
            "check that the agent runs and reaches the API server",
        );
    }
    Check::ok(
        name,
        format!(
            "valid for {left:.0} days; the agent renews it in {:.0} days",
            days(due).max(0.0)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use rooflet_testing::TempDir;

    #[test]
    fn age_decides() {
        let day = |days: i64| Timestamp::from_second(days * 86_400).unwrap();
        let certificate = NodeCertificate {
            node: Some("mini-1".to_owned()),
            not_before: day(100),
            not_after: day(130),
        };
        for (now, status, finding) in [
            (99, Status::Fail, "valid only in 1.0 days"),
            (
                100,
                Status::Ok,
                "valid for 30 days; the agent renews it in 20 days",
            ),
            (
                120,
                Status::Ok,
                "valid for 10 days; the agent renews it in 0 days",
            ),
            (
                124,
                Status::Warn,
                "expires in 6.0 days; its renewal is 4.0 days late",
            ),
            (133, Status::Fail, "expired 3 days ago"),
        ] {
            let check = judge(
                "certificate",
                "certificate",
                Some(certificate.clone().into()),
                day(now),
            );
            assert_eq!(check.status, status, "{now}");
            assert_eq!(check.finding, finding);
            assert_eq!(check.remedy.is_some(), status != Status::Ok);
        }
        assert_eq!(
            judge("certificate", "certificate", None, day(1)).status,
            Status::Fail
        );
    }

    #[tokio::test]
    async fn token_of_a_node_is_checked() {
        let directory = TempDir::new();
        let state = directory.path();
        let text = |claims: &str| {
            let token = format!("x.{}.x", URL_SAFE_NO_PAD.encode(claims));
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
                 contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{token: {token}}}}}]\n"
            )
        };
        let bound = r#"{"iat": 0, "exp": 7776000, "kubernetes.io": {"namespace": "rooflet",
            "serviceaccount": {"name": "a", "uid": "1"}, "secret": {"name": "a", "uid": "2"}}}"#;
        std::fs::write(state.join(KUBECONFIG_FILE), text(bound)).expect("written");
        let at = |day: i64| Timestamp::from_second(day * 86_400).expect("in range");
        for (day, finding) in [
            (30, "valid for 60 days; the agent renews it in 30 days"),
            (70, "expires in 20.0 days; its renewal is 10.0 days late"),
            (91, "expired 1 days ago"),
        ] {
            let found = checks(state, at(day)).await;
            let found: Vec<_> = found
                .iter()
                .map(|check| (check.name.as_str(), check.finding.as_str()))
                .collect();
            assert_eq!(found, [("token of the kubeconfig", finding)]);
        }
        // The token of a person has no node.
        std::fs::write(state.join(KUBECONFIG_FILE), text(r#"{"iat": 0, "exp": 1}"#)).expect("written");
        assert_eq!(checks(state, at(1)).await, []);
    }

    #[tokio::test]
    async fn machine_that_is_no_node_has_no_check() {
        let none = checks(Utf8Path::new("/does/not/exist"), Timestamp::UNIX_EPOCH).await;
        assert_eq!(none, []);
    }
}

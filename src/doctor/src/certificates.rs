//! Checks of the certificates with which a node identifies itself.

use camino::Utf8Path;
use jiff::Timestamp;

use super::check::Check;
use rooflet_client::{KubeconfigSource, client_certificate};
use rooflet_pki::NodeCertificate;
use rooflet_trust::{KUBECONFIG_FILE, MACHINE_TLS_FILE, stored_certificate};

/// Time after the renewal is due until the check warns.
const LATE_SECONDS: i64 = 24 * 3600;

/// Returns one check for each certificate in the state directory of an agent, and none on a machine that is
/// no node of a fleet on the network.
pub(super) async fn checks(state_dir: &Utf8Path, now: Timestamp) -> Vec<Check> {
    let serving = stored_certificate(&state_dir.join(MACHINE_TLS_FILE)).map(String::into_bytes);
    let kubeconfig = state_dir.join(KUBECONFIG_FILE);
    let client = match kubeconfig.exists() {
        true => client_certificate(&KubeconfigSource::File(kubeconfig)).await,
        false => Ok(None),
    };
    // The check of the API server reports an unusable kubeconfig.
    [
        ("certificate of the node", serving),
        ("certificate of the kubeconfig", client.ok().flatten()),
    ]
    .into_iter()
    .filter_map(|(name, pem)| Some(judge(name, NodeCertificate::read(&pem?), now)))
    .collect()
}

fn judge(name: &str, certificate: Option<NodeCertificate>, now: Timestamp) -> Check {
    let rejoin = "run `rooflet join` again";
    let Some(certificate) = certificate else {
        return Check::fail(name, "the certificate cannot be read", rejoin);
    };
    let days = |to: Timestamp| (to.as_second() - now.as_second()) as f64 / 86_400.0;
    let left = days(certificate.not_after);
    if left <= 0.0 {
        return Check::fail(name, format!("expired {:.0} days ago", -left), rejoin);
    }
    if now < certificate.not_before {
        return Check::fail(
            name,
            format!("valid only in {:.1} days", days(certificate.not_before)),
            "correct the clock of this machine, or of the server that issued it",
        );
    }
    let due = certificate.renew_at();
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
            let check = judge("certificate", Some(certificate.clone()), day(now));
            assert_eq!(check.status, status, "{now}");
            assert_eq!(check.finding, finding);
            assert_eq!(check.remedy.is_some(), status != Status::Ok);
        }
        assert_eq!(judge("certificate", None, day(1)).status, Status::Fail);
    }

    #[tokio::test]
    async fn machine_that_is_no_node_has_no_check() {
        let none = checks(Utf8Path::new("/does/not/exist"), Timestamp::UNIX_EPOCH).await;
        assert_eq!(none, []);
    }
}

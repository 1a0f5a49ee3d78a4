//! Ownership of a node name by one agent on one machine with one state directory, recorded in the
//! node's Lease.

use std::fmt;
use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use rooflet_base::clock::since;

/// An agent that renewed its Lease within this time owns the name.
pub(super) const OWNED_WITHIN: Duration = Duration::from_secs(60);

/// A renewal further ahead than this is ignored: the clock of that agent was wrong, or this clock has been set back.
const MAX_AHEAD: Duration = Duration::from_secs(600);

/// Agent as the holder of its node's Lease. A restarted agent is the same holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub node: String,
    pub machine_id: String,
    /// Absolute path. The agent locks it while it runs.
    pub state_dir: Utf8PathBuf,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.node, self.machine_id, self.state_dir)
    }
}

/// Another running agent owns the node's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "FleetNode {node} belongs to another agent {holder}, which renewed its Lease {} s ago: stop that agent and retry after {} s, \
    or start this agent with a different --node-name",
    ago.as_secs(),
    OWNED_WITHIN.as_secs()
)]
pub struct NodeNameTakenError {
    node: String,
    /// Difference between the other agent and this one.
    holder: String,
    ago: Duration,
}

impl Holder {
    /// Checks that this agent holds the Lease at `now`, or may take it over.
    pub(crate) fn check(&self, lease: &LeaseSpec, now: Timestamp) -> Result<(), NodeNameTakenError> {
        let held_by = lease.holder_identity.as_deref().unwrap_or_default();
        let renewed = lease.renew_time.as_ref().map(|MicroTime(time)| *time);
        let ago = renewed
            .filter(|time| since(*time, now) <= MAX_AHEAD)
            .map(|time| since(now, time));
        match (self.describe_other(held_by), ago) {
            (Some(holder), Some(ago)) if ago < OWNED_WITHIN => Err(NodeNameTakenError {
                node: self.node.clone(),
                holder,
                ago,
            }),
            (_, _) => Ok(()),
        }
    }

    /// Describes how the holder `held_by` differs from this agent. Returns `None` if it is this
    /// agent.
    pub(super) fn describe_other(&self, held_by: &str) -> Option<String> {
        // Older versions omit the state directory.
        let without_directory = format!("{}/{}", self.node, self.machine_id);
        if held_by.is_empty() || held_by == self.to_string() || held_by == without_directory {
            return None;
        }
        if let Some(directory) = held_by.strip_prefix(&without_directory)
            && directory.starts_with('/')
        {
            return Some(format!("on this machine with the state directory `{directory}`"));
        }
        let machine = held_by.strip_prefix(&format!("{}/", self.node));
        Some(
            match machine.map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
                Some((machine, "")) => format!("on another machine (machine id {machine})"),
                Some((machine, directory)) => {
                    format!(
                        "on another machine (machine id {machine}) with the state directory `/{directory}`"
                    )
                }
                None => format!("whose Lease names `{held_by}`"),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    fn holder(machine_id: &str, state_dir: &str) -> Holder {
        Holder {
            node: "mini".to_owned(),
            machine_id: machine_id.to_owned(),
            state_dir: state_dir.into(),
        }
    }

    /// Returns the result for the agent on machine M1 with directory /a and a Lease that was
    /// renewed `seconds_ago`.
    fn result(held_by: &str, seconds_ago: i64) -> String {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let lease = LeaseSpec {
            holder_identity: Some(held_by.to_owned()),
            renew_time: Some(MicroTime(now - SignedDuration::from_secs(seconds_ago))),
            ..LeaseSpec::default()
        };
        match holder("M1", "/a").check(&lease, now) {
            Ok(()) => "free".to_owned(),
            Err(taken) => taken.to_string(),
        }
    }

    #[test]
    fn agent_takes_over_its_own_lease_immediately() {
        assert_eq!(holder("M1", "/a").to_string(), "mini/M1/a");
        assert_eq!(result("mini/M1/a", 0), "free");
        assert_eq!(result("mini/M1", 0), "free", "of an older version");
        assert_eq!(result("", 0), "free");
        let never = LeaseSpec {
            holder_identity: Some("mini/M2/a".to_owned()),
            ..LeaseSpec::default()
        };
        assert_eq!(holder("M1", "/a").check(&never, Timestamp::UNIX_EPOCH), Ok(()));
    }

    #[test]
    fn renewal_far_in_the_future_does_not_own_the_name() {
        assert!(result("mini/M2/a", -600).contains("renewed its Lease 0 s ago"));
        assert_eq!(result("mini/M2/a", -601), "free");
    }

    #[test]
    fn error_names_another_running_agent() {
        let check = |held_by: &str, other: &str| {
            let expect = format!(
                "FleetNode mini belongs to another agent {other}, which renewed its Lease 59 s ago: stop that agent and \
                 retry after 60 s, or start this agent with a different --node-name"
            );
            assert_eq!(result(held_by, 59), expect);
            assert_eq!(result(held_by, 60), "free", "{held_by}");
        };
        check("mini/M1/b/c", "on this machine with the state directory `/b/c`");
        check("mini/M12", "on another machine (machine id M12)");
        check(
            "mini/M2/a",
            "on another machine (machine id M2) with the state directory `/a`",
        );
        check("somebody", "whose Lease names `somebody`");
    }
}

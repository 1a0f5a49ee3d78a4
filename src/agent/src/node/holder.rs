//! Whose a node's name is: one agent's, on one machine, with one state directory. The node's Lease says so.

use std::fmt;
use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use rooflet_base::clock::since;

/// An agent that has renewed its Lease within this time owns the name.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// An agent, as the Lease of its node names it. A restarted one is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub node: String,
    pub machine_id: String,
    /// Absolute, and locked by the agent as long as it lives.
    pub state_dir: Utf8PathBuf,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.node, self.machine_id, self.state_dir)
    }
}

/// Another agent has the node's name, and is alive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "FleetNode {node} is another agent's, {whose}, which renewed its Lease {} s ago: stop that one and wait until that is {} s \
     ago, or start this one with another --node-name",
    ago.as_secs(),
    TAKEN_WITHIN.as_secs()
)]
pub struct TakenError {
    node: String,
    /// What tells that agent from this one.
    whose: String,
    ago: Duration,
}

impl Holder {
    /// Whether the Lease is this agent's at `now`, or can be.
    pub(crate) fn check(&self, lease: &LeaseSpec, now: Timestamp) -> Result<(), TakenError> {
        let held_by = lease.holder_identity.as_deref().unwrap_or_default();
        let ago = lease.renew_time.as_ref().map(|MicroTime(time)| since(now, *time));
        match (self.rival(held_by), ago) {
            (Some(whose), Some(ago)) if ago < TAKEN_WITHIN => Err(TakenError {
                node: self.node.clone(),
                whose,
                ago,
            }),
            (_, _) => Ok(()),
        }
    }

    /// What tells the agent that is called so from this one; nothing if it is this one.
    fn rival(&self, held_by: &str) -> Option<String> {
        // An agent of an older version leaves out its state directory.
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
    use super::*;

    fn holder(machine_id: &str, state_dir: &str) -> Holder {
        Holder {
            node: "mini".to_owned(),
            machine_id: machine_id.to_owned(),
            state_dir: state_dir.into(),
        }
    }

    /// Asked by the agent on machine M1 with the directory /a, of a Lease that was renewed so many seconds ago.
    fn told(held_by: &str, seconds_ago: i64) -> String {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let lease = LeaseSpec {
            holder_identity: Some(held_by.to_owned()),
            renew_time: Some(MicroTime(now - Duration::from_secs(seconds_ago.unsigned_abs()))),
            ..LeaseSpec::default()
        };
        match holder("M1", "/a").check(&lease, now) {
            Ok(()) => "free".to_owned(),
            Err(taken) => taken.to_string(),
        }
    }

    #[test]
    fn an_agent_takes_its_own_lease_over_at_once() {
        assert_eq!(holder("M1", "/a").to_string(), "mini/M1/a");
        assert_eq!(told("mini/M1/a", 0), "free");
        assert_eq!(told("mini/M1", 0), "free", "of an older version");
        assert_eq!(told("", 0), "free");
        let never = LeaseSpec {
            holder_identity: Some("mini/M2/a".to_owned()),
            ..LeaseSpec::default()
        };
        assert_eq!(holder("M1", "/a").check(&never, Timestamp::UNIX_EPOCH), Ok(()));
    }

    #[test]
    fn another_living_agent_is_named() {
        let check = |held_by: &str, whose: &str| {
            let expect = format!(
                "FleetNode mini is another agent's, {whose}, which renewed its Lease 59 s ago: stop that one and wait until that \
                 is 60 s ago, or start this one with another --node-name"
            );
            assert_eq!(told(held_by, 59), expect);
            assert_eq!(told(held_by, 60), "free", "{held_by}");
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

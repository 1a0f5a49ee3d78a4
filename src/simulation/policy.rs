//! What two runs of one scenario may differ in: how replicas are placed and how requests are routed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::Value;

use crate::controller::binding_intents;
use crate::controller::intent::{Intents, Snapshot};

/// See the module. The default is what rooflet does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(super) routing: Routing,
}

/// Which replica a request is sent to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Routing {
    /// The gateway's own choice.
    #[default]
    Gateway,
    /// One after the other, whatever they have to do.
    RoundRobin,
    /// Any.
    Random,
}

/// A word that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy: it is one of {names}", names = Policy::NAMES.join(", "))]
pub(crate) struct UnknownPolicy(String);

impl Policy {
    pub(crate) const NAMES: [&'static str; 3] = ["default", "round-robin", "random"];

    /// A deployment's spec as this policy would have it.
    pub(super) fn placed(self, spec: Value) -> Value {
        spec
    }

    pub(super) fn bind(self, snapshot: &Snapshot, now: Timestamp) -> Intents {
        binding_intents(snapshot, now)
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let routing = match text {
            "default" => Routing::Gateway,
            "round-robin" => Routing::RoundRobin,
            "random" => Routing::Random,
            _ => return Err(UnknownPolicy(text.to_owned())),
        };
        Ok(Self { routing })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.routing {
            Routing::Gateway => "default",
            Routing::RoundRobin => "round-robin",
            Routing::Random => "random",
        })
    }
}

//! What two runs of one scenario may differ in: how replicas are placed and how requests are
//! routed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::{Value, json};

use rooflet_api::v1alpha1::PlacementStrategy;
use rooflet_controller::intent::{Intents, Snapshot};
use rooflet_controller::{FollowedFleet, binding_intents, rival_intents};
use rooflet_scheduler::Rival;

/// See the module. The default is what rooflet does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    placement: Placement,
    pub(crate) routing: Routing,
}

/// Which node a replica is bound to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Placement {
    /// The scheduler's own choice, by each deployment's strategy.
    #[default]
    AsWritten,
    /// The scheduler's own choice, by this strategy for all.
    Strategy(PlacementStrategy),
    /// By memory alone. Promises of speed are not looked at, neither by the controller nor by
    /// agents; requests are held against them all the same.
    Rival(Rival),
}

/// Which replica a request is sent to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Routing {
    /// The gateway's own choice.
    #[default]
    Gateway,
    /// One after the other, whatever they have to do.
    RoundRobin,
    /// Any.
    Random,
}

/// What one word of a policy sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Placement(Placement),
    Routing(Routing),
}

const WORDS: [(&str, Part); 9] = [
    (
        "SloSlack",
        Part::Placement(Placement::Strategy(PlacementStrategy::SloSlack)),
    ),
    (
        "BinPack",
        Part::Placement(Placement::Strategy(PlacementStrategy::BinPack)),
    ),
    (
        "Spread",
        Part::Placement(Placement::Strategy(PlacementStrategy::Spread)),
    ),
    (
        "Fastest",
        Part::Placement(Placement::Strategy(PlacementStrategy::Fastest)),
    ),
    ("best-fit", Part::Placement(Placement::Rival(Rival::BestFit))),
    (
        "least-loaded",
        Part::Placement(Placement::Rival(Rival::LeastLoaded)),
    ),
    ("next-node", Part::Placement(Placement::Rival(Rival::RoundRobin))),
    ("round-robin", Part::Routing(Routing::RoundRobin)),
    ("random", Part::Routing(Routing::Random)),
];
const DEFAULT: &str = "default";

/// A text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "`{0}` is no policy: a placement is one of {placements}, a routing one of {routings}; \
         both are joined by a plus sign, and `{DEFAULT}` is what rooflet does",
        placements = names(|part| matches!(part, Part::Placement(_))),
        routings = names(|part| matches!(part, Part::Routing(_)))
    )]
    Unknown(String),
    #[error("`{0}` names two placements or two routings")]
    Twice(String),
}

fn names(of: impl Fn(Part) -> bool) -> String {
    let named = WORDS.iter().filter(|(_, part)| of(*part));
    let words: Vec<_> = named.map(|(word, _)| *word).collect();
    words.join(", ")
}

impl Policy {
    /// A deployment's spec as this policy would have it.
    pub(crate) fn placed(self, mut spec: Value) -> Value {
        match self.placement {
            Placement::AsWritten => {}
            Placement::Strategy(strategy) => {
                json_patch::merge(&mut spec, &json!({"placement": {"strategy": strategy}}));
            }
            Placement::Rival(_) => json_patch::merge(&mut spec, &json!({"objectives": null})),
        }
        spec
    }

    /// Whether it waits for replicas that are about to be made.
    pub(crate) fn settles(self) -> bool {
        match self.placement {
            Placement::AsWritten | Placement::Strategy(_) => true,
            Placement::Rival(_) => false,
        }
    }

    /// `fleet` follows the snapshot's objects.
    pub(crate) fn bind(self, fleet: &mut FollowedFleet, snapshot: &Snapshot, now: Timestamp) -> Intents {
        match self.placement {
            Placement::AsWritten | Placement::Strategy(_) => binding_intents(fleet, snapshot, now),
            Placement::Rival(rival) => rival_intents(fleet, snapshot, rival, now),
        }
    }

    fn parts(self) -> [Part; 2] {
        [Part::Placement(self.placement), Part::Routing(self.routing)]
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut policy = Self::default();
        if text == DEFAULT {
            return Ok(policy);
        }
        for word in text.split('+') {
            let (_, part) = WORDS
                .into_iter()
                .find(|(known, _)| *known == word)
                .ok_or_else(|| PolicyError::Unknown(word.to_owned()))?;
            let first = match part {
                Part::Placement(placement) => {
                    std::mem::replace(&mut policy.placement, placement) == Placement::default()
                }
                Part::Routing(routing) => {
                    std::mem::replace(&mut policy.routing, routing) == Routing::default()
                }
            };
            if !first {
                return Err(PolicyError::Twice(text.to_owned()));
            }
        }
        Ok(policy)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let named = WORDS.iter().filter(|(_, part)| parts.contains(part));
        let words: Vec<_> = named.map(|(word, _)| *word).collect();
        f.write_str(&if words.is_empty() {
            DEFAULT.to_owned()
        } else {
            words.join("+")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Policy::from_str(text)
            .expect_err("it names no policy")
            .to_string()
    }

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for text in ["default", "best-fit", "random", "Fastest+round-robin"] {
            assert_eq!(
                Policy::from_str(text).map(|policy| policy.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!(
            Policy::from_str("random+next-node"),
            Policy::from_str("next-node+random")
        );
    }

    #[test]
    fn what_is_no_policy_is_told_with_those_there_are() {
        assert_eq!(
            error("best-fit+worst-fit"),
            "`worst-fit` is no policy: a placement is one of SloSlack, BinPack, Spread, Fastest, best-fit, least-loaded, \
             next-node, a routing one of round-robin, random; both are joined by a plus sign, and `default` is what \
             rooflet does"
        );
        assert_eq!(
            error("best-fit+Spread"),
            "`best-fit+Spread` names two placements or two routings"
        );
    }

    #[test]
    fn rivals_look_at_no_promise_of_speed() {
        let spec =
            json!({"objectives": {"decodeTokensPerSecond": 20}, "placement": {"strategy": "SloSlack"}});
        let placed = |text: &str| {
            let policy = Policy::from_str(text).expect("it is one");
            policy.placed(spec.clone())
        };
        assert_eq!(placed("default"), spec);
        assert_eq!(placed("best-fit"), json!({"placement": {"strategy": "SloSlack"}}));
        assert_eq!(placed("BinPack")["placement"], json!({"strategy": "BinPack"}));
    }
}

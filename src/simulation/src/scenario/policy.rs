//! Policies for comparisons of runs: placement of replicas and routing of requests.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde_json::{Value, json};

use rooflet_api::v1alpha1::PlacementStrategy;
use rooflet_controller::intent::{Intents, Snapshot};
use rooflet_controller::{FollowedFleet, binding_intents, rival_intents};
use rooflet_scheduler::Rival;

/// Placement and routing of a run. The default is rooflet's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    placement: Placement,
    pub(crate) routing: Routing,
}

/// Choice of a replica's node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Placement {
    /// Scheduler with the strategy of each deployment.
    #[default]
    AsWritten,
    /// Scheduler with this strategy for all deployments.
    Strategy(PlacementStrategy),
    /// Placement by memory only. Controller and agents ignore objectives; requests are still
    /// compared with them.
    Rival(Rival),
}

/// Choice of a request's replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Routing {
    /// Choice of the gateway.
    #[default]
    Gateway,
    /// Ready replicas in turn.
    RoundRobin,
    /// A random ready replica.
    Random,
}

/// Meaning of a word in a policy.
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

/// Invalid text of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "unknown policy `{0}`: use a placement ({placements}), a routing ({routings}), both joined \
         by a plus sign, or `{DEFAULT}`",
        placements = names(|part| matches!(part, Part::Placement(_))),
        routings = names(|part| matches!(part, Part::Routing(_)))
    )]
    Unknown(String),
    #[error("`{0}` has two placements or two routings; use at most one of each")]
    Twice(String),
}

fn names(of: impl Fn(Part) -> bool) -> String {
    let named = WORDS.iter().filter(|(_, part)| of(*part));
    let words: Vec<_> = named.map(|(word, _)| *word).collect();
    words.join(", ")
}

impl Policy {
    /// Applies the placement to a deployment's spec.
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

    /// Returns true if the binder waits for replicas that deployments are about to create.
    pub(crate) fn settles(self) -> bool {
        match self.placement {
            Placement::AsWritten | Placement::Strategy(_) => true,
            Placement::Rival(_) => false,
        }
    }

    /// Plans bindings. `fleet` must follow the snapshot's objects.
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
            .expect_err("the policy is invalid")
            .to_string()
    }

    #[test]
    fn display_and_parse_are_inverse() {
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
    fn error_of_an_unknown_policy_lists_the_valid_words() {
        assert_eq!(
            error("best-fit+worst-fit"),
            "unknown policy `worst-fit`: use a placement (SloSlack, BinPack, Spread, Fastest, best-fit, \
             least-loaded, next-node), a routing (round-robin, random), both joined by a plus sign, or `default`"
        );
        assert_eq!(
            error("best-fit+Spread"),
            "`best-fit+Spread` has two placements or two routings; use at most one of each"
        );
    }

    #[test]
    fn placement_by_memory_removes_objectives() {
        let spec =
            json!({"objectives": {"decodeTokensPerSecond": 20}, "placement": {"strategy": "SloSlack"}});
        let placed = |text: &str| {
            let policy = Policy::from_str(text).expect("a valid policy");
            policy.placed(spec.clone())
        };
        assert_eq!(placed("default"), spec);
        assert_eq!(placed("best-fit"), json!({"placement": {"strategy": "SloSlack"}}));
        assert_eq!(placed("BinPack")["placement"], json!({"strategy": "BinPack"}));
    }
}

//! Escalation check: a user may grant only permissions that the user holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::rule::{On, Rule, quoted};
use crate::{GROUP, Policy, User, aggregate};

/// Maximum number of single permissions that are compared, to bound the work of a request.
const SINGLES_MAX: usize = 100_000;

/// Reason why a user may not grant rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    #[error(
        "user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{missing}{unresolved}"
    )]
    NotHeld {
        user: String,
        groups: String,
        missing: String,
        unresolved: String,
    },
    #[error(
        "the rules combine to {count} permissions, and at most {SINGLES_MAX} can be compared with those of user {user:?}; \
         divide the rules among several roles"
    )]
    TooMany { user: String, count: usize },
}

/// Checks that the user holds all permissions of `rules` in a namespace, or in the cluster.
pub fn check(policy: &Policy, user: &User, namespace: &str, rules: &[Rule]) -> Result<(), GrantError> {
    let count = rules
        .iter()
        .map(Rule::single_count)
        .fold(0, usize::saturating_add);
    if count > SINGLES_MAX {
        return Err(GrantError::TooMany {
            user: user.name.clone(),
            count,
        });
    }
    let held = policy.held_by(user, namespace);
    let mut missing: BTreeMap<On<'_>, Vec<String>> = BTreeMap::new();
    for single in rules.iter().flat_map(Rule::singles) {
        if !held.rules.iter().any(|rule| single.is_covered_by(rule)) {
            missing.entry(single.on).or_default().push(single.verb.to_owned());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing: BTreeSet<String> = missing
        .into_iter()
        .flat_map(|(on, verbs)| shown(on, verbs))
        .collect();
    let unresolved: Vec<String> = held
        .missing
        .iter()
        .map(|missing| {
            let role = &missing.role;
            format!("{}.{} {:?} not found", role.resource(), GROUP, role.name())
        })
        .collect();
    Err(GrantError::NotHeld {
        user: user.name.clone(),
        groups: quoted(&user.groups),
        missing: missing.into_iter().collect::<Vec<_>>().join("\n"),
        unresolved: match unresolved.is_empty() {
            true => String::new(),
            false => format!("; resolution errors: [{}]", aggregate(unresolved)),
        },
    })
}

/// Formats missing permissions. Verbs of the same resource are combined; those of URLs are not.
fn shown(on: On<'_>, verbs: Vec<String>) -> Vec<String> {
    let text = |text: &str| vec![text.to_owned()];
    match on {
        On::Resource {
            group,
            resource,
            name,
        } => {
            let rule = Rule {
                verbs,
                api_groups: text(group),
                resources: text(resource),
                resource_names: name.map(text).unwrap_or_default(),
                ..Rule::default()
            };
            vec![rule.to_string()]
        }
        On::Url(url) => {
            let single = |verb: String| Rule {
                verbs: vec![verb],
                non_resource_urls: text(url),
                ..Rule::default()
            };
            verbs.into_iter().map(|verb| single(verb).to_string()).collect()
        }
    }
}

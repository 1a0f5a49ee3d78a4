//! Whether an agent's version goes with ours. As with kubelet and Kubernetes' API server, a node is upgraded after the
//! control plane; here one minor version between them is tried, in both directions.

/// How far apart they are, if it is too far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skew {
    Older,
    Newer,
}

/// Compares versions by their first two numbers. `None` also for one that is no version.
pub(super) fn skew(agent: &str, ours: &str) -> Option<Skew> {
    let (agent, ours) = (numbers(agent)?, numbers(ours)?);
    let is_near = agent.0 == ours.0 && agent.1.abs_diff(ours.1) <= 1;
    match is_near {
        true => None,
        false if agent < ours => Some(Skew::Older),
        false => Some(Skew::Newer),
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_minor_version_is_tried_and_no_more() {
        for (agent, ours, expect) in [
            ("0.3.0", "0.3.9", None),
            ("0.2.7", "0.3.0", None),
            ("0.4.0-rc.1", "0.3.0", None),
            ("0.1.0", "0.3.0", Some(Skew::Older)),
            ("0.5.0", "0.3.0", Some(Skew::Newer)),
            ("0.9.0", "1.0.0", Some(Skew::Older)),
            ("2.0.0", "1.9.0", Some(Skew::Newer)),
            ("", "1.0.0", None),
            ("main", "1.0.0", None),
        ] {
            assert_eq!(skew(agent, ours), expect, "{agent} {ours}");
        }
    }
}

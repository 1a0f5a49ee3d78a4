//! Comparison of agent and control plane versions. As in Kubernetes, nodes are upgraded after the
//! control plane. A difference of one minor version is supported, in both directions.

/// Unsupported difference between an agent and the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skew {
    Older,
    Newer,
}

/// Compares the major and minor versions. Returns `None` if the difference is supported or a text
/// is not a version.
pub(super) fn skew(agent: &str, own: &str) -> Option<Skew> {
    let (agent, own) = (numbers(agent)?, numbers(own)?);
    let is_near = agent.0 == own.0 && agent.1.abs_diff(own.1) <= 1;
    match is_near {
        true => None,
        false if agent < own => Some(Skew::Older),
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
    fn supports_one_minor_version_in_both_directions() {
        for (agent, own, expect) in [
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
            assert_eq!(skew(agent, own), expect, "{agent} {own}");
        }
    }
}

//! Comparison of the dependencies between crates with the table of layers in ARCHITECTURE.md.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::krate::Crate;

/// Row of the table. The first row is the lowest layer.
struct Layer {
    crates: Vec<String>,
    /// True if a crate may depend on the preceding crates of the same row.
    in_order: bool,
}

/// Packages that only one crate may depend on, and that crate.
const RESTRICTED: &[(&str, &str)] = &[
    ("mlx-rs", "mlx"),
    ("mlx-sys", "mlx"),
    ("serde-saphyr", "base"),
    ("prometheus", "base"),
    ("redb", "store"),
    ("opentelemetry", "telemetry"),
    ("opentelemetry_sdk", "telemetry"),
    ("opentelemetry-otlp", "telemetry"),
    ("tracing-subscriber", "telemetry"),
];

pub(super) fn faults(map: &str, crates: &[Crate]) -> Result<Vec<String>> {
    let layers = layers(map)?;
    let place = |name: &str| {
        layers.iter().enumerate().find_map(|(layer, row)| {
            let index = row.crates.iter().position(|listed| listed == name)?;
            Some((layer, index))
        })
    };
    let mut faults = Vec::new();
    for krate in crates {
        let Some((layer, index)) = place(&krate.name) else {
            faults.push(format!(
                "src/{}: missing in the table of layers in ARCHITECTURE.md",
                krate.name
            ));
            continue;
        };
        for dependency in dependencies(&krate.manifest) {
            let Some(internal) = dependency.strip_prefix("rooflet-") else {
                let restricted = RESTRICTED.iter().find(|(package, _)| *package == dependency);
                if let Some((_, owner)) = restricted.filter(|(_, owner)| *owner != krate.name) {
                    faults.push(format!(
                        "src/{}/Cargo.toml: only `{owner}` may depend on {dependency}",
                        krate.name
                    ));
                }
                continue;
            };
            let allowed = place(internal).is_some_and(|(other, before)| {
                other < layer || other == layer && layers[layer].in_order && before < index
            });
            if !allowed {
                faults.push(format!(
                    "src/{}/Cargo.toml: {dependency} is not in a lower layer",
                    krate.name
                ));
            }
        }
    }
    for listed in layers.iter().flat_map(|layer| &layer.crates) {
        if !crates.iter().any(|krate| krate.name == *listed) {
            faults.push(format!(
                "ARCHITECTURE.md: the table of layers lists `{listed}`, which does not exist"
            ));
        }
    }
    Ok(faults)
}

fn layers(map: &str) -> Result<Vec<Layer>> {
    let (_, table) = map
        .split_once("| layer | crates | rule |\n")
        .context("ARCHITECTURE.md has no table `| layer | crates | rule |`")?;
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    Ok(rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            Layer {
                crates: cells[2].trim_matches('`').split(' ').map(str::to_owned).collect(),
                in_order: cells[3].starts_with("in order"),
            }
        })
        .collect())
}

/// Returns the packages that a manifest depends on, including dev and build dependencies.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.trim_end_matches(']').ends_with("dependencies");
        } else if inside && let Some((name, _)) = line.split_once('=') {
            found.insert(name.split('.').next().unwrap_or_default().trim());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\n| layer | crates | rule |\n|---|---|---|\n| base | `base` | - |\n| core | `model plan` | in order |\n| \
                       services | `agent gateway` | apart |\n";

    fn check(crates: &[(&str, &str)]) -> Vec<String> {
        let listed = ["base", "model", "plan", "agent", "gateway"];
        let crates: Vec<_> = listed
            .iter()
            .map(|name| {
                let found = crates.iter().find(|(krate, _)| krate == name);
                let dependencies = found.map_or("", |(_, dependencies)| dependencies);
                Crate::of_texts(
                    name,
                    &format!("[dependencies]\n{dependencies}\n[lints]\nworkspace = true"),
                    &[],
                )
            })
            .collect();
        faults(MAP, &crates).expect("a table")
    }

    #[test]
    fn accepts_lower_layers_and_earlier_crates_of_an_ordered_one() {
        let allowed = [
            ("plan", "rooflet-model.workspace = true"),
            ("agent", "rooflet-plan.workspace = true"),
        ];
        assert_eq!(check(&allowed), [""; 0]);
    }

    #[test]
    fn rejects_siblings_higher_layers_and_restricted_packages() {
        for (krate, dependency) in [
            ("agent", "rooflet-gateway.workspace = true"),
            ("model", "rooflet-plan = { workspace = true }"),
            ("base", "rooflet-agent.workspace = true"),
            ("agent", "redb.workspace = true"),
        ] {
            assert_eq!(check(&[(krate, dependency)]).len(), 1, "{krate}: {dependency}");
        }
    }

    #[test]
    fn rejects_unlisted_crates_and_listed_crates_that_do_not_exist() {
        let crates = [Crate::of_texts("new", "", &[])];
        assert_eq!(faults(MAP, &crates).expect("a table").len(), 1 + 5);
    }
}

//! The manifest directory: deployments that the agent runs without an API server, like the static
//! Pods of a kubelet.
//!
//! A file is accepted or rejected as a whole. If a file becomes invalid, the agent reports the
//! problem and keeps running the last valid version. Only removing the file, or an object in the
//! file, removes a replica. Backup files of editors are ignored.

mod directory;
mod parse;

use std::collections::BTreeMap;

pub(crate) use directory::{OpenManifestsError, check_readable, watch};
pub(crate) use parse::{Manifest, ManifestProblem, Parser};

use super::replica::ReplicaKey;

/// Contents of the manifest directory at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ManifestSet {
    /// Replicas by key, with the file that defines each.
    pub replicas: BTreeMap<ReplicaKey, (String, Manifest)>,
    /// Sorted by file and line.
    pub problems: Vec<ManifestProblem>,
}

/// Contents of one file.
#[derive(Debug, Clone, Default, PartialEq)]
struct FileState {
    /// Last valid version.
    good: Vec<Manifest>,
    /// Problems of the current version.
    problems: Vec<ManifestProblem>,
}

/// Merges the files. If two files define the same deployment, the file whose definition already
/// runs wins, otherwise the first file by name.
fn merge(files: &BTreeMap<String, FileState>, before: &ManifestSet, parser: &Parser) -> ManifestSet {
    let defines = |file: &str, key: &ReplicaKey| {
        files
            .get(file)
            .is_some_and(|state| state.good.iter().any(|manifest| manifest.key == *key))
    };
    let mut merged = ManifestSet::default();
    for (file, state) in files {
        merged.problems.extend(state.problems.iter().cloned());
        for manifest in &state.good {
            let key = &manifest.key;
            let owner = match before.replicas.get(key).filter(|(owner, _)| defines(owner, key)) {
                Some((owner, _)) => owner,
                None => files.keys().find(|file| defines(file, key)).unwrap_or(file),
            };
            if owner == file {
                merged
                    .replicas
                    .insert(key.clone(), (file.clone(), manifest.clone()));
            } else {
                merged.problems.push(ManifestProblem {
                    file: file.clone(),
                    line: None,
                    field: Some("metadata.name".to_owned()),
                    message: format!(
                        "ModelDeployment {} is already defined in {owner}: rename or remove one of them",
                        parser.shown(key)
                    ),
                });
            }
        }
    }
    merged.problems.sort();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(names: &[&str]) -> FileState {
        let text: String = names
            .iter()
            .map(|name| {
                format!(
                    "---\napiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec: {{model: {{source: 'local://m'}}}}\n"
                )
            })
            .collect();
        FileState {
            good: Parser::new("n").parse("x", &text).unwrap(),
            problems: Vec::new(),
        }
    }

    fn owners(set: &ManifestSet) -> String {
        let all: Vec<_> = set
            .replicas
            .iter()
            .map(|(key, (file, _))| format!("{}<{file}", key.name))
            .collect();
        format!("{} / {}", all.join(" "), set.problems.len())
    }

    #[test]
    fn running_definition_wins_over_second_definition() {
        let parser = Parser::new("n");
        let mut files = BTreeMap::from([("b.yaml".to_owned(), file(&["x"]))]);
        let first = merge(&files, &ManifestSet::default(), &parser);
        assert_eq!(owners(&first), "x-n<b.yaml / 0");
        files.insert("a.yaml".to_owned(), file(&["x", "z"]));
        let second = merge(&files, &first, &parser);
        assert_eq!(owners(&second), "x-n<b.yaml z-n<a.yaml / 1");
        assert!(
            second.problems[0]
                .to_string()
                .contains("default/x is already defined in b.yaml"),
            "{second:?}"
        );
        assert_eq!(
            owners(&merge(&files, &ManifestSet::default(), &parser)),
            "x-n<a.yaml z-n<a.yaml / 1"
        );
        files.remove("b.yaml");
        assert_eq!(
            owners(&merge(&files, &second, &parser)),
            "x-n<a.yaml z-n<a.yaml / 0"
        );
    }
}

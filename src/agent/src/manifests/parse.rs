//! Parser of manifest files. Pure. Errors name file, line and field.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::replica::{ReplicaKey, ReplicaSpec, Terms};
use rooflet_api::v1alpha1::ModelDeployment;
use rooflet_api::{GROUP, VERSION};
use rooflet_base::yaml;
use rooflet_scheduler::is_overridden;
use rooflet_schema::{StructuralSchema, names};

/// Maximum number of objects per file.
const MAX_OBJECTS_PER_FILE: usize = 256;

/// Namespace of objects without `metadata.namespace`.
const DEFAULT_NAMESPACE: &str = "default";

/// Replica that this node runs for one ModelDeployment of the manifest directory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub key: ReplicaKey,
    pub spec: ReplicaSpec,
    pub terms: Terms,
}

/// Problem of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestProblem {
    pub file: String,
    /// Line number, starting at 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    pub message: String,
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.field {
            Some(field) => write!(f, ": {field}: {}", self.message),
            None => write!(f, ": {}", self.message),
        }
    }
}

/// Parser of manifests. It uses the API server's schema, so that a manifest means the same with and
/// without an API server.
#[derive(Debug)]
pub(crate) struct Parser {
    schema: StructuralSchema,
    /// Name of this node. A replica's name is the deployment's name with this suffix, like the name
    /// of its mirror.
    node: String,
}

impl Parser {
    pub(crate) fn new(node: &str) -> Self {
        Self {
            schema: StructuralSchema::of_kind::<ModelDeployment>(),
            node: node.to_owned(),
        }
    }

    /// Returns all replicas of a file, or all problems if the file has any.
    pub(crate) fn parse(&self, file: &str, text: &str) -> Result<Vec<Manifest>, Vec<ManifestProblem>> {
        let problem = |line, field, message| ManifestProblem {
            file: file.to_owned(),
            line,
            field,
            message,
        };
        let documents = yaml::documents(text).map_err(|err| {
            let message = err.to_string();
            vec![problem(
                line_in_message(&message),
                None,
                first_paragraph(&message),
            )]
        })?;
        if documents.is_empty() {
            let message = "the file contains no object: add a ModelDeployment, or remove the file".to_owned();
            return Err(vec![problem(None, None, message)]);
        }
        let chunks = chunks(text);
        let mut manifests: Vec<Manifest> = Vec::new();
        let mut problems = Vec::new();
        for (index, document) in documents.into_iter().enumerate() {
            let chunk = chunks.get(index).filter(|_| chunks.len() > index);
            for Object { value, locatable } in flatten(document) {
                if manifests.len() >= MAX_OBJECTS_PER_FILE {
                    let message =
                        format!("the file contains more than {MAX_OBJECTS_PER_FILE} objects: split it");
                    return Err(vec![problem(None, None, message)]);
                }
                match self.object(value) {
                    Ok(manifest) if manifests.iter().any(|known| known.key == manifest.key) => {
                        let message = format!(
                            "ModelDeployment {} is defined twice in this file",
                            self.shown(&manifest.key)
                        );
                        problems.push(problem(chunk.map(|chunk| chunk.first_line), None, message));
                    }
                    Ok(manifest) => manifests.push(manifest),
                    Err(wrong) => problems.extend(wrong.into_iter().map(|(field, message)| {
                        let line = chunk
                            .filter(|_| locatable)
                            .map(|chunk| chunk.line_of(field.as_deref().unwrap_or("")));
                        problem(line, field, message)
                    })),
                }
            }
        }
        if problems.is_empty() {
            Ok(manifests)
        } else {
            Err(problems)
        }
    }

    /// Formats a replica's key as `namespace/name` of its deployment.
    pub(crate) fn shown(&self, key: &ReplicaKey) -> String {
        let name = key
            .name
            .strip_suffix(&format!("-{}", self.node))
            .unwrap_or(&key.name);
        format!("{}/{name}", key.namespace)
    }

    fn object(&self, mut value: Value) -> Result<Manifest, Vec<(Option<String>, String)>> {
        let one = |field: &str, message: String| vec![(Some(field.to_owned()), message)];
        let Some(object) = value.as_object() else {
            return Err(vec![(
                None,
                "a manifest must be an object with apiVersion, kind, metadata and spec".to_owned(),
            )]);
        };
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let api_version = format!("{GROUP}/{VERSION}");
        if text("kind") != "ModelDeployment" {
            let message = format!(
                "must be ModelDeployment, not `{}`: an agent runs no other kind from manifests",
                text("kind")
            );
            return Err(one("kind", message));
        }
        if text("apiVersion") != api_version {
            return Err(one(
                "apiVersion",
                format!("must be {api_version}, not `{}`", text("apiVersion")),
            ));
        }
        let metadata = |field: &str| object.get("metadata").and_then(|metadata| metadata.get(field));
        let name = match metadata("name").map(|name| name.as_str().unwrap_or_default()) {
            None => {
                return Err(one(
                    "metadata.name",
                    "Required value: name is required".to_owned(),
                ));
            }
            Some(name) => name.to_owned(),
        };
        let namespace = match metadata("namespace") {
            None | Some(Value::Null) => DEFAULT_NAMESPACE.to_owned(),
            Some(namespace) => namespace.as_str().unwrap_or_default().to_owned(),
        };
        let mut wrong: Vec<_> = names::dns_subdomain(&name)
            .into_iter()
            .map(|what| {
                (
                    Some("metadata.name".to_owned()),
                    format!("Invalid value: \"{name}\": {what}"),
                )
            })
            .collect();
        wrong.extend(names::dns_label(&namespace).into_iter().map(|what| {
            (
                Some("metadata.namespace".to_owned()),
                format!("Invalid value: \"{namespace}\": {what}"),
            )
        }));
        let unknown = self.schema.prune(&mut value);
        wrong.extend(
            unknown
                .into_iter()
                .map(|field| (Some(field), "unknown field".to_owned())),
        );
        self.schema.apply_defaults(&mut value);
        let invalid = self.schema.validate(&value, None);
        for error in invalid {
            match (error.field.as_str(), wrong.is_empty()) {
                // This error concerns the whole object. Next to other errors it only states that
                // more errors may exist.
                ("<nil>", false) => {}
                ("<nil>", true) => wrong.push((None, error.message)),
                _ => wrong.push((Some(error.field), error.message)),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let deployment: ModelDeployment =
            serde_json::from_value(value).map_err(|err| vec![(None, err.to_string())])?;
        let terms = Terms {
            overridden: is_overridden(&deployment),
            objectives: deployment.spec.objectives,
            golden_prompts: deployment.spec.strategy.golden_prompts,
            priority: deployment.spec.priority,
            owner: None,
            artifact: None,
        };
        let serving = deployment.spec.serving;
        Ok(Manifest {
            key: ReplicaKey::new(namespace, format!("{name}-{}", self.node)),
            spec: ReplicaSpec {
                source: deployment.spec.model.text(),
                serving_name: serving.name.unwrap_or(name),
                context_tokens: serving.context_tokens,
                max_concurrency: serving.max_concurrency,
                kv_cache: serving.kv_cache,
                prompt_lookup_tokens: serving.prompt_lookup_tokens,
                keep_alive: serving.keep_alive,
                allow_request_chat_template: serving.allow_request_chat_template,
            },
            terms,
        })
    }
}

struct Object {
    value: Value,
    /// True if field paths can be located in the text. False for items of a List.
    locatable: bool,
}

/// Returns the items of a List, or the object itself.
fn flatten(mut document: Value) -> Vec<Object> {
    let is_list = document
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) if is_list => std::mem::take(items)
            .into_iter()
            .map(|value| Object {
                value,
                locatable: false,
            })
            .collect(),
        Some(_) | None => vec![Object {
            value: document,
            locatable: true,
        }],
    }
}

/// Lines of one YAML document.
struct Chunk<'a> {
    /// Line number within the file, starting at 1.
    first_line: usize,
    lines: Vec<&'a str>,
}

/// Splits a YAML stream into its non-empty documents.
fn chunks(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = vec![Chunk {
        first_line: 1,
        lines: Vec::new(),
    }];
    for (index, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            chunks.push(Chunk {
                first_line: index + 2,
                lines: Vec::new(),
            });
        } else if let Some(chunk) = chunks.last_mut() {
            chunk.lines.push(line);
        }
    }
    let has_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    chunks.retain(|chunk| chunk.lines.iter().any(has_content));
    chunks
}

impl Chunk<'_> {
    /// Returns the line of a field in block style. If the field is absent, returns the line of its
    /// deepest ancestor.
    fn line_of(&self, path: &str) -> usize {
        let (mut from, mut found) = (0, None);
        let mut parent_indent = None;
        'segments: for segment in path
            .split('.')
            .map(|segment| segment.split('[').next().unwrap_or_default())
        {
            for (index, line) in self.lines.iter().enumerate().skip(from) {
                let content = line.trim_start();
                if content.is_empty() || content.starts_with('#') {
                    continue;
                }
                let indent = line.len() - content.len();
                if parent_indent.is_some_and(|parent| indent <= parent) {
                    break 'segments;
                }
                let key = content
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .trim_matches(['"', '\'']);
                if key == segment && content.contains(':') && (parent_indent.is_some() || indent == 0) {
                    (from, found, parent_indent) = (index + 1, Some(index), Some(indent));
                    continue 'segments;
                }
            }
            break;
        }
        let has_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let first = self.lines.iter().position(has_content).unwrap_or(0);
        self.first_line + found.unwrap_or(first)
    }
}

/// Extracts the line number from a message of the YAML crate.
fn line_in_message(message: &str) -> Option<usize> {
    let (_, rest) = message.split_once("line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Returns a message of the YAML crate without its excerpt of the source text.
fn first_paragraph(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = "\
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: guide
spec:
  model:
    source: local://guide
";

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let shown = match Parser::new("mini-1").parse("a.yaml", text) {
            Ok(manifests) => {
                let all: Vec<_> = manifests
                    .iter()
                    .map(|one| format!("{} serves {}", one.key, one.spec.serving_name))
                    .collect();
                all.join("\n")
            }
            Err(problems) => problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n"),
        };
        assert_eq!(shown, expect, "{text}");
    }

    #[test]
    fn parses_one_deployment_to_one_replica_with_defaults() {
        let manifests = Parser::new("mini-1").parse("a.yaml", GUIDE).unwrap();
        let spec = ReplicaSpec {
            source: "local://guide".to_owned(),
            serving_name: "guide".to_owned(),
            context_tokens: None,
            max_concurrency: 4,
            kv_cache: None,
            prompt_lookup_tokens: None,
            keep_alive: None,
            allow_request_chat_template: false,
        };
        assert_eq!(
            manifests,
            [Manifest {
                terms: Terms::default(),
                key: ReplicaKey::new("default", "guide-mini-1"),
                spec
            }]
        );
    }

    #[test]
    fn parses_yaml_streams_and_lists() {
        let second = GUIDE.replace("name: guide", "name: b\n  namespace: prod");
        check(
            &format!("# first\n---\n{GUIDE}---\n---\n{second}"),
            "default/guide-mini-1 serves guide\nprod/b-mini-1 serves b",
        );
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "rooflet.dev/v1alpha1",
            "kind": "ModelDeployment", "metadata": {"name": "j"}, "spec": {"model": {"source": "local://j"}}}]}"#;
        check(list, "default/j-mini-1 serves j");
        check(
            &format!("{GUIDE}---\n{GUIDE}"),
            "a.yaml:9: ModelDeployment default/guide is defined twice in this file",
        );
    }

    #[test]
    fn reports_problems_with_line_and_field() {
        check(
            &GUIDE.replace("    source", "    sauce"),
            "a.yaml:7: spec.model.sauce: unknown field\na.yaml:6: spec.model.source: Required value",
        );
        check(
            &GUIDE.replace("local://guide", "s3://a/b"),
            "a.yaml:7: spec.model.source: Invalid value: \"s3://a/b\": must be hf://OWNER/NAME (a revision goes into spec.model.revision), local://NAME (a directory under the agent's --model-dir) or file:///ABSOLUTE/PATH; this version supports no other sources",
        );
        check(
            &format!("{GUIDE}  replicas: many\n"),
            "a.yaml:8: spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        );
        check(
            &GUIDE.replace("ModelDeployment", "Pod"),
            "a.yaml:2: kind: must be ModelDeployment, not `Pod`: an agent runs no other kind from manifests",
        );
        check(
            &GUIDE.replace("v1alpha1", "v9"),
            "a.yaml:1: apiVersion: must be rooflet.dev/v1alpha1, not `rooflet.dev/v9`",
        );
        check(
            &GUIDE.replace("  name: guide", "  labels: {}"),
            "a.yaml:3: metadata.name: Required value: name is required",
        );
        check(
            "- a\n- b\n",
            "a.yaml:1: a manifest must be an object with apiVersion, kind, metadata and spec",
        );
        check(
            "# nothing yet\n",
            "a.yaml: the file contains no object: add a ModelDeployment, or remove the file",
        );
    }

    #[test]
    fn rejects_contradictory_values_with_field() {
        let tolerations = "  placement: {tolerations: [";
        // These messages are Kubernetes' own.
        for one in ["{}", "{value: x}", "{key: '', effect: NoExecute}"] {
            check(
                &format!("{GUIDE}{tolerations}{one}]}}\n"),
                "a.yaml:8: spec.placement.tolerations[0].operator: Invalid value: operator must be Exists when \
                 `key` is empty, which means \"match all values and all keys\"",
            );
        }
        check(
            &format!("{GUIDE}{tolerations}{{operator: Exists}}, {{key: k, operator: Exists, value: v}}]}}\n"),
            "a.yaml:8: spec.placement.tolerations[1].operator: Invalid value: value must be empty when `operator` \
             is 'Exists'",
        );
        let objective = |context: &str, max: &str, prompt: u32| {
            let first = format!("{{max: {max}, atPromptTokens: {prompt}}}");
            format!("{GUIDE}  serving: {{{context}}}\n  objectives: {{timeToFirstToken: {first}}}\n")
        };
        check(
            &objective("contextTokens: 512", "2s", 513),
            "a.yaml:9: spec.objectives.timeToFirstToken.atPromptTokens: Invalid value: must be less than or equal to \
             spec.serving.contextTokens: longer prompts are rejected",
        );
        for fits in [
            objective("contextTokens: 512", "2s", 512),
            objective("", "1m", 100_000),
        ] {
            check(&fits, "default/guide-mini-1 serves guide");
        }
        // Null fields count as absent.
        for fits in [
            format!("{GUIDE}{tolerations}{{operator: Exists, key: , value: }}]}}\n"),
            objective("contextTokens: ", "2s", 513),
            objective("contextTokens: 512", "2s, atPromptTokens: ", 513).replace(", atPromptTokens: 513", ""),
            format!("{GUIDE}  serving: {{contextTokens: 512}}\n  objectives: {{timeToFirstToken: }}\n"),
        ] {
            check(&fits, "default/guide-mini-1 serves guide");
        }
        check(
            &objective("", "0m0.0s", 1),
            "a.yaml:9: spec.objectives.timeToFirstToken.max: Invalid value: must be greater than 0",
        );
        check(
            &objective("", "99999999999999999999h", 1),
            "a.yaml:9: spec.objectives.timeToFirstToken.max: Invalid value: \"99999999999999999999h\": \
             spec.objectives.timeToFirstToken.max in body should match \
             '^([0-9]{1,9}(\\.[0-9]+)?(ms|s|m|h)){1,8}$'",
        );
        check(
            &format!("{GUIDE}  routing: {{fallbacks: ['']}}\n"),
            "a.yaml:8: spec.routing.fallbacks[0]: Invalid value: \"\": spec.routing.fallbacks[0] in body should be at least 1 chars long",
        );
    }

    #[test]
    fn one_invalid_document_invalidates_the_file() {
        let broken = GUIDE.replace("local://guide", "''");
        let problems = Parser::new("n")
            .parse("a.yaml", &format!("{GUIDE}---\n{broken}"))
            .unwrap_err();
        assert_eq!(
            problems.iter().map(|problem| problem.line).collect::<Vec<_>>(),
            vec![Some(15); problems.len()]
        );
    }

    #[test]
    fn yaml_syntax_errors_have_a_line() {
        let problems = Parser::new("n")
            .parse("a.yaml", "kind: [1, 2\nmetadata: {}\n")
            .unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].line.is_some() && !problems[0].message.contains('\n'),
            "{problems:?}"
        );
    }
}

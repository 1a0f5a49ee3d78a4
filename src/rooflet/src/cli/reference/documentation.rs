//! Tests of the documentation: its commands exist, and its manifests are valid.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use serde_json::{Value, json};

use crate::cli::Cli;
use rooflet_api::v1alpha1::{CapacityPlan, ModelDeployment, PerformanceClaim};
use rooflet_base::yaml;
use rooflet_schema::{FieldError, StructuralSchema};

/// Returns the name and the text of every page.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Vec::new();
    let mut paths: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", ".github", "docs", "examples"]
        .map(|path| root.join(path))
        .into();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = path.read_dir().expect("the folder is readable");
            paths.extend(entries.map(|entry| entry.expect("the folder is readable").path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).expect("the page is readable");
            let name = path.strip_prefix(&root).expect("below the root");
            pages.push((name.display().to_string(), text));
        }
    }
    pages.sort();
    pages
}

/// Returns the fenced blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open: Option<bool> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(_), Some(_)) => open = None,
            (Some(info), None) => {
                let is_wanted = info == language;
                open = Some(is_wanted);
                if is_wanted {
                    found.push(String::new());
                }
            }
            (None, Some(true)) => {
                let block = found.last_mut().expect("pushed when it was opened");
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

/// Returns the command lines of console blocks: lines with a prompt, with their continuations.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for block in blocks(page, "console") {
        let joined = block.replace("\\\n", " ");
        for line in joined.lines() {
            if let Some((_, command)) = line
                .split_once("$ ")
                .filter(|(prompt, _)| !prompt.trim().contains(' '))
            {
                commands.push(command.split(" #").next().unwrap_or_default().to_owned());
            }
        }
    }
    commands
}

/// Splits a command line into words, and at the operators of the shell into commands.
fn words(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(mark), c) if c == mark => quote = None,
            (None, ' ' | '|' | '&' | ';' | '>' | '<') => {
                let command = commands.last_mut().expect("never empty");
                if !word.is_empty() {
                    command.push(std::mem::take(&mut word));
                }
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            (_, c) => word.push(c),
        }
    }
    commands
}

/// Returns the words after the program if `command` runs rooflet.
fn arguments(command: &[String]) -> Option<&[String]> {
    let is_prefix = |word: &&String| *word == "sudo" || word.contains('=');
    let start = command.iter().take_while(is_prefix).count();
    let (program, arguments) = command[start..].split_first()?;
    program.ends_with("rooflet").then_some(arguments)
}

#[test]
fn commands_of_all_pages_are_accepted() {
    let mut count = 0;
    for (page, text) in pages() {
        for line in commands(&text) {
            for command in words(&line) {
                let Some(arguments) = arguments(&command) else {
                    continue;
                };
                count += 1;
                let full = ["rooflet".to_owned()]
                    .into_iter()
                    .chain(arguments.iter().cloned());
                let parsed = Cli::command().try_get_matches_from(full);
                assert!(parsed.is_ok(), "{page}: `{line}`: {}", parsed.unwrap_err());
            }
        }
    }
    assert!(count > 20, "found {count} commands only");
}

/// Verbs and flags that prose mentions exist. Commands in prose may be incomplete.
#[test]
fn verbs_and_flags_in_prose_exist() {
    let root = Cli::command();
    let mut count = 0;
    for (page, text) in pages() {
        for code in text.split('`').skip(1).step_by(2) {
            let Some(rest) = code.strip_prefix("rooflet ").filter(|code| !code.contains('\n')) else {
                continue;
            };
            count += 1;
            let unknown = unknown_word(&root, &words(rest)[0]);
            assert_eq!(unknown, None, "{page}: `{code}`");
        }
    }
    assert!(count > 50, "found {count} mentions only");
}

/// Returns the first word that is neither a verb nor a flag of `command`, nor a value.
fn unknown_word(command: &Command, words: &[String]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    if let Some(verb) = command.find_subcommand(first) {
        return unknown_word(verb, rest);
    }
    let is_placeholder = first.chars().all(|c| c.is_uppercase()) || first == "…";
    if command.has_subcommands() && !first.starts_with('-') && !is_placeholder {
        return Some(first.clone());
    }
    words
        .iter()
        .filter_map(|word| word.strip_prefix("--"))
        .map(|flag| flag.split('=').next().unwrap_or(flag))
        .find(|flag| {
            let is_known = command.get_arguments().any(|arg| arg.get_long() == Some(flag));
            !is_known && !["help", "version", "log-format"].contains(flag)
        })
        .map(|flag| format!("--{flag}"))
}

#[test]
fn manifests_of_all_pages_are_valid() {
    let mut count = 0;
    for (page, text) in pages() {
        for block in blocks(&text, "yaml") {
            let documents = yaml::documents(&block).unwrap_or_else(|err| panic!("{page}: {err}\n{block}"));
            for document in documents {
                count += 1;
                let problems = problems(document);
                assert!(problems.is_empty(), "{page}: {problems:?}\n{block}");
            }
        }
    }
    assert!(count > 10, "found {count} manifests only");
}

/// Returns the problems of a manifest. Parts of a ModelDeployment are completed first.
fn problems(document: Value) -> Vec<String> {
    let kind = document["kind"].as_str().unwrap_or_default();
    let has = |field: &str| document.get(field).is_some();
    let (schema, object) = match kind {
        "CapacityPlan" => (StructuralSchema::of_kind::<CapacityPlan>(), document),
        "PerformanceClaim" => (StructuralSchema::of_kind::<PerformanceClaim>(), document),
        "ModelDeployment" => (StructuralSchema::of_kind::<ModelDeployment>(), document),
        "" if has("figures") => {
            let claim = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "PerformanceClaim", "metadata": {"name": "n"}, "spec": document});
            (StructuralSchema::of_kind::<PerformanceClaim>(), claim)
        }
        "" => {
            let mut spec = if has("spec") {
                document["spec"].clone()
            } else {
                document
            };
            if spec.get("model").is_none() {
                spec["model"] = json!({"source": "local://m"});
            }
            let deployment = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "n"}, "spec": spec});
            (StructuralSchema::of_kind::<ModelDeployment>(), deployment)
        }
        // Kinds of Kubernetes, which the e2e tests apply.
        _ => return Vec::new(),
    };
    let mut object = object;
    let unknown = schema.prune(&mut object);
    let unknown = unknown.into_iter().map(|field| format!("{field}: unknown field"));
    schema.apply_defaults(&mut object);
    let invalid = schema.validate(&object, None);
    let invalid = invalid.iter().map(FieldError::summary);
    unknown.chain(invalid).collect()
}

#[test]
fn problems_of_manifests_are_found() {
    let problems = |text: &str| problems(yaml::from_str(text).expect("valid YAML"));
    assert_eq!(problems("spec: {priority: 10}"), [""; 0]);
    assert_eq!(problems("spec: {prio: 10}"), ["spec.prio: unknown field"]);
    assert_ne!(problems("strategy: {type: Blue}"), [""; 0]);
}

#[test]
fn unknown_verbs_and_flags_are_found() {
    let unknown = |line: &str| unknown_word(&Cli::command(), &words(line)[0]);
    assert_eq!(unknown("fit MODEL --chip M4"), None);
    assert_eq!(unknown("rollout undo"), None);
    assert_eq!(unknown("fits MODEL"), Some("fits".to_owned()));
    assert_eq!(unknown("fit MODEL --chips M4"), Some("--chips".to_owned()));
}

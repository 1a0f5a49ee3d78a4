//! Formats and required tools on the chat templates of Qwen2.5, Llama 3.1 and Qwen3. The model is a
//! copy of the guide whose vocabulary has the tokens for reasoning, so that a template or a request
//! determines whether an answer begins with reasoning.

use std::path::Path;

use serde_json::{Value, json};

use super::{node_command, python, python_command, python_with, run_against};
use crate::harness::{Fleet, Options, Scratch, copy_guide, repository};

/// Name of the model, template, and a switch of the template.
const MODELS: [(&str, &str, Option<bool>); 4] = [
    ("qwen2.5", "qwen2_5", None),
    ("llama3.1", "llama3_1", None),
    ("qwen3", "qwen3", Some(true)),
    ("qwen3-quick", "qwen3", Some(false)),
];

#[test]
fn formats_hold_on_other_templates() {
    let (Some(python), Some(instructor)) = (python(), python_with("e2e/clients/instructor.txt")) else {
        return;
    };
    let directory = Scratch::new();
    for (name, template, _) in MODELS {
        write_model(&directory.join(name), template);
    }
    let options = Options {
        model_dir: Some(directory.path().to_owned()),
        ..Options::default()
    };
    let fleet = Fleet::with(options);
    let Some(kubectl) = fleet.kubectl() else { return };
    for (name, ..) in MODELS {
        let deployment = name.replace('.', "-");
        kubectl
            .apply(&format!(
                "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {deployment}}}\n\
                 spec:\n  model: {{source: 'local://{name}'}}\n  serving: {{name: '{name}', contextTokens: 2048, \
                 maxConcurrency: 2}}\n"
            ))
            .ok();
    }
    for (name, _, thinking) in MODELS {
        fleet.wait_for_ready(&kubectl, &name.replace('.', "-"));
        let variables = thinking.map_or(json!({}), |thinking| json!({"enable_thinking": thinking}));
        for (script, mut command) in [
            ("formats_client.py", python_command(&python, "formats_client.py")),
            (
                "instructor_client.py",
                python_command(&instructor, "instructor_client.py"),
            ),
        ] {
            command
                .env("ROOFLET_MODEL", name)
                .env("ROOFLET_TEMPLATE_VARIABLES", variables.to_string());
            run_against(&format!("{script} on {name}"), command, &fleet);
        }
        if let Some(mut command) = node_command("formats_node.mjs") {
            command
                .env("ROOFLET_MODEL", name)
                .env("ROOFLET_TEMPLATE_VARIABLES", variables.to_string());
            run_against(&format!("formats_node.mjs on {name}"), command, &fleet);
        }
    }
}

/// Writes a copy of the guide with another chat template, and with tokens for reasoning.
fn write_model(directory: &Path, template: &str) {
    copy_guide(directory);
    let edit = |file: &str, change: &dyn Fn(&mut Value)| {
        let path = directory.join(file);
        let text = std::fs::read(&path).expect("readable");
        let mut json: Value = serde_json::from_slice(&text).expect("JSON");
        change(&mut json);
        std::fs::write(&path, json.to_string()).expect("writable");
    };
    let template = repository("e2e/fixtures/templates").join(format!("{template}.jinja"));
    let template = std::fs::read_to_string(template).expect("readable");
    edit("tokenizer_config.json", &|config| {
        config["chat_template"] = json!(template);
    });
    edit("tokenizer.json", &|tokenizer| {
        // No other merge uses the results of the last two merges.
        for (id, name) in [(1023, "</think>"), (1022, "<think>")] {
            let merges = tokenizer["model"]["merges"].as_array_mut().expect("a list");
            let merge = merges.pop().expect("a merge");
            let merged: String = merge
                .as_array()
                .expect("two tokens")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("an object");
            assert_eq!(vocabulary.remove(&merged), Some(json!(id)));
            vocabulary.insert(name.to_owned(), json!(id));
            let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
            added.push(
                json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": false}),
            );
        }
    });
}

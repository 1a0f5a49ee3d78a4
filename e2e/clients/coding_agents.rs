//! The coding agents Claude Code and Codex, as their programs. Their usual prompts of 19,000 and more
//! tokens take minutes on a CPU, so the tests replace the instructions and turn most tools off.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{node_modules, run_against};
use crate::harness::{Fleet, Scratch};

/// Seconds after which a program is terminated.
const TIMEOUT_SECONDS: &str = "300";

const QUESTION: &str = "What is rooflet?";

#[test]
fn coding_agents_work() {
    let Some(packages) = node_modules("e2e/clients/agents") else {
        return;
    };
    let Some((fleet, _kubectl)) = Fleet::with_guide() else {
        return;
    };
    let program = |name: &str| packages.join("node_modules/.bin").join(name);
    claude_code_answers(program("claude"), &fleet);
    codex_answers(program("codex"), &fleet);
}

/// Returns the command of a program, with a home directory and a working directory of its own.
fn command(program: PathBuf, home: &Scratch) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(TIMEOUT_SECONDS)
        .arg(program)
        .current_dir(home.path())
        .env("HOME", home.path())
        .stdin(Stdio::null());
    command
}

fn claude_code_answers(program: PathBuf, fleet: &Fleet) {
    let home = Scratch::new();
    let ask = |tools: &str, format: &str| {
        let mut command = command(program.clone(), &home);
        command
            .args(["--print", QUESTION, "--model=guide", "--bare", "--verbose"])
            .args(["--system-prompt", "Answer briefly.", "--tools", tools])
            .args(["--output-format", format])
            .env(
                "ANTHROPIC_BASE_URL",
                format!("http://127.0.0.1:{}", fleet.gateway_port),
            )
            .env("ANTHROPIC_AUTH_TOKEN", "any")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        run_against("claude", command, fleet)
    };
    // The events of a stream, and the definition of a tool in the prompt.
    for (tools, least) in [("", 20), ("Read", 500)] {
        let printed = ask(tools, "stream-json");
        let events: Vec<Value> = printed
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let result = events.iter().find(|event| event["type"] == "result");
        let result = result.unwrap_or_else(|| panic!("no result: {printed}"));
        assert_eq!(
            (&result["subtype"], &result["is_error"]),
            (&"success".into(), &false.into()),
            "{result:#}"
        );
        let usage = &result["usage"];
        let count = |name: &str| usage[name].as_u64().unwrap_or(0);
        let prompt = count("input_tokens") + count("cache_read_input_tokens");
        assert!(prompt >= least && count("output_tokens") > 0, "{usage:#}");
        if tools.is_empty() {
            let text = result["result"].as_str().expect("a text");
            assert!(!text.trim().is_empty(), "{result:#}");
        }
    }
}

fn codex_answers(program: PathBuf, fleet: &Fleet) {
    let home = Scratch::new();
    let instructions = home.write("instructions.md", "You answer questions.\n");
    // As in docs/openai-api.md.
    home.write(
        ".codex/config.toml",
        &format!(
            "model = \"guide\"\nmodel_provider = \"rooflet\"\nweb_search = \"disabled\"\n\
             model_instructions_file = \"{}\"\n\n[model_providers.rooflet]\nname = \"rooflet\"\n\
             base_url = \"http://127.0.0.1:{}/v1\"\nwire_api = \"responses\"\n",
            instructions.display(),
            fleet.gateway_port
        ),
    );
    let mut command = command(program, &home);
    command.args(["exec", "--skip-git-repo-check", "--json"]);
    for name in [
        "permissions_instructions",
        "apps_instructions",
        "collaboration_mode_instructions",
        "environment_context",
    ] {
        command.arg("-c").arg(format!("include_{name}=false"));
    }
    for feature in [
        "code_mode_host",
        "apps",
        "browser_use",
        "computer_use",
        "goals",
        "multi_agent",
        "plugins",
        "shell_tool",
        "unified_exec",
    ] {
        command.args(["--disable", feature]);
    }
    command.arg(QUESTION);
    let printed = run_against("codex", command, fleet);
    let events: Vec<Value> = printed
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind);
    let Some(turn) = of("turn.completed") else {
        panic!("the turn did not complete: {printed}");
    };
    let usage = &turn["usage"];
    assert!(
        usage["input_tokens"].as_u64().is_some_and(|tokens| tokens > 1000)
            && usage["output_tokens"].as_u64().is_some_and(|tokens| tokens > 0),
        "{turn:#}"
    );
    assert!(of("turn.failed").is_none(), "{printed}");
}

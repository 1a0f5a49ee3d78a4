//! Clients of the OpenAI, Anthropic and Ollama APIs, and of the model hub: the scripts in clients/,
//! with pinned packages.

mod coding_agents;
mod formats;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::harness::{
    Access, Fault, Fleet, Http, Hub, Kubectl, Process, Scratch, Times, eventually, free_port, not_run,
    repository,
};

#[test]
fn python_clients_work() {
    let Some(python) = python() else { return };
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    for script in [
        "openai_python.py",
        "anthropic_python.py",
        "ollama_python.py",
        "litellm_client.py",
        "langchain_client.py",
    ] {
        let mut command = python_command(&python, script);
        // Without this, litellm downloads prices.
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        run_against(script, command, &fleet);
    }
    ollama_works_at_agent_and_worker(&python, &kubectl);
    keep_alive_works(&fleet, &kubectl, || {
        python_command(&python, "ollama_keep_alive.py")
    });
    llm_works(&python, &fleet);
    // Its packages conflict with those of the other clients.
    let Some(python) = python_with("e2e/clients/instructor.txt") else {
        return;
    };
    let command = python_command(&python, "instructor_client.py");
    run_against("instructor_client.py", command, &fleet);
}

/// Starts a worker of the guide by hand. Returns its URL.
fn guide_worker(scratch: &Scratch, args: &[&str]) -> (Process, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let model = repository("examples/models/guide");
    let first = [
        "worker".to_owned(),
        format!("--model={}", model.display()),
        format!("--listen={address}"),
    ];
    let args = first.into_iter().chain(args.iter().map(|arg| (*arg).to_owned()));
    let worker = Process::start(args, &scratch.join("worker.log"));
    let url = format!("http://{address}");
    let http = Http::new(url.clone());
    eventually("/ready", || match http.get("/ready")? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    (worker, url)
}

/// Returns the URL of the agent.
fn agent_url(kubectl: &Kubectl) -> String {
    let node = kubectl.json("mac node-1").expect("the node");
    let url = node["status"]["endpoint"].as_str();
    url.expect("the URL of the agent").to_owned()
}

/// Tests a client of Ollama at gateway, agent and worker. The deployment and the worker keep their model
/// loaded for one hour.
fn keep_alive_works(fleet: &Fleet, kubectl: &Kubectl, command: impl Fn() -> Command) {
    kubectl
        .apply(
            "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: brief}\n\
             spec:\n  model: {source: 'local://guide'}\n  serving: {contextTokens: 512, keepAlive: 1h}\n",
        )
        .ok();
    fleet.wait_for_ready(kubectl, "brief");
    let scratch = Scratch::new();
    let (_worker, worker) = guide_worker(&scratch, &["--name=brief", "--keep-alive=1h"]);
    let gateway = format!("http://127.0.0.1:{}", fleet.gateway_port);
    for url in [gateway, agent_url(kubectl), worker] {
        let name = format!("keep_alive at {url}");
        assert_success(&name, command().env("ROOFLET_GATEWAY", url));
    }
    // An unloaded replica stays ready.
    let listed = kubectl.run("get mdep brief").ok();
    assert!(listed.contains("AllReplicasReady"), "{listed}");
    kubectl.run("delete mdep brief").ok();
}

/// Tests Ollama's client at an agent, and at a worker that was started by hand.
fn ollama_works_at_agent_and_worker(python: &Path, kubectl: &Kubectl) {
    let scratch = Scratch::new();
    let (_worker, worker) = guide_worker(&scratch, &["--name=guide"]);
    for (name, url) in [("agent", agent_url(kubectl)), ("worker", worker)] {
        let mut command = python_command(python, "ollama_python.py");
        assert_success(
            &format!("ollama_python.py at the {name}"),
            command.env("ROOFLET_GATEWAY", url),
        );
    }
}

/// Returns the command that runs a script with this Python.
fn python_command(python: &Path, script: &str) -> Command {
    let mut command = Command::new(python);
    command
        .arg(repository("e2e/clients").join(script))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Tests the program `llm`, configured according to its documentation.
fn llm_works(python: &Path, fleet: &Fleet) {
    let home = Scratch::new();
    home.write(
        "extra-openai-models.yaml",
        &format!(
            "- model_id: guide\n  model_name: guide\n  api_base: http://127.0.0.1:{}/v1\n",
            fleet.gateway_port
        ),
    );
    let ask = |more: &[&str]| {
        let mut command = Command::new(python);
        command
            .args(["-m", "llm", "prompt", "What is rooflet?", "--no-log", "--key=any"])
            .args([
                "--model=guide",
                "--option",
                "temperature",
                "0",
                "--option",
                "max_tokens",
                "12",
            ])
            .args(more)
            .env("LLM_USER_PATH", home.path());
        run_against("llm", command, fleet)
    };
    let whole = ask(&["--no-stream"]);
    assert!(!whole.trim().is_empty());
    assert_eq!(whole, ask(&[]), "streamed");
}

#[test]
fn node_clients_work() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    for name in ["openai_node.mjs", "ai_sdk.mjs", "ollama_node.mjs"] {
        let Some(command) = node_command(name) else { return };
        run_against(name, command, &fleet);
    }
    let command = || node_command("ollama_keep_alive.mjs").expect("packages for Node");
    keep_alive_works(&fleet, &kubectl, command);
}

/// Returns the command that runs a script with Node. If Node has no packages, prints a line and
/// returns `None`.
fn node_command(name: &str) -> Option<Command> {
    // Node searches packages in the directory of the script.
    let script = node_modules("e2e/clients")?.join(name);
    std::fs::copy(repository("e2e/clients").join(name), &script).expect("writable");
    let mut command = Command::new("node");
    command.arg(script);
    Some(command)
}

/// Tests the hub of the test harness with the real client.
#[test]
fn test_hub_is_compatible_with_huggingface_hub() {
    let Some(python) = python() else { return };
    let (hub, home) = (Hub::start(), Scratch::new());
    let directory = repository("examples/models/guide");
    let commits =
        ["rooflet/open", "rooflet/gated", "rooflet/private"].map(|model| hub.commit(model, &directory));
    hub.allow("rooflet/gated", Access::Gated("hf_secret"));
    hub.allow("rooflet/private", Access::Private("hf_secret"));
    hub.fault("model.safetensors", 1_000_000, Fault::Cut, Times::Once);
    hub.fault("config.json", 0, Fault::Cut, Times::Once);
    let mut command = Command::new(python);
    command
        .arg(repository("e2e/clients/huggingface_client.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HOME", home.path())
        .env("MODEL_DIRECTORY", &directory)
        .env("MODEL_COMMIT", &commits[0]);
    assert_success("huggingface_client.py", &mut command);
    let weights = hub.downloads();
    let weights: Vec<_> = weights
        .iter()
        .filter(|download| download.file == "model.safetensors")
        .collect();
    let begins = weights
        .iter()
        .map(|download| download.range.map(|(begin, _)| begin));
    assert_eq!(begins.take(3).collect::<Vec<_>>(), [None, Some(1_000_000), None]);
}

fn run_against(name: &str, mut command: Command, fleet: &Fleet) -> String {
    let gateway = format!("http://127.0.0.1:{}", fleet.gateway_port);
    assert_success(name, command.env("ROOFLET_GATEWAY", gateway))
}

fn assert_success(name: &str, command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{name}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Returns a Python with most of the pinned clients.
fn python() -> Option<PathBuf> {
    python_with("e2e/clients/requirements.txt")
}

/// Returns a Python with the packages of a file, which are installed on the first call.
fn python_with(requirements: &str) -> Option<PathBuf> {
    let requirements = repository(requirements);
    let home = prepared("python", &[&requirements], |home| {
        run(Command::new("python3").args(["-m", "venv"]).arg(home))
            && run(Command::new(home.join("bin/python"))
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--requirement",
                ])
                .arg(&requirements))
    })?;
    Some(home.join("bin/python"))
}

/// Returns a directory with the packages of Node that a folder pins.
fn node_modules(folder: &str) -> Option<PathBuf> {
    let [package, lock] = ["package.json", "package-lock.json"].map(|file| repository(folder).join(file));
    prepared("node", &[&package, &lock], |home| {
        std::fs::create_dir_all(home).expect("writable");
        for file in [&package, &lock] {
            let name = file.file_name().expect("a file");
            std::fs::copy(file, home.join(name)).expect("writable");
        }
        run(Command::new("npm")
            .args(["ci", "--silent", "--no-audit", "--no-fund"])
            .current_dir(home))
    })
}

/// Returns a directory that `make` creates from `files`, in the target directory. Concurrent tests
/// create it once. If that fails, prints a line and returns `None`.
fn prepared(tool: &str, files: &[&Path], make: impl FnOnce(&Path) -> bool) -> Option<PathBuf> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).expect("readable").hash(&mut hasher);
    }
    let home =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("clients-{tool}-{:016x}", hasher.finish()));
    let ready = home.join("ready");
    if !ready.exists() {
        // An interrupted run may have left an incomplete directory.
        drop(std::fs::remove_dir_all(&home));
        if !make(&home) {
            not_run(&format!("{tool} and its package registry"));
            return None;
        }
        std::fs::write(ready, "").expect("writable");
    }
    Some(home)
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

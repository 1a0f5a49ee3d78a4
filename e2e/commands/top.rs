//! `rooflet top`: its output for scripts, and its view in a terminal of tmux.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Cluster, Process, eventually, not_run, processes_with, repository, rooflet};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
";

const CHAT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: chat}
spec:
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096, maxConcurrency: 2}
";

/// Starts two simulated Macs with one replica, and a real node that serves the guide.
fn fleet() -> Option<(Cluster, Process)> {
    let cluster = Cluster::simulated(FLEET, &[])?;
    let agent = cluster.agent("real-1", &[]);
    cluster.kubectl.apply(CHAT).ok();
    let guide = repository("examples/guide.yaml");
    cluster.kubectl.run(&format!("apply -f {}", guide.display())).ok();
    let ready = "wait --for=condition=Ready mdep/chat mdep/guide --timeout=180s";
    cluster.kubectl.run(ready).ok();
    Some((cluster, agent))
}

fn top(kubeconfig: &Path, args: &[&str]) -> Output {
    let output = Command::new(rooflet())
        .arg("top")
        .args(args)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .output();
    output.expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(err));
    String::from_utf8_lossy(out).into_owned()
}

fn row(json: &Value, table: &str, name: &str) -> Value {
    let rows = json[table].as_array().cloned().unwrap_or_default();
    let is_it = |row: &Value| row["name"].as_str().is_some_and(|text| text.starts_with(name));
    rows.into_iter().find(is_it).unwrap_or_default()
}

#[test]
fn top_prints_predicted_and_measured_figures_for_scripts() {
    let Some((mut cluster, _agent)) = fleet() else {
        return;
    };
    let kubeconfig = cluster.scratch.join("kubeconfig");
    let answer = cluster
        .gateway
        .try_chat("guide", "How do I drain a node?")
        .expect("a response");
    assert_eq!(answer.status, 200, "{}", answer.text);
    // Agents report requests every 10 s.
    let json = eventually("the measured speed", || {
        let json: Value = serde_json::from_str(&stdout(&top(&kubeconfig, &["-o", "json"]))).expect("JSON");
        let guide = row(&json, "replicas", "guide-");
        match guide["tokensPerSecond"]["measured"].as_f64() {
            Some(speed) if speed > 0.0 => Ok(json),
            _ => Err(guide.to_string()),
        }
    });
    let guide = row(&json, "replicas", "guide-");
    assert_eq!(guide["requests"]["completed"], 1, "{guide}");
    assert_eq!(
        (&guide["node"], &guide["simulated"]),
        (&"real-1".into(), &false.into())
    );
    let chat = row(&json, "replicas", "chat-");
    assert_eq!(chat["tokensPerSecond"]["predictedBasis"], "Nominal", "{chat}");
    assert!(
        chat["tokensPerSecond"]["predicted"]
            .as_f64()
            .is_some_and(|speed| speed > 0.0),
        "{chat}"
    );
    assert_eq!(
        (&chat["tokensPerSecond"]["measured"], &chat["simulated"]),
        (&Value::Null, &true.into())
    );
    let real = row(&json, "macs", "real-1");
    // The agent ran without a probe.
    assert_eq!(real["bandwidthBytesPerSecond"], Value::Null, "{real}");
    let memory = &real["memoryBytes"];
    assert!(
        memory["reserved"].as_u64().is_some_and(|bytes| bytes > 1 << 28),
        "{real}"
    );
    assert!(memory["free"].as_u64() < memory["allocatable"].as_u64(), "{real}");
    assert_eq!(json["totals"]["macs"], 3);
    assert_eq!(row(&json, "deployments", "guide")["readyReplicas"], 1);
    assert!(json["events"].as_array().is_some_and(|events| !events.is_empty()));
    assert_eq!(json["problems"], Value::Array(Vec::new()));

    let text = stdout(&top(&kubeconfig, &["--once"]));
    for part in [
        "MACS\nNAME",
        "Apple M4 (simulated)",
        "\nREPLICAS\n",
        "\nDEPLOYMENTS\n",
        "\nEVENTS\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // The output of this test is no terminal.
    let macs = stdout(&top(&kubeconfig, &["macs"]));
    assert_eq!(macs.lines().count(), 4, "{macs}");
    let other = stdout(&top(&kubeconfig, &["replicas", "--namespace=kube-system"]));
    assert_eq!(other, "REPLICAS: none\n");

    cluster.stop();
    let failed = top(&kubeconfig, &["-o", "json"]);
    assert_eq!(failed.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        printed.contains("Macs: API server") && printed.contains("refused"),
        "{printed}"
    );
    let json: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
    assert_eq!(json["problems"].as_array().map(Vec::len), Some(4), "{json}");
}

fn verb(kubeconfig: &Path, args: &[&str]) -> Output {
    let output = Command::new(rooflet())
        .args(args)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .output();
    output.expect("the binary starts")
}

#[test]
fn status_models_logs_and_plan_describe_the_fleet() {
    let Some((cluster, _agent)) = fleet() else {
        return;
    };
    let kubeconfig = cluster.scratch.join("kubeconfig");
    cluster.rooflet("cordon real-1");
    let text = eventually("the cordoned Mac as the only problem", || {
        let text = stdout(&verb(&kubeconfig, &["status"]));
        let is_expected = text.starts_with("1 problem:\n  warning mac/real-1: Cordoned");
        if is_expected { Ok(text) } else { Err(text) }
    });
    assert!(
        text.contains("3 of 3 Macs ready") && text.contains("Ready,Cordoned"),
        "{text}"
    );
    cluster.rooflet("uncordon real-1");
    let json: Value =
        serde_json::from_str(&stdout(&verb(&kubeconfig, &["status", "-o", "json"]))).expect("JSON");
    assert_eq!(json["totals"]["macs"], 3, "{json}");

    let models = stdout(&verb(&kubeconfig, &["models", "list"]));
    let guide = models
        .lines()
        .find(|line| line.contains("local://guide") && line.contains("real-1"));
    assert!(guide.is_some_and(|line| line.ends_with("1 replica")), "{models}");
    let absent = verb(
        &kubeconfig,
        &["models", "delete", "hf://o/absent", "--node=real-1"],
    );
    let message = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(
        message.contains("real-1 has no downloaded model hf://o/absent"),
        "{message}"
    );
    let kept = stdout(&verb(
        &kubeconfig,
        &["models", "prefetch", "hf://o/n", "--node=mini-1"],
    ));
    assert!(
        kept.contains("fleetnode.rooflet.dev/mini-1 hf://o/n: prefetch requested"),
        "{kept}"
    );
    let node = cluster.kubectl.json("mac mini-1").expect("the node");
    assert_eq!(
        node["metadata"]["annotations"]["rooflet.dev/keep-models"],
        "hf://o/n"
    );

    let log = stdout(&verb(&kubeconfig, &["logs", "mdep/guide", "--tail=5"]));
    assert!(
        !log.is_empty() && log.lines().all(|line| line.starts_with("[guide-")),
        "{log}"
    );

    let plan = verb(&kubeconfig, &["plan", "--current"]);
    let printed = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert_eq!(
        plan.status.code(),
        Some(0),
        "{printed}{}",
        String::from_utf8_lossy(&plan.stderr)
    );
    assert!(printed.contains("chat") && printed.contains("guide"), "{printed}");

    follows_replicas_that_are_created_later(&cluster, &kubeconfig);
}

fn follows_replicas_that_are_created_later(cluster: &Cluster, kubeconfig: &Path) {
    let log = cluster.scratch.join("followed.log");
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let mut follower = Process::start(["logs", "-f", "mdep/guide", "--tail=1", &kubeconfig], &log);
    let replicas = || {
        let labels = "get mrep -l rooflet.dev/deployment=guide -o name";
        cluster.kubectl.run(labels).ok()
    };
    let first = replicas().trim().rsplit('/').next().expect("a name").to_owned();
    let has_lines = |name: &str| {
        eventually(&format!("lines of {name}"), || match follower.log() {
            text if text.contains(&format!("[{name}] ")) => Ok(()),
            text => Err(text),
        });
    };
    has_lines(&first);
    cluster.kubectl.run(&format!("delete mrep {first}")).ok();
    let second = eventually("a second replica", || {
        let all = replicas();
        let name = all.lines().filter_map(|line| line.rsplit('/').next());
        let mut others = name.filter(|name| *name != first);
        others.next().map(str::to_owned).ok_or(all.clone())
    });
    has_lines(&second);
    assert!(!follower.has_ended());
    cluster.kubectl.run("delete mdep guide").ok();
    assert!(follower.wait().success(), "{}", follower.log());
}

/// Shell in a terminal of tmux. The server of tmux ends when the value is dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts a shell in a terminal of 110 columns and 24 lines. Returns `None` if tmux is missing.
    fn start(socket: &Path, directory: &Path) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            not_run("tmux");
            return None;
        }
        let socket = socket.display().to_string();
        let terminal = Self { socket };
        let shell = "exec env PS1='prompt$ ' sh";
        let size = ["new-session", "-d", "-x", "110", "-y", "24"];
        let mut command = terminal.tmux();
        command
            .args(size)
            .arg(shell)
            .current_dir(directory)
            .env_remove("NO_COLOR");
        assert!(command.status().expect("tmux is installed").success());
        terminal.wait_for(&["prompt$"]);
        Some(terminal)
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command
            .args(["-S", &self.socket, "-f", "/dev/null"])
            .env_remove("TMUX");
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.tmux().args(args).output().expect("tmux is installed");
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Waits until the screen contains all texts. Returns the screen.
    #[track_caller]
    fn wait_for(&self, texts: &[&str]) -> String {
        eventually("the terminal", || {
            let screen = self.screen();
            let missing = texts.iter().find(|text| !screen.contains(*text));
            missing.map_or(Ok(screen.clone()), |text| {
                Err(format!("{text} is not in\n{screen}"))
            })
        })
    }

    /// Waits until the screen does not contain a text.
    #[track_caller]
    fn wait_without(&self, text: &str) {
        eventually("the terminal", || {
            let screen = self.screen();
            if screen.contains(text) {
                Err(screen)
            } else {
                Ok(())
            }
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tmux().arg("kill-server").output());
    }
}

#[test]
fn top_in_a_terminal_follows_keys_sizes_outages_and_signals() {
    let Some((mut cluster, _agent)) = fleet() else {
        return;
    };
    let socket = cluster.scratch.join("tmux");
    let Some(terminal) = Terminal::start(&socket, cluster.scratch.path()) else {
        return;
    };
    terminal.press(&["stty -g > before", "Enter"]);
    let kubeconfig = format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display());
    let start = format!("clear; {} top {kubeconfig}", rooflet());
    terminal.press(&[&start, "Enter"]);
    terminal.wait_for(&[
        "3/3 Macs ready",
        "2/2 replicas ready",
        "mini-1",
        "real-1",
        "q quit",
    ]);

    terminal.press(&["Tab"]);
    terminal.wait_for(&["TOK/S PRED", "guide-", "chat-"]);
    terminal.press(&["/", "guide"]);
    terminal.wait_without("chat-");
    terminal.press(&["Enter"]);
    terminal.wait_for(&["filter: guide"]);
    terminal.press(&["Enter"]);
    terminal.wait_for(&[
        "Replica default/guide-",
        "Tok/s of one stream",
        "Ready=True Serving",
    ]);
    terminal.press(&["Escape"]);
    terminal.wait_for(&["filter: guide"]);
    terminal.press(&["Escape"]);
    terminal.wait_for(&["chat-"]);

    terminal.run(&["resize-window", "-x", "60", "-y", "12"]);
    let narrow = terminal.wait_for(&["PHASE", "guide-", "TOK/S MEAS"]);
    assert!(!narrow.contains("TTFT"), "{narrow}");
    terminal.run(&["resize-window", "-x", "110", "-y", "24"]);
    terminal.wait_for(&["TTFT PRED"]);

    cluster.stop();
    terminal.wait_for(&["STALE since", "refused the connection", "guide-"]);
    cluster.start_again();
    terminal.wait_without("STALE");
    terminal.wait_for(&["guide-"]);

    // In raw mode, Ctrl-Z is a key.
    terminal.press(&["C-z"]);
    terminal.wait_for(&["prompt$", "Stopped"]);
    terminal.press(&["fg", "Enter"]);
    terminal.wait_for(&["TOK/S PRED", "q quit"]);

    let found = processes_with(&[" top ", &kubeconfig]);
    let [pid] = found[..] else {
        panic!("{found:?} match the view")
    };
    let kill = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
    assert!(kill.expect("`kill` is installed").success());
    terminal.wait_without("Macs ready");
    terminal.press(&["echo code=$?", "Enter"]);
    terminal.wait_for(&["code=0"]);
    terminal.press(&["stty -g > after", "Enter"]);
    let read = |name: &str| std::fs::read_to_string(cluster.scratch.join(name)).unwrap_or_default();
    eventually("the restored modes", || match read("after") {
        after if !after.is_empty() && after == read("before") => Ok(()),
        after => Err(format!("{} and {after}", read("before"))),
    });
}

//! Processes whose stdout or stderr is closed, and the log filter.

use std::process::{Command, Stdio};

use crate::harness::{Scratch, eventually, rooflet};

/// Covers Ctrl-C in `rooflet server 2>&1 | tee log`, where `tee` may exit first.
#[test]
fn server_with_a_closed_log_pipe_stops_on_sigterm() {
    let scratch = Scratch::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut server = Command::new(rooflet())
        .args(["server", "--listen=127.0.0.1:0", "--gateway-listen=127.0.0.1:0"])
        .arg("--web-listen=127.0.0.1:0")
        .arg(format!("--data-dir={}", scratch.join("server").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .expect("the binary starts");
    eventually("the server's kubeconfig", || {
        let written = scratch.join("server/kubeconfig").exists();
        written.then_some(()).ok_or_else(|| "missing".to_owned())
    });
    drop(reader);
    let pid = nix::unistd::Pid::from_raw(server.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the process exists");
    let mut ended = None;
    for _ in 0..300 {
        ended = server.try_wait().expect("a child process");
        if ended.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if ended.is_none() {
        server.kill().expect("a child process");
        server.wait().expect("a child process");
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Covers `rooflet fit --cases … | head -1`.
#[test]
fn closed_stdout_ends_a_command_without_an_error() {
    let scratch = Scratch::new();
    let cases = scratch.write(
        "cases.csv",
        "chip,engine,model_key,quant\nM4,mlx-lm,qwen3-8b,mlx4\n",
    );
    let shapes = scratch.write("shapes.json", "{}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(rooflet())
        .args(["fit", "--cases"])
        .arg(cases)
        .arg("--shapes")
        .arg(shapes)
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
        .wait_with_output()
        .expect("the process exits");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !printed.contains("error"), "{printed}");
}

/// An empty variable counts as unset.
#[test]
fn invalid_log_filter_is_rejected() {
    let run = |name: &str, value: &str| {
        let output = Command::new(rooflet()).arg("version").env(name, value).output();
        output.expect("the binary starts")
    };
    for name in ["ROOFLET_LOG", "ROOFLET_LOG_FORMAT"] {
        assert!(run(name, "").status.success(), "{name}");
    }
    let wrong = run("ROOFLET_LOG", "rooflet=loud");
    let printed = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{printed}");
    assert!(printed.contains("ROOFLET_LOG is `rooflet=loud`"), "{printed}");
}

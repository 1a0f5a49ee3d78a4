//! What becomes of a process whose output nobody takes any more.

use std::process::{Command, Stdio};

use crate::harness::{Scratch, eventually, rooflet};

/// `rooflet server 2>&1 | tee log` and Ctrl-C: tee may be gone first.
#[test]
fn a_server_whose_log_nobody_reads_stops_when_asked() {
    let scratch = Scratch::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut server = Command::new(rooflet())
        .args(["server", "--listen=127.0.0.1:0", "--gateway-listen=127.0.0.1:0"])
        .arg(format!("--data-dir={}", scratch.join("server").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .expect("it starts");
    eventually("the server's kubeconfig", || {
        let written = scratch.join("server/kubeconfig").exists();
        written.then_some(()).ok_or_else(|| "it is not there".to_owned())
    });
    drop(reader);
    let pid = nix::unistd::Pid::from_raw(server.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    let mut ended = None;
    for _ in 0..300 {
        ended = server.try_wait().expect("our own child");
        if ended.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if ended.is_none() {
        server.kill().expect("our own child");
        server.wait().expect("our own child");
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// `rooflet fit --cases … | head -1`
#[test]
fn output_that_nobody_reads_ends_a_verb_quietly() {
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
        .expect("it starts")
        .wait_with_output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("error"), "{said}");
}

/// A variable that says nothing, and one that says nonsense.
#[test]
fn a_wrong_log_filter_is_told() {
    let run = |name: &str, value: &str| {
        let output = Command::new(rooflet()).arg("version").env(name, value).output();
        output.expect("it starts")
    };
    for name in ["ROOFLET_LOG", "ROOFLET_LOG_FORMAT"] {
        assert!(run(name, "").status.success(), "{name}");
    }
    let wrong = run("ROOFLET_LOG", "rooflet=loud");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("ROOFLET_LOG is `rooflet=loud`"), "{said}");
}

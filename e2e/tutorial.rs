//! The commands of docs/tutorial.md, executed in their order.

use std::path::Path;
use std::process::Command;

use crate::harness::{Kubectl, Process, Scratch, eventually, free_port, repository, rooflet};

/// Returns the command lines of the page's console blocks.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let joined: Vec<_> = blocks.map(|block| block.replace("\\\n", " ")).collect();
    let lines = joined.iter().flat_map(|block| block.lines());
    let commands = lines.filter_map(|line| line.strip_prefix("$ "));
    commands.map(str::to_owned).collect()
}

#[test]
fn every_command_of_the_tutorial_succeeds() {
    let scratch = Scratch::new();
    let kubeconfig = scratch.join(".rooflet/server/kubeconfig");
    if Kubectl::find(&kubeconfig, scratch.path()).is_none() {
        return;
    }
    let page = std::fs::read_to_string(repository("docs/tutorial.md")).expect("the page exists");
    let gateway = format!("127.0.0.1:{}", free_port());
    let binaries = Path::new(rooflet()).parent().expect("the binary is in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binaries.display());

    let mut server = None;
    let mut count = 0;
    for command in commands(&page) {
        // The binary under test is built already.
        if command.starts_with("cargo ") || command.starts_with("export ") {
            continue;
        }
        count += 1;
        if let Some(args) = command.strip_prefix("rooflet server ") {
            let args = args.replace("examples/", &format!("{}/", repository("examples").display()));
            let listen = [
                "--listen".to_owned(),
                "127.0.0.1:0".to_owned(),
                "--gateway-listen".to_owned(),
                gateway.clone(),
                "--web-listen=127.0.0.1:0".to_owned(),
            ];
            let all = ["server".to_owned()].into_iter();
            let all = all
                .chain(args.split_whitespace().map(str::to_owned))
                .chain(listen);
            let home = vec![("HOME", scratch.path().display().to_string())];
            server = Some(Process::start_with_env(home, all, &scratch.join("server.log")));
            eventually("four simulated Macs", || {
                let macs = shell("kubectl get mac -o name", scratch.path(), &path);
                let count = macs.as_deref().unwrap_or_default().lines().count();
                if count == 4 {
                    Ok(())
                } else {
                    Err(format!("{macs:?}"))
                }
            });
            continue;
        }
        let command = command.replace("127.0.0.1:7480", &gateway);
        if let Err(problem) = shell(&command, scratch.path(), &path) {
            panic!("`{command}` failed: {problem}");
        }
    }
    assert!(count > 10, "the page has only {count} commands");
    let mut server = server.expect("the page starts a server");
    assert!(server.interrupt().success(), "{}", server.log());
}

/// Runs a command line in the repository's root. Returns its standard output, or its standard error
/// if it fails.
fn shell(line: &str, home: &Path, path: &str) -> Result<String, String> {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", line])
        .current_dir(repository("."))
        .env("HOME", home)
        .env("KUBECONFIG", home.join(".rooflet/server/kubeconfig"))
        .env("PATH", path)
        .output()
        .expect("bash starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

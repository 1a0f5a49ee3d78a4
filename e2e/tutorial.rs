//! The commands of docs/tutorial.md, executed in their order, and the printed predictions of the documentation.

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

/// Pages that show the output of `rooflet fit` and `rooflet plan`. Both compute from data sheets, so their output
/// is the same on every machine.
const PAGES_WITH_PREDICTIONS: [&str; 2] = ["docs/planning.md", "docs/tutorial.md"];

/// Returns the predictions of a page: each command line with its output.
fn predictions(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        for line in block.replace("\\\n", " ").lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                found.push((command.to_owned(), Vec::new()));
            } else if let Some((_, output)) = found.last_mut() {
                output.push(line.to_owned());
            }
        }
    }
    let is_prediction = |command: &str| {
        ["rooflet fit ", "rooflet plan "]
            .iter()
            .any(|verb| command.starts_with(verb))
            && !command.contains("--current")
    };
    found.retain(|(command, output)| is_prediction(command) && !output.is_empty());
    found
}

/// Returns the first line of `shown` that the output does not have at this position. The line `…` stands for any
/// lines, and empty lines at the end do not count.
fn missing_line<'a>(shown: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(str::trim_end);
    let mut skips = false;
    for line in shown.iter().map(|line| line.trim_end()) {
        if line == "…" {
            skips = true;
            continue;
        }
        let found = match skips {
            true => lines.any(|printed| printed == line),
            false => lines.next() == Some(line),
        };
        if !found && !line.is_empty() {
            return Some(line);
        }
        skips = false;
    }
    None
}

#[test]
fn shown_predictions_are_those_of_the_binary() {
    let scratch = Scratch::new();
    let binaries = Path::new(rooflet()).parent().expect("the binary is in a folder");
    let path = format!(
        "{}:{}",
        binaries.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut count = 0;
    for name in PAGES_WITH_PREDICTIONS {
        let page = std::fs::read_to_string(repository(name)).expect("the page exists");
        for (command, shown) in predictions(&page) {
            count += 1;
            let command = command.replace("--html report.html", "");
            // Exit code 3: the demand does not fit.
            let output = shell(&format!("{command} || test $? = 3"), scratch.path(), &path);
            let output = output.unwrap_or_else(|err| panic!("{name}: `{command}` failed: {err}"));
            if let Some(line) = missing_line(&shown, &output) {
                panic!("{name}: `{command}` does not print `{line}`; its output is:\n{output}");
            }
        }
    }
    assert!(count >= 5, "found {count} predictions only");
}

#[test]
fn missing_lines_of_predictions_are_found() {
    let shown = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    assert_eq!(missing_line(&shown(&["a", "…", "c"]), "a\nb\nc\n"), None);
    assert_eq!(missing_line(&shown(&["a", "c"]), "a\nb\nc\n"), Some("c"));
    assert_eq!(missing_line(&shown(&["…", "d"]), "a\nb\n"), Some("d"));
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

//! `install`, `status` and `uninstall` of services as a user runs them on another system than macOS.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::rooflet;

fn run(args: &[&str]) -> Output {
    Command::new(rooflet())
        .args(args)
        .output()
        .expect("the binary starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn files_below_a_prefix_are_installed_once_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let prefix = directory.path().join("package");
    let prefix_text = prefix.to_str().expect("UTF-8");
    let install = [
        "server",
        "install",
        "--listen=0.0.0.0:7443",
        "--prefix",
        prefix_text,
        "--gateway-listen",
        "0.0.0.0:7480",
        "--allow-anonymous",
    ];
    let output = run(&install);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for command in [
        "dscl . -create /Users/_rooflet UserShell /usr/bin/false",
        "chown -R _rooflet /usr/local/var/rooflet/server",
        "launchctl bootstrap system /Library/LaunchDaemons/dev.rooflet.server.plist",
    ] {
        let line = format!("on the Mac, run: {command}\n");
        assert!(stderr(&output).contains(&line), "{}", stderr(&output));
    }
    let list = prefix.join("Library/LaunchDaemons/dev.rooflet.server.plist");
    let text = fs::read_to_string(&list).expect("written");
    let arguments = "\t\t<string>server</string>\n\t\t<string>--listen=0.0.0.0:7443</string>\n\
                     \t\t<string>--gateway-listen=0.0.0.0:7480</string>\n\t\t<string>--allow-anonymous</string>\n\
                     \t\t<string>--data-dir=/usr/local/var/rooflet/server</string>\n\t</array>";
    assert!(text.contains(arguments), "{text}");
    let binary = prefix.join("usr/local/bin/rooflet");
    let version = Command::new(&binary).arg("version").output();
    assert!(version.expect("the copy starts").status.success());

    // Without flags, the service keeps its flags.
    let inodes = || [&list, &binary].map(|path: &std::path::PathBuf| inode(path));
    let before = inodes();
    let again = run(&["server", "install", "--prefix", prefix_text]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(inodes(), before, "unchanged files are not written");

    let removal = run(&["server", "uninstall", "--purge", "--prefix", prefix_text]);
    assert_eq!(removal.status.code(), Some(0), "{}", stderr(&removal));
    assert!(!list.exists() && !binary.exists() && !prefix.join("usr/local/var/rooflet").exists());
    let removal = run(&["server", "uninstall", "--prefix", prefix_text]);
    assert!(
        stderr(&removal).contains("is not installed"),
        "{}",
        stderr(&removal)
    );
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("the file exists").ino()
}

#[test]
fn dry_run_prints_the_steps() {
    let output = run(&["agent", "install", "--dry-run", "--quiet-hours", "22:00-06:00"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let steps = String::from_utf8_lossy(&output.stdout);
    for line in [
        "run dscl . -create /Groups/_rooflet\n",
        "create /usr/local/var/rooflet/agent (mode 700)\n",
        "write /Library/LaunchDaemons/dev.rooflet.agent.plist (mode 644):\n",
        "    \t\t<string>--quiet-hours=22:00-06:00</string>\n",
        "run launchctl enable system/dev.rooflet.agent\n",
    ] {
        assert!(steps.contains(line), "{line} is not in {steps}");
    }
}

#[test]
fn other_systems_have_no_services_of_launchd() {
    if cfg!(target_os = "macos") {
        return;
    }
    for arguments in [
        &["agent", "install"][..],
        &["server", "status"],
        &["agent", "uninstall", "--purge"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = stderr(&output);
        assert!(
            error.contains("is for macOS") && error.contains("systemd"),
            "{error}"
        );
    }
}

#[test]
fn invalid_flags_of_the_service_are_rejected() {
    for (arguments, flag) in [
        (
            &["agent", "install", "--dry-run", "--grace-seconds=soon"][..],
            "--grace-seconds",
        ),
        (
            &["server", "install", "--dry-run", "--model-dir=/models"],
            "--model-dir",
        ),
        (&["agent", "--no-probe", "install"], "install"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(flag), "{}", stderr(&output));
    }
}

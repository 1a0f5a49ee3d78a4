use std::fs;

use super::*;

#[test]
fn status_of_a_running_and_of_a_missing_service() {
    let job = Job {
        state: "running".to_owned(),
        pid: Some(913),
        last_exit: None,
    };
    let installed = Daemon::Server.job("tester", &["--let-sleep".to_owned()]);
    let server = Report::new(Daemon::Server, Some(job), Some(installed), true, Vec::new());
    assert!(server.is_running());
    let text = server.text();
    for line in [
        "service       dev.rooflet.server\n",
        "user          tester\n",
        "argument      --let-sleep\n",
        "log           /usr/local/var/rooflet/server.log\n",
        "binary        this version\n",
        "state         running, process 913\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let agent = Report::new(Daemon::Agent, None, None, false, vec!["sleep: never".to_owned()]);
    let text = agent.text();
    assert!(
        !agent.is_running() && text.contains("`sudo rooflet agent install` installs it"),
        "{text}"
    );
    assert!(
        text.contains("state         unknown to launchd\n") && text.contains("sleep: never"),
        "{text}"
    );
}

#[test]
fn installed_service_keeps_its_arguments_and_its_user() {
    let files = || ("/build/rooflet".into(), None);
    let first = desired(
        Daemon::Agent,
        Some("anna".to_owned()),
        vec!["--listen=0.0.0.0:7500".to_owned()],
        None,
        files(),
    );
    let job = first.job();
    let again = desired(Daemon::Agent, None, Vec::new(), Some(&job), files());
    assert_eq!(again.job(), job);
    // The token of the hub, which an administrator has added.
    let edited = job.text().replace(
        "<key>RunAtLoad</key>",
        "<key>EnvironmentVariables</key><dict><key>HF_TOKEN</key><string>hf_1</string></dict><key>RunAtLoad</key>",
    );
    let directory = rooflet_testing::TempDir::new();
    let list = directory
        .path()
        .join("Library/LaunchDaemons/dev.rooflet.agent.plist");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    fs::write(&list, edited).unwrap();
    let system = System::new(directory.path(), PRINTED);
    let edited = system.installed_list(Daemon::Agent).unwrap();
    let again = desired(
        Daemon::Agent,
        None,
        vec!["--no-probe".to_owned()],
        edited.as_ref(),
        files(),
    );
    assert!(again.job().text().contains("<string>hf_1</string>"));
    let changed = desired(
        Daemon::Agent,
        None,
        vec!["--no-probe".to_owned()],
        Some(&job),
        files(),
    );
    assert_eq!(
        (changed.user.as_str(), changed.argument("--listen")),
        ("anna", None)
    );
}

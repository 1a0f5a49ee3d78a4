//! `rooflet up`: apply, ask and exit; errors; cleanup.

use crate::harness::{Process, Scratch, eventually, free_port, processes_with, repository};

#[test]
fn up_applies_asks_and_exits() {
    let scratch = Scratch::new();
    let args = [
        "up".to_owned(),
        format!("--data-dir={}", scratch.join("data").display()),
        format!("--model-dir={}", repository("examples/models").display()),
        format!("--listen=127.0.0.1:{}", free_port()),
        format!("--gateway-listen=127.0.0.1:{}", free_port()),
        format!("--apply={}", repository("examples/guide.yaml").display()),
        "--ask=What is rooflet?".to_owned(),
        "--exit".to_owned(),
    ];
    // The second run starts with the state of the first one.
    for outcome in ["created", "unchanged"] {
        let log = scratch.join(&format!("{outcome}.log"));
        let mut up = Process::start(args.clone(), &log);
        assert!(up.wait().success(), "{}", up.log());
        for words in [
            &format!("modeldeployment.rooflet.dev/guide {outcome}")[..],
            "measured through",
            "tokens/s",
            "stopped",
        ] {
            assert!(up.log().contains(words), "{words} is missing in\n{}", up.log());
        }
    }
    let directory = scratch.path().display().to_string();
    assert_eq!(
        processes_with(&[&directory]),
        [0u32; 0],
        "no process is left behind"
    );
}

#[test]
fn failed_apply_exits_and_cleans_up() {
    let scratch = Scratch::new();
    let missing = scratch.write(
        "missing.yaml",
        "apiVersion: rooflet.dev/v1alpha1\nkind: NoSuchKind\nmetadata: {name: x}\n",
    );
    let args = [
        "up".to_owned(),
        format!("--data-dir={}", scratch.join("data").display()),
        format!("--model-dir={}", repository("examples/models").display()),
        "--listen=127.0.0.1:0".to_owned(),
        "--gateway-listen=127.0.0.1:0".to_owned(),
        format!("--apply={}", missing.display()),
        "--exit".to_owned(),
    ];
    let mut up = Process::start(args, &scratch.join("up.log"));
    assert_eq!(up.wait().code(), Some(1), "{}", up.log());
    assert!(
        up.log().contains("NoSuchKind") && up.log().contains("missing.yaml"),
        "{}",
        up.log()
    );
}

#[test]
fn children_do_not_outlive_a_killed_up() {
    let fleet = crate::harness::Fleet::start();
    let directory = fleet.scratch.path().display().to_string();
    assert!(processes_with(&[&directory]).len() >= 3);
    crate::harness::kill_9(fleet.up.pid());
    eventually("every process to be gone", || {
        let left = processes_with(&[&directory]);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

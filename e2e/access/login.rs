//! Credentials of a user: `rooflet login` and `rooflet whoami`.

use std::process::Command;

use crate::harness::{Cluster, Kubectl, rooflet};

/// Runs `rooflet ARGS`. Returns whether it succeeded, and its output.
fn run(args: &str) -> (bool, String) {
    let output = Command::new(rooflet()).args(args.split_whitespace()).output();
    let output = output.expect("the binary starts");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn user_logs_in_with_a_token_and_has_the_role_of_an_administrators_binding() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let admin = &cluster.kubectl;
    admin.run("create serviceaccount alice").ok();
    admin
        .run("create rolebinding alice --clusterrole=view --serviceaccount=default:alice")
        .ok();
    let token = admin.run("create token alice --duration=1h").ok();
    let file = cluster.scratch.write("token", &token);
    let file = file.display();
    let mine = cluster.scratch.join("mine/kubeconfig");
    let login = |more: &str| {
        run(&format!(
            "login https://{} --kubeconfig-out {} {more}",
            cluster.address,
            mine.display()
        ))
    };

    // Without the hash of the authority, nothing is sent; the error contains the hash to compare.
    let (is_done, refused) = login(&format!("--token-file {file}"));
    assert!(!is_done && !mine.exists(), "{refused}");
    let hash = refused
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"));
    let hash = hash.unwrap_or_else(|| panic!("no hash: {refused}"));
    let other = format!("sha256:{}", "0".repeat(64));
    let (is_done, refused) = login(&format!("--token-file {file} --ca-hash {other}"));
    assert!(!is_done && refused.contains("has another hash"), "{refused}");
    let wrong = cluster.scratch.write("wrong", "a.b.c");
    let (is_done, refused) = login(&format!("--token-file {} --ca-hash {hash}", wrong.display()));
    assert!(
        !is_done && refused.contains("does not accept the token") && !mine.exists(),
        "{refused}"
    );

    for _ in 0..2 {
        let (is_done, text) = login(&format!("--token-file {file} --ca-hash {hash}"));
        assert!(
            is_done
                && text.contains("you are system:serviceaccount:default:alice")
                && text.contains(" until "),
            "{text}"
        );
    }
    let (_, who) = run(&format!("whoami --kubeconfig {}", mine.display()));
    for part in [
        "system:serviceaccount:default:alice",
        "system:authenticated",
        &cluster.address,
        "token, valid until ",
    ] {
        assert!(who.contains(part), "{part}: {who}");
    }
    let alice = Kubectl::find(&mine, cluster.scratch.path()).expect("kubectl, as above");
    alice.run("get modeldeployments").ok();
    alice.run("create configmap mine").expect_failure();

    // Credentials of another server are kept.
    let (before, elsewhere) = (std::fs::read(&mine).expect("a file"), "https://localhost");
    let port = cluster.address.rsplit(':').next().expect("a port");
    let (is_done, refused) = run(&format!(
        "login {elsewhere}:{port} --kubeconfig-out {} --token-file {file} --ca-hash {hash}",
        mine.display()
    ));
    assert!(!is_done && refused.contains("--kubeconfig-out"), "{refused}");
    assert_eq!(std::fs::read(&mine).expect("a file"), before);
}

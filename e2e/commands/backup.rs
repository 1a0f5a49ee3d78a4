//! `rooflet server backup`, `verify`, `restore` and `salvage`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Cluster, eventually, rooflet};

const SECRET: &str =
    "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\nstringData: {token: hidden-text}\n";

fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
}

fn names(cluster: &Cluster) -> String {
    cluster.kubectl.run("get cm,secret -o name").ok()
}

fn resource_version(cluster: &Cluster, name: &str) -> u64 {
    let found = cluster.kubectl.run(&format!(
        "get cm {name} -o jsonpath={{.metadata.resourceVersion}}"
    ));
    found.ok().parse().expect("a number")
}

/// The backup of a running server is restored after the loss of its data directory. The server continues with
/// the same identity, and its Secrets are encrypted in both.
#[test]
fn backup_of_a_running_server_replaces_its_lost_data() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let data = cluster.scratch.join("data");
    let backup = cluster.scratch.join("backup");
    let (data_flag, backup_path) = (
        format!("--data-dir={}", data.display()),
        backup.display().to_string(),
    );
    cluster.kubectl.apply(SECRET).ok();
    cluster.kubectl.apply(&config_map("before")).ok();
    let kubeconfig = format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display());
    let created = succeeds(&["server", "backup", &backup_path, &data_flag, &kubeconfig]);
    assert!(created.contains("objects at resourceVersion"), "{created}");
    let again = fails(&["server", "backup", &backup_path, &data_flag, &kubeconfig]);
    assert!(again.contains("exists; choose another directory"), "{again}");
    for file in fs::read_dir(&backup).expect("a directory") {
        let file = file.expect("readable");
        let mode = file.metadata().expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.path().display());
    }
    let stored = fs::read(backup.join("store.redb")).expect("readable");
    let plain = b"aGlkZGVuLXRleHQ";
    assert!(
        !stored.windows(plain.len()).any(|part| part == plain),
        "a plain Secret"
    );

    cluster.kubectl.apply(&config_map("after")).ok();
    let known = resource_version(&cluster, "after");
    let busy = fails(&["server", "verify", &data_flag]);
    assert!(busy.contains("stop it first"), "{busy}");
    let occupied = fails(&["server", "restore", &backup_path, &data_flag]);
    assert!(occupied.contains("is not empty"), "{occupied}");
    cluster.stop();
    fs::remove_dir_all(&data).expect("removed");

    succeeds(&["server", "verify", &backup_path]);
    succeeds(&["server", "restore", &backup_path, &data_flag]);
    succeeds(&["server", "verify", &data_flag]);
    cluster.start_again();
    let names = names(&cluster);
    assert!(
        names.contains("configmap/before") && names.contains("secret/hub"),
        "{names}"
    );
    assert!(!names.contains("configmap/after"), "{names}");
    cluster.kubectl.apply(&config_map("next")).ok();
    // No version that the lost server has assigned is assigned again.
    assert!(resource_version(&cluster, "next") > known + 1_000_000);
}

#[test]
fn damage_is_reported_and_readable_objects_are_kept() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let data = cluster.scratch.join("data");
    let data_flag = format!("--data-dir={}", data.display());
    cluster.kubectl.apply(SECRET).ok();
    for number in 0..20 {
        cluster.kubectl.apply(&config_map(&format!("kept-{number}"))).ok();
    }
    let before = names(&cluster);
    cluster.stop();
    let backup = cluster.scratch.join("backup").display().to_string();
    succeeds(&["server", "backup", &backup, &data_flag]);
    damage(&Path::new(&backup).join("node-ca.pem"));
    let refused = fails(&["server", "restore", &backup, "--data-dir=/nonexistent/data"]);
    assert!(refused.contains("node-ca.pem is damaged"), "{refused}");

    let intact = succeeds(&["server", "salvage", &data_flag]);
    assert!(intact.contains("is not damaged"), "{intact}");
    // Without its header, the database library cannot open the file.
    damage(&data.join("store.redb"));
    cluster.fails_to_start();
    let salvaged = succeeds(&["server", "salvage", &data_flag]);
    assert!(salvaged.contains("the damaged file is"), "{salvaged}");
    cluster.start_again();
    eventually("the objects", || match names(&cluster) {
        after if after == before => Ok(()),
        after => Err(after),
    });
    let token = cluster
        .kubectl
        .run("get secret hub -o jsonpath={.data.token}")
        .ok();
    assert_eq!(token, "aGlkZGVuLXRleHQ=");
}

fn run(args: &[&str]) -> Output {
    Command::new(rooflet())
        .args(args)
        .output()
        .expect("the binary starts")
}

/// Returns the standard output.
fn succeeds(args: &[&str]) -> String {
    let output = run(args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {err}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the error output.
fn fails(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Overwrites the start of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[..64].fill(b'x');
    fs::write(path, bytes).expect("writable");
}

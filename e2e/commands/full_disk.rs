//! `rooflet server` on a full disk.

use std::fs;

use crate::harness::{Cluster, SmallDisk, eventually, not_run};

const DISK_MIB: u32 = 80;

fn config_map(name: &str, bytes: usize) -> String {
    let value = "x".repeat(bytes);
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: {value}}}\n")
}

/// The server starts on a full disk, reports that writes fail, and accepts deletions. These make room for other
/// writes, and the file becomes smaller.
#[test]
fn full_disk_permits_restarts_and_deletions() {
    let disk = match SmallDisk::mount(DISK_MIB) {
        Ok(disk) => disk,
        Err(reason) => return not_run(&format!("the permission to mount a file system ({reason})")),
    };
    let Some(mut cluster) = Cluster::start_on_disk(&["--roles=apiserver"], disk.path()) else {
        return;
    };
    let create = |cluster: &Cluster, name: &str, bytes: usize| {
        let stdin = config_map(name, bytes);
        cluster.kubectl.run_with(&["create", "-f", "-"], &stdin)
    };
    let store = disk.path().join("store.redb");
    eventually("the reserve", || {
        let found = fs::metadata(disk.path().join("store.redb.reserve"));
        found.map(drop).map_err(|err| err.to_string())
    });
    for number in 0..20 {
        create(&cluster, &format!("large-{number}"), 900_000).ok();
    }
    disk.fill();
    let mut stored = 20;
    let error = loop {
        assert!(stored < 100, "the disk never became full");
        match create(&cluster, &format!("large-{stored}"), 900_000) {
            created if created.success => stored += 1,
            failed => break failed.stderr,
        }
    };
    assert!(error.contains("No space left on device"), "{error}");
    let ready = |cluster: &Cluster| cluster.kubectl.run("get --raw /readyz?verbose");
    let not_ready = ready(&cluster).expect_failure();
    assert!(not_ready.contains("[-]storage failed"), "{not_ready}");
    cluster.kubectl.run("get --raw /livez").ok();

    cluster.restart();
    let count = |cluster: &Cluster| {
        let names = cluster.kubectl.run("get cm -o name").ok();
        names
            .lines()
            .filter(|line| *line != "configmap/kube-root-ca.crt")
            .count()
    };
    assert_eq!(count(&cluster), stored);
    create(&cluster, "large", 900_000).expect_failure();
    let full = fs::metadata(&store).expect("the store").len();

    let names: Vec<String> = (2..stored).map(|number| format!("large-{number}")).collect();
    cluster
        .kubectl
        .run(&format!("delete cm {}", names.join(" ")))
        .ok();
    assert_eq!(count(&cluster), 2);
    eventually("writes after deletions", || {
        let created = create(&cluster, "small", 1_000);
        created.success.then_some(()).ok_or(created.stderr)
    });
    eventually("the server being ready", || {
        let found = ready(&cluster);
        found.success.then_some(()).ok_or(found.stderr)
    });
    let length = fs::metadata(&store).expect("the store").len();
    assert!(length < full / 2, "{full} to {length} bytes");
    create(&cluster, "large", 900_000).ok();

    cluster.restart();
    assert_eq!(count(&cluster), 4);
}

//! Processes that are killed with signals: the fleet recovers, and no acknowledged write is lost.

#![expect(clippy::disallowed_methods, reason = "times are measured by the real clock")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::harness::{
    Cluster, Fleet, HungThread, Kubectl, Process, eventually, kill_9, pause, processes_with, repository,
    resume, under_load_on,
};

fn only(pids: &[u32], what: &str) -> u32 {
    assert_eq!(pids.len(), 1, "one {what}: {pids:?}");
    pids[0]
}

#[test]
fn killed_worker_is_restarted_and_counted() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let before = only(&fleet.processes("worker"), "worker");
    kill_9(before);
    eventually("another worker that serves", || {
        let workers = fleet.processes("worker");
        let answer = fleet.gateway.try_chat("guide", "What is rooflet?")?;
        if workers.len() == 1 && workers[0] != before && answer.status == 200 {
            Ok(())
        } else {
            Err(format!("{workers:?} {answer:?}"))
        }
    });
    eventually("the restart in the status", || {
        let found = kubectl.json("mrep")?;
        let status = found["items"][0]["status"].clone();
        if status["restarts"] == 1 && status["lastTermination"]["signal"] == 9 {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

/// The requests of a hung worker are answered by another replica. A worker that continues within
/// 60 s is not replaced.
#[test]
fn requests_of_a_hung_worker_move_to_another_replica() {
    let Some((fleet, kubectl)) = two_replicas() else {
        return;
    };
    let workers = fleet.processes("worker");
    pause(workers[0]);
    let seconds = ask_eight_times(&fleet);
    assert_moved(&seconds);
    assert_eq!(
        ready_reasons(&kubectl),
        Ok(vec!["Serving".to_owned(), "WorkerStalled".to_owned()])
    );

    resume(workers[0]);
    wait_until_both_serve(&kubectl);
    assert_eq!(fleet.processes("worker"), workers, "no worker was replaced");
}

/// The engine of a worker hangs, and its HTTP server answers.
#[test]
fn requests_of_a_hung_engine_move_to_another_replica() {
    let Some((fleet, kubectl)) = two_replicas() else {
        return;
    };
    let workers = fleet.processes("worker");
    // The engine measures how long its steps take.
    ask_eight_times(&fleet);
    let Some(hung) = HungThread::hang(workers[0], "engine") else {
        return;
    };
    let seconds = ask_eight_times(&fleet);
    assert_moved(&seconds);
    eventually("a stalled replica", || match ready_reasons(&kubectl)? {
        reasons if reasons == ["Serving", "WorkerStalled"] => Ok(()),
        reasons => Err(format!("{reasons:?}")),
    });

    drop(hung);
    wait_until_both_serve(&kubectl);
    assert_eq!(fleet.processes("worker"), workers, "no worker was replaced");
}

fn two_replicas() -> Option<(Fleet, Kubectl)> {
    let fleet = Fleet::start();
    let kubectl = fleet.kubectl()?;
    let deployment = "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: guide}\n\
                      spec: {replicas: 2, model: {source: 'local://guide'}, serving: {contextTokens: 512}}\n";
    kubectl.apply(deployment).ok();
    fleet.wait_for_ready(&kubectl, "guide");
    assert_eq!(fleet.processes("worker").len(), 2);
    Some((fleet, kubectl))
}

/// Sends eight requests at once, and returns the times of the answers in seconds.
fn ask_eight_times(fleet: &Fleet) -> Vec<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let ask = || {
            let answer = fleet
                .gateway
                .try_chat("guide", "What is rooflet?")
                .expect("a response");
            assert_eq!(answer.status, 200, "{}", answer.text);
            begin.elapsed().as_secs_f64()
        };
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    })
}

/// Asserts that requests waited at the hung worker, and were answered within the time that
/// docs/gateway.md states.
fn assert_moved(seconds: &[f64]) {
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    assert!(
        slowest > 2.0,
        "no request was sent to the hung worker: {seconds:?}"
    );
    assert!(slowest < 10.0, "{seconds:?}");
}

/// Returns the sorted reasons of all replicas' condition `Ready`.
fn ready_reasons(kubectl: &Kubectl) -> Result<Vec<String>, String> {
    let found = kubectl.json("mrep")?;
    let conditions = found["items"].as_array().into_iter().flatten();
    let conditions = conditions.flat_map(|one| one["status"]["conditions"].as_array().cloned());
    let ready = conditions.flatten().filter(|one| one["type"] == "Ready");
    let mut reasons: Vec<_> = ready
        .map(|one| one["reason"].as_str().unwrap_or_default().to_owned())
        .collect();
    reasons.sort();
    Ok(reasons)
}

fn wait_until_both_serve(kubectl: &Kubectl) {
    eventually("both replicas serving again", || match ready_reasons(kubectl)? {
        reasons if reasons == ["Serving", "Serving"] => Ok(()),
        reasons => Err(format!("{reasons:?}")),
    });
}

#[test]
fn restarted_agent_adopts_its_worker() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let worker = only(&fleet.processes("worker"), "worker");
    let agent = only(&fleet.processes("agent"), "agent");
    kill_9(agent);
    eventually("another agent, serving through the same worker", || {
        let agents = fleet.processes("agent");
        let answer = fleet.gateway.try_chat("guide", "What is rooflet?")?;
        let workers = fleet.processes("worker");
        if agents.len() == 1 && agents[0] != agent && answer.status == 200 && workers == [worker] {
            Ok(())
        } else {
            Err(format!("agents {agents:?}, workers {workers:?}, {answer:?}"))
        }
    });
    assert_eq!(
        kubectl.json("mrep").expect("a list")["items"][0]["status"]["restarts"],
        0
    );
}

#[test]
fn requests_continue_while_the_control_plane_restarts() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let gateway = only(&fleet.processes("gateway"), "gateway");
    under_load_on(&fleet.gateway, || {
        for _ in 0..2 {
            let server = only(&fleet.processes("server"), "server");
            kill_9(server);
            eventually("another server", || {
                let found = kubectl.run("get ns --request-timeout=5s");
                match fleet.processes("server").as_slice() {
                    [pid] if *pid != server && found.success => Ok(()),
                    servers => Err(format!("{servers:?} {}", found.stderr)),
                }
            });
        }
    });
    assert_eq!(fleet.processes("gateway"), [gateway]);
}

#[test]
fn requests_continue_while_the_control_plane_of_a_server_restarts() {
    let Some(mut cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agent = cluster.agent("node-1", &[]);
    eventually("the node", || cluster.kubectl.json("mac/node-1"));
    let guide = repository("examples/guide.yaml");
    cluster.kubectl.run(&format!("apply -f {}", guide.display())).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    eventually("an answer", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    let data = cluster.scratch.join("data").display().to_string();
    let processes = |roles: &str| processes_with(&[&data, &format!("--roles={roles}")]);
    let gateway = only(&processes("gateway"), "gateway");
    under_load_on(&cluster.gateway, || {
        for _ in 0..2 {
            let killed = only(&processes("apiserver,controller"), "control plane");
            kill_9(killed);
            eventually("another control plane", || {
                let found = cluster.kubectl.run("get ns --request-timeout=5s");
                match processes("apiserver,controller").as_slice() {
                    [pid] if *pid != killed && found.success => Ok(()),
                    others => Err(format!("{others:?} {}", found.stderr)),
                }
            });
        }
    });
    assert_eq!(processes("gateway"), [gateway]);

    // A killed gateway is restarted at the same address.
    kill_9(gateway);
    eventually("an answer of another gateway", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    cluster.stop();
    assert_eq!(processes_with(&[&data]), [0u32; 0], "no process is left behind");
}

#[test]
fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let worker = fleet.processes("worker");

    let done = AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut names = Vec::new();
            for n in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let name = format!("written-{n}");
                let yaml = format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{n: '{n}'}}\n"
                );
                if kubectl
                    .run_with(
                        &["create", "--validate=false", "--request-timeout=5s", "-f", "-"],
                        &yaml,
                    )
                    .success
                {
                    names.push(name);
                }
            }
            names
        });
        for _ in 0..3 {
            let server = eventually("a running server", || {
                fleet
                    .processes("server")
                    .first()
                    .copied()
                    .ok_or("none".to_owned())
            });
            eventually("a few writes", || {
                let count = kubectl
                    .run("get cm -o name --request-timeout=5s")
                    .stdout
                    .lines()
                    .count();
                if count > 2 {
                    Ok(())
                } else {
                    Err(format!("{count}"))
                }
            });
            kill_9(server);
            eventually("the server again", || {
                let found = kubectl.run("get ns --request-timeout=5s");
                if found.success && !fleet.processes("server").contains(&server) {
                    Ok(())
                } else {
                    Err(found.stderr)
                }
            });
        }
        done.store(true, Ordering::SeqCst);
        writer.join().expect("the writer ends")
    });
    assert!(acknowledged.len() > 3, "{acknowledged:?}");
    let stored = kubectl.run("get cm -o name").ok();
    let lost: Vec<&String> = acknowledged
        .iter()
        .filter(|name| !stored.lines().any(|line| line == format!("configmap/{name}")))
        .collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");

    // The worker was not restarted, and reconciliation works.
    assert_eq!(fleet.processes("worker"), worker);
    assert!(!fleet.gateway.chat("guide", "What is rooflet?").is_empty());
    kubectl.run("scale mdep/guide --replicas=0").ok();
    eventually("no worker", || match fleet.processes("worker").len() {
        0 => Ok(()),
        n => Err(format!("{n} workers")),
    });
}

#[test]
fn full_disk_rejects_writes_and_loses_none() {
    const BLOCKS: u32 = 8_192;
    let small = |args: &[String], log: &std::path::Path| Process::start_on_small_disk(args, log, BLOCKS);
    let Some(mut cluster) = Cluster::with(&["--roles=apiserver"], small) else {
        return;
    };
    let filler = "x".repeat(256 << 10);
    let write = |cluster: &Cluster, name: &str| {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"x":"{filler}"}}}}"#
        );
        cluster
            .kubectl
            .run_with(&["create", "--validate=false", "-f", "-"], &object)
    };
    let mut written = Vec::new();
    let reported = eventually("a full disk", || {
        let name = format!("cm-{:03}", written.len());
        let output = write(&cluster, &name);
        if output.success {
            written.push(name);
            return Err(format!("{} writes so far", written.len()));
        }
        Ok(output.stderr)
    });
    assert!(written.len() > 2, "{reported}");
    assert!(
        reported.lines().count() == 1 && reported.contains("store"),
        "{reported}"
    );
    let stored = |cluster: &Cluster| -> Vec<String> {
        let names = cluster
            .kubectl
            .run("get cm -o jsonpath={.items[*].metadata.name}")
            .ok();
        let names = names
            .split_whitespace()
            .filter(|name| *name != "kube-root-ca.crt");
        names.map(str::to_owned).collect()
    };
    assert_eq!(stored(&cluster), written, "the stored objects can be read");
    // Repeated failing writes leave no partial data.
    for _ in 0..3 {
        write(&cluster, "too-much").expect_failure();
    }
    cluster.restart();
    let mut found = stored(&cluster);
    // A rejected write may be on the disk, completely.
    found.retain(|name| name != "too-much" && *name != format!("cm-{:03}", written.len()));
    assert_eq!(found, written, "nothing is lost");
    write(&cluster, "there-is-room").ok();
}

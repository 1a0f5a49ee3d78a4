//! `rooflet agent --manifest-dir`: static manifests without an API server.

use serde_json::json;

use crate::harness::{
    Cluster, Http, Process, Scratch, eventually, free_port, kill_9, processes_with, repository,
};

fn manifest(name: &str, extra: &str) -> String {
    format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec:\n  model: {{source: local://guide}}\n{extra}"
    )
}

#[test]
fn manifests_run_models_without_a_server() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.join("manifests")).expect("writable");
    scratch.write("manifests/one.yaml", &manifest("one", ""));
    let port = free_port();
    let mut agent = Process::start(
        [
            "agent".to_owned(),
            format!("--manifest-dir={}", scratch.join("manifests").display()),
            format!("--model-dir={}", repository("examples/models").display()),
            format!("--state-dir={}", scratch.join("state").display()),
            format!("--listen=127.0.0.1:{port}"),
        ],
        &scratch.join("agent.log"),
    );
    let http = Http::new(format!("http://127.0.0.1:{port}"));
    let wait_until_served = |name: &str| {
        eventually(&format!("{name} being served"), || {
            match http.try_chat(name, "What is rooflet?")? {
                answer if answer.status == 200 => Ok(()),
                answer => Err(answer.text),
            }
        });
    };
    let wait_until_removed = |name: &str| {
        eventually(&format!("the removal of {name}"), || {
            match http.try_chat(name, "What is rooflet?")? {
                answer if answer.status == 404 => Ok(()),
                answer => Err(answer.text),
            }
        });
    };
    wait_until_served("one");
    // The agent's endpoint behaves as that of the gateway.
    let ready = http.get("/ready").expect("a response");
    assert_eq!(ready.status, 200, "{}", ready.text);
    assert!(ready.headers.contains_key("x-request-id"), "{ready:?}");
    let read = http.get("/v1/chat/completions").expect("a response");
    assert_eq!(
        (read.status, read.headers["allow"].to_str().ok()),
        (405, Some("POST"))
    );
    let nothing = http
        .post("/v1/nothing", &serde_json::json!({}))
        .expect("a response");
    assert_eq!(nothing.status, 404, "{}", nothing.text);

    // A new manifest is served. Broken files are reported and do not affect others.
    scratch.write(
        "manifests/broken.yaml",
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: three\n",
    );
    scratch.write("manifests/wrong-field.yaml", &manifest("four", "  replcas: 2\n"));
    scratch.write("manifests/two.yaml", &manifest("two", ""));
    wait_until_served("two");
    wait_until_served("one");
    eventually("the broken files in the log", || {
        let log = agent.log();
        if log.contains("broken.yaml") && log.contains("wrong-field.yaml") && log.contains("replcas") {
            Ok(())
        } else {
            Err(log)
        }
    });

    // A changed limit applies. If the file then becomes invalid, the last valid version stays.
    scratch.write(
        "manifests/two.yaml",
        &manifest("two", "  serving: {contextTokens: 64}\n"),
    );
    let long = "word ".repeat(200);
    eventually("the new limit", || match http.try_chat("two", &long)? {
        answer if answer.status == 400 && answer.text.contains("context_length_exceeded") => Ok(()),
        answer => Err(answer.text),
    });
    scratch.write("manifests/two.yaml", "kind: [\n");
    eventually("the broken file in the log", || {
        if agent.log().contains("two.yaml") {
            Ok(())
        } else {
            Err(agent.log())
        }
    });
    wait_until_served("two");

    // A deleted manifest stops its model.
    std::fs::remove_file(scratch.join("manifests/one.yaml")).expect("the file exists");
    wait_until_removed("one");
    wait_until_served("two");

    // SIGTERM stops the workers, too.
    assert!(agent.terminate().success(), "{}", agent.log());
    let directory = scratch.path().display().to_string();
    assert_eq!(processes_with(&[&directory, " worker "]), [0u32; 0]);
}

/// A new worker uses the prefixes that an earlier worker has stored, after the death of the worker
/// and after a restart of the agent.
#[test]
fn cached_prefixes_survive_workers_and_agents() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.join("manifests")).expect("writable");
    let disk = "  serving: {kvCache: {diskSize: 1Gi}}\n";
    scratch.write("manifests/one.yaml", &manifest("one", disk));
    let port = free_port();
    let http = Http::new(format!("http://127.0.0.1:{port}"));
    let start = || {
        Process::start(
            [
                "agent".to_owned(),
                format!("--manifest-dir={}", scratch.join("manifests").display()),
                format!("--model-dir={}", repository("examples/models").display()),
                format!("--state-dir={}", scratch.join("state").display()),
                format!("--listen=127.0.0.1:{port}"),
            ],
            &scratch.join("agent.log"),
        )
    };
    let prompt: Vec<u32> = (0..400).map(|at| 300 + at * 31 % 700).collect();
    let body = json!({"model": "one", "prompt": prompt, "max_tokens": 1, "temperature": 0});
    let cached = || {
        eventually("an answer", || match http.post("/v1/completions", &body)? {
            answer if answer.status == 200 => {
                let usage = &answer.json()["usage"];
                let cached = &usage["prompt_tokens_details"]["cached_tokens"];
                Ok(cached.as_u64().unwrap_or_default())
            }
            answer => Err(answer.text),
        })
    };
    let mut agent = start();
    assert_eq!(cached(), 0);
    eventually("the prefix on the disk", || {
        // kv/ID/0/xx/KEY.safetensors: a complete block, and the rest of the prompt.
        let mut files = vec![scratch.join("state/kv")];
        for _ in 0..4 {
            let entries = files.iter().filter(|path| path.is_dir()).flat_map(|path| {
                let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                entries.map(|entry| entry.path()).collect::<Vec<_>>()
            });
            files = entries.collect();
        }
        let blocks = files
            .iter()
            .filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
        if blocks.count() == 2 {
            Ok(())
        } else {
            Err(format!("{files:?}"))
        }
    });
    let directory = scratch.path().display().to_string();
    for worker in processes_with(&[&directory, " worker "]) {
        kill_9(worker);
    }
    assert_eq!(cached(), 399, "after the death of the worker");
    assert!(agent.terminate().success(), "{}", agent.log());
    let mut agent = start();
    assert_eq!(cached(), 399, "after a restart of the agent");
    // With a disk size of 0, nothing is stored.
    scratch.write(
        "manifests/one.yaml",
        &manifest("one", "  serving: {kvCache: {diskSize: '0'}}\n"),
    );
    eventually("a worker without a prefix directory", || {
        match processes_with(&[&directory, " worker ", "--prefix-cache-dir"]) {
            workers if workers.is_empty() && cached() == 0 => Ok(()),
            workers => Err(format!("{workers:?}")),
        }
    });
    assert!(agent.terminate().success(), "{}", agent.log());
}

#[test]
fn manifest_keeps_its_name() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    cluster.scratch.write("manifests/one.yaml", &manifest("one", ""));
    let manifests = format!("--manifest-dir={}", cluster.scratch.join("manifests").display());
    // The replica exists before the agent starts.
    eventually("a replica of the manifest's name", || {
        let applied = kubectl.apply(
            "apiVersion: rooflet.dev/v1alpha1\nkind: ModelReplica\nmetadata: {name: one-node-1, finalizers: [rooflet.dev/worker]}\n\
             spec: {model: {source: 'local://guide'}, serving: {name: two}, nodeName: node-1}\n",
        );
        if applied.success {
            Ok(())
        } else {
            Err(applied.stderr)
        }
    });
    let mut agent = cluster.agent("node-1", &[manifests]);
    eventually("the condition of the replica", || {
        let found = kubectl.json("mrep one-node-1")?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let reported = conditions
            .iter()
            .find(|condition| condition["type"] == "Admitted");
        match reported {
            Some(reported)
                if reported["reason"] == "NameTaken"
                    && reported["message"].to_string().contains("one.yaml") =>
            {
                Ok(())
            }
            _ => Err(found.to_string()),
        }
    });
    eventually("the worker of the manifest", || {
        match cluster.workers("node-1").len() {
            1 => Ok(()),
            n => Err(format!("{n} workers")),
        }
    });
    // After its deletion, the agent creates the mirror object of the manifest. `--wait=false`,
    // because kubectl could wait for the deletion of the mirror object with the same name.
    kubectl.run("delete mrep one-node-1 --wait=false").ok();
    eventually("the mirror object", || {
        let found = kubectl.json("mrep one-node-1")?;
        if found["spec"]["serving"]["name"] == "one" {
            Ok(())
        } else {
            Err(found.to_string())
        }
    });
    assert!(agent.terminate().success(), "{}", agent.log());
}

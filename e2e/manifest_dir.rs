//! `rooflet agent --manifest-dir`: no API server at all, like kubelet's static pods.

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
fn manifests_alone_run_models() {
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
    let served = |name: &str| {
        eventually(&format!("{name} being served"), || {
            match http.try_chat(name, "What is rooflet?")? {
                answer if answer.status == 200 => Ok(()),
                answer => Err(answer.text),
            }
        });
    };
    let gone = |name: &str| {
        eventually(&format!("{name} being gone"), || {
            match http.try_chat(name, "What is rooflet?")? {
                answer if answer.status == 404 => Ok(()),
                answer => Err(answer.text),
            }
        });
    };
    served("one");
    // The agent's own endpoint is one like the gateway's.
    let ready = http.get("/ready").expect("an answer");
    assert_eq!(ready.status, 200, "{}", ready.text);
    assert!(ready.headers.contains_key("x-request-id"), "{ready:?}");
    let read = http.get("/v1/chat/completions").expect("an answer");
    assert_eq!(
        (read.status, read.headers["allow"].to_str().ok()),
        (405, Some("POST"))
    );
    let nothing = http
        .post("/v1/nothing", &serde_json::json!({}))
        .expect("an answer");
    assert_eq!(nothing.status, 404, "{}", nothing.text);

    // Add; a broken file beside it is reported and harms nothing.
    scratch.write(
        "manifests/broken.yaml",
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: three\n",
    );
    scratch.write("manifests/wrong-field.yaml", &manifest("four", "  replcas: 2\n"));
    scratch.write("manifests/two.yaml", &manifest("two", ""));
    served("two");
    served("one");
    eventually("the broken files in the log", || {
        let log = agent.log();
        if log.contains("broken.yaml") && log.contains("wrong-field.yaml") && log.contains("replcas") {
            Ok(())
        } else {
            Err(log)
        }
    });

    // Change: the new limit holds. Breaking the file then keeps the last good version.
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
    eventually("the breakage in the log", || {
        if agent.log().contains("two.yaml") {
            Ok(())
        } else {
            Err(agent.log())
        }
    });
    served("two");

    // Delete.
    std::fs::remove_file(scratch.join("manifests/one.yaml")).expect("it was there");
    gone("one");
    served("two");

    // SIGTERM stops the workers too.
    assert!(agent.terminate().success(), "{}", agent.log());
    let directory = scratch.path().display().to_string();
    assert_eq!(processes_with(&[&directory, " worker "]), [0u32; 0]);
}

/// A worker that was killed, and one of another agent: each begins with what the one before has computed.
#[test]
fn prefixes_outlive_workers_and_agents() {
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
    eventually("its prefix on the disk", || {
        // kv/ID/0/xx/KEY.safetensors: a whole block, and what follows it.
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
    assert_eq!(cached(), 399, "after the worker's end");
    assert!(agent.terminate().success(), "{}", agent.log());
    let mut agent = start();
    assert_eq!(cached(), 399, "after the agent's end");
    // Nothing is stored where that is asked for.
    scratch.write(
        "manifests/one.yaml",
        &manifest("one", "  serving: {kvCache: {diskSize: '0'}}\n"),
    );
    eventually("a worker that stores nothing", || {
        match processes_with(&[&directory, " worker ", "--prefix-cache-dir"]) {
            workers if workers.is_empty() && cached() == 0 => Ok(()),
            workers => Err(format!("{workers:?}")),
        }
    });
    assert!(agent.terminate().success(), "{}", agent.log());
}

#[test]
fn a_manifest_keeps_its_name() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    cluster.scratch.write("manifests/one.yaml", &manifest("one", ""));
    let manifests = format!("--manifest-dir={}", cluster.scratch.join("manifests").display());
    // There before the agent is: nobody stops it.
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
    eventually("the replica being told", || {
        let found = kubectl.json("mrep one-node-1")?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let told = conditions
            .iter()
            .find(|condition| condition["type"] == "Admitted");
        match told {
            Some(told)
                if told["reason"] == "NameTaken" && told["message"].to_string().contains("one.yaml") =>
            {
                Ok(())
            }
            _ => Err(found.to_string()),
        }
    });
    eventually("one worker, the manifest's", || {
        match cluster.workers("node-1").len() {
            1 => Ok(()),
            n => Err(format!("{n} workers")),
        }
    });
    // Deleted, it makes room for the mirror of what runs. Where that comes faster than kubectl looks, kubectl would wait for
    // an object of that name to go.
    kubectl.run("delete mrep one-node-1 --wait=false").ok();
    eventually("the mirror", || {
        let found = kubectl.json("mrep one-node-1")?;
        if found["spec"]["serving"]["name"] == "one" {
            Ok(())
        } else {
            Err(found.to_string())
        }
    });
    assert!(agent.terminate().success(), "{}", agent.log());
}

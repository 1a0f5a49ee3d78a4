//! `rooflet agent --manifest-dir`: no API server at all, like kubelet's static pods.

use crate::harness::{Cluster, Http, Process, Scratch, eventually, free_port, processes_with, repository};

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

//! Model downloads from a hub: the path from `kubectl apply` to an answer, and its failures.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{
    Access, Cluster, Fault, Http, Hub, Process, Scratch, Times, copy_guide, eventually, free_port, kill_9,
    repository, under_load,
};

const WEIGHTS: &str = "model.safetensors";

/// Returns the manifest of a deployment of a hub's model. `rest` has further fields of `model` in
/// flow style.
fn deployment(name: &str, model: &str, rest: &str) -> String {
    format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\n\
         spec:\n  model: {{source: 'hf://{model}'{rest}}}\n  serving: {{contextTokens: 256, maxConcurrency: 2}}\n\
         \x20 # The test machine may report memory pressure.\n  placement: {{tolerations: [{{operator: Exists}}]}}\n"
    )
}

/// Starts a hub that serves the guide model, and a control plane that uses the hub. Also returns
/// the model's commit.
fn with_hub(token: Option<&str>) -> Option<(Hub, Cluster, String)> {
    let hub = Hub::start();
    let commit = hub.commit("rooflet/guide", &repository("examples/models/guide"));
    let mut env = vec![("HF_ENDPOINT", hub.endpoint())];
    env.extend(token.map(|token| ("HF_TOKEN", token.to_owned())));
    let cluster = Cluster::start_with_env(env, &[])?;
    Some((hub, cluster, commit))
}

fn agent(cluster: &Cluster) -> Process {
    let agent = cluster.agent("node-1", &[]);
    eventually("the node", || cluster.kubectl.json("mac/node-1"));
    cluster.kubectl.wait_for_condition("mac/node-1", "Ready", "True");
    agent
}

/// Returns the start offsets of the weight downloads. Requests for a bounded range read headers and
/// do not count.
fn downloads(hub: &Hub) -> Vec<usize> {
    let all = hub.downloads().into_iter();
    let weights = all.filter(|download| download.file == WEIGHTS);
    weights
        .filter_map(|download| match download.range {
            None => Some(0),
            Some((begin, None)) => Some(begin),
            Some((_, Some(_))) => None,
        })
        .collect()
}

/// Returns the only replica of a deployment, ignoring replicas that are being deleted.
fn replica(cluster: &Cluster, deployment: &str) -> Result<Value, String> {
    let label = format!("mrep -l rooflet.dev/deployment={deployment}");
    let mut found = cluster.kubectl.json(&label)?["items"].take();
    let found = found.as_array_mut().ok_or("no list")?;
    found.retain(|replica| replica["metadata"]["deletionTimestamp"].is_null());
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(format!("not one replica: {found:#?}")),
    }
}

/// Waits until the only replica of a deployment is ready, and returns it.
#[track_caller]
fn wait_for_ready(cluster: &Cluster, deployment: &str) -> Value {
    let found = eventually(&format!("{deployment} being ready"), || {
        let found = replica(cluster, deployment)?;
        match found["status"]["phase"].as_str() {
            Some("Ready") => Ok(found),
            _ => Err(format!("{:#}", found["status"])),
        }
    });
    let object = format!("mdep/{deployment}");
    cluster.kubectl.wait_for_condition(&object, "Ready", "True");
    found
}

#[track_caller]
fn wait_for_answer(http: &Http, model: &str) {
    eventually(&format!("an answer of {model}"), || {
        match http.try_chat(model, "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
}

#[track_caller]
fn wait_for_event(cluster: &Cluster, reason: &str) {
    let events = format!("get events --field-selector reason={reason} -o name");
    eventually(&format!("an event {reason}"), || {
        match cluster.kubectl.run(&events).ok() {
            none if none.is_empty() => Err(cluster.kubectl.run("get events").ok()),
            _ => Ok(()),
        }
    });
}

/// Waits until a condition of a deployment contains these words.
#[track_caller]
fn wait_for_condition_text(cluster: &Cluster, deployment: &str, words: &str) {
    eventually(&format!("{deployment}: {words}"), || {
        let found = cluster.kubectl.json(&format!("mdep/{deployment}"))?;
        let conditions = found["status"]["conditions"].to_string();
        if conditions.contains(words) {
            Ok(())
        } else {
            Err(format!("{:#}", found["status"]))
        }
    });
}

/// Returns the size of the partial weights file below a directory.
fn downloaded_bytes(directory: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(directory).ok()?;
    entries.flatten().find_map(|entry| match entry.path() {
        path if path.is_dir() => downloaded_bytes(&path),
        path if path.ends_with("model.safetensors.partial") => Some(entry.metadata().ok()?.len()),
        _ => None,
    })
}

#[test]
fn model_is_downloaded_from_a_hub() {
    let Some((mut hub, mut cluster, commit)) = with_hub(None) else {
        return;
    };
    let mut agent = agent(&cluster);
    // Slow enough for the phase to be observed.
    hub.limit(Some(1_000_000));
    cluster
        .kubectl
        .apply(&deployment("first", "rooflet/guide", ""))
        .ok();
    eventually("the phase Pulling", || {
        let phase = replica(&cluster, "first")?["status"]["phase"].take();
        if phase == "Pulling" {
            Ok(())
        } else {
            Err(phase.to_string())
        }
    });
    cluster
        .kubectl
        .apply(&deployment("second", "rooflet/guide", ""))
        .ok();
    let first = wait_for_ready(&cluster, "first");
    wait_for_answer(&cluster.gateway, "first");
    hub.limit(None);

    // Objects and events name the commit that is served.
    assert_eq!(first["spec"]["model"]["revision"], *commit, "{first:#}");
    let revisions = cluster.kubectl.json("mrev").expect("a list");
    assert_eq!(
        revisions["items"][0]["spec"]["model"]["revision"], *commit,
        "{revisions:#}"
    );
    for reason in ["Pulling", "Pulled"] {
        wait_for_event(&cluster, reason);
    }
    let listed = format!("hf://rooflet/guide@{commit}");
    let speed = eventually("the model and its download speed in the node's status", || {
        let status = cluster.kubectl.json("mac/node-1")?["status"].take();
        let models = status["models"].as_array().into_iter().flatten();
        let is_there = models.into_iter().any(|model| model["name"] == *listed);
        let speed = status["download"]["medianBytesPerSecond"].as_f64();
        speed.filter(|_| is_there).ok_or_else(|| format!("{status:#}"))
    });
    assert!((400_000.0..1_100_000.0).contains(&speed), "{speed}");

    // A model that is being downloaded, or is present, is not downloaded again.
    wait_for_ready(&cluster, "second");
    assert_eq!(downloads(&hub), [0]);

    serves_without_the_hub(&mut hub, &mut cluster, &mut agent);
    follows_the_branch_only_on_restart(&hub, &mut cluster, &commit);
}

fn serves_without_the_hub(hub: &mut Hub, cluster: &mut Cluster, agent: &mut Process) {
    hub.stop();
    let workers = cluster.workers("node-1");
    cluster.restart();
    assert!(agent.terminate().success(), "{}", agent.log());
    *agent = self::agent(cluster);
    for name in ["first", "second"] {
        wait_for_ready(cluster, name);
        wait_for_answer(&cluster.gateway, name);
    }
    assert_eq!(cluster.workers("node-1").len(), workers.len());

    // A new replica of a downloaded model does not need the hub either.
    let before = replica(cluster, "second").expect("one")["metadata"]["name"].take();
    cluster
        .kubectl
        .run("delete mrep -l rooflet.dev/deployment=second")
        .ok();
    eventually("another replica", || {
        let found = replica(cluster, "second")?;
        let is_new = found["metadata"]["name"] != before && found["status"]["phase"] == "Ready";
        if is_new {
            Ok(())
        } else {
            Err(format!("{:#}", found["status"]))
        }
    });
    hub.start_again();
}

fn follows_the_branch_only_on_restart(hub: &Hub, cluster: &mut Cluster, commit: &str) {
    let changed = cluster.scratch.join("changed");
    copy_guide(&changed);
    std::fs::write(changed.join("generation_config.json"), "{}").expect("writable");
    // Files in the repository that the worker does not use.
    let others = [
        "original/params.json",
        "consolidated.safetensors",
        ".gitattributes",
    ];
    for other in others {
        cluster.scratch.write(&format!("changed/{other}"), "{}");
    }
    let moved = hub.commit("rooflet/guide", &changed);
    assert_ne!(moved, commit);

    let uid = |cluster: &Cluster, name: &str| replica(cluster, name).expect("one")["metadata"]["uid"].take();
    let before = ["first", "second"].map(|name| uid(cluster, name));
    // A restart, an update or a scale-up does not change the resolved commit.
    cluster.restart();
    cluster.kubectl.run("label mdep first second looked=again").ok();
    cluster.kubectl.run("scale mdep/second --replicas=0").ok();
    eventually("no replica", || match replica(cluster, "second") {
        Ok(found) => Err(format!("{found:#}")),
        Err(_) => Ok(()),
    });
    cluster.kubectl.run("scale mdep/second --replicas=1").ok();
    let second = wait_for_ready(cluster, "second");
    assert_eq!(second["spec"]["model"]["revision"], commit, "{second:#}");
    assert_eq!(uid(cluster, "first"), before[0]);
    assert_eq!(downloads(hub), [0]);

    cluster.rollout_ok("restart mdep/first");
    cluster.rollout_ok("status mdep/first --timeout=120s");
    let first = wait_for_ready(cluster, "first");
    assert_eq!(first["spec"]["model"]["revision"], *moved, "{first:#}");
    assert_eq!(downloads(hub), [0, 0]);
    wait_for_answer(&cluster.gateway, "first");

    assert!(
        hub.downloads()
            .iter()
            .all(|download| !others.contains(&download.file.as_str()))
    );

    // A rollback uses the earlier download.
    cluster.rollout_ok("undo mdep/first");
    cluster.rollout_ok("status mdep/first --timeout=120s");
    let first = wait_for_ready(cluster, "first");
    assert_eq!(first["spec"]["model"]["revision"], commit, "{first:#}");
    assert_eq!(downloads(hub), [0, 0]);
}

#[test]
fn download_resumes_after_an_agent_crash() {
    let Some((hub, cluster, _)) = with_hub(None) else {
        return;
    };
    let agent = agent(&cluster);
    hub.limit(Some(300_000));
    cluster
        .kubectl
        .apply(&deployment("guide", "rooflet/guide", ""))
        .ok();
    let state = cluster.scratch.join("node-1");
    eventually("half a megabyte", || match downloaded_bytes(&state) {
        Some(500_000..) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    kill_9(agent.pid());
    drop(agent);
    let kept = downloaded_bytes(&state).expect("the partial file is kept");
    let _agent = self::agent(&cluster);
    eventually("a resumed download", || match downloaded_bytes(&state) {
        Some(more) if more > kept => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(downloads(&hub), [0, kept as usize]);

    // The download also resumes after its deployment was deleted and created again.
    cluster.kubectl.run("delete mdep/guide").ok();
    eventually("no replica", || {
        let found = cluster.kubectl.run("get mrep -o name").ok();
        if found.is_empty() { Ok(()) } else { Err(found) }
    });
    let kept = downloaded_bytes(&state).expect("the partial file is kept");
    hub.limit(None);
    cluster
        .kubectl
        .apply(&deployment("guide", "rooflet/guide", ""))
        .ok();
    wait_for_ready(&cluster, "guide");
    let begins = downloads(&hub);
    // The last bytes may have been written after `kept` was read.
    assert!(
        begins.len() == 3 && begins[2] >= kept as usize,
        "{kept} {begins:?}"
    );
    wait_for_answer(&cluster.gateway, "guide");
    assert_eq!(downloaded_bytes(&state), None);

    broken_connection_resumes(&hub, &cluster);
    corrupt_download_is_never_served(&hub, &cluster);
    sharded_model_is_downloaded(&hub, &cluster);
}

fn broken_connection_resumes(hub: &Hub, cluster: &Cluster) {
    hub.commit("rooflet/broken", &repository("examples/models/guide"));
    hub.fault(WEIGHTS, 1_000_000, Fault::Cut, Times::Once);
    hub.fault(WEIGHTS, 1_500_000, Fault::Busy, Times::Once);
    let before = downloads(hub).len();
    cluster
        .kubectl
        .apply(&deployment("broken", "rooflet/broken", ""))
        .ok();
    wait_for_ready(cluster, "broken");
    let begins = &downloads(hub)[before..];
    assert!(matches!(begins, [0, 1..=1_000_000, _]), "{begins:?}");
    assert_eq!(
        begins[1], begins[2],
        "downloaded bytes are kept while the hub is busy"
    );
}

fn sharded_model_is_downloaded(hub: &Hub, cluster: &Cluster) {
    let directory = cluster.scratch.join("sharded");
    copy_guide(&directory);
    let names = shard(&directory);
    hub.commit("rooflet/sharded", &directory);
    hub.fault(&names[1], 1_000_000, Fault::Cut, Times::Once);
    cluster
        .kubectl
        .apply(&deployment("sharded", "rooflet/sharded", ""))
        .ok();
    wait_for_ready(cluster, "sharded");
    wait_for_answer(&cluster.gateway, "sharded");
    let question = "What is rooflet?";
    assert_eq!(
        cluster.gateway.chat("sharded", question),
        cluster.gateway.chat("guide", question)
    );
}

/// Splits a directory's weights into two files with an index, as large models have. Returns the
/// files' names.
fn shard(directory: &Path) -> [String; 2] {
    let whole = directory.join(WEIGHTS);
    let file = std::fs::read(&whole).expect("readable");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
    let (header, data) = rest.split_at(length as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("a safetensors header");
    let names = [1, 2].map(|number| format!("model-{number:05}-of-00002.safetensors"));
    let mut shards = [(); 2].map(|()| (serde_json::Map::new(), Vec::new()));
    let mut weight_map = serde_json::Map::new();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    for (index, (name, mut tensor)) in tensors.enumerate() {
        let offset = |end: usize| tensor["data_offsets"][end].as_u64().expect("a number") as usize;
        let bytes = &data[offset(0)..offset(1)];
        let (header, data) = &mut shards[index % 2];
        tensor["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
        data.extend_from_slice(bytes);
        weight_map.insert(name.clone(), names[index % 2].clone().into());
        header.insert(name, tensor);
    }
    for (name, (header, data)) in names.iter().zip(shards) {
        let header = Value::from(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length, header.as_bytes(), &data].concat();
        std::fs::write(directory.join(name), file).expect("writable");
    }
    let index = json!({"metadata": {"total_size": data.len()}, "weight_map": weight_map});
    std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).expect("writable");
    std::fs::remove_file(whole).expect("removable");
    names
}

/// The scheduler uses the download speeds that nodes measured earlier.
#[test]
fn scheduler_prefers_the_node_with_the_faster_download() {
    let Some((hub, cluster, _)) = with_hub(None) else {
        return;
    };
    for name in ["near", "next"] {
        hub.commit(&format!("rooflet/{name}"), &repository("examples/models/guide"));
    }
    let join = |node: &str| {
        let agent = cluster.agent(node, &[]);
        eventually(node, || cluster.kubectl.json(&format!("mac/{node}")));
        cluster
            .kubectl
            .wait_for_condition(&format!("mac/{node}"), "Ready", "True");
        agent
    };
    // Without measurements, the scheduler would prefer this node by its name.
    let _far = join("a-far");
    hub.limit(Some(400_000));
    let apply = |name: &str, model: &str| {
        let model = format!("rooflet/{model}");
        cluster.kubectl.apply(&deployment(name, &model, "")).ok();
        wait_for_ready(&cluster, name)
    };
    apply("first", "guide");
    hub.limit(None);
    cluster
        .kubectl
        .run("patch mac a-far --type=merge -p {\"spec\":{\"unschedulable\":true}}")
        .ok();
    let _near = join("b-near");
    apply("second", "near");
    for node in ["a-far", "b-near"] {
        eventually("a measured download speed", || {
            let found = cluster.kubectl.json(&format!("mac/{node}"))?;
            let speed = &found["status"]["download"];
            if speed.is_object() {
                Ok(())
            } else {
                Err(format!("{speed:#}"))
            }
        });
    }
    cluster
        .kubectl
        .run("patch mac a-far --type=merge -p {\"spec\":{\"unschedulable\":false}}")
        .ok();
    let third = apply("third", "next");
    assert_eq!(third["spec"]["nodeName"], "b-near", "{third:#}");
    let name = third["metadata"]["name"].as_str().expect("a name");
    let events = format!("get events --field-selector involvedObject.name={name},reason=Scheduled -o yaml");
    let reported = cluster.kubectl.run(&events).ok();
    assert!(
        reported.contains("weights downloaded and read within"),
        "{reported}"
    );
    // A node that has the model is ready earliest.
    let fourth = apply("fourth", "guide");
    assert_eq!(fourth["spec"]["nodeName"], "a-far", "{fourth:#}");
}

/// Without a surge, the old replica serves until the new model is downloaded. No request fails.
#[test]
fn in_place_replacement_waits_for_the_download() {
    let Some((hub, cluster, commit)) = with_hub(None) else {
        return;
    };
    let _agent = agent(&cluster);
    let in_place = "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n";
    let guide = deployment("guide", "rooflet/guide", "") + in_place;
    cluster.kubectl.apply(&guide).ok();
    let first = wait_for_ready(&cluster, "guide");
    let changed = cluster.scratch.join("changed");
    copy_guide(&changed);
    std::fs::write(changed.join("generation_config.json"), "{}").expect("writable");
    let moved = hub.commit("rooflet/guide", &changed);
    hub.limit(Some(100_000));
    under_load(&cluster, || {
        cluster.rollout_ok("restart mdep/guide");
        let words = format!(
            "the replicas on node-1 are replaced after hf://rooflet/guide@{moved} is downloaded there"
        );
        wait_for_condition_text(&cluster, "guide", &words);
        eventually("a partial download", || {
            downloaded_bytes(&cluster.scratch.join("node-1"))
                .filter(|bytes| *bytes > 0)
                .ok_or_else(String::new)
        });
        let still = replica(&cluster, "guide").expect("one");
        assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"], "{still:#}");
        assert_eq!(still["spec"]["model"]["revision"], commit, "{still:#}");
        hub.limit(None);
        cluster.rollout_ok("status mdep/guide --timeout=120s");
    });
    let second = wait_for_ready(&cluster, "guide");
    assert_eq!(second["spec"]["model"]["revision"], moved, "{second:#}");
    assert_eq!(
        second["metadata"]["annotations"]["rooflet.dev/prepare"],
        Value::Null
    );
    assert_eq!(downloads(&hub), [0, 0]);
    // The new replica found its model downloaded.
    let name = second["metadata"]["name"].as_str().expect("a name");
    let reported = cluster
        .kubectl
        .run(&format!("get events --field-selector involvedObject.name={name}"));
    assert!(
        !reported.ok().contains("Pulling"),
        "the new replica waited for a download"
    );
}

/// No file of a model that does not fit is downloaded.
#[test]
fn model_larger_than_the_disk_is_rejected_with_numbers() {
    let Some((hub, cluster, _)) = with_hub(None) else {
        return;
    };
    let _agent = agent(&cluster);
    hub.set_claimed_size("config.json", 1 << 50);
    cluster
        .kubectl
        .apply(&deployment("guide", "rooflet/guide", ""))
        .ok();
    wait_for_condition_text(&cluster, "guide", "1.0 PiB");
    assert!(
        hub.downloads()
            .iter()
            .all(|download| download.file != "tokenizer.json")
    );
}

fn corrupt_download_is_never_served(hub: &Hub, cluster: &Cluster) {
    hub.commit("rooflet/wrong", &repository("examples/models/guide"));
    hub.fault(WEIGHTS, 3_000_000, Fault::Corrupt, Times::Always);
    let before = downloads(hub).len();
    cluster
        .kubectl
        .apply(&deployment("wrong", "rooflet/wrong", ""))
        .ok();
    wait_for_condition_text(cluster, "wrong", "but the hub reports");
    // The download is retried from the beginning, and fails again.
    eventually("a second attempt", || match downloads(hub).len() - before {
        2.. => Ok(()),
        count => Err(count.to_string()),
    });
    let found = replica(cluster, "wrong").expect("one");
    assert_eq!(found["status"]["phase"], "Pulling", "{found:#}");
    hub.clear_faults();
    wait_for_ready(cluster, "wrong");
    assert!(downloads(hub)[before..].iter().all(|begin| *begin == 0));
    wait_for_answer(&cluster.gateway, "wrong");
}

#[test]
fn hub_errors_are_reported_with_a_remedy() {
    let Some((mut hub, cluster, commit)) = with_hub(Some("hf_ours")) else {
        return;
    };
    let guide = repository("examples/models/guide");
    for (model, access) in [
        ("rooflet/gated", Access::Gated("hf_other")),
        ("rooflet/private", Access::Private("hf_other")),
        ("rooflet/ours", Access::Private("hf_ours")),
    ] {
        hub.commit(model, &guide);
        hub.allow(model, access);
    }
    let broken = |name: &str, break_it: &dyn Fn(&Path)| {
        let directory = cluster.scratch.join(name);
        copy_guide(&directory);
        break_it(&directory);
        hub.commit(&format!("rooflet/{name}"), &directory);
    };
    broken("weightless", &|directory| {
        std::fs::remove_file(directory.join(WEIGHTS)).expect("removable")
    });
    broken("nameless", &|directory| {
        std::fs::remove_file(directory.join("config.json")).expect("removable")
    });
    broken("foreign", &|directory| {
        let config = std::fs::read_to_string(directory.join("config.json")).expect("readable");
        let config = config.replace("\"llama\"", "\"mamba\"");
        std::fs::write(directory.join("config.json"), config).expect("writable");
    });
    let mut agent = agent(&cluster);
    for (name, model, rest, words) in [
        ("gated", "rooflet/gated", "", "is gated: accept its conditions on"),
        (
            "private",
            "rooflet/private",
            "",
            "does not exist, or it is private",
        ),
        ("absent", "rooflet/none", "", "does not exist, or it is private"),
        (
            "unknown",
            "rooflet/guide",
            ", revision: v2",
            "there is no revision `v2`",
        ),
        (
            "weightless",
            "rooflet/weightless",
            "",
            "use a repository with weights as published for MLX",
        ),
        ("nameless", "rooflet/nameless", "", "has no config.json"),
        ("foreign", "rooflet/foreign", "", "mamba"),
    ] {
        cluster.kubectl.apply(&deployment(name, model, rest)).ok();
        wait_for_condition_text(&cluster, name, words);
        cluster.kubectl.run(&format!("delete mdep {name}")).ok();
    }

    // An agent without the token cannot download a private model. The token is never sent to the
    // CDN, which rejects requests that carry one.
    agent.terminate();
    let endpoint = vec![("HF_ENDPOINT", hub.endpoint())];
    let mut agent = cluster.agent_with("node-1", &[], |args, log| {
        Process::start_with_env(endpoint, args, log)
    });
    cluster
        .kubectl
        .apply(&deployment("ours", "rooflet/ours", ""))
        .ok();
    wait_for_condition_text(&cluster, "ours", "does not exist, or it is private");
    agent.terminate();
    let _agent = self::agent(&cluster);
    wait_for_ready(&cluster, "ours");

    hub.stop();
    let pinned = format!(", revision: {commit}");
    cluster
        .kubectl
        .apply(&deployment("away", "rooflet/guide", &pinned))
        .ok();
    wait_for_condition_text(
        &cluster,
        "away",
        "cannot be reached: check the network connection",
    );
    hub.start_again();
    wait_for_ready(&cluster, "away");
    wait_for_answer(&cluster.gateway, "away");
}

#[test]
fn manifests_download_models_without_a_server() {
    let (scratch, mut hub) = (Scratch::new(), Hub::start());
    hub.commit("rooflet/guide", &repository("examples/models/guide"));
    scratch.write("manifests/guide.yaml", &deployment("guide", "rooflet/guide", ""));
    let port = free_port();
    let start = |hub: &Hub| {
        let args = [
            "agent".to_owned(),
            format!("--manifest-dir={}", scratch.join("manifests").display()),
            format!("--state-dir={}", scratch.join("state").display()),
            format!("--listen=127.0.0.1:{port}"),
        ];
        let env = vec![("HF_ENDPOINT", hub.endpoint())];
        Process::start_with_env(env, args, &scratch.join("agent.log"))
    };
    let http = Http::new(format!("http://127.0.0.1:{port}"));
    let mut agent = start(&hub);
    wait_for_answer(&http, "guide");
    assert!(agent.terminate().success(), "{}", agent.log());

    // The branch stays resolved to its first commit, with and without the hub.
    hub.commit("rooflet/guide", &scratch.join("manifests"));
    let mut agent = start(&hub);
    wait_for_answer(&http, "guide");
    assert!(agent.terminate().success(), "{}", agent.log());
    hub.stop();
    let _agent = start(&hub);
    wait_for_answer(&http, "guide");
    assert_eq!(downloads(&hub), [0]);
}

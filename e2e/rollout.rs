//! Placement and rollouts on Macs of three kinds while requests stream: each Mac is an agent under a simulated chip, which
//! its admission and its predictions go by, and every token comes from the real engine. Nothing fails that was not meant
//! to, and what does not work is taken back.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Cluster, Scratch, copy_guide, eventually, under_load};

/// Name, chip and memory.
const MACS: [(&str, &str, &str); 3] = [
    ("air", "M4", "16Gi"),
    ("pro", "M4 Pro", "24Gi"),
    ("max", "M4 Max", "128Gi"),
];

/// The guide for contexts that take real memory; what it says does not change.
fn with_long_context(model: &Path) {
    copy_guide(model);
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).expect("readable");
    let mut parsed: Value = serde_json::from_str(&text).expect("JSON");
    parsed["max_position_embeddings"] = json!(131_072);
    std::fs::write(&config, parsed.to_string()).expect("writable");
}

/// Pids of all workers.
fn workers(cluster: &Cluster) -> Vec<u32> {
    MACS.iter().flat_map(|(node, ..)| cluster.workers(node)).collect()
}

/// The nodes of a deployment's replicas that are ready, and what they run.
fn ready(cluster: &Cluster, deployment: &str) -> Result<Vec<(String, String)>, String> {
    let listed = cluster
        .kubectl
        .json(&format!("mrep -l rooflet.dev/deployment={deployment}"))?;
    let replicas = listed["items"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut ready: Vec<_> = replicas
        .filter(|replica| replica["status"]["phase"] == "Ready")
        .map(|replica| {
            (
                text(&replica["spec"]["nodeName"]),
                text(&replica["spec"]["model"]["source"]),
            )
        })
        .collect();
    ready.sort();
    Ok(ready)
}

#[test]
fn macs_of_three_kinds_place_and_roll_out_without_a_failed_request() {
    let models = Scratch::new();
    for name in ["guide", "newer", "broken"] {
        with_long_context(&models.join(name));
    }
    // Whoever only looks at the headers cannot tell.
    std::fs::write(models.join("broken/tokenizer.json"), "{").expect("writable");
    let Some((cluster, _agents)) = Cluster::of_macs(&MACS, models.path()) else {
        return;
    };
    nodes_say_that_they_are_simulated(&cluster);
    models_go_where_they_fit(&cluster);
    a_rolling_update_holds_its_floor(&cluster);
    what_is_refused_or_paused_changes_nothing(&cluster);
    canaries_are_taken_back_or_promoted(&cluster);
    a_replica_in_use_is_replaced_when_it_is_idle(&cluster);
    nothing_measured_is_taken_for_the_chip(&cluster);
}

fn nodes_say_that_they_are_simulated(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    for (node, chip, _) in MACS {
        let found = kubectl.json(&format!("mac {node}")).expect("it is there");
        assert_eq!(found["metadata"]["labels"]["rooflet.dev/simulated"], "true");
        let status = &found["status"];
        assert_eq!(status["chip"]["name"], format!("Apple {chip}"));
        assert!(status["probe"].is_null(), "{}", status["probe"]);
        assert_eq!(status["dataSheet"]["basis"], "Nominal");
        let probe = kubectl.wait_for_condition(&format!("mac {node}"), "ProbeFresh", "False");
        assert_eq!(probe["reason"], "SimulatedChip");
    }
    let listed = kubectl.run("get mac pro").ok();
    assert!(listed.contains("-/273GB/s"), "{listed}");
}

/// 256 MiB of memory for each stream: 12 GiB and more for 48 of them, 16 for 64.
fn wide(name: &str, rest: &str) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: {name}}}
spec:
  model: {{source: 'local://guide'}}
  {rest}
"
    )
}

fn models_go_where_they_fit(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let serving = "serving: {contextTokens: 131072, maxConcurrency: 48}";
    let rest = format!("replicas: 2\n  placement: {{strategy: Spread}}\n  {serving}");
    kubectl.apply(&wide("wide", &rest)).ok();
    kubectl.wait_for_condition("mdep wide", "Ready", "True");
    let nodes: Vec<_> = ready(cluster, "wide")
        .expect("listed")
        .into_iter()
        .map(|(node, _)| node)
        .collect();
    assert_eq!(nodes, ["max", "pro"]);
    assert!(!cluster.gateway.chat("wide", "What is rooflet?").is_empty());
    kubectl.run("delete mdep wide").ok();
    eventually("no worker", || match workers(cluster).len() {
        0 => Ok(()),
        n => Err(format!("{n} workers")),
    });

    // In the memory of two of them it has no room, and the third is too slow for what it promises.
    let rest =
        "serving: {contextTokens: 131072, maxConcurrency: 64}\n  objectives: {decodeTokensPerSecond: 100}";
    kubectl.apply(&wide("too-large", rest)).ok();
    for words in [
        "0/3 nodes are available",
        "1 Apple M4 Max 128 GiB: too slow for spec.objectives",
        "1 Apple M4 Pro 24 GiB: insufficient memory",
        "1 Apple M4 16 GiB: insufficient memory",
        "max: ",
        "pro: ",
    ] {
        // Before the scheduler has seen the replicas, the condition has another message.
        eventually(&format!("{words} in the condition"), || {
            let refused = kubectl.wait_for_condition("mdep too-large", "Scheduled", "False");
            let why = refused["message"].as_str().unwrap_or_default();
            why.contains(words).then_some(()).ok_or_else(|| why.to_owned())
        });
    }
    kubectl.run("delete mdep too-large").ok();
}

const THREE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide, annotations: {kubernetes.io/change-cause: first}}
spec:
  replicas: 3
  model: {source: 'local://guide'}
  # 2 GiB of cache to read for each step, so that the chips differ.
  serving: {contextTokens: 16384, maxConcurrency: 64}
  placement: {strategy: Spread}
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 0, minThroughput: 60%}}
";

/// Predicted tokens/s of the replicas that answer, and of one when the deployment was last rolled out.
fn throughput(cluster: &Cluster) -> Result<(f64, f64), String> {
    let rollout = cluster.kubectl.json("mdep guide")?["status"]["rollout"].clone();
    let figure = |name: &str| rollout[name].as_f64();
    let figures = figure("predictedTokensPerSecond").zip(figure("referenceTokensPerSecond"));
    figures.ok_or_else(|| rollout.to_string())
}

fn a_rolling_update_holds_its_floor(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    kubectl.apply(THREE).ok();
    let said = cluster.rollout_ok("status mdep/guide");
    assert!(
        said.ends_with("modeldeployment \"guide\" successfully rolled out\n"),
        "{said}"
    );
    let on = |source: &str| MACS.map(|(node, ..)| (node.to_owned(), format!("local://{source}")));
    let sorted = |source: &str| {
        let mut all = on(source);
        all.sort();
        all.to_vec()
    };
    assert_eq!(ready(cluster, "guide"), Ok(sorted("guide")));
    let (all, one) = eventually("predicted throughput", || throughput(cluster));
    assert!((all / one - 3.0).abs() < 0.01, "{all} of {one} each");

    under_load(cluster, || {
        // The fastest Mac has more than half of it. Without it the floor would not be held, and nothing else is begun.
        let newer = THREE
            .replace("local://guide", "local://newer")
            .replace("first", "newer");
        kubectl.apply(&newer).ok();
        let held = eventually("the floor", || {
            let held = kubectl.wait_for_condition("mdep guide", "Progressing", "False");
            match held["reason"] == "ThroughputFloor" {
                true => Ok(held),
                false => Err(held.to_string()),
            }
        });
        let (success, said) = cluster.rollout("status guide --timeout=110s");
        assert!(
            !success && said.contains("minThroughput requires"),
            "{said} {held}"
        );

        // With one more beside it, it goes on, and never drops below.
        kubectl.apply(&newer.replace("maxSurge: 0", "maxSurge: 1")).ok();
        let mut least = all;
        eventually("the update", || {
            least = least.min(throughput(cluster)?.0);
            match ready(cluster, "guide")? {
                ready if ready == sorted("newer") => Ok(()),
                others => Err(format!("{others:?}")),
            }
        });
        assert!(least >= 0.6 * all, "{least} of {all}");
        cluster.rollout_ok("status guide --timeout=110s");

        assert_eq!(
            cluster.rollout_ok("undo mdep/guide"),
            "modeldeployment.rooflet.dev/guide rolled back\n"
        );
        cluster.rollout_ok("status guide --timeout=110s");
    });
    let found = kubectl.json("mdep guide").expect("there");
    assert_eq!(found["spec"]["model"]["source"], "local://guide");
    assert_eq!(found["status"]["ready"], "3/3");
    assert_eq!(
        cluster.rollout_ok("history mdep/guide"),
        "modeldeployment.rooflet.dev/guide\nREVISION  CHANGE-CAUSE\n2         newer\n3         first\n"
    );
}

fn what_is_refused_or_paused_changes_nothing(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    // A template that is refused rolls nothing out, and its undo ends at what is served.
    kubectl.apply(&THREE.replace("16384", "400000")).ok();
    kubectl.wait_for_condition("mdep guide", "Admitted", "False");
    let deadline = |seconds: u32| {
        let patch =
            format!(r#"patch mdep guide --type=merge -p {{"spec":{{"progressDeadlineSeconds":{seconds}}}}}"#);
        kubectl.run(&patch).ok();
    };
    deadline(5);
    let (success, said) = cluster.rollout("status guide --timeout=110s");
    assert!(
        !success && said.contains("no progress for 5 s; ContextTooLong"),
        "{said}"
    );
    deadline(600);
    cluster.rollout_ok("undo mdep/guide");
    cluster.rollout_ok("status guide --timeout=110s");
    let found = kubectl.json("mdep guide").expect("there");
    assert_eq!(found["spec"]["serving"]["contextTokens"], 16_384);

    // Pausing holds a change back, and what is so already is an error.
    cluster.rollout_ok("pause mdep/guide");
    let (success, said) = cluster.rollout("pause mdep/guide");
    assert!(!success && said.contains("is already paused"), "{said}");
    let before = workers(cluster);
    kubectl.apply(&THREE.replace("16384", "8192")).ok();
    kubectl.wait_for_condition("mdep guide", "Progressing", "Unknown");
    assert_eq!(workers(cluster), before);
    let (success, said) = cluster.rollout("promote mdep/guide");
    assert!(!success && said.contains("no rollout in progress"), "{said}");
    kubectl.run("delete mdep guide").ok();
}

const CANARY: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: 'local://MODEL'}
  serving: {contextTokens: 512}
  progressDeadlineSeconds: 10
  strategy:
    type: Canary
    canary: {steps: [{setWeight: 50}, {pause: {}}]}
";

fn canaries_are_taken_back_or_promoted(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    eventually("the deployment being gone", || match kubectl.json("mdep guide") {
        Ok(found) => Err(found["metadata"].to_string()),
        Err(_) => Ok(()),
    });
    kubectl.apply(&CANARY.replace("MODEL", "guide")).ok();
    cluster.rollout_ok("status mdep/guide");

    under_load(cluster, || {
        kubectl.apply(&CANARY.replace("MODEL", "broken")).ok();
        let (success, said) = cluster.rollout("status mdep/guide --timeout=110s");
        assert!(!success && said.contains("back to revision 1"), "{said}");
        eventually("both replicas of the first revision", || {
            let sources: Vec<_> = ready(cluster, "guide")?
                .into_iter()
                .map(|(_, source)| source)
                .collect();
            match sources == ["local://guide", "local://guide"] {
                true => Ok(()),
                false => Err(format!("{sources:?}")),
            }
        });

        kubectl.apply(&CANARY.replace("MODEL", "newer")).ok();
        eventually("half of the requests for the canary", || {
            let status = kubectl.json("mdep guide")?["status"].clone();
            let weights: Vec<_> = status["traffic"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|share| share["weight"].clone())
                .collect();
            if weights == [50, 50] {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
        let (_, said) = cluster.rollout("status guide --watch=false");
        assert!(said.contains("step 2 of 2 of the canary"), "{said}");
        cluster.rollout_ok("promote mdep/guide");
        cluster.rollout_ok("status mdep/guide --timeout=110s");
    });
    assert!(kubectl.json("mdep guide").expect("there")["status"]["traffic"].is_null());
}

const PATIENT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 1
  model: {source: 'local://newer'}
  serving: {contextTokens: 512}
  strategy: {type: RollingUpdate, canary: null, waitForIdle: {idleFor: 2s, atMost: 1h}}
";

fn a_replica_in_use_is_replaced_when_it_is_idle(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    kubectl.apply(PATIENT).ok();
    cluster.rollout_ok("status mdep/guide");
    eventually("one worker", || match workers(cluster).len() {
        1 => Ok(()),
        n => Err(format!("{n} workers")),
    });
    let before = workers(cluster);
    under_load(cluster, || {
        // Its node tells every ten seconds at most that it is in use.
        eventually("the replica being known as used", || {
            let requests = kubectl.json("mrep")?["items"][0]["status"]["requests"].clone();
            if requests["idleSince"].is_null() && requests["running"].is_u64() {
                Ok(())
            } else {
                Err(requests.to_string())
            }
        });
        kubectl.apply(&PATIENT.replace("512", "256")).ok();
        kubectl.wait_for_condition("mdep guide", "Progressing", "Unknown");
        let (_, said) = cluster.rollout("status guide --watch=false");
        assert!(
            said.contains("the next replica is replaced after 2 s without requests"),
            "{said}"
        );
        assert_eq!(workers(cluster), before);
    });
    let said = cluster.rollout_ok("status mdep/guide --timeout=110s");
    assert!(said.ends_with("successfully rolled out\n"), "{said}");
    assert_ne!(workers(cluster), before);
}

/// Requests were measured, on this machine: that says nothing of an M4 Pro, and teaches nothing about it.
fn nothing_measured_is_taken_for_the_chip(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    cluster.gateway.chat("guide", "What is rooflet?");
    let said = kubectl.wait_for_condition("mdep guide", "PredictionAccurate", "Unknown");
    assert_eq!(said["reason"], "SimulatedChip", "{said}");
    eventually("a measured speed", || {
        let status = kubectl.json("mrep")?["items"][0]["status"].clone();
        let (admission, measured) = (&status["admission"], &status["measured"]);
        if measured.is_null() {
            return Err(status.to_string());
        }
        assert_eq!(admission["speed"]["basis"], "Nominal", "{status}");
        assert!(measured["predicted"].is_null(), "{measured}");
        Ok(())
    });
    for (node, ..) in MACS {
        let status = kubectl.json(&format!("mac {node}")).expect("it is there")["status"].clone();
        assert!(status["calibrations"].is_null(), "{status}");
    }
}

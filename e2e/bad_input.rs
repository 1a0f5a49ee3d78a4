//! Invalid input: the error names the field or the file and the remedy, and nothing is changed.

use std::process::Command;

use crate::harness::{Cluster, Fleet, Options, Scratch, copy_guide, eventually, kill_9, repository, rooflet};

const GOOD: &str = "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: bad}\nspec: {model: {source: 'local://guide'}}\n";

#[test]
fn invalid_manifests_are_rejected_with_the_field_and_not_stored() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    let cases = [
        (
            "spec: {model: {source: 'local://guide'}, replcas: 2}",
            "unknown field \"spec.replcas\"",
        ),
        (
            "spec: {model: {source: 'local://guide'}, replicas: many}",
            "spec.replicas in body must be of type integer: \"string\"",
        ),
        ("spec: {replicas: 1}", "spec.model: Required value"),
        (
            "spec: {model: {source: 'local://guide'}, replicas: -1}",
            "spec.replicas in body should be greater than or equal to 0",
        ),
        ("spec: {model: {source: 'guide'}}", "must be hf://OWNER/NAME"),
        ("spec: {model: {source: 'hf://guide'}}", "must be hf://OWNER/NAME"),
        (
            "spec: {model: {source: 'hf://rooflet/guide@main'}}",
            "a revision goes into spec.model.revision",
        ),
        (
            "spec: {model: {source: 'local://guide', revision: main}}",
            "may only be set for models of a hub (source: hf://OWNER/NAME)",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Sideways}}",
            "supported values: \"RollingUpdate\", \"Canary\", \"Recreate\"",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Canary}}",
            "canary must be set when type is Canary, and only then",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Canary, canary: {steps: [{setWeight: 5, pause: {}}]}}}",
            "exactly one of setWeight, pause and analysis must be set",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Canary, canary: {steps: [{pause: {}}, {analysis: {}}]}}}",
            "it must follow a setWeight below 100 and precede setWeight: 100",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Canary, canary: {steps: [{setWeight: 50}, {setWeight: 100}, {analysis: {}}]}}}",
            "it must follow a setWeight below 100 and precede setWeight: 100",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}}",
            "rollingUpdate may only be set when type is RollingUpdate",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}}",
            "maxUnavailable and maxSurge must not both be 0",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {rollingUpdate: {maxSurge: '0%', maxUnavailable: 0}}}",
            "maxUnavailable and maxSurge must not both be 0",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {rollingUpdate: {maxSurge: 'half'}}}",
            "spec.strategy.rollingUpdate.maxSurge in body should match",
        ),
        (
            "spec: {model: {source: 'local://guide'}, objectives: {timeToFirstToken: {max: soon}}}",
            "spec.objectives.timeToFirstToken.max in body should match",
        ),
        (
            "spec: {model: {source: 'local://guide'}, serving: {contextTokens: 512}, objectives: {timeToFirstToken: {max: 1s, atPromptTokens: 600}}}",
            "must be less than or equal to spec.serving.contextTokens",
        ),
        (
            "spec: {model: {source: 'local://guide'}, placement: {tolerations: [{value: x}]}}",
            "spec.placement.tolerations[0].operator: Invalid value: operator must be Exists when `key` is empty",
        ),
        (
            "spec: {model: {source: 'local://guide'}, serving: {name: 'my guide'}}",
            "spec.serving.name: Invalid value: \"my guide\": must consist of letters, digits",
        ),
        (
            "spec: {model: {source: 'local://guide'}, serving: {name: team/guide}}",
            "spec.serving.name: Invalid value: \"team/guide\": must consist of letters, digits",
        ),
        (
            "spec: {model: {source: 'local://guide'}, serving: {name: \"a\\nb\"}}",
            "spec.serving.name: Invalid value: \"a\\nb\": must consist of letters, digits",
        ),
        (
            "spec: {model: {source: 'local://guide'}, routing: {queueTimeout: 20m}}",
            "spec.routing.queueTimeout: Invalid value: \"20m\": must be at most 10m",
        ),
        (
            "spec: {model: {source: 'local://guide'}, routing: {fallbacks: [other, bad]}}",
            "spec.routing.fallbacks: Invalid value: must not contain the served name",
        ),
        (
            "spec: {model: {source: 'local://guide'}, serving: {name: own}, routing: {fallbacks: [own]}}",
            "spec.routing.fallbacks: Invalid value: must not contain the served name",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {rollingUpdate: {minThroughput: '500%'}}}",
            "spec.strategy.rollingUpdate.minThroughput: Invalid value: \"500%\": must be tokens/s, or a percentage of at most 100%",
        ),
        (
            "spec: {model: {source: 'local://guide'}, strategy: {maintenanceWindows: [{start: '02:00', duration: 1h, timeZone: Mars/Base}]}}",
            "unknown time zone Mars/Base evaluating rule: timeZone must be an IANA name such as Europe/Berlin",
        ),
        (
            "spec: {model: {source: 'local://guide'}, autoscaling: {maxReplicas: 2, schedules: [{from: '08:00', to: '09:00', minReplicas: 1, timeZone: CEST}]}}",
            "unknown time zone CEST evaluating rule: timeZone must be an IANA name such as Europe/Berlin",
        ),
    ];
    let head = GOOD.split("spec:").next().expect("a head");
    for (spec, expect) in cases {
        let reported = kubectl.apply(&format!("{head}{spec}\n")).expect_failure();
        assert!(reported.contains(expect), "{spec}\n{reported}");
    }
    let reported = kubectl
        .apply(&GOOD.replace("ModelDeployment", "ModelDeploymnt"))
        .expect_failure();
    assert!(
        reported.contains("no matches for kind \"ModelDeploymnt\""),
        "{reported}"
    );
    assert_eq!(kubectl.run("get mdep -A -o name").ok(), "");

    // A rejected change leaves the stored object unchanged.
    kubectl.apply(GOOD).ok();
    let before = kubectl.json("mdep bad").expect("stored")["spec"].clone();
    kubectl
        .run_with(
            &[
                "patch",
                "mdep",
                "bad",
                "--type=merge",
                "-p",
                r#"{"spec":{"replicas":-3,"paused":true}}"#,
            ],
            "",
        )
        .expect_failure();
    assert_eq!(kubectl.json("mdep bad").expect("stored")["spec"], before);
    // Users cannot change the node of a bound replica.
    let replica = eventually("a bound replica", || {
        let found = kubectl.json("mrep")?;
        let replica = found["items"][0].clone();
        if replica["spec"]["nodeName"] == "node-1" {
            Ok(replica)
        } else {
            Err(replica.to_string())
        }
    });
    let name = replica["metadata"]["name"].as_str().expect("a name");
    let reported = kubectl
        .run_with(
            &[
                "patch",
                "mrep",
                name,
                "--type=merge",
                "-p",
                r#"{"spec":{"nodeName":"elsewhere"}}"#,
            ],
            "",
        )
        .expect_failure();
    assert!(reported.contains("nodeName is immutable once set"), "{reported}");
}

#[test]
fn condition_names_the_broken_file_of_a_model_directory() {
    let models = Scratch::new();
    copy_guide(&models.join("no-config"));
    std::fs::remove_file(models.join("no-config/config.json")).expect("the file exists");
    copy_guide(&models.join("bad-header"));
    let weights = models.join("bad-header/model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("readable");
    bytes[8..40].fill(b'x');
    std::fs::write(&weights, bytes).expect("writable");
    copy_guide(&models.join("other-kind"));
    let config = models.join("other-kind/config.json");
    let text = std::fs::read_to_string(&config).expect("readable");
    std::fs::write(&config, text.replace("\"llama\"", "\"mamba\"")).expect("writable");

    let fleet = Fleet::with(Options {
        model_dir: Some(models.path().to_owned()),
        ..Options::default()
    });
    let Some(kubectl) = fleet.kubectl() else { return };
    for (name, words) in [
        ("no-config", &["config.json"][..]),
        ("bad-header", &["model.safetensors"]),
        ("other-kind", &["mamba", "config.json"]),
        ("absent", &["absent"]),
    ] {
        kubectl
            .apply(
                &GOOD
                    .replace("name: bad", &format!("name: {name}"))
                    .replace("local://guide", &format!("local://{name}")),
            )
            .ok();
        let condition = kubectl.wait_for_condition(&format!("mdep {name}"), "Ready", "False");
        eventually(&format!("{name}: a message that names {words:?}"), || {
            let described = kubectl.run(&format!("describe mdep {name}")).stdout;
            if words.iter().all(|word| described.contains(word)) {
                Ok(())
            } else {
                Err(format!("{condition:#}\n{described}"))
            }
        });
    }
    assert!(fleet.processes("worker").is_empty());
}

#[test]
fn used_port_and_second_up_are_reported() {
    let fleet = Fleet::start();
    let scratch = Scratch::new();
    let up = |args: &[String]| {
        let output = Command::new(rooflet())
            .arg("up")
            .args(args)
            .output()
            .expect("the binary starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let model_dir = format!("--model-dir={}", repository("examples/models").display());

    let data = format!("--data-dir={}", scratch.join("data").display());
    let taken = format!("--listen=127.0.0.1:{}", fleet.api_port);
    let (code, reported) = up(&[
        data,
        taken,
        "--gateway-listen=127.0.0.1:0".into(),
        "--web-listen=off".into(),
        model_dir.clone(),
    ]);
    assert!(
        code.is_some_and(|code| code != 0) && reported.contains("the port is in use"),
        "{code:?} {reported}"
    );

    let same = format!("--data-dir={}", fleet.scratch.join("data").display());
    let (code, reported) = up(&[
        same,
        "--listen=127.0.0.1:0".into(),
        "--gateway-listen=127.0.0.1:0".into(),
        "--web-listen=off".into(),
        model_dir,
    ]);
    assert_eq!(code, Some(69), "{reported}");
    assert!(reported.contains("another `rooflet up` uses"), "{reported}");

    // The server locks its directory, even without `rooflet up`.
    let output = Command::new(rooflet())
        .args(["server", "--listen=127.0.0.1:0", "--gateway-listen=127.0.0.1:0"])
        .arg("--web-listen=127.0.0.1:0")
        .arg(format!(
            "--data-dir={}",
            fleet.scratch.join("data/server").display()
        ))
        .arg(format!(
            "--kubeconfig-out={}",
            scratch.join("kubeconfig").display()
        ))
        .output()
        .expect("the binary starts");
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{reported}");
    assert!(!scratch.join("kubeconfig").exists(), "no file is written");
}

#[test]
fn second_agent_of_a_node_is_rejected_and_the_first_may_restart() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let first = cluster.agent("node-1", &[]);
    let lease = || {
        let lease = cluster
            .kubectl
            .json("lease fleetnode-node-1 -n kube-node-lease")?;
        Ok::<_, String>(lease["spec"].clone())
    };
    eventually("the node's Lease", lease);
    let second = || {
        let output = Command::new(rooflet())
            .args(["agent", "--node-name=node-1", "--no-probe"])
            .arg(format!(
                "--kubeconfig={}",
                cluster.scratch.join("kubeconfig").display()
            ))
            .arg(format!("--state-dir={}", cluster.scratch.join("other").display()))
            .output()
            .expect("the binary starts");
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), reported)
    };
    let directory = cluster
        .scratch
        .join("node-1")
        .canonicalize()
        .expect("the directory exists");
    let owner = format!(
        "on this machine with the state directory `{}`",
        directory.display()
    );
    let assert_rejected = || {
        let (code, reported) = second();
        assert_eq!(code, Some(69), "{reported}");
        assert!(
            reported.contains("FleetNode node-1 belongs to another agent") && reported.contains(&owner),
            "{reported}"
        );
    };
    assert_rejected();
    let condition = cluster
        .kubectl
        .wait_for_condition("mac/node-1", "DuplicateAgent", "True");
    let message = condition["message"].as_str().unwrap_or_default();
    let other = cluster.scratch.join("other").display().to_string();
    assert!(message.contains(&other), "{message}");
    // After a crash, the first agent may restart immediately.
    kill_9(first.pid());
    let before = lease().expect("the Lease exists");
    assert_rejected();
    let mut again = cluster.agent("node-1", &[]);
    eventually("the Lease renewed", || match lease()? {
        lease if lease["renewTime"] != before["renewTime"] => {
            assert_eq!(lease["holderIdentity"], before["holderIdentity"]);
            Ok(())
        }
        lease => Err(lease.to_string()),
    });
    assert!(!again.has_ended(), "{}", again.log());
    assert_rejected();
    // Another holder of the Lease keeps it.
    cluster
        .kubectl
        .run("patch lease fleetnode-node-1 -n kube-node-lease --type=merge -p {\"spec\":{\"holderIdentity\":\"node-1/M2/x\"}}")
        .ok();
    let reported = "FleetNode node-1 belongs to another agent on another machine (machine id M2)";
    eventually("the error in the agent's log", || match again.log() {
        log if log.contains(reported) => Ok(()),
        log => Err(log),
    });
    assert_eq!(
        lease().expect("the Lease exists")["holderIdentity"],
        "node-1/M2/x"
    );
}

#[test]
fn invalid_command_line_exits_with_2() {
    for args in [
        &["serve"][..],
        &["up", "--listen=nowhere"],
        &["server", "--web-listen=on"],
        &["worker"],
        &["agent", "--no-such-flag"],
        &["agent", "--manifest-dir=.", "--simulated-chip=M4"],
    ] {
        let output = Command::new(rooflet())
            .args(args)
            .output()
            .expect("the binary starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
    for args in [
        &["server", "--gateway-listen=0.0.0.0:7480"][..],
        &[
            "server",
            "--roles=web",
            "--kubeconfig=x",
            "--web-listen=0.0.0.0:7490",
        ],
        &["agent", "--manifest-dir=.", "--listen=192.0.2.7:7500"],
        &["up", "--gateway-listen=0.0.0.0:7480"],
    ] {
        let output = Command::new(rooflet()).args(args).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let flag = args.last().expect("arguments").replace('=', " ");
        assert!(message.contains(&flag), "{message}");
        assert!(message.contains("add --allow-anonymous"), "{message}");
    }
    for (chip, memory, expected) in [
        (
            "M9",
            "24Gi",
            "--simulated-chip M9: no chip is called `M9`; there are ",
        ),
        ("M4 Max", "24Gi", "specify GPU cores or memory: "),
    ] {
        let output = Command::new(rooflet())
            .args(["agent", "--manifest-dir=."])
            .arg(format!("--simulated-chip={chip}"))
            .arg(format!("--simulated-memory={memory}"))
            .output()
            .expect("the binary starts");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
}

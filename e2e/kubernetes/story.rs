//! Life of a fleet on a real cluster with the permissions of the chart: deploy, ask, scale, update,
//! drain, failures of kube-apiserver and of the leading controller, delete.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::agent_tls::{
    accounts_get_only_certificates_of_their_identity, agents_accept_only_clients_of_the_fleet,
};
use super::cluster::KubernetesCluster;
use super::control_plane::{NAMESPACE, Pod, install, start_agent};
use crate::access::web_page::Browser;
use crate::harness::{Http, Process, eventually, kill_9, repository, rooflet};

const NODES: [&str; 2] = ["mini-1", "mini-2"];

#[test]
fn fleet_runs_with_the_permissions_of_the_chart() {
    let Some(mut cluster) = KubernetesCluster::start() else {
        return;
    };
    missing_chart_is_reported_once(&cluster);
    missing_permission_on_the_lease_is_reported_once(&cluster);

    let controllers = ["controller-a", "controller-b"].map(|name| Pod::start(&cluster, "controller", name));
    let gateway = Pod::start(&cluster, "gateway", "gateway");
    let agents = NODES.map(|node| start_agent(&cluster, node));
    for node in NODES {
        eventually("a node", || cluster.kubectl.json(&format!("mac {node}")));
        cluster
            .kubectl
            .wait_for_condition(&format!("mac {node}"), "Ready", "True");
    }
    let guide = repository("examples/guide.yaml");
    cluster
        .kubectl
        .run(&format!("apply --server-side -f {}", guide.display()))
        .ok();
    wait_for_replicas(&cluster, 1);
    ask(&gateway);
    agents_accept_only_clients_of_the_fleet(&cluster);
    accounts_get_only_certificates_of_their_identity(&cluster);

    cluster.kubectl.run("scale mdep/guide --replicas=2").ok();
    wait_for_replicas(&cluster, 2);
    update(&cluster, 1024);
    ask(&gateway);
    agents_write_only_their_own_objects(&cluster);
    page_shows_the_fleet(&cluster);
    prometheus_finds_agents_and_workers(&cluster);
    drain(&cluster);
    ask(&gateway);

    cluster.restart_api_server();
    update(&cluster, 512);
    ask(&gateway);
    let controllers = leader_fails(&cluster, controllers);

    release_is_retried(&cluster, &agents);
    no_permission_is_missing(&controllers, &gateway, &agents);
}

/// Starts a control plane before the chart is installed, installs the chart, and checks that each
/// missing kind was reported once and that the watches recover.
fn missing_chart_is_reported_once(cluster: &KubernetesCluster) {
    let args = [
        "server".to_owned(),
        "--roles=controller".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig.display()),
    ];
    let mut early = Process::start(args, &cluster.scratch.join("early.log"));
    let lines = |early: &Process, text: &str| early.log().lines().filter(|line| line.contains(text)).count();
    eventually("a report of the missing kinds", || {
        match lines(&early, "does not serve FleetNode: install the chart") {
            1 => Ok(()),
            _ => Err(early.log()),
        }
    });
    install(cluster, &NODES);
    eventually("the watch of FleetNode", || {
        match lines(&early, "watch of FleetNode succeeded again") {
            1 => Ok(()),
            _ => Err(early.log()),
        }
    });
    let log = early.log();
    for kind in ["FleetNode", "ModelReplica", "ModelDeployment", "CapacityPlan"] {
        let reported = lines(&early, &format!("watch of {kind} failed"));
        assert_eq!(reported, 1, "{kind}\n{log}");
    }
    assert!(early.terminate().success(), "{}", early.log());
}

/// Starts a controller that may read everything but may not write its Lease.
fn missing_permission_on_the_lease_is_reported_once(cluster: &KubernetesCluster) {
    let token = token_with_role(cluster, "reader", "view");
    let kubeconfig = cluster.kubeconfig_with("reader", &token);
    let args = [
        "server".to_owned(),
        "--roles=controller".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    let mut reader = Process::start(args, &cluster.scratch.join("reader.log"));
    let remedy = "install the chart, which grants `get`, `create` and `update` on the Lease kube-system/rooflet-controller";
    eventually("a report of the missing permission", || {
        match reader.log().lines().filter(|line| line.contains(remedy)).count() {
            1 => Ok(()),
            _ => Err(reader.log()),
        }
    });
    assert!(reader.terminate().success(), "{}", reader.log());
    let log = reader.log();
    assert_eq!(
        log.lines().filter(|line| line.contains(remedy)).count(),
        1,
        "{log}"
    );
}

/// Creates a ServiceAccount with a ClusterRole. Returns its token.
fn token_with_role(cluster: &KubernetesCluster, name: &str, role: &str) -> String {
    let kubectl = &cluster.kubectl;
    kubectl.run(&format!("create serviceaccount {name}")).ok();
    let subject = format!("--clusterrole={role} --serviceaccount=default:{name}");
    kubectl
        .run(&format!("create clusterrolebinding {name} {subject}"))
        .ok();
    kubectl
        .run(&format!("create token {name}"))
        .ok()
        .trim()
        .to_owned()
}

/// Signs in to the page of the release with the cluster's role `view`.
fn page_shows_the_fleet(cluster: &KubernetesCluster) {
    let page = Pod::start(cluster, "web", "web");
    let token = token_with_role(cluster, "viewer", "view");
    let mut browser = Browser::new(&page.url);
    assert!(browser.get("/").text.contains("<script"));
    let session = browser.sign_in(&json!({ "token": token }));
    assert_eq!(
        session.json()["user"],
        "system:serviceaccount:default:viewer",
        "{}",
        session.text
    );
    let kinds = "/proxy/api/apis/rooflet.dev/v1alpha1";
    // kube-controller-manager adds the rules to the role `view`.
    let listed = eventually("the rules of view", || {
        match browser.get(&format!("{kinds}/fleetnodes")) {
            listed if listed.status == 200 => Ok(listed.json()),
            refused => Err(refused.text),
        }
    });
    assert_eq!(
        listed["items"].as_array().map(Vec::len),
        Some(NODES.len()),
        "{listed}"
    );
    for kind in ["modelreplicas", "modeldeployments", "modelrevisions", "apikeys"] {
        let listed = browser.get(&format!("{kinds}/{kind}"));
        assert_eq!(listed.status, 200, "{kind}: {}", listed.text);
    }
    let secrets = browser.get("/proxy/api/api/v1/secrets");
    assert_eq!(secrets.status, 403, "{}", secrets.text);
    // The account of the page itself cannot read the fleet.
    let account = format!("system:serviceaccount:{NAMESPACE}:rooflet-web");
    let question = format!("auth can-i list fleetnodes.rooflet.dev --as={account}");
    cluster.kubectl.run(&question).expect_failure();
}

/// Finds and scrapes the processes of the Macs through the page with the role for Prometheus.
fn prometheus_finds_agents_and_workers(cluster: &KubernetesCluster) {
    let page = Pod::start(cluster, "web", "web-for-prometheus");
    let token = token_with_role(cluster, "prometheus", "rooflet:monitoring");
    let http = Http::new(page.url.clone()).with_header("Authorization", &format!("Bearer {token}"));
    let targets = http.get("/monitoring/targets").expect("a response");
    assert_eq!(targets.status, 200, "{}", targets.text);
    let targets = targets.json();
    let of = |component: &str| {
        let all = targets.as_array().into_iter().flatten();
        let own = all.filter(|target| target["labels"]["component"] == component);
        own.filter_map(|target| target["labels"]["__metrics_path__"].as_str())
            .collect::<Vec<_>>()
    };
    let agents = of("agent");
    assert_eq!(agents.len(), NODES.len(), "{targets}");
    for path in agents.into_iter().chain(of("worker")) {
        // At its start, the page requests a certificate for its connections to agents.
        let metrics = eventually("metrics", || match http.get(path)? {
            metrics if metrics.status == 200 => Ok(metrics),
            refused => Err(format!("{path}: {} {}", refused.status, refused.text)),
        });
        assert!(metrics.text.contains("rooflet_"), "{path}: {}", metrics.text);
    }
}

fn replicas(cluster: &KubernetesCluster) -> Result<Vec<Value>, String> {
    let listed = cluster.kubectl.json("mrep")?;
    Ok(listed["items"].as_array().cloned().unwrap_or_default())
}

/// Waits until exactly `count` replicas exist, all Ready on different nodes.
#[track_caller]
fn wait_for_replicas(cluster: &KubernetesCluster, count: usize) {
    eventually(&format!("{count} ready replicas"), || {
        let all = replicas(cluster)?;
        let is_ready = |replica: &&Value| replica["status"]["phase"] == "Ready";
        let ready = all.iter().filter(is_ready).count();
        match (all.len(), ready) {
            both if both == (count, count) => Ok(()),
            both => Err(format!("{both:?}")),
        }
    });
}

#[track_caller]
pub(super) fn ask(gateway: &Pod) {
    eventually("an answer", || {
        let answer = gateway.http.try_chat("guide", "What is rooflet?")?;
        match answer.status {
            200 => Ok(()),
            _ => Err(answer.text),
        }
    });
}

/// Changes the template and waits for the end of the rollout.
fn update(cluster: &KubernetesCluster, context_tokens: u32) {
    let patch = json!({"spec": {"serving": {"contextTokens": context_tokens}}}).to_string();
    eventually("a change of the deployment", || {
        let patched = cluster
            .kubectl
            .run_with(&["patch", "mdep", "guide", "--type=merge", "-p", &patch], "");
        patched.success.then_some(()).ok_or(patched.stderr)
    });
    eventually("the end of the rollout", || {
        let all = replicas(cluster)?;
        let has_finished = |replica: &Value| {
            replica["spec"]["serving"]["contextTokens"] == context_tokens
                && replica["status"]["phase"] == "Ready"
        };
        match all.len() == 2 && all.iter().all(has_finished) {
            true => Ok(()),
            false => Err(format!("{all:#?}")),
        }
    });
}

/// Moves the replicas of a node to the other one, and back.
fn drain(cluster: &KubernetesCluster) {
    let run = |args: &[&str]| {
        let output = Command::new(rooflet())
            .args(args)
            .env("KUBECONFIG", &cluster.kubeconfig)
            .output()
            .expect("the binary starts");
        assert!(
            output.status.success(),
            "rooflet {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(&["drain", "mini-1", "--timeout=120s"]);
    eventually("both replicas on mini-2", || {
        let all = replicas(cluster)?;
        let is_there = |replica: &Value| replica["spec"]["nodeName"] == "mini-2";
        match all.len() == 2 && all.iter().all(is_there) {
            true => Ok(()),
            false => Err(format!("{} replicas", all.len())),
        }
    });
    run(&["uncordon", "mini-1"]);
    wait_for_replicas(cluster, 2);
}

/// Checks the ValidatingAdmissionPolicy with the token of a node's agent.
fn agents_write_only_their_own_objects(cluster: &KubernetesCluster) {
    let kubeconfig = cluster.service_account_kubeconfig("rooflet-agent-mini-1");
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let refused = |args: &[&str]| {
        let args = [&[kubeconfig.as_str()], args].concat();
        cluster.kubectl.run_with(&args, "").expect_failure()
    };
    let label = "example.com/rack=7";
    let message = refused(&["label", "fleetnode", "mini-2", label]);
    assert!(
        message.contains("the agent of mini-1 may write only the FleetNode mini-1"),
        "{message}"
    );
    let message = refused(&["delete", "fleetnode", "mini-2"]);
    assert!(
        message.contains("the agent of mini-1 may write only the FleetNode mini-1"),
        "{message}"
    );
    let cordon = r#"{"spec": {"unschedulable": true}}"#;
    let message = refused(&["patch", "fleetnode", "mini-1", "--type=merge", "-p", cordon]);
    assert!(
        message.contains("the agent of mini-1 may not change the spec of its FleetNode"),
        "{message}"
    );
    let fault = "the agent of mini-1 may not change annotations, finalizers and owners of its FleetNode";
    for change in [
        r#"{"metadata": {"finalizers": ["example.com/held"]}}"#,
        r#"{"metadata": {"annotations": {"rooflet.dev/probe": "1"}}}"#,
    ] {
        let message = refused(&["patch", "fleetnode", "mini-1", "--type=merge", "-p", change]);
        assert!(message.contains(fault), "{change}: {message}");
    }
    let message = refused(&["label", "fleetnode", "mini-1", label]);
    let fault = "the agent of mini-1 may change only these labels of its FleetNode: rooflet.dev/simulated, ";
    assert!(message.contains(fault), "{message}");
    cluster
        .kubectl
        .run("label fleetnode mini-1 example.com/rack=7")
        .ok();
    for change in ["example.com/rack=8", "example.com/rack-"] {
        let message = refused(&["label", "--overwrite", "fleetnode", "mini-1", change]);
        assert!(message.contains(fault), "{message}");
    }
    let label_of_agent = [
        kubeconfig.as_str(),
        "label",
        "--overwrite",
        "fleetnode",
        "mini-1",
        "rooflet.dev/chip=x",
    ];
    cluster.kubectl.run_with(&label_of_agent, "").ok();
    let own = |node: &str| {
        let all = replicas(cluster).expect("listed");
        let found = all.iter().find(|replica| replica["spec"]["nodeName"] == node);
        let name = found.map(|replica| {
            replica["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        });
        name.expect("a replica on each node")
    };
    let other = own("mini-2");
    let finalizers = r#"{"metadata": {"finalizers": []}}"#;
    let message = refused(&["patch", "modelreplica", &other, "--type=merge", "-p", finalizers]);
    assert!(
        message.contains("may write only replicas with spec.nodeName mini-1"),
        "{message}"
    );
    let mine = own("mini-1");
    let stolen = r#"{"spec": {"priority": 7}}"#;
    let message = refused(&["patch", "modelreplica", &mine, "--type=merge", "-p", stolen]);
    assert!(
        message.contains("may change only status and finalizers of a replica"),
        "{message}"
    );
    for change in [
        r#"{"metadata": {"labels": {"rooflet.dev/deployment": "x"}}}"#,
        r#"{"metadata": {"annotations": {"rooflet.dev/move-to": "mini-2"}}}"#,
        r#"{"metadata": {"ownerReferences": []}}"#,
    ] {
        let message = refused(&["patch", "modelreplica", &mine, "--type=merge", "-p", change]);
        assert!(
            message.contains("may change only status and finalizers of a replica"),
            "{change}: {message}"
        );
    }
    let denied = |args: &[&str], object: Value| {
        let args = [&[kubeconfig.as_str()], args, &["-f", "-"]].concat();
        cluster
            .kubectl
            .run_with(&args, &object.to_string())
            .expect_failure()
    };
    // `kubectl patch` would need the permission to read the subresource.
    let status = |kind: &str, name: &str, status: Value| {
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--subresource=status",
        ];
        let object = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name}, "status": status});
        denied(&args, object)
    };
    let message = status("ModelReplica", &other, json!({"phase": "Failed"}));
    assert!(
        message.contains("may write only replicas with spec.nodeName mini-1"),
        "{message}"
    );
    let message = status("FleetNode", "mini-2", json!({"conditions": []}));
    assert!(
        message.contains("the agent of mini-1 may write only the FleetNode mini-1"),
        "{message}"
    );
    let creation = |object: Value| denied(&["create"], object);
    let message = creation(json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode",
        "metadata": {"name": "mini-9"}, "spec": {}}));
    assert!(
        message.contains("cannot create resource \"fleetnodes\""),
        "{message}"
    );
    let message = creation(
        json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
        "metadata": {"name": "forged", "namespace": "default"},
        "spec": {"nodeName": "mini-1", "model": {"source": "local://m"}, "serving": {"name": "m"}}}),
    );
    assert!(
        message.contains("the agent of mini-1 may create only mirrors of its manifests"),
        "{message}"
    );
    let message = creation(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "fleetnode-mini-2", "namespace": "kube-node-lease"}}));
    assert!(
        message.contains("may write only the ConfigMap fleetnode-mini-1"),
        "{message}"
    );
    let message = refused(&["get", "secrets", "--all-namespaces"]);
    assert!(message.contains("cannot list resource \"secrets\""), "{message}");
    let message = refused(&["delete", "modelreplica", &other]);
    assert!(
        message.contains("may write only replicas with spec.nodeName mini-1"),
        "{message}"
    );
    let lease = r#"{"spec": {"holderIdentity": "x"}}"#;
    let message = refused(&[
        "--namespace=kube-node-lease",
        "patch",
        "lease",
        "fleetnode-mini-2",
        "--type=merge",
        "-p",
        lease,
    ]);
    assert!(
        message.contains("may write only the Lease fleetnode-mini-1"),
        "{message}"
    );
    let message = refused(&["delete", "modeldeployment", "guide"]);
    assert!(message.contains("cannot delete resource"), "{message}");
}

/// Watch of all replicas.
struct Placements(Process);

impl Placements {
    fn watch(cluster: &KubernetesCluster) -> Self {
        let line = r#"-o=jsonpath={.metadata.name} {.spec.nodeName}{"\n"}"#;
        let mut kubectl = cluster.kubectl.command();
        kubectl.args(["get", "mrep", "--watch", line]);
        let placements = Self(Process::run(&mut kubectl, &cluster.scratch.join("placements")));
        eventually("the listed replicas", || {
            match placements.nodes_by_replica().len() {
                2 => Ok(()),
                _ => Err(placements.0.log()),
            }
        });
        placements
    }

    /// Returns the nodes that each replica had since the start.
    fn nodes_by_replica(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut placed = BTreeMap::<_, BTreeSet<_>>::new();
        for line in self.0.log().lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            if let Some(replica) = words.next() {
                placed.entry(replica).or_default().extend(words);
            }
        }
        placed
    }
}

/// Kills the leading controller while it scales. The other one takes over and creates no replica
/// twice. Returns the remaining controller.
fn leader_fails(cluster: &KubernetesCluster, controllers: [Pod; 2]) -> Vec<Pod> {
    let is_leading = |pod: &Pod| {
        let log = pod.process.log();
        let (won, lost) = (log.rfind("became leader"), log.rfind("lost leadership"));
        won.is_some() && won > lost
    };
    let leads = eventually("a leader", || {
        let position = controllers.iter().position(is_leading);
        position.ok_or_else(|| "no controller leads".to_owned())
    });
    let placements = Placements::watch(cluster);
    cluster.kubectl.run("scale mdep/guide --replicas=4").ok();
    let mut left = Vec::from(controllers);
    let mut failed = left.remove(leads);
    kill_9(failed.process.pid());
    failed.process.wait();
    eventually("another leader", || match is_leading(&left[0]) {
        true => Ok(()),
        false => Err(left[0].process.log()),
    });
    wait_for_replicas(cluster, 4);
    let placed = placements.nodes_by_replica();
    assert_eq!(placed.len(), 4, "{placed:?}");
    assert!(placed.values().all(|nodes| nodes.len() == 1), "{placed:?}");
    cluster.kubectl.run("scale mdep/guide --replicas=2").ok();
    wait_for_replicas(cluster, 2);
    left
}

/// Takes the permission to remove finalizers from the agents, deletes the deployment, and returns the
/// permission. The agents retry, although no object changes.
fn release_is_retried(cluster: &KubernetesCluster, agents: &[Process]) {
    let role = cluster
        .kubectl
        .json("clusterrole rooflet-agent")
        .expect("installed");
    let rules = role["rules"].as_array().expect("rules");
    let mut denied = rules.clone();
    denied.retain(|rule| rule["resources"] != json!(["modelreplicas"]));
    assert_eq!(denied.len() + 1, rules.len(), "{role:#}");
    let set = |rules: &[Value]| {
        let patch = json!({ "rules": rules }).to_string();
        let args = [
            "patch",
            "clusterrole",
            "rooflet-agent",
            "--type=merge",
            "-p",
            &patch,
        ];
        cluster.kubectl.run_with(&args, "").ok();
    };
    set(&denied);
    cluster.kubectl.run("delete mdep/guide --cascade=background").ok();
    for agent in agents {
        eventually("a denied release", || match agent.log() {
            log if log.contains("cannot patch resource") => Ok(()),
            log => Err(log),
        });
    }
    assert_eq!(replicas(cluster).expect("listed").len(), 2);
    set(rules);
    eventually("no replica", || match replicas(cluster)?.len() {
        0 => Ok(()),
        left => Err(format!("{left} replicas")),
    });
}

/// Checks that no process lacked a permission. After its restart, kube-apiserver answers 403 until
/// it has loaded its roles, so a failure that ended is no missing permission.
fn no_permission_is_missing(controllers: &[Pod], gateway: &Pod, agents: &[Process]) {
    let pods = controllers.iter().chain([gateway]).map(|pod| pod.process.log());
    for log in pods.chain(agents.iter().map(Process::log)) {
        let denied = log.lines().filter(|line| line.contains("forbidden")).count();
        let recovered = log
            .lines()
            .filter(|line| line.contains("succeeded again"))
            .count();
        assert!(denied <= recovered, "{log}");
    }
}

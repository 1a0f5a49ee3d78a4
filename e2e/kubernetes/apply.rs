//! Server-side apply and `kubectl diff`, as GitOps tools use them: on the embedded server and on
//! kube-apiserver, with the same expected answers, while a controller writes the status.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, Kubectl, Output, Process, Scratch, eventually, repository, rooflet};

#[test]
fn server_side_apply_on_the_embedded_server() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,controller"]) else {
        return;
    };
    check_all(&cluster.kubectl);
}

#[test]
fn server_side_apply_on_a_real_cluster() {
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    let _controller = start_controller(&cluster);
    check_all(&cluster.kubectl);
}

/// Installs the definitions and starts a controller.
pub(super) fn start_controller(cluster: &KubernetesCluster) -> Process {
    let definitions = Command::new(rooflet()).arg("crd").output();
    let definitions = String::from_utf8(definitions.expect("the binary starts").stdout).expect("UTF-8");
    let kubectl = &cluster.kubectl;
    kubectl
        .run_with(&["apply", "--server-side", "-f", "-"], &definitions)
        .ok();
    kubectl
        .run("wait --for=condition=Established crd --all --timeout=60s")
        .ok();
    let args = [
        "server".to_owned(),
        "--roles=controller".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig.display()),
    ];
    Process::start(args, &cluster.scratch.join("controller.log"))
}

fn check_all(kubectl: &Kubectl) {
    for example in examples() {
        example_is_stable(kubectl, &example);
    }
    conflicts_are_those_of_kubernetes(kubectl);
    owner_without_fields_gives_them_up(kubectl);
    client_side_apply_is_taken_over(kubectl);
    object_without_owners_is_taken_over(kubectl);
    apply_set_is_pruned(kubectl);
    stored_steps_stay_updatable(kubectl);
}

/// Returns the manifests of rooflet's kinds below `examples`.
fn examples() -> Vec<PathBuf> {
    let directories = [repository("examples"), repository("examples/tutorial")];
    let entries = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).expect("the directory exists"));
    let is_manifest = |path: &PathBuf| {
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        let text = || std::fs::read_to_string(path).expect("readable");
        is_yaml
            && text()
                .lines()
                .any(|line| line.starts_with("apiVersion: rooflet.dev/"))
    };
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(is_manifest)
        .collect();
    found.sort();
    assert!(found.len() >= 7, "{found:?}");
    found
}

/// Applies a manifest twice. The second apply and both kinds of `kubectl diff` change nothing, also
/// after the controller has written the status.
fn example_is_stable(kubectl: &Kubectl, file: &Path) {
    let file = file.display();
    kubectl.run(&format!("apply --server-side -f {file}")).ok();
    eventually("the status", || {
        let objects = objects_of(kubectl, &file.to_string())?;
        let is_observed =
            |object: &&Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
        match objects.iter().find(|object| !is_observed(object)) {
            None => Ok(()),
            Some(object) => Err(object.to_string()),
        }
    });
    let versions = || -> Result<Vec<String>, String> {
        let objects = objects_of(kubectl, &file.to_string())?;
        Ok(objects
            .iter()
            .map(|object| object["metadata"]["resourceVersion"].to_string())
            .collect())
    };
    // The controller may write between two reads, but a loop of changes never ends.
    eventually(&format!("an unchanged version of {file}"), || {
        let before = versions()?;
        kubectl.run(&format!("apply --server-side -f {file}")).ok();
        match versions()? {
            after if after == before => Ok(()),
            after => Err(format!("{before:?}, then {after:?}")),
        }
    });
    for options in ["", "--server-side "] {
        eventually(&format!("no difference to {file}"), || {
            let diff = kubectl.run(&format!("diff {options}-f {file}"));
            match diff.success && diff.stdout.is_empty() {
                true => Ok(()),
                false => Err(format!("{}{}", diff.stdout, diff.stderr)),
            }
        });
    }
    kubectl.run(&format!("delete -f {file} --timeout=60s")).ok();
}

fn objects_of(kubectl: &Kubectl, file: &str) -> Result<Vec<Value>, String> {
    let found = kubectl.json(&format!("-f {file}"))?;
    Ok(match found["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![found],
    })
}

/// Returns a deployment with `fields` in its `spec`.
fn deployment(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec:\n  \
         model: {{source: 'local://guide'}}\n{fields}"
    )
}

fn apply(kubectl: &Kubectl, manager: &str, manifest: &str, force: bool) -> Output {
    let manager = format!("--field-manager={manager}");
    let mut args = vec!["apply", "--server-side", &manager, "-f", "-"];
    if force {
        args.push("--force-conflicts");
    }
    kubectl.run_with(&args, manifest)
}

/// Returns the owners of a field of an object, each as `MANAGER OPERATION`, sorted.
pub(super) fn owners(kubectl: &Kubectl, object: &str, path: &[&str]) -> Vec<String> {
    let found = kubectl.json(&format!("{object} --show-managed-fields"));
    let found = found.expect("the object");
    let entries = found["metadata"]["managedFields"].as_array();
    let owns = |entry: &&Value| {
        path.iter()
            .try_fold(&entry["fieldsV1"], |fields, step| fields.get(step))
            .is_some()
    };
    let mut names: Vec<String> = entries
        .expect("owners")
        .iter()
        .filter(owns)
        .map(|entry| format!("{} {}", entry["manager"], entry["operation"]).replace('"', ""))
        .collect();
    names.sort();
    names
}

const REPLICAS: [&str; 2] = ["f:spec", "f:replicas"];
const CONTEXT: [&str; 3] = ["f:spec", "f:serving", "f:contextTokens"];

fn conflicts_are_those_of_kubernetes(kubectl: &Kubectl) {
    let one = deployment("conflict", "  replicas: 0\n  serving: {contextTokens: 512}\n");
    apply(kubectl, "one", &one, false).ok();
    let other = deployment("conflict", "  replicas: 0\n  serving: {contextTokens: 1024}\n");
    let refused = apply(kubectl, "two", &other, false).expect_failure();
    let expected = "error: Apply failed with 1 conflict: conflict with \"one\": .spec.serving.contextTokens\n\
                    Please review the fields above--they currently have other managers.";
    assert!(refused.starts_with(expected), "{refused}");
    let both = deployment("conflict", "  replicas: 2\n  serving: {contextTokens: 1024}\n");
    let refused = apply(kubectl, "two", &both, false).expect_failure();
    let expected = "error: Apply failed with 2 conflicts: conflicts with \"one\":\n\
                    - .spec.replicas\n- .spec.serving.contextTokens\n";
    assert!(refused.starts_with(expected), "{refused}");

    // Equal values are shared, and force transfers a field.
    apply(kubectl, "two", &one, false).ok();
    let object = "mdep conflict";
    assert_eq!(owners(kubectl, object, &CONTEXT), ["one Apply", "two Apply"]);
    apply(kubectl, "two", &other, true).ok();
    assert_eq!(owners(kubectl, object, &CONTEXT), ["two Apply"]);
    assert_eq!(owners(kubectl, object, &REPLICAS), ["one Apply", "two Apply"]);
    let found = kubectl.json(object).expect("the object");
    assert_eq!(found["spec"]["serving"]["contextTokens"], 1024);

    // Other writes own what they change.
    kubectl.run("scale mdep/conflict --replicas=1").ok();
    let refused = apply(kubectl, "one", &deployment("conflict", "  replicas: 0\n"), false).expect_failure();
    let expected = "error: Apply failed with 1 conflict: conflict with \"kubectl\" with subresource \"scale\" using \
         rooflet.dev/v1alpha1: .spec.replicas\n";
    assert!(refused.starts_with(expected), "{refused}");
    kubectl.run("delete mdep conflict").ok();
}

fn owner_without_fields_gives_them_up(kubectl: &Kubectl) {
    let object = "mdep transfer";
    let whole = deployment("transfer", "  replicas: 0\n  serving: {contextTokens: 512}\n");
    apply(kubectl, "one", &whole, false).ok();
    apply(kubectl, "two", &whole, false).ok();
    let less = deployment("transfer", "  replicas: 0\n");
    apply(kubectl, "one", &less, false).ok();
    assert_eq!(owners(kubectl, object, &CONTEXT), ["two Apply"]);
    let found = kubectl.json(object).expect("the object");
    assert_eq!(found["spec"]["serving"]["contextTokens"], 512);
    // The last owner removes the field.
    apply(kubectl, "two", &less, false).ok();
    let found = kubectl.json(object).expect("the object");
    assert_eq!(found["spec"]["serving"]["contextTokens"], Value::Null, "{found}");
    assert_eq!(owners(kubectl, object, &CONTEXT), Vec::<String>::new());
    kubectl.run("delete mdep transfer").ok();
}

fn client_side_apply_is_taken_over(kubectl: &Kubectl) {
    let object = "mdep migrated";
    let before = deployment("migrated", "  replicas: 0\n  serving: {contextTokens: 512}\n");
    kubectl.apply(&before).ok();
    assert_eq!(
        owners(kubectl, object, &CONTEXT),
        ["kubectl-client-side-apply Update"]
    );
    apply(kubectl, "kubectl", &before, false).ok();
    assert_eq!(owners(kubectl, object, &CONTEXT), ["kubectl Apply"]);
    let after = deployment("migrated", "  replicas: 0\n");
    apply(kubectl, "kubectl", &after, false).ok();
    let found = kubectl.json(object).expect("the object");
    assert_eq!(found["spec"]["serving"]["contextTokens"], Value::Null, "{found}");
    kubectl.run("delete mdep migrated").ok();
}

/// Objects without owners are from servers before server-side apply, or have had their owners
/// removed.
fn object_without_owners_is_taken_over(kubectl: &Kubectl) {
    let object = "mdep unowned";
    let before = deployment("unowned", "  replicas: 0\n  serving: {contextTokens: 512}\n");
    kubectl.run_with(&["create", "-f", "-"], &before).ok();
    let changed = deployment("unowned", "  replicas: 0\n  serving: {contextTokens: 1024}\n");
    eventually("a conflict with before-first-apply", || {
        // The controller may write the status, and with it an owner, between the two requests.
        let reset = r#"{"metadata": {"managedFields": [{}]}}"#;
        kubectl
            .run_with(&["patch", "mdep", "unowned", "--type=merge", "-p", reset], "")
            .ok();
        let refused = apply(kubectl, "one", &changed, false);
        let expected =
            "conflict with \"before-first-apply\" using rooflet.dev/v1alpha1: .spec.serving.contextTokens";
        match refused.stderr.contains(expected) {
            true => Ok(()),
            false => Err(refused.stderr),
        }
    });
    apply(kubectl, "one", &changed, true).ok();
    assert_eq!(owners(kubectl, object, &CONTEXT), ["one Apply"]);
    kubectl.run("delete mdep unowned").ok();
}

fn apply_set_is_pruned(kubectl: &Kubectl) {
    let scratch = Scratch::new();
    let map = |name: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n---\n")
    };
    let manifest = |names: &[&str]| {
        let mut text = deployment("member", "  replicas: 0\n") + "---\n";
        for name in names {
            write!(text, "{}", map(name)).expect("writing to a String cannot fail");
        }
        scratch.write("set.yaml", &text)
    };
    let apply_set = |file: &Path| {
        let mut command = kubectl.command();
        let output = command
            .args([
                "apply",
                "--server-side",
                "--prune",
                "--applyset=configmaps/set",
                "-n",
                "default",
            ])
            .arg("-f")
            .arg(file)
            .env("KUBECTL_APPLYSET", "true")
            .output();
        let output = output.expect("kubectl starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    apply_set(&manifest(&["kept", "pruned"]));
    let set = kubectl.json("configmap set").expect("the apply set");
    let kinds = &set["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"];
    assert_eq!(kinds, "ConfigMap,ModelDeployment.rooflet.dev");
    let printed = apply_set(&manifest(&["kept"]));
    assert!(printed.contains("configmap/pruned pruned"), "{printed}");
    let left = kubectl
        .run("get cm,mdep -l applyset.kubernetes.io/part-of -o name")
        .ok();
    assert_eq!(left, "configmap/kept\nmodeldeployment.rooflet.dev/member\n");
    kubectl.run("delete mdep member").ok();
    kubectl.run("delete cm kept set").ok();
}

/// Rules of `spec.strategy` in the definition of ModelDeployments, as a JSON pointer.
const STRATEGY_RULES: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/strategy/x-kubernetes-validations";

/// A deployment from before the rule on canary steps, which it breaks, can be changed except for its steps.
fn stored_steps_stay_updatable(kubectl: &Kubectl) {
    let definition = kubectl
        .json("crd modeldeployments.rooflet.dev")
        .expect("the definition");
    let rules = definition.pointer(STRATEGY_RULES).expect("rules").clone();
    let set_rules = |operation: Value| {
        let patch = Value::Array(vec![operation]).to_string();
        let args = [
            "patch",
            "crd",
            "modeldeployments.rooflet.dev",
            "--type=json",
            "-p",
            &patch,
        ];
        kubectl.run_with(&args, "").ok();
    };
    let with_steps = |name: &str| {
        let steps = "[{setWeight: 100}, {setWeight: 50}, {analysis: {}}]";
        deployment(
            name,
            &format!("  replicas: 0\n  strategy: {{type: Canary, canary: {{steps: {steps}}}}}\n"),
        )
    };
    set_rules(json!({"op": "remove", "path": STRATEGY_RULES}));
    eventually("a deployment without the rule", || {
        let created = kubectl.run_with(&["create", "-f", "-"], &with_steps("stored"));
        created.success.then_some(()).ok_or(created.stderr)
    });
    set_rules(json!({"op": "add", "path": STRATEGY_RULES, "value": rules}));
    eventually("the rule", || {
        let dry = ["create", "--dry-run=server", "-f", "-"];
        let refused = kubectl.run_with(&dry, &with_steps("new"));
        match refused.stderr.contains("it must follow a setWeight below 100") {
            true => Ok(()),
            false => Err(refused.stderr),
        }
    });
    let patch = |text: &str| kubectl.run_with(&["patch", "mdep", "stored", "--type=merge", "-p", text], "");
    kubectl.run("label mdep stored checked=yes").ok();
    patch(r#"{"spec": {"serving": {"contextTokens": 1024}}}"#).ok();
    let steps = r#"{"spec": {"strategy": {"canary": {"steps": [{"setWeight": 100}, {"analysis": {}}]}}}}"#;
    let refused = patch(steps).expect_failure();
    assert!(
        refused.contains("it must follow a setWeight below 100"),
        "{refused}"
    );
    kubectl.run("delete mdep stored --timeout=60s").ok();
}

//! Requests of `rooflet up` to its control plane.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use camino::Utf8Path;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Api, Client, Discovery, ResourceExt, discovery};
use serde_json::{Value, json};

use rooflet_api::conditions::{self, SIMULATED_CHIP, condition_type};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment};
use rooflet_base::clock::Clock;
use rooflet_base::yaml;
use rooflet_client as client;
use rooflet_client::{ApiError, KubeconfigSource};
use rooflet_roofline::published;

/// Interval at which a condition is read.
const POLL: Duration = Duration::from_millis(200);
/// Annotation in which kubectl stores the applied object. Without it, `kubectl apply` of the same
/// file prints a warning.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Namespace and name of a ModelDeployment.
#[derive(Debug, Clone)]
pub(super) struct DeploymentName {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Applied object.
pub(super) struct Applied {
    kind: String,
    name: String,
    outcome: &'static str,
    pub(super) deployment: Option<DeploymentName>,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.kind, self.name, self.outcome)
    }
}

/// Connection to the control plane.
pub(super) struct Cluster {
    client: Client,
}

impl Cluster {
    /// Waits until the API server answers.
    pub(super) async fn connect(kubeconfig: &Utf8Path, deadline: Duration) -> anyhow::Result<Self> {
        let connected = wait(deadline, || async {
            if !kubeconfig.is_file() {
                return Ok(None);
            }
            // The kubeconfig of a previous run may still exist until the server writes its own.
            let source = KubeconfigSource::File(kubeconfig.to_owned());
            let Ok(client) = client::connect(&source, &Clock::System).await else {
                return Ok(None);
            };
            Ok(client.apiserver_version().await.ok().map(|_| client))
        });
        let client = connected
            .await?
            .ok_or_else(|| anyhow!("the API server did not answer within {} s", deadline.as_secs()))?;
        Ok(Self { client })
    }

    /// Waits until the node is Ready and measured. Returns a description of the node.
    pub(super) async fn node_ready(&self, name: &str, deadline: Duration) -> anyhow::Result<Vec<String>> {
        let nodes: Api<FleetNode> = Api::all(self.client.clone());
        let ready = wait(deadline, || async {
            let Some(status) = answered(nodes.get_opt(name).await)?
                .flatten()
                .and_then(|node| node.status)
            else {
                return Ok(None);
            };
            let ready = conditions::is_true(&status.conditions, condition_type::READY);
            let probed = published::speed(&status).is_some() || missing_probe(&status.conditions).is_some();
            Ok((ready && probed).then_some(status))
        });
        let status = ready.await?.ok_or_else(|| {
            anyhow!(
                "this machine did not become Ready within {} s; see `kubectl describe mac {name}`",
                deadline.as_secs()
            )
        })?;
        let mark = if status.chip.development {
            ", a development node"
        } else {
            ""
        };
        let mut lines = vec![format!(
            "node {name}: {} ({} CPU cores, {}{mark})",
            status.chip.name, status.chip.cpu_cores, status.summary.memory
        )];
        lines.push(match published::speed(&status) {
            Some(speed) => format!(
                "measured through {}: read {:.1} GB/s, 4-bit matrix-vector {:.1} GB/s",
                speed.engine,
                speed.read_bytes_per_second / 1e9,
                speed.decode_bytes_per_second / 1e9
            ),
            None => missing_probe(&status.conditions).unwrap_or_default().to_owned(),
        });
        Ok(lines)
    }

    /// Creates or updates every object of a manifest.
    pub(super) async fn apply(&self, file: &Utf8Path) -> anyhow::Result<Vec<Applied>> {
        let documents = read(file)?;
        let discovery = Discovery::new(self.client.clone())
            .run()
            .await
            .context("requesting the kinds of the API server")?;
        let mut applied = Vec::new();
        for document in documents {
            applied.push(
                self.apply_one(&discovery, document)
                    .await
                    .with_context(|| format!("applying `{file}`"))?,
            );
        }
        Ok(applied)
    }

    async fn apply_one(&self, discovery: &Discovery, document: Value) -> anyhow::Result<Applied> {
        let types: TypeMeta =
            serde_json::from_value(document.clone()).context("apiVersion and kind are required")?;
        let gvk = GroupVersionKind::try_from(&types).context("apiVersion")?;
        let Some((resource, capabilities)) = discovery.resolve_gvk(&gvk) else {
            bail!(
                "the API server has no kind `{}` in `{}`",
                types.kind,
                types.api_version
            );
        };
        let mut object: DynamicObject = serde_json::from_value(document.clone()).context("metadata")?;
        object
            .annotations_mut()
            .insert(LAST_APPLIED.into(), format!("{document}\n"));
        let name = object
            .metadata
            .name
            .clone()
            .context("metadata.name is required")?;
        let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
        let api = self.api(&resource, &capabilities.scope, &namespace);
        let before = api.get_opt(&name).await.map_err(ApiError::from)?;
        let after = match &before {
            None => {
                let body = serde_json::to_vec(&object)?;
                let request =
                    kube::core::Request::new(api.resource_url()).create(&PostParams::default(), body)?;
                self.client
                    .request(strictly(request)?)
                    .await
                    .map_err(ApiError::from)?
            }
            Some(current) => {
                let mut patch = json!(object);
                let last = current.annotations().get(LAST_APPLIED);
                if let Some(last) = last.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                    remove_dropped(&mut patch, &last);
                }
                let params = PatchParams {
                    field_validation: Some(ValidationDirective::Strict),
                    ..PatchParams::default()
                };
                api.patch(&name, &params, &Patch::Merge(patch))
                    .await
                    .map_err(ApiError::from)?
            }
        };
        let before = before.and_then(|object| object.resource_version());
        let outcome = match &before {
            None => "created",
            Some(version) if Some(version) == after.resource_version().as_ref() => "unchanged",
            Some(_) => "configured",
        };
        let is_deployment = resource.group == rooflet_api::GROUP && resource.kind == "ModelDeployment";
        Ok(Applied {
            kind: format!("{}.{}", resource.kind.to_lowercase(), resource.group),
            outcome,
            deployment: is_deployment.then(|| DeploymentName {
                namespace,
                name: name.clone(),
            }),
            name,
        })
    }

    fn api(&self, resource: &ApiResource, scope: &discovery::Scope, namespace: &str) -> Api<DynamicObject> {
        match scope {
            discovery::Scope::Cluster => Api::all_with(self.client.clone(), resource),
            discovery::Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }

    /// Waits until a deployment is Ready. Prints its condition whenever it changes.
    pub(super) async fn deployment_ready(
        &self,
        deployment: &DeploymentName,
        deadline: Duration,
        print: &mut dyn FnMut(&str),
    ) -> anyhow::Result<()> {
        let deployments: Api<ModelDeployment> = Api::namespaced(self.client.clone(), &deployment.namespace);
        let mut printed = String::new();
        let waiting = async {
            loop {
                let Some(found) = answered(deployments.get(&deployment.name).await)? else {
                    tokio::time::sleep(POLL).await;
                    continue;
                };
                let generation = found.metadata.generation;
                let status = found
                    .status
                    .filter(|status| status.observed_generation == generation)
                    .unwrap_or_default();
                if let Some(ready) = status
                    .conditions
                    .iter()
                    .find(|condition| condition.type_ == condition_type::READY)
                {
                    let line = format!("{}: {} {}", deployment.name, ready.reason, ready.message);
                    if printed != line {
                        print(&line);
                        printed = line;
                    }
                    if ready.status == "True" {
                        return anyhow::Ok(());
                    }
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let Ok(outcome) = tokio::time::timeout(deadline, waiting).await else {
            let name = &deployment.name;
            bail!(
                "{name} was not ready within {} s; see `kubectl describe mdep {name}`",
                deadline.as_secs()
            );
        };
        outcome
    }

    /// Returns the served name of a deployment's model.
    pub(super) async fn serving_name(&self, deployment: &DeploymentName) -> anyhow::Result<String> {
        let deployments: Api<ModelDeployment> = Api::namespaced(self.client.clone(), &deployment.namespace);
        let found = deployments.get(&deployment.name).await.map_err(ApiError::from)?;
        Ok(found.spec.serving.name.unwrap_or_else(|| deployment.name.clone()))
    }
}

/// Returns the reason why a node will not be measured: its probe failed, or it is simulated.
fn missing_probe(conditions: &[Condition]) -> Option<&str> {
    let fresh = conditions
        .iter()
        .find(|c| c.type_ == condition_type::PROBE_FRESH)?;
    match fresh.reason.as_str() {
        "ProbeFailed" => Some("the bandwidth probe failed; see the condition ProbeFresh of the node"),
        SIMULATED_CHIP => Some(&fresh.message),
        _ => None,
    }
}

/// Reads the documents of a manifest.
pub(super) fn read(file: &Utf8Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading `{file}`"))?;
    yaml::documents(&text).with_context(|| format!("`{file}` is not valid YAML"))
}

/// Makes the server reject unknown fields instead of dropping them, like kubectl.
fn strictly(mut request: http::Request<Vec<u8>>) -> anyhow::Result<http::Request<Vec<u8>>> {
    let uri = request.uri();
    let joint = if uri.query().is_some() { '&' } else { '?' };
    *request.uri_mut() = format!("{uri}{joint}fieldValidation=Strict").parse()?;
    Ok(request)
}

/// Extends a merge patch, which is the new object, to remove fields that were applied last time and are no
/// longer in the file. Fields set by other clients, such as the replicas of `kubectl scale`, stay.
fn remove_dropped(patch: &mut Value, last: &Value) {
    let (Some(patch), Some(last)) = (patch.as_object_mut(), last.as_object()) else {
        return;
    };
    for (key, last) in last {
        match patch.get_mut(key) {
            // A field that was null was not set.
            None if last.is_null() => {}
            None => drop(patch.insert(key.clone(), Value::Null)),
            Some(new) => remove_dropped(new, last),
        }
    }
}

/// Returns the answer of the API server, or `None` if a later request may be answered: the server restarts.
fn answered<T>(answer: kube::Result<T>) -> Result<Option<T>, ApiError> {
    match answer.map_err(ApiError::from) {
        Ok(found) => Ok(Some(found)),
        Err(err) if err.is_transient() => Ok(None),
        Err(err) => Err(err),
    }
}

/// Polls `check` until it returns a value. Returns `None` after the deadline.
async fn wait<T, F: Future<Output = anyhow::Result<Option<T>>>>(
    deadline: Duration,
    mut check: impl FnMut() -> F,
) -> anyhow::Result<Option<T>> {
    let checking = async {
        loop {
            if let Some(found) = check().await? {
                return Ok(found);
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(deadline, checking)
        .await
        .map_or(Ok(None), |found| found.map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_does_not_answer_is_asked_again() {
        let status = |code| {
            Err(kube::Error::Api(Box::new(kube::core::Status {
                code,
                ..kube::core::Status::default()
            })))
        };
        assert_eq!(answered(Ok(1)).unwrap(), Some(1));
        assert_eq!(answered::<u8>(status(503)).unwrap(), None);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(
            answered::<u8>(Err(kube::Error::Service(refused.into()))).unwrap(),
            None
        );
        assert!(matches!(answered::<u8>(status(403)), Err(ApiError::Forbidden(_))));
    }

    #[test]
    fn fields_removed_from_the_file_are_removed_from_the_object() {
        let last =
            json!({"spec": {"replicas": 2, "serving": {"name": "a", "maxConcurrency": 8}}, "kind": "X"});
        let new = json!({"spec": {"serving": {"name": "b"}}, "kind": "X"});
        let mut patch = new.clone();
        remove_dropped(&mut patch, &last);
        assert_eq!(
            patch,
            json!({"spec": {"replicas": null, "serving": {"name": "b", "maxConcurrency": null}}, "kind": "X"})
        );
    }

    #[test]
    fn annotations_of_other_clients_stay_when_the_file_drops_its_own() {
        let last = json!({"metadata": {"creationTimestamp": null, "annotations": {"a": "1"}}});
        let mut patch = json!({"metadata": {"annotations": {(LAST_APPLIED): "{}"}}});
        remove_dropped(&mut patch, &last);
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {(LAST_APPLIED): "{}", "a": null}}})
        );
    }
}

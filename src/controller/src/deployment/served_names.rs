//! Deployments of one namespace with the same served name. Gateways cannot distinguish them.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use rooflet_api::v1alpha1::ModelDeployment;

/// Oldest deployment of each namespace and served name.
pub(super) struct ServedNames<'a>(HashMap<(Option<&'a str>, &'a str), &'a ModelDeployment>);

impl<'a> ServedNames<'a> {
    pub(super) fn new(deployments: &'a [Arc<ModelDeployment>]) -> Self {
        let mut oldest = HashMap::new();
        for deployment in deployments.iter().map(AsRef::as_ref) {
            if deployment.metadata.deletion_timestamp.is_none() {
                let known = oldest.entry(key(deployment)).or_insert(deployment);
                if age(deployment) < age(known) {
                    *known = deployment;
                }
            }
        }
        Self(oldest)
    }

    /// Returns the older deployment with the same served name.
    pub(super) fn older_than(&self, deployment: &'a ModelDeployment) -> Option<&'a str> {
        let oldest = self.0.get(&key(deployment))?;
        let oldest = oldest.metadata.name.as_deref();
        oldest.filter(|oldest| Some(*oldest) != deployment.metadata.name.as_deref())
    }
}

fn key(deployment: &ModelDeployment) -> (Option<&str>, &str) {
    (deployment.metadata.namespace.as_deref(), served_name(deployment))
}

pub(crate) fn served_name(deployment: &ModelDeployment) -> &str {
    let explicit = deployment.spec.serving.name.as_deref();
    explicit
        .or(deployment.metadata.name.as_deref())
        .unwrap_or_default()
}

/// Returns the sort key by age. The name decides between deployments created in the same second.
fn age(deployment: &ModelDeployment) -> (Option<&Time>, Option<&str>) {
    let metadata = &deployment.metadata;
    (metadata.creation_timestamp.as_ref(), metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rooflet_base::clock::at;

    fn deployment(namespace: &str, name: &str, served: Option<&str>, second: i64) -> Arc<ModelDeployment> {
        let mut deployment = ModelDeployment::test(name, json!({ "serving": { "name": served } }));
        deployment.metadata.namespace = Some(namespace.to_owned());
        deployment.metadata.creation_timestamp = Some(Time(at(second)));
        Arc::new(deployment)
    }

    #[test]
    fn newer_deployment_with_the_same_served_name_is_reported() {
        let mut ending = deployment("default", "ending", Some("guide"), 0);
        Arc::make_mut(&mut ending).metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        let all = [
            deployment("default", "another", Some("guide"), 7),
            ending,
            deployment("default", "guide", None, 5),
            deployment("default", "same-age", Some("guide"), 5),
            deployment("default", "own", None, 9),
            deployment("elsewhere", "guide", None, 9),
        ];
        let names = ServedNames::new(&all);
        let older = |index: usize| names.older_than(&all[index]);
        assert_eq!((older(0), older(3)), (Some("guide"), Some("guide")));
        assert_eq!((older(2), older(4), older(5)), (None, None, None));
    }
}

//! Deployments of one namespace that are served under one name: gateways cannot tell their requests apart.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use rooflet_api::v1alpha1::ModelDeployment;

/// The oldest deployment of each namespace and served name.
pub(super) struct ServedNames<'a>(HashMap<(Option<&'a str>, &'a str), &'a ModelDeployment>);

impl<'a> ServedNames<'a> {
    pub(super) fn new(deployments: &'a [Arc<ModelDeployment>]) -> Self {
        let mut oldest = HashMap::new();
        for deployment in deployments.iter().map(AsRef::as_ref) {
            if deployment.metadata.deletion_timestamp.is_none() {
                let known = oldest.entry(place(deployment)).or_insert(deployment);
                if age(deployment) < age(known) {
                    *known = deployment;
                }
            }
        }
        Self(oldest)
    }

    /// The older deployment that has the served name of this one.
    pub(super) fn older_than(&self, deployment: &'a ModelDeployment) -> Option<&'a str> {
        let oldest = self.0.get(&place(deployment))?;
        let oldest = oldest.metadata.name.as_deref();
        oldest.filter(|oldest| Some(*oldest) != deployment.metadata.name.as_deref())
    }
}

fn place(deployment: &ModelDeployment) -> (Option<&str>, &str) {
    (deployment.metadata.namespace.as_deref(), served_name(deployment))
}

pub(super) fn served_name(deployment: &ModelDeployment) -> &str {
    let given = deployment.spec.serving.name.as_deref();
    given.or(deployment.metadata.name.as_deref()).unwrap_or_default()
}

/// Of two that were made in one second the name decides.
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
    fn the_newer_of_two_with_one_served_name_is_told() {
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
        let told = |index: usize| names.older_than(&all[index]);
        assert_eq!((told(0), told(3)), (Some("guide"), Some("guide")));
        assert_eq!((told(2), told(4), told(5)), (None, None, None));
    }
}

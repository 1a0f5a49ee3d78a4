//! Demand of the ModelDeployments of a cluster, for `rooflet plan --current`.

use camino::Utf8PathBuf;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cli::{Failure, objects, ui};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{
    CapacityPlanSpec, DEFAULT_CONTEXT_TOKENS, DEFAULT_MAX_UTILIZATION_PERCENT, DecodeContext, DemandSpec,
    ModelDeployment, ModelReplica, ModelSource,
};
use rooflet_client::ApiError;

/// Returns a plan that requires the replicas of all deployments, without a rate of requests. `None`
/// if no deployment has replicas.
pub(super) async fn spec(kubeconfig: Option<Utf8PathBuf>) -> Result<Option<CapacityPlanSpec>, Failure> {
    let client = objects::client(kubeconfig).await?;
    let deployments: Api<ModelDeployment> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client);
    let all = ListParams::default();
    let deployments = deployments.list(&all).await.map_err(ApiError::from)?.items;
    let replicas = replicas.list(&all).await.map_err(ApiError::from)?.items;
    for skipped in deployments.iter().filter(|one| on_one_node(one)) {
        ui::progress(&format!(
            "ModelDeployment {} is not part of the plan: only its node can read {}",
            skipped.name_any(),
            skipped.spec.model.source
        ));
    }
    Ok(of_deployments(&deployments, &replicas))
}

fn on_one_node(deployment: &ModelDeployment) -> bool {
    matches!(deployment.spec.model.parse(), Ok(ModelSource::File(_)))
}

fn of_deployments(deployments: &[ModelDeployment], replicas: &[ModelReplica]) -> Option<CapacityPlanSpec> {
    let served = deployments.iter().filter(|deployment| !on_one_node(deployment));
    let demand: Vec<_> = served
        .filter_map(|deployment| demand(deployment, replicas))
        .collect();
    (!demand.is_empty()).then(|| CapacityPlanSpec {
        demand,
        max_utilization_percent: DEFAULT_MAX_UTILIZATION_PERCENT,
        ..CapacityPlanSpec::default()
    })
}

/// Returns the demand of a deployment, or `None` without replicas.
fn demand(deployment: &ModelDeployment, replicas: &[ModelReplica]) -> Option<DemandSpec> {
    let count = u32::try_from(deployment.spec.replicas)
        .ok()
        .filter(|count| *count > 0)?;
    let name = deployment.name_any();
    let own = replicas.iter().find(|replica| {
        replica.namespace() == deployment.namespace() && replica.labels().get(DEPLOYMENT_LABEL) == Some(&name)
    });
    // A replica contains the resolved defaults and the commit of a hub model.
    let model = own.map_or(&deployment.spec.model, |replica| &replica.spec.model);
    let serving = own.map_or(&deployment.spec.serving, |replica| &replica.spec.serving);
    let context = serving.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS);
    let objectives = deployment.spec.objectives.clone();
    let prompt = objectives
        .time_to_first_token
        .as_ref()
        .and_then(|objective| objective.at_prompt_tokens);
    let prompt = prompt.unwrap_or(context / 2).clamp(1, context);
    Some(DemandSpec {
        name: Some(name),
        model: model.text(),
        quantization: None,
        kv_bits: serving.kv_cache.as_ref().and_then(|cache| cache.bits),
        disk_size: serving
            .kv_cache
            .as_ref()
            .and_then(|cache| cache.disk_size.clone()),
        requests_per_second: 0.0,
        prompt_tokens: prompt,
        cached_prompt_tokens: 0,
        answer_tokens: (context - prompt).max(1),
        context_tokens: Some(context),
        decode_context: DecodeContext::Full,
        speculative_speedup: None,
        max_concurrency: serving.max_concurrency,
        replicas: count,
        objectives,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(name: &str, spec: serde_json::Value) -> ModelDeployment {
        let object = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"namespace": "default", "name": name}, "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn demand_is_the_replicas_of_each_deployment() {
        let deployments = [
            deployment(
                "a",
                json!({"replicas": 2, "model": {"source": "local://a"}, "serving": {"contextTokens": 4096}}),
            ),
            deployment("idle", json!({"replicas": 0, "model": {"source": "local://b"}})),
            deployment("own", json!({"model": {"source": "file:///models/x"}})),
        ];
        let spec = of_deployments(&deployments, &[]).unwrap();
        let [demand] = &spec.demand[..] else {
            panic!("{spec:?}");
        };
        assert_eq!((demand.model.as_str(), demand.replicas), ("local://a", 2));
        assert_eq!((demand.prompt_tokens, demand.answer_tokens), (2048, 2048));
        assert_eq!(demand.context_tokens, Some(4096));
        assert_eq!(of_deployments(&deployments[1..], &[]), None);
    }
}

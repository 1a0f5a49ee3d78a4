//! CapacityPlan from a file, validated like by the API server.

use anyhow::{Context, anyhow};
use camino::Utf8Path;
use serde::de::DeserializeOwned;
use serde_json::Value;

use rooflet_api::v1alpha1::{CapacityPlan, CapacityPlanSpec};
use rooflet_base::yaml;
use rooflet_schema::StructuralSchema;

/// Reads a CapacityPlan from a file and validates it with the API server's schema.
pub(super) fn read(file: &Utf8Path) -> anyhow::Result<CapacityPlanSpec> {
    let text = if file == "-" {
        std::io::read_to_string(std::io::stdin()).context("reading standard input")?
    } else {
        std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?
    };
    parse(&text).with_context(|| file.to_string())
}

fn parse(text: &str) -> anyhow::Result<CapacityPlanSpec> {
    let mut documents = yaml::documents(text)?;
    let mut object = match documents.len() {
        1 => documents.remove(0),
        count => return Err(anyhow!("expected one CapacityPlan, found {count} documents")),
    };
    let has = |field: &str, value: &str| object.get(field).and_then(Value::as_str) == Some(value);
    if !has("kind", "CapacityPlan") || !has("apiVersion", "rooflet.dev/v1alpha1") {
        return Err(anyhow!(
            "kind: must be CapacityPlan, in apiVersion rooflet.dev/v1alpha1"
        ));
    }
    let schema = StructuralSchema::of_kind::<CapacityPlan>();
    if let Some(field) = schema.prune(&mut object).first() {
        return Err(anyhow!("{field}: unknown field"));
    }
    schema.apply_defaults(&mut object);
    let problems = schema.validate(&object, None);
    if !problems.is_empty() {
        let all: Vec<_> = problems.iter().map(rooflet_schema::FieldError::summary).collect();
        return Err(anyhow!("{}", all.join("; ")));
    }
    section(&mut object, "spec")
}

fn section<T: DeserializeOwned>(object: &mut Value, name: &str) -> anyhow::Result<T> {
    let value = object.get_mut(name).map(Value::take).unwrap_or_default();
    serde_json::from_value(value).with_context(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_is_validated_by_its_schema() {
        let plan = |demand: &str| {
            parse(&format!(
                "apiVersion: rooflet.dev/v1alpha1\nkind: CapacityPlan\nmetadata: {{name: p}}\nspec:\n  demand: [{demand}]\n"
            ))
        };
        let good = "{model: qwen3-8b, quantization: mlx4, requestsPerSecond: 1, promptTokens: 900, answerTokens: 300}";
        assert_eq!(plan(good).unwrap().demand[0].max_concurrency, 4);
        let message = |demand: &str| format!("{:#}", plan(demand).unwrap_err());
        let misspelt = message(&good.replace("promptTokens", "promptTokns"));
        assert!(
            misspelt.contains("spec.demand[0].promptTokns: unknown field"),
            "{misspelt}"
        );
        let later = parse("apiVersion: rooflet.dev/v1\nkind: CapacityPlan\nspec: {}\n").unwrap_err();
        assert!(later.to_string().contains("rooflet.dev/v1alpha1"), "{later}");
        let zero = message(&good.replace("answerTokens: 300", "answerTokens: 0"));
        assert!(zero.contains("spec.demand[0].answerTokens"), "{zero}");
    }
}

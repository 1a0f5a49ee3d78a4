//! Claims from YAML files, validated by the schema of the kind, so that misspelt fields are errors.

use anyhow::{Context, anyhow, bail};
use camino::Utf8Path;
use serde_json::{Value, json};

use rooflet_api::v1alpha1::{PerformanceClaim, PerformanceClaimSpec};
use rooflet_api::{GROUP, VERSION};
use rooflet_base::yaml;
use rooflet_schema::StructuralSchema;

/// Name of a claim for messages, and its spec.
pub(super) type NamedClaim = (String, PerformanceClaimSpec);

/// Returns every claim of a file. An unreadable claim does not affect other claims.
pub(super) fn read(file: &Utf8Path) -> anyhow::Result<Vec<anyhow::Result<NamedClaim>>> {
    let text = if file == "-" {
        std::io::read_to_string(std::io::stdin()).context("reading standard input")?
    } else {
        std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?
    };
    parse(file.as_str(), &text)
}

fn parse(file: &str, text: &str) -> anyhow::Result<Vec<anyhow::Result<NamedClaim>>> {
    let documents = yaml::documents(text).with_context(|| format!("reading {file}"))?;
    if documents.is_empty() {
        bail!("{file} contains no claim");
    }
    let schema = StructuralSchema::of_kind::<PerformanceClaim>();
    let several = documents.len() > 1;
    let mut claims = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        let place = if several {
            format!("{file}, document {}", index + 1)
        } else {
            file.to_owned()
        };
        for item in items(document) {
            claims.push(claim(&schema, &place, item));
        }
    }
    Ok(claims)
}

/// Returns the items of a List, or the document itself.
fn items(document: Value) -> Vec<Value> {
    let is_list = document["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    if !is_list {
        return vec![document];
    }
    document["items"].as_array().cloned().unwrap_or_default()
}

fn claim(schema: &StructuralSchema, place: &str, document: Value) -> anyhow::Result<NamedClaim> {
    let Some(fields) = document.as_object() else {
        bail!("{place}: a claim must be an object with figures or statements");
    };
    let bare = !fields.contains_key("kind") && !fields.contains_key("apiVersion");
    let mut object = if bare {
        json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "PerformanceClaim", "spec": document })
    } else {
        let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or_default();
        if text("kind") != "PerformanceClaim" || text("apiVersion") != format!("{GROUP}/{VERSION}") {
            bail!(
                "{place}: expected kind PerformanceClaim of {GROUP}/{VERSION}, not `{}` of `{}`",
                text("kind"),
                text("apiVersion")
            );
        }
        document
    };
    let name = match object["metadata"]["name"].as_str() {
        Some(name) => format!("{place}: {name}"),
        None => place.to_owned(),
    };
    let shown = |field: &str| {
        if bare {
            field.trim_start_matches("spec.").to_owned()
        } else {
            field.to_owned()
        }
    };
    let mut wrong: Vec<String> = schema
        .prune(&mut object)
        .iter()
        .map(|field| format!("{}: unknown field", shown(field)))
        .collect();
    for error in schema.validate(&object, None) {
        // `<nil>` concerns the whole object; next to other errors it only states that more errors
        // may exist.
        if error.field != "<nil>" || wrong.is_empty() {
            wrong.push(format!("{}: {}", shown(&error.field), error.message));
        }
    }
    if !wrong.is_empty() {
        return Err(anyhow!("{name}: {}", wrong.join("; ")));
    }
    let spec = serde_json::from_value(object["spec"].take()).with_context(|| name.clone())?;
    Ok((name, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: PerformanceClaim
metadata: {name: blog}
spec:
  figures: [{kind: decodeTokensPerSecond, value: 77.7}]
";

    #[test]
    fn objects_and_bare_specs_are_equivalent() {
        let bare = "figures: [{kind: decodeTokensPerSecond, value: 77.7}]\n---\nstatements: ['1 = 1']\n";
        let read = |text: &str| -> Vec<NamedClaim> {
            let claims = parse("a.yaml", text).unwrap();
            claims.into_iter().map(Result::unwrap).collect()
        };
        let (objects, specs) = (read(OBJECT), read(bare));
        assert_eq!(objects[0].0, "a.yaml: blog");
        assert_eq!(specs[0].0, "a.yaml, document 1");
        assert_eq!(objects[0].1, specs[0].1);
        assert_eq!(specs.len(), 2);
    }

    #[test]
    fn errors_name_the_field() {
        let message = |text: &str| match parse("a.yaml", text) {
            Ok(mut claims) => claims.remove(0).unwrap_err().to_string(),
            Err(err) => err.to_string(),
        };
        assert!(message("figurs: []").contains("a.yaml: figurs: unknown field"));
        assert!(message(&OBJECT.replace("value", "valu")).contains("spec.figures[0].valu: unknown field"));
        assert!(
            message("figures: [{kind: speed, value: 1}]")
                .contains("figures[0].kind: Unsupported value: \"speed\"")
        );
        assert!(message("hardware: {gpuCores: many}").contains("hardware.gpuCores"));
        assert!(
            message(&OBJECT.replace("PerformanceClaim", "ModelDeployment"))
                .contains("expected kind PerformanceClaim")
        );
        assert!(message("- 1").contains("a claim must be an object"));
        assert!(message("").contains("contains no claim"));
    }
}

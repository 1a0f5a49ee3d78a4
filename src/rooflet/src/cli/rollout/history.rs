//! Revisions of a deployment in kubectl's format.

use anyhow::{Context, anyhow, bail};
use kube::ResourceExt;

use super::KIND;
use rooflet_api::meta::CHANGE_CAUSE_ANNOTATION;
use rooflet_api::v1alpha1::{ModelDeployment, ModelRevision};
use rooflet_controller::is_template_of;

/// Formats the list of revisions, or the template of one revision. `revisions` are sorted, oldest
/// first.
pub(super) fn history(name: &str, revisions: &[ModelRevision], revision: i64) -> anyhow::Result<String> {
    if revision != 0 {
        let found = find(revisions, revision)?;
        let template = serde_json::to_value(&found.spec)?;
        let template = rooflet_base::yaml::to_string(&template).context("writing the template")?;
        return Ok(format!("{KIND}/{name} with revision #{revision}\n{template}"));
    }
    let mut text = format!("{KIND}/{name}\nREVISION  CHANGE-CAUSE\n");
    for revision in revisions {
        let cause = revision.annotations().get(CHANGE_CAUSE_ANNOTATION);
        let cause = cause.map_or("<none>", String::as_str);
        text.push_str(&format!("{:<8}  {cause}\n", revision.spec.revision));
    }
    Ok(text)
}

/// Selects the revision to roll back to: the one before the deployment's current revision. If the
/// current template has no revision, because it was rejected or not observed yet, selects the
/// newest revision.
pub(super) fn undo(
    deployment: &ModelDeployment,
    revisions: &[ModelRevision],
    to_revision: i64,
) -> anyhow::Result<ModelRevision> {
    if to_revision != 0 {
        return Ok(find(revisions, to_revision)?.clone());
    }
    let mut latest = revisions.iter().rev().peekable();
    latest.next_if(|newest| is_template_of(deployment, newest));
    latest
        .next()
        .cloned()
        .ok_or_else(|| anyhow!("no rollout history found: there is no revision before the newest"))
}

fn find(revisions: &[ModelRevision], revision: i64) -> anyhow::Result<&ModelRevision> {
    match revisions.iter().find(|found| found.spec.revision == revision) {
        Some(found) => Ok(found),
        None => bail!("unable to find specified revision {revision} in history"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: i64, cause: Option<&str>) -> ModelRevision {
        let serving = serde_json::json!({ "name": "guide", "contextTokens": 64 * number });
        let spec = serde_json::json!({ "revision": number, "serving": serving });
        let mut revision = ModelRevision::test(&format!("r{number}"), spec);
        if let Some(cause) = cause {
            let annotations = revision.annotations_mut();
            annotations.insert(CHANGE_CAUSE_ANNOTATION.to_owned(), cause.to_owned());
        }
        revision
    }

    /// The format of `kubectl rollout history`.
    #[test]
    fn lists_revisions_with_change_causes() {
        let revisions = [revision(1, None), revision(3, Some("longer context"))];
        assert_eq!(
            history("guide", &revisions, 0).unwrap(),
            "modeldeployment.rooflet.dev/guide\nREVISION  CHANGE-CAUSE\n1         <none>\n3         longer context\n"
        );
        let one = history("guide", &revisions, 3).unwrap();
        assert!(
            one.starts_with("modeldeployment.rooflet.dev/guide with revision #3\n"),
            "{one}"
        );
        assert!(one.contains("contextTokens: 192"), "{one}");
        let message = history("guide", &revisions, 2).unwrap_err().to_string();
        assert_eq!(message, "unable to find specified revision 2 in history");
    }

    #[test]
    fn undo_selects_the_previous_or_the_named_revision() {
        let revisions = [revision(1, None), revision(2, None), revision(4, None)];
        let newest = deployment(64 * 4);
        assert_eq!(undo(&newest, &revisions, 0).unwrap().spec.revision, 2);
        assert_eq!(undo(&newest, &revisions, 1).unwrap().spec.revision, 1);
        assert!(undo(&newest, &revisions, 3).is_err());
        let message = undo(&deployment(64), &revisions[..1], 0).unwrap_err().to_string();
        assert!(message.contains("no rollout history"), "{message}");
    }

    /// A rejected template has no revision, so undo restores the newest revision.
    #[test]
    fn undo_of_a_rejected_template_selects_the_newest_revision() {
        let revisions = [revision(1, None), revision(2, None)];
        let refused = deployment(400_000);
        assert_eq!(undo(&refused, &revisions, 0).unwrap().spec.revision, 2);
        assert_eq!(undo(&refused, &revisions[..1], 0).unwrap().spec.revision, 1);
    }

    fn deployment(context_tokens: u32) -> ModelDeployment {
        let serving = serde_json::json!({ "name": "guide", "contextTokens": context_tokens });
        ModelDeployment::test("guide", serde_json::json!({ "serving": serving }))
    }
}

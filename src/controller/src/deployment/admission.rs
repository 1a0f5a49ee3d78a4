//! Admission of templates: decides whether a template can be served, and resolves its defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::reasons::{ASKING_HUB, PAUSED};
use rooflet_api::meta::{ADMISSION_ANNOTATION, TEMPLATE_HASH_LABEL};
use rooflet_api::v1alpha1::{
    ArtifactSpec, DEFAULT_CONTEXT_TOKENS, HubModel, ModelDeployment, ModelRevision, ModelRevisionSpec,
    ModelSource, ModelSpec, ServingSpec,
};
use rooflet_scheduler::Fleet;

/// Alphabet of Kubernetes' `SafeEncodeString`: no vowels, so that no words appear, and no
/// characters that look alike.
const HASH_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const HASH_CHARS: usize = 9;
/// Maximum number of names in one message.
const MAX_NAMED: usize = 8;

/// Part of a deployment whose change starts a rollout: model and serving.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    pub(super) model: ModelSpec,
    pub(super) serving: ServingSpec,
    /// Omitted if unset, so that hashes from versions without this field stay valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restarted_at: Option<String>,
}

impl Template {
    pub(super) fn of(deployment: &ModelDeployment) -> Self {
        let mut serving = deployment.spec.serving.clone();
        // An explicit default is no change.
        serving.name.get_or_insert_with(|| deployment.name_any());
        Self {
            model: deployment.spec.model.clone(),
            serving,
            restarted_at: deployment.spec.restarted_at.clone(),
        }
    }

    /// Returns whether the revision has this template. `rooflet rollout undo` writes a template
    /// with all defaults resolved: its hash differs, but the revision is the same.
    pub(super) fn is_of(&self, revision: &ModelRevisionSpec) -> bool {
        self.model == revision.model
            && self.serving == revision.serving
            && self.restarted_at == revision.restarted_at
    }

    /// Returns the hash of the template.
    pub(super) fn hash(&self) -> String {
        self.hash_after(0)
    }

    /// Returns the hash after this number of collisions with names of foreign revisions.
    pub(super) fn hash_after(&self, collisions: u32) -> String {
        let mut text = serde_json::to_vec(self).expect("a template has only string keys");
        if collisions > 0 {
            text.extend(collisions.to_le_bytes());
        }
        Sha256::digest(text)
            .iter()
            .take(HASH_CHARS)
            .map(|byte| char::from(HASH_ALPHABET[usize::from(*byte) % HASH_ALPHABET.len()]))
            .collect()
    }
}

/// Returns whether the revision was made from the deployment's current template.
pub fn is_template_of(deployment: &ModelDeployment, revision: &ModelRevision) -> bool {
    let template = Template::of(deployment);
    revision.labels().get(TEMPLATE_HASH_LABEL) == Some(&template.hash()) || template.is_of(&revision.spec)
}

/// Result of the admission of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// The template can be served with this context length. `None`: the agent determines it.
    Admitted {
        context_tokens: Option<u32>,
    },
    Refused {
        reason: &'static str,
        message: String,
    },
}

/// Result of a hub query for a template's model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HubAnswer {
    Artifact {
        /// Commit to which the revision resolved.
        commit: Option<String>,
        artifact: Arc<ArtifactSpec>,
    },
    /// The hub has no such model, denies access or did not answer.
    Unknown {
        reason: &'static str,
        message: String,
        /// True if a later query may succeed without a change by a user.
        is_transient: bool,
    },
}

impl HubAnswer {
    /// Returns the result while the query is in progress.
    pub(crate) fn pending(model: &HubModel) -> Self {
        Self::Unknown {
            reason: ASKING_HUB,
            message: format!("waiting for the hub's answer about {model}"),
            is_transient: true,
        }
    }

    /// Returns the result of a preview, which sends no query.
    pub(super) fn not_queried(model: &HubModel) -> Self {
        Self::Unknown {
            reason: ASKING_HUB,
            message: format!("a preview does not query the hub for {model}"),
            is_transient: true,
        }
    }

    /// Returns the result while the deployment is paused: no query is sent.
    pub(super) fn paused(model: &HubModel) -> Self {
        Self::Unknown {
            reason: PAUSED,
            message: format!("spec.paused is true: the hub is queried for {model} after the pause"),
            is_transient: true,
        }
    }
}

/// Admits or refuses a template, by the models that nodes report or by the answer of the hub.
pub(super) fn admit(template: &Template, fleet: &Fleet, hub: Option<&HubAnswer>) -> Admission {
    let refuse = |reason, message| Admission::Refused { reason, message };
    let requested = template.serving.context_tokens;
    let name = match template.model.parse() {
        Ok(ModelSource::Local(name)) => name,
        // Only the agent can read the directory, so the agent decides.
        Ok(ModelSource::File(_)) => {
            return Admission::Admitted {
                context_tokens: requested,
            };
        }
        Ok(ModelSource::Hub(model)) => {
            return match hub {
                Some(HubAnswer::Artifact { artifact, .. }) => admit_artifact(&model, artifact, requested),
                Some(HubAnswer::Unknown { reason, message, .. }) => refuse(reason, message.clone()),
                None => refuse(
                    "ModelNotFound",
                    format!("{model}: this controller has no access to a hub"),
                ),
            };
        }
        Err(err) => return refuse("InvalidSource", err.to_string()),
    };
    let Some(offer) = fleet.offer(&name) else {
        return if fleet.nodes.is_empty() {
            let message = "no FleetNode has joined: start `rooflet agent` on a machine with the model";
            refuse("NoNodes", message.to_owned())
        } else {
            refuse("ModelNotFound", not_found(&name, fleet))
        };
    };
    if !offer.is_servable() {
        let problems = fleet
            .models(&name)
            .filter_map(|(node, model)| Some((node.name.as_str(), model.problem.as_deref()?)));
        return refuse("ModelNotServable", by_problem(&name, problems));
    }
    with_context(&name, requested, offer.contexts())
}

fn admit_artifact(model: &HubModel, artifact: &ArtifactSpec, requested: Option<u32>) -> Admission {
    if let Some(problem) = &artifact.model.problem {
        return Admission::Refused {
            reason: "ModelNotServable",
            message: format!("spec.model.source: {model} cannot be served: {problem}"),
        };
    }
    let longest = Some(artifact.model.max_context_tokens).filter(|tokens| *tokens > 0);
    with_context(
        &model.to_string(),
        requested,
        longest.map(|longest| (longest, longest)),
    )
}

/// Admits the requested context, or the default one. `contexts` holds the shortest and the longest
/// maximum context of the model's copies, if known.
fn with_context(model: &str, requested: Option<u32>, contexts: Option<(u32, u32)>) -> Admission {
    match (requested, contexts) {
        (Some(requested), Some((_, longest))) if requested > longest => Admission::Refused {
            reason: "ContextTooLong",
            message: format!(
                "spec.serving.contextTokens: {requested} is more than the maximum of {longest} tokens of model `{model}`"
            ),
        },
        (Some(requested), _) => Admission::Admitted {
            context_tokens: Some(requested),
        },
        // With the shortest context, every node with the model can run a replica.
        (None, contexts) => Admission::Admitted {
            context_tokens: Some(contexts.map_or(DEFAULT_CONTEXT_TOKENS, |(shortest, _)| {
                shortest.min(DEFAULT_CONTEXT_TOKENS)
            })),
        },
    }
}

fn not_found(name: &str, fleet: &Fleet) -> String {
    let known: BTreeSet<_> = fleet
        .nodes
        .iter()
        .flat_map(|node| node.models())
        .filter(|model| !model.name.contains("://"))
        .map(|model| format!("local://{}", model.name))
        .collect();
    let nodes: Vec<_> = fleet.nodes.iter().map(|node| node.name.clone()).collect();
    let known = if known.is_empty() {
        "no models found".to_owned()
    } else {
        format!("models found: {}", named(known.into_iter().collect()))
    };
    format!(
        "spec.model.source: no node has a directory `{name}` in its --model-dir; on {}: {known}",
        named(nodes)
    )
}

fn by_problem<'a>(name: &str, problems: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, problem) in problems {
        nodes.entry(problem).or_default().push(node.to_owned());
    }
    let problems: Vec<_> = nodes
        .into_iter()
        .map(|(problem, nodes)| format!("{problem} (on {})", named(nodes)))
        .collect();
    format!("model `{name}` cannot be served: {}", named(problems))
}

/// Joins names for a message. Names beyond the maximum are counted.
pub(super) fn named(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Returns the value of the annotation that overrides the admission of a deployment's replicas.
pub(super) fn admission_annotation(object: &impl ResourceExt) -> Option<&str> {
    object.annotations().get(ADMISSION_ANNOTATION).map(String::as_str)
}

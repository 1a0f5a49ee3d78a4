//! Whether a template can be served at all, and with which defaults.

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

/// Letters and digits that spell no words and are told apart by eye; Kubernetes' own choice for such hashes.
const HASH_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const HASH_CHARS: usize = 9;
/// Names in one message.
const MAX_NAMED: usize = 8;

/// What a change of which starts a rollout: the deployment's model and serving.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    pub(super) model: ModelSpec,
    pub(super) serving: ServingSpec,
    /// Left out where there is none, so that the hash is what it was before there could be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restarted_at: Option<String>,
}

impl Template {
    pub(super) fn of(deployment: &ModelDeployment) -> Self {
        let mut serving = deployment.spec.serving.clone();
        // To write the default out is no change.
        serving.name.get_or_insert_with(|| deployment.name_any());
        Self {
            model: deployment.spec.model.clone(),
            serving,
            restarted_at: deployment.spec.restarted_at.clone(),
        }
    }

    /// What an undo writes is the template with its defaults: the same revision, though the text differs.
    pub(super) fn is_of(&self, revision: &ModelRevisionSpec) -> bool {
        self.model == revision.model
            && self.serving == revision.serving
            && self.restarted_at == revision.restarted_at
    }

    /// The same for the same template, whatever else changes.
    pub(super) fn hash(&self) -> String {
        self.hash_after(0)
    }

    /// The same, but another one for every number of names that were found taken.
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

/// Whether a revision was made of the template that the deployment has now.
pub fn is_template_of(deployment: &ModelDeployment, revision: &ModelRevision) -> bool {
    let template = Template::of(deployment);
    revision.labels().get(TEMPLATE_HASH_LABEL) == Some(&template.hash()) || template.is_of(&revision.spec)
}

/// The verdict on a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// It can be served with a context of so many tokens; `None`: its agent will tell.
    Admitted {
        context_tokens: Option<u32>,
    },
    Refused {
        reason: &'static str,
        message: String,
    },
}

/// What a hub says of a template's model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HubAnswer {
    Artifact {
        /// Of the revision, when it was asked for.
        commit: Option<String>,
        artifact: Arc<ArtifactSpec>,
    },
    /// It says nothing, or that it has no such model for us.
    Unknown {
        reason: &'static str,
        message: String,
        /// It may answer soon with nothing changed by anybody.
        is_passing: bool,
    },
}

impl HubAnswer {
    /// It has not answered yet.
    pub(crate) fn asking(model: &HubModel) -> Self {
        Self::Unknown {
            reason: ASKING_HUB,
            message: format!("the hub is asked what {model} is"),
            is_passing: true,
        }
    }

    /// It is not asked yet.
    pub(super) fn paused(model: &HubModel) -> Self {
        Self::Unknown {
            reason: PAUSED,
            message: format!("spec.paused is true: the hub is asked what {model} is when that is over"),
            is_passing: true,
        }
    }
}

/// Judges by what the nodes report of their model directories, or by what the hub says.
pub(super) fn admit(template: &Template, fleet: &Fleet, hub: Option<&HubAnswer>) -> Admission {
    let refuse = |reason, message| Admission::Refused { reason, message };
    let asked = template.serving.context_tokens;
    let name = match template.model.parse() {
        Ok(ModelSource::Local(name)) => name,
        // Only the node sees what lies there; its agent judges.
        Ok(ModelSource::File(_)) => {
            return Admission::Admitted {
                context_tokens: asked,
            };
        }
        Ok(ModelSource::Hub(model)) => {
            return match hub {
                Some(HubAnswer::Artifact { artifact, .. }) => admit_artifact(&model, artifact, asked),
                Some(HubAnswer::Unknown { reason, message, .. }) => refuse(reason, message.clone()),
                None => refuse("ModelNotFound", format!("{model}: nobody asks a hub here")),
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
    with_context(&name, asked, offer.contexts())
}

fn admit_artifact(model: &HubModel, artifact: &ArtifactSpec, asked: Option<u32>) -> Admission {
    if let Some(problem) = &artifact.model.problem {
        return Admission::Refused {
            reason: "ModelNotServable",
            message: format!("spec.model.source: {model} cannot be served: {problem}"),
        };
    }
    let longest = Some(artifact.model.max_context_tokens).filter(|tokens| *tokens > 0);
    with_context(
        &model.to_string(),
        asked,
        longest.map(|longest| (longest, longest)),
    )
}

/// `contexts`: the shortest and the longest that copies of the model were made for, where known.
fn with_context(model: &str, asked: Option<u32>, contexts: Option<(u32, u32)>) -> Admission {
    match (asked, contexts) {
        (Some(asked), Some((_, longest))) if asked > longest => Admission::Refused {
            reason: "ContextTooLong",
            message: format!(
                "spec.serving.contextTokens: {asked} is more than the {longest} tokens that model `{model}` was made for"
            ),
        },
        (Some(asked), _) => Admission::Admitted {
            context_tokens: Some(asked),
        },
        // The smallest, so that every node with the model can take a replica.
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
        "there are none".to_owned()
    } else {
        format!("there are {}", named(known.into_iter().collect()))
    };
    format!(
        "spec.model.source: no node has a directory `{name}` in its --model-dir; on {} {known}",
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

/// A list for people, of bounded length.
pub(super) fn named(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Value of the annotation that overrides the admission of a deployment's replicas.
pub(super) fn admission_annotation(object: &impl ResourceExt) -> Option<&str> {
    object.annotations().get(ADMISSION_ANNOTATION).map(String::as_str)
}

//! Parts that deployments, revisions and replicas share: model source, serving, objectives,
//! placement.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use camino::Utf8PathBuf;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodeModel;
use rooflet_base::quantity;
use rooflet_base::quantity::{DURATION_PATTERN, ParseQuantityError};
use rooflet_base::units::Bytes;

/// Default of `serving.maxConcurrency`: streams that a replica serves at the same time.
pub const DEFAULT_MAX_CONCURRENCY: u32 = 4;

/// Default number of queued requests per concurrent stream. The last request in a full queue waits
/// for about eight consecutive answers, about as long as clients usually wait.
pub const DEFAULT_QUEUED_PER_STREAM: u32 = 8;
/// Maximum default of `serving.contextTokens`, in tokens.
pub const DEFAULT_CONTEXT_TOKENS: u32 = 32_768;

/// Source of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.revision) || self.source.startsWith('hf://')").message("may only be set for models of a hub (source: hf://OWNER/NAME)").field_path(".revision"))]
pub struct ModelSpec {
    /// Location of the model's files: `hf://OWNER/NAME` is a repository of the hub, which nodes
    /// download. `local://NAME` is the directory NAME under the agent's `--model-dir`.
    /// `file:///ABSOLUTE/PATH` is a directory on the node. The directory contains `config.json`,
    /// `tokenizer.json` and `*.safetensors` as published for MLX.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new(r"self.matches('^hf://[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*$') || self.matches('^local://[A-Za-z0-9][A-Za-z0-9._-]*$') || self.matches('^file:///.+')").message("must be hf://OWNER/NAME (a revision goes into spec.model.revision), local://NAME (a directory under the agent's --model-dir) or file:///ABSOLUTE/PATH; this version supports no other sources"))]
    pub source: String,
    /// Branch, tag or commit of a model of a hub. The ModelRevision contains the resolved commit.
    /// Default: main.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub revision: Option<String>,
}

impl ModelSpec {
    /// Parses the source and its revision.
    ///
    /// # Errors
    /// The text is not a model source.
    pub fn parse(&self) -> Result<ModelSource, ParseModelSourceError> {
        let source = self.source.parse()?;
        Ok(match source {
            ModelSource::Hub(model) => ModelSource::Hub(HubModel {
                revision: self.revision.clone().or(model.revision),
                ..model
            }),
            ModelSource::Local(_) | ModelSource::File(_) => source,
        })
    }

    /// Parses the result of [`ModelSpec::text`].
    pub fn of_text(text: &str) -> Self {
        let (source, revision) = match text.split_once('@') {
            Some((source, revision)) if text.starts_with(HUB_SCHEME) => (source, Some(revision.to_owned())),
            Some(_) | None => (text, None),
        };
        Self {
            source: source.to_owned(),
            revision,
        }
    }

    /// Returns source and revision as one text, in the form of [`ModelSource`].
    pub fn text(&self) -> String {
        self.parse()
            .map_or_else(|_| self.source.clone(), |source| source.to_string())
    }
}

/// Facts about a model of a hub, read from its repository before the download.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArtifactSpec {
    /// Bytes that a node without the model downloads.
    pub download_bytes: u64,
    /// Dimensions that determine memory and speed, and the name under which nodes list the model.
    pub model: NodeModel,
}

/// A parsed [`ModelSpec`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelSource {
    /// A directory under the agent's `--model-dir`.
    Local(String),
    /// An absolute directory on the node.
    File(Utf8PathBuf),
    /// A repository that nodes download.
    Hub(HubModel),
}

impl ModelSource {
    /// Returns the name under which FleetNodes list the model, or `None` for files that only the
    /// node's agent can read.
    pub fn listed_as(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Local(name) => Some(name.into()),
            Self::File(_) => None,
            Self::Hub(model) => Some(model.to_string().into()),
        }
    }
}

/// Model in a repository of a hub: `hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubModel {
    pub owner: String,
    pub name: String,
    /// Branch, tag or commit. `None` is `main`.
    pub revision: Option<String>,
}

/// Scheme of hub sources.
const HUB_SCHEME: &str = "hf://";

/// Reason why a text is not a hub model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseHubModelError {
    #[error("a model on the hub is hf://OWNER/NAME or hf://OWNER/NAME@REVISION")]
    Form,
    #[error("a branch, tag or commit must follow @")]
    Revision,
}

impl std::str::FromStr for HubModel {
    type Err = ParseHubModelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let repository = text.strip_prefix(HUB_SCHEME).ok_or(ParseHubModelError::Form)?;
        let (path, revision) = match repository.split_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (repository, None),
        };
        let plain = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
        };
        let (owner, name) = path.split_once('/').ok_or(ParseHubModelError::Form)?;
        if !plain(owner) || !plain(name) {
            return Err(ParseHubModelError::Form);
        }
        if revision.is_some_and(|revision| !revision.split('/').all(plain)) {
            return Err(ParseHubModelError::Revision);
        }
        Ok(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: revision.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HUB_SCHEME}{}/{}", self.owner, self.name)?;
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

/// Reason why a text is not a model source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.model.source: `{0}` must be hf://OWNER/NAME, local://NAME (a directory under the agent's --model-dir) or file:///ABSOLUTE/PATH"
)]
pub struct ParseModelSourceError(String);

impl std::str::FromStr for ModelSource {
    type Err = ParseModelSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseModelSourceError(text.to_owned());
        if text.starts_with(HUB_SCHEME) {
            return text.parse().map(Self::Hub).map_err(|_| refuse());
        }
        if let Some(name) = text.strip_prefix("local://") {
            let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
            let all_well = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
            return if starts_well && all_well {
                Ok(Self::Local(name.to_owned()))
            } else {
                Err(refuse())
            };
        }
        match text.strip_prefix("file://") {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(Self::File(path.into())),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(name) => write!(f, "local://{name}"),
            Self::File(path) => write!(f, "file://{path}"),
            Self::Hub(model) => model.fmt(f),
        }
    }
}

/// Settings for clients of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingSpec {
    /// Model name in client requests: letters, digits and `.`, `_`, `:`, `-`. Default: name of the
    /// deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(r"self.matches('^[A-Za-z0-9][A-Za-z0-9._:-]*$')").message("must consist of letters, digits and '.', '_', ':', '-', and start with a letter or digit: clients send the name, and `NAMESPACE/NAME` selects a namespace"))]
    pub name: Option<String>,
    /// Maximum tokens of a request, prompt and answer together. Longer requests are rejected, never
    /// truncated. Default: the model's own maximum, but at most 32768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_tokens: Option<u32>,
    /// Maximum number of requests that a replica serves at the same time. Memory is reserved for
    /// all of them at full context.
    #[serde(default = "default_max_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrency: u32,
    /// Format and disk storage of the KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheSpec>,
    /// Maximum number of draft tokens by prompt lookup: tokens that followed the same text earlier
    /// in the request are verified in one pass. Answers that repeat their prompt become faster; the
    /// generated tokens stay the same. Active only while a replica serves a single request. Not
    /// supported for models with sliding windows or recurrent state. Default: no draft tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub prompt_lookup_tokens: Option<u32>,
    /// Time without requests after which a replica frees the memory of weights and cached prefixes, as a Go
    /// duration such as `30m`. The next request waits until the model is loaded again. A request of Ollama's
    /// API may set another time with `keep_alive`, for all clients. The memory stays reserved on the node.
    /// Default: the model stays loaded, and `keep_alive` has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    pub keep_alive: Option<String>,
    /// If true, a request may contain its own `chat_template`. The worker renders such a template in a
    /// separate process with limits of time, memory and length. Default: such requests are rejected.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_request_chat_template: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Settings of the KV cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvCacheSpec {
    /// Bits of one element. 8 and 4 need about a half and a third of the memory of 16, at some loss
    /// of precision. Not supported for models with sliding windows or attention sinks. Default: the
    /// precision in which the model is computed, usually 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [4, 8, 16]))]
    pub bits: Option<u32>,
    /// Disk space for cached prefixes of each replica, such as 16Gi. A restarted worker reads them
    /// again. The space is reserved: the scheduler considers only nodes that have it. "0" stores no
    /// files; the files contain tokens of prompts. Default: a tenth of the unreserved free space,
    /// at most 8Gi; no files if less than 20Gi is unreserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub disk_size: Option<String>,
}

impl KvCacheSpec {
    /// Returns the parsed `disk_size`, if it is set.
    pub fn disk_bytes(&self) -> Option<Bytes> {
        match quantity::parse_bytes(self.disk_size.as_deref()?) {
            Ok(bytes) => Some(bytes),
            // No node has that much disk; the scheduler reports it.
            Err(ParseQuantityError::TooLarge(_)) => Some(Bytes(u64::MAX)),
            // The schema rejects other texts.
            Err(ParseQuantityError::Malformed(_) | ParseQuantityError::Negative(_)) => None,
        }
    }
}

fn default_max_concurrency() -> u32 {
    DEFAULT_MAX_CONCURRENCY
}

/// Equals an empty object, which is the schema's default of `spec.serving`.
impl Default for ServingSpec {
    fn default() -> Self {
        Self {
            name: None,
            context_tokens: None,
            max_concurrency: default_max_concurrency(),
            kv_cache: None,
            prompt_lookup_tokens: None,
            keep_alive: None,
            allow_request_chat_template: false,
        }
    }
}

/// Required speed of the replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectivesSpec {
    /// Minimum decode tokens/s of each stream. The condition ObjectivesMet compares it with the
    /// measured speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub decode_tokens_per_second: Option<f64>,
    /// Maximum time to first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<TimeToFirstTokenObjective>,
}

impl ObjectivesSpec {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Maximum time to first token for a given prompt length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.max.matches('[1-9]')").message("must be greater than 0").field_path(".max"))]
pub struct TimeToFirstTokenObjective {
    /// Maximum time, greater than 0, as a Go duration such as `3s` or `1m30s`.
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    pub max: String,
    /// Prompt length in tokens to which the maximum applies. Must not exceed `contextTokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub at_prompt_tokens: Option<u32>,
}

/// Constraints and preferences for the choice of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSpec {
    /// Labels that a FleetNode must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the model tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Strategy that ranks the nodes that can serve the model.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strategy: PlacementStrategy,
    /// Spread of the replicas over zones, racks or another topology domain that a node label
    /// defines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<TopologySpread>,
    /// Whether replicas of the deployment avoid sharing a node. Default: Preferred; Ignored with
    /// strategy BinPack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anti_affinity: Option<AntiAffinity>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl PlacementSpec {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Strategy that ranks nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlacementStrategy {
    /// Prefers the node with the largest margin between objectives and predicted speed of all its
    /// replicas. Among equal nodes, prefers fast loading of the model, then the least free memory.
    /// Without objectives: prefers the node on which the new replica and its neighbours have the
    /// highest predicted speed, nodes without other replicas first.
    #[default]
    SloSlack,
    /// Uses as few nodes as possible.
    BinPack,
    /// Prefers the least used node.
    Spread,
    /// Prefers the node with the highest predicted speed, beside its present replicas.
    Fastest,
}

/// Limit for the uneven spread of replicas. Semantics of Kubernetes topology spread constraints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// Node label whose values are the domains. With `kubernetes.io/hostname`, every node is a
    /// domain.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// Maximum difference between a domain's replica count and the smallest count of all domains.
    #[serde(default = "default_max_skew")]
    #[schemars(range(min = 1))]
    pub max_skew: i32,
    /// Action if the limit cannot be met.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

fn default_max_skew() -> i32 {
    1
}

/// Action if a spread limit cannot be met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// The replica stays unscheduled.
    #[default]
    DoNotSchedule,
    /// The scheduler prefers nodes that exceed the limit least.
    ScheduleAnyway,
}

/// Rule for replicas of a deployment on the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AntiAffinity {
    /// Replicas share a node only if no other node has room.
    Preferred,
    /// Replicas never share a node. Replicas without a node stay Pending.
    Required,
    /// Replicas may share nodes.
    Ignored,
}

/// Toleration of a taint. Semantics of Kubernetes tolerations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')").message("effect must be 'NoExecute' when tolerationSeconds is set").field_path(".effect"))]
#[x_kube(validation = Rule::new("self.operator == 'Exists' || (has(self.key) && optional.ofNonZeroValue(self.key).hasValue())").message("operator must be Exists when `key` is empty, which means \"match all values and all keys\"").field_path(".operator"))]
#[x_kube(validation = Rule::new("self.operator != 'Exists' || !has(self.value) || !optional.ofNonZeroValue(self.value).hasValue()").message("value must be empty when `operator` is 'Exists'").field_path(".operator"))]
pub struct Toleration {
    /// Key of the taint. Empty with operator Exists matches every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Equal (default) compares the value; Exists ignores it.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// Value of the taint, for operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint. If unset, all effects match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// For effect NoExecute, seconds that a replica stays on a node after the taint was added. If
    /// unset, the replica stays; 0 or less evicts it immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// Comparison of a toleration with a taint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

/// Effect of a taint on replicas without a matching toleration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new replica is scheduled on the node.
    NoSchedule,
    /// The node is used only if no other node fits.
    PreferNoSchedule,
    /// In addition, existing replicas are evicted.
    NoExecute,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_and_print_round_trip() {
        for text in [
            "local://guide",
            "local://Qwen3-8B_4bit.v2",
            "file:///models/a b",
            "hf://mlx-community/Qwen3-8B-4bit",
            "hf://a/b@refs/pr/1",
        ] {
            assert_eq!(text.parse::<ModelSource>().expect(text).to_string(), text);
        }
        for bad in [
            "guide",
            "local://",
            "local://../x",
            "local://a/b",
            "file://x",
            "file:///",
            "hf://a",
            "hf://a/b/c",
            "hf://a/..",
            "hf://a/b@",
            "hf://a/b@../c",
            "local://.git",
        ] {
            assert!(bad.parse::<ModelSource>().is_err(), "{bad}");
        }
    }

    #[test]
    fn disk_size_beyond_u64_is_not_the_default() {
        let bytes = |size: &str| {
            let disk_size = Some(size.to_owned());
            let spec = KvCacheSpec {
                disk_size,
                bits: None,
            };
            spec.disk_bytes()
        };
        assert_eq!(bytes("16Gi"), Some(Bytes::gib(16)));
        assert_eq!(bytes("99999999999Ti"), Some(Bytes(u64::MAX)));
        assert_eq!(KvCacheSpec::default().disk_bytes(), None);
    }
}

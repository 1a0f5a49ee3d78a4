//! What deployments, revisions and replicas say alike about a model: source, serving, objectives, placement.

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

/// Streams a replica serves at once when nothing else is asked for.
pub const DEFAULT_MAX_CONCURRENCY: u32 = 4;

/// Requests that wait for each that is answered at the same time, where nothing else is said: whoever comes last waits for
/// about as many answers, which is as long as clients wait.
pub const DEFAULT_QUEUED_PER_STREAM: u32 = 8;
/// The longest context that is reserved when nothing else is asked for, in tokens.
pub const DEFAULT_CONTEXT_TOKENS: u32 = 32_768;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.revision) || self.source.startsWith('hf://')").message("only models of a hub (source: hf://OWNER/NAME) have revisions; leave it out").field_path(".revision"))]
pub struct ModelSpec {
    /// Where the model's files are: `hf://OWNER/NAME` is a repository of the hub, which nodes download;
    /// `local://NAME` the directory NAME under the agent's `--model-dir`; `file:///ABSOLUTE/PATH` a directory on the
    /// node. It holds `config.json`, `tokenizer.json` and `*.safetensors` as published for MLX.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new(r"self.matches('^hf://[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*$') || self.matches('^local://[A-Za-z0-9][A-Za-z0-9._-]*$') || self.matches('^file:///.+')").message("must be hf://OWNER/NAME (a revision goes into spec.model.revision), local://NAME (a directory under the agent's --model-dir) or file:///ABSOLUTE/PATH; other sources are not served by this version"))]
    pub source: String,
    /// Of a model of a hub: its branch, tag or commit. A ModelRevision has the commit that it was then. Default: main.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub revision: Option<String>,
}

impl ModelSpec {
    /// The source with its revision.
    ///
    /// # Errors
    /// The text is no source.
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

    /// The reverse of [`ModelSpec::text`].
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

    /// Source and revision in one text, as [`ModelSource`] is written.
    pub fn text(&self) -> String {
        self.parse()
            .map_or_else(|_| self.source.clone(), |source| source.to_string())
    }
}

/// What a model of a hub is, as its repository told before anything was downloaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArtifactSpec {
    /// Bytes of its files, which a node that has none of them downloads.
    pub download_bytes: u64,
    /// What memory and speed follow from, and the name by which nodes list it.
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
    /// How FleetNodes name it among their models; `None`: only its agent sees what is there.
    pub fn listed_as(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Local(name) => Some(name.into()),
            Self::File(_) => None,
            Self::Hub(model) => Some(model.to_string().into()),
        }
    }
}

/// A model in a repository of a hub: `hf://OWNER/NAME`, or `hf://OWNER/NAME@REVISION`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubModel {
    pub owner: String,
    pub name: String,
    /// A branch, a tag or a commit; `None`: `main`.
    pub revision: Option<String>,
}

/// How sources of hubs begin.
const HUB_SCHEME: &str = "hf://";

/// Why a text names no model of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseHubModelError {
    #[error("a model on the hub is hf://OWNER/NAME or hf://OWNER/NAME@REVISION")]
    Form,
    #[error("after @ a branch, a tag or a commit is expected")]
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

/// Why a text is not a model source.
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

/// How the model is offered to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingSpec {
    /// The name clients put into `model`. Default: the deployment's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Tokens of prompt and answer together that one request may have; a longer request is refused, never cut.
    /// Default: the model's own maximum, at most 32768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context_tokens: Option<u32>,
    /// Requests served at the same time by one replica; memory for all of them at full context is reserved.
    #[serde(default = "default_max_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrency: u32,
    /// How the keys and values of tokens are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheSpec>,
    /// The most tokens that are guessed ahead from what followed the same tokens earlier in a text, to be checked in one
    /// pass: faster for answers that repeat their prompt, the same tokens in any case. Only while a replica answers one
    /// request alone, and not for models with sliding windows or recurrent states. Default: none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub prompt_lookup_tokens: Option<u32>,
}

/// Keys and values of tokens that were computed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvCacheSpec {
    /// Bits of one element: 8 and 4 take about a half and a third of the memory of 16, so that more and longer requests
    /// fit, at some loss of precision. Not for models with sliding windows or attention sinks. Default: 16, or whatever
    /// the model is computed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [4, 8, 16]))]
    pub bits: Option<u32>,
    /// The most that each replica stores of them on its node's disk, such as 16Gi, so that a worker that takes another's
    /// place finds them again. It is promised: a replica goes where its node has so much. "0" stores nothing: tokens of
    /// prompts are in the files. Default: a tenth of what is free there and promised to no replica, at most 8Gi; nothing where
    /// that is less than 20Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub disk_size: Option<String>,
}

impl KvCacheSpec {
    /// What each replica may store, where that is said.
    pub fn disk_bytes(&self) -> Option<Bytes> {
        match quantity::parse_bytes(self.disk_size.as_deref()?) {
            Ok(bytes) => Some(bytes),
            // No node has so much, and the scheduler says so.
            Err(ParseQuantityError::TooLarge(_)) => Some(Bytes(u64::MAX)),
            // The schema lets only quantities through.
            Err(ParseQuantityError::Malformed(_) | ParseQuantityError::Negative(_)) => None,
        }
    }
}

fn default_max_concurrency() -> u32 {
    DEFAULT_MAX_CONCURRENCY
}

/// The same as an empty object: it is the schema's default of `spec.serving`.
impl Default for ServingSpec {
    fn default() -> Self {
        Self {
            name: None,
            context_tokens: None,
            max_concurrency: default_max_concurrency(),
            kv_cache: None,
            prompt_lookup_tokens: None,
        }
    }
}

/// Speed that is held on to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectivesSpec {
    /// Tokens per second each stream should get while it is being answered. Compared with what the replicas measure;
    /// the condition ObjectivesMet tells the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub decode_tokens_per_second: Option<f64>,
    /// How long a client may wait for the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<TimeToFirstTokenObjective>,
}

impl ObjectivesSpec {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A bound on the time to the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.max.matches('[1-9]')").message("must be above 0").field_path(".max"))]
pub struct TimeToFirstTokenObjective {
    /// The longest wait, above 0, as a Go-style duration such as `3s` or `1m30s`.
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    pub max: String,
    /// The length of the prompt, in tokens, for which the bound holds: at most `contextTokens`, where that is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub at_prompt_tokens: Option<u32>,
}

/// Which nodes may serve the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSpec {
    /// Labels a FleetNode must carry, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that do not keep the model away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// What makes one node better than another of those that can serve it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strategy: PlacementStrategy,
    /// How evenly the deployment's replicas are spread over zones, racks or whatever a label of the nodes names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<TopologySpread>,
    /// Whether replicas of the deployment keep off one another's nodes. Default: Preferred; with strategy BinPack:
    /// Ignored.
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

/// What makes one node better than another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlacementStrategy {
    /// What leaves most room between objectives and predicted speed, for all replicas on the node; then a node that
    /// holds the model in memory; then the smallest room that fits.
    #[default]
    SloSlack,
    /// As few nodes as possible.
    BinPack,
    /// The node that is used least.
    Spread,
    /// The node that is predicted to answer fastest, with what runs there.
    Fastest,
}

/// A bound on how unevenly replicas may be spread; Kubernetes' own rules for topology spread constraints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// The label of nodes whose values are the domains. `kubernetes.io/hostname` is every node for itself.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// How many replicas a domain may have more than the one with the fewest.
    #[serde(default = "default_max_skew")]
    #[schemars(range(min = 1))]
    pub max_skew: i32,
    /// What happens where that cannot be kept.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

fn default_max_skew() -> i32 {
    1
}

/// How much a bound binds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// The replica waits.
    #[default]
    DoNotSchedule,
    /// The replica is placed where the bound is exceeded least.
    ScheduleAnyway,
}

/// Whether replicas of one deployment keep off one another's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AntiAffinity {
    /// They share a node only where no other one has room.
    Preferred,
    /// They never share a node; what finds none waits.
    Required,
    /// They share nodes freely.
    Ignored,
}

/// A taint that does not matter to this model; Kubernetes' own rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')").message("effect must be 'NoExecute' when tolerationSeconds is set").field_path(".effect"))]
#[x_kube(validation = Rule::new("self.operator == 'Exists' || (has(self.key) && optional.ofNonZeroValue(self.key).hasValue())").message("operator must be Exists when `key` is empty, which means \"match all values and all keys\"").field_path(".operator"))]
#[x_kube(validation = Rule::new("self.operator != 'Exists' || !has(self.value) || !optional.ofNonZeroValue(self.value).hasValue()").message("value must be empty when `operator` is 'Exists'").field_path(".operator"))]
pub struct Toleration {
    /// The taint's key. Empty with operator Exists: every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Equal (default) compares the value, Exists does not.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The taint's value, for Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The taint's effect. Absent: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a replica stays on a node after the taint has come, for effect NoExecute. Absent: for good; 0 or less:
    /// not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

/// What a taint does to models that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No new replica is placed on the node.
    NoSchedule,
    /// The node is taken only when no other fits.
    PreferNoSchedule,
    /// Replicas already there leave as well.
    NoExecute,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_parse_and_print() {
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
    fn more_than_can_be_counted_is_not_taken_for_the_default() {
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

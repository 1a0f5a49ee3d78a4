//! Paths and operations of a resource: one operation per verb with parameters, body and responses.

use serde_json::{Map, Value, json};

use super::{META, Names, ResourceInfo, SCALE, SchemaSource, reference};
use crate::verb::Verb;

/// Query parameter: name, JSON type, description.
type Parameter = (&'static str, &'static str, &'static str);

const PRETTY: Parameter = (
    "pretty",
    "string",
    "If 'true', then the output is pretty printed.",
);
const DRY_RUN: Parameter = (
    "dryRun",
    "string",
    "When present, indicates that modifications should not be persisted. The only valid value is All: all admission and validation steps run, but nothing is stored.",
);
const FIELD_MANAGER: Parameter = (
    "fieldManager",
    "string",
    "A name for the actor or entity that is making these changes, at most 128 printable characters.",
);
const FIELD_VALIDATION: Parameter = (
    "fieldValidation",
    "string",
    "How to treat unknown or duplicate fields: Ignore drops them silently, Warn drops them with a warning, Strict fails the request.",
);
const FORCE: Parameter = (
    "force",
    "boolean",
    "Force is going to \"force\" Apply requests. It means the user will re-acquire conflicting fields owned by other people. It must be unset for non-apply patch requests.",
);
const WATCH: Parameter = (
    "watch",
    "boolean",
    "Watch for changes to the described resources and return them as a stream of add, update, and remove notifications. Specify resourceVersion.",
);

const LIST: [Parameter; 9] = [
    (
        "allowWatchBookmarks",
        "boolean",
        "Requests watch events with type BOOKMARK.",
    ),
    (
        "continue",
        "string",
        "Token of the previous page, to retrieve the next page of a limited list.",
    ),
    (
        "fieldSelector",
        "string",
        "Restricts the objects by their fields. Defaults to everything.",
    ),
    (
        "labelSelector",
        "string",
        "Restricts the objects by their labels. Defaults to everything.",
    ),
    (
        "limit",
        "integer",
        "Maximum number of objects in a page. metadata.continue of the response is the token of the next page.",
    ),
    (
        "resourceVersion",
        "string",
        "Constrains which resource versions a request may be served from.",
    ),
    (
        "resourceVersionMatch",
        "string",
        "Interpretation of resourceVersion for lists: Exact or NotOlderThan.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Starts a watch with events for all existing objects, followed by a bookmark.",
    ),
    (
        "timeoutSeconds",
        "integer",
        "Limits the duration of the call, regardless of any activity or inactivity.",
    ),
];

const DELETE: [Parameter; 4] = [
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "The duration in seconds before the object should be deleted. Zero means delete immediately.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy. If true, dependents are orphaned.",
    ),
    (
        "propagationPolicy",
        "string",
        "Whether and how garbage collection will be performed: Orphan, Background or Foreground.",
    ),
];

const JSON_AND_YAML: [&str; 2] = ["application/json", "application/yaml"];
/// Media types of built-in kinds.
pub(super) const BUILT_IN_TYPES: [&str; 3] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
];

/// Target of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Collection across all namespaces.
    All,
    Collection,
    Object,
    Status,
    Scale,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    List,
    Create,
    DeleteCollection,
    Get,
    Replace,
    Delete,
    Patch,
}

impl Action {
    /// Returns the discovery verb of the action.
    fn verb(self) -> Verb {
        match self {
            Self::List => Verb::List,
            Self::Create => Verb::Create,
            Self::DeleteCollection => Verb::DeleteCollection,
            Self::Get => Verb::Get,
            Self::Replace => Verb::Update,
            Self::Delete => Verb::Delete,
            Self::Patch => Verb::Patch,
        }
    }

    fn method(self) -> &'static str {
        match self {
            Self::List | Self::Get => "get",
            Self::Create => "post",
            Self::DeleteCollection | Self::Delete => "delete",
            Self::Replace => "put",
            Self::Patch => "patch",
        }
    }

    /// Returns the value of `x-kubernetes-action`.
    fn marker(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Create => "post",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::Replace => "put",
            Self::Delete => "delete",
            Self::Patch => "patch",
        }
    }

    /// Returns the first word of operation ids and descriptions.
    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Create => "create",
            Self::DeleteCollection | Self::Delete => "delete",
            Self::Get => "read",
            Self::Replace => "replace",
            Self::Patch => "patch",
        }
    }

    fn parameters(self) -> Vec<Parameter> {
        match self {
            Self::List => LIST.into_iter().chain([WATCH]).collect(),
            Self::Create | Self::Replace => vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
            Self::DeleteCollection => LIST.into_iter().chain(DELETE).collect(),
            Self::Get => vec![LIST[5]],
            Self::Delete => DELETE.to_vec(),
            Self::Patch => vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE],
        }
    }
}

const COLLECTION: [Action; 3] = [Action::List, Action::Create, Action::DeleteCollection];
const OBJECT: [Action; 4] = [Action::Get, Action::Replace, Action::Delete, Action::Patch];
const SUBRESOURCE: [Action; 3] = [Action::Get, Action::Replace, Action::Patch];

/// Values shared by all operations of a resource.
struct Context<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a ResourceInfo<'a>,
    names: &'a Names,
}

pub(super) fn add_paths(
    paths: &mut Map<String, Value>,
    group: &str,
    version: &str,
    resource: &ResourceInfo<'_>,
    names: &Names,
) {
    let context = Context {
        group,
        version,
        resource,
        names,
    };
    let root = if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    };
    let plural = resource.plural;
    let scoped = if resource.namespaced {
        format!("{root}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{root}/{plural}")
    };
    let mut add = |path: String, target: Target, actions: &[Action]| {
        let item = context.path_item(target, actions);
        if item.len() > 1 {
            paths.insert(path, Value::Object(item));
        }
    };
    if resource.namespaced {
        add(format!("{root}/{plural}"), Target::All, &[Action::List]);
    }
    add(scoped.clone(), Target::Collection, &COLLECTION);
    add(format!("{scoped}/{{name}}"), Target::Object, &OBJECT);
    if resource.has_status {
        add(format!("{scoped}/{{name}}/status"), Target::Status, &SUBRESOURCE);
    }
    if resource.has_scale {
        add(format!("{scoped}/{{name}}/scale"), Target::Scale, &SUBRESOURCE);
    }
}

impl Context<'_> {
    fn path_item(&self, target: Target, actions: &[Action]) -> Map<String, Value> {
        let mut shared = Vec::new();
        if matches!(target, Target::Object | Target::Status | Target::Scale) {
            shared.push(path_parameter(
                "name",
                &format!("name of the {}", self.resource.kind),
            ));
        }
        if self.resource.namespaced && target != Target::All {
            shared.push(path_parameter(
                "namespace",
                "object name and auth scope, such as for teams and projects",
            ));
        }
        shared.push(query_parameter(PRETTY));
        let mut item = Map::from_iter([("parameters".to_owned(), Value::from(shared))]);
        for action in actions
            .iter()
            .filter(|action| self.resource.verbs.contains(&action.verb()))
        {
            item.insert(action.method().to_owned(), self.operation(target, *action));
        }
        item
    }

    fn operation(&self, target: Target, action: Action) -> Value {
        let (kind, marker) = match target {
            Target::Scale => (
                SCALE.to_owned(),
                json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            ),
            Target::All | Target::Collection | Target::Object | Target::Status => (
                self.names.kind.clone(),
                json!({"group": self.group, "version": self.version, "kind": self.resource.kind}),
            ),
        };
        let response = match action {
            Action::List => self.names.list.clone(),
            Action::DeleteCollection | Action::Delete => format!("{META}.Status"),
            Action::Create | Action::Get | Action::Replace | Action::Patch => kind.clone(),
        };
        let mut operation = json!({
            "tags": [format!("{}_{}", group_tag(self.group), self.version)],
            "description": self.description(target, action),
            "operationId": self.operation_id(target, action),
            "parameters": action.parameters().into_iter().map(query_parameter).collect::<Vec<_>>(),
            "responses": responses(action, &response, self.media_types()),
            "x-kubernetes-action": action.marker(),
            "x-kubernetes-group-version-kind": marker,
        });
        let body = match action {
            Action::Create | Action::Replace => Some((kind, true, self.media_types().to_vec())),
            Action::Patch => Some((format!("{META}.Patch"), true, self.patch_types())),
            Action::Delete | Action::DeleteCollection => {
                let types = self.media_types().to_vec();
                Some((format!("{META}.DeleteOptions"), false, types))
            }
            Action::List | Action::Get => None,
        };
        if let (Some((schema, required, types)), Value::Object(operation)) = (body, &mut operation) {
            let mut body = json!({"content": content(&schema, &types)});
            if required {
                body["required"] = Value::Bool(true);
            }
            operation.insert("requestBody".to_owned(), body);
        }
        operation
    }

    fn patch_types(&self) -> Vec<&'static str> {
        let mut types = vec!["application/json-patch+json", "application/merge-patch+json"];
        if matches!(self.resource.schema, SchemaSource::BuiltIn) {
            types.push("application/strategic-merge-patch+json");
        }
        types.push("application/apply-patch+yaml");
        types
    }

    fn media_types(&self) -> &'static [&'static str] {
        match self.resource.schema {
            SchemaSource::Custom(_) => &JSON_AND_YAML,
            SchemaSource::BuiltIn => &BUILT_IN_TYPES,
        }
    }

    fn operation_id(&self, target: Target, action: Action) -> String {
        let group_version = format!(
            "{}{}",
            capitalised(&group_tag(self.group)),
            capitalised(self.version)
        );
        let collection = if action == Action::DeleteCollection {
            "Collection"
        } else {
            ""
        };
        let namespaced = if self.resource.namespaced && target != Target::All {
            "Namespaced"
        } else {
            ""
        };
        let tail = match target {
            Target::All => "ForAllNamespaces",
            Target::Collection | Target::Object => "",
            Target::Status => "Status",
            Target::Scale => "Scale",
        };
        format!(
            "{}{group_version}{collection}{namespaced}{}{tail}",
            action.word(),
            self.resource.kind
        )
    }

    fn description(&self, target: Target, action: Action) -> String {
        let kind = self.resource.kind;
        let part = match target {
            Target::All | Target::Collection | Target::Object => "",
            Target::Status => " status of",
            Target::Scale => " scale of",
        };
        let article = if kind.starts_with(['A', 'E', 'I', 'O', 'U']) {
            "an"
        } else {
            "a"
        };
        match action {
            Action::List => format!("list objects of kind {kind}"),
            Action::Create => format!("create {article} {kind}"),
            Action::DeleteCollection => format!("delete collection of {kind}"),
            Action::Get => format!("read{part} the specified {kind}"),
            Action::Replace => format!("replace{part} the specified {kind}"),
            Action::Delete => format!("delete {article} {kind}"),
            Action::Patch => format!("partially update{part} the specified {kind}"),
        }
    }
}

/// Returns the group in camel case, without the suffix `.k8s.io`.
pub(super) fn group_tag(group: &str) -> String {
    if group.is_empty() {
        return "core".to_owned();
    }
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let mut words = group.split(['.', '-']);
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |tag, word| tag + &capitalised(word))
}

pub(super) fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

fn path_parameter(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "description": description, "required": true,
        "schema": {"type": "string", "uniqueItems": true}})
}

fn query_parameter((name, kind, description): Parameter) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": true}})
}

pub(super) fn content(schema: &str, types: &[&str]) -> Map<String, Value> {
    types
        .iter()
        .map(|kind| ((*kind).to_owned(), json!({"schema": reference(schema)})))
        .collect()
}

fn responses(action: Action, schema: &str, types: &[&str]) -> Value {
    let codes: &[(&str, &str)] = match action {
        Action::Create => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
        Action::Replace | Action::Patch => &[("200", "OK"), ("201", "Created")],
        Action::Delete => &[("200", "OK"), ("202", "Accepted")],
        Action::List | Action::DeleteCollection | Action::Get => &[("200", "OK")],
    };
    let mut responses: Map<String, Value> = codes
        .iter()
        .map(|(code, words)| {
            (
                (*code).to_owned(),
                json!({"description": words, "content": content(schema, types)}),
            )
        })
        .collect();
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    Value::Object(responses)
}

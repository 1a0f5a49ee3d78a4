//! References between schemas. `$id`, `$anchor` and dynamic references become references to JSON
//! pointers of the same document.

use std::collections::HashMap;

use super::schema::SchemaError;
use rooflet_inference_api::openai::json::{Json, Members};

/// Maximum depth of nested schemas. The compiler of grammars has the same limit.
const MAX_DEPTH: usize = 200;

/// Keywords whose value is one schema.
const ONE: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LISTS: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value has a schema for each name.
const MAPS: &[&str] = &[
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
];

/// Returns the schema with references that are JSON pointers, and checks each `pattern`. References
/// to unknown documents remain.
pub(super) fn with_local_references(schema: &Json) -> Result<Json, SchemaError> {
    let mut schema = schema.clone();
    let mut targets = Targets::default();
    targets.resources.insert(String::new(), String::new());
    let mut failed = None;
    let draft = schema.get("$schema").and_then(Json::as_str);
    // Up to draft 7, `$ref` replaces the other keywords.
    let is_draft_7 = draft.is_some_and(|draft| draft.contains("draft-0"));
    let is_known_draft = draft.is_some();
    let mut collect = |members: &mut Members, base: &str, at: &str| {
        targets.collect(members, base, at);
        let id = members.get("$id").and_then(Json::as_str);
        let moves = id.is_some_and(|id| !id.starts_with('#')) && !at.is_empty();
        if moves && members.get("$ref").is_some() && !is_known_draft && failed.is_none() {
            failed = Some(SchemaError::UnsupportedCombination {
                at: format!("#{at}"),
                keyword: "$id",
                others: "'$ref' in a schema without '$schema'",
            });
        }
        if members
            .get("pattern")
            .is_some_and(|pattern| pattern.as_str().is_none())
            && failed.is_none()
        {
            failed = Some(SchemaError::Invalid {
                at: format!("#{at}"),
                keyword: "pattern",
                expected: "a string",
            });
        }
    };
    visit(&mut schema, ("", ""), is_draft_7, 0, &mut collect);
    if let Some(err) = failed {
        return Err(err);
    }
    visit(&mut schema, ("", ""), is_draft_7, 0, &mut |members, base, _| {
        targets.rewrite(members, base);
    });
    Ok(schema)
}

/// Locations of identifiers in a document, as JSON pointers.
#[derive(Default)]
struct Targets {
    /// Pointers by the URI of the schema resource.
    resources: HashMap<String, String>,
    /// Pointers by URI and anchor.
    anchors: HashMap<(String, String), String>,
    /// Number of dynamic anchors by name.
    dynamic: HashMap<String, usize>,
}

impl Targets {
    fn collect(&mut self, members: &Members, base: &str, at: &str) {
        let text = |keyword: &str| members.get(keyword).and_then(Json::as_str);
        let id = text("$id");
        if id.is_some_and(|id| !id.starts_with('#')) {
            self.resources
                .entry(base.to_owned())
                .or_insert_with(|| at.to_owned());
        }
        let old = id.and_then(|id| id.strip_prefix('#'));
        if let Some(name) = text("$dynamicAnchor") {
            *self.dynamic.entry(name.to_owned()).or_default() += 1;
        }
        for name in [old, text("$anchor"), text("$dynamicAnchor")]
            .into_iter()
            .flatten()
        {
            self.anchors
                .insert((base.to_owned(), name.to_owned()), at.to_owned());
        }
    }

    fn rewrite(&self, members: &mut Members, base: &str) {
        let text =
            |members: &Members, keyword: &str| members.get(keyword).and_then(Json::as_str).map(str::to_owned);
        if let Some(target) = text(members, "$ref").and_then(|target| self.pointer(&target, base)) {
            members.insert("$ref", Json::String(target));
        }
        let is_single = |target: &str| {
            let anchor = target.split_once('#').map(|(_, anchor)| anchor);
            anchor.is_none_or(|anchor| self.dynamic.get(anchor).is_none_or(|count| *count == 1))
        };
        let dynamic = text(members, "$dynamicRef").filter(|target| is_single(target));
        if let Some(target) = dynamic.and_then(|target| self.pointer(&target, base)) {
            members.remove("$dynamicRef");
            add_reference(members, target);
        }
        // Only another resource could redirect the reference.
        if text(members, "$recursiveRef").is_some_and(|target| target == "#") && self.resources.len() <= 2 {
            members.remove("$recursiveRef");
            add_reference(members, "#".to_owned());
        }
    }

    /// Returns the pointer of a reference, if its target is in this document.
    fn pointer(&self, target: &str, base: &str) -> Option<String> {
        let (uri, fragment) = target.split_once('#').unwrap_or((target, ""));
        let uri = joined(base, uri);
        if fragment.is_empty() || fragment.starts_with('/') {
            let resource = self.resources.get(&uri)?;
            return Some(format!("#{resource}{fragment}"));
        }
        let anchor = self.anchors.get(&(uri, fragment.to_owned()))?;
        Some(format!("#{anchor}"))
    }
}

/// Adds a reference next to a possible other one.
fn add_reference(members: &mut Members, target: String) {
    let reference = Json::Object(Members::new([("$ref", Json::String(target))]));
    match members.get_mut("allOf") {
        Some(Json::Array(schemas)) => schemas.push(reference),
        _ => members.insert("allOf", Json::Array(vec![reference])),
    }
}

/// Calls `apply` for each schema with the URI of its resource and its JSON pointer.
fn visit(
    schema: &mut Json,
    (base, at): (&str, &str),
    is_draft_7: bool,
    depth: usize,
    apply: &mut dyn FnMut(&mut Members, &str, &str),
) {
    let Json::Object(members) = schema else { return };
    if depth == MAX_DEPTH {
        return;
    }
    // In draft 7, `$ref` replaces all other keywords.
    let id = members.get("$id").and_then(Json::as_str);
    let id = id.filter(|id| !(id.starts_with('#') || is_draft_7 && members.get("$ref").is_some()));
    let base = match id {
        Some(id) => joined(base, id.trim_end_matches('#')),
        None => base.to_owned(),
    };
    for (keyword, value) in members.iter_mut() {
        let below = format!("{at}/{keyword}");
        match value {
            Json::Object(inner) if MAPS.contains(&keyword) => {
                for (name, schema) in inner.iter_mut() {
                    let at = format!("{below}/{}", pointer_part(name));
                    visit(schema, (&base, &at), is_draft_7, depth + 1, apply);
                }
            }
            Json::Array(items) if LISTS.contains(&keyword) => {
                for (index, schema) in items.iter_mut().enumerate() {
                    let at = format!("{below}/{index}");
                    visit(schema, (&base, &at), is_draft_7, depth + 1, apply);
                }
            }
            schema if ONE.contains(&keyword) => visit(schema, (&base, &below), is_draft_7, depth + 1, apply),
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::String(_)
            | Json::Array(_)
            | Json::Object(_) => {}
        }
    }
    apply(members, &base, at);
}

/// Returns a name as a part of a JSON pointer in a URI fragment.
fn pointer_part(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1").replace('%', "%25")
}

/// Resolves a URI reference without a fragment (RFC 3986, section 5).
fn joined(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.to_owned();
    }
    if scheme_end(reference).is_some() {
        return reference.to_owned();
    }
    let start = scheme_end(base).unwrap_or(0);
    let authority = match base[start..].strip_prefix("//") {
        Some(rest) => start + 2 + rest.find('/').unwrap_or(rest.len()),
        None => start,
    };
    if reference.starts_with("//") {
        return format!("{}{reference}", &base[..start]);
    }
    let directory = match reference.starts_with('/') {
        true => "",
        false => base[authority..]
            .rfind('/')
            .map_or("", |slash| &base[authority..=authority + slash]),
    };
    let path = format!("{directory}{reference}");
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts.len() > 1 => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let slash = if authority > start && !path.starts_with('/') {
        "/"
    } else {
        ""
    };
    format!("{}{slash}{}", &base[..authority], parts.join("/"))
}

/// Returns the length of the scheme with its colon.
fn scheme_end(uri: &str) -> Option<usize> {
    let colon = uri.find(':')?;
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let scheme = &uri[..colon];
    (scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_scheme))
        .then_some(colon + 1)
}

//! Functions in namespaces. The model receives one list, in which the namespace is a prefix of the
//! function's name.

use std::collections::BTreeMap;

use crate::openai::ApiError;
use crate::openai::json::Json;
use crate::openai::tools;

const BETWEEN: &str = "__";

/// Returns the model's name for a function.
pub(super) fn qualified_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}{BETWEEN}{name}"),
        None => name.to_owned(),
    }
}

/// Namespace and function of each name that the model uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces(BTreeMap<String, (String, String)>);

impl Namespaces {
    /// Returns namespace and function name of the model's name.
    pub fn split(&self, function: &str) -> (Option<String>, String) {
        match self.0.get(function) {
            Some((namespace, name)) => (Some(namespace.clone()), name.clone()),
            None => (None, function.to_owned()),
        }
    }
}

/// Parameter `tools` as one list of functions, in the form of chat templates.
#[derive(Debug, Default)]
pub(super) struct ToolList {
    pub(super) functions: Vec<Json>,
    /// Path of each function in the request.
    pub(super) paths: Vec<String>,
    pub(super) namespaces: Namespaces,
}

impl ToolList {
    pub(super) fn new(tools: &[Json]) -> Result<Self, ApiError> {
        let mut listed = Self::default();
        for (index, tool) in tools.iter().enumerate() {
            let path = format!("tools[{index}]");
            match tool.get("type").and_then(Json::as_str) {
                Some("namespace") => listed.add_namespace(tool, &path)?,
                _ => listed.add(tool, path)?,
            }
        }
        Ok(listed)
    }

    fn add(&mut self, tool: &Json, path: String) -> Result<(), ApiError> {
        let kind = tool.get("type").and_then(Json::as_str);
        if let Some(kind) = kind.filter(|kind| *kind != "function") {
            let param = format!("{path}.type");
            let message = format!(
                "'{param}' is '{kind}': this server supports only functions and namespaces of functions."
            );
            return Err(ApiError::unsupported(&param, message));
        }
        self.functions.push(tools::nested(tool, "parameters"));
        self.paths.push(path);
        Ok(())
    }

    fn add_namespace(&mut self, tool: &Json, path: &str) -> Result<(), ApiError> {
        let invalid = |field: &str, expected: &str| {
            let param = format!("{path}{field}");
            ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
        };
        let namespace = tool
            .get("name")
            .and_then(Json::as_str)
            .filter(|name| !name.is_empty());
        let namespace = namespace.ok_or_else(|| invalid(".name", "the namespace's name"))?;
        let Some(Json::Array(functions)) = tool.get("tools") else {
            return Err(invalid(".tools", "a list of functions"));
        };
        for (index, function) in functions.iter().enumerate() {
            let path = format!("{path}.tools[{index}]");
            let (Some(name), Some(members)) =
                (function.get("name").and_then(Json::as_str), function.as_object())
            else {
                return Err(ApiError::missing(&format!("{path}.name")));
            };
            let full_name = qualified_name(Some(namespace), name);
            let mut members = members.clone();
            members.insert("name", full_name.as_str().into());
            // The namespace's description precedes the description of its first function.
            if index == 0
                && let Some(shared) = tool.get("description").and_then(Json::as_str)
            {
                let own = function.get("description").and_then(Json::as_str);
                let whole = own.map_or_else(|| shared.to_owned(), |own| format!("{shared}\n\n{own}"));
                members.insert("description", whole.as_str().into());
            }
            self.add(&Json::Object(members), path)?;
            let own = (namespace.to_owned(), name.to_owned());
            self.namespaces.0.insert(full_name, own);
        }
        Ok(())
    }

    /// Replaces the path in the list by the path in the request.
    pub(super) fn with_request_path(&self, err: ApiError) -> ApiError {
        let at = |(index, path): (usize, &String)| {
            let own = format!("tools[{index}]");
            let is_there = err.param.as_ref().is_some_and(|param| param.starts_with(&own));
            is_there.then(|| (own, path.clone()))
        };
        match self.paths.iter().enumerate().find_map(at) {
            Some((own, path)) => err.renamed(&[(&own, &path)]),
            None => err,
        }
    }
}

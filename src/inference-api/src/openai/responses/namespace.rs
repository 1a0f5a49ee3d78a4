//! Functions in namespaces: the model sees one list, in which a function's name begins with its
//! namespace's.

use std::collections::BTreeMap;

use crate::openai::ApiError;
use crate::openai::json::Json;
use crate::openai::tools;

const BETWEEN: &str = "__";

/// The model's name for a function.
pub(super) fn joined(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}{BETWEEN}{name}"),
        None => name.to_owned(),
    }
}

/// Which of the names that the model sees are of which namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces(BTreeMap<String, (String, String)>);

impl Namespaces {
    /// Of the model's name: the namespace, and the function's own name.
    pub fn split(&self, function: &str) -> (Option<String>, String) {
        match self.0.get(function) {
            Some((namespace, name)) => (Some(namespace.clone()), name.clone()),
            None => (None, function.to_owned()),
        }
    }
}

/// `tools` of a request as one list of functions, as chat templates know them.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) functions: Vec<Json>,
    /// Where each stands in the request.
    pub(super) places: Vec<String>,
    pub(super) namespaces: Namespaces,
}

impl Listed {
    pub(super) fn new(tools: &[Json]) -> Result<Self, ApiError> {
        let mut listed = Self::default();
        for (index, tool) in tools.iter().enumerate() {
            let place = format!("tools[{index}]");
            match tool.get("type").and_then(Json::as_str) {
                Some("namespace") => listed.add_namespace(tool, &place)?,
                _ => listed.add(tool, place)?,
            }
        }
        Ok(listed)
    }

    fn add(&mut self, tool: &Json, place: String) -> Result<(), ApiError> {
        let kind = tool.get("type").and_then(Json::as_str);
        if let Some(kind) = kind.filter(|kind| *kind != "function") {
            let param = format!("{place}.type");
            let message =
                format!("'{param}' is '{kind}': this server knows only functions, and namespaces of them.");
            return Err(ApiError::unsupported(&param, message));
        }
        self.functions.push(tools::nested(tool, "parameters"));
        self.places.push(place);
        Ok(())
    }

    fn add_namespace(&mut self, tool: &Json, place: &str) -> Result<(), ApiError> {
        let invalid = |field: &str, expected: &str| {
            let param = format!("{place}{field}");
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
            let place = format!("{place}.tools[{index}]");
            let (Some(name), Some(members)) =
                (function.get("name").and_then(Json::as_str), function.as_object())
            else {
                return Err(ApiError::missing(&format!("{place}.name")));
            };
            let known = joined(Some(namespace), name);
            let mut members = members.clone();
            members.insert("name", known.as_str().into());
            // What is said of all of them stands once, before what is said of the first.
            if index == 0
                && let Some(about) = tool.get("description").and_then(Json::as_str)
            {
                let own = function.get("description").and_then(Json::as_str);
                let whole = own.map_or_else(|| about.to_owned(), |own| format!("{about}\n\n{own}"));
                members.insert("description", whole.as_str().into());
            }
            self.add(&Json::Object(members), place)?;
            let own = (namespace.to_owned(), name.to_owned());
            self.namespaces.0.insert(known, own);
        }
        Ok(())
    }

    /// The same error with the place in the request, and not that in the list.
    pub(super) fn placed(&self, err: ApiError) -> ApiError {
        let at = |(index, place): (usize, &String)| {
            let own = format!("tools[{index}]");
            let is_there = err.param.as_ref().is_some_and(|param| param.starts_with(&own));
            is_there.then(|| (own, place.clone()))
        };
        match self.places.iter().enumerate().find_map(at) {
            Some((own, place)) => err.renamed(&[(&own, &place)]),
            None => err,
        }
    }
}

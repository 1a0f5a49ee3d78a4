//! `matchConstraints` of policies and `matchResources` of bindings.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::request::{Operation, Place, Request, Source};
use crate::{items, text, texts};
use rooflet_apimachinery::selector::LabelSelector;

/// Selected requests.
#[derive(Debug, Default)]
pub(crate) struct Match {
    included: Vec<Rule>,
    excluded: Vec<Rule>,
    namespaces: LabelSelector,
    objects: LabelSelector,
    /// True if a rule for one version selects requests for all versions.
    is_equivalent: bool,
}

#[derive(Debug)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    names: BTreeSet<String>,
    scope: String,
}

impl Match {
    pub(crate) fn of(resources: &Value) -> Self {
        let rules = |member: &str| items(resources, member).iter().map(Rule::of).collect();
        // Stored selectors are valid.
        let selector = |member: &str| {
            let selector = resources.get(member).map(LabelSelector::of_object);
            selector.and_then(Result::ok).unwrap_or_default()
        };
        Self {
            included: rules("resourceRules"),
            excluded: rules("excludeResourceRules"),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            is_equivalent: text(resources, "matchPolicy") != "Exact",
        }
    }

    /// Returns the place in whose form a policy receives the request, if the rules select it.
    pub(crate) fn place<'a>(&self, request: &'a Request<'_>, source: &dyn Source) -> Option<&'a Place> {
        let count = if self.is_equivalent {
            request.places.len()
        } else {
            1
        };
        let places = &request.places[..count];
        let is_in = |rules: &[Rule], place: &Place| rules.iter().any(|rule| rule.selects(request, place));
        if places.iter().any(|place| is_in(&self.excluded, place)) {
            return None;
        }
        let selected = match self.included.is_empty() {
            true => places.first(),
            false => places.iter().find(|place| is_in(&self.included, place)),
        }?;
        let selects = self.selects_namespace(request, source) && self.selects_object(request, source);
        selects.then_some(selected)
    }

    fn selects_namespace(&self, request: &Request<'_>, source: &dyn Source) -> bool {
        if self.namespaces.is_empty() {
            return true;
        }
        if request.is_namespace() {
            let is_new = request.operation != Operation::Delete && request.subresource.is_empty();
            let namespace = match is_new {
                true => source.object(request.own()),
                false => source.old_object(request.own()),
            };
            return self.namespaces.matches(&namespace);
        }
        if !request.is_namespaced {
            return true;
        }
        let namespace = source.namespace(request.namespace);
        namespace.is_none_or(|namespace| self.namespaces.matches(&namespace))
    }

    fn selects_object(&self, request: &Request<'_>, source: &dyn Source) -> bool {
        if self.objects.is_empty() {
            return true;
        }
        let own = request.own();
        [source.object(own), source.old_object(own)]
            .iter()
            .any(|object| !object.is_null() && self.objects.matches(object))
    }
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let owned = |member: &str| texts(rule, member).into_iter().map(str::to_owned).collect();
        Self {
            operations: owned("operations"),
            groups: owned("apiGroups"),
            versions: owned("apiVersions"),
            resources: owned("resources"),
            names: texts(rule, "resourceNames")
                .into_iter()
                .map(str::to_owned)
                .collect(),
            scope: text(rule, "scope").to_owned(),
        }
    }

    fn selects(&self, request: &Request<'_>, place: &Place) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
        let in_scope = match self.scope.as_str() {
            "Namespaced" => request.is_namespaced,
            "Cluster" => !request.is_namespaced,
            _ => true,
        };
        in_scope
            && has(&self.operations, request.operation.as_str())
            && has(&self.groups, &place.group)
            && has(&self.versions, &place.version)
            && self.selects_resource(&place.resource, request.subresource)
            && (self.names.is_empty() || self.names.contains(request.name))
    }

    fn selects_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            let (own, sub) = rule.split_once('/').unwrap_or((rule, ""));
            (own == "*" || own == resource) && (sub == "*" || sub == subresource)
        })
    }
}

//! Type checks of validating policies with the schemas of the selected objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::declarations::Typed;
use crate::parameters::ParamKind;
use crate::{items, text, texts};
use rooflet_schema::cel::checker::Decl;

/// Maximum number of kinds of a rule.
const KINDS_MAX: usize = 10;

/// Kind with its group and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// Kinds and schemas of a server.
pub trait Schemas {
    /// Returns the kinds of a resource. An empty group stands for all groups.
    fn kinds(&self, group: &str, version: &str, resource: &str) -> Vec<GroupVersionKind>;
    /// Returns the declaration of a kind, or `None` if the server does not have the kind.
    fn declaration(&self, kind: &GroupVersionKind) -> Option<Arc<Decl>>;
}

/// Returns `expressionWarnings` of the status of a ValidatingAdmissionPolicy.
pub fn expression_warnings(policy: &Value, schemas: &dyn Schemas) -> Vec<Value> {
    let spec = &policy["spec"];
    let kinds = selected_kinds(&spec["matchConstraints"], schemas);
    let declared = kinds.into_iter().filter_map(|kind| {
        let decl = schemas.declaration(&kind)?;
        Some((kind, decl))
    });
    let declared: Vec<(GroupVersionKind, Arc<Decl>)> = declared.collect();
    let param_kind = ParamKind::of(&spec["paramKind"]).map(|kind| {
        let (group, version) = kind.group_version();
        GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.kind.clone(),
        }
    });
    let params = param_kind.as_ref().and_then(|kind| schemas.declaration(kind));
    let check = |source: &str| -> Option<String> {
        let issues = declared.iter().filter_map(|(kind, object)| {
            let typed = Typed {
                object: (&kind.kind, &**object),
                params: param_kind
                    .as_ref()
                    .map(|kind| params.as_deref().map(|params| (kind.kind.as_str(), params))),
            };
            let issues = typed.check(source, items(spec, "variables"))?;
            let GroupVersionKind { group, version, kind } = kind;
            Some(format!("{group}/{version}, Kind={kind}: {issues}\n"))
        });
        let issues: Vec<String> = issues.collect();
        (!issues.is_empty()).then(|| issues.join("\n"))
    };
    let mut warnings = Vec::new();
    for (index, validation) in items(spec, "validations").iter().enumerate() {
        for member in ["expression", "messageExpression"] {
            let source = text(validation, member);
            if member == "messageExpression" && source.is_empty() {
                continue;
            }
            if let Some(warning) = check(source) {
                let field = format!("spec.validations[{index}].{member}");
                warnings.push(json!({"fieldRef": field, "warning": warning}));
            }
        }
    }
    warnings
}

/// Returns the kinds that the rules name. Rules with wildcards name none.
fn selected_kinds(constraints: &Value, schemas: &dyn Schemas) -> BTreeSet<GroupVersionKind> {
    let mut kinds = BTreeSet::new();
    for rule in items(constraints, "resourceRules") {
        let sorted = |member: &str| {
            let mut names = texts(rule, member);
            names.sort_unstable();
            names
        };
        let (groups, versions) = (sorted("apiGroups"), sorted("apiVersions"));
        if groups.iter().chain(&versions).any(|name| name.contains('*')) {
            continue;
        }
        let mut resources = sorted("resources");
        resources.retain(|resource| !resource.contains(['*', '/']));
        let mut count = 0;
        for group in groups {
            for version in &versions {
                for resource in &resources {
                    for kind in schemas.kinds(group, version, resource) {
                        kinds.insert(kind);
                        count += 1;
                        if count == KINDS_MAX {
                            return kinds;
                        }
                    }
                }
            }
        }
    }
    kinds
}

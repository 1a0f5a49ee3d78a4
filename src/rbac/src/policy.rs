//! Roles and bindings, and decisions by them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::rule::{self, Rule};
use crate::{Attributes, GROUP, SERVICE_ACCOUNT_USERS, Target, User, text};

/// Kind of an RBAC object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// Roles and bindings by namespace and name. The namespace of cluster-scoped objects is empty.
#[derive(Debug, Default)]
pub struct Policy {
    pub(crate) roles: BTreeMap<String, BTreeMap<String, Vec<Rule>>>,
    bindings: BTreeMap<String, BTreeMap<String, Binding>>,
}

/// Role that a binding references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRef {
    is_cluster_role: bool,
    name: String,
}

#[derive(Debug)]
struct Binding {
    role: RoleRef,
    subjects: Vec<Subject>,
}

#[derive(Debug)]
struct Subject {
    kind: SubjectKind,
    name: String,
    /// Namespace of a service account; empty for the binding's namespace.
    namespace: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubjectKind {
    User,
    Group,
    ServiceAccount,
}

/// Error of a reference to a role that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRole {
    pub role: RoleRef,
}

/// Rules that apply to a user, and the references that could not be resolved.
#[derive(Debug, Default)]
pub struct HeldRules<'a> {
    pub rules: Vec<&'a Rule>,
    pub missing: Vec<MissingRole>,
}

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluation {
    /// The reason names the binding.
    Allowed(String),
    /// The reason names the roles that could not be resolved. It may be empty.
    NoOpinion(String),
}

impl RoleRef {
    /// Returns the reference of a binding, or `None` for an unsupported kind.
    pub fn of(binding: &Value) -> Option<Self> {
        let is_cluster_role = match text(binding, &["roleRef", "kind"]) {
            "Role" => false,
            "ClusterRole" => true,
            _ => return None,
        };
        Some(Self {
            is_cluster_role,
            name: text(binding, &["roleRef", "name"]).to_owned(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the plural resource of the role.
    pub fn resource(&self) -> &'static str {
        if self.is_cluster_role {
            "clusterroles"
        } else {
            "roles"
        }
    }

    fn kind(&self) -> &'static str {
        if self.is_cluster_role {
            "ClusterRole"
        } else {
            "Role"
        }
    }
}

impl fmt::Display for MissingRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.role.kind().to_lowercase();
        write!(f, "{kind}.{GROUP} {:?} not found", self.role.name)
    }
}

impl Policy {
    /// Sets or removes an object.
    pub fn set(&mut self, kind: Kind, namespace: &str, name: &str, object: Option<&Value>) {
        match kind {
            Kind::Role | Kind::ClusterRole => {
                let rules = object.map(|role| rule::list(&role["rules"]));
                set_in(&mut self.roles, namespace, name, rules);
            }
            Kind::RoleBinding | Kind::ClusterRoleBinding => {
                set_in(&mut self.bindings, namespace, name, object.and_then(Binding::of));
            }
        }
    }

    /// Decides about a request.
    pub fn evaluate(&self, attributes: &Attributes<'_>) -> Evaluation {
        let namespace = match &attributes.target {
            Target::Path(_) => "",
            Target::Resource(resource) => resource.namespace.unwrap_or_default(),
        };
        let mut missing = Vec::new();
        for applied in self.applied(attributes.user, namespace) {
            match self.rules_of(&applied.binding.role, applied.namespace) {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    return Evaluation::Allowed(format!("RBAC: allowed by {applied}"));
                }
                Ok(_) => {}
                Err(err) => missing.push(err.to_string()),
            }
        }
        Evaluation::NoOpinion(match missing.is_empty() {
            true => String::new(),
            false => format!("RBAC: {}", aggregate(missing)),
        })
    }

    /// Returns the rules that apply to the user in a namespace. Without a namespace, returns those
    /// that apply in the whole cluster.
    pub fn held_by(&self, user: &User, namespace: &str) -> HeldRules<'_> {
        let mut held = HeldRules::default();
        for applied in self.applied(user, namespace) {
            match self.rules_of(&applied.binding.role, applied.namespace) {
                Ok(rules) => held.rules.extend(rules),
                Err(err) => held.missing.push(err),
            }
        }
        held
    }

    /// Returns the rules of a role. `namespace` is that of the binding.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<&[Rule], MissingRole> {
        let place = if role.is_cluster_role { "" } else { namespace };
        let found = self.roles.get(place).and_then(|roles| roles.get(&role.name));
        // A Role is always in a namespace.
        let found = found.filter(|_| role.is_cluster_role || !namespace.is_empty());
        found
            .map(Vec::as_slice)
            .ok_or_else(|| MissingRole { role: role.clone() })
    }

    /// Returns the bindings that apply to the user: those of the cluster, then those of the
    /// namespace.
    fn applied<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = Applied<'a>> {
        let places = [
            Some(""),
            Some(namespace).filter(|namespace| !namespace.is_empty()),
        ];
        places.into_iter().flatten().flat_map(move |namespace| {
            let bindings = self.bindings.get(namespace).into_iter().flatten();
            bindings.filter_map(move |(name, binding)| {
                let subject = binding
                    .subjects
                    .iter()
                    .find(|subject| subject.is(user, namespace))?;
                Some(Applied {
                    namespace,
                    name,
                    binding,
                    subject,
                })
            })
        })
    }
}

fn set_in<T>(map: &mut BTreeMap<String, BTreeMap<String, T>>, namespace: &str, name: &str, value: Option<T>) {
    match value {
        Some(value) => {
            let names = map.entry(namespace.to_owned()).or_default();
            names.insert(name.to_owned(), value);
        }
        None => {
            let Some(names) = map.get_mut(namespace) else {
                return;
            };
            names.remove(name);
            if names.is_empty() {
                map.remove(namespace);
            }
        }
    }
}

/// Joins messages like Kubernetes' aggregated errors.
pub fn aggregate(mut messages: Vec<String>) -> String {
    // Each message occurs once.
    let mut seen = std::collections::BTreeSet::new();
    messages.retain(|message| seen.insert(message.clone()));
    match messages.as_slice() {
        [single] => single.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl Binding {
    fn of(binding: &Value) -> Option<Self> {
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        Some(Self {
            role: RoleRef::of(binding)?,
            subjects: subjects.filter_map(Subject::of).collect(),
        })
    }
}

impl Subject {
    /// Returns `None` for an unsupported kind.
    fn of(subject: &Value) -> Option<Self> {
        let kind = match text(subject, &["kind"]) {
            "User" => SubjectKind::User,
            "Group" => SubjectKind::Group,
            "ServiceAccount" => SubjectKind::ServiceAccount,
            _ => return None,
        };
        Some(Self {
            kind,
            name: text(subject, &["name"]).to_owned(),
            namespace: text(subject, &["namespace"]).to_owned(),
        })
    }

    /// Returns true if the subject of a binding in `namespace` is the user.
    fn is(&self, user: &User, namespace: &str) -> bool {
        match self.kind {
            SubjectKind::User => user.name == self.name,
            SubjectKind::Group => user.is_in(&self.name),
            SubjectKind::ServiceAccount => {
                let account = user.name.strip_prefix(SERVICE_ACCOUNT_USERS);
                let account = account.and_then(|account| account.split_once(':'));
                let namespace = self.namespace_in(namespace);
                !namespace.is_empty() && account == Some((namespace, self.name.as_str()))
            }
        }
    }

    fn namespace_in<'a>(&'a self, binding: &'a str) -> &'a str {
        if self.namespace.is_empty() {
            binding
        } else {
            &self.namespace
        }
    }
}

/// Binding that applies to a user. Displayed as in the reasons of kube-apiserver.
struct Applied<'a> {
    namespace: &'a str,
    name: &'a str,
    binding: &'a Binding,
    subject: &'a Subject,
}

impl fmt::Display for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            name,
            binding,
            subject,
        } = self;
        match *namespace {
            "" => write!(f, "ClusterRoleBinding {name:?}")?,
            namespace => write!(f, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        write!(f, " of {} {:?} to ", binding.role.kind(), binding.role.name)?;
        match subject.kind {
            SubjectKind::User => write!(f, "User {:?}", subject.name),
            SubjectKind::Group => write!(f, "Group {:?}", subject.name),
            SubjectKind::ServiceAccount => {
                let full = format!("{}/{}", subject.name, subject.namespace_in(namespace));
                write!(f, "ServiceAccount {full:?}")
            }
        }
    }
}

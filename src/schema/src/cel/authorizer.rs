//! Variable `authorizer`: checks of permissions.

use std::fmt::Debug;
use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel, extractors::This, objects::Opaque,
};

use super::budget;
use crate::names;

/// Variable with the permissions of the user.
pub(super) const AUTHORIZER: &str = "authorizer";
/// Field of the authorizer for the resource of the request.
pub(super) const REQUEST_RESOURCE: &str = "requestResource";
/// Variable for this field.
pub(super) const REQUEST_RESOURCE_VARIABLE: &str = "@authorizer.requestResource";

/// Access that an expression asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Service account that needs access. `None` stands for the user of the request.
    pub account: Option<ServiceAccount>,
    pub verb: String,
    pub target: AccessTarget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// Path that is no resource, such as `/healthz`.
    Path(String),
    Resource(ResourceAccess),
}

/// Resource or object. All members except the name of the resource may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAccess {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Field selector, which may be malformed.
    pub field_selector: String,
}

/// Decision about an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    pub is_allowed: bool,
    /// Reason, which may be empty.
    pub reason: String,
    /// Error of the decision.
    pub error: Option<String>,
}

/// Decides about access.
pub trait Authorizer: Send + Sync + Debug {
    fn decide(&self, access: &Access) -> Permission;
}

/// Returns the value of the variable `authorizer`.
pub(super) fn value(authorizer: &Arc<dyn Authorizer>) -> Cel {
    opaque(Principal {
        authorizer: Arc::clone(authorizer),
        account: None,
    })
}

/// Returns the value of `authorizer.requestResource`.
pub(super) fn resource_value(authorizer: &Arc<dyn Authorizer>, resource: ResourceAccess) -> Cel {
    opaque(ResourceCheck {
        principal: Principal {
            authorizer: Arc::clone(authorizer),
            account: None,
        },
        resource,
    })
}

/// User or service account.
#[derive(Clone, Debug)]
struct Principal {
    authorizer: Arc<dyn Authorizer>,
    account: Option<ServiceAccount>,
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.authorizer, &other.authorizer) && self.account == other.account
    }
}

impl Eq for Principal {}

impl Principal {
    fn check(&self, verb: &str, target: AccessTarget) -> ResolveResult {
        budget::charge(budget::PERMISSION)?;
        let access = Access {
            account: self.account.clone(),
            verb: verb.to_owned(),
            target,
        };
        Ok(opaque(Decision(self.authorizer.decide(&access))))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct PathCheck {
    principal: Principal,
    path: String,
}

#[derive(Debug, PartialEq, Eq)]
struct GroupCheck {
    principal: Principal,
    group: String,
}

#[derive(Debug, PartialEq, Eq)]
struct ResourceCheck {
    principal: Principal,
    resource: ResourceAccess,
}

#[derive(Debug, PartialEq, Eq)]
struct Decision(Permission);

impl Opaque for Principal {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.Authorizer"
    }
}

impl Opaque for PathCheck {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.PathCheck"
    }
}

impl Opaque for GroupCheck {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.GroupCheck"
    }
}

impl Opaque for ResourceCheck {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.ResourceCheck"
    }
}

impl Opaque for Decision {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.Decision"
    }
}

fn opaque(value: impl Opaque) -> Cel {
    Cel::Opaque(Arc::new(value))
}

/// Returns the target of a method.
fn target<T: 'static>(this: &Cel) -> Result<&T, ExecutionError> {
    let Cel::Opaque(value) = this else {
        return Err(ExecutionError::NoSuchOverload);
    };
    value.downcast_ref().ok_or(ExecutionError::NoSuchOverload)
}

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function("path", path);
    context.add_function("group", group);
    context.add_function("serviceAccount", service_account);
    context.add_function("resource", resource);
    context.add_function("subresource", subresource);
    context.add_function("namespace", namespace);
    context.add_function("name", name);
    context.add_function("fieldSelector", field_selector);
    context.add_function("labelSelector", label_selector);
    context.add_function("check", check);
    context.add_function("allowed", allowed);
    context.add_function("reason", reason);
    context.add_function("errored", errored);
    context.add_function("error", error);
}

fn path(This(this): This<Cel>, path: Arc<String>) -> ResolveResult {
    let principal: &Principal = target(&this)?;
    if path.trim().is_empty() {
        return Err(ExecutionError::function_error("path", "path must not be empty"));
    }
    Ok(opaque(PathCheck {
        principal: principal.clone(),
        path: path.to_string(),
    }))
}

fn group(This(this): This<Cel>, group: Arc<String>) -> ResolveResult {
    let principal: &Principal = target(&this)?;
    Ok(opaque(GroupCheck {
        principal: principal.clone(),
        group: group.to_string(),
    }))
}

fn service_account(This(this): This<Cel>, namespace: Arc<String>, name: Arc<String>) -> ResolveResult {
    let principal: &Principal = target(&this)?;
    let invalid = |what: &str| {
        let text = format!("Invalid service account {what}");
        Err(ExecutionError::function_error("serviceAccount", text))
    };
    if !names::dns_subdomain(&name).is_empty() {
        return invalid("name");
    }
    if !names::dns_label(&namespace).is_empty() {
        return invalid("namespace");
    }
    Ok(opaque(Principal {
        authorizer: Arc::clone(&principal.authorizer),
        account: Some(ServiceAccount {
            namespace: namespace.to_string(),
            name: name.to_string(),
        }),
    }))
}

fn resource(This(this): This<Cel>, resource: Arc<String>) -> ResolveResult {
    let GroupCheck { principal, group } = target::<GroupCheck>(&this)?;
    if resource.trim().is_empty() {
        let text = "resource must not be empty";
        return Err(ExecutionError::function_error("resource", text));
    }
    Ok(opaque(ResourceCheck {
        principal: principal.clone(),
        resource: ResourceAccess {
            group: group.clone(),
            resource: resource.to_string(),
            ..ResourceAccess::default()
        },
    }))
}

/// Returns the check with a changed resource.
fn changed(this: &Cel, change: impl FnOnce(&mut ResourceAccess)) -> ResolveResult {
    let ResourceCheck { principal, resource } = target::<ResourceCheck>(this)?;
    let mut resource = resource.clone();
    change(&mut resource);
    Ok(opaque(ResourceCheck {
        principal: principal.clone(),
        resource,
    }))
}

fn subresource(This(this): This<Cel>, text: Arc<String>) -> ResolveResult {
    changed(&this, |resource| resource.subresource = text.to_string())
}

fn namespace(This(this): This<Cel>, text: Arc<String>) -> ResolveResult {
    changed(&this, |resource| resource.namespace = text.to_string())
}

fn name(This(this): This<Cel>, text: Arc<String>) -> ResolveResult {
    changed(&this, |resource| resource.name = text.to_string())
}

fn field_selector(This(this): This<Cel>, text: Arc<String>) -> ResolveResult {
    changed(&this, |resource| resource.field_selector = text.to_string())
}

/// Accepts a label selector. Permissions do not depend on labels.
fn label_selector(This(this): This<Cel>, _: Arc<String>) -> ResolveResult {
    changed(&this, |_| {})
}

fn check(This(this): This<Cel>, verb: Arc<String>) -> ResolveResult {
    if let Ok(ResourceCheck { principal, resource }) = target::<ResourceCheck>(&this) {
        return principal.check(&verb, AccessTarget::Resource(resource.clone()));
    }
    let PathCheck { principal, path } = target::<PathCheck>(&this)?;
    principal.check(&verb, AccessTarget::Path(path.clone()))
}

fn allowed(This(this): This<Cel>) -> ResolveResult {
    let Decision(permission) = target::<Decision>(&this)?;
    Ok(Cel::Bool(permission.is_allowed))
}

fn reason(This(this): This<Cel>) -> ResolveResult {
    let Decision(permission) = target::<Decision>(&this)?;
    Ok(Cel::String(Arc::new(permission.reason.clone())))
}

fn errored(This(this): This<Cel>) -> ResolveResult {
    let Decision(permission) = target::<Decision>(&this)?;
    Ok(Cel::Bool(permission.error.is_some()))
}

fn error(This(this): This<Cel>) -> ResolveResult {
    let Decision(permission) = target::<Decision>(&this)?;
    let error = permission.error.clone().unwrap_or_default();
    Ok(Cel::String(Arc::new(error)))
}

//! Permissions of the user of a request, for the expressions of admission policies.

use std::sync::Arc;

use crate::authentication::User;
use crate::authentication::account_token::service_account;
use crate::authorization::{Attributes, Requestor, ResourceAttributes, Rules, Target, Verdict};
use rooflet_schema::cel::authorizer::{Access, AccessTarget, Authorizer, Permission};

/// User with the rules of the server.
#[derive(Debug)]
pub(super) struct Permissions {
    user: Arc<User>,
    rules: Option<Arc<Rules>>,
}

impl Permissions {
    /// Returns the permissions of a user, or no permissions.
    pub(super) fn of(by: Option<&Requestor>) -> Self {
        Self {
            user: by.map(|by| Arc::clone(&by.user)).unwrap_or_default(),
            rules: by.map(|by| Arc::clone(&by.rules)),
        }
    }
}

impl Authorizer for Permissions {
    fn decide(&self, access: &Access) -> Permission {
        let account = access.account.as_ref();
        let account = account.map(|account| service_account(&account.namespace, &account.name));
        let target = match &access.target {
            AccessTarget::Path(path) => Target::Path(path),
            AccessTarget::Resource(resource) => Target::Resource(ResourceAttributes {
                group: &resource.group,
                version: "*",
                resource: &resource.resource,
                subresource: present(&resource.subresource),
                namespace: present(&resource.namespace),
                name: present(&resource.name),
                field_selector: &resource.field_selector,
            }),
        };
        let verdict = self.rules.as_ref().map(|rules| {
            rules.evaluate(&Attributes {
                user: account.as_ref().unwrap_or(&self.user),
                verb: &access.verb,
                target,
            })
        });
        let (is_allowed, reason) = match verdict {
            Some(Verdict::Allowed(reason)) => (true, reason),
            Some(Verdict::Denied(reason) | Verdict::NoOpinion(reason)) => (false, reason),
            None => (false, String::new()),
        };
        Permission {
            is_allowed,
            reason,
            error: None,
        }
    }
}

fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

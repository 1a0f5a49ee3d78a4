//! Roles and names of the certificates that machines of a fleet present to each other.
//!
//! The subject determines the identity, as for users of the API server: the organization is the
//! role, the common name contains the name. A SPIFFE URI in the certificate must agree with it.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::node::{NODE_USER_PREFIX, NODES_GROUP};
use super::subject::subject;

/// Group of gateways: the organization of a gateway's client certificate.
pub const GATEWAYS_GROUP: &str = "rooflet:gateways";
const GATEWAY_PREFIX: &str = "rooflet:gateway:";
/// Group of controllers: the organization of a controller's client certificate.
pub const CONTROLLERS_GROUP: &str = "rooflet:controllers";
const CONTROLLER_PREFIX: &str = "rooflet:controller:";
/// Group of people who read logs of agents.
const OPERATORS_GROUP: &str = "rooflet:operators";
const OPERATOR_PREFIX: &str = "rooflet:operator:";
/// Kubernetes' group with all permissions.
const ADMINISTRATORS_GROUP: &str = "system:masters";
const URI_SCHEME: &str = "spiffe://";

/// Role of a certificate's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Agent of a node.
    Node,
    Gateway,
    /// Controller of deployments and nodes.
    Controller,
    /// Administrator of the control plane, or a person with a certificate that one approved.
    Operator,
}

impl Role {
    fn label(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Gateway => "gateway",
            Self::Controller => "controller",
            Self::Operator => "operator",
        }
    }
}

/// Role and name of a certificate's owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub role: Role,
    pub name: String,
}

impl Identity {
    pub fn new(role: Role, name: &str) -> Self {
        Self {
            role,
            name: name.to_owned(),
        }
    }

    /// Returns the identity of a subject; `None` if it has no role in the fleet.
    pub fn of_subject(common_name: &str, organizations: &[String]) -> Option<Self> {
        let is_in = |group: &str| organizations.iter().any(|own| own == group);
        if is_in(ADMINISTRATORS_GROUP) {
            return Some(Self::new(Role::Operator, common_name));
        }
        let (role, name) = [
            (Role::Node, NODES_GROUP, NODE_USER_PREFIX),
            (Role::Gateway, GATEWAYS_GROUP, GATEWAY_PREFIX),
            (Role::Controller, CONTROLLERS_GROUP, CONTROLLER_PREFIX),
            (Role::Operator, OPERATORS_GROUP, OPERATOR_PREFIX),
        ]
        .into_iter()
        .find_map(|(role, group, prefix)| {
            let name = common_name.strip_prefix(prefix)?;
            is_in(group).then_some((role, name))
        })?;
        (!name.is_empty()).then(|| Self::new(role, name))
    }

    /// Returns the identity of a certificate. `None` if the certificate has no role in the fleet,
    /// or if one of its SPIFFE URIs names another identity.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let subject = subject(certificate)?;
        let identity = Self::of_subject(&subject.common_name, &subject.organizations)?;
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()?;
        let path = identity.to_string();
        let mut uris = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| {
                let GeneralName::URI(uri) = name else { return None };
                uri.strip_prefix(URI_SCHEME)
            });
        uris.all(|uri| uri.split_once('/').is_some_and(|(_, named)| named == path))
            .then_some(identity)
    }

    /// Returns the SPIFFE URI of the identity in a fleet.
    pub fn uri(&self, fleet: &str) -> String {
        format!("{URI_SCHEME}{fleet}/{self}")
    }

    /// Returns common name and organization of the certificate.
    pub(super) fn subject(&self) -> (String, &'static str) {
        let (prefix, group) = match self.role {
            Role::Node => (NODE_USER_PREFIX, NODES_GROUP),
            Role::Gateway => (GATEWAY_PREFIX, GATEWAYS_GROUP),
            Role::Controller => (CONTROLLER_PREFIX, CONTROLLERS_GROUP),
            Role::Operator => (OPERATOR_PREFIX, OPERATORS_GROUP),
        };
        (format!("{prefix}{}", self.name), group)
    }
}

/// `ROLE/NAME`, the path of the SPIFFE URI.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role.label(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_determines_role_and_name() {
        let of = |name: &str, group: &str| {
            Identity::of_subject(name, &[group.to_owned()]).map(|identity| identity.to_string())
        };
        for (name, group, expect) in [
            ("system:node:mini-1", "system:nodes", Some("node/mini-1")),
            ("rooflet:gateway:a", "rooflet:gateways", Some("gateway/a")),
            ("rooflet:operator:a", "rooflet:operators", Some("operator/a")),
            ("alice", "system:masters", Some("operator/alice")),
            ("system:node:mini-1", "rooflet:gateways", None),
            ("rooflet:gateway:a", "system:nodes", None),
            ("system:node:", "system:nodes", None),
            ("alice", "dev", None),
            ("system:node:mini-1", "", None),
        ] {
            assert_eq!(of(name, group).as_deref(), expect, "{name} {group}");
        }
    }

    #[test]
    fn subject_round_trips() {
        for role in [Role::Node, Role::Gateway, Role::Operator] {
            let identity = Identity::new(role, "a");
            let (name, group) = identity.subject();
            assert_eq!(Identity::of_subject(&name, &[group.to_owned()]), Some(identity));
        }
    }
}

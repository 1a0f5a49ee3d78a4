//! Stored policies of all kinds.

use serde_json::Value;

use crate::binding::Bound;
use crate::mutating::{self, MutateError};
use crate::mutation::MutatingPolicy;
use crate::policy::Policy;
use crate::request::{Request, Source, Subject};
use crate::validating::{self, Outcome};
use crate::{GROUP, defaults, validate, validate_mutating};
use rooflet_schema::FieldError;

/// Kind of admission registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    MutatingPolicy,
    MutatingBinding,
    ValidatingPolicy,
    ValidatingBinding,
}

impl Kind {
    /// Applies the defaults of the kind.
    pub fn default(self, object: &mut Value) {
        match self {
            Self::MutatingPolicy => defaults::default_policy(object),
            Self::ValidatingPolicy => defaults::default_validating_policy(object),
            Self::MutatingBinding | Self::ValidatingBinding => defaults::default_binding(object),
        }
    }

    /// Validates an object, except its metadata.
    pub fn validate(self, object: &Value) -> Vec<FieldError> {
        match self {
            Self::MutatingPolicy => validate_mutating::validate_policy(object),
            Self::MutatingBinding => validate_mutating::validate_binding(object),
            Self::ValidatingPolicy => validate::validate_policy(object),
            Self::ValidatingBinding => validate::validate_binding(object),
        }
    }
}

/// Compiled policies and bindings.
#[derive(Debug, Default)]
pub struct Policies {
    mutating: Bound<MutatingPolicy>,
    validating: Bound<Policy>,
}

impl Policies {
    /// Sets or removes a policy or binding.
    pub fn set(&mut self, kind: Kind, name: &str, object: Option<&Value>) {
        match kind {
            Kind::MutatingPolicy => self
                .mutating
                .set_policy(name, object.map(MutatingPolicy::compile)),
            Kind::MutatingBinding => self.mutating.set_binding(name, object),
            Kind::ValidatingPolicy => self.validating.set_policy(name, object.map(Policy::compile)),
            Kind::ValidatingBinding => self.validating.set_binding(name, object),
        }
    }

    /// Returns true if no mutating policy is bound.
    pub fn is_never_mutating(&self) -> bool {
        self.mutating.is_empty()
    }

    /// Returns true if no validating policy is bound.
    pub fn is_never_validating(&self) -> bool {
        self.validating.is_empty()
    }

    /// Applies the mutating policies to the new object of a request. Returns true if one of them
    /// patched the object.
    pub fn mutate(&self, request: &Request<'_>, subject: &mut dyn Subject) -> Result<bool, MutateError> {
        // Policies cannot make themselves unchangeable.
        if request.own().group == GROUP {
            return Ok(false);
        }
        mutating::mutate(&self.mutating, request, subject)
    }

    /// Decides on a request by the validating policies.
    pub fn decide(&self, request: &Request<'_>, source: &dyn Source) -> Outcome {
        if request.own().group == GROUP {
            return Outcome::default();
        }
        validating::decide(&self.validating, request, source)
    }
}

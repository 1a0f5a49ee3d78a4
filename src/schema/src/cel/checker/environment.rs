//! Declarations of variables, types and functions.

use super::decl::Decl;
use super::functions::{self, Overload};
use super::show::Root;
use super::types::{Record, Type};

/// Name of the type of an operation of a JSON patch.
pub(super) const PATCH: &str = "JSONPatch";
/// Name of the type of a configuration.
const CONFIGURATION: &str = "Object";

/// Declarations that an expression can use.
#[derive(Clone, Debug, Default)]
pub struct Environment<'d> {
    /// Variables by name. A name may have a prefix, as in `authorizer.requestResource`.
    variables: Vec<(String, Type<'d>)>,
    /// True if the expression can create configurations and JSON patches.
    has_patches: bool,
    /// Declarations of objects, with the names of their types.
    pub(super) roots: Vec<Root<'d>>,
}

impl<'d> Environment<'d> {
    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &str, of: Type<'d>) -> Self {
        self.variables.push((name.to_owned(), of));
        self
    }

    /// Adds a variable with a declaration. `type_name` is the name of its type in errors.
    #[must_use]
    pub fn with_decl(mut self, name: &str, decl: &'d Decl, type_name: &str) -> Self {
        self.roots.push((type_name.to_owned(), decl));
        self.with(name, Type::of(decl))
    }

    /// Adds the types of configurations and JSON patches, and the functions of JSON patches.
    #[must_use]
    pub fn with_patches(self) -> Self {
        Self {
            has_patches: true,
            ..self
        }
    }

    /// Returns the type of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&Type<'d>> {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, of)| of)
    }

    /// Returns true if object literals can have a type with this name.
    pub(super) fn has_literal(&self, name: &str) -> bool {
        let is_part = || {
            let path = name.strip_prefix(CONFIGURATION);
            path.is_some_and(|path| path.starts_with('.'))
        };
        self.has_patches && (name == PATCH || name == CONFIGURATION || is_part())
    }

    /// Returns the object type with this name, if a variable or one of its fields has it.
    pub(super) fn record(&self, name: &str) -> Option<&'d Record> {
        self.variables.iter().find_map(|(_, of)| of.record(name))
    }

    pub(super) fn overloads(&self, name: &str) -> Option<&'static [Overload]> {
        let of_patches = || functions::of_patches(name).filter(|_| self.has_patches);
        functions::overloads(name).or_else(of_patches)
    }

    /// Returns true if a function or method with this name exists.
    pub(super) fn has_function(&self, name: &str) -> bool {
        self.overloads(name).is_some() || self.overloads(&format!(".{name}")).is_some()
    }
}

//! Names of the functions that replace operators when a rule is compiled.

/// Checks whether a list with items of this shape contains a value.
pub(super) const AMONG: &str = "@among";
/// Selects a field. Unlike the crate's selection, a selection from a text or number is an error.
pub(super) const MEMBER: &str = "@member";
/// Unary minus.
pub(super) const NEGATE: &str = "@negate";
/// Selects a field of an object or optional object as an optional. Null has no fields.
pub(super) const SELECT: &str = "@select";

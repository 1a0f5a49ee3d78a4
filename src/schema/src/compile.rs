//! Compilation of an `openAPIV3Schema` with its rules.

use serde_json::Value;

use super::{cel, node::Node};

/// Compiles a valid schema. Ignores keywords that the `accept` module rejects.
pub(super) fn compile(schema: &Value) -> Node {
    Node::compile(schema, cel::compile_rules)
}

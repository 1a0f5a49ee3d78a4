//! Compiles an `openAPIV3Schema` with its rules.

use serde_json::Value;

use super::{cel, node::Node};

/// Compiles a schema that passed the acceptance checks; what those refuse is ignored.
pub(super) fn compile(schema: &Value) -> Node {
    Node::compile(schema, cel::compile_rules)
}

//! Node name of a user.

use rooflet_apiserver::authorization::User;
use rooflet_pki::{NODE_USER_PREFIX, NODES_GROUP};

/// Returns the node name if the user is an agent.
pub(crate) fn node_of(user: &User) -> Option<&str> {
    let node = user.name.strip_prefix(NODE_USER_PREFIX)?;
    (user.is_in(NODES_GROUP) && !node.is_empty()).then_some(node)
}

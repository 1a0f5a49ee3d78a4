//! Limits of bootstrap tokens: which node may join with a token, and how many. They are checked
//! before a request is approved automatically.

use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::StatusCode;
use serde_json::{Value, json};

use crate::authentication::bootstrap::{text, token_id};
use crate::builtin::BuiltIn;
use crate::endpoints::options::WriteOptions;
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::status::ApiError;
use rooflet_pki::{TOKEN_NAMESPACE, TOKEN_NODE_KEY, TOKEN_SECRET_PREFIX, TOKEN_USES_KEY};

/// Key of a token's Secret: UID of the last request that was counted, so that a retry is not counted
/// again.
const COUNTED: &str = "counted-request";

/// Kind of the fleet's nodes. A name that one of its objects has is in use.
pub struct NodeResource {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
}

/// Request of a machine that joins.
#[derive(Debug, Clone, Copy)]
struct Join<'a> {
    node: &'a str,
    /// True if a node with this name exists.
    is_in_use: bool,
    /// UID of the request.
    uid: &'a str,
}

/// Reason why a machine may not join.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DenyJoinError {
    #[error("the bootstrap token {id} was deleted")]
    Deleted { id: String },
    #[error(
        "the bootstrap token permits only the node {permitted}: join with `--node-name {permitted}`, or create another token"
    )]
    OtherNode { permitted: String },
    #[error("node {node} exists; a bootstrap token permits this name only if it was created for this node")]
    InUse { node: String },
    #[error("the bootstrap token has no uses left")]
    Used,
    #[error("the bootstrap token is not valid: {TOKEN_USES_KEY} is not a number")]
    Uses,
}

/// Counts the use of the token that authenticated a request. Requests of other users are not
/// limited.
pub(super) async fn admit(
    engine: &Engine,
    nodes: Option<&NodeResource>,
    csr: &Value,
    node: &str,
) -> Result<Result<(), DenyJoinError>, ApiError> {
    let Some(id) = token_id(object::text(csr, &["spec", "username"])) else {
        return Ok(Ok(()));
    };
    let snapshot = engine.registry.snapshot();
    let nodes = nodes.and_then(|nodes| snapshot.resource(nodes.group, nodes.version, nodes.plural));
    let join = Join {
        node,
        is_in_use: nodes.is_some_and(|nodes| engine.store.get(&nodes.key(None, node)).is_some()),
        uid: object::uid(csr),
    };
    let denied = Mutex::new(None);
    let count = |secret: &Value, _: &mut Warnings| {
        let outcome = counted(secret, join);
        let (changed, reason) = match outcome {
            Ok(changed) => (changed, None),
            Err(reason) => (secret.clone(), Some(reason)),
        };
        *denied.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        Ok(changed)
    };
    let secret = format!("{TOKEN_SECRET_PREFIX}{id}");
    let target = Target::new(snapshot.built_in(BuiltIn::Secret), Some(TOKEN_NAMESPACE), &secret);
    let mut warnings = Warnings::default();
    let edit = Edit::Change(&count);
    let written = engine.update(&target, edit, WriteOptions::INTERNAL, &mut warnings);
    match written.await {
        Ok(_) => {
            let denied = denied.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(denied.map_or(Ok(()), Err))
        }
        Err(err) if err.code() == StatusCode::NOT_FOUND => {
            Ok(Err(DenyJoinError::Deleted { id: id.to_owned() }))
        }
        Err(err) => Err(err),
    }
}

/// Returns the Secret of the token after the machine has joined.
fn counted(secret: &Value, join: Join<'_>) -> Result<Value, DenyJoinError> {
    match text(secret, TOKEN_NODE_KEY) {
        Some(permitted) if permitted != join.node => return Err(DenyJoinError::OtherNode { permitted }),
        Some(_) => {}
        None if join.is_in_use => {
            return Err(DenyJoinError::InUse {
                node: join.node.to_owned(),
            });
        }
        None => {}
    }
    let mut changed = secret.clone();
    let Some(uses) = text(secret, TOKEN_USES_KEY) else {
        return Ok(changed);
    };
    if text(secret, COUNTED).as_deref() == Some(join.uid) {
        return Ok(changed);
    }
    let left: u32 = uses.parse().map_err(|_| DenyJoinError::Uses)?;
    let left = left.checked_sub(1).ok_or(DenyJoinError::Used)?;
    changed["data"][TOKEN_USES_KEY] = json!(BASE64.encode(left.to_string()));
    changed["data"][COUNTED] = json!(BASE64.encode(join.uid));
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(data: &[(&str, &str)]) -> Value {
        let encoded = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(BASE64.encode(value))));
        json!({"data": encoded.collect::<serde_json::Map<_, _>>()})
    }

    const JOIN: Join<'_> = Join {
        node: "mini-1",
        is_in_use: false,
        uid: "1",
    };

    #[test]
    fn each_request_is_counted_once_until_no_use_is_left() {
        let mut token = secret(&[(TOKEN_USES_KEY, "2")]);
        let mut join = |uid| {
            let changed = counted(&token, Join { uid, ..JOIN })?;
            token = changed;
            Ok(text(&token, TOKEN_USES_KEY).expect("a count"))
        };
        assert_eq!(join("1"), Ok("1".to_owned()));
        assert_eq!(join("1"), Ok("1".to_owned()), "a retry");
        assert_eq!(join("2"), Ok("0".to_owned()));
        assert_eq!(join("2"), Ok("0".to_owned()), "a retry");
        assert_eq!(join("3"), Err(DenyJoinError::Used));
        let unlimited = secret(&[]);
        assert_eq!(counted(&unlimited, JOIN), Ok(unlimited.clone()));
        assert_eq!(
            counted(&secret(&[(TOKEN_USES_KEY, "many")]), JOIN),
            Err(DenyJoinError::Uses)
        );
    }

    #[test]
    fn name_in_use_needs_a_token_for_this_node() {
        let in_use = Join {
            is_in_use: true,
            ..JOIN
        };
        let node = "mini-1".to_owned();
        assert_eq!(counted(&secret(&[]), in_use), Err(DenyJoinError::InUse { node }));
        let bound = secret(&[(TOKEN_NODE_KEY, "mini-1")]);
        assert_eq!(counted(&bound, in_use), Ok(bound.clone()));
        let other = Join {
            node: "mini-2",
            ..JOIN
        };
        let permitted = "mini-1".to_owned();
        assert_eq!(
            counted(&bound, other),
            Err(DenyJoinError::OtherNode { permitted })
        );
    }
}

//! Remedies for failures that repeat until an administrator changes the cluster.

use super::ApiError;

/// Returns the remedy for a failed watch of `kind`. `resource` is its qualified plural name.
pub(crate) fn of_watch(err: &ApiError, kind: &str, resource: &str) -> Option<String> {
    if matches!(err, ApiError::NotFound(_)) {
        return Some(format!(
            "the API server does not serve {kind}: install the chart, or run `rooflet crd | kubectl apply \
             --server-side -f -`"
        ));
    }
    matches!(err, ApiError::Forbidden(_)).then(|| {
        format!("install the chart, which grants `list` and `watch` on {resource}, or check the credentials")
    })
}

/// Returns the remedy for a Lease that cannot be read or written.
pub(crate) fn of_lease(err: &ApiError, namespace: &str, name: &str) -> Option<String> {
    if matches!(err, ApiError::NotFound(_)) {
        return Some(format!("create the namespace {namespace}"));
    }
    matches!(err, ApiError::Forbidden(_)).then(|| {
        format!(
            "install the chart, which grants `get`, `create` and `update` on the Lease {namespace}/{name}, or check the \
             credentials"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_the_missing_kind_and_permissions() {
        let missing = ApiError::NotFound("404 page not found".to_owned());
        let denied = ApiError::Forbidden("denied".to_owned());
        let watch = |err| of_watch(err, "FleetNode", "fleetnodes.rooflet.dev").unwrap_or_default();
        assert!(watch(&missing).contains("does not serve FleetNode: install the chart"));
        assert!(watch(&denied).contains("grants `list` and `watch` on fleetnodes.rooflet.dev"));
        assert_eq!(watch(&ApiError::Unreachable("no route".to_owned())), "");
        let lease = |err| of_lease(err, "kube-system", "lead").unwrap_or_default();
        assert!(lease(&denied).contains("`update` on the Lease kube-system/lead"));
        assert_eq!(lease(&missing), "create the namespace kube-system");
        assert_eq!(lease(&ApiError::Unreachable("no route".to_owned())), "");
    }
}

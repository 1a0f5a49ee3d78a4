//! Parsing of request paths. Follows the structure of Kubernetes paths, independent of the served
//! resources.

use rooflet_base::percent;

/// Target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Root,
    Version,
    /// `/healthz`, `/livez`, `/readyz`; `check` is the rest of the path.
    Health {
        endpoint: String,
        check: Option<String>,
    },
    Metrics,
    /// `/snapshot`
    Snapshot,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1` (empty group) or `/apis/GROUP/VERSION`
    Resources {
        group: String,
        version: String,
    },
    /// `/openapi/v2`
    OpenApiV2,
    OpenApiIndex,
    /// The rest of the path after `/openapi/v3/`.
    OpenApiDocument(String),
    Resource(ResourcePath),
    Unknown,
}

/// Path below a group version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub group: String,
    pub version: String,
    /// True if the path has the deprecated `/watch/` prefix.
    pub is_legacy_watch: bool,
    pub namespace: Option<String>,
    pub resource: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// Parses a percent-encoded request path. As in Go, an encoded slash separates segments.
pub(crate) fn parse(path: &str) -> Route {
    let Some(decoded) = percent::decode(path) else {
        return Route::Unknown;
    };
    // Like kube-apiserver, these paths end without a slash.
    match decoded.strip_prefix("/openapi/") {
        Some("v2") => return Route::OpenApiV2,
        Some("v3") => return Route::OpenApiIndex,
        Some(rest) => {
            let document = rest.strip_prefix("v3/").map(str::to_owned);
            return document.map_or(Route::Unknown, Route::OpenApiDocument);
        }
        None => {}
    }
    let trimmed = decoded.trim_matches('/');
    if trimmed.is_empty() {
        return Route::Root;
    }
    let texts: Vec<&str> = trimmed.split('/').collect();
    match texts.as_slice() {
        ["version"] => Route::Version,
        ["metrics"] => Route::Metrics,
        ["snapshot"] => Route::Snapshot,
        [endpoint @ ("healthz" | "livez" | "readyz"), check @ ..] if check.len() <= 1 => Route::Health {
            endpoint: (*endpoint).to_owned(),
            check: check.first().map(|check| (*check).to_owned()),
        },
        ["api"] => Route::CoreVersions,
        ["api", version] => Route::Resources {
            group: String::new(),
            version: (*version).to_owned(),
        },
        ["api", version, rest @ ..] => resource("", version, rest),
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group((*group).to_owned()),
        ["apis", group, version] => Route::Resources {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        },
        ["apis", group, version, rest @ ..] => resource(group, version, rest),
        _ => Route::Unknown,
    }
}

fn resource(group: &str, version: &str, parts: &[&str]) -> Route {
    let (is_legacy_watch, parts) = match parts {
        ["watch", rest @ ..] => (true, rest),
        all => (false, all),
    };
    let (namespace, parts) = match parts {
        // `namespaces/n/status` and `namespaces/n/finalize` are subresources of the namespace.
        ["namespaces", namespace, rest @ ..]
            if !rest.is_empty() && !matches!(rest, ["status" | "finalize", ..]) =>
        {
            (Some((*namespace).to_owned()), rest)
        }
        all => (None, all),
    };
    let owned = |part: &str| part.to_owned();
    let (resource, name, subresource) = match parts {
        [resource] => (owned(resource), None, None),
        [resource, name] => (owned(resource), Some(owned(name)), None),
        [resource, name, subresource] => (owned(resource), Some(owned(name)), Some(owned(subresource))),
        _ => return Route::Unknown,
    };
    if resource.is_empty() || name.as_deref() == Some("") {
        return Route::Unknown;
    }
    let (group, version) = (group.to_owned(), version.to_owned());
    Route::Resource(ResourcePath {
        group,
        version,
        is_legacy_watch,
        namespace,
        resource,
        name,
        subresource,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expect: &str) {
        let Route::Resource(route) = parse(path) else {
            panic!("{path} is not a resource path")
        };
        let got = format!(
            "{}/{} ns={} {} name={} sub={}{}",
            route.group,
            route.version,
            route.namespace.as_deref().unwrap_or("-"),
            route.resource,
            route.name.as_deref().unwrap_or("-"),
            route.subresource.as_deref().unwrap_or("-"),
            if route.is_legacy_watch { " watch" } else { "" }
        );
        assert_eq!(got, expect, "{path}");
    }

    #[test]
    fn parses_resource_paths() {
        check("/api/v1/namespaces", "/v1 ns=- namespaces name=- sub=-");
        check("/api/v1/namespaces/a", "/v1 ns=- namespaces name=a sub=-");
        check(
            "/api/v1/namespaces/a/finalize",
            "/v1 ns=- namespaces name=a sub=finalize",
        );
        check(
            "/api/v1/namespaces/a/configmaps",
            "/v1 ns=a configmaps name=- sub=-",
        );
        check(
            "/apis/g/v1/namespaces/a/gizmos/b/status",
            "g/v1 ns=a gizmos name=b sub=status",
        );
        check("/apis/g/v1/gizmos", "g/v1 ns=- gizmos name=- sub=-");
        check(
            "/apis/g/v1/watch/namespaces/a/gizmos/b",
            "g/v1 ns=a gizmos name=b sub=- watch",
        );
        check("/apis/g/v1/gizmos/a%2Fb", "g/v1 ns=- gizmos name=a sub=b");
        check("/api/v1/namespaces/..%2Fone", "/v1 ns=.. one name=- sub=-");
        check("/apis/g/v1/gizmos/a%252Fb", "g/v1 ns=- gizmos name=a%2Fb sub=-");
    }

    #[test]
    fn parses_other_paths() {
        assert_eq!(parse("/"), Route::Root);
        assert_eq!(parse("/apis/"), Route::Groups);
        assert_eq!(
            parse("/openapi/v3/apis/g/v1"),
            Route::OpenApiDocument("apis/g/v1".to_owned())
        );
        assert_eq!(parse("/openapi/v2"), Route::OpenApiV2);
        assert_eq!(parse("/openapi/v3"), Route::OpenApiIndex);
        assert_eq!(parse("/openapi/v3/"), Route::OpenApiDocument(String::new()));
        assert_eq!(parse("/openapi/v2/"), Route::Unknown);
        let ping = Route::Health {
            endpoint: "readyz".to_owned(),
            check: Some("ping".to_owned()),
        };
        assert_eq!(parse("/readyz/ping"), ping);
        assert_eq!(parse("/nonsense"), Route::Unknown);
        assert_eq!(parse("/apis/g/v1/gizmos/a/b/c"), Route::Unknown);
    }
}

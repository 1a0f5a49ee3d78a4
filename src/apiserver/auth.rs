//! Who asks: a bearer token, or nobody. And what nobody may see.

use http::{HeaderMap, header};

use super::routes::Route;
use super::status::{ApiError, GroupResource};

/// The user a request acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Holder of the token in the kubeconfig; may do everything.
    Admin,
    /// No credentials.
    Anonymous,
}

impl User {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Admin => "system:admin",
            Self::Anonymous => "system:anonymous",
        }
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn is_same(own: &str, presented: &str) -> bool {
    let (own, presented) = (own.as_bytes(), presented.as_bytes());
    own.len() == presented.len()
        && own
            .iter()
            .zip(presented)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

/// Finds the user. A token that is presented must be `token`.
pub(crate) fn authenticate(headers: &HeaderMap, token: &str) -> Result<User, ApiError> {
    let Some(credentials) = headers.get(header::AUTHORIZATION) else {
        return Ok(User::Anonymous);
    };
    let presented = credentials.to_str().ok().and_then(|text| {
        let (scheme, rest) = text.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    match presented {
        None | Some("") => Ok(User::Anonymous),
        Some(presented) if is_same(token, presented) => Ok(User::Admin),
        Some(_) => Err(ApiError::unauthorized()),
    }
}

/// Decides whether the user may ask this at all. `verb` is the Kubernetes verb of the request, `path` its path.
pub(crate) fn authorize(user: User, route: &Route, verb: &str, path: &str) -> Result<(), ApiError> {
    match (user, route) {
        (User::Admin, _) | (User::Anonymous, Route::Version | Route::Health { .. }) => Ok(()),
        (User::Anonymous, Route::Resource(at)) => {
            let resource = GroupResource::new(&at.group, &at.resource);
            let qualified = match &at.subresource {
                Some(sub) => format!("{}/{sub}", at.resource),
                None => at.resource.clone(),
            };
            // A namespace lies in itself.
            let own = at
                .name
                .as_ref()
                .filter(|_| at.resource == "namespaces" && at.group.is_empty());
            let place = match at.namespace.as_ref().or(own) {
                Some(namespace) => format!("in the namespace {namespace:?}"),
                None => "at the cluster scope".to_owned(),
            };
            let why = format!(
                "User {:?} cannot {verb} resource {qualified:?} in API group {:?} {place}",
                user.name(),
                at.group
            );
            Err(ApiError::forbidden(
                &resource,
                at.name.as_deref().unwrap_or_default(),
                &why,
            ))
        }
        (User::Anonymous, _) => {
            let why = format!("User {:?} cannot {verb} path {path:?}", user.name());
            Err(ApiError::forbidden(&GroupResource::new("", ""), "", &why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::routes;

    fn user(authorization: Option<&str>) -> Result<User, http::StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(header::AUTHORIZATION, text.parse().expect("a header value"));
        }
        authenticate(&headers, "secret").map_err(|err| err.code())
    }

    #[test]
    fn a_wrong_token_is_refused_and_none_is_anonymous() {
        assert_eq!(user(None), Ok(User::Anonymous));
        assert_eq!(user(Some("Basic abc")), Ok(User::Anonymous));
        assert_eq!(user(Some("Bearer secret")), Ok(User::Admin));
        assert_eq!(user(Some("bearer  secret")), Ok(User::Admin));
        assert_eq!(user(Some("Bearer secreT")), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(user(Some("Bearer secrets")), Err(http::StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn anonymous_sees_health_and_version_only() {
        let check = |verb: &str, path: &str| {
            authorize(User::Anonymous, &routes::parse(path), verb, path)
                .map_err(|err| err.message().to_owned())
        };
        assert_eq!(check("get", "/version"), Ok(()));
        assert_eq!(check("get", "/readyz/ping"), Ok(()));
        assert_eq!(
            check("get", "/metrics").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
        assert_eq!(
            check("list", "/apis/g/v1/namespaces/n/gizmos").expect_err("forbidden"),
            "gizmos.g is forbidden: User \"system:anonymous\" cannot list resource \"gizmos\" in API group \"g\" in the \
             namespace \"n\""
        );
        assert_eq!(
            check("get", "/api/v1/namespaces/x").expect_err("forbidden"),
            "namespaces \"x\" is forbidden: User \"system:anonymous\" cannot get resource \"namespaces\" in API group \
             \"\" in the namespace \"x\""
        );
    }
}

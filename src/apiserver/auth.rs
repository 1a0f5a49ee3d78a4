//! Who asks: a user certificate, a bearer token, or nobody. And what each of them may see.

use http::{HeaderMap, header};
use tracing::debug;

use super::routes::Route;
use super::status::{ApiError, GroupResource};
use crate::error::Chain;
use crate::pki::{UserCertificateError, UserName};

/// Its members may do everything.
const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The user a request acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl User {
    /// Holder of the token in the kubeconfig.
    fn admin() -> Self {
        Self::new("system:admin", [MASTERS, AUTHENTICATED])
    }

    /// No credentials.
    fn anonymous() -> Self {
        Self::new("system:anonymous", [UNAUTHENTICATED])
    }

    fn new<const N: usize>(name: &str, groups: [&str; N]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).into(),
        }
    }

    /// Whom a certificate names: nobody without a common name.
    fn of_certificate(subject: UserName) -> Option<Self> {
        let mut groups = subject.organizations;
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        (!subject.common_name.is_empty()).then_some(Self {
            name: subject.common_name,
            groups,
        })
    }

    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
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

/// Finds the user. The first credentials that are good decide, the certificate before the token; who shows only bad
/// ones is refused, who shows none is anonymous.
pub(crate) fn authenticate(
    certificate: Option<Result<UserName, UserCertificateError>>,
    headers: &HeaderMap,
    token: &str,
) -> Result<User, ApiError> {
    let has_bad_certificate = match certificate {
        None => false,
        Some(Ok(subject)) => match User::of_certificate(subject) {
            Some(user) => return Ok(user),
            None => false,
        },
        Some(Err(err)) => {
            debug!(error = %Chain(&err), "a client's certificate was refused");
            true
        }
    };
    let presented = headers.get(header::AUTHORIZATION).and_then(|credentials| {
        let (scheme, rest) = credentials.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    match presented {
        Some(presented) if is_same(token, presented) => Ok(User::admin()),
        None | Some("") if !has_bad_certificate => Ok(User::anonymous()),
        None | Some(_) => Err(ApiError::unauthorized()),
    }
}

/// Decides whether the user may ask this at all. `verb` is the Kubernetes verb of the request, `path` its path.
pub(crate) fn authorize(user: &User, route: &Route, verb: &str, path: &str) -> Result<(), ApiError> {
    if user.is_in(MASTERS) {
        return Ok(());
    }
    let is_open = match route {
        Route::Version | Route::Health { .. } => true,
        // What the role system:discovery grants.
        Route::CoreVersions
        | Route::Groups
        | Route::Group(_)
        | Route::Resources { .. }
        | Route::OpenApiV2
        | Route::OpenApiIndex
        | Route::OpenApiDocument(_) => verb == "get" && user.is_in(AUTHENTICATED),
        Route::Root | Route::Metrics | Route::Resource(_) | Route::Unknown => false,
    };
    if is_open {
        return Ok(());
    }
    let Route::Resource(at) = route else {
        let why = format!("User {:?} cannot {verb} path {path:?}", user.name);
        return Err(ApiError::forbidden(&GroupResource::new("", ""), "", &why));
    };
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
        user.name, at.group
    );
    let name = at.name.as_deref().unwrap_or_default();
    Err(ApiError::forbidden(&resource, name, &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::routes;

    type Certificate = Option<Result<UserName, UserCertificateError>>;

    fn user(certificate: Certificate, authorization: Option<&str>) -> Result<User, http::StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(header::AUTHORIZATION, text.parse().expect("a header value"));
        }
        authenticate(certificate, &headers, "secret").map_err(|err| err.code())
    }

    fn subject(name: &str, groups: &[&str]) -> Certificate {
        Some(Ok(UserName {
            common_name: name.to_owned(),
            organizations: groups.iter().map(|group| (*group).to_owned()).collect(),
        }))
    }

    #[test]
    fn a_wrong_token_is_refused_and_none_is_anonymous() {
        let user = |authorization| user(None, authorization);
        assert_eq!(user(None), Ok(User::anonymous()));
        assert_eq!(user(Some("Basic abc")), Ok(User::anonymous()));
        assert_eq!(user(Some("Bearer secret")), Ok(User::admin()));
        assert_eq!(user(Some("bearer  secret")), Ok(User::admin()));
        assert_eq!(user(Some("Bearer secreT")), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(user(Some("Bearer secrets")), Err(http::StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn a_certificate_names_user_and_groups_and_a_bad_one_is_refused() {
        let alice = User::new("alice", ["team-a", AUTHENTICATED]);
        assert_eq!(user(subject("alice", &["team-a"]), None), Ok(alice.clone()));
        assert_eq!(
            user(subject("alice", &["team-a"]), Some("Bearer wrong")),
            Ok(alice),
            "good credentials suffice"
        );
        assert_eq!(user(subject("", &["team-a"]), None), Ok(User::anonymous()));
        let bad = || Some(Err(UserCertificateError::Subject));
        assert_eq!(user(bad(), None), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(
            user(bad(), Some("Bearer wrong")),
            Err(http::StatusCode::UNAUTHORIZED)
        );
        assert_eq!(user(bad(), Some("Bearer secret")), Ok(User::admin()));
    }

    fn check(user: &User, verb: &str, path: &str) -> Result<(), String> {
        authorize(user, &routes::parse(path), verb, path).map_err(|err| err.message().to_owned())
    }

    #[test]
    fn users_see_what_is_served_and_masters_everything() {
        let alice = User::new("alice", [AUTHENTICATED]);
        for path in [
            "/api",
            "/apis",
            "/apis/g",
            "/apis/g/v1",
            "/openapi/v3",
            "/openapi/v3/api/v1",
            "/version",
        ] {
            assert_eq!(check(&alice, "get", path), Ok(()), "{path}");
        }
        assert_eq!(
            check(&alice, "create", "/api/v1/namespaces/n/configmaps").expect_err("forbidden"),
            "configmaps is forbidden: User \"alice\" cannot create resource \"configmaps\" in API group \"\" in the \
             namespace \"n\""
        );
        check(&alice, "get", "/metrics").expect_err("forbidden");
        let root = User::new("root", [MASTERS]);
        assert_eq!(check(&root, "create", "/api/v1/namespaces/n/configmaps"), Ok(()));
        assert_eq!(check(&root, "get", "/metrics"), Ok(()));
    }

    #[test]
    fn anonymous_sees_health_and_version_only() {
        let check = |verb: &str, path: &str| check(&User::anonymous(), verb, path);
        assert_eq!(check("get", "/version"), Ok(()));
        assert_eq!(check("get", "/readyz/ping"), Ok(()));
        assert_eq!(
            check("get", "/apis").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/apis\""
        );
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

//! Impersonation headers: the user as which a caller asks to run its request.
//!
//! The headers and the order of the checks are those of kube-apiserver. The caller needs the verb
//! `impersonate` for the user and for each group, UID and extra value.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::account_token::GROUP as SERVICE_ACCOUNTS;
use super::user::{self, AUTHENTICATED, User};
use crate::authentication::user::UNAUTHENTICATED;
use crate::authorization::ResourceAttributes;
use crate::status::ApiError;
use rooflet_base::percent;
use rooflet_rbac::SERVICE_ACCOUNT_USERS;
use rooflet_schema::gotext::quote;
use rooflet_schema::names::{dns_label, dns_subdomain};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Requested identity of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Impersonation {
    /// Attributes that the caller must be allowed to impersonate, in the order of the checks.
    pub required: Vec<Impersonated>,
    /// User of the request after all checks.
    pub user: User,
}

/// Attribute of the requested identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Impersonated {
    User(String),
    ServiceAccount { namespace: String, name: String },
    Group(String),
    Extra { key: String, value: String },
    Uid(String),
}

impl Impersonated {
    fn of_user(name: &str) -> Self {
        let account = name.strip_prefix(SERVICE_ACCOUNT_USERS);
        match account.and_then(|account| account.split_once(':')) {
            Some((namespace, name)) if dns_label(namespace).is_empty() && dns_subdomain(name).is_empty() => {
                Self::ServiceAccount {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                }
            }
            Some(_) | None => Self::User(name.to_owned()),
        }
    }

    /// Returns the attributes of the authorization check.
    pub(crate) fn attributes(&self) -> ResourceAttributes<'_> {
        let authentication = "authentication.k8s.io";
        let (group, resource, subresource, namespace, name) = match self {
            Self::User(name) => ("", "users", None, None, name),
            Self::ServiceAccount { namespace, name } => {
                ("", "serviceaccounts", None, Some(namespace.as_str()), name)
            }
            Self::Group(name) => ("", "groups", None, None, name),
            Self::Extra { key, value } => (authentication, "userextras", Some(key.as_str()), None, value),
            Self::Uid(uid) => (authentication, "uids", None, None, uid),
        };
        ResourceAttributes {
            group,
            version: if group.is_empty() { "" } else { "v1" },
            resource,
            subresource,
            namespace,
            name: Some(name),
            field_selector: "",
        }
    }
}

impl Impersonation {
    /// Reads the headers. Returns `None` if the request does not impersonate.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let groups = texts(headers, &GROUP)?;
        let mut required: Vec<_> = groups.iter().cloned().map(Impersonated::Group).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            if let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) {
                let key = percent::decode(key).unwrap_or_else(|| key.to_owned());
                let value = text(header, value)?;
                extra.entry(key.clone()).or_default().push(value.clone());
                required.push(Impersonated::Extra { key, value });
            }
        }
        let uid = texts(headers, &UID)?.into_iter().next().unwrap_or_default();
        if !uid.is_empty() {
            required.push(Impersonated::Uid(uid.clone()));
        }
        let user = texts(headers, &USER)?.into_iter().next();
        let Some(name) = user.filter(|name| !name.is_empty()) else {
            return match required.is_empty() {
                true => Ok(None),
                false => Err(without_user(&uid, &groups, &extra)),
            };
        };
        let requested = Impersonated::of_user(&name);
        let mut groups = groups;
        if let (Impersonated::ServiceAccount { namespace, .. }, true) = (&requested, groups.is_empty()) {
            groups = vec![
                SERVICE_ACCOUNTS.to_owned(),
                format!("{SERVICE_ACCOUNTS}:{namespace}"),
            ];
        }
        required.insert(0, requested);
        let user = User {
            name,
            uid,
            groups,
            extra,
        };
        let user = with_default_group(user);
        Ok(Some(Self { required, user }))
    }
}

/// Returns kube-apiserver's error of impersonation headers without `Impersonate-User`.
fn without_user(uid: &str, groups: &[String], extra: &BTreeMap<String, Vec<String>>) -> ApiError {
    let list = |texts: &[String]| {
        let texts: Vec<String> = texts.iter().map(|text| quote(text)).collect();
        format!("[]string{{{}}}", texts.join(", "))
    };
    let groups = match groups.is_empty() {
        true => "[]string(nil)".to_owned(),
        false => list(groups),
    };
    let entries: Vec<String> = extra
        .iter()
        .map(|(key, values)| format!("{}:{}", quote(key), list(values)))
        .collect();
    let extra = match entries.is_empty() {
        true => "(nil)".to_owned(),
        false => format!("{{{}}}", entries.join(", ")),
    };
    ApiError::bad_request(format!(
        "requested &user.DefaultInfo{{Name:\"\", UID:{}, Groups:{groups}, Extra:map[string][]string{extra}}} \
         without impersonating a user name",
        quote(uid)
    ))
}

/// Adds the group of authenticated or anonymous users, unless the groups already state it.
fn with_default_group(mut user: User) -> User {
    let is_anonymous = user.name == user::anonymous().name;
    let is_stated = user.is_in(UNAUTHENTICATED) || (!is_anonymous && user.is_in(AUTHENTICATED));
    if !is_stated {
        let group = if is_anonymous {
            UNAUTHENTICATED
        } else {
            AUTHENTICATED
        };
        user.groups.push(group.to_owned());
    }
    user
}

fn texts(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<String>, ApiError> {
    headers
        .get_all(name)
        .iter()
        .map(|value| text(name, value))
        .collect()
}

/// Returns the text of a header. An unreadable header is an error: without it, the request would
/// run as another user.
fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, ApiError> {
    std::str::from_utf8(value.as_bytes())
        .map(str::to_owned)
        .map_err(|err| ApiError::bad_request(format!("header {name}: {err}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, String> {
        let headers = headers.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().expect("a header name");
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
            (name, value)
        });
        let parsed = Impersonation::parse(&headers.fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        }));
        parsed.map_err(|err| err.message().to_owned())
    }

    fn user(headers: &[(&str, &str)]) -> User {
        parse(headers).expect("valid").expect("an impersonation").user
    }

    #[test]
    fn request_without_headers_does_not_impersonate() {
        assert_eq!(parse(&[("accept", "*/*")]), Ok(None));
        assert_eq!(parse(&[("impersonate-user", "")]), Ok(None));
    }

    #[test]
    fn adds_default_groups_like_kube_apiserver() {
        let check = |name: &str, groups: &[&str], expect: &[&str]| {
            let mut headers = vec![("impersonate-user", name)];
            headers.extend(groups.iter().map(|group| ("impersonate-group", *group)));
            assert_eq!(user(&headers), User::new(name, expect), "{name} {groups:?}");
        };
        check("bob", &[], &["system:authenticated"]);
        check("bob", &["a", "b"], &["a", "b", "system:authenticated"]);
        check("bob", &["system:authenticated"], &["system:authenticated"]);
        check("bob", &["system:unauthenticated"], &["system:unauthenticated"]);
        check("system:anonymous", &[], &["system:unauthenticated"]);
        let account = "system:serviceaccount:team:robot";
        check(
            account,
            &[],
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:team",
                "system:authenticated",
            ],
        );
        check(account, &["a"], &["a", "system:authenticated"]);
        check("system:serviceaccount:x", &[], &["system:authenticated"]);
    }

    #[test]
    fn requires_permission_for_each_attribute() {
        let headers = [
            ("impersonate-uid", "u-1"),
            ("impersonate-extra-acme.com%2fproject", "p"),
            ("impersonate-group", "a"),
            ("impersonate-user", "bob"),
        ];
        let parsed = parse(&headers).expect("valid").expect("an impersonation");
        assert_eq!(parsed.user.uid, "u-1");
        assert_eq!(parsed.user.extra["acme.com/project"], ["p"]);
        let required = parsed.required;
        let shown: Vec<_> = required
            .iter()
            .map(|required| {
                let at = required.attributes();
                let subresource = at.subresource.map_or(String::new(), |sub| format!("/{sub}"));
                let name = at.name.unwrap_or_default();
                format!("{:?} {}{subresource} {name}", at.group, at.resource)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "\"\" users bob",
                "\"\" groups a",
                "\"authentication.k8s.io\" userextras/acme.com/project p",
                "\"authentication.k8s.io\" uids u-1",
            ]
        );
    }

    #[test]
    fn rejects_headers_that_would_be_ignored() {
        // Texts of kube-apiserver 1.36.2.
        for (header, requested) in [
            (
                "impersonate-group",
                r#"UID:"", Groups:[]string{"x"}, Extra:map[string][]string(nil)"#,
            ),
            (
                "impersonate-uid",
                r#"UID:"x", Groups:[]string(nil), Extra:map[string][]string(nil)"#,
            ),
            (
                "impersonate-extra-scopes",
                r#"UID:"", Groups:[]string(nil), Extra:map[string][]string{"scopes":[]string{"x"}}"#,
            ),
        ] {
            let rejected = parse(&[(header, "x")]).expect_err(header);
            let user = format!("&user.DefaultInfo{{Name:\"\", {requested}}}");
            assert_eq!(
                rejected,
                format!("requested {user} without impersonating a user name")
            );
        }
        let mut headers = HeaderMap::new();
        headers.insert(USER, HeaderValue::from_bytes(b"\xff").expect("opaque"));
        let rejected = Impersonation::parse(&headers).expect_err("not UTF-8");
        assert!(rejected.message().contains("impersonate-user"), "{rejected}");
    }
}

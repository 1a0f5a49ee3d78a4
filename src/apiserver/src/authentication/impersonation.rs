//! Impersonation headers: the user as which a caller asks to run its request.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::user::User;
use crate::status::ApiError;
use rooflet_base::percent;
use rooflet_schema::gotext::quote;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Returns the user in the headers, without groups that the name implies. `None` if the request
/// does not impersonate.
pub(crate) fn requested(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let groups = texts(headers, &GROUP)?;
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) {
            let key = percent::decode(key).unwrap_or_else(|| key.to_owned());
            extra.entry(key).or_default().push(text(header, value)?);
        }
    }
    let uid = texts(headers, &UID)?.into_iter().next().unwrap_or_default();
    let user = texts(headers, &USER)?.into_iter().next();
    let Some(name) = user.filter(|name| !name.is_empty()) else {
        return match uid.is_empty() && groups.is_empty() && extra.is_empty() {
            true => Ok(None),
            false => Err(without_user(&uid, &groups, &extra)),
        };
    };
    Ok(Some(User {
        name,
        uid,
        groups,
        extra,
    }))
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

    fn parse(headers: &[(&str, &str)]) -> Result<Option<User>, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().expect("a header name");
            map.append(
                name,
                HeaderValue::from_bytes(value.as_bytes()).expect("a header value"),
            );
        }
        requested(&map).map_err(|err| err.message().to_owned())
    }

    #[test]
    fn request_without_headers_does_not_impersonate() {
        assert_eq!(parse(&[("accept", "*/*")]), Ok(None));
        assert_eq!(parse(&[("impersonate-user", "")]), Ok(None));
    }

    #[test]
    fn user_has_the_values_of_all_headers() {
        let headers = [
            ("impersonate-uid", "u-1"),
            ("impersonate-extra-acme.com%2fproject", "p"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-user", "bob"),
        ];
        let expect = User {
            uid: "u-1".to_owned(),
            extra: [("acme.com/project".to_owned(), vec!["p".to_owned()])].into(),
            ..User::new("bob", &["a", "b"])
        };
        assert_eq!(parse(&headers), Ok(Some(expect)));
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
        let rejected = requested(&headers).expect_err("not UTF-8");
        assert!(rejected.message().contains("impersonate-user"), "{rejected}");
    }
}

//! Impersonation: permissions that a caller needs to act as another user.
//!
//! A mode of constrained impersonation needs the verb `impersonate-on:MODE:VERB` on the request,
//! and `impersonate:MODE` on each attribute of the user. The verb `impersonate` on each attribute
//! permits all requests. Modes, order and messages are those of kube-apiserver 1.36. The mode
//! `associated-node` is missing, because no credential of the server names the node of a service
//! account.

use rooflet_apimachinery::verb::Verb;
use rooflet_schema::gotext::quote;
use rooflet_schema::names::{dns_label, dns_subdomain};

use crate::{
    AUTHENTICATED, Attributes, MASTERS, ResourceAttributes, SERVICE_ACCOUNT_USERS, SERVICE_ACCOUNTS, Target,
    UNAUTHENTICATED, User, aggregate,
};

const GROUP: &str = "authentication.k8s.io";
const NODES: &str = "system:nodes";
const NODE_USERS: &str = "system:node:";
const ANONYMOUS: &str = "system:anonymous";
/// Number of groups or extra values from which one check for all of them precedes the single
/// checks.
const MANY: usize = 4;
/// Characters of a path in a URI besides letters and digits.
const PATH_PUNCTUATION: &str = "/-._~%!$&'()*+,;=:";

/// Mode of impersonation, in the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    ArbitraryNode,
    ServiceAccount,
    /// Users except nodes and service accounts.
    UserInfo,
    /// All users and all requests, with the verb `impersonate`.
    Legacy,
}

impl Mode {
    const CONSTRAINED: [Self; 3] = [Self::ArbitraryNode, Self::ServiceAccount, Self::UserInfo];

    /// Returns the verb on the attributes of the user.
    pub fn verb(self) -> &'static str {
        match self {
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => Verb::Impersonate.as_str(),
        }
    }

    /// Returns the verb on a request with this verb. `None` if the mode permits all requests.
    fn verb_on(self, verb: &str) -> Option<String> {
        let (_, mode) = self.verb().split_once(':')?;
        Some(format!("impersonate-on:{mode}:{verb}"))
    }

    fn applies(self, wanted: &User) -> bool {
        let has_only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let subject = Subject::of(&wanted.name);
        match self {
            Self::ArbitraryNode => has_only_name && matches!(subject, Subject::Node(_)),
            Self::ServiceAccount => has_only_name && matches!(subject, Subject::ServiceAccount { .. }),
            Self::UserInfo => subject == Subject::Other,
            Self::Legacy => true,
        }
    }
}

/// Authorization of the checks. [`impersonate`] returns the error of the first check that failed.
pub trait Checks {
    type Error;

    /// Checks that the request is allowed.
    fn check(&self, attributes: &Attributes<'_>) -> Result<(), Self::Error>;

    /// Returns the error of a request that no role can allow.
    fn refuse(&self, attributes: &Attributes<'_>, reason: &str) -> Self::Error;
}

/// User of a request with impersonation headers, and the mode that permits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonated {
    pub user: User,
    pub mode: Mode,
}

/// Returns the user as which `request` runs. `wanted` has the values of the headers. The mode
/// `last`, which permitted the last impersonation of this caller, is checked first.
pub fn impersonate<C: Checks>(
    wanted: &User,
    request: &Attributes<'_>,
    last: Option<Mode>,
    checks: &C,
) -> Result<Impersonated, C::Error> {
    let attempt = |mode: Mode| {
        if let Some(verb) = mode.verb_on(request.verb) {
            checks.check(&Attributes {
                verb: &verb,
                ..*request
            })?;
        }
        let subject = Subject::of(&wanted.name);
        let check = AttributeChecks {
            mode,
            caller: request.user,
            checks,
        };
        check.name(subject, &wanted.name)?;
        check.uid(&wanted.uid)?;
        check.groups(&wanted.groups)?;
        check.extra(wanted)?;
        let user = with_default_groups(wanted, subject, mode);
        Ok(Impersonated { user, mode })
    };
    let others = Mode::CONSTRAINED.into_iter().filter(|mode| Some(*mode) != last);
    let modes = last.into_iter().chain(others);
    let mut refused = None;
    for mode in modes.filter(|mode| mode.applies(wanted)) {
        match attempt(mode) {
            Ok(impersonated) => return Ok(impersonated),
            Err(err) => refused = refused.or(Some(err)),
        }
    }
    attempt(Mode::Legacy).map_err(|err| refused.unwrap_or(err))
}

/// Kind of a user's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject<'a> {
    Node(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Other,
}

impl<'a> Subject<'a> {
    fn of(user: &'a str) -> Self {
        if let Some(name) = user.strip_prefix(NODE_USERS) {
            return match dns_subdomain(name).is_empty() {
                true => Self::Node(name),
                false => Self::Other,
            };
        }
        let account = user.strip_prefix(SERVICE_ACCOUNT_USERS);
        match account.and_then(|account| account.split_once(':')) {
            Some((namespace, name)) if dns_label(namespace).is_empty() && dns_subdomain(name).is_empty() => {
                Self::ServiceAccount { namespace, name }
            }
            Some(_) | None => Self::Other,
        }
    }
}

/// Adds the groups that the name implies.
fn with_default_groups(wanted: &User, subject: Subject<'_>, mode: Mode) -> User {
    let mut user = wanted.clone();
    match subject {
        Subject::Node(_) if mode != Mode::Legacy => user.groups = vec![NODES.to_owned()],
        Subject::ServiceAccount { namespace, .. } if user.groups.is_empty() => {
            user.groups = vec![
                SERVICE_ACCOUNTS.to_owned(),
                format!("{SERVICE_ACCOUNTS}:{namespace}"),
            ];
        }
        Subject::Node(_) | Subject::ServiceAccount { .. } | Subject::Other => {}
    }
    let default = match user.name == ANONYMOUS || user.is_in(UNAUTHENTICATED) {
        true => UNAUTHENTICATED,
        false => AUTHENTICATED,
    };
    if !user.is_in(default) {
        user.groups.push(default.to_owned());
    }
    user
}

fn on_value<'a>(group: &'a str, resource: &'a str, value: &'a str) -> ResourceAttributes<'a> {
    ResourceAttributes {
        group,
        version: "v1",
        resource,
        subresource: None,
        namespace: None,
        name: Some(value),
        field_selector: "",
    }
}

/// Checks of the attributes of a user in one mode.
struct AttributeChecks<'a, C> {
    mode: Mode,
    caller: &'a User,
    checks: &'a C,
}

impl<C: Checks> AttributeChecks<'_, C> {
    fn is_constrained(&self) -> bool {
        self.mode != Mode::Legacy
    }

    fn attributes<'b>(&'b self, resource: ResourceAttributes<'b>) -> Attributes<'b> {
        Attributes {
            user: self.caller,
            verb: self.mode.verb(),
            target: Target::Resource(resource),
        }
    }

    fn check(&self, resource: ResourceAttributes<'_>) -> Result<(), C::Error> {
        self.checks.check(&self.attributes(resource))
    }

    fn refuse(&self, resource: ResourceAttributes<'_>, reason: &str) -> Result<(), C::Error> {
        Err(self.checks.refuse(&self.attributes(resource), reason))
    }

    /// Returns the API group of names and groups.
    fn group_of_names(&self) -> &'static str {
        match self.is_constrained() {
            true => GROUP,
            false => "",
        }
    }

    fn name(&self, subject: Subject<'_>, user: &str) -> Result<(), C::Error> {
        let group = self.group_of_names();
        match subject {
            Subject::Node(name) if self.is_constrained() => self.check(on_value(group, "nodes", name)),
            Subject::ServiceAccount { namespace, name } => self.check(ResourceAttributes {
                namespace: Some(namespace),
                ..on_value(group, "serviceaccounts", name)
            }),
            Subject::Node(_) | Subject::Other => self.check(on_value(group, "users", user)),
        }
    }

    fn uid(&self, uid: &str) -> Result<(), C::Error> {
        match uid.is_empty() {
            true => Ok(()),
            false => self.check(on_value(GROUP, "uids", uid)),
        }
    }

    fn groups(&self, groups: &[String]) -> Result<(), C::Error> {
        let on = |name| on_value(self.group_of_names(), "groups", name);
        let has = |name: &str| groups.iter().any(|group| group == name);
        if self.is_constrained() {
            if has("") {
                return self.refuse(on(""), "impersonating the empty string group is not allowed");
            }
            if has(MASTERS) {
                return self.refuse(
                    on(MASTERS),
                    "impersonating the system:masters group is not allowed",
                );
            }
            if groups.len() >= MANY && self.check(on("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.check(on(group)))
    }

    fn extra(&self, wanted: &User) -> Result<(), C::Error> {
        let on = |key, value| ResourceAttributes {
            subresource: key,
            ..on_value(GROUP, "userextras", value)
        };
        if self.is_constrained() {
            let mut entries = wanted.extra.iter();
            if let Some(fault) = entries.find_map(|(key, values)| extra_fault(key, values)) {
                return self.refuse(on(None, ""), &fault);
            }
            let count = wanted
                .extra
                .values()
                .map(|values| values.len().max(1))
                .sum::<usize>();
            if count >= MANY && self.check(on(Some("*"), "*")).is_ok() {
                return Ok(());
            }
        }
        let mut values = wanted
            .extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        values.try_for_each(|(key, value)| self.check(on(Some(key.as_str()), value)))
    }
}

/// Returns the reason why no role can allow an extra value.
fn extra_fault(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    if let Some(fault) = path_fault(key) {
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: {fault}"
        ));
    }
    if key != key.to_lowercase() {
        return Some(format!(
            "impersonating a non-lowercase key in extra is not allowed: {}",
            quote(key)
        ));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    let has_empty = values.iter().any(String::is_empty);
    has_empty.then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

/// Returns why a key is not a path with a domain as its prefix.
fn path_fault(key: &str) -> Option<String> {
    let invalid = |value: &str, fault: &str| format!("extra.key: Invalid value: {}: {fault}", quote(value));
    let (host, path) = match key.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => (host, path),
        Some(_) | None => {
            let fault = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            return Some(invalid(key, fault));
        }
    };
    let mut faults: Vec<String> = dns_subdomain(host)
        .iter()
        .map(|fault| invalid(host, fault))
        .collect();
    if !path
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || PATH_PUNCTUATION.contains(c))
    {
        let fault = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
        faults.push(invalid(path, fault));
    }
    (!faults.is_empty()).then(|| aggregate(faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "caller";

    /// Checks that a list allows, in the form of [`shown`].
    struct Allowed<'a>(&'a [&'a str]);

    fn shown(attributes: &Attributes<'_>) -> String {
        let verb = attributes.verb;
        let Target::Resource(on) = attributes.target else {
            panic!("{attributes:?} is no resource");
        };
        let subresource = on.subresource.map_or(String::new(), |sub| format!("/{sub}"));
        let group = match on.group {
            "" => String::new(),
            group => format!(".{group}"),
        };
        let namespace = on.namespace.map_or(String::new(), |name| format!("{name}/"));
        let name = on.name.unwrap_or_default();
        format!("{verb} {}{group}{subresource} {namespace}{name}", on.resource)
    }

    impl Checks for Allowed<'_> {
        type Error = String;

        fn check(&self, attributes: &Attributes<'_>) -> Result<(), String> {
            assert_eq!(attributes.user.name, CALLER);
            let shown = shown(attributes);
            match self.0.contains(&shown.as_str()) {
                true => Ok(()),
                false => Err(shown),
            }
        }

        fn refuse(&self, attributes: &Attributes<'_>, reason: &str) -> String {
            format!("{}: {reason}", shown(attributes))
        }
    }

    /// Lists ConfigMaps in the namespace `n` as `wanted`.
    fn list_as(wanted: &User, last: Option<Mode>, allowed: &[&str]) -> Result<Impersonated, String> {
        let request = Attributes {
            user: &User::new(CALLER, &[]),
            verb: "list",
            target: Target::Resource(ResourceAttributes {
                namespace: Some("n"),
                name: None,
                ..on_value("", "configmaps", "")
            }),
        };
        impersonate(wanted, &request, last, &Allowed(allowed))
    }

    fn refused(wanted: &User, last: Option<Mode>, allowed: &[&str]) -> String {
        list_as(wanted, last, allowed).expect_err("refused")
    }

    fn permitted(wanted: &User, allowed: &[&str]) -> Impersonated {
        list_as(wanted, None, allowed).expect("permitted")
    }

    #[test]
    fn error_is_that_of_the_last_mode_or_of_the_first() {
        let bob = User::new("bob", &[]);
        let on_list = "impersonate-on:user-info:list configmaps n/";
        assert_eq!(refused(&bob, None, &[]), on_list);
        assert_eq!(refused(&bob, Some(Mode::Legacy), &[]), "impersonate users bob");
        // The last mode does not apply to this user.
        assert_eq!(refused(&bob, Some(Mode::ServiceAccount), &[]), on_list);
        assert_eq!(
            refused(&bob, None, &[on_list]),
            "impersonate:user-info users.authentication.k8s.io bob"
        );
    }

    #[test]
    fn each_mode_needs_its_verbs() {
        let robot = "system:serviceaccount:team:robot";
        let cases: [(&str, &[&str], Mode, &[&str]); 4] = [
            (
                "bob",
                &[
                    "impersonate-on:user-info:list configmaps n/",
                    "impersonate:user-info users.authentication.k8s.io bob",
                ],
                Mode::UserInfo,
                &["system:authenticated"],
            ),
            (
                robot,
                &[
                    "impersonate-on:serviceaccount:list configmaps n/",
                    "impersonate:serviceaccount serviceaccounts.authentication.k8s.io team/robot",
                ],
                Mode::ServiceAccount,
                &[
                    "system:serviceaccounts",
                    "system:serviceaccounts:team",
                    "system:authenticated",
                ],
            ),
            (
                "system:node:mac",
                &[
                    "impersonate-on:arbitrary-node:list configmaps n/",
                    "impersonate:arbitrary-node nodes.authentication.k8s.io mac",
                ],
                Mode::ArbitraryNode,
                &["system:nodes", "system:authenticated"],
            ),
            (
                "system:node:mac",
                &["impersonate users system:node:mac"],
                Mode::Legacy,
                &["system:authenticated"],
            ),
        ];
        for (name, allowed, mode, groups) in cases {
            let wanted = User::new(name, &[]);
            let expect = Impersonated {
                user: User::new(name, groups),
                mode,
            };
            assert_eq!(permitted(&wanted, allowed), expect);
            for missing in 0..allowed.len() {
                let fewer: Vec<&str> = [&allowed[..missing], &allowed[missing + 1..]].concat();
                assert_eq!(
                    list_as(&wanted, Some(mode), &fewer),
                    Err(allowed[missing].to_owned())
                );
            }
        }
    }

    #[test]
    fn nodes_and_service_accounts_have_only_a_name_in_their_modes() {
        let allowed = [
            "impersonate-on:serviceaccount:list configmaps n/",
            "impersonate:serviceaccount serviceaccounts.authentication.k8s.io team/robot",
            "impersonate serviceaccounts team/robot",
            "impersonate groups a",
        ];
        let in_group = User::new("system:serviceaccount:team:robot", &["a"]);
        let found = permitted(&in_group, &allowed);
        assert_eq!(found.mode, Mode::Legacy);
        assert_eq!(found.user.groups, ["a", "system:authenticated"]);
    }

    #[test]
    fn legacy_mode_checks_each_attribute_in_order() {
        let wanted = User {
            uid: "u-1".to_owned(),
            extra: [("scopes".to_owned(), vec!["p".to_owned(), "q".to_owned()])].into(),
            ..User::new("bob", &["a"])
        };
        let all = [
            "impersonate users bob",
            "impersonate uids.authentication.k8s.io u-1",
            "impersonate groups a",
            "impersonate userextras.authentication.k8s.io/scopes p",
            "impersonate userextras.authentication.k8s.io/scopes q",
        ];
        for (index, next) in all.iter().enumerate() {
            assert_eq!(refused(&wanted, Some(Mode::Legacy), &all[..index]), *next);
        }
        let found = permitted(&wanted, &all);
        assert_eq!(
            (found.user.uid.as_str(), &found.user.extra),
            ("u-1", &wanted.extra)
        );
    }

    #[test]
    fn adds_default_groups_like_kube_apiserver() {
        let check = |name: &str, groups: &[&str], expect: &[&str]| {
            let user = with_default_groups(&User::new(name, groups), Subject::of(name), Mode::Legacy);
            assert_eq!(user, User::new(name, expect), "{name} {groups:?}");
        };
        check("bob", &["a", "b"], &["a", "b", "system:authenticated"]);
        check("bob", &["system:authenticated"], &["system:authenticated"]);
        check("bob", &["system:unauthenticated"], &["system:unauthenticated"]);
        check("system:anonymous", &[], &["system:unauthenticated"]);
        check("system:serviceaccount:x", &[], &["system:authenticated"]);
    }

    const USER_INFO: [&str; 2] = [
        "impersonate-on:user-info:list configmaps n/",
        "impersonate:user-info users.authentication.k8s.io bob",
    ];

    fn allowed<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&USER_INFO, more].concat()
    }

    #[test]
    fn constrained_modes_never_permit_masters() {
        let all = allowed(&["impersonate:user-info groups.authentication.k8s.io system:masters"]);
        assert_eq!(
            refused(&User::new("bob", &[MASTERS]), None, &all),
            "impersonate:user-info groups.authentication.k8s.io system:masters: impersonating the system:masters group \
             is not allowed"
        );
        assert_eq!(
            refused(&User::new("bob", &[""]), None, &all),
            "impersonate:user-info groups.authentication.k8s.io : impersonating the empty string group is not allowed"
        );
    }

    #[test]
    fn permission_for_all_values_suffices_for_four_of_them() {
        let groups = allowed(&["impersonate:user-info groups.authentication.k8s.io *"]);
        permitted(&User::new("bob", &["a", "b", "c", "d"]), &groups);
        assert_eq!(
            refused(&User::new("bob", &["a", "b", "c"]), None, &groups),
            "impersonate:user-info groups.authentication.k8s.io a"
        );
        let extra = allowed(&["impersonate:user-info userextras.authentication.k8s.io/* *"]);
        let with = |values: &[&str]| User {
            extra: [(
                "acme.io/a".to_owned(),
                values.iter().map(|value| (*value).to_owned()).collect(),
            )]
            .into(),
            ..User::new("bob", &[])
        };
        permitted(&with(&["a", "b", "c", "d"]), &extra);
        assert_eq!(
            refused(&with(&["a"]), None, &extra),
            "impersonate:user-info userextras.authentication.k8s.io/acme.io/a a"
        );
    }

    #[test]
    fn constrained_modes_reject_malformed_extra_values() {
        let fault = |key: &str, value: &str| {
            let wanted = User {
                extra: [(key.to_owned(), vec![value.to_owned()])].into(),
                ..User::new("bob", &[])
            };
            let error = refused(&wanted, None, &USER_INFO);
            let (_, fault) = error.split_once(": impersonating ").expect("a fault");
            fault.to_owned()
        };
        // Texts of apiserver 0.36.2 and of the checks in apimachinery that it calls.
        assert_eq!(fault("", "x"), "the empty string key in extra is not allowed");
        assert_eq!(
            fault("acme.io/a", ""),
            "the empty string value in extra is not allowed"
        );
        assert_eq!(
            fault("acme.io/A", "x"),
            "a non-lowercase key in extra is not allowed: \"acme.io/A\""
        );
        let invalid = "an invalid key in extra is not allowed";
        assert_eq!(
            fault("scopes", "x"),
            format!(
                "{invalid}: extra.key: Invalid value: \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")"
            )
        );
        assert_eq!(
            fault("acme.io/a b", "x"),
            format!(
                r#"{invalid}: extra.key: Invalid value: "a b": Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')"#
            )
        );
        let both = fault("-/ ", "x");
        assert!(both.starts_with(&format!("{invalid}: [extra.key: ")), "{both}");
    }
}

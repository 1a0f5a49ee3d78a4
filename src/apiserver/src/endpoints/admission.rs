//! Admission of a request by its head: authentication, authorization, and the limit of concurrent
//! requests.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::{debug, warn};

use crate::audit::Identity;
use crate::authentication::account_token::{Referenced, TokenUser};
use crate::authentication::{self, API_AUDIENCE, RejectTokenError, TokenSources, User, impersonation};
use crate::authorization::RequestHead;
use crate::builtin::BuiltIn;
use crate::endpoints::handlers::{Api, verb};
use crate::endpoints::in_flight::Permit;
use crate::endpoints::request::Request;
use crate::endpoints::routes;
use crate::status::ApiError;
use rooflet_apimachinery::selector::FieldSelector;
use rooflet_apimachinery::verb::Verb;
use rooflet_pki::BootstrapToken;

/// Authenticated and authorized request.
pub(crate) struct Admitted {
    pub(crate) user: Arc<User>,
    /// Held until the response is complete.
    pub(crate) permit: Permit,
}

/// Returns the name of the only object that a field selector can select.
fn required_name(field_selector: &str) -> Option<String> {
    let selector = FieldSelector::parse(field_selector).ok()?;
    let name = selector.exact("metadata.name")?;
    let is_segment = !matches!(name, "" | "." | "..") && !name.contains(['/', '%']);
    is_segment.then(|| name.to_owned())
}

impl Api {
    /// Authenticates and authorizes a request and acquires an in-flight permit. Uses only the
    /// request head, before the body is read, so that rejected requests are cheap.
    ///
    /// `identity` receives the user of the request, also if the request is rejected.
    pub(crate) fn admit(&self, request: &Request, identity: &mut Identity) -> Result<Admitted, ApiError> {
        let route = routes::parse(&request.path);
        let verb = verb(request, &route);
        let field_selector = request.query.get("fieldSelector").unwrap_or_default();
        let selected = Some(field_selector).filter(|_| matches!(verb, Verb::List | Verb::Watch));
        let selected = selected.and_then(required_name);
        let head = RequestHead {
            route: &route,
            verb,
            path: &request.path,
            field_selector,
            selected: selected.as_deref(),
        };
        let admitted = self.identify(request, head, identity).and_then(|user| {
            self.rules.authorize(&user, head)?;
            Ok(Admitted {
                user,
                permit: self.in_flight.acquire(&route, verb)?,
            })
        });
        if let Err(err) = &admitted {
            let label = self.metric_label(&route);
            self.metrics
                .observe(verb, label, err.code().as_u16(), Duration::ZERO);
        }
        admitted
    }

    /// Returns the user of a request: that of its credentials, or the one that it impersonates.
    fn identify(
        &self,
        request: &Request,
        head: RequestHead<'_>,
        identity: &mut Identity,
    ) -> Result<Arc<User>, ApiError> {
        let caller = Arc::new(self.authenticate(request)?);
        identity.user = Some(caller.clone());
        let Some(wanted) = impersonation::requested(&request.headers)? else {
            return Ok(caller);
        };
        let impersonated = self.rules.impersonate(&caller, &wanted, head)?;
        let user = Arc::new(impersonated.user);
        debug!(caller = caller.name, user = user.name, "impersonating");
        *identity = Identity {
            user: Some(user.clone()),
            impersonated_by: Some((caller, impersonated.mode)),
        };
        Ok(user)
    }

    fn authenticate(&self, request: &Request) -> Result<User, ApiError> {
        let certificate = match &self.users {
            Some(users) if !request.certificates.is_empty() => Some(users.user(&request.certificates)),
            Some(_) | None => None,
        };
        let of_token = |token: &str| {
            let is_bootstrap = token.parse::<BootstrapToken>().is_ok();
            let Some(client) = request.client.filter(|_| is_bootstrap) else {
                return self.user_of_own_token(token);
            };
            let now = self.engine.clock.instant();
            if let Some(wait) = self.guesses.wait(client, now) {
                return Err(RejectTokenError::Guessing { wait });
            }
            let found = self.user_of_own_token(token);
            if found.is_err() && self.guesses.count(client, now) {
                warn!(%client, "too many wrong bootstrap tokens: rejecting bootstrap tokens from this address");
            }
            found
        };
        authentication::authenticate(certificate, &request.headers, of_token)
    }

    /// Returns the user of a bearer token that is valid for this server.
    fn user_of_own_token(&self, token: &str) -> Result<User, RejectTokenError> {
        let found = self.user_of_token(token, &[API_AUDIENCE.to_owned()])?;
        Ok(found.user)
    }

    /// Returns the user of a bearer token that is valid for one of the audiences.
    pub(super) fn user_of_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<TokenUser, RejectTokenError> {
        let stored = |kind: Referenced, namespace: &str, name: &str| {
            let kind = match kind {
                Referenced::Account => BuiltIn::ServiceAccount,
                Referenced::Secret => BuiltIn::Secret,
            };
            let snapshot = self.engine.registry.snapshot();
            let key = snapshot.built_in(kind).key(Some(namespace), name);
            Some(Value::clone(&self.engine.store.get(&key)?.json()))
        };
        let sources = TokenSources {
            admin: self.token.reveal(),
            key: self.account_key.as_deref(),
            issuers: &self.issuers,
            stored: &stored,
            now: self.engine.clock.now(),
        };
        sources.user_of(token, audiences)
    }
}

//! Handling of token requests, a subresource of service accounts.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::handlers::{Api, Call};
use super::options::{WriteOptions, WriteVerb};
use super::reply::{self, Reply};
use super::review::texts;
use crate::authentication::API_AUDIENCE;
use crate::authentication::account_token::{self, NewToken};
use crate::builtin::BuiltIn;
use crate::builtin::review::Review;
use crate::engine::{Warnings, request_body};
use crate::object;
use crate::registry::resource::{Resource, to_bytes};
use crate::status::{ApiError, GroupResource};
use rooflet_apimachinery::time::format_time;
use rooflet_base::error::Chain;
use rooflet_schema::FieldError;

impl Api {
    /// Issues a token for a service account.
    pub(super) fn request_token(&self, call: &Call<'_>, warnings: &mut Warnings) -> Result<Reply, ApiError> {
        let key = self
            .account_key
            .as_deref()
            .ok_or_else(ApiError::resource_not_served)?;
        let media = call.media()?;
        let (body, encoding) = call.body()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Create)?;
        let kind = Resource::built_in(BuiltIn::Review(Review::TokenRequest));
        let mut request = request_body(&kind, body, encoding, options.validation, warnings)?;
        let invalid =
            |name: &str, errors: &[FieldError]| ApiError::invalid(&kind.group, &kind.kind, name, errors);
        let target = call.target();
        let record = self
            .engine
            .store
            .get(&target.key())
            .ok_or_else(|| target.not_found())?;
        target.check_stored(Some(&record))?;
        let account = record.json();
        let own = [
            (
                "name",
                object::name(&account),
                "must match the service account name if specified",
            ),
            (
                "namespace",
                object::namespace(&account),
                "must match the service account namespace if specified",
            ),
        ];
        for (field, own, detail) in own {
            let given = object::text(&request, &["metadata", field]);
            if !given.is_empty() && given != own {
                let error = FieldError::invalid_text(format!("metadata.{field}"), given, detail);
                return Err(invalid(&target.name, &[error]));
            }
        }
        let given = object::uid(&request);
        if !given.is_empty() && given != object::uid(&account) {
            let reason = format!(
                "the UID in the token request ({given}) does not match the UID of the service account ({})",
                object::uid(&account)
            );
            let resource = GroupResource::new(&kind.group, &kind.kind);
            return Err(ApiError::conflict(&resource, &target.name, &reason));
        }
        let errors = BuiltIn::Review(Review::TokenRequest).validate(&request, None);
        if !errors.is_empty() {
            return Err(invalid("", &errors));
        }
        let secret = self.bound_secret(call, &request["spec"]["boundObjectRef"])?;
        let mut audiences = texts(&request["spec"]["audiences"]);
        if audiences.is_empty() {
            audiences.push(API_AUDIENCE.to_owned());
        }
        let now = self.engine.clock.now();
        let lifetime_seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
        let claims = account_token::claims(
            &NewToken {
                account: &account,
                audiences: &audiences,
                lifetime_seconds,
                secret: secret.as_deref(),
                id: &Uuid::new_v4().to_string(),
            },
            now,
        );
        let token = key.sign(&claims).map_err(|err| ApiError::internal(Chain(&err)))?;
        let end = Timestamp::from_second(now.as_second().saturating_add(lifetime_seconds))
            .unwrap_or(Timestamp::MAX);
        request["metadata"] = json!({"name": object::name(&account), "namespace": object::namespace(&account),
            "uid": object::uid(&account), "creationTimestamp": format_time(now)});
        request["spec"]["audiences"] = json!(audiences);
        request["status"] = json!({"token": token, "expirationTimestamp": format_time(end)});
        Ok(reply::encoded(
            StatusCode::CREATED,
            media.encoding,
            call.request.is_pretty(),
            to_bytes(&kind.external(request)),
        ))
    }

    /// Returns the Secret that a requested token is bound to.
    fn bound_secret(&self, call: &Call<'_>, reference: &Value) -> Result<Option<Arc<Value>>, ApiError> {
        if reference.is_null() {
            return Ok(None);
        }
        let text = |key: &str| object::text(reference, &[key]);
        if (text("kind"), text("apiVersion")) != ("Secret", "v1") {
            let (group, version) = text("apiVersion")
                .split_once('/')
                .unwrap_or(("", text("apiVersion")));
            return Err(ApiError::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={}",
                text("kind")
            )));
        }
        let snapshot = self.engine.registry.snapshot();
        let secrets = snapshot.built_in(BuiltIn::Secret);
        let name = text("name");
        let record = self
            .engine
            .store
            .get(&secrets.key(call.path.namespace.as_deref(), name));
        let record = record.ok_or_else(|| ApiError::not_found(&secrets.group_resource(), name))?;
        let secret = record.json();
        let (given, own) = (text("uid"), object::uid(&secret));
        if !given.is_empty() && given != own {
            let reason = format!(
                "the UID in the bound object reference ({given}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            );
            return Err(ApiError::conflict(
                &GroupResource::new("", "Secret"),
                name,
                &reason,
            ));
        }
        Ok(Some(secret))
    }
}

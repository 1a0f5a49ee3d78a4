//! Handling of reviews, which are answered but not stored.

use http::StatusCode;
use serde_json::{Value, json};

use super::handlers::{Api, Call};
use super::options::{WriteOptions, WriteVerb};
use super::reply::Reply;
use crate::authentication::API_AUDIENCE;
use crate::builtin::BuiltIn;
use crate::builtin::review::Review;
use crate::engine::{ResultObject, Warnings, request_body};
use crate::object;
use crate::reviews;
use crate::status::ApiError;
use rooflet_apimachinery::time::format_time;
use rooflet_apimachinery::verb::Verb;

impl Api {
    pub(super) fn review(
        &self,
        call: &Call<'_>,
        review: Review,
        warnings: &mut Warnings,
    ) -> Result<Reply, ApiError> {
        let media = call.media()?;
        let (body, encoding) = call.body()?;
        let options = WriteOptions::parse(&call.request.query, WriteVerb::Create)?;
        let mut object = request_body(&call.resource, body, encoding, options.validation, warnings)?;
        let namespace = call.path.namespace.as_deref();
        if let Some(namespace) = namespace {
            set_namespace(&mut object, namespace)?;
        }
        let errors = BuiltIn::Review(review).validate(&object, None);
        if !errors.is_empty() {
            // kube-apiserver names no kind here.
            return Err(ApiError::invalid(&call.resource.group, "", "", &errors));
        }
        match review {
            Review::SubjectAccess
            | Review::LocalSubjectAccess
            | Review::SelfSubjectAccess
            | Review::Token => {
                self.engine.track_unstored(&call.target(), &mut object);
            }
            // Responses have no metadata of the request.
            Review::SelfSubject | Review::SelfSubjectRules | Review::TokenRequest => {}
        }
        self.answer(call, review, &mut object)?;
        self.show(call, media, StatusCode::CREATED, &ResultObject::Value(object))
    }

    /// Sets the status of a review.
    fn answer(&self, call: &Call<'_>, review: Review, object: &mut Value) -> Result<(), ApiError> {
        let (rules, user) = (&call.by.rules, &*call.by.user);
        object::metadata_mut(object);
        let status = match review {
            Review::SelfSubjectAccess => reviews::access(rules, user, &object["spec"]),
            Review::SubjectAccess | Review::LocalSubjectAccess => {
                let spec = &object["spec"];
                reviews::access(rules, &reviews::subject(spec), spec)
            }
            Review::SelfSubjectRules => {
                let namespace = object::text(object, &["spec", "namespace"]).to_owned();
                if namespace.is_empty() {
                    return Err(ApiError::bad_request("no namespace on request"));
                }
                object["spec"] = json!({});
                reviews::rules(rules, user, &namespace)
            }
            Review::SelfSubject => {
                let now = format_time(self.engine.clock.now());
                *object = json!({"metadata": {"creationTimestamp": now}});
                json!({"userInfo": reviews::user_info(user)})
            }
            Review::Token => {
                let token = object::text(object, &["spec", "token"]);
                if token.is_empty() {
                    let message = "token is required for TokenReview in authentication";
                    return Err(ApiError::bad_request(message));
                }
                let wanted = texts(&object["spec"]["audiences"]);
                let wanted = if wanted.is_empty() {
                    vec![API_AUDIENCE.to_owned()]
                } else {
                    wanted
                };
                match self.user_of_token(token, &wanted) {
                    Ok(found) => json!({"authenticated": true, "user": reviews::user_info(&found.user),
                        "audiences": found.audiences}),
                    Err(err) => json!({"user": {}, "error": err.to_string()}),
                }
            }
            Review::TokenRequest => return Err(call.unsupported(Verb::Create)),
        };
        object["status"] = status;
        Ok(())
    }
}

pub(super) fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn set_namespace(object: &mut Value, namespace: &str) -> Result<(), ApiError> {
    match object::namespace(object) {
        "" => {
            object::metadata_mut(object).insert("namespace".to_owned(), json!(namespace));
            Ok(())
        }
        given if given == namespace => Ok(()),
        _ => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

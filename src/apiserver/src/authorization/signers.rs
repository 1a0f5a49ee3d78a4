//! Checks of changes of certificate signing requests: approval needs the verb `approve`, and
//! signing the verb `sign`, on the requested signer.

use serde_json::Value;

use super::{Attributes, ObjectPlace, Requestor, ResourceAttributes, Target, Verdict};
use crate::object;
use crate::status::ApiError;

const GROUP: &str = "certificates.k8s.io";

impl Requestor {
    /// Checks that the user may approve or sign requests to the signer. Does not apply to other
    /// kinds and changes.
    pub(super) fn check_signer(
        &self,
        place: ObjectPlace<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let is_request =
            place.resource.group == GROUP && place.resource.resource == "certificatesigningrequests";
        let Some(old) = old.filter(|_| is_request) else {
            return Ok(());
        };
        let signer = object::text(old, &["spec", "signerName"]);
        let verb = match place.subresource {
            Some("approval") => "approve",
            Some("status") if is_signed(old, new) => "sign",
            Some(_) | None => return Ok(()),
        };
        let domain = signer.split('/').next().unwrap_or_default();
        if [signer, &format!("{domain}/*")]
            .iter()
            .any(|name| self.may(verb, name))
        {
            return Ok(());
        }
        let reason = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(ApiError::forbidden(place.resource, place.name, &reason))
    }

    fn may(&self, verb: &str, signer: &str) -> bool {
        let resource = ResourceAttributes {
            group: GROUP,
            version: "*",
            resource: "signers",
            subresource: None,
            namespace: None,
            name: Some(signer),
            field_selector: "",
        };
        let verdict = self.rules.evaluate(&Attributes {
            user: &self.user,
            verb,
            target: Target::Resource(resource),
        });
        matches!(verdict, Verdict::Allowed(_))
    }
}

/// Returns true if the certificate or the conditions differ.
fn is_signed(old: &Value, new: &Value) -> bool {
    ["certificate", "conditions"]
        .iter()
        .any(|field| old["status"][*field] != new["status"][*field])
}

//! Authorization of impersonation headers.

use std::collections::HashMap;
use std::sync::Mutex;

use rooflet_base::mutex::lock;
use rooflet_rbac::{Checks, Impersonated, Mode};

use super::rules::{forbidden, target_of};
use super::{Attributes, RequestHead, Rules};
use crate::authentication::User;
use crate::status::ApiError;

/// Maximum number of callers whose modes are kept. kube-apiserver keeps as many.
const CALLERS_MAX: usize = 10_000;

/// Mode that permitted the last impersonation of each caller, by the caller's name. As in
/// kube-apiserver, its error precedes the errors of the other modes.
#[derive(Debug, Default)]
pub(super) struct LastModes(Mutex<HashMap<String, Mode>>);

impl LastModes {
    fn of(&self, caller: &str) -> Option<Mode> {
        let modes = lock(&self.0);
        modes.get(caller).copied()
    }

    fn set(&self, caller: &str, mode: Mode) {
        let mut modes = lock(&self.0);
        if modes.len() >= CALLERS_MAX {
            modes.clear();
        }
        modes.insert(caller.to_owned(), mode);
    }
}

impl Checks for Rules {
    type Error = ApiError;

    fn check(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        self.require(attributes)
    }

    fn refuse(&self, attributes: &Attributes<'_>, reason: &str) -> ApiError {
        forbidden(attributes, reason)
    }
}

impl Rules {
    /// Returns the user as which a request with impersonation headers runs. `wanted` has the values
    /// of the headers.
    pub(crate) fn impersonate(
        &self,
        caller: &User,
        wanted: &User,
        asked: RequestHead<'_>,
    ) -> Result<Impersonated, ApiError> {
        let request = Attributes {
            user: caller,
            verb: asked.verb.as_str(),
            target: target_of(asked),
        };
        let last = self.last_modes.of(&caller.name);
        let impersonated = rooflet_rbac::impersonate(wanted, &request, last, self)?;
        if last != Some(impersonated.mode) {
            self.last_modes.set(&caller.name, impersonated.mode);
        }
        Ok(impersonated)
    }
}

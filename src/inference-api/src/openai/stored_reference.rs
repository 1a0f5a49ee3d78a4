//! References of a request to a response or item that one replica stores.

use serde::Deserialize;

use super::ApiError;
use super::top_level::TopLevel;
use rooflet_api::wire::replica_id_of;

/// Path of requests whose responses the replica can store.
pub const RESPONSES_PATH: &str = "/v1/responses";
const ITEM_REFERENCE: &str = "item_reference";

/// Reference by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredReference {
    /// The previous response.
    Response(String),
    /// Item of an earlier response.
    Item(String),
}

impl StoredReference {
    /// Returns the reference in a request body.
    pub fn of(body: &[u8]) -> Option<Self> {
        Self::named_in(&serde_json::from_slice(body).ok()?)
    }

    /// Returns the previous response, or the last item reference.
    pub fn named_in(body: &TopLevel<'_>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Item {
            r#type: Option<String>,
            id: Option<String>,
        }
        let named = || {
            let input = body
                .get("input")
                .filter(|raw| raw.get().contains(ITEM_REFERENCE))?;
            let items: Vec<Item> = serde_json::from_str(input.get()).ok()?;
            let is_named = |item: &Item| item.r#type.as_deref() == Some(ITEM_REFERENCE);
            items.into_iter().rfind(is_named)?.id.map(Self::Item)
        };
        let response = body.get("previous_response_id");
        let response = response.and_then(|raw| serde_json::from_str(raw.get()).ok());
        response.map(Self::Response).or_else(named)
    }

    /// Returns the identifier of the replica that stores it.
    pub fn replica_id(&self) -> Option<u64> {
        let (Self::Response(id) | Self::Item(id)) = self;
        replica_id_of(id)
    }

    pub fn not_found(&self) -> ApiError {
        match self {
            Self::Response(id) => ApiError::previous_response_not_found(id),
            Self::Item(id) => ApiError::item_not_found("input", id),
        }
    }
}

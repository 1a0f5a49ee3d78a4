//! What a request goes on from, and one replica keeps.

use serde::Deserialize;

use super::ApiError;
use super::top_level::TopLevel;
use rooflet_api::wire::keeper_of;

/// Its answers can be kept by the replica that gave them.
pub const RESPONSES_PATH: &str = "/v1/responses";
const ITEM_REFERENCE: &str = "item_reference";

/// By its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The response before.
    Response(String),
    /// An item of an earlier answer.
    Item(String),
}

impl Kept {
    /// What the body of a request names.
    pub fn of(body: &[u8]) -> Option<Self> {
        Self::named_in(&serde_json::from_slice(body).ok()?)
    }

    /// The response before, or the last of the items that are named by their ids.
    pub fn named_in(asked: &TopLevel<'_>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Item {
            r#type: Option<String>,
            id: Option<String>,
        }
        let named = || {
            let input = asked
                .get("input")
                .filter(|raw| raw.get().contains(ITEM_REFERENCE))?;
            let items: Vec<Item> = serde_json::from_str(input.get()).ok()?;
            let is_named = |item: &Item| item.r#type.as_deref() == Some(ITEM_REFERENCE);
            items.into_iter().rfind(is_named)?.id.map(Self::Item)
        };
        let response = asked.get("previous_response_id");
        let response = response.and_then(|raw| serde_json::from_str(raw.get()).ok());
        response.map(Self::Response).or_else(named)
    }

    /// Who keeps it.
    pub fn keeper(&self) -> Option<u64> {
        let (Self::Response(id) | Self::Item(id)) = self;
        keeper_of(id)
    }

    pub fn not_found(&self) -> ApiError {
        match self {
            Self::Response(id) => ApiError::previous_response_not_found(id),
            Self::Item(id) => ApiError::item_not_found("input", id),
        }
    }
}

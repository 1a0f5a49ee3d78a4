//! Anthropic's Messages API: the same inference under other names. A request becomes a chat request of
//! [`openai`](crate::openai), an answer's parts become blocks and events, errors get another shape. Data only.

pub(crate) mod error;
#[cfg(feature = "mlx")]
mod message;
#[cfg(feature = "mlx")]
pub(crate) mod request;
#[cfg(feature = "mlx")]
pub(crate) mod response;

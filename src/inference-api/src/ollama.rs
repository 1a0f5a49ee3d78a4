//! Ollama's API. A request becomes a chat or text request of [`openai`](crate::openai), an answer
//! becomes one JSON object or one per line, and errors get another body. Data only.

pub mod error;
pub mod ignored;
pub mod keep_alive;
mod message;
pub mod model_name;
pub mod models;
mod options;
pub mod request;
pub mod response;
pub mod routes;

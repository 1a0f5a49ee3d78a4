//! `/snapshot`: a copy of the store's file, for backups.

use std::fs::File;
use std::io::Read as _;

use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};

use crate::endpoints::handlers::Api;
use crate::endpoints::reply::{self, Reply};
use crate::status::ApiError;
use rooflet_base::error::Chain;

const CHUNK_BYTES: usize = 1 << 20;

impl Api {
    /// Handles a request for the copy. The copy is written to the store's disk first.
    pub(crate) async fn snapshot(&self) -> Result<Reply, ApiError> {
        let store = self.engine.store.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let file = store.snapshot().map_err(|err| Chain(&err).to_string())?;
            let length = file.metadata().map_err(|err| err.to_string())?.len();
            Ok::<_, String>((file, length))
        });
        let copied = copied.await.map_err(|err| ApiError::internal(err.to_string()))?;
        let (file, length) = copied.map_err(ApiError::internal)?;
        let mut reply = reply::stream(
            "application/octet-stream",
            Box::pin(stream::unfold(file, next_chunk)),
        );
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        Ok(reply)
    }
}

/// Reads the next part of the file. A failed read ends the response before its announced length.
async fn next_chunk(mut file: File) -> Option<(Bytes, File)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        let length = file.read(&mut chunk).ok().filter(|length| *length > 0)?;
        chunk.truncate(length);
        Some((Bytes::from(chunk), file))
    });
    read.await.ok()?
}

//! Server-sent events of a streamed chat completion from an OpenAI-compatible server.

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::FutureExt;
use serde_json::Value;

/// Events of one answer.
pub(in crate::cli) struct Events {
    response: reqwest::Response,
    buffer: Vec<u8>,
    /// Result of the last read, if it returned no bytes.
    ended: Option<reqwest::Result<Option<Bytes>>>,
    reads: u64,
    done: bool,
}

impl Events {
    pub(in crate::cli) fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
            ended: None,
            reads: 0,
            done: false,
        }
    }

    /// Returns the next chunk, or `None` at the end. An error that the server reports is returned
    /// as an error.
    pub(in crate::cli) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let Some(data) = line.trim_end().strip_prefix("data:").map(str::trim_start) else {
                    continue;
                };
                if data == "[DONE]" {
                    self.done = true;
                    continue;
                }
                let chunk: Value = serde_json::from_str(data).with_context(|| format!("not JSON: {data}"))?;
                if let Some(message) = chunk["error"]["message"].as_str() {
                    bail!("the server failed during the answer: {message}");
                }
                return Ok(Some(chunk));
            }
            let read = match self.ended.take() {
                Some(ended) => ended,
                None => self.response.chunk().await,
            };
            let Some(bytes) = read.context("the answer was interrupted")? else {
                return Ok(None);
            };
            self.reads += 1;
            self.buffer.extend_from_slice(&bytes);
            self.read_available().await;
        }
    }

    /// Reads everything that has already arrived, so that it counts as one network read. The
    /// connection's task delivers chunks one by one; on a single-threaded runtime it delivers the
    /// next chunk when it is scheduled.
    async fn read_available(&mut self) {
        loop {
            tokio::task::yield_now().await;
            match self.response.chunk().now_or_never() {
                Some(Ok(Some(bytes))) => self.buffer.extend_from_slice(&bytes),
                ended => {
                    self.ended = ended;
                    return;
                }
            }
        }
    }

    /// Returns the number of the network read that delivered the last chunk, on a single-threaded
    /// runtime. Chunks of one read have no meaningful time between them.
    pub(in crate::cli) fn reads(&self) -> u64 {
        self.reads
    }

    /// Returns true if the server has sent `[DONE]`.
    pub(in crate::cli) fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    const END: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

    fn pieces(count: usize) -> String {
        "f\r\ndata: {\"a\": 1}\n\r\n1\r\n\n\r\n".repeat(count)
    }

    /// HTTP chunks are not network reads: a server may write many at once.
    #[tokio::test]
    async fn chunks_that_arrive_together_count_as_one_read() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let (response, accepted) = tokio::join!(client.get(&url).send(), async {
            let (mut connection, _) = listener.accept().await.unwrap();
            assert!(connection.read(&mut [0; 1024]).await.unwrap() > 0);
            connection.write_all(HEAD.as_bytes()).await.unwrap();
            connection
        });
        let (mut events, mut connection) = (Events::new(response.unwrap()), accepted);
        for (reads, count) in [(1, 16), (2, 1), (3, 40)] {
            connection.write_all(pieces(count).as_bytes()).await.unwrap();
            for _ in 0..count {
                assert_eq!(events.next().await.unwrap().unwrap()["a"], 1);
                assert_eq!(events.reads(), reads);
            }
        }
        connection.write_all(END.as_bytes()).await.unwrap();
        assert_eq!(events.next().await.unwrap(), None);
        assert!(events.is_done());
    }
}

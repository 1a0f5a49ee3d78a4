//! The events of a streamed chat completion, as a client of any OpenAI-compatible server reads them.

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::FutureExt;
use serde_json::Value;

/// One answer's events.
pub(super) struct Events {
    response: reqwest::Response,
    buffer: Vec<u8>,
    /// What came after the last read, where that was no bytes.
    ended: Option<reqwest::Result<Option<Bytes>>>,
    reads: u64,
    done: bool,
}

impl Events {
    pub(super) fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
            ended: None,
            reads: 0,
            done: false,
        }
    }

    /// The next chunk; `None` at the end. An error that the server tells of is one.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
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
                    bail!("the server failed while it answered: {message}");
                }
                return Ok(Some(chunk));
            }
            let read = match self.ended.take() {
                Some(ended) => ended,
                None => self.response.chunk().await,
            };
            let Some(bytes) = read.context("the answer broke off")? else {
                return Ok(None);
            };
            self.reads += 1;
            self.buffer.extend_from_slice(&bytes);
            self.take_what_is_here().await;
        }
    }

    /// One read from the network may bring many pieces, which come one by one from whoever reads the connection: on a
    /// runtime of one thread, it has handed over the next when it has had its turn.
    async fn take_what_is_here(&mut self) {
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

    /// Which read from the network the last chunk came with, on a runtime of one thread: what comes together tells nothing
    /// of the time between.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// The server has said that it is done.
    pub(super) fn is_done(&self) -> bool {
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

    /// Chunks of HTTP are no reads: a server may write many at once.
    #[tokio::test]
    async fn what_came_together_is_one_read() {
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

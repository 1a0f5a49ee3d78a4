//! The events of a streamed chat completion, as a client of any OpenAI-compatible server reads them.

use anyhow::{Context, bail};
use serde_json::Value;

/// One answer's events.
pub(super) struct Events {
    response: reqwest::Response,
    buffer: Vec<u8>,
    reads: u64,
    done: bool,
}

impl Events {
    pub(super) fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
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
            match self.response.chunk().await.context("the answer broke off")? {
                Some(bytes) => {
                    self.reads += 1;
                    self.buffer.extend_from_slice(&bytes);
                }
                None => return Ok(None),
            }
        }
    }

    /// Which read from the network the last chunk came with: what comes together tells nothing of the time between.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// The server has said that it is done.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }
}

//! Clients that send requests as fast as a gateway answers them, for example with invented API keys.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Requests that a connection sends before it reads their responses (pipelining of HTTP/1.1).
const PIPELINED: u64 = 32;
const STATUS_LINE: &[u8] = b"HTTP/1.1 ";
const STATUS_BYTES: usize = 3;

/// Returns the text of a request to `ADDR:PORT` with an invented API key in the valid format, which `number`
/// distinguishes. A gateway that requires keys rejects it with 401.
pub(crate) fn with_unknown_key(address: &str, number: u64) -> String {
    let body = r#"{"model":"guide","messages":[]}"#;
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer sk-rf-{number:042}0\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Running clients of a gateway without TLS.
pub(crate) struct Flood {
    counts: Arc<Counts>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    /// Number of requests that were sent, which also numbers them.
    requests: AtomicU64,
    expected: AtomicU64,
    /// Responses with another status than the expected one.
    others: AtomicU64,
    is_stopping: AtomicBool,
}

impl Flood {
    /// Starts this many connections to `ADDR:PORT`. Each sends `request` repeatedly, and expects `status`.
    pub(crate) fn start(
        address: &str,
        connections: usize,
        request: fn(&str, u64) -> String,
        status: &'static str,
    ) -> Self {
        let counts = Arc::<Counts>::default();
        let clients = (0..connections).map(|_| {
            let (counts, address) = (Arc::clone(&counts), address.to_owned());
            std::thread::spawn(move || {
                while !counts.is_stopping.load(Ordering::Relaxed) {
                    // The gateway may close a connection.
                    let _ = send(&address, &counts, request, status.as_bytes());
                }
            })
        });
        Self {
            clients: clients.collect(),
            counts,
        }
    }

    /// Returns the number of responses with the expected status.
    pub(crate) fn answered(&self) -> u64 {
        self.counts.expected.load(Ordering::Relaxed)
    }

    /// Returns the number of responses with another status.
    pub(crate) fn others(&self) -> u64 {
        self.counts.others.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.counts.is_stopping.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

/// Sends requests over one connection until it ends or the flood stops.
fn send(
    address: &str,
    counts: &Counts,
    request: fn(&str, u64) -> String,
    status: &[u8],
) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut received = vec![0; 64 << 10];
    let mut rest = Vec::new();
    while !counts.is_stopping.load(Ordering::Relaxed) {
        let first = counts.requests.fetch_add(PIPELINED, Ordering::Relaxed);
        let requests = (first..first + PIPELINED).map(|number| request(address, number));
        stream.write_all(requests.collect::<String>().as_bytes())?;
        let mut open = PIPELINED;
        while open > 0 {
            let read = stream.read(&mut received)?;
            if read == 0 {
                return Ok(());
            }
            rest.extend_from_slice(&received[..read]);
            let responses = take_status_codes(&mut rest);
            for answered in &responses {
                let counter = match answered.as_slice() == status {
                    true => &counts.expected,
                    false => &counts.others,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            open = open.saturating_sub(responses.len() as u64);
        }
    }
    Ok(())
}

/// Removes the complete status lines and the bytes before them. Returns their status codes.
fn take_status_codes(bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let length = STATUS_LINE.len() + STATUS_BYTES;
    let (mut at, mut found) = (0, Vec::new());
    while at + length <= bytes.len() {
        if bytes[at] == STATUS_LINE[0] && bytes[at..].starts_with(STATUS_LINE) {
            found.push(bytes[at + STATUS_LINE.len()..at + length].to_vec());
            at += length;
        } else {
            at += 1;
        }
    }
    bytes.drain(..at);
    found
}

//! Packets of a network, and the TCP streams in them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::repository;

const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const ETHERNET_HEADER_BYTES: usize = 14;
const SYN: u8 = 0x02;
/// Types of TLS records: change of cipher, alert, handshake and data (RFC 8446, section 5.1).
const TLS_RECORDS: [u8; 4] = [20, 21, 22, 23];
const TLS_RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// Running capture. It ends when dropped.
pub(crate) struct Capture {
    process: Child,
    output: BufReader<ChildStdout>,
    file: PathBuf,
}

impl Capture {
    /// Runs the script with `python`. Returns the reason if it cannot capture.
    pub(super) fn start(mut python: Command, file: &Path) -> Result<Self, String> {
        let mut process = python
            .arg(repository("e2e/fixtures/capture.py"))
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("python3: {err}"))?;
        let output = process.stdout.take().expect("the output is a pipe");
        let mut capture = Self {
            process,
            output: BufReader::new(output),
            file: file.to_owned(),
        };
        match capture.line().as_str() {
            "capturing" => Ok(capture),
            _ => Err("the script e2e/fixtures/capture.py failed".to_owned()),
        }
    }

    /// Ends the capture. Panics if packets were lost.
    pub(crate) fn end(mut self) -> Captured {
        drop(self.process.stdin.take());
        assert_eq!(self.line(), "0", "packets that the capture lost");
        let mut file = BufReader::new(File::open(&self.file).expect("the file of the capture"));
        let mut captured = Captured::default();
        let mut length = [0; 4];
        while file.read_exact(&mut length).is_ok() {
            let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("a short frame")];
            file.read_exact(&mut frame).expect("a complete frame");
            captured.add(frame);
        }
        captured
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        drop(self.output.read_line(&mut line));
        line.trim().to_owned()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // The end of its input ends the script.
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// Captured packets.
#[derive(Default)]
pub(crate) struct Captured {
    frames: Vec<Vec<u8>>,
    /// Streams by source and destination, each with its streams in order of time.
    segments: BTreeMap<(SocketAddrV4, SocketAddrV4), Vec<Segments>>,
}

/// Segments of one direction of a TCP connection.
#[derive(Default)]
struct Segments {
    /// Sequence number of the first byte.
    first: u32,
    by_offset: BTreeMap<usize, Vec<u8>>,
}

/// Bytes of one direction of a TCP connection.
pub(crate) struct Stream {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) bytes: Vec<u8>,
}

impl Captured {
    fn add(&mut self, frame: Vec<u8>) {
        if let Some((from, to, sequence, flags, payload)) = tcp(&frame) {
            let streams = self.segments.entry((from, to)).or_default();
            if flags & SYN != 0 {
                let first = sequence.wrapping_add(1);
                // A repeated packet does not start another stream.
                if streams.last().is_none_or(|last| last.first != first) {
                    streams.push(Segments {
                        first,
                        ..Segments::default()
                    });
                }
            } else if let Some(stream) = streams.last_mut() {
                let offset = sequence.wrapping_sub(stream.first);
                // A keepalive packet repeats the byte before the next one, and may precede the first.
                if offset < u32::MAX / 2 && !payload.is_empty() {
                    let offset = usize::try_from(offset).expect("64-bit addresses");
                    let known = stream.by_offset.entry(offset).or_default();
                    if known.len() < payload.len() {
                        *known = payload.to_vec();
                    }
                }
            }
        }
        self.frames.push(frame);
    }

    /// Returns all streams.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        let all = self.segments.iter();
        all.flat_map(|((from, to), streams)| {
            streams.iter().map(|stream| Stream {
                from: *from,
                to: *to,
                bytes: stream.assembled(),
            })
        })
        .collect()
    }

    /// Returns true if `text` occurs in a packet, or in a stream.
    pub(crate) fn contains(&self, text: &str) -> bool {
        let is_in = |bytes: &[u8]| contains(bytes, text.as_bytes());
        self.frames.iter().any(|frame| is_in(frame)) || self.streams().iter().any(|one| is_in(&one.bytes))
    }
}

impl Segments {
    fn assembled(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (offset, segment) in &self.by_offset {
            match offset.checked_sub(bytes.len()) {
                Some(gap) => {
                    assert_eq!(gap, 0, "the capture has all segments");
                    bytes.extend_from_slice(segment);
                }
                // A repeated segment may be longer than the first.
                None => bytes.extend_from_slice(segment.get(bytes.len() - offset..).unwrap_or_default()),
            }
        }
        bytes
    }
}

impl Stream {
    pub(crate) fn contains(&self, text: &str) -> bool {
        contains(&self.bytes, text.as_bytes())
    }

    /// Returns true if the stream consists of TLS records. The last record may be incomplete.
    pub(crate) fn is_tls(&self) -> bool {
        let mut rest = self.bytes.as_slice();
        while let [kind, major, _, high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if !TLS_RECORDS.contains(kind) || *major != 3 || length > TLS_RECORD_BYTES_MAX {
                return false;
            }
            rest = after.get(length..).unwrap_or_default();
        }
        rest.first().is_none_or(|kind| TLS_RECORDS.contains(kind))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.bytes[..self.bytes.len().min(200)];
        write!(
            f,
            "{} to {}: {}",
            self.from,
            self.to,
            String::from_utf8_lossy(start)
        )
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let Some(first) = text.first() else { return true };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        if rest[at..].starts_with(text) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Returns source, destination, sequence number, flags and payload of a TCP packet over IPv4.
fn tcp(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, u32, u8, &[u8])> {
    if frame.get(12..ETHERNET_HEADER_BYTES)? != IPV4 {
        return None;
    }
    let packet = frame.get(ETHERNET_HEADER_BYTES..)?;
    let header = usize::from(packet.first()? & 0x0f) * 4;
    // With segmentation offload, the length of a long packet is 0.
    let packet = match u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?) {
        0 => packet,
        length => packet.get(..usize::from(length))?,
    };
    if *packet.get(9)? != TCP {
        return None;
    }
    let address = |at: usize| {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    let segment = packet.get(header..)?;
    let port = |at: usize| Some(u16::from_be_bytes(segment.get(at..at + 2)?.try_into().ok()?));
    let data = usize::from(segment.get(12)? >> 4) * 4;
    Some((
        SocketAddrV4::new(address(12)?, port(0)?),
        SocketAddrV4::new(address(16)?, port(2)?),
        u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?),
        *segment.get(13)?,
        segment.get(data..)?,
    ))
}
